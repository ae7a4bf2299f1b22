//! A lane of a file or disk export: requests come in, the store works on the lane's slots, replies go out.
//!
//! ```text
//!   link ──request──▶ seat ──job──▶ engine
//!   link ◀─data, reply── seat ◀──── done
//! ```
//! The client owns the slots: each of its requests names one, and has a seat of the same number here until its reply is
//! on its way. A slot is in one of three hands, and moves between them: the seat's, the engine's (the store reads or
//! fills it) or the link's (its data goes to the client). The client may name a slot again as soon as it has the reply,
//! which can be before the link gave it back; such a request waits at its seat.
//!
//! Nothing here can grow: there are as many seats as slots. A client that breaks the rules loses this lane, nothing more.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

use kaeru_common::codec::{BoundedList, Decode};
use kaeru_common::error::Status;
use kaeru_common::fabric::buffer::Slot;
use kaeru_common::fabric::{Access, Completion, Link, LinkConfig, Op, RemoteRange};
use kaeru_common::metrics::LaneCounters;
use kaeru_common::units::ByteRange;
use kaeru_common::wire::io::{Action, Extent, MESSAGE_BYTES, Opening, Packed, REPLY_EXTENTS, Reply, Request};
use rustix::event::{PollFd, PollFlags, poll};

use super::Lanes;
use crate::export::Export;
use crate::store::{self, Done, Engine, Job, Staged};

/// Slots of each lane.
const SLOTS: u32 = 64;
/// Bytes of each: a full-speed transfer.
const SLOT_SIZE: u32 = 128 << 10;

/// How the link of a staged lane is built.
pub(super) fn link_config(responder_depth: u8) -> LinkConfig {
    LinkConfig {
        slots: SLOTS,
        slot_size: SLOT_SIZE,
        pool_access: Access::RemoteReadWrite,
        // A receive for each slot, and a reply on its way.
        messages: 2 * SLOTS,
        message_size: MESSAGE_BYTES as u32,
        answers_messages: true,
        // The data and the reply of each slot.
        depth: 2 * SLOTS,
        responder_depth,
    }
}

/// What one slot is used for.
#[derive(Debug, Default)]
struct Seat {
    /// The slot, while neither engine nor link has it.
    slot: Option<Slot>,
    work: Option<Work>,
}

/// A request under way.
#[derive(Debug)]
struct Work {
    request: Request,
    arrived: Instant,
    /// When the store got it.
    begun: Option<Instant>,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// It waits for its slot, or for room in the engine.
    Waiting,
    /// The store has it.
    Storing,
    /// It is over, and the reply waits for room in the link.
    Over { result: Result<(), Status>, stored: u32, extents: BoundedList<Extent, REPLY_EXTENTS> },
}

/// The lane's end for its client: see the module.
pub(super) struct Desk<L: Link> {
    // The engine goes first: it waits until the store touches no slot any more.
    engine: Engine,
    link: L,
    export: Arc<Export>,
    write: bool,
    counters: Arc<LaneCounters>,
    seats: Box<[Seat]>,
    /// Seats whose work waits for room in the engine.
    waiting: VecDeque<u16>,
    /// Seats whose reply waits for room in the link.
    replying: VecDeque<u16>,
    /// Operations of ours that the link has.
    posted: u32,
    /// Requests that have no reply yet.
    in_flight: u64,
    completions: Vec<Completion>,
    done: Vec<Done>,
    extents: Vec<store::Extent>,
}

/// Who has something for a round.
#[derive(Clone, Copy, Debug)]
struct Ready {
    link: bool,
    engine: bool,
}

/// The client broke the rules of the lane.
#[derive(Debug, thiserror::Error)]
#[error("the client {0}")]
pub(super) struct Fault(&'static str);

impl<L: Link> Desk<L> {
    /// A desk for the client of `link`: posts the receives and tells the client of its slots.
    ///
    /// # Errors
    /// Where the store has no room for another lane.
    pub(super) fn open(mut link: L, export: &Arc<Export>, store: &Staged, write: bool) -> io::Result<Self> {
        let engine = store.engine(link.pool())?;
        let pool = link.pool().clone();
        let slots = pool.slots();
        let mut seats: Box<[Seat]> = (0..slots).map(|_| Seat::default()).collect();
        while let Some(slot) = pool.take() {
            let index = slot.index() as usize;
            seats[index].slot = Some(slot);
        }
        for _ in 0..slots {
            let slot = link.messages().take().ok_or(io::ErrorKind::OutOfMemory)?;
            link.recv(slot, 0).map_err(|_| io::ErrorKind::ConnectionAborted)?;
        }
        let room = seats.len();
        let mut desk = Self {
            engine,
            link,
            export: export.clone(),
            write,
            counters: export.totals.open(),
            seats,
            waiting: VecDeque::with_capacity(room),
            replying: VecDeque::with_capacity(room),
            posted: 0,
            in_flight: 0,
            completions: Vec::with_capacity(2 * room),
            done: Vec::with_capacity(room),
            extents: Vec::with_capacity(REPLY_EXTENTS),
        };
        desk.greet(slots)?;
        Ok(desk)
    }

    fn greet(&mut self, slots: u32) -> io::Result<()> {
        let lost = || io::Error::from(io::ErrorKind::ConnectionAborted);
        let region = self.link.pool_region().ok_or_else(lost)?;
        let slots = u16::try_from(slots).map_err(|_| io::ErrorKind::InvalidInput)?;
        let opening = Opening { slots, slot_size: self.link.pool().slot_size(), region };
        let message = self.link.messages().take().ok_or_else(lost)?;
        self.post(message, &Packed::new(&opening));
        self.link.submit();
        Ok(())
    }

    /// Serves until the link ends or the session is fenced.
    pub(super) fn serve(mut self, lanes: &Lanes) {
        tracing::debug!("a staged lane over {} is up", self.link.kind());
        let mut ready = Ready { link: true, engine: true };
        while !lanes.is_stopped() && self.link.down().is_none() {
            if let Err(fault) = self.round(ready) {
                tracing::warn!("a lane of {} is closed: {fault}", self.export.name);
                self.link.close();
            }
            // The round may have seen the end of the link, which wakes nobody twice.
            if self.link.down().is_none() {
                ready = self.sleep(lanes);
            }
        }
        match self.link.down() {
            Some(why) => tracing::debug!("a staged lane over {} ended: {why}", self.link.kind()),
            None => tracing::debug!("a staged lane over {} was fenced", self.link.kind()),
        }
    }

    /// Does what there is to do. A link that is not ready is not asked: over tcp, to ask is a system call.
    fn round(&mut self, ready: Ready) -> Result<(), Fault> {
        if ready.link {
            self.link.poll(&mut self.completions);
        }
        let mut completions = std::mem::take(&mut self.completions);
        let taken = completions.drain(..).try_for_each(|completion| self.complete(completion));
        self.completions = completions;
        taken?;
        self.begin_waiting();
        self.engine.kick();
        if ready.engine || self.engine.in_flight() > 0 {
            self.engine.poll(&mut self.done);
        }
        let mut done = std::mem::take(&mut self.done);
        done.drain(..).for_each(|done| self.stored(done));
        self.done = done;
        self.reply_waiting();
        self.link.submit();
        Ok(())
    }

    /// Sleeps until there is something to do. Whatever came meanwhile wakes at once, so nothing has to be looked at twice.
    fn sleep(&mut self, lanes: &Lanes) -> Ready {
        if self.link.arm() {
            return Ready { link: true, engine: true };
        }
        let mut fds = [
            PollFd::from_borrowed_fd(self.link.wait_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.engine.wait_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(lanes.stop.as_fd(), PollFlags::IN),
        ];
        // A failure (of which there is none but a signal) is a wake-up like any other.
        let _ = poll(&mut fds, None);
        let ready = Ready { link: !fds[0].revents().is_empty(), engine: !fds[1].revents().is_empty() };
        if ready.link {
            self.link.woken();
        }
        ready
    }

    /// One operation of the link ended.
    fn complete(&mut self, completion: Completion) -> Result<(), Fault> {
        let Completion { op, tag, slot, result } = completion;
        match op {
            Op::Recv => {
                let Ok(length) = result else { return Ok(()) };
                let mut bytes = [0; MESSAGE_BYTES];
                let bytes = &mut bytes[..length as usize];
                slot.copy_to(0, bytes);
                // Posted again before the reply, so that the client's next request never has to wait for it.
                let _ = self.link.recv(slot, 0);
                self.take(Request::decode_all(bytes).map_err(|_| Fault("sent no valid request"))?)
            }
            Op::Write => {
                self.posted -= 1;
                let seat = tag as u16;
                self.seats[usize::from(seat)].slot = Some(slot);
                self.begin(seat);
                Ok(())
            }
            Op::Send | Op::Read => {
                self.posted -= 1;
                Ok(())
            }
        }
    }

    /// Gives a request its seat, where nobody sits yet.
    fn take(&mut self, request: Request) -> Result<(), Fault> {
        let (number, slot_size) = (request.slot, self.link.pool().slot_size());
        let seat =
            self.seats.get_mut(usize::from(number)).ok_or(Fault("named a slot that it does not have"))?;
        if seat.work.is_some() {
            return Err(Fault("named a slot that is in use"));
        }
        let refused = refuse(&request, &self.export, self.write, slot_size);
        let stage = match refused {
            Some(status) => Stage::over(Err(status), 0),
            None => Stage::Waiting,
        };
        seat.work = Some(Work { request, arrived: Instant::now(), begun: None, stage });
        self.in_flight += 1;
        self.counters.set_in_flight(self.in_flight);
        match refused {
            Some(_) => self.replying.push_back(number),
            None => self.begin(number),
        }
        Ok(())
    }

    fn begin_waiting(&mut self) {
        for _ in 0..self.waiting.len() {
            let Some(seat) = self.waiting.pop_front() else { return };
            self.begin(seat);
        }
    }

    /// Hands a request to the store, unless its slot is still with the link or the engine is full.
    fn begin(&mut self, number: u16) {
        let Seat { slot, work: Some(work) } = &mut self.seats[usize::from(number)] else { return };
        if !matches!(work.stage, Stage::Waiting) {
            return;
        }
        let range = work.request.range().unwrap_or(ByteRange::EMPTY);
        let action = match work.request.action {
            Action::Read => store::Action::Read,
            Action::Write { durable } => store::Action::Write { durable },
            Action::Flush => store::Action::Flush,
            Action::Trim { durable } => store::Action::Trim { durable },
            Action::Zero { no_hole, durable } => store::Action::Zero { no_hole, durable },
            Action::Extents => {
                let begun = Instant::now();
                work.begun = Some(begun);
                self.extents.clear();
                let result = self.engine.extents(range, REPLY_EXTENTS, &mut self.extents);
                work.stage = Stage::Over { result, stored: nanos(begun), extents: listed(&self.extents) };
                return self.replying.push_back(number);
            }
        };
        let with_slot = work.request.action.moves_data();
        if with_slot && slot.is_none() {
            return;
        }
        let job = Job { tag: number.into(), action, range, slot: slot.take_if(|_| with_slot) };
        let now = Instant::now();
        match self.engine.submit(job) {
            Ok(()) => {
                work.begun = Some(now);
                work.stage = Stage::Storing;
            }
            Err(job) => {
                *slot = slot.take().or(job.slot);
                self.waiting.push_back(number);
            }
        }
    }

    /// The store is done with a request.
    fn stored(&mut self, done: Done) {
        let number = done.tag as u16;
        let seat = &mut self.seats[usize::from(number)];
        if let Some(slot) = done.slot {
            seat.slot = Some(slot);
        }
        let Some(work) = &mut seat.work else { return };
        let stored = work.begun.map_or(0, nanos);
        work.stage = Stage::over(done.result.map(drop), stored);
        self.replying.push_back(number);
    }

    /// Answers what is over, while the link has room.
    fn reply_waiting(&mut self) {
        while let Some(&number) = self.replying.front() {
            if self.link.down().is_none() && self.reply(number).is_none() {
                return;
            }
            self.replying.pop_front();
        }
    }

    /// Sends a read's data to the client, and the reply behind it; `None` where the link has no room.
    fn reply(&mut self, number: u16) -> Option<()> {
        let seat = &mut self.seats[usize::from(number)];
        let Some(Work { request, arrived, begun, stage: Stage::Over { result, stored, extents } }) =
            &seat.work
        else {
            return Some(());
        };
        if self.posted + 2 > self.link.limits().depth {
            return None;
        }
        let waited = begun.map_or(0, |begun| clamped(begun.saturating_duration_since(*arrived).as_nanos()));
        let reply =
            Reply { slot: number, result: *result, waited, stored: *stored, extents: extents.clone() };
        let (packed, message) = (Packed::new(&reply), self.link.messages().take()?);
        if request.action == Action::Read
            && result.is_ok()
            && let Some(slot) = seat.slot.take()
        {
            let to =
                RemoteRange { address: request.address, key: request.key, length: request.length as u32 };
            let _ = self.link.write(slot, to, number.into());
            self.posted += 1;
        }
        count(&self.counters, request, *result, *arrived);
        if let Err(status) = *result {
            self.export.failure.note(request.action, status, Instant::now());
        }
        seat.work = None;
        self.in_flight -= 1;
        self.counters.set_in_flight(self.in_flight);
        self.post(message, &packed);
        Some(())
    }

    /// Sends a message; where the link is dead it goes nowhere, which the loop notices.
    fn post(&mut self, mut message: Slot, packed: &Packed) {
        let bytes = packed.as_bytes();
        message.copy_from(0, bytes);
        if self.link.send(message, bytes.len() as u32, 0).is_ok() {
            self.posted += 1;
        }
    }
}

impl<L: Link> Drop for Desk<L> {
    fn drop(&mut self) {
        self.export.totals.close(&self.counters);
    }
}

impl Stage {
    fn over(result: Result<(), Status>, stored: u32) -> Self {
        Self::Over { result, stored, extents: BoundedList::default() }
    }
}

/// Why a request is not for this export, if it is not.
fn refuse(request: &Request, export: &Export, write: bool, slot_size: u32) -> Option<Status> {
    let Some(range) = request.range() else { return Some(Status::OutOfRange) };
    let action = request.action;
    if action.modifies() && !write {
        return Some(Status::ReadOnly);
    }
    if action == Action::Flush {
        return None;
    }
    if range.length() == 0 || (action.moves_data() && range.length() > u64::from(slot_size)) {
        return Some(Status::BadRequest);
    }
    (!range.fits(export.store.size())).then_some(Status::OutOfRange)
}

fn count(counters: &LaneCounters, request: &Request, result: Result<(), Status>, arrived: Instant) {
    match (result, request.action) {
        (Err(_), _) => counters.error(),
        (Ok(()), Action::Read) => counters.read(request.length),
        (Ok(()), Action::Write { .. }) => counters.write(request.length),
        (Ok(()), _) => counters.other(),
    }
    counters.answered(arrived.elapsed());
}

/// Extents as a reply lists them.
fn listed(found: &[store::Extent]) -> BoundedList<Extent, REPLY_EXTENTS> {
    let mut listed = Vec::with_capacity(REPLY_EXTENTS);
    for extent in found.iter().take(REPLY_EXTENTS) {
        let length = u32::try_from(extent.length);
        listed.push(Extent { length: length.unwrap_or(u32::MAX), hole: !extent.allocated });
        // The next one does not begin where the part of this one ends.
        if length.is_err() {
            break;
        }
    }
    BoundedList::new(listed).unwrap_or_default()
}

/// Nanoseconds since `begun`, as a reply carries them.
fn nanos(begun: Instant) -> u32 {
    clamped(begun.elapsed().as_nanos())
}

fn clamped(nanos: u128) -> u32 {
    u32::try_from(nanos).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_listed_is_consecutive_even_where_an_extent_is_too_long() {
        let extent = |length, allocated| store::Extent { length, allocated };
        let listed = |found: &[_]| listed(found).iter().map(|it| (it.length, it.hole)).collect::<Vec<_>>();
        let most = u64::from(u32::MAX);
        assert_eq!(listed(&[extent(most, true), extent(1, false)]), [(u32::MAX, false), (1, true)]);
        assert_eq!(listed(&[extent(most + 1, false), extent(1, true)]), [(u32::MAX, true)]);
    }
}
