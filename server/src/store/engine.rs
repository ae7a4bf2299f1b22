//! One lane's way to a staged store: jobs in, finished jobs out.
//!
//! The life of a job:
//!
//! ```text
//! submit(job) ──► waits for its range ──► operations of the kernel, one after another ──► poll ──► Done
//!      │full          (range_lock)                (work; a step at a time)
//!      └─► Err(job)
//! ```
//!
//! A slot moves in with its job and comes back with its [`Done`], on success and on every error, and only once the
//! kernel can no longer touch it. A lane submits all that it has, kicks once, and polls until there is nothing left.

use std::os::fd::BorrowedFd;

use kaeru_common::error::Status;
use kaeru_common::fabric::buffer::Slot;
use kaeru_common::units::ByteRange;

use super::fault::FaultyEngine;
use super::file::FileEngine;
use super::uring::UringEngine;

/// What is to be done to a range of an export.
#[derive(Debug)]
pub struct Job {
    /// Comes back in [`Done::tag`]; the engine attaches no meaning to it.
    pub tag: u32,
    /// What to do.
    pub action: Action,
    /// Where. Any byte range of the export; ignored by [`Action::Flush`].
    pub range: ByteRange,
    /// The data of a read or write, at its start; `None` for the others.
    pub slot: Option<Slot>,
}

/// What a [`Job`] does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Fills the slot.
    Read,
    /// Stores what is in the slot.
    Write {
        /// Whether it is answered only once it would survive a loss of power.
        durable: bool,
    },
    /// Makes every write that was answered before, on every lane, survive a loss of power.
    Flush,
    /// Tells that the bytes are not needed any more. They read as zeroes afterwards where the store can do that.
    Trim {
        /// As for a write.
        durable: bool,
    },
    /// Makes the range read as zeroes.
    Zero {
        /// Whether the range keeps its room on the disk.
        no_hole: bool,
        /// As for a write.
        durable: bool,
    },
}

impl Action {
    /// Whether it changes bytes.
    pub const fn writes(self) -> bool {
        !matches!(self, Self::Read | Self::Flush)
    }

    /// Whether its answer is a promise that bytes survive a loss of power.
    pub const fn durable(self) -> bool {
        match self {
            Self::Read => false,
            Self::Flush => true,
            Self::Write { durable } | Self::Trim { durable } | Self::Zero { durable, .. } => durable,
        }
    }
}

/// The end of a [`Job`]: there is exactly one for each.
#[derive(Debug)]
#[must_use = "it may hold a slot and an error"]
pub struct Done {
    /// That of the job.
    pub tag: u32,
    /// That of the job.
    pub slot: Option<Slot>,
    /// The length of the range for reads and writes, which are never short; 0 for the others.
    pub result: Result<u32, Status>,
}

/// A stretch of an export that is allocated, or is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Bytes; at least one.
    pub length: u64,
    /// Whether it takes room on the disk; what does not reads as zeroes.
    pub allocated: bool,
}

/// A lane's engine. It is driven by one thread and shares nothing with other lanes but the file itself.
///
/// Dropping one waits until the kernel is done with every slot that it has; unfinished jobs get no [`Done`].
#[derive(Debug)]
pub enum Engine {
    /// Plain system calls, on the lane's own thread.
    File(FileEngine),
    /// A ring of the kernel.
    Uring(Box<UringEngine>),
    /// One of the above behind a layer that makes faults.
    Faulty(Box<FaultyEngine>),
}

macro_rules! each {
    ($self:ident, $engine:ident => $call:expr) => {
        match $self {
            Self::File($engine) => $call,
            Self::Uring($engine) => $call,
            Self::Faulty($engine) => $call,
        }
    };
}

impl Engine {
    /// Takes a job on. What is wrong with the job itself is told by its [`Done`].
    ///
    /// # Errors
    /// Gives the job back while the engine is full: poll, then try again.
    pub fn submit(&mut self, job: Job) -> Result<(), Job> {
        each!(self, engine => engine.submit(job))
    }

    /// Hands what was submitted to the kernel, with one system call.
    pub fn kick(&mut self) {
        each!(self, engine => engine.kick());
    }

    /// Adds finished jobs to `done`: as many as its spare capacity holds, so it never grows. Returns whether anything
    /// happened; poll until it says no, then sleep on [`Self::wait_fd`].
    pub fn poll(&mut self, done: &mut Vec<Done>) -> bool {
        each!(self, engine => engine.poll(done))
    }

    /// Readable for as long as there is something to poll. Which descriptor it is may change with every other call, so
    /// it is asked for anew before each sleep.
    pub fn wait_fd(&self) -> BorrowedFd<'_> {
        each!(self, engine => engine.wait_fd())
    }

    /// Jobs that were submitted and whose [`Done`] was not polled yet.
    pub fn in_flight(&self) -> usize {
        each!(self, engine => engine.in_flight())
    }

    /// Adds what is allocated in `range` to `out`: consecutive extents from its start, never beyond its end, at least
    /// one and at most `limit`; two neighbours differ. Blocks for as long as the file system takes to look it up.
    ///
    /// # Errors
    /// [`Status::OutOfRange`], [`Status::BadRequest`] for an empty range, or what the file system said.
    pub fn extents(&mut self, range: ByteRange, limit: usize, out: &mut Vec<Extent>) -> Result<(), Status> {
        each!(self, engine => engine.extents(range, limit, out))
    }

    /// Whether there is something to poll that [`Self::sleep_fd`] does not tell of.
    pub(super) fn is_ready(&self) -> bool {
        each!(self, engine => engine.is_ready())
    }

    /// What becomes readable when more happens; always the same.
    pub(super) fn sleep_fd(&self) -> BorrowedFd<'_> {
        each!(self, engine => engine.sleep_fd())
    }
}
