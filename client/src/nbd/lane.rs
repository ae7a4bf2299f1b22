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

mod incoming;
mod outgoing;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kaeru_common::fabric::buffer::Slot;
use kaeru_common::fabric::{Completion, Link, Op, Refused};
use kaeru_common::metrics::LaneCounters;
use kaeru_common::units::{ByteRange, Pieces};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

pub use self::incoming::EARLY_BYTES;
use self::incoming::Incoming;
use self::outgoing::Outgoing;
use super::handshake::BASE_ALLOCATION_ID;
use super::proto::{CommandFlags, NbdError, REQUEST_BYTES, STATE_HOLE, STATE_ZERO};
use super::transmission::{
    Command, ExportLimits, Extent, Malformed, ReplyHeader, Request, parse_request, validate,
};
use crate::inflight::{InFlight, RequestId, Table};
use crate::remote::Remote;

/// Requests that one connection may have in flight; the kernel's NBD driver has at most 128.
const REQUESTS: u32 = 256;
/// Slots that one long write of zeroes uses at once.
const ZERO_SLOTS: u32 = 4;

/// How long a lane spins before it sleeps, while the link owes it a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spin {
    /// For this long; zero sleeps at once.
    For(Duration),
    /// Never sleep, whether anything is owed or not.
    Always,
}

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

/// Ends lanes from another thread.
#[derive(Clone, Debug)]
pub struct Stop(Arc<StopState>);

#[derive(Debug)]
struct StopState {
    wanted: AtomicBool,
    wake: OwnedFd,
}

impl Stop {
    /// A handle that nothing has been asked of.
    ///
    /// # Errors
    /// Where the process has no descriptor left.
    pub fn new() -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self(Arc::new(StopState { wanted: AtomicBool::new(false), wake })))
    }

    /// Asks every lane that has this handle to end. It stays asked.
    pub fn stop(&self) {
        self.0.wanted.store(true, Ordering::Release);
        // The counter is never read back, so the descriptor stays readable for all lanes; it can only be full already.
        let _ = rustix::io::write(&self.0.wake, &1u64.to_ne_bytes());
    }

    /// Whether it was asked.
    pub fn is_stopped(&self) -> bool {
        self.0.wanted.load(Ordering::Acquire)
    }
}

impl AsFd for Stop {
    /// Readable once it was asked.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.wake.as_fd()
    }
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
    length: u32,
}

/// One connection being served.
#[derive(Debug)]
pub struct Lane<L: Link> {
    remote: Remote<L>,
    socket: OwnedFd,
    config: LaneConfig,
    stop: Stop,
    counters: Arc<LaneCounters>,
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
    held: VecDeque<Held>,
    /// Held pieces at which a read is answered bit by bit instead of whole.
    hold_limit: usize,
    /// The read that is being answered bit by bit; other answers wait.
    streaming: Option<RequestId>,
    deferred: VecDeque<ReplyHeader>,
    done: Vec<Completion>,
    /// Operations that the link has.
    owed: u32,
    last_progress: Instant,
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
            outgoing: Outgoing::new(REQUESTS as usize + 3 * slots),
            spare: None,
            expect: Expect::Header,
            table: Table::new(REQUESTS),
            reading: VecDeque::with_capacity(REQUESTS as usize),
            zeroing: VecDeque::with_capacity(REQUESTS as usize),
            held: VecDeque::with_capacity(slots),
            hold_limit: (slots / 4).max(1),
            streaming: None,
            deferred: VecDeque::with_capacity(REQUESTS as usize),
            done: Vec::with_capacity(depth.clamp(1, 128)),
            owed: 0,
            last_progress: Instant::now(),
            ending: None,
            remote,
            socket,
            config,
            stop,
            counters,
        }
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
        if matches!(self.ending, Some(LaneEnd::BrokenReply)) {
            return Err(LaneEnd::BrokenReply);
        }
        self.outgoing.send(self.socket.as_fd())?;
        Ok(taken || reaped)
    }

    // ── From the client ────────────────────────────────────────────────────────────────────────────────────────────

    /// Takes requests and payload from the socket until it is drained or there is no room.
    fn take_requests(&mut self) -> Result<bool, LaneEnd> {
        let mut any = false;
        while self.ending.is_none() && self.take_one()? {
            any = true;
        }
        if self.incoming.is_ended() && self.ending.is_none() {
            self.ending = Some(LaneEnd::Gone);
        }
        if self.stop.is_stopped() && self.ending.is_none() {
            self.ending = Some(LaneEnd::Stopped);
        }
        Ok(any)
    }

    /// Takes the next header, or the next stretch of payload. Returns whether it got on.
    fn take_one(&mut self) -> Result<bool, LaneEnd> {
        match std::mem::replace(&mut self.expect, Expect::Header) {
            Expect::Header => {
                if self.table.is_full() {
                    return Ok(false);
                }
                if self.spare.is_none()
                    && self.incoming.wants_spare()
                    && self.remote.link().pool().available() > 1
                {
                    self.spare = self.remote.slot();
                }
                let Some(header) = self.incoming.header(self.socket.as_fd(), &mut self.spare)? else {
                    return Ok(false);
                };
                self.start(&header)?;
                Ok(true)
            }
            Expect::Payload { id, slot, filled, piece } => self.take_payload(id, slot, filled, piece),
            Expect::Discard { id, left } => {
                let now = self.incoming.discard(self.socket.as_fd(), left)?;
                if now > 0 {
                    self.expect = Expect::Discard { id, left: now };
                    return Ok(now < left);
                }
                self.posted(id);
                Ok(true)
            }
        }
    }

    fn take_payload(
        &mut self,
        id: RequestId,
        slot: Option<Slot>,
        filled: usize,
        piece: ByteRange,
    ) -> Result<bool, LaneEnd> {
        let Some(mut slot) = slot.or_else(|| self.remote.slot()) else {
            self.expect = Expect::Payload { id, slot: None, filled, piece };
            return Ok(false);
        };
        let wanted = piece.length() as usize;
        let now = self.incoming.payload(self.socket.as_fd(), &mut slot, filled, wanted)?;
        if now < wanted {
            self.expect = Expect::Payload { id, slot: Some(slot), filled: now, piece };
            return Ok(now > filled && !self.incoming.is_drained());
        }
        match self.remote.write(slot, piece, id.tag()) {
            Ok(()) => {
                self.owe(id);
                self.next_payload(id);
            }
            Err(Refused::Full(slot)) => {
                self.expect = Expect::Payload { id, slot: Some(slot), filled: now, piece };
                return Ok(false);
            }
            Err(Refused::Dead(_)) => self.abandon_payload(id),
        }
        Ok(true)
    }

    /// Goes on to the next piece of a write's payload, or back to headers.
    fn next_payload(&mut self, id: RequestId) {
        let Some(flight) = self.table.get(id) else { return };
        match flight.left.next() {
            Some(piece) => {
                let (slot, filled) = self.incoming.claim(piece.length() as usize).unzip();
                self.expect = Expect::Payload { id, slot, filled: filled.unwrap_or(0), piece };
            }
            None => self.posted(id),
        }
    }

    /// Fails a write and skips the payload that is still to come.
    fn abandon_payload(&mut self, id: RequestId) {
        let Some(flight) = self.table.get(id) else { return };
        flight.fail(NbdError::Io);
        self.expect = Expect::Discard { id, left: flight.left.remaining() };
    }

    /// Begins one request. The answer to one that fails at the door comes after its payload.
    fn start(&mut self, header: &[u8; REQUEST_BYTES]) -> Result<(), LaneEnd> {
        let request = match parse_request(header) {
            Ok(request) => request,
            Err(malformed) => {
                let (cookie, error) = malformed.reply().ok_or(malformed)?;
                self.counters.error();
                self.answer(ReplyHeader::simple(cookie, Err(error)));
                return Ok(());
            }
        };
        tracing::trace!(?request, "request");
        match self.admit(&request) {
            Ok(range) => self.perform(request, range),
            Err(error) => {
                self.refuse(request, error);
                Ok(())
            }
        }
    }

    /// Checks a request at the door. Returns its range.
    fn admit(&self, request: &Request) -> Result<ByteRange, NbdError> {
        validate(request, &self.config.limits)?;
        let one_chunk = request.command == Command::Read && request.flags.contains(CommandFlags::DF);
        let range = ByteRange::new(request.offset, u64::from(request.length)).ok_or(NbdError::Inval)?;
        if one_chunk && self.remote.pieces(range).take(self.hold_limit + 1).count() > self.hold_limit {
            return Err(NbdError::Overflow);
        }
        Ok(range)
    }

    fn refuse(&mut self, request: Request, error: NbdError) {
        let mut flight = InFlight::new(request, self.remote.pieces(ByteRange::EMPTY));
        flight.fail(error);
        let Some(id) = self.table.insert(flight) else { return };
        match request.payload() {
            0 => self.posted(id),
            payload => self.expect = Expect::Discard { id, left: u64::from(payload) },
        }
    }

    fn perform(&mut self, request: Request, range: ByteRange) -> Result<(), LaneEnd> {
        if request.command == Command::Disconnect {
            self.ending = Some(LaneEnd::Disconnected);
            return Ok(());
        }
        let Some(id) = self.table.insert(InFlight::new(request, self.remote.pieces(range))) else {
            return Ok(());
        };
        match request.command {
            Command::Read => self.reading.push_back(id),
            Command::Write => self.next_payload(id),
            Command::Trim | Command::WriteZeroes => self.zeroing.push_back(id),
            // Flush: every answered write is already where a flush would take it. Block status: known at once.
            _ => self.posted(id),
        }
        Ok(())
    }

    // ── To the link ────────────────────────────────────────────────────────────────────────────────────────────────

    fn owe(&mut self, id: RequestId) {
        if self.owed == 0 {
            self.last_progress = Instant::now();
        }
        self.owed += 1;
        if let Some(flight) = self.table.get(id) {
            flight.outstanding += 1;
        }
    }

    /// Notes that all of a request was posted; answers it if that was all.
    fn posted(&mut self, id: RequestId) {
        if let Some(flight) = self.table.get(id) {
            flight.posted = true;
            if flight.is_over() {
                self.finish(id);
            }
        }
    }

    /// Posts pieces of reads and writes of zeroes while there is room.
    fn post_pieces(&mut self) {
        while let Some(&id) = self.reading.front() {
            if !self.post_reads(id) {
                break;
            }
            self.reading.pop_front();
            self.posted(id);
        }
        while let Some(&id) = self.zeroing.front() {
            if !self.post_zeroes(id) {
                break;
            }
            self.zeroing.pop_front();
            self.posted(id);
        }
    }

    /// Posts what is left of a read. Returns whether all of it is posted or given up.
    fn post_reads(&mut self, id: RequestId) -> bool {
        loop {
            let Some(flight) = self.table.get(id) else { return true };
            let rest = flight.left;
            let Some(piece) = flight.left.next() else { return true };
            let Some(slot) = self.remote.slot() else { return self.put_back(id, rest) };
            match self.remote.read(slot, piece, id.tag()) {
                Ok(()) => self.owe(id),
                Err(Refused::Full(_)) => return self.put_back(id, rest),
                Err(Refused::Dead(_)) => return self.give_up(id),
            }
        }
    }

    /// Posts zeroes from up to [`ZERO_SLOTS`] slots; the rest goes out as they come back.
    fn post_zeroes(&mut self, id: RequestId) -> bool {
        loop {
            let Some(flight) = self.table.get(id) else { return true };
            let (rest, outstanding) = (flight.left, flight.outstanding);
            let Some(piece) = flight.left.next() else { return true };
            if outstanding == ZERO_SLOTS {
                return self.put_back(id, rest);
            }
            let Some(mut slot) = self.remote.slot() else { return self.put_back(id, rest) };
            // As much as any later piece may need: the slot is used again for those.
            slot.fill(0, rest.remaining().min(u64::from(slot.size())) as usize, 0);
            match self.remote.write(slot, piece, id.tag()) {
                Ok(()) => self.owe(id),
                Err(Refused::Full(_)) => return self.put_back(id, rest),
                Err(Refused::Dead(_)) => return self.give_up(id),
            }
        }
    }

    fn put_back(&mut self, id: RequestId, rest: Pieces) -> bool {
        if let Some(flight) = self.table.get(id) {
            flight.left = rest;
        }
        false
    }

    fn give_up(&mut self, id: RequestId) -> bool {
        if let Some(flight) = self.table.get(id) {
            flight.fail(NbdError::Io);
        }
        true
    }

    // ── From the link ──────────────────────────────────────────────────────────────────────────────────────────────

    /// Takes finished operations. Returns whether there were any.
    fn reap(&mut self) -> bool {
        let moved = self.remote.poll(&mut self.done);
        if self.done.is_empty() {
            return moved;
        }
        self.last_progress = Instant::now();
        let mut done = std::mem::take(&mut self.done);
        for completion in done.drain(..) {
            self.complete(completion);
        }
        self.done = done;
        self.counters.set_in_flight(self.table.count() as u64);
        true
    }

    fn complete(&mut self, completion: Completion) {
        let id = RequestId::from_tag(completion.tag);
        self.owed -= 1;
        let Some(flight) = self.table.get(id) else { return };
        flight.outstanding -= 1;
        let (zeroes, failed) = (flight.request.command != Command::Write, flight.error.is_some());
        match completion.result {
            Err(error) => {
                tracing::debug!(
                    "{:?} of request {:#x} failed: {error}",
                    completion.op,
                    flight.request.cookie
                );
                flight.fail(NbdError::Io);
            }
            Ok(length) if completion.op == Op::Read && !failed => {
                self.held.push_back(Held { id, slot: completion.slot, length });
                self.stream_long_read(id);
            }
            Ok(_) if zeroes && !failed && completion.op == Op::Write => {
                self.reuse_zeroes(id, completion.slot)
            }
            Ok(_) => {}
        }
        if self.table.get(id).is_some_and(|flight| flight.is_over()) {
            self.finish(id);
        }
    }

    /// Writes the next piece of zeroes from a slot that is all zeroes already.
    fn reuse_zeroes(&mut self, id: RequestId, slot: Slot) {
        let Some(flight) = self.table.get(id) else { return };
        if flight.posted {
            return;
        }
        let rest = flight.left;
        let Some(piece) = flight.left.next() else { return };
        match self.remote.write(slot, piece, id.tag()) {
            Ok(()) => self.owe(id),
            // `post_zeroes` tries again, and gives the request up where the link is dead.
            Err(_) => {
                self.put_back(id, rest);
            }
        }
    }

    // ── Answers ────────────────────────────────────────────────────────────────────────────────────────────────────

    /// Begins, or goes on with, the answer of a read that is too long to be held back whole.
    fn stream_long_read(&mut self, id: RequestId) {
        let too_long = self.held.len() >= self.hold_limit;
        let Some(flight) = self.table.get(id) else { return };
        if self.streaming.is_none() && too_long && !flight.is_over() {
            flight.streaming = true;
            self.streaming = Some(id);
            if !self.config.structured {
                self.outgoing.header(ReplyHeader::simple(flight.request.cookie, Ok(())));
            }
        }
        if self.streaming == Some(id) {
            self.send_pieces(id);
        }
    }

    /// Sends what is held of a read that is answered bit by bit; with structured replies each piece is a chunk.
    fn send_pieces(&mut self, id: RequestId) {
        for _ in 0..self.held.len() {
            let Some((flight, held)) = self.table.get(id).zip(self.held.pop_front()) else { return };
            if held.id != id {
                self.held.push_back(held);
                continue;
            }
            if self.config.structured {
                let at = flight.request.offset + flight.sent;
                self.outgoing.header(ReplyHeader::offset_data(flight.request.cookie, at, held.length, false));
            }
            flight.sent += u64::from(held.length);
            self.outgoing.data(held.slot, held.length);
        }
    }

    /// Sends a whole read: one header and all of its data.
    fn send_whole(&mut self, id: RequestId, request: &Request) {
        self.outgoing.header(match self.config.structured {
            true => ReplyHeader::offset_data(request.cookie, request.offset, request.length, true),
            false => ReplyHeader::simple(request.cookie, Ok(())),
        });
        for _ in 0..self.held.len() {
            match self.held.pop_front() {
                Some(held) if held.id == id => self.outgoing.data(held.slot, held.length),
                Some(held) => self.held.push_back(held),
                None => return,
            }
        }
    }

    /// Gives a request its one answer.
    fn finish(&mut self, id: RequestId) {
        let Some(InFlight { request, error, streaming, .. }) = self.table.remove(id) else { return };
        self.count(&request, error);
        if error.is_some() {
            self.held.retain(|held| held.id != id);
        }
        match (request.command, error) {
            (Command::Read, None) if !streaming => match self.streaming {
                None => self.send_whole(id, &request),
                // Reads complete in order, so a whole one cannot overtake one that is on its way.
                Some(_) => self.ending = Some(LaneEnd::BrokenReply),
            },
            _ => self.close_answer(&request, error, streaming),
        }
        if streaming {
            self.streaming = None;
            while let Some(header) = self.deferred.pop_front() {
                self.outgoing.header(header);
            }
        }
    }

    /// The header that ends an answer, or is all of it.
    fn close_answer(&mut self, request: &Request, error: Option<NbdError>, streaming: bool) {
        let cookie = request.cookie;
        let chunked =
            self.config.structured && matches!(request.command, Command::Read | Command::BlockStatus);
        let header = match error {
            Some(error) if chunked => ReplyHeader::error(cookie, error, ""),
            Some(_) if streaming => {
                self.ending = Some(LaneEnd::BrokenReply);
                return;
            }
            Some(error) => ReplyHeader::simple(cookie, Err(error)),
            None if request.command == Command::BlockStatus => {
                let status = if self.config.hole { STATE_HOLE | STATE_ZERO } else { 0 };
                let extent = Extent { length: request.length, status };
                ReplyHeader::block_status(cookie, BASE_ALLOCATION_ID, extent, &[])
            }
            None if streaming && chunked => ReplyHeader::done(cookie),
            None if streaming => return,
            None => ReplyHeader::simple(cookie, Ok(())),
        };
        if streaming { self.outgoing.header(header) } else { self.answer(header) }
    }

    /// Sends a header, after the read that is being answered bit by bit, if there is one.
    fn answer(&mut self, header: ReplyHeader) {
        if self.streaming.is_some() { self.deferred.push_back(header) } else { self.outgoing.header(header) }
    }

    fn count(&self, request: &Request, error: Option<NbdError>) {
        let length = u64::from(request.length);
        match (error, request.command) {
            (Some(_), _) => self.counters.error(),
            (None, Command::Read) => self.counters.read(length),
            (None, Command::Write) => self.counters.write(length),
            (None, _) => self.counters.other(),
        }
    }

    // ── Waiting and ending ─────────────────────────────────────────────────────────────────────────────────────────

    /// Why the lane is over, once nothing is left to do for the client.
    fn finished(&mut self) -> Option<LaneEnd> {
        match &self.ending {
            Some(LaneEnd::Gone) => self.ending.take(),
            Some(_) if self.table_is_settled() && self.outgoing.is_empty() => self.ending.take(),
            _ => None,
        }
    }

    /// Whether no request is under way. A write whose payload will never come does not count.
    fn table_is_settled(&self) -> bool {
        let unfinished = usize::from(!matches!(self.expect, Expect::Header));
        self.owed == 0 && self.table.count() <= unfinished
    }

    /// Spins for the budget, then sleeps until something can be done.
    fn rest(&mut self) -> io::Result<()> {
        let budget = match self.config.spin {
            Spin::Always => {
                self.incoming.wake();
                return Ok(());
            }
            Spin::For(budget) => budget,
        };
        if self.owed > 0 && !budget.is_zero() && self.spin(budget) {
            return Ok(());
        }
        // An idle link can only end, and that shows without arming.
        if self.owed > 0 && self.remote.arm() {
            return Ok(());
        }
        self.sleep()
    }

    /// Polls the link until something comes or the budget is used up.
    fn spin(&mut self, budget: Duration) -> bool {
        let start = Instant::now();
        while start.elapsed() < budget {
            if self.remote.poll(&mut self.done) && !self.done.is_empty() {
                return true;
            }
            std::hint::spin_loop();
        }
        false
    }

    fn sleep(&mut self) -> io::Result<()> {
        let mut wanted = PollFlags::empty();
        if self.ending.is_none() && !self.is_stalled() {
            wanted |= PollFlags::IN;
        }
        if !self.outgoing.is_empty() {
            wanted |= PollFlags::OUT;
        }
        let timeout = (self.owed > 0).then(|| {
            let left = self.config.patience.saturating_sub(self.last_progress.elapsed());
            rustix::event::Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) }
        });
        let (socket, stop) = (self.socket.as_fd(), self.stop.as_fd());
        let mut fds = [
            PollFd::new(&socket, wanted),
            PollFd::from_borrowed_fd(self.remote.wait_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(stop, PollFlags::IN),
        ];
        // A stopped lane that still waits for the link must not be woken by the stop handle again and again.
        let watched = if self.ending.is_some() { 2 } else { 3 };
        match poll(&mut fds[..watched], timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let (happened, link) = (fds[0].revents(), fds[1].revents());
        if !link.is_empty() {
            self.remote.woken();
        }
        if happened.intersects(PollFlags::HUP | PollFlags::ERR) && !wanted.contains(PollFlags::IN) {
            // Nobody is left to answer, and the kernel reports it for ever.
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        if happened.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
            self.incoming.wake();
        }
        self.give_up_on_silence();
        Ok(())
    }

    /// Whether taking the next part of the stream has to wait for the link.
    fn is_stalled(&self) -> bool {
        match &self.expect {
            Expect::Header => self.table.is_full(),
            Expect::Payload { slot: None, .. } => self.remote.link().pool().available() == 0,
            Expect::Payload { slot: Some(_), filled, piece, .. } => *filled as u64 == piece.length(),
            Expect::Discard { .. } => false,
        }
    }

    /// Closes a link that owes something and has been silent for too long; its operations then fail.
    fn give_up_on_silence(&mut self) {
        if self.owed > 0
            && self.last_progress.elapsed() >= self.config.patience
            && self.remote.down().is_none()
        {
            tracing::error!(
                "the server has not answered for {:?}: the lane is closed, and its requests fail with EIO",
                self.config.patience
            );
            self.remote.close();
        }
    }

    /// The client cannot be served any more.
    fn lose(&mut self, end: LaneEnd) -> LaneEnd {
        self.outgoing.clear();
        end
    }

    /// Waits until the link has given everything back; a link that does not is closed.
    fn settle(&mut self) {
        self.outgoing.clear();
        self.held.clear();
        self.spare = None;
        self.incoming = Incoming::new();
        self.expect = Expect::Header;
        let deadline = Instant::now() + self.config.patience;
        while self.owed > 0 {
            self.remote.submit();
            self.remote.poll(&mut self.done);
            self.owed -= self.done.len() as u32;
            self.done.clear();
            if self.owed > 0 && Instant::now() >= deadline {
                self.remote.close();
            }
            if self.owed > 0 && !self.remote.arm() {
                let timeout = rustix::event::Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
                let mut fds = [PollFd::from_borrowed_fd(self.remote.wait_fd(), PollFlags::IN)];
                let _ = poll(&mut fds, Some(&timeout));
                self.remote.woken();
            }
        }
        self.counters.set_in_flight(0);
    }
}
