//! The client's side of a staged lane: it owns the server's slots, and every request takes one until its reply.
//!
//! ```text
//!   write   WRITE data ──▶ server's slot,  SEND request ──▶        ◀── reply
//!   read    SEND request ──▶        our slot ◀── WRITE data,       ◀── reply
//!   others  SEND request ──▶                                       ◀── reply
//! ```
//! A request without a free slot of the server's is refused as full; so neither side ever queues for the other. Our own
//! slot belongs to the request until its reply, and on a dead link until the card has given back all that it had:
//! before that, a late write of the server's could still land in it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use kaeru_common::codec::{Decode, DecodeError};
use kaeru_common::fabric::buffer::Slot;
use kaeru_common::fabric::{
    Access, Completion, Link, LinkConfig, LinkDown, Op, OpError, Refused, RemoteRange,
};
use kaeru_common::units::ByteRange;
use kaeru_common::wire::io::{Action, MAX_STAGED_SLOTS, MESSAGE_BYTES, Opening, Packed, Reply, Request};
use rustix::event::{PollFd, PollFlags, poll};

use super::{Answer, Extents, Failure, NotTaken, Spent};

/// Slots of the server that a lane makes use of.
const SLOTS: u32 = 64;

/// How the link of a staged lane is built: as `base`, with a receive and a request for each slot that the server may
/// lend, and with a pool that takes the server's data. The next request is the answer to a reply: until there is one,
/// nobody waits for our acknowledgement.
pub fn staged_link(base: &LinkConfig) -> LinkConfig {
    LinkConfig {
        pool_access: Access::RemoteReadWrite,
        messages: 2 * SLOTS,
        message_size: MESSAGE_BYTES as u32,
        answers_messages: true,
        ..*base
    }
}

/// Why a staged lane did not come about.
#[derive(Debug, thiserror::Error)]
pub enum StagedError {
    /// The link died first.
    #[error("the lane is dead: {0}")]
    Link(LinkDown),
    /// What came first was no opening.
    #[error(
        "the server opened the lane with something else than its slots: {0}; its version may not fit this client"
    )]
    Opening(DecodeError),
    /// Nothing came.
    #[error("the server did not open the lane within {0:?}")]
    TimedOut(Duration),
    /// The link was not built for it.
    #[error("the lane's link has no slots for messages, or none that the server may write to")]
    Unfit,
}

/// A request that has no answer yet.
#[derive(Debug)]
struct Pending {
    tag: u64,
    action: Action,
    length: u32,
    /// Our slot: a read's from the start, a write's once the link gave it back.
    slot: Option<Slot>,
    reply: Option<Reply>,
}

/// The state of the lane.
#[derive(Debug)]
pub(super) struct Staged {
    opening: Opening,
    /// Slots of the server that no request uses.
    free: Vec<u16>,
    /// By slot of the server.
    pending: Box<[Option<Pending>]>,
    /// Reads, writes and sends that the link has; and receives.
    posted: u32,
    receiving: u32,
}

impl Staged {
    /// Posts the receives and waits for the server's slots.
    pub(super) fn open<L: Link>(link: &mut L, patience: Duration) -> Result<Self, StagedError> {
        if link.pool_region().is_none() {
            return Err(StagedError::Unfit);
        }
        let deadline = Instant::now() + patience;
        let mut receiving = 0;
        for _ in 0..(link.messages().slots() / 2).min(MAX_STAGED_SLOTS.into()) {
            let slot = link.messages().take().ok_or(StagedError::Unfit)?;
            match link.recv(slot, 0) {
                Ok(()) => receiving += 1,
                Err(Refused::Full(_)) => break,
                Err(Refused::Dead(_)) => return Err(StagedError::Link(why(link))),
            }
        }
        let first = first_message(link, deadline, patience)?;
        let Completion { slot, result, .. } = first;
        let length = result.map_err(|_| StagedError::Link(why(link)))?;
        let mut bytes = [0; MESSAGE_BYTES];
        let bytes = &mut bytes[..length as usize];
        slot.copy_to(0, bytes);
        let opening = Opening::decode_all(bytes).map_err(StagedError::Opening)?;
        link.recv(slot, 0).map_err(|_| StagedError::Link(why(link)))?;
        // One reply may be on its way for each slot in use, and each needs a receive.
        let slots = u32::from(opening.slots).min(receiving) as u16;
        Ok(Self {
            opening,
            free: (0..slots).rev().collect(),
            pending: (0..slots).map(|_| None).collect(),
            posted: 0,
            receiving,
        })
    }

    /// Bytes of each of the server's slots.
    pub(super) fn slot_size(&self) -> u32 {
        self.opening.slot_size
    }

    /// Asks for `piece`; its data comes into the start of `slot`.
    pub(super) fn read<L: Link>(
        &mut self,
        link: &mut L,
        slot: Slot,
        piece: ByteRange,
        tag: u64,
    ) -> Result<(), Refused> {
        let length = piece.length() as u32;
        assert!(length <= slot.size(), "{length} bytes for a slot of {}", slot.size());
        let offset = u64::from(slot.index()) * u64::from(slot.size());
        let target = link.pool_region().and_then(|region| region.range(offset, length));
        let Some(target) = target else { return Err(Refused::Dead(slot)) };
        let action = Action::Read;
        match self.room(link, 1).and_then(|number| self.send(link, number, action, piece, Some(target))) {
            Ok(number) => {
                self.enter(number, Pending { tag, action, length, slot: Some(slot), reply: None });
                Ok(())
            }
            Err(NotTaken::Full) => Err(Refused::Full(slot)),
            Err(NotTaken::Dead) => Err(Refused::Dead(slot)),
        }
    }

    /// Puts the start of `slot` into one of the server's and has it written to `piece`.
    pub(super) fn write<L: Link>(
        &mut self,
        link: &mut L,
        slot: Slot,
        piece: ByteRange,
        durable: bool,
        tag: u64,
    ) -> Result<(), Refused> {
        let (length, action) = (piece.length() as u32, Action::Write { durable });
        let number = match self.room(link, 2) {
            Ok(number) => number,
            Err(NotTaken::Full) => return Err(Refused::Full(slot)),
            Err(NotTaken::Dead) => return Err(Refused::Dead(slot)),
        };
        let Some(target) = self.opening.slot(number, length) else { return Err(Refused::Dead(slot)) };
        link.write(slot, target, number.into())?;
        self.posted += 1;
        // There was room for both. Should the request not follow its data all the same, the link ends and says so.
        if self.send(link, number, action, piece, None).is_err() {
            link.close();
        }
        self.enter(number, Pending { tag, action, length, slot: None, reply: None });
        Ok(())
    }

    /// Has the server do what moves no data.
    pub(super) fn command<L: Link>(
        &mut self,
        link: &mut L,
        action: Action,
        range: ByteRange,
        tag: u64,
    ) -> Result<(), NotTaken> {
        debug_assert!(!action.moves_data(), "{action:?} is no command");
        let number = self.room(link, 1)?;
        let number = self.send(link, number, action, range, None)?;
        let length = u32::try_from(range.length()).unwrap_or(u32::MAX);
        self.enter(number, Pending { tag, action, length, slot: None, reply: None });
        Ok(())
    }

    /// The slot that the next request takes, where link and lane have room for it with `operations` of its own.
    fn room<L: Link>(&self, link: &L, operations: u32) -> Result<u16, NotTaken> {
        if link.down().is_some() {
            return Err(NotTaken::Dead);
        }
        let fits = self.posted + operations <= link.limits().depth && link.messages().available() > 0;
        self.free.last().copied().filter(|_| fits).ok_or(NotTaken::Full)
    }

    /// Sends a request in the name of slot `number`.
    fn send<L: Link>(
        &mut self,
        link: &mut L,
        number: u16,
        action: Action,
        range: ByteRange,
        target: Option<RemoteRange>,
    ) -> Result<u16, NotTaken> {
        let mut message = link.messages().take().ok_or(NotTaken::Full)?;
        let (key, address) = target.map_or((0, 0), |target| (target.key, target.address));
        let (offset, length) = (range.offset(), range.length());
        let packed = Packed::new(&Request { action, slot: number, key, offset, length, address });
        let bytes = packed.as_bytes();
        message.copy_from(0, bytes);
        match link.send(message, bytes.len() as u32, 0) {
            Ok(()) => {
                self.posted += 1;
                Ok(number)
            }
            Err(Refused::Full(_)) => Err(NotTaken::Full),
            Err(Refused::Dead(_)) => Err(NotTaken::Dead),
        }
    }

    fn enter(&mut self, number: u16, pending: Pending) {
        self.free.pop();
        self.pending[usize::from(number)] = Some(pending);
    }

    /// Makes answers of what the link gave back.
    pub(super) fn digest<L: Link>(
        &mut self,
        link: &mut L,
        completions: &mut Vec<Completion>,
        answers: &mut VecDeque<Answer>,
    ) {
        for Completion { op, tag, slot, result } in completions.drain(..) {
            match op {
                Op::Recv => {
                    self.receiving -= 1;
                    if let Ok(length) = result
                        && let Err(fault) = self.hear(link, slot, length, answers)
                    {
                        tracing::warn!("the server broke the rules of the lane: {fault}");
                        link.close();
                    }
                }
                Op::Write => {
                    self.posted -= 1;
                    self.give_back(tag as u16, slot, answers);
                }
                Op::Send | Op::Read => self.posted -= 1,
            }
        }
        if link.down().is_some() && self.posted + self.receiving == 0 {
            self.bury(answers);
        }
    }

    /// A message of the server's came.
    fn hear<L: Link>(
        &mut self,
        link: &mut L,
        message: Slot,
        length: u32,
        answers: &mut VecDeque<Answer>,
    ) -> Result<(), &'static str> {
        let mut bytes = [0; MESSAGE_BYTES];
        let bytes = &mut bytes[..length as usize];
        message.copy_to(0, bytes);
        // Posted again before its slot is used again, so that no reply ever has to wait.
        self.receiving += u32::from(link.recv(message, 0).is_ok());
        let reply = Reply::decode_all(bytes).map_err(|_| "its reply is malformed")?;
        let number = reply.slot;
        match self.pending.get_mut(usize::from(number)) {
            Some(Some(pending)) if pending.reply.is_none() => {
                let found = pending.action == Action::Extents && reply.result.is_ok();
                if found == reply.extents.is_empty() {
                    return Err("its reply does not fit the request");
                }
                pending.reply = Some(reply);
            }
            _ => return Err("it answered what was not asked"),
        }
        self.conclude(number, answers);
        Ok(())
    }

    /// The link gave back the slot of a write.
    fn give_back(&mut self, number: u16, slot: Slot, answers: &mut VecDeque<Answer>) {
        if let Some(Some(pending)) = self.pending.get_mut(usize::from(number)) {
            pending.slot = Some(slot);
            self.conclude(number, answers);
        }
    }

    /// Answers a request that has its reply and its slot back.
    fn conclude(&mut self, number: u16, answers: &mut VecDeque<Answer>) {
        let place = &mut self.pending[usize::from(number)];
        let over = |pending: &mut Pending| {
            pending.reply.is_some() && (pending.slot.is_some() || !pending.action.moves_data())
        };
        let Some(Pending { tag, length, slot, reply: Some(reply), .. }) = place.take_if(over) else { return };
        self.free.push(number);
        let result = reply.result.map(|()| length).map_err(Failure::Store);
        let time = |nanos: u32| Duration::from_nanos(nanos.into());
        let spent = Some(Spent { waited: time(reply.waited), stored: time(reply.stored) });
        answers.push_back(Answer { tag, slot, result, extents: reply.extents, spent });
    }

    /// Answers everything that a dead link left behind, once nothing can land in its slots any more.
    fn bury(&mut self, answers: &mut VecDeque<Answer>) {
        for (number, place) in (0u16..).zip(&mut self.pending) {
            if let Some(Pending { tag, slot, .. }) = place.take() {
                self.free.push(number);
                let result = Err(Failure::Link(OpError::LinkDead));
                answers.push_back(Answer { tag, slot, result, extents: Extents::default(), spent: None });
            }
        }
    }
}

/// Waits for the first message.
fn first_message<L: Link>(
    link: &mut L,
    deadline: Instant,
    patience: Duration,
) -> Result<Completion, StagedError> {
    let mut done = Vec::with_capacity(1);
    loop {
        link.poll(&mut done);
        if let Some(completion) = done.pop() {
            return Ok(completion);
        }
        if link.down().is_some() {
            return Err(StagedError::Link(why(link)));
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = match left.try_into() {
            Ok(timeout) if !left.is_zero() => timeout,
            _ => return Err(StagedError::TimedOut(patience)),
        };
        if !link.arm() {
            // A failure (of which there is none but a signal) is a wake-up like any other.
            let _ = poll(&mut [PollFd::from_borrowed_fd(link.wait_fd(), PollFlags::IN)], Some(&timeout));
            link.woken();
        }
    }
}

fn why<L: Link>(link: &L) -> LinkDown {
    link.down().cloned().unwrap_or(LinkDown::ClosedByPeer)
}
