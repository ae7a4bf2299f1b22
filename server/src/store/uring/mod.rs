//! The engine on io_uring: one ring a lane, the file and the lane's slots registered with it, and no thread of ours.
//!
//! A task is in exactly one place: in the ring while the kernel works on it, among the waiting while another job has
//! its range, or gone. What is finished waits in `finished` for the next poll.

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
    /// Tasks whose range another job has, oldest first.
    waiting: VecDeque<Task>,
    finished: VecDeque<Done>,
    in_flight: usize,
    /// Readable when a range was given back that a task waits for.
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
        let mut task = Task { work, hold: None };
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
                    task.work.answered(result, &self.backing);
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
        !self.finished.is_empty()
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
            match task.work.next(&self.backing, &mut self.bounces) {
                Next::Over(result) => return self.finish(task, result),
                Next::Op(op) => {
                    if let Op::Clear { how: Way::Discard, range } = op
                        && let Err(errno) = sys::discard(&self.backing.file, range)
                    {
                        task.work.answered(Err(errno), &self.backing);
                        continue;
                    }
                    if let Some(result) = self.at_once(&mut task.work, op) {
                        task.work.answered(result, &self.backing);
                        continue;
                    }
                    // There is room for as many as are in flight, so no room would be a mistake of ours.
                    let launched = self.ring.launch(task, op);
                    return launched.unwrap_or_else(|task| self.finish(task, Err(Status::Internal)));
                }
            }
        }
    }

    /// Does what the page cache can do at once, in a fraction of the time that the ring takes for it: a cached read, and
    /// a write, for which the kernel would wake a thread of its own.
    fn at_once(&self, work: &mut Work, op: Op) -> Option<Result<u32, Errno>> {
        if self.backing.is_direct() {
            return None;
        }
        match op {
            Op::Read { into, range } => {
                let (slot, at) = work.memory(into)?;
                let result = sys::read_cached(&self.backing.file, slot, at, range);
                // Whatever is wrong with it, the ring finds out again.
                result.ok().map(Ok)
            }
            Op::Write { from, range, durable: false } => {
                let (slot, at) = work.memory(from)?;
                Some(sys::write_cached(&self.backing.file, slot, at, range))
            }
            _ => None,
        }
    }

    fn finish(&mut self, task: Task, result: Result<u32, Status>) {
        if let Some(hold) = task.hold {
            self.backing.lock.release(hold);
        }
        self.finished.push_back(task.work.finish(result));
    }

    /// Moves finished jobs to `done`; whether there were any.
    fn hand_out(&mut self, done: &mut Vec<Done>) -> bool {
        let count = self.finished.len().min(done.capacity() - done.len());
        done.extend(self.finished.drain(..count));
        self.in_flight -= count;
        count > 0
    }

    /// Lets those go on whose range has become free.
    fn try_waiting(&mut self) {
        self.watched = false;
        // Emptied first: what is given back from here on makes it readable again.
        let _ = rustix::io::read(&*self.waker, &mut [0; 8]);
        for _ in 0..self.waiting.len() {
            let Some(mut task) = self.waiting.pop_front() else { break };
            match task.hold.as_mut().is_none_or(|hold| self.backing.lock.retry(hold)) {
                true => self.go_on(task),
                false => self.waiting.push_back(task),
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
    /// Gives every range back, after the kernel is done with it.
    fn drop(&mut self) {
        for task in self.ring.quiesce().into_iter().chain(self.waiting.drain(..)) {
            if let Some(hold) = task.hold {
                self.backing.lock.release(hold);
            }
        }
    }
}
