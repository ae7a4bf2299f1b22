//! A lane: one NBD connection in its transmission phase, one way to the export, one thread.
//!
//! ```text
//!   socket ──▶ Incoming ──▶ Table ──▶ Remote ──▶ link
//!   socket ◀── Outgoing ◀── answer ◀── completions
//! ```
//! Each round takes what the socket has, posts all of it with one doorbell, reaps what is finished and answers it with
//! one send. Full is an answer everywhere: a link, pool or table without room makes the lane stop reading its socket,
//! so back-pressure reaches the client by itself.
//!
//! Per request nothing is allocated, locked or registered. When nothing moves the lane spins for a budget, then sleeps
//! on its socket, its link and its stop handle at once.
//!
//! A dead link does not end the connection: every request is answered with `EIO`, since a kernel that loses its socket
//! loses its disk.
//!
//! Here: a lane's state and its round. `requests`: from the socket to the link. `answers`: back to the socket. `wait`:
//! when nothing moves, and the end. `incoming` and `outgoing`: the two directions of the stream.

mod answers;
mod incoming;
mod outgoing;
mod requests;
mod wait;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kaeru_common::error::Status;
use kaeru_common::fabric::buffer::Slot;
use kaeru_common::fabric::{Link, LinkDown};
use kaeru_common::metrics::LaneCounters;
use kaeru_common::units::ByteRange;

pub use self::incoming::EARLY_BYTES;
use self::incoming::Incoming;
use self::outgoing::Outgoing;
pub use self::wait::{Spin, Stop};
use super::proto::NbdError;
use super::stamps::Stamps;
use super::transmission::{Command, ExportLimits, Malformed, ReplyHeader};
use crate::inflight::{RequestId, Table};
use crate::remote::{Answer, Failure, Remote};

/// Requests that one connection may have in flight; the kernel's NBD driver has at most 128.
const REQUESTS: u32 = 256;
/// Answers that may wait for the client to take them before no more requests are taken.
const ANSWERS: usize = REQUESTS as usize;
/// Slots that one long write of zeroes uses at once.
const ZERO_SLOTS: u32 = 4;

/// What a connection agreed on and how its lane is to run.
#[derive(Clone, Copy, Debug)]
pub struct LaneConfig {
    /// What the client was told about the export.
    pub limits: ExportLimits,
    /// Whether reads are answered with structured replies.
    pub structured: bool,
    /// Whether the export is all one hole (`null`), for block status.
    pub hole: bool,
    /// Spinning before sleeping.
    pub spin: Spin,
    /// A link that owes completions and delivers none for this long is given up.
    pub patience: Duration,
}

/// Why a lane ended.
#[derive(Debug, thiserror::Error)]
pub enum LaneEnd {
    /// The client said goodbye.
    #[error("the client disconnected")]
    Disconnected,
    /// The client closed its socket without a word.
    #[error("the client went away")]
    Gone,
    /// We were asked to.
    #[error("the lane was stopped")]
    Stopped,
    /// The client's stream makes no sense.
    #[error("the client broke the protocol: {0}")]
    Malformed(#[from] Malformed),
    /// A read failed after part of its data was sent, and simple replies cannot say so.
    #[error("a read failed after part of it was answered")]
    BrokenReply,
    /// The socket failed.
    #[error("the client's socket failed: {0}")]
    Socket(#[from] io::Error),
}

/// What the stream from the client brings next.
#[derive(Debug)]
enum Expect {
    Header,
    /// Payload of a write; the slot waits for `piece`.
    Payload {
        id: RequestId,
        slot: Option<Slot>,
        filled: usize,
        piece: ByteRange,
    },
    /// Payload of a request that already failed.
    Discard {
        id: RequestId,
        left: u64,
    },
}

/// A read's data that has arrived and waits for the rest of its request.
#[derive(Debug)]
struct Held {
    id: RequestId,
    slot: Slot,
    /// Where in the request it begins, in bytes.
    at: u32,
    length: u32,
}

/// Pieces of one read that are held back until it is whole. A longer read is answered bit by bit, and should it fail
/// midway, simple replies cannot say so.
fn hold_limit(slots: usize) -> usize {
    (slots / 4).max(1)
}

/// Bytes of the longest read that a lane of this remote answers whole.
pub fn longest_whole_read<L: Link>(remote: &Remote<L>) -> u64 {
    hold_limit(remote.link().pool().slots() as usize) as u64 * remote.longest_piece()
}

/// What the client is told of a failure.
fn error_of(failure: Failure) -> NbdError {
    let Failure::Store(status) = failure else { return NbdError::Io };
    match status {
        Status::NoSpace => NbdError::NoSpc,
        Status::ReadOnly | Status::NotAllowed => NbdError::Perm,
        Status::BadRequest | Status::OutOfRange | Status::NotSupported => NbdError::Inval,
        Status::NoResources => NbdError::NoMem,
        Status::ShuttingDown => NbdError::Shutdown,
        _ => NbdError::Io,
    }
}

/// One connection being served.
#[derive(Debug)]
pub struct Lane<L: Link> {
    remote: Remote<L>,
    socket: OwnedFd,
    config: LaneConfig,
    stop: Stop,
    counters: Arc<LaneCounters>,
    /// Who wants to know when each request passed where.
    stamps: Option<Arc<Stamps>>,
    incoming: Incoming,
    outgoing: Outgoing,
    /// A slot for payload that is received together with its header.
    spare: Option<Slot>,
    expect: Expect,
    table: Table,
    /// Reads whose pieces are not all posted yet, in order.
    reading: VecDeque<RequestId>,
    /// Writes of zeroes whose pieces are not all posted yet, in order.
    zeroing: VecDeque<RequestId>,
    /// Commands that are not posted yet, in order.
    commanding: VecDeque<RequestId>,
    /// Data of reads; the pieces of each in order.
    held: VecDeque<Held>,
    /// Held pieces at which a read is answered bit by bit instead of whole.
    hold_limit: usize,
    /// The read that is being answered bit by bit; other answers wait.
    streaming: Option<RequestId>,
    deferred: VecDeque<ReplyHeader>,
    /// Whole reads that are over and wait for that one, too.
    parked: VecDeque<RequestId>,
    done: Vec<Answer>,
    /// Whether the link may have something to say. Over tcp, to ask is a system call.
    look: bool,
    /// Operations that the link has.
    owed: u32,
    last_progress: Instant,
    /// Whether the link is dead, and that was said.
    is_lost: bool,
    /// Why nothing more is taken from the client.
    ending: Option<LaneEnd>,
}

impl<L: Link> Lane<L> {
    /// A lane that serves `socket`, a stream in its transmission phase, from `remote`.
    pub fn new(
        remote: Remote<L>,
        socket: OwnedFd,
        config: LaneConfig,
        stop: Stop,
        counters: Arc<LaneCounters>,
    ) -> Self {
        let slots = remote.link().pool().slots() as usize;
        let depth = remote.link().limits().depth as usize;
        Self {
            incoming: Incoming::new(),
            outgoing: Outgoing::new(2 * REQUESTS as usize + 3 * slots),
            spare: None,
            expect: Expect::Header,
            table: Table::new(REQUESTS),
            reading: VecDeque::with_capacity(REQUESTS as usize),
            zeroing: VecDeque::with_capacity(REQUESTS as usize),
            commanding: VecDeque::with_capacity(REQUESTS as usize),
            held: VecDeque::with_capacity(slots),
            hold_limit: hold_limit(slots),
            streaming: None,
            deferred: VecDeque::with_capacity(REQUESTS as usize),
            parked: VecDeque::with_capacity(REQUESTS as usize),
            done: Vec::with_capacity(depth.clamp(1, 128)),
            look: true,
            owed: 0,
            last_progress: Instant::now(),
            is_lost: false,
            ending: None,
            remote,
            socket,
            config,
            stop,
            counters,
            stamps: None,
        }
    }

    /// Notes in `stamps` when each request passed where.
    #[must_use]
    pub fn with_stamps(mut self, stamps: Arc<Stamps>) -> Self {
        self.stamps = Some(stamps);
        self
    }

    /// Takes bytes of the stream that were received before the lane existed: at most [`EARLY_BYTES`].
    #[must_use]
    pub fn with_early(mut self, early: &[u8]) -> Self {
        self.incoming.preload(early);
        self
    }

    /// Serves until the client leaves or the lane is stopped. Returns the way to the export, idle again and fit for the next
    /// client unless its link is dead, and why the lane ended.
    pub fn run(mut self) -> (Remote<L>, LaneEnd) {
        let end = loop {
            match self.round() {
                Ok(true) => {}
                Ok(false) => {
                    if let Some(end) = self.finished() {
                        break end;
                    }
                    if let Err(error) = self.rest() {
                        break self.lose(error.into());
                    }
                }
                Err(error) => break self.lose(error),
            }
        };
        self.settle();
        (self.remote, end)
    }

    /// Everything that can be done without waiting. Returns whether anything was.
    fn round(&mut self) -> Result<bool, LaneEnd> {
        let taken = self.take_requests()?;
        self.post_pieces();
        self.remote.submit();
        let reaped = self.reap();
        self.counters.set_in_flight(self.table.count() as u64);
        if matches!(self.ending, Some(LaneEnd::BrokenReply)) {
            return Err(LaneEnd::BrokenReply);
        }
        // What was received and had to wait for room shows nowhere else: it is not on the socket any more.
        let stalled = self.is_stalled();
        // Nor do the slots that come free as their data is sent, for which pieces of reads and zeroes may be waiting.
        let unposted = !self.reading.is_empty() || !self.zeroing.is_empty();
        let free = self.remote.link().pool().available();
        self.outgoing.send(self.socket.as_fd())?;
        let freed = unposted && self.remote.link().pool().available() > free;
        Ok(taken || reaped || freed || (stalled && !self.is_stalled()))
    }

    /// Takes finished operations. Returns whether there were any.
    fn reap(&mut self) -> bool {
        let moved = std::mem::take(&mut self.look) && self.remote.poll(&mut self.done);
        self.notice_loss();
        if self.done.is_empty() {
            return moved;
        }
        // There may be more than fitted.
        self.look = self.done.len() == self.done.capacity();
        self.last_progress = Instant::now();
        let mut done = std::mem::take(&mut self.done);
        for answer in done.drain(..) {
            self.complete(answer);
        }
        self.done = done;
        true
    }

    /// Says once that the link is dead.
    fn notice_loss(&mut self) {
        let Some(why) = self.remote.down().filter(|_| !self.is_lost) else { return };
        if !matches!(why, LinkDown::ClosedHere) {
            tracing::error!("a lane is lost ({why}); what goes over it fails with EIO");
        }
        self.counters.lose();
        self.is_lost = true;
    }

    fn complete(&mut self, answer: Answer) {
        let (id, at) = RequestId::from_tag(answer.tag);
        self.owed -= 1;
        let Some(flight) = self.table.get(id) else { return };
        flight.outstanding -= 1;
        if self.stamps.is_some() {
            flight.marks.complete(answer.spent);
        }
        let (command, failed) = (flight.request.command, flight.error.is_some());
        match (answer.result, answer.slot) {
            (Err(error), _) => {
                tracing::debug!("{command:?} of request {:#x} failed: {error}", flight.request.cookie);
                flight.fail(error_of(error));
            }
            (Ok(length), Some(slot)) if command == Command::Read && !failed => {
                flight.held += 1;
                self.hold(Held { id, slot, at, length });
                self.stream_long_read(id);
            }
            (Ok(_), Some(slot)) if command != Command::Write && !failed => self.reuse_zeroes(id, slot),
            (Ok(_), Some(_)) => {}
            (Ok(_), None) => flight.extents = answer.extents,
        }
        if self.table.get(id).is_some_and(|flight| flight.is_over()) {
            self.finish(id);
        }
    }

    /// Keeps the data of a read, in its place among the other pieces of the same read: a disk answers in any order.
    fn hold(&mut self, held: Held) {
        let later = |other: &Held| other.id == held.id && other.at > held.at;
        let place = self.held.iter().position(later).unwrap_or(self.held.len());
        self.held.insert(place, held);
    }

    /// Writes the next piece of zeroes from a slot that is all zeroes already.
    fn reuse_zeroes(&mut self, id: RequestId, slot: Slot) {
        let Some(flight) = self.table.get(id) else { return };
        if flight.posted {
            return;
        }
        let rest = flight.left;
        let Some(piece) = flight.left.next() else { return };
        match self.remote.write(slot, piece, false, id.tag()) {
            Ok(()) => self.owe(id),
            // `post_zeroes` tries again, and gives the request up where the link is dead.
            Err(_) => {
                self.put_back(id, rest);
            }
        }
    }
}
