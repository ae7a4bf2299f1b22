//! The link: it drives the stream both ways, hands completions out, and dies in good order.
//!
//! ```text
//!             a violation of the peer's                 the NAK is out and the peer is gone,
//!   ┌──────┐  (it is told why)         ┌─────────┐      or PARTING is over
//!   │  Up  │ ────────────────────────▶ │ Parting │ ──────────────┐
//!   └──────┘                           └─────────┘               ▼
//!      │   end of stream, error, garbage, a NAK, close()      ┌──────┐  every operation in flight is finished
//!      └────────────────────────────────────────────────────▶ │ Down │  once, and then polled out
//!                                                             └──────┘
//! ```
//!
//! One poll receives what there is, answers it, sends what is waiting and moves finished operations out. It does no
//! waiting and takes no clock, except to bound the time of parting.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::net::{Shutdown, shutdown};

use super::frame::{Denied, Frame};
use super::inbox::{Inbox, Payload, Place};
use super::initiator::{Initiator, Operation};
use super::outbox::{Outbox, Source};
use super::poller::Poller;
use super::regions::Regions;
use super::responder::{Posted, Responder};
use crate::fabric::buffer::{Slot, SlotPool, receive};
use crate::fabric::pools::Pools;
use crate::fabric::{
    Access, Completion, FabricKind, Link, LinkConfig, LinkDown, LinkLimits, Op, OpError, Refused, RegionInfo,
    RemoteRange, SetupError,
};

/// The most socket calls that one poll receives with, so that a peer that never pauses cannot keep us from answering.
const RECEIVES: usize = 16;

/// How long a refused peer has to take its NAK and hang up.
const PARTING: Duration = Duration::from_millis(200);

/// What ends a link.
#[derive(Debug)]
pub(super) enum Fault {
    /// The stream ended, or the peer's end of it is gone.
    Ended,
    /// The socket failed.
    Io(io::Error),
    /// The peer broke the protocol; there is nothing to tell it that it would understand.
    Broke(&'static str),
    /// The peer's operation is refused, and it will be told.
    Violation { what: &'static str, denied: Denied, reason: OpError },
    /// The peer refused an operation of ours.
    Denied(Denied, OpError),
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            // A peer that closes with bytes of ours unread resets the stream. It is no less closed for that.
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Self::Ended,
            _ => Self::Io(error),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Up,
    Parting { until: Instant },
    Down,
}

/// A link over a connected stream socket.
#[derive(Debug)]
pub struct TcpLink {
    /// Dropped first: once it is closed nothing touches the slots and regions below.
    socket: OwnedFd,
    poller: Poller,
    inbox: Inbox,
    outbox: Outbox,
    initiator: Initiator,
    responder: Responder,
    pools: Pools,
    pool_region: Option<RegionInfo>,
    limits: LinkLimits,
    finished: VecDeque<Completion>,
    /// Operations, and receives, whose completion was not handed out.
    in_flight: u32,
    receiving: u32,
    /// Whether something was posted that no [`Link::submit`] or [`Link::poll`] has looked at.
    unsubmitted: bool,
    /// Why nothing can be sent. The end itself is left to the receiving side, which may yet find a NAK.
    unsendable: Option<Fault>,
    life: Life,
    down: Option<LinkDown>,
}

impl TcpLink {
    /// A link over `socket`, on which request and reply were exchanged. `reads` may be outstanding each way.
    pub(super) fn over(
        socket: OwnedFd,
        pools: Pools,
        config: &LinkConfig,
        reads: u8,
        mut regions: Regions,
    ) -> Result<Self, SetupError> {
        let resource = |what| move |source| SetupError::Resource { what, source };
        let pool_region = match config.pool_access {
            Access::Local => None,
            access => Some(
                regions.lend(pools.data.memory(), access).map_err(resource("the key of a lane's slots"))?,
            ),
        };
        let limits = LinkLimits { depth: config.depth.max(1), reads: u32::from(reads) };
        // Every operation holds a slot, so there are never more of them.
        let capacity = limits.depth.min(pools.slots()) as usize;
        let poller = Poller::new(socket.as_fd()).map_err(resource("the wait point of a lane"))?;
        Ok(Self {
            socket,
            poller,
            inbox: Inbox::new(),
            outbox: Outbox::new(),
            initiator: Initiator::new(capacity, reads),
            responder: Responder::new(capacity, reads, config.answers_messages, regions),
            finished: VecDeque::with_capacity(pools.slots().min(limits.depth.saturating_mul(2)) as usize),
            pools,
            pool_region,
            limits,
            in_flight: 0,
            receiving: 0,
            unsubmitted: false,
            unsendable: None,
            life: Life::Up,
            down: None,
        })
    }

    fn post(&mut self, op: Op, slot: Slot, remote: RemoteRange, tag: u64) -> Result<(), Refused> {
        debug_assert!(self.pools.own(&slot), "a slot of another link's pool");
        assert!(remote.length <= slot.size(), "{} bytes of a slot of {}", remote.length, slot.size());
        if self.down.is_some() {
            return Err(Refused::Dead(slot));
        }
        if self.in_flight == self.limits.depth {
            return Err(Refused::Full(slot));
        }
        self.in_flight += 1;
        self.unsubmitted = true;
        self.initiator.post(Operation { op, tag, slot, remote });
        Ok(())
    }

    /// Receives, then sends; returns whether any bytes moved.
    fn drive(&mut self) -> Result<bool, Fault> {
        let received = self.receive()?;
        let sent = self.transmit();
        if !received && let Some(fault) = self.unsendable.take() {
            return Err(fault);
        }
        Ok(received || sent)
    }

    /// Receives and digests what has arrived, up to [`RECEIVES`] calls.
    fn receive(&mut self) -> Result<bool, Fault> {
        let mut any = false;
        for _ in 0..RECEIVES {
            let (stage, payload) = self.inbox.room();
            let mut wanted = stage.len();
            let result = match payload {
                None => receive(self.socket.as_fd(), [], stage),
                Some(payload) => {
                    wanted += payload.missing();
                    receive(self.socket.as_fd(), [payload.span_mut(&self.responder.regions)], stage)
                }
            };
            let bytes = match result {
                Ok(0) => return Err(Fault::Ended),
                Ok(bytes) => bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            };
            any = true;
            self.inbox.received(bytes);
            self.digest()?;
            // Less than was asked for: there is no more, and no need of a call to learn it.
            if bytes < wanted {
                break;
            }
        }
        Ok(any)
    }

    fn digest(&mut self) -> Result<(), Fault> {
        loop {
            if let Some(payload) = self.inbox.take_complete(&self.responder.regions) {
                self.placed(payload);
            } else if let Some(header) = self.inbox.take_header() {
                self.handle(Frame::decode(&header).ok_or(Fault::Broke("it sent no valid frame"))?)?;
            } else {
                return Ok(());
            }
        }
    }

    fn handle(&mut self, frame: Frame) -> Result<(), Fault> {
        match frame {
            Frame::Write { seq, address, key, length } => {
                let target = self.responder.begin_write(seq, address, key, length)?;
                self.inbox.payload = Some(Payload::new(Place::Region(target), length));
            }
            Frame::Send { seq, length } => {
                let (posted, fits) = self.responder.begin_send(seq, length)?;
                if fits.is_err() {
                    self.finish(Op::Recv, posted.tag, posted.slot, Err(OpError::TooLong));
                    return fits;
                }
                self.inbox.payload = Some(Payload::new(Place::Recv(posted), length));
            }
            Frame::Read { seq, address, key, length } => self.responder.read(seq, address, key, length)?,
            Frame::Data { seq, length } => {
                let operation = self.initiator.begin_answer(seq, length)?;
                self.inbox.payload = Some(Payload::new(Place::Read(operation), length));
            }
            Frame::Ack { placed, posted } => {
                self.initiator.check_ack(placed, posted)?;
                while let Some(Operation { op, tag, slot, remote }) = self.initiator.pop_acked(placed) {
                    self.finish(op, tag, slot, Ok(remote.length));
                }
            }
            Frame::Nak { denied, reason } => return Err(self.initiator.denied(denied, reason)),
        }
        Ok(())
    }

    /// All of a payload is where it belongs.
    fn placed(&mut self, payload: Payload) {
        match payload.place {
            Place::Region(_) => self.responder.end_placement(),
            Place::Recv(Posted { tag, slot }) => {
                self.responder.end_placement();
                self.finish(Op::Recv, tag, slot, Ok(payload.length));
            }
            Place::Read(Operation { op, tag, slot, .. }) => {
                self.initiator.end_answer();
                self.finish(op, tag, slot, Ok(payload.length));
            }
        }
    }

    /// Stages and sends until nothing is left or the socket is full; returns whether any bytes moved.
    fn transmit(&mut self) -> bool {
        self.unsubmitted = false;
        let mut any = false;
        while self.unsendable.is_none() {
            if self.life == Life::Up {
                self.stage();
            }
            if self.outbox.is_empty() {
                break;
            }
            match self.outbox.transmit(self.socket.as_fd(), &self.initiator, &self.responder.regions) {
                Ok(moved) => {
                    self.initiator.handed_over(moved.placements);
                    self.responder.handed_over(moved.answers);
                    any |= moved.bytes > 0;
                }
                Err(error) => self.unsendable = Some(error.into()),
            }
            if self.outbox.is_blocked() {
                return any;
            }
        }
        // Who does not arm again, since nothing is owed, must not be woken by room for ever. Should it fail, he is.
        let _ = self.poller.watch_room(self.socket.as_fd(), false);
        any
    }

    /// Fills the outbox, answers and requests by turns: neither can starve the other.
    fn stage(&mut self) {
        while self.outbox.room() >= 2 {
            let request = self.initiator.next_request();
            let answer = self.responder.next_answer(request.is_some());
            if answer.is_none() && request.is_none() {
                return;
            }
            answer.into_iter().chain(request).for_each(|frame| self.outbox.push(frame));
        }
    }

    /// Ends the link for `fault`, or begins to.
    fn fall(&mut self, fault: Fault) {
        match fault {
            Fault::Ended => self.die(LinkDown::ClosedByPeer, None),
            Fault::Io(error) => self.die(LinkDown::Failed(error.to_string()), None),
            Fault::Broke(what) => self.die(LinkDown::PeerFault(what), None),
            Fault::Denied(denied, reason) => self.die(LinkDown::Refused(reason), Some((denied, reason))),
            Fault::Violation { what, denied, reason } => self.part(what, denied, reason),
        }
    }

    /// Tells the peer why, and stops serving it.
    ///
    /// A frame that has begun to leave must be completed, or the NAK would be taken for its payload; so operations
    /// stay in flight until the parting is over.
    fn part(&mut self, what: &'static str, denied: Denied, reason: OpError) {
        self.down = Some(LinkDown::PeerFault(what));
        self.outbox.keep_begun();
        self.outbox.push((self.responder.ack(), Source::Nothing));
        self.outbox.push((Frame::Nak { denied, reason }, Source::Nothing));
        self.life = Life::Parting { until: Instant::now() + PARTING };
        self.part_on(PARTING);
    }

    /// Sends the last frames, then waits for the peer to hang up: closing with its bytes unread would reset the stream
    /// and could take the NAK along.
    fn part_on(&mut self, left: Duration) -> bool {
        let sent = self.transmit();
        if self.outbox.is_empty() {
            // It may fail where the peer is gone, which the next call to receive tells.
            let _ = shutdown(&self.socket, Shutdown::Write);
        }
        let mut discard = [0; 4096];
        let gone = match receive(self.socket.as_fd(), [], &mut discard) {
            Ok(bytes) => bytes == 0,
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        };
        let over = gone || left.is_zero() || self.unsendable.is_some();
        if over {
            self.die(LinkDown::ClosedHere, None);
        }
        sent || over
    }

    /// Shuts the stream, then finishes every operation in flight: `denied` with its reason, the others with
    /// [`OpError::LinkDead`].
    fn die(&mut self, why: LinkDown, denied: Option<(Denied, OpError)>) {
        if self.life == Life::Down {
            return;
        }
        // From here on the peer can neither be sent to nor write to us, whatever becomes of the slots. It fails where
        // the peer was faster.
        let _ = shutdown(&self.socket, Shutdown::Both);
        self.poller.forget(self.socket.as_fd());
        self.life = Life::Down;
        self.down.get_or_insert(why);
        let dead = Err(OpError::LinkDead);
        // The payload on its way belongs to the oldest operation of its kind.
        match self.inbox.payload.take().map(|payload| payload.place) {
            Some(Place::Read(Operation { op, tag, slot, .. })) => self.finish(op, tag, slot, dead),
            Some(Place::Recv(Posted { tag, slot })) => self.finish(Op::Recv, tag, slot, dead),
            Some(Place::Region(_)) | None => {}
        }
        let finished = &mut self.finished;
        for (number, Operation { op, tag, slot, .. }) in self.initiator.drain() {
            let result = match denied {
                Some((denied, reason)) if denied == number => Err(reason),
                _ => dead,
            };
            finished.push_back(Completion { tag, op, slot, result });
        }
        for Posted { tag, slot } in self.responder.drain() {
            finished.push_back(Completion { tag, op: Op::Recv, slot, result: dead });
        }
    }

    fn finish(&mut self, op: Op, tag: u64, slot: Slot, result: Result<u32, OpError>) {
        self.finished.push_back(Completion { tag, op, slot, result });
    }

    /// Moves finished operations to `done`, as many as fit.
    fn hand_out(&mut self, done: &mut Vec<Completion>) -> bool {
        let count = self.finished.len().min(done.capacity() - done.len());
        for completion in self.finished.drain(..count) {
            let counter = if completion.op == Op::Recv { &mut self.receiving } else { &mut self.in_flight };
            *counter -= 1;
            done.push(completion);
        }
        count > 0
    }
}

impl Link for TcpLink {
    fn kind(&self) -> FabricKind {
        FabricKind::Tcp
    }

    fn limits(&self) -> LinkLimits {
        self.limits
    }

    fn pool(&self) -> &SlotPool {
        &self.pools.data
    }

    fn messages(&self) -> &SlotPool {
        &self.pools.messages
    }

    fn pool_region(&self) -> Option<RegionInfo> {
        self.pool_region
    }

    fn read(&mut self, slot: Slot, from: RemoteRange, tag: u64) -> Result<(), Refused> {
        self.post(Op::Read, slot, from, tag)
    }

    fn write(&mut self, slot: Slot, to: RemoteRange, tag: u64) -> Result<(), Refused> {
        self.post(Op::Write, slot, to, tag)
    }

    fn send(&mut self, slot: Slot, length: u32, tag: u64) -> Result<(), Refused> {
        self.post(Op::Send, slot, RemoteRange { address: 0, key: 0, length }, tag)
    }

    fn recv(&mut self, slot: Slot, tag: u64) -> Result<(), Refused> {
        debug_assert!(self.pools.own(&slot), "a slot of another link's pool");
        if self.down.is_some() {
            return Err(Refused::Dead(slot));
        }
        if self.receiving == self.limits.depth {
            return Err(Refused::Full(slot));
        }
        self.receiving += 1;
        self.unsubmitted = true;
        self.responder.post(Posted { tag, slot });
        Ok(())
    }

    fn submit(&mut self) {
        if self.life == Life::Up {
            self.transmit();
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) -> bool {
        let moved = match self.life {
            Life::Up => self.drive().unwrap_or_else(|fault| {
                self.fall(fault);
                true
            }),
            Life::Parting { until } => self.part_on(until.saturating_duration_since(Instant::now())),
            Life::Down => false,
        };
        self.hand_out(done) || moved
    }

    fn arm(&mut self) -> bool {
        if !self.finished.is_empty() {
            return true;
        }
        match self.life {
            Life::Up if self.unsubmitted || self.unsendable.is_some() => true,
            // The socket is level-triggered: bytes that are there already wake the sleeper at once.
            Life::Up => self.poller.watch_room(self.socket.as_fd(), self.outbox.is_blocked()).is_err(),
            // Nothing wakes us when its time is over, and it is short.
            Life::Parting { .. } => true,
            Life::Down => false,
        }
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }

    fn down(&self) -> Option<&LinkDown> {
        self.down.as_ref()
    }

    fn close(&mut self) {
        self.die(LinkDown::ClosedHere, None);
    }
}
