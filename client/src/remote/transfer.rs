//! Whole transfers, for callers that can wait.

use std::io;
use std::time::{Duration, Instant};

use kaeru_common::error::Status;
use kaeru_common::fabric::buffer::Slot;
use kaeru_common::fabric::{Link, LinkDown, OpError, Refused};
use kaeru_common::units::ByteRange;
use rustix::event::{PollFd, PollFlags, poll};

use super::{Action, Answer, Extents, Failure, NotTaken, Remote};

/// Which way bytes go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    In,
    Out,
}

impl<L: Link> Remote<L> {
    /// Reads `into.len()` bytes from `offset`, waiting for them up to `patience`.
    ///
    /// # Errors
    /// [`RemoteError`]; the contents of `into` are unspecified then.
    pub fn read_at(&mut self, offset: u64, into: &mut [u8], patience: Duration) -> Result<(), RemoteError> {
        let range = self.range(offset, into.len())?;
        self.transfer(range, patience, Direction::In, |slot, piece| {
            let at = (piece.offset() - offset) as usize;
            slot.copy_to(0, &mut into[at..at + piece.length() as usize]);
        })
    }

    /// Writes `bytes` at `offset`, waiting until they are placed, up to `patience`.
    ///
    /// # Errors
    /// [`RemoteError`]; any part of the range may have been written then.
    pub fn write_at(&mut self, offset: u64, bytes: &[u8], patience: Duration) -> Result<(), RemoteError> {
        let range = self.range(offset, bytes.len())?;
        self.transfer(range, patience, Direction::Out, |slot, piece| {
            let at = (piece.offset() - offset) as usize;
            slot.copy_from(0, &bytes[at..at + piece.length() as usize]);
        })
    }

    fn range(&self, offset: u64, length: usize) -> Result<ByteRange, RemoteError> {
        ByteRange::new(offset, length as u64)
            .filter(|range| range.fits(self.size))
            .ok_or(RemoteError::OutOfRange { offset, length: length as u64, size: self.size })
    }

    /// Does what moves no data on a range, waiting for it up to `patience`. Gives what [`Action::Extents`] found.
    ///
    /// # Errors
    /// [`RemoteError`]; also [`Status::NotSupported`] where there are no commands, see [`Remote::takes_commands`].
    pub fn perform(
        &mut self,
        action: Action,
        range: ByteRange,
        patience: Duration,
    ) -> Result<Extents, RemoteError> {
        if !self.takes_commands() {
            return Err(RemoteError::Store(Status::NotSupported));
        }
        match self.command(action, range, 0) {
            Ok(()) => {}
            Err(NotTaken::Full) => return Err(RemoteError::NoSlot),
            Err(NotTaken::Dead) => return Err(self.failure(OpError::LinkDead.into())),
        }
        let mut done = Vec::with_capacity(1);
        self.submit();
        self.wait_done(&mut done, Instant::now() + patience, patience)?;
        match done.pop() {
            Some(Answer { result: Ok(_), extents, .. }) => Ok(extents),
            Some(Answer { result: Err(error), .. }) => Err(self.failure(error)),
            None => Err(self.failure(OpError::LinkDead.into())),
        }
    }

    /// Moves a range piece by piece with as many in flight as there are slots. `copy` fills the slot of a write before
    /// it goes and empties the slot of a read after it came.
    fn transfer(
        &mut self,
        range: ByteRange,
        patience: Duration,
        direction: Direction,
        mut copy: impl FnMut(&mut Slot, ByteRange),
    ) -> Result<(), RemoteError> {
        let deadline = Instant::now() + patience;
        let mut done = Vec::with_capacity(64);
        let mut left = self.pieces(range).peekable();
        let mut in_flight = 0usize;
        let mut failed = None;
        loop {
            while failed.is_none()
                && let Some(&piece) = left.peek()
                && let Some(mut slot) = self.slot()
            {
                let tag = piece.offset();
                let posted = match direction {
                    Direction::Out => {
                        copy(&mut slot, piece);
                        self.write(slot, piece, false, tag)
                    }
                    Direction::In => self.read(slot, piece, tag),
                };
                match posted {
                    Ok(()) => in_flight += 1,
                    Err(Refused::Full(_)) => break,
                    Err(Refused::Dead(_)) => failed = Some(OpError::LinkDead.into()),
                }
                left.next();
            }
            if in_flight == 0 {
                return match failed {
                    Some(error) => Err(self.failure(error)),
                    None if left.peek().is_some() => Err(RemoteError::NoSlot),
                    None => Ok(()),
                };
            }
            self.submit();
            self.wait_done(&mut done, deadline, patience)?;
            for Answer { tag, slot, result, .. } in done.drain(..) {
                in_flight -= 1;
                match (result, slot, direction) {
                    (Err(error), ..) => failed = failed.or(Some(error)),
                    (Ok(length), Some(mut slot), Direction::In) => {
                        let piece = ByteRange::new(tag, length.into()).unwrap_or(ByteRange::EMPTY);
                        copy(&mut slot, piece);
                    }
                    _ => {}
                }
            }
        }
    }

    /// Waits for at least one completion.
    fn wait_done(
        &mut self,
        done: &mut Vec<Answer>,
        deadline: Instant,
        patience: Duration,
    ) -> Result<(), RemoteError> {
        while !{
            self.poll(done);
            !done.is_empty()
        } {
            if Instant::now() >= deadline {
                // What is in flight would complete into slots that nobody waits for any more.
                self.close();
                return Err(RemoteError::TimedOut(patience));
            }
            if !self.arm() {
                let left = deadline.saturating_duration_since(Instant::now());
                let timeout = left.try_into().map_err(|_| RemoteError::TimedOut(patience))?;
                let fd = self.wait_fd();
                match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)) {
                    Ok(_) | Err(rustix::io::Errno::INTR) => {}
                    Err(error) => return Err(RemoteError::Wait(error.into())),
                }
                self.woken();
            }
        }
        Ok(())
    }

    fn failure(&self, error: Failure) -> RemoteError {
        match error {
            Failure::Store(status) => RemoteError::Store(status),
            Failure::Link(error) => RemoteError::Link(self.down().cloned().unwrap_or(error.into())),
        }
    }
}

/// Why a transfer did not happen.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// The range does not lie in the export.
    #[error("{length} bytes at {offset} do not lie in an export of {size} bytes")]
    OutOfRange {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        length: u64,
        /// Size of the export.
        size: u64,
    },
    /// Every slot, or the whole link, is taken by operations of the caller's own.
    #[error("the lane has no free slot: the caller holds all of them")]
    NoSlot,
    /// The link died.
    #[error("the lane is dead: {0}")]
    Link(LinkDown),
    /// The server's store failed.
    #[error("{0}")]
    Store(Status),
    /// Nothing came for too long.
    #[error("the server did not answer within {0:?}; the lane was closed")]
    TimedOut(Duration),
    /// Waiting itself failed.
    #[error("could not wait for the lane: {0}")]
    Wait(io::Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transfer_without_a_slot_is_an_error_and_not_done() {
        use kaeru_common::fabric::tcp::{Tcp, TcpListener};
        use kaeru_common::fabric::{Fabric, Incoming, LinkConfig, Listener, RegionInfo};
        use kaeru_common::units::LaneToken;

        use super::super::Layout;

        let mut listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, config) = (listener.address(), LinkConfig { slots: 2, ..LinkConfig::default() });
        let patience = Duration::from_secs(5);
        let connect =
            std::thread::spawn(move || Tcp.connect(address, &LaneToken([1; 16]), &config, patience).unwrap());
        let incoming = listener.accept(patience).unwrap().unwrap();
        let _server = incoming.accept(&Tcp.domain().unwrap(), &config).unwrap();
        let layout = Layout::Direct([RegionInfo { address: 1000, key: 7, length: 64 }].into());
        let mut remote = Remote::new(connect.join().unwrap(), layout, 64).unwrap();
        let _held = (remote.slot().unwrap(), remote.slot().unwrap());
        assert!(matches!(remote.write_at(0, &[1; 64], patience), Err(RemoteError::NoSlot)));
        assert!(matches!(remote.read_at(0, &mut [0; 64], patience), Err(RemoteError::NoSlot)));
    }
}
