//! The client's library, used as a lane uses it: one slot, one operation, a short spin, then sleep.
//!
//! Bytes end in, and come from, the registered slot: the copy between a slot and a program belongs to the rung above.

use std::time::{Duration, Instant};

use kaeru_client::nbd::lane::Spin;
use kaeru_client::remote::{self, Answer, Remote};
use kaeru_client::session::AnyRemote;
use kaeru_client::with_remote;
use kaeru_common::fabric::Link;
use kaeru_common::fabric::buffer::Slot;
use kaeru_common::units::ByteRange;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Failure, PATIENCE, Rung};
use crate::bench::workload::{BLOCK, Op, pattern};

/// A lane of the client's library.
struct Lane<L> {
    remote: Remote<L>,
    spin: Spin,
    done: Vec<Answer>,
    /// The one slot, while it is not in the link.
    slot: Option<Slot>,
}

/// The rung on `remote`, whichever its fabric is.
pub fn rung(remote: AnyRemote, spin: Spin) -> Box<dyn Rung> {
    with_remote!(remote, remote => Box::new(Lane::new(remote, spin)))
}

impl<L: Link> Lane<L> {
    fn new(remote: Remote<L>, spin: Spin) -> Self {
        let mut slot = remote.slot();
        if let Some(slot) = &mut slot {
            slot.copy_from(0, &pattern());
        }
        Self { remote, spin, done: Vec::with_capacity(1), slot }
    }

    /// Moves one piece, which is what a block is unless it lies across two windows of the export.
    fn move_piece(&mut self, op: Op, piece: ByteRange) -> Result<(), Failure> {
        let slot = self.slot.take().ok_or_else(|| Failure::Fatal("the lane has no slot".into()))?;
        let posted = match op {
            Op::Read => self.remote.read(slot, piece, 0),
            Op::Write => self.remote.write(slot, piece, false, 0),
        };
        if let Err(refused) = posted {
            self.slot = Some(refused.into_slot());
            return Err(self.dead("the lane took no operation"));
        }
        self.remote.submit();
        let answer = self.wait()?;
        self.slot = answer.slot;
        match answer.result {
            Ok(_) => Ok(()),
            Err(remote::Failure::Store(status)) => Err(Failure::Failed(status.to_string())),
            Err(remote::Failure::Link(error)) => Err(self.dead(&error.to_string())),
        }
    }

    /// Spins for the budget, then sleeps, until the operation is complete.
    fn wait(&mut self) -> Result<Answer, Failure> {
        let start = Instant::now();
        loop {
            while !self.is_spun(start) {
                if let Some(answer) = self.poll() {
                    return Ok(answer);
                }
                std::hint::spin_loop();
            }
            let left = PATIENCE.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Err(Failure::Fatal(format!("the server did not answer within {PATIENCE:?}")));
            }
            if self.spin != Spin::Always && !self.remote.arm() {
                self.sleep(left)?;
            }
            if let Some(answer) = self.poll() {
                return Ok(answer);
            }
        }
    }

    fn is_spun(&self, start: Instant) -> bool {
        match self.spin {
            Spin::For(budget) => start.elapsed() >= budget,
            Spin::Always => start.elapsed() >= PATIENCE,
        }
    }

    fn poll(&mut self) -> Option<Answer> {
        self.remote.poll(&mut self.done);
        self.done.pop()
    }

    fn sleep(&self, at_most: Duration) -> Result<(), Failure> {
        let timeout = Timespec { tv_sec: at_most.as_secs() as i64, tv_nsec: at_most.subsec_nanos().into() };
        let mut fds = [PollFd::from_borrowed_fd(self.remote.wait_fd(), PollFlags::IN)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(Failure::Fatal(format!("could not wait for the lane: {error}"))),
        }
    }

    /// Every failure of an operation but the store's ends its link.
    fn dead(&self, what: &str) -> Failure {
        Failure::Fatal(match self.remote.down() {
            Some(down) => format!("the lane is dead: {down}"),
            None => what.to_owned(),
        })
    }
}

impl<L: Link> Rung for Lane<L> {
    fn name(&self) -> &'static str {
        "remote"
    }

    fn once(&mut self, op: Op, offset: u64) -> Result<(), Failure> {
        let block = ByteRange::new(offset, BLOCK.into())
            .ok_or_else(|| Failure::Failed(format!("no block lies at {offset}")))?;
        for piece in self.remote.pieces(block) {
            self.move_piece(op, piece)?;
        }
        Ok(())
    }
}
