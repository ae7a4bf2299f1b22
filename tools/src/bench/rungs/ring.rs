//! Many direct reads and writes of one file at once, by io_uring. This is the one place of the tools where addresses are
//! given to the kernel; while it may use one, the memory behind it is owned by the ring.
#![expect(unsafe_code, reason = "the kernel is given the addresses of the blocks")]

use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode};
use kaeru_common::fabric::buffer::Memory;
use rustix::io::Errno;

/// How long the kernel may take to give back what it has, when the ring is dropped.
const CLOSING: Duration = Duration::from_secs(5);

/// See the module.
pub(super) struct Ring {
    ring: ManuallyDrop<IoUring>,
    file: ManuallyDrop<File>,
    /// A block for each operation, by its tag.
    memory: ManuallyDrop<Memory>,
    block: u32,
    /// By tag: whether the kernel has it.
    in_kernel: Box<[bool]>,
}

impl Ring {
    /// A ring for `depth` operations of `block` bytes on `file`.
    pub(super) fn new(file: File, depth: u32, block: u32) -> io::Result<Self> {
        let memory = Memory::anonymous(depth as usize * block as usize)?;
        let ring = IoUring::builder().dontfork().build(depth)?;
        Ok(Self {
            ring: ManuallyDrop::new(ring),
            file: ManuallyDrop::new(file),
            memory: ManuallyDrop::new(memory),
            block,
            in_kernel: vec![false; depth as usize].into(),
        })
    }

    /// Bytes of an operation.
    pub(super) fn block(&self) -> u32 {
        self.block
    }

    /// Puts `bytes` into the block of every operation; to be called while nothing is under way.
    pub(super) fn fill(&self, bytes: &[u8]) {
        for tag in 0..self.in_kernel.len() {
            self.memory.copy_from(tag * self.block as usize, bytes);
        }
    }

    /// Takes an operation and tells the kernel of it at once, as fio does. Whether there was room.
    pub(super) fn push(&mut self, write: bool, offset: u64, tag: u32) -> bool {
        let Some(in_kernel) = self.in_kernel.get_mut(tag as usize).filter(|in_kernel| !**in_kernel) else {
            return false;
        };
        let address = self.memory.address() + u64::from(tag) * u64::from(self.block);
        let file = Fd(self.file.as_raw_fd());
        let entry = match write {
            true => opcode::Write::new(file, address as *const u8, self.block).offset(offset).build(),
            false => opcode::Read::new(file, address as *mut u8, self.block).offset(offset).build(),
        };
        // SAFETY: needed since the crate cannot know how long the memory of an entry lives. The block lies inside
        // `memory`, belongs to this tag alone until its completion is reaped, and is freed only when the kernel has
        // given everything back; see `drop`.
        let pushed = unsafe { self.ring.submission().push(&entry.user_data(tag.into())) }.is_ok();
        *in_kernel = pushed;
        // What the kernel does not take now goes with the next call.
        let _ = self.ring.submit();
        pushed
    }

    /// Waits for something to reap, up to `patience`.
    pub(super) fn wait(&mut self, patience: Duration) -> io::Result<()> {
        let timeout = Timespec::new().sec(patience.as_secs()).nsec(patience.subsec_nanos());
        let args = SubmitArgs::new().timespec(&timeout);
        match self.ring.submitter().submit_with_args(1, &args) {
            Ok(_) => Ok(()),
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::TIME | Errno::INTR | Errno::AGAIN | Errno::BUSY) => Ok(()),
                _ => Err(error),
            },
        }
    }

    /// An operation that is over: its tag, and the bytes moved.
    pub(super) fn reap(&mut self) -> Option<(u32, Result<u32, Errno>)> {
        let completion = self.ring.completion().next()?;
        let tag = completion.user_data() as u32;
        if let Some(in_kernel) = self.in_kernel.get_mut(tag as usize) {
            *in_kernel = false;
        }
        let result = match completion.result() {
            moved @ 0.. => Ok(moved as u32),
            error => Err(Errno::from_raw_os_error(-error)),
        };
        Some((tag, result))
    }
}

impl Drop for Ring {
    /// Waits until the kernel has given all memory back. Should it not, all of it is leaked: it may still be written to.
    fn drop(&mut self) {
        let deadline = Instant::now() + CLOSING;
        while self.in_kernel.contains(&true) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || self.wait(left).is_err() {
                return;
            }
            while self.reap().is_some() {}
        }
        // SAFETY: needed since the order and the condition matter: the kernel has nothing of ours any more, and none of
        // the three is touched again.
        unsafe {
            ManuallyDrop::drop(&mut self.ring);
            ManuallyDrop::drop(&mut self.file);
            ManuallyDrop::drop(&mut self.memory);
        }
    }
}
