//! The software card: what the peer's operations do to our memory, and the answers we owe.
//!
//! Everything that a peer can make grow is bounded by what it was promised: as many unanswered reads as were
//! negotiated, as many sends as receives were announced, and one ACK however much it acknowledges.

use std::collections::VecDeque;

use super::frame::{Denied, Frame};
use super::link::Fault;
use super::outbox::Source;
use super::regions::{Regions, Target};
use crate::fabric::OpError;
use crate::fabric::buffer::Slot;

/// Placements after which an acknowledgement waits for nothing any more.
const MUCH: u64 = 32;

/// A receive that waits for its message.
#[derive(Debug)]
pub(super) struct Posted {
    pub(super) tag: u64,
    pub(super) slot: Slot,
}

#[derive(Debug)]
pub(super) struct Responder {
    pub(super) regions: Regions,
    recvs: VecDeque<Posted>,
    /// Receives ever posted, those the peer knows of, and those that a message has begun to fill.
    posted: u64,
    announced: u64,
    consumed: u64,
    /// Writes and sends of the peer: those that arrived, those that are in place, those it knows to be.
    arrived: u64,
    placed: u64,
    acknowledged: u64,
    /// Reads that are checked and not yet staged.
    answers: VecDeque<(u64, Target)>,
    /// Reads of the peer that arrived, and those whose answer is with the kernel entirely.
    asked: u64,
    answered: u64,
    /// Reads that the peer may have outstanding.
    promised: u64,
    /// Whether acknowledgements wait for something to ride along with.
    rides: bool,
}

impl Responder {
    pub(super) fn new(capacity: usize, promised: u8, rides: bool, regions: Regions) -> Self {
        Self {
            regions,
            recvs: VecDeque::with_capacity(capacity),
            posted: 0,
            announced: 0,
            consumed: 0,
            arrived: 0,
            placed: 0,
            acknowledged: 0,
            answers: VecDeque::with_capacity(usize::from(promised)),
            asked: 0,
            answered: 0,
            promised: u64::from(promised),
            rides,
        }
    }

    /// Takes a receive in.
    pub(super) fn post(&mut self, posted: Posted) {
        self.recvs.push_back(posted);
        self.posted += 1;
    }

    /// A WRITE header: where its payload goes.
    pub(super) fn begin_write(
        &mut self,
        seq: u64,
        address: u64,
        key: u32,
        length: u32,
    ) -> Result<Target, Fault> {
        self.count_placement(seq)?;
        self.regions.check(address, key, length, true).ok_or(Fault::Violation {
            what: "it wrote where it may not",
            denied: Denied::Placement(seq),
            reason: OpError::Access,
        })
    }

    /// A SEND header: the receive that its payload fills, and whether it fits there.
    pub(super) fn begin_send(&mut self, seq: u64, length: u32) -> Result<(Posted, Result<(), Fault>), Fault> {
        self.count_placement(seq)?;
        if self.consumed == self.announced {
            return Err(Fault::Broke("it sent a message for which no receive was announced"));
        }
        let posted = self.recvs.pop_front().ok_or(Fault::Broke("it sent a message without a receive"))?;
        self.consumed += 1;
        let fits = if length <= posted.slot.size() {
            Ok(())
        } else {
            Err(Fault::Violation {
                what: "it sent a message longer than a slot",
                denied: Denied::Placement(seq),
                reason: OpError::TooLong,
            })
        };
        Ok((posted, fits))
    }

    fn count_placement(&mut self, seq: u64) -> Result<(), Fault> {
        if seq != self.arrived {
            return Err(Fault::Broke("its operations are not numbered in order"));
        }
        self.arrived += 1;
        Ok(())
    }

    /// The payload of the oldest write or send is all there.
    pub(super) fn end_placement(&mut self) {
        self.placed += 1;
    }

    /// A READ header.
    pub(super) fn read(&mut self, seq: u64, address: u64, key: u32, length: u32) -> Result<(), Fault> {
        if seq != self.asked {
            return Err(Fault::Broke("its operations are not numbered in order"));
        }
        if self.asked - self.answered == self.promised {
            return Err(Fault::Broke("it asked for more reads at once than was agreed"));
        }
        self.asked += 1;
        let target = self.regions.check(address, key, length, false).ok_or(Fault::Violation {
            what: "it read where it may not",
            denied: Denied::Read(seq),
            reason: OpError::Access,
        })?;
        self.answers.push_back((seq, target));
        Ok(())
    }

    /// `count` more answers to reads are with the kernel entirely.
    pub(super) fn handed_over(&mut self, count: u64) {
        self.answered += count;
    }

    /// The next answer that we owe, if any. `company` says whether a request of ours leaves at the same time.
    pub(super) fn next_answer(&mut self, company: bool) -> Option<(Frame, Source)> {
        if self.ack_is_due(company) {
            return Some((self.ack(), Source::Nothing));
        }
        let (seq, target) = self.answers.pop_front()?;
        Some((Frame::Data { seq, length: target.length }, Source::Region(target)))
    }

    /// An ACK of all there is.
    pub(super) fn ack(&mut self) -> Frame {
        self.acknowledged = self.placed;
        self.announced = self.posted;
        Frame::Ack { placed: self.placed, posted: self.posted }
    }

    /// Placed data is acknowledged at once, since someone waits for it, unless an answer is sure to follow: then along with
    /// that, or when it has become much. A posted receive can ride along, too, unless the peer runs out: it is announced by
    /// itself once it is half of what is there for the peer to use.
    fn ack_is_due(&self, company: bool) -> bool {
        let (unannounced, unacknowledged) = (self.posted - self.announced, self.placed - self.acknowledged);
        let much = if self.rides && !company { MUCH } else { 1 };
        unacknowledged >= much || (unannounced > 0 && unannounced * 2 >= self.posted - self.consumed)
    }

    /// Empties the receives, in order.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Posted> + '_ {
        self.recvs.drain(..)
    }
}
