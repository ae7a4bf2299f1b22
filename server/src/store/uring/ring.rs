//! The ring: tasks move in with the operation that they wait for, and come back with its result. This is the one place
//! where addresses are given to the kernel, and while it may use one, the memory behind it is owned by the ring.

use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use io_uring::types::{Fd, Fixed, FsyncFlags};
use io_uring::{IoUring, opcode, squeue};
use kaeru_common::fabric::buffer::{Memory, SlotPool};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use super::super::backing::Way;
use super::super::range_lock::Hold;
use super::super::syncs::Turn;
use super::super::work::{Op, Place, Work, ZERO_STEP};

/// Makes one read or write durable: `RWF_DSYNC` of `linux/fs.h`.
const RWF_DSYNC: i32 = 2;

/// The export's file among the registered ones.
const FILE: Fixed = Fixed(0);

/// The lane's slots among the registered buffers.
const SLOTS: u16 = 0;

/// What a completion of the waker carries; no task has such a number.
const WAKER: u64 = u64::MAX;

/// How long a kernel that took nothing is left alone.
const RESPITE: Duration = Duration::from_millis(1);

/// The most entries that any kernel gives a ring.
const MOST: u32 = 32_768;

/// A job with what it holds.
#[derive(Debug)]
pub(super) struct Task {
    /// The job.
    pub(super) work: Work,
    /// The range that it holds or waits for.
    pub(super) hold: Option<Hold>,
    /// Its turn to sync, while it has it or waits for it.
    pub(super) turn: Option<Turn>,
}

/// What comes out of a ring.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a task is moved, never allocated")]
pub(super) enum Reaped {
    /// A task, and what the kernel said to its operation.
    Task(Task, Result<u32, Errno>),
    /// The waker was written to.
    Woken,
}

/// See the module.
pub(super) struct Ring {
    ring: IoUring,
    /// By number; what is here belongs to the kernel.
    tasks: ManuallyDrop<Box<[Option<Task>]>>,
    free: Vec<u32>,
    /// Submissions that the kernel was not told of.
    unsent: u32,
    /// Whether it was said that the kernel takes none.
    complained: bool,
    /// The memory under the slots, which the ring may have registered.
    slots: ManuallyDrop<SlotPool>,
    registered: bool,
    zeroes: ManuallyDrop<Arc<Memory>>,
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring").field("in_kernel", &self.in_kernel()).finish_non_exhaustive()
    }
}

impl Ring {
    /// A ring for `file` that takes `capacity` tasks at once, whose slots are mostly of `pool`.
    pub(super) fn new(
        file: &OwnedFd,
        capacity: u32,
        pool: &SlotPool,
        zeroes: &Arc<Memory>,
    ) -> io::Result<Self> {
        // One more, for the waker.
        let entries = (capacity + 1).min(MOST);
        let ring = IoUring::builder().dontfork().setup_clamp().build(entries)?;
        ring.submitter().register_files(&[file.as_raw_fd()])?;
        let capacity = capacity.min(ring.params().sq_entries() - 1);
        let mut ring = Self {
            ring,
            tasks: ManuallyDrop::new((0..capacity).map(|_| None).collect()),
            free: (0..capacity).rev().collect(),
            unsent: 0,
            complained: false,
            slots: ManuallyDrop::new(pool.clone()),
            registered: false,
            zeroes: ManuallyDrop::new(zeroes.clone()),
        };
        ring.registered = ring.register();
        Ok(ring)
    }

    /// Registers the memory of the slots, so that the kernel need not look its pages up for every operation.
    fn register(&self) -> bool {
        let memory = self.slots.memory();
        let whole = libc::iovec { iov_base: memory.address() as *mut _, iov_len: memory.mapped() };
        // SAFETY: needed so that card and ring use the same memory without a registration for each operation. The
        // range is exactly the mapping, which `slots` keeps until the ring is gone.
        match unsafe { self.ring.submitter().register_buffers(&[whole]) } {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(
                    "the kernel registers no {} bytes for a lane's ring ({error}), which costs a little speed; \
                     \"ulimit -l\" may be too low",
                    memory.mapped()
                );
                false
            }
        }
    }

    /// Tasks that it takes at once.
    pub(super) fn capacity(&self) -> usize {
        self.tasks.len()
    }

    /// Tasks that it has.
    pub(super) fn in_kernel(&self) -> usize {
        self.tasks.len() - self.free.len()
    }

    /// Readable while there is something to reap.
    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: needed since the crate lends its descriptor only as a number. The ring owns it for as long as the
        // borrow of `self` lasts.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }

    /// Takes a task with the operation that it waits for; [`Self::enter`] tells the kernel.
    ///
    /// # Errors
    /// Gives the task back where there is no room, which happens only beyond the capacity, or where the operation
    /// names memory that the task does not have.
    #[expect(
        clippy::result_large_err,
        reason = "a task is moved, never allocated, and this error is a mistake of ours"
    )]
    pub(super) fn launch(&mut self, mut task: Task, op: Op) -> Result<(), Task> {
        let Some(&number) = self.free.last() else { return Err(task) };
        let Some(entry) = self.entry(&mut task.work, op) else { return Err(task) };
        let entry = entry.user_data(u64::from(number));
        // SAFETY: needed since the crate cannot know how long the memory of an entry lives. Its addresses are inside a
        // slot that `task` owns, or in `zeroes`. Both are kept here until the completion is reaped; `drop` waits for
        // that. The file is registered, and so are the buffers that an entry names by number.
        if unsafe { self.ring.submission().push(&entry) }.is_err() {
            return Err(task);
        }
        self.free.pop();
        self.tasks[number as usize] = Some(task);
        self.unsent += 1;
        Ok(())
    }

    /// Has [`Reaped::Woken`] come out once when `waker` becomes readable. Whether there was room.
    pub(super) fn wake_on(&mut self, waker: &OwnedFd) -> bool {
        let entry = opcode::PollAdd::new(Fd(waker.as_raw_fd()), libc::POLLIN as u32).build().user_data(WAKER);
        // SAFETY: as in `launch`; it names no memory, and the kernel keeps the open file alive by itself.
        let pushed = unsafe { self.ring.submission().push(&entry) }.is_ok();
        self.unsent += u32::from(pushed);
        pushed
    }

    /// Tells the kernel of what is new, with one system call. What it cannot take now is told the next time; see
    /// [`Self::is_behind`].
    pub(super) fn enter(&mut self) {
        while self.unsent > 0 {
            match self.ring.submit() {
                Ok(taken) => self.unsent = self.unsent.saturating_sub(taken as u32),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    if !std::mem::replace(&mut self.complained, true) {
                        tracing::warn!("the kernel takes no request at the moment ({error}); trying again");
                    }
                    // It has no memory for one, most likely, and asking at once would not make any.
                    std::thread::sleep(RESPITE);
                    return;
                }
            }
        }
    }

    /// Whether there is something that the kernel did not take, so that nothing will come of it by itself.
    pub(super) fn is_behind(&self) -> bool {
        self.unsent > 0
    }

    /// Something that has come back, if anything has.
    pub(super) fn reap(&mut self) -> Option<Reaped> {
        loop {
            let completion = self.ring.completion().next()?;
            if completion.user_data() == WAKER {
                return Some(Reaped::Woken);
            }
            let number = completion.user_data() as usize;
            // The kernel gives back what it was given; anything else is not acted upon.
            let Some(task) = self.tasks.get_mut(number).and_then(Option::take) else { continue };
            self.free.push(number as u32);
            let result = match completion.result() {
                bytes @ 0.. => Ok(bytes as u32),
                error => Err(Errno::from_raw_os_error(-error)),
            };
            return Some(Reaped::Task(task, result));
        }
    }

    fn entry(&self, work: &mut Work, op: Op) -> Option<squeue::Entry> {
        Some(match op {
            Op::Read { into, range } => {
                let (address, length) = self.address(work, into, range.length())?;
                match self.is_fixed(work, into) {
                    true => {
                        opcode::ReadFixed::new(FILE, address, length, SLOTS).offset(range.offset()).build()
                    }
                    false => opcode::Read::new(FILE, address, length).offset(range.offset()).build(),
                }
            }
            Op::Write { from, range, durable } => {
                let (address, length) = self.address(work, from, range.length())?;
                let flags = if durable { RWF_DSYNC } else { 0 };
                match self.is_fixed(work, from) {
                    true => opcode::WriteFixed::new(FILE, address, length, SLOTS)
                        .offset(range.offset())
                        .rw_flags(flags)
                        .build(),
                    false => opcode::Write::new(FILE, address, length)
                        .offset(range.offset())
                        .rw_flags(flags)
                        .build(),
                }
            }
            Op::Clear { how, range } => {
                let how = match how {
                    Way::Punch => FallocateFlags::PUNCH_HOLE,
                    Way::ZeroRange => FallocateFlags::ZERO_RANGE,
                    // No operation of a ring: it was done, and others get their turn before the next step.
                    Way::Discard => return Some(opcode::Nop::new().build()),
                };
                let mode = (how | FallocateFlags::KEEP_SIZE).bits() as i32;
                opcode::Fallocate::new(FILE, range.length()).offset(range.offset()).mode(mode).build()
            }
            Op::Sync => opcode::Fsync::new(FILE).flags(FsyncFlags::DATASYNC).build(),
        })
    }

    /// The address of `length` bytes at `place`, if there are so many.
    fn address(&self, work: &mut Work, place: Place, length: u64) -> Option<(*mut u8, u32)> {
        let (base, room) = match work.memory(place) {
            Some((slot, at)) => (slot.address() + u64::from(at), slot.size().checked_sub(at)?),
            None if place == Place::Zeroes => (self.zeroes.address(), ZERO_STEP),
            None => return None,
        };
        let length = u32::try_from(length).ok().filter(|&length| length <= room)?;
        Some((base as *mut u8, length))
    }

    fn is_fixed(&self, work: &mut Work, place: Place) -> bool {
        self.registered && work.memory(place).is_some_and(|(slot, _)| self.slots.owns(slot))
    }
}

impl Ring {
    /// Waits until the kernel is done with all memory, and gives back the tasks that it had, with what it said to each.
    pub(super) fn quiesce(&mut self) -> Vec<(Task, Result<u32, Errno>)> {
        let mut tasks = Vec::new();
        while self.in_kernel() > 0 {
            if let Err(error) = self.ring.submit_and_wait(1) {
                // The last two: take what has come back first.
                if !matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) {
                    tracing::error!("a ring does not end ({error}); the memory of its lane is never freed");
                    break;
                }
            }
            while let Some(reaped) = self.reap() {
                if let Reaped::Task(task, result) = reaped {
                    tasks.push((task, result));
                }
            }
        }
        tasks
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        drop(self.quiesce());
        if self.in_kernel() > 0 {
            return;
        }
        // A closed ring is taken apart later, and would keep the file open and locked until then.
        let _ = self.ring.submitter().unregister_files();
        // SAFETY: needed so that memory which the kernel may still touch can be kept for ever, just above. It touches
        // none any more, and this is the one place that drops these fields.
        unsafe {
            ManuallyDrop::drop(&mut self.tasks);
            ManuallyDrop::drop(&mut self.slots);
            ManuallyDrop::drop(&mut self.zeroes);
        }
    }
}
