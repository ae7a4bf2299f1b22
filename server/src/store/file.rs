//! The engine that needs nothing: plain reads and writes at an offset, one after the other on the lane's own thread,
//! through the page cache. It runs anywhere, and it is what the ring's results are compared with.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use kaeru_common::error::Status;
use kaeru_common::fabric::buffer::SlotPool;
use kaeru_common::units::ByteRange;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::{FallocateFlags, fallocate, fdatasync};
use rustix::io::{Errno, ReadWriteFlags, pread, pwritev2};

use super::SLOTLESS;
use super::backing::{Backing, Way};
use super::engine::{Done, Extent, Job};
use super::syncs::Turn;
use super::uring::sys;
use super::work::{Bounces, Next, Op, Place, Work, ZERO_STEP};

/// Operations of one poll: a lane looks after its link in between.
const STEPS: usize = 16;

/// See the module.
#[derive(Debug)]
pub struct FileEngine {
    backing: Arc<Backing>,
    jobs: VecDeque<Work>,
    capacity: usize,
    /// A copy on the way to the file: a slot is never lent as a slice.
    buffer: Vec<u8>,
    bounces: Bounces,
    /// What to sleep on while there is something to do, and while there is not.
    ready: OwnedFd,
    never: OwnedFd,
    /// Readable when the turn to sync has come.
    waker: Arc<OwnedFd>,
}

impl FileEngine {
    pub(super) fn new(backing: Arc<Backing>, pool: &SlotPool) -> io::Result<Self> {
        let capacity = pool.slots() as usize + SLOTLESS;
        Ok(Self {
            backing,
            jobs: VecDeque::with_capacity(capacity),
            capacity,
            buffer: vec![0; pool.slot_size() as usize],
            bounces: Bounces::new(1),
            ready: eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            never: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            waker: Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?),
        })
    }

    pub(super) fn submit(&mut self, job: Job) -> Result<(), Job> {
        if self.jobs.len() == self.capacity {
            return Err(job);
        }
        self.jobs.push_back(Work::new(job, &self.backing));
        Ok(())
    }

    /// Nothing: the work is done by [`Self::poll`], a few steps at a time.
    pub(super) fn kick(&mut self) {}

    pub(super) fn poll(&mut self, done: &mut Vec<Done>) -> bool {
        let mut steps = 0;
        while steps < STEPS && done.len() < done.capacity() {
            let Some(mut work) = self.jobs.pop_front() else { break };
            steps += 1;
            match work.next(&self.backing, &mut self.bounces) {
                Next::Over(result) => done.push(work.finish(result)),
                Next::Op(op) => {
                    self.answer(op, &mut work);
                    // A transfer is over by now, or nearly; clearing may be long and lets the others go first.
                    match work.transfers() {
                        true => self.jobs.push_front(work),
                        false => self.jobs.push_back(work),
                    }
                }
            }
        }
        steps > 0
    }

    pub(super) fn wait_fd(&self) -> BorrowedFd<'_> {
        if self.is_ready() { self.ready.as_fd() } else { self.sleep_fd() }
    }

    /// Whether there is something to poll that [`Self::sleep_fd`] does not tell of.
    pub(super) fn is_ready(&self) -> bool {
        !self.jobs.is_empty()
    }

    /// What becomes readable when more happens: nothing does by itself.
    pub(super) fn sleep_fd(&self) -> BorrowedFd<'_> {
        self.never.as_fd()
    }

    pub(super) fn in_flight(&self) -> usize {
        self.jobs.len()
    }

    pub(super) fn extents(
        &mut self,
        range: ByteRange,
        limit: usize,
        out: &mut Vec<Extent>,
    ) -> Result<(), Status> {
        self.backing.extents(range, limit, out)
    }

    /// Carries an operation out, and tells the job what came of it.
    fn answer(&mut self, op: Op, work: &mut Work) {
        let turn = (op == Op::Sync).then(|| self.turn());
        let known = if turn.is_some() { work.sync_at_once(&self.backing) } else { None };
        let result = known.unwrap_or_else(|| self.carry_out(op, work));
        work.answered(result, &self.backing);
        if let Some(turn) = turn {
            self.backing.syncs.leave(turn);
        }
    }

    /// Waits for the turn to sync.
    fn turn(&self) -> Turn {
        let turn = self.backing.syncs.queue(&self.waker);
        while !self.backing.syncs.has_come(&turn) {
            // A failure (of which there is none but a signal) is a wake-up like any other.
            let _ = poll(&mut [PollFd::new(&self.waker, PollFlags::IN)], None);
            let _ = rustix::io::read(&self.waker, &mut [0; 8]);
        }
        turn
    }

    fn carry_out(&mut self, op: Op, work: &mut Work) -> Result<u32, Errno> {
        let file = &self.backing.file;
        match op {
            Op::Read { into, range } => {
                let (slot, at) = work.memory(into).ok_or(Errno::FAULT)?;
                let buffer = &mut self.buffer[..range.length() as usize];
                let bytes = pread(file, &mut *buffer, range.offset())?;
                slot.copy_from(at as usize, &buffer[..bytes]);
                Ok(bytes as u32)
            }
            Op::Write { from, range, durable } => {
                let bytes = match (from, work.memory(from)) {
                    (Place::Zeroes, _) => &ZEROES[..range.length() as usize],
                    (_, Some((slot, at))) => {
                        let buffer = &mut self.buffer[..range.length() as usize];
                        slot.copy_to(at as usize, buffer);
                        &*buffer
                    }
                    (_, None) => return Err(Errno::FAULT),
                };
                let flags = if durable { ReadWriteFlags::DSYNC } else { ReadWriteFlags::empty() };
                Ok(pwritev2(file, &[IoSlice::new(bytes)], range.offset(), flags)? as u32)
            }
            Op::Clear { how: Way::Discard, range } => sys::discard(file, range).map(|()| 0),
            Op::Clear { how, range } => {
                let mode =
                    if how == Way::Punch { FallocateFlags::PUNCH_HOLE } else { FallocateFlags::ZERO_RANGE };
                let mode = mode | FallocateFlags::KEEP_SIZE;
                fallocate(file, mode, range.offset(), range.length()).map(|()| 0)
            }
            Op::Sync => fdatasync(file).map(|()| 0),
        }
    }
}

static ZEROES: [u8; ZERO_STEP as usize] = [0; ZERO_STEP as usize];
