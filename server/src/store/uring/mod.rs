//! The engine on io_uring: one ring a lane, the file and the lane's slots registered with it, and no thread of ours.
//!
//! A task is in exactly one place: in the ring while the kernel works on it, among the waiting while another job has
//! its range or the turn to sync, or gone. What is finished waits in `finished` for the next poll.

#![expect(
    unsafe_code,
    reason = "the home of the kernel's ring and of the system calls that no safe crate has"
)]

mod ring;
pub(super) mod sys;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use kaeru_common::error::Status;
use kaeru_common::fabric::buffer::{Memory, SlotPool};
use kaeru_common::units::ByteRange;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use self::ring::{Reaped, Ring, Task};
use super::SLOTLESS;
use super::backing::{Backing, Way};
use super::engine::{Done, Extent, Job};
use super::work::{Bounces, Next, Op, Work, ZERO_STEP};

/// See the module.
#[derive(Debug)]
pub struct UringEngine {
    ring: Ring,
    backing: Arc<Backing>,
    bounces: Bounces,
    /// Tasks whose range another job has, or whose turn to sync has not come, oldest first.
    waiting: VecDeque<Task>,
    finished: VecDeque<Done>,
    in_flight: usize,
    /// Readable when a range or turn was given back that a task waits for.
    waker: Arc<OwnedFd>,
    /// Whether the ring looks at the waker.
    watched: bool,
    /// Readable, always.
    ready: OwnedFd,
}

/// Why this kernel gives no ring for `file`, if it does not.
pub(super) fn probe(file: &OwnedFd) -> io::Result<()> {
    let pool = SlotPool::new(1, 1)?;
    Ring::new(file, 1, &pool, pool.memory()).map(drop)
}

impl UringEngine {
    pub(super) fn new(backing: Arc<Backing>, pool: &SlotPool) -> io::Result<Self> {
        let zeroes = Arc::new(Memory::anonymous(ZERO_STEP as usize)?);
        let ring = Ring::new(&backing.file, pool.slots() + SLOTLESS as u32, pool, &zeroes)?;
        let capacity = ring.capacity();
        Ok(Self {
            ring,
            backing,
            bounces: Bounces::new(capacity as u32),
            waiting: VecDeque::with_capacity(capacity),
            finished: VecDeque::with_capacity(capacity),
            in_flight: 0,
            waker: Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?),
            watched: false,
            ready: eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    pub(super) fn submit(&mut self, job: Job) -> Result<(), Job> {
        if self.in_flight == self.ring.capacity() {
            return Err(job);
        }
        self.in_flight += 1;
        let work = Work::new(job, &self.backing);
        let wanted = work.lock(&self.backing);
        let mut task = Task { work, hold: None, turn: None };
        if let Some((range, mode)) = wanted {
            let (hold, held) = self.backing.lock.acquire(range, mode, &self.waker);
            task.hold = Some(hold);
            if !held {
                self.waiting.push_back(task);
                self.watch();
                return Ok(());
            }
        }
        self.go_on(task);
        Ok(())
    }

    pub(super) fn kick(&mut self) {
        self.ring.enter();
    }

    pub(super) fn poll(&mut self, done: &mut Vec<Done>) -> bool {
        let mut anything = self.hand_out(done);
        while done.len() < done.capacity() {
            match self.ring.reap() {
                Some(Reaped::Task(mut task, result)) => {
                    self.answer(&mut task, result);
                    self.go_on(task);
                }
                Some(Reaped::Woken) => self.try_waiting(),
                None => break,
            }
            anything = true;
            self.hand_out(done);
        }
        self.ring.enter();
        anything
    }

    pub(super) fn wait_fd(&self) -> BorrowedFd<'_> {
        if self.is_ready() { self.ready.as_fd() } else { self.sleep_fd() }
    }

    /// Whether there is something to poll that [`Self::sleep_fd`] does not tell of.
    pub(super) fn is_ready(&self) -> bool {
        !self.finished.is_empty() || self.ring.is_behind()
    }

    /// What becomes readable when more happens; always the same.
    pub(super) fn sleep_fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    pub(super) fn extents(
        &mut self,
        range: ByteRange,
        limit: usize,
        out: &mut Vec<Extent>,
    ) -> Result<(), Status> {
        self.backing.extents(range, limit, out)
    }

    /// Takes a task that holds its range to its next operation, or to its end.
    fn go_on(&mut self, mut task: Task) {
        loop {
            let op = match task.work.next(&self.backing, &mut self.bounces) {
                Next::Over(result) => return self.finish(task, result),
                Next::Op(op) => op,
            };
            match self.carry_out(task, op) {
                Some(answered) => task = answered,
                None => return,
            }
        }
    }

    /// Has an operation carried out. Gives the task back where that is done already.
    fn carry_out(&mut self, mut task: Task, op: Op) -> Option<Task> {
        if op == Op::Sync {
            let turn = task.turn.get_or_insert_with(|| self.backing.syncs.queue(&self.waker));
            if !self.backing.syncs.has_come(turn) {
                self.waiting.push_back(task);
                self.watch();
                return None;
            }
        }
        if let Some(result) = self.at_once(&mut task.work, op) {
            self.answer(&mut task, result);
            return Some(task);
        }
        // There is room for as many as are in flight, so no room would be a mistake of ours.
        let launched = self.ring.launch(task, op);
        launched.unwrap_or_else(|task| self.finish(task, Err(Status::Internal)));
        None
    }

    /// Tells a task what came of its operation.
    fn answer(&self, task: &mut Task, result: Result<u32, Errno>) {
        task.work.answered(result, &self.backing);
        if let Some(turn) = task.turn.take() {
            self.backing.syncs.leave(turn);
        }
    }

    /// Does what needs no ring, in a fraction of the time: with a page cache, a cached read, and a write, for which the
    /// kernel would wake a thread of its own.
    fn at_once(&self, work: &mut Work, op: Op) -> Option<Result<u32, Errno>> {
        match op {
            Op::Sync => work.sync_at_once(&self.backing),
            // Where it works, the ring gives the others their turn before the next step.
            Op::Clear { how: Way::Discard, range } => sys::discard(&self.backing.file, range).err().map(Err),
            _ if self.backing.is_direct() => None,
            Op::Read { into, range } => {
                let (slot, at) = work.memory(into)?;
                let result = sys::read_cached(&self.backing.file, slot, at, range);
                // Whatever is wrong with it, the ring finds out again: also whether the file is at its end, which Linux
                // 5.9 and 5.10 say here of what is not cached (preadv2(2), BUGS).
                result.ok().filter(|&bytes| bytes > 0).map(Ok)
            }
            Op::Write { from, range, durable: false } => {
                let (slot, at) = work.memory(from)?;
                Some(sys::write_cached(&self.backing.file, slot, at, range))
            }
            _ => None,
        }
    }

    fn finish(&mut self, task: Task, result: Result<u32, Status>) {
        let done = self.release(task).finish(result);
        self.finished.push_back(done);
    }

    /// Gives back what a task holds or waits for.
    fn release(&self, task: Task) -> Work {
        if let Some(hold) = task.hold {
            self.backing.lock.release(hold);
        }
        if let Some(turn) = task.turn {
            self.backing.syncs.leave(turn);
        }
        task.work
    }

    /// Moves finished jobs to `done`; whether there were any.
    fn hand_out(&mut self, done: &mut Vec<Done>) -> bool {
        let count = self.finished.len().min(done.capacity() - done.len());
        done.extend(self.finished.drain(..count));
        self.in_flight -= count;
        count > 0
    }

    /// Lets those go on whose range has become free, or whose turn to sync has come.
    fn try_waiting(&mut self) {
        self.watched = false;
        // Emptied first: what is given back from here on makes it readable again.
        let _ = rustix::io::read(&*self.waker, &mut [0; 8]);
        for _ in 0..self.waiting.len() {
            let Some(mut task) = self.waiting.pop_front() else { break };
            if task.turn.is_some() {
                if let Some(task) = self.carry_out(task, Op::Sync) {
                    self.go_on(task);
                }
            } else if task.hold.as_mut().is_none_or(|hold| self.backing.lock.retry(hold)) {
                self.go_on(task);
            } else {
                self.waiting.push_back(task);
            }
        }
        if !self.waiting.is_empty() {
            self.watch();
        }
    }

    fn watch(&mut self) {
        if !self.watched {
            self.watched = self.ring.wake_on(&self.waker);
        }
    }
}

impl Drop for UringEngine {
    /// Gives everything back, after the kernel is done with it. Nobody waits for the answers, but what they tell of lost
    /// writes the kernel tells only once.
    fn drop(&mut self) {
        for (mut task, result) in self.ring.quiesce() {
            self.answer(&mut task, result);
            self.release(task);
        }
        while let Some(task) = self.waiting.pop_front() {
            self.release(task);
        }
    }
}
