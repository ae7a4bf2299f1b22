//! A lane on registered slots: every operation is one piece, or several where it does not fit a slot or lies across two
//! windows of the export. Fabric and remote differ only in what a piece is posted to.
//!
//! Bytes end in, and come from, the registered slots: the copy between a slot and a program belongs to the rung above.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use kaeru_client::nbd::lane::Spin;
use kaeru_client::remote::{Failure, Spent};
use kaeru_common::fabric::buffer::Slot;
use kaeru_common::fabric::{LinkDown, Refused};
use kaeru_common::units::{ByteRange, Pieces};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Dead, Done, Io, Lane, Shape};
use crate::bench::stages::Stamp;
use crate::bench::workload::{Op, pattern};

/// How often a lane that spins looks for completions before it looks at the clock.
const LOOKS: u32 = 16;

/// A piece that came back.
pub(super) struct Back {
    pub(super) tag: u64,
    pub(super) result: Result<u32, Failure>,
    pub(super) spent: Option<Spent>,
}

/// What pieces are posted to.
pub(super) trait Way: Send {
    fn slot(&self) -> Option<Slot>;
    fn pieces(&self, range: ByteRange) -> Pieces;
    fn post(&mut self, op: Op, slot: Slot, piece: ByteRange, tag: u64) -> Result<(), Refused>;
    fn submit(&mut self);
    /// Moves what came back to `back`, within its capacity.
    fn poll(&mut self, back: &mut Vec<Back>);
    fn arm(&mut self) -> bool;
    fn woken(&mut self);
    fn wait_fd(&self) -> BorrowedFd<'_>;
    fn down(&self) -> Option<&LinkDown>;
}

/// An operation under way.
struct Flight {
    op: Op,
    left: Pieces,
    outstanding: u32,
    failed: Option<Failure>,
    stamp: Stamp,
}

/// See the module.
pub(super) struct Pieced<W> {
    way: W,
    spin: Spin,
    stages: bool,
    writes: bool,
    /// By tag.
    flights: Box<[Option<Flight>]>,
    /// Those that are not posted whole, in order.
    waiting: VecDeque<u32>,
    back: Vec<Back>,
    in_flight: u32,
}

impl<W: Way> Pieced<W> {
    pub(super) fn new(way: W, shape: &Shape, spin: Spin) -> Self {
        let depth = shape.depth as usize;
        Self {
            way,
            spin,
            stages: shape.stages,
            writes: shape.writes,
            flights: (0..depth).map(|_| None).collect(),
            waiting: VecDeque::with_capacity(depth),
            back: Vec::with_capacity(64),
            in_flight: 0,
        }
    }

    /// Posts what there is room for.
    fn advance(&mut self) -> Result<(), Dead> {
        while let Some(&tag) = self.waiting.front() {
            let Some(flight) = &mut self.flights[tag as usize] else { return Ok(()) };
            let rest = flight.left;
            let Some(piece) = flight.left.next() else {
                self.waiting.pop_front();
                continue;
            };
            let Some(slot) = self.way.slot() else {
                flight.left = rest;
                return Ok(());
            };
            if self.stages {
                flight.stamp.posted.get_or_insert_with(Instant::now);
            }
            match self.way.post(flight.op, slot, piece, tag.into()) {
                Ok(()) => flight.outstanding += 1,
                Err(Refused::Full(_)) => {
                    flight.left = rest;
                    return Ok(());
                }
                Err(Refused::Dead(_)) => return Err(self.dead("it took no operation")),
            }
        }
        Ok(())
    }

    /// Takes what came back. Returns whether anything is over.
    fn collect(&mut self, done: &mut Vec<Done>) -> Result<bool, Dead> {
        self.way.poll(&mut self.back);
        if self.back.is_empty() {
            return Ok(false);
        }
        let (at, before) = (Instant::now(), done.len());
        let mut back = std::mem::take(&mut self.back);
        for Back { tag, result, spent, .. } in back.drain(..) {
            let Some(place) = self.flights.get_mut(tag as usize) else { continue };
            let Some(flight) = place else { continue };
            flight.outstanding -= 1;
            match result {
                Err(Failure::Link(error)) => return Err(self.dead(&error.to_string())),
                Err(error) => flight.failed = Some(error),
                Ok(_) => flight.stamp.spent = flight.stamp.spent.max_by_total(spent),
            }
            if flight.outstanding == 0 && (flight.left.remaining() == 0) {
                let (failed, mut stamp) = (flight.failed.map(|failed| failed.to_string()), flight.stamp);
                stamp.completed = self.stages.then_some(at);
                *place = None;
                self.in_flight -= 1;
                done.push(Done { tag: tag as u32, at, failed, stamp });
            }
        }
        self.back = back;
        Ok(done.len() > before)
    }

    fn sleep(&mut self, until: Instant) -> Result<(), Dead> {
        if self.way.arm() {
            return Ok(());
        }
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let mut fds = [PollFd::from_borrowed_fd(self.way.wait_fd(), PollFlags::IN)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => self.way.woken(),
            Err(error) => return Err(Dead(format!("could not wait for the lane: {error}"))),
        }
        Ok(())
    }

    /// Every failure of an operation but the store's ends its link.
    fn dead(&self, what: &str) -> Dead {
        Dead(match self.way.down() {
            Some(down) => format!("the lane is dead: {down}"),
            None => format!("the lane is dead: {what}"),
        })
    }
}

/// Of several pieces the one that spent most time on the server counts.
trait MaxByTotal {
    fn max_by_total(self, other: Self) -> Self;
}

impl MaxByTotal for Option<Spent> {
    fn max_by_total(self, other: Self) -> Self {
        let total = |spent: Self| spent.map(|spent| spent.waited + spent.stored);
        if total(other) > total(self) { other } else { self }
    }
}

impl<W: Way> Lane for Pieced<W> {
    fn prepare(&mut self) {
        if !self.writes {
            return;
        }
        let mut slots = Vec::new();
        while let Some(mut slot) = self.way.slot() {
            slot.copy_from(0, &pattern(slot.size() as usize));
            slots.push(slot);
        }
    }

    fn submit(&mut self, io: Io) -> Result<(), Dead> {
        let range = ByteRange::new(io.offset, io.length.into())
            .ok_or_else(|| Dead(format!("no block lies at {}", io.offset)))?;
        let left = self.way.pieces(range);
        let flight = Flight { op: io.op, left, outstanding: 0, failed: None, stamp: Stamp::default() };
        self.flights[io.tag as usize] = Some(flight);
        self.waiting.push_back(io.tag);
        self.in_flight += 1;
        self.advance()
    }

    fn reap(&mut self, done: &mut Vec<Done>, until: Instant) -> Result<(), Dead> {
        self.way.submit();
        let mut begun = None;
        for round in 1u32.. {
            if self.in_flight == 0 || self.collect(done)? {
                break;
            }
            if !self.waiting.is_empty() {
                self.advance()?;
                self.way.submit();
            }
            // To ask for the time takes some itself, which is not the fabric's.
            if self.spin != Spin::For(Duration::ZERO) && !round.is_multiple_of(LOOKS) {
                std::hint::spin_loop();
                continue;
            }
            let now = Instant::now();
            if now >= until {
                break;
            }
            let since = *begun.get_or_insert(now);
            if matches!(self.spin, Spin::For(budget) if now - since >= budget) {
                self.sleep(until)?;
            }
        }
        Ok(())
    }
}
