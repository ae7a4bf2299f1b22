//! Our own operations on the peer, from posting to completion.
//!
//! Two rings in posting order. Each has a cursor between what was put on the wire and what was not, so an operation is
//! never moved:
//!
//! ```text
//!   placements (writes, sends)   | handed to the kernel | staged | not yet staged |
//!                                acked             transmitted  staged         posted
//!   reads                        | asked, DATA awaited           | waits for the window |
//!                                begun                         asked
//! ```
//!
//! A read waits for its place in the window and for every placement that was posted before it; a later placement does
//! not wait for a read. A send waits for an announced receive, and what was posted after it waits with it, as behind a
//! receiver that is not ready on a card.

use std::collections::VecDeque;

use super::frame::{Denied, Frame};
use super::link::Fault;
use super::outbox::Source;
use crate::fabric::buffer::Slot;
use crate::fabric::{Op, OpError, RemoteRange};

/// One posted operation: what it takes to send it and to complete it.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) op: Op,
    pub(super) tag: u64,
    pub(super) slot: Slot,
    /// Where it goes; for sends only the length means anything.
    pub(super) remote: RemoteRange,
}

/// A read, and how many placements had been posted before it.
#[derive(Debug)]
struct Ask {
    operation: Operation,
    after: u64,
}

#[derive(Debug)]
pub(super) struct Initiator {
    placements: VecDeque<Operation>,
    acked: u64,
    transmitted: u64,
    staged: u64,
    reads: VecDeque<Ask>,
    /// Reads that were asked for.
    asked: u64,
    /// Reads whose DATA has begun to arrive.
    begun: u64,
    /// Reads whose DATA is complete.
    answered: u64,
    /// Reads that may be asked for and not answered.
    window: u64,
    /// Sends that were staged.
    sends: u64,
    /// Receives that the peer has ever posted.
    credits: u64,
}

impl Initiator {
    pub(super) fn new(capacity: usize, window: u8) -> Self {
        Self {
            placements: VecDeque::with_capacity(capacity),
            acked: 0,
            transmitted: 0,
            staged: 0,
            reads: VecDeque::with_capacity(capacity),
            asked: 0,
            begun: 0,
            answered: 0,
            window: u64::from(window),
            sends: 0,
            credits: 0,
        }
    }

    /// Takes an operation in.
    pub(super) fn post(&mut self, operation: Operation) {
        if operation.op == Op::Read {
            let after = self.acked + self.placements.len() as u64;
            self.reads.push_back(Ask { operation, after });
        } else {
            self.placements.push_back(operation);
        }
    }

    /// The next frame that may be sent, if any.
    pub(super) fn next_request(&mut self) -> Option<(Frame, Source)> {
        self.next_read().or_else(|| self.next_placement())
    }

    fn next_read(&mut self) -> Option<(Frame, Source)> {
        if self.asked - self.answered == self.window {
            return None;
        }
        let ask = self.reads.get((self.asked - self.begun) as usize)?;
        if ask.after > self.staged {
            return None;
        }
        let RemoteRange { address, key, length } = ask.operation.remote;
        let frame = Frame::Read { seq: self.asked, address, key, length };
        self.asked += 1;
        Some((frame, Source::Nothing))
    }

    fn next_placement(&mut self) -> Option<(Frame, Source)> {
        let seq = self.staged;
        let operation = self.placements.get((seq - self.acked) as usize)?;
        let RemoteRange { address, key, length } = operation.remote;
        let frame = if operation.op == Op::Send {
            if self.sends == self.credits {
                return None;
            }
            self.sends += 1;
            Frame::Send { seq, length }
        } else {
            Frame::Write { seq, address, key, length }
        };
        self.staged += 1;
        Some((frame, Source::Placement { seq, length }))
    }

    /// The slot of a staged placement.
    pub(super) fn slot(&self, seq: u64) -> &Slot {
        &self.placements[(seq - self.acked) as usize].slot
    }

    /// `count` more placements are with the kernel entirely.
    pub(super) fn handed_over(&mut self, count: u64) {
        self.transmitted += count;
    }

    /// The peer says what it has placed, and how many receives it has posted. Finished operations come by [`Self::pop_acked`].
    pub(super) fn check_ack(&mut self, placed: u64, posted: u64) -> Result<(), Fault> {
        if placed < self.acked || placed > self.transmitted {
            return Err(Fault::Broke("it acknowledged what was not sent"));
        }
        if posted < self.credits {
            return Err(Fault::Broke("it took posted receives back"));
        }
        self.credits = posted;
        Ok(())
    }

    /// The oldest placement, if it is among the first `placed`.
    pub(super) fn pop_acked(&mut self, placed: u64) -> Option<Operation> {
        if self.acked == placed {
            return None;
        }
        self.acked += 1;
        self.placements.pop_front()
    }

    /// The read that a DATA header answers.
    pub(super) fn begin_answer(&mut self, seq: u64, length: u32) -> Result<Operation, Fault> {
        if seq != self.begun || self.begun == self.asked {
            return Err(Fault::Broke("it answered a read that was not asked"));
        }
        match self.reads.pop_front() {
            Some(ask) if ask.operation.remote.length == length => {
                self.begun += 1;
                Ok(ask.operation)
            }
            Some(ask) => {
                self.reads.push_front(ask);
                Err(Fault::Broke("it answered a read with another number of bytes"))
            }
            None => Err(Fault::Broke("it answered a read that was not asked")),
        }
    }

    /// That read has all its bytes.
    pub(super) fn end_answer(&mut self) {
        self.answered += 1;
    }

    /// The peer refused an operation.
    pub(super) fn denied(&self, denied: Denied, reason: OpError) -> Fault {
        let known = match denied {
            Denied::Placement(seq) => (self.acked..self.staged).contains(&seq),
            Denied::Read(seq) => (self.begun..self.asked).contains(&seq),
        };
        if known { Fault::Denied(denied, reason) } else { Fault::Broke("it refused what was not asked") }
    }

    /// Empties both rings, in order, with each operation's number.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = (Denied, Operation)> + '_ {
        let placements = (self.acked..).map(Denied::Placement).zip(self.placements.drain(..));
        let reads = (self.begun..).map(Denied::Read).zip(self.reads.drain(..).map(|ask| ask.operation));
        placements.chain(reads)
    }
}
