//! The layer in front of an engine: it fails jobs, and keeps answers until their time has come.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kaeru_common::error::Status;
use kaeru_common::fabric::buffer::SlotPool;
use kaeru_common::units::ByteRange;
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use super::super::SLOTLESS;
use super::super::backing::Backing;
use super::super::engine::{Done, Engine, Extent, Job};
use super::Faults;

/// See the module.
#[derive(Debug)]
pub struct FaultyEngine {
    inner: Engine,
    faults: Arc<Faults>,
    backing: Arc<Backing>,
    /// By the tag that the inner engine sees: whose job it is, and when it may be answered.
    jobs: Box<[Option<Under>]>,
    free: Vec<u32>,
    /// What the inner engine has finished, on its way.
    arrived: Vec<Done>,
    held: BinaryHeap<Held>,
    sleep: OwnedFd,
    timer: OwnedFd,
    ready: OwnedFd,
}

#[derive(Clone, Copy, Debug)]
struct Under {
    tag: u32,
    due: Instant,
    /// Whether the store has it until then.
    hangs: bool,
}

/// An answer that waits for its time; the earliest is the greatest, as a heap wants it.
#[derive(Debug)]
struct Held {
    due: Instant,
    done: Done,
}

impl PartialEq for Held {
    fn eq(&self, other: &Self) -> bool {
        self.due == other.due
    }
}

impl Eq for Held {}

impl PartialOrd for Held {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Held {
    fn cmp(&self, other: &Self) -> Ordering {
        other.due.cmp(&self.due)
    }
}

impl FaultyEngine {
    pub(in super::super) fn new(
        inner: Engine,
        faults: Arc<Faults>,
        backing: Arc<Backing>,
        pool: &SlotPool,
    ) -> io::Result<Self> {
        let capacity = pool.slots() as usize + SLOTLESS;
        let sleep = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let timer =
            timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        for source in [inner.sleep_fd(), timer.as_fd()] {
            epoll::add(&sleep, source, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        }
        Ok(Self {
            inner,
            faults,
            backing,
            jobs: (0..capacity).map(|_| None).collect(),
            free: (0..capacity as u32).rev().collect(),
            arrived: Vec::with_capacity(capacity),
            held: BinaryHeap::with_capacity(capacity),
            sleep,
            timer,
            ready: eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    pub(in super::super) fn submit(&mut self, mut job: Job) -> Result<(), Job> {
        let Some(&number) = self.free.last() else { return Err(job) };
        let verdict = self.faults.judge(&job);
        let under = Under { tag: job.tag, due: Instant::now() + verdict.delay, hangs: verdict.hang };
        match verdict.error {
            Some(status) => {
                if job.action.durable() && status != Status::NoSpace {
                    // As a real one would: what the kernel did not store is lost.
                    self.backing.lost_writes(Errno::IO);
                }
                let done = Done { tag: number, slot: job.slot, result: Err(status) };
                self.held.push(Held { due: under.due, done });
                self.set_timer();
            }
            None => {
                let tag = std::mem::replace(&mut job.tag, number);
                if let Err(mut job) = self.inner.submit(job) {
                    job.tag = tag;
                    return Err(job);
                }
            }
        }
        self.free.pop();
        self.jobs[number as usize] = Some(under);
        Ok(())
    }

    pub(in super::super) fn kick(&mut self) {
        self.inner.kick();
    }

    pub(in super::super) fn poll(&mut self, done: &mut Vec<Done>) -> bool {
        let mut anything = self.inner.poll(&mut self.arrived);
        for done in self.arrived.drain(..) {
            let due = self.jobs[done.tag as usize].map_or_else(Instant::now, |under| under.due);
            self.held.push(Held { due, done });
        }
        let now = Instant::now();
        while done.len() < done.capacity() && self.held.peek().is_some_and(|held| held.due <= now) {
            let Some(Held { done: mut over, .. }) = self.held.pop() else { break };
            self.free.push(over.tag);
            if let Some(under) = self.jobs[over.tag as usize].take() {
                over.tag = under.tag;
            }
            done.push(over);
            anything = true;
        }
        self.set_timer();
        anything
    }

    pub(in super::super) fn wait_fd(&self) -> BorrowedFd<'_> {
        if self.is_ready() { self.ready.as_fd() } else { self.sleep_fd() }
    }

    pub(in super::super) fn is_ready(&self) -> bool {
        self.inner.is_ready() || self.held.peek().is_some_and(|held| held.due <= Instant::now())
    }

    pub(in super::super) fn sleep_fd(&self) -> BorrowedFd<'_> {
        self.sleep.as_fd()
    }

    pub(in super::super) fn in_flight(&self) -> usize {
        self.jobs.len() - self.free.len()
    }

    pub(in super::super) fn extents(
        &mut self,
        range: ByteRange,
        limit: usize,
        out: &mut Vec<Extent>,
    ) -> Result<(), Status> {
        self.inner.extents(range, limit, out)
    }

    /// Has the timer go off when the next answer is due, or not at all.
    fn set_timer(&self) {
        let wait = self.held.peek().map_or(Duration::ZERO, |held| {
            held.due.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1))
        });
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let wait = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) };
        let timer = Itimerspec { it_interval: zero, it_value: wait };
        // A time in range on a timer of ours: there is nothing to fail. It also forgets that it went off.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &timer);
    }
}

impl Drop for FaultyEngine {
    fn drop(&mut self) {
        let hanging = self.jobs.iter().flatten().filter(|under| under.hangs);
        if let Some(due) = hanging.map(|under| under.due).max() {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
    }
}
