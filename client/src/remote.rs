//! An export as one lane reaches it: byte ranges in, one-sided operations out.
//!
//! This is the only place that knows how an export's bytes lie in the peer's memory, and what flush and force-unit-access mean
//! on it. Front ends sit on top and know nothing of regions; fabrics sit below and know nothing of exports.
//!
//! A front end cuts a range with [`Remote::pieces`], takes a [`Slot`] for each piece, and calls [`Remote::read`] or
//! [`Remote::write`]; [`Remote::poll`] gives the slots back. [`Remote::read_at`] and [`Remote::write_at`] do all of it
//! for callers that can wait.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kaeru_common::fabric::buffer::Slot;
use kaeru_common::fabric::{Completion, Link, LinkDown, Op, OpError, Refused, RegionInfo, RemoteRange};
use kaeru_common::units::{ByteRange, Pieces};
use rustix::event::{PollFd, PollFlags, poll};

/// Where an export's bytes lie in the server's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Consecutive windows over the export, all of equal length but the last.
    Direct(Arc<[RegionInfo]>),
    /// Nowhere: every read takes zeroes from `source`, every write goes to `sink`, and neither is kept.
    Null {
        /// Zeroes.
        source: RegionInfo,
        /// Where writes end.
        sink: RegionInfo,
    },
}

/// Why a granted layout cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the server granted regions that do not cover the export: {0}; its version may not fit this client")]
pub struct BadLayout(&'static str);

impl Layout {
    /// Checks that the layout covers `size` bytes and gives the length that no piece may cross a multiple of.
    ///
    /// # Errors
    /// Where it does not: a server's grant is input like any other.
    fn check(&self, size: u64) -> Result<(u64, u64), BadLayout> {
        match self {
            Self::Null { source, sink } => match source.length.min(sink.length) {
                0 => Err(BadLayout("an empty region")),
                longest => Ok((u64::MAX, longest)),
            },
            Self::Direct(regions) => {
                let (first, last) = regions.first().zip(regions.last()).ok_or(BadLayout("no region"))?;
                let equal = regions[..regions.len() - 1].iter().all(|region| region.length == first.length);
                let whole = first.length.checked_mul(regions.len() as u64 - 1);
                match whole.and_then(|whole| whole.checked_add(last.length)) {
                    Some(total)
                        if equal && total >= size && first.length > 0 && last.length <= first.length =>
                    {
                        Ok((first.length, first.length))
                    }
                    _ => Err(BadLayout("windows that are unequal or too short")),
                }
            }
        }
    }

    /// Where `piece`, which crosses no window, lies for an operation of this kind.
    fn place(&self, op: Op, piece: ByteRange, window: u64) -> Option<RemoteRange> {
        let length = u32::try_from(piece.length()).ok()?;
        match self {
            Self::Direct(regions) => {
                let region = regions.get(usize::try_from(piece.offset() / window).ok()?)?;
                region.range(piece.offset() % window, length)
            }
            Self::Null { source, .. } if op == Op::Read => source.range(0, length),
            Self::Null { sink, .. } => sink.range(0, length),
        }
    }
}

/// One lane's way to an export.
#[derive(Debug)]
pub struct Remote<L> {
    link: L,
    layout: Layout,
    size: u64,
    window: u64,
    piece: u64,
}

impl<L: Link> Remote<L> {
    /// An export of `size` bytes that lies as `layout` says, behind `link`.
    ///
    /// # Errors
    /// [`BadLayout`] where the layout does not cover the export.
    pub fn new(link: L, layout: Layout, size: u64) -> Result<Self, BadLayout> {
        let (window, longest) = layout.check(size)?;
        let piece = u64::from(link.pool().slot_size()).min(longest);
        Ok(Self { link, layout, size, window, piece })
    }

    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The link below, for its limits and its pool.
    pub fn link(&self) -> &L {
        &self.link
    }

    /// The pieces in which `range` has to be asked for, in order: each fits a slot and lies in one window.
    pub fn pieces(&self, range: ByteRange) -> Pieces {
        range.pieces(self.piece, self.window)
    }

    /// Bytes of the longest piece.
    pub fn longest_piece(&self) -> u64 {
        self.piece
    }

    /// A free slot, or `None` while all are in use.
    pub fn slot(&self) -> Option<Slot> {
        self.link.pool().take()
    }

    /// Reads one piece into the start of `slot`.
    ///
    /// # Errors
    /// [`Refused`] gives the slot back.
    pub fn read(&mut self, slot: Slot, piece: ByteRange, tag: u64) -> Result<(), Refused> {
        match self.layout.place(Op::Read, piece, self.window) {
            Some(from) => self.link.read(slot, from, tag),
            None => Err(Refused::Dead(slot)),
        }
    }

    /// Writes one piece from the start of `slot`. Complete means placed in the server's memory, so on a RAM export
    /// there is nothing that flush or force-unit-access could add.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn write(&mut self, slot: Slot, piece: ByteRange, tag: u64) -> Result<(), Refused> {
        match self.layout.place(Op::Write, piece, self.window) {
            Some(to) => self.link.write(slot, to, tag),
            None => Err(Refused::Dead(slot)),
        }
    }

    /// Hands what was taken to the network, with one doorbell.
    pub fn submit(&mut self) {
        self.link.submit();
    }

    /// Finished operations; see [`Link::poll`].
    pub fn poll(&mut self, done: &mut Vec<Completion>) -> bool {
        self.link.poll(done)
    }

    /// See [`Link::arm`].
    pub fn arm(&mut self) -> bool {
        self.link.arm()
    }

    /// See [`Link::woken`].
    pub fn woken(&mut self) {
        self.link.woken();
    }

    /// See [`Link::wait_fd`].
    pub fn wait_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.link.wait_fd()
    }

    /// Why the link is dead, if it is.
    pub fn down(&self) -> Option<&LinkDown> {
        self.link.down()
    }

    /// Ends the link; what is in flight comes back through [`Self::poll`].
    pub fn close(&mut self) {
        self.link.close();
    }

    /// Reads `into.len()` bytes from `offset`, waiting for them up to `patience`.
    ///
    /// # Errors
    /// [`RemoteError`]; the contents of `into` are unspecified then.
    pub fn read_at(&mut self, offset: u64, into: &mut [u8], patience: Duration) -> Result<(), RemoteError> {
        let range = self.range(offset, into.len())?;
        self.transfer(range, patience, Op::Read, |slot, piece| {
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
        self.transfer(range, patience, Op::Write, |slot, piece| {
            let at = (piece.offset() - offset) as usize;
            slot.copy_from(0, &bytes[at..at + piece.length() as usize]);
        })
    }

    fn range(&self, offset: u64, length: usize) -> Result<ByteRange, RemoteError> {
        ByteRange::new(offset, length as u64)
            .filter(|range| range.fits(self.size))
            .ok_or(RemoteError::OutOfRange { offset, length: length as u64, size: self.size })
    }

    /// Moves a range piece by piece with as many in flight as there are slots. `copy` fills the slot of a write before
    /// it goes and empties the slot of a read after it came.
    fn transfer(
        &mut self,
        range: ByteRange,
        patience: Duration,
        op: Op,
        mut copy: impl FnMut(&mut Slot, ByteRange),
    ) -> Result<(), RemoteError> {
        let deadline = Instant::now() + patience;
        let mut done = Vec::with_capacity(64);
        // Pieces complete in the order of posting, so a second walk over them says which one came.
        let (mut to_post, mut to_finish) = (self.pieces(range).peekable(), self.pieces(range));
        let mut in_flight = 0usize;
        let mut failed = None;
        loop {
            while failed.is_none()
                && let Some(&piece) = to_post.peek()
                && let Some(mut slot) = self.slot()
            {
                let posted = match op {
                    Op::Write => {
                        copy(&mut slot, piece);
                        self.write(slot, piece, 0)
                    }
                    _ => self.read(slot, piece, 0),
                };
                match posted {
                    Ok(()) => in_flight += 1,
                    Err(Refused::Full(_)) => break,
                    Err(Refused::Dead(_)) => failed = Some(OpError::LinkDead),
                }
                to_post.next();
            }
            if in_flight == 0 {
                return match failed {
                    Some(error) => Err(self.failure(error)),
                    None if to_post.peek().is_some() => Err(RemoteError::NoSlot),
                    None => Ok(()),
                };
            }
            self.submit();
            self.wait_done(&mut done, deadline, patience)?;
            for mut completion in done.drain(..) {
                in_flight -= 1;
                match (completion.result, to_finish.next()) {
                    (Ok(_), Some(piece)) if op == Op::Read => copy(&mut completion.slot, piece),
                    (Ok(_), _) => {}
                    (Err(error), _) => failed = failed.or(Some(error)),
                }
            }
        }
    }

    /// Waits for at least one completion.
    fn wait_done(
        &mut self,
        done: &mut Vec<Completion>,
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

    fn failure(&self, error: OpError) -> RemoteError {
        RemoteError::Link(self.down().cloned().unwrap_or(LinkDown::Refused(error)))
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

    fn region(address: u64, length: u64) -> RegionInfo {
        RegionInfo { address, key: 7, length }
    }

    #[test]
    fn a_transfer_without_a_slot_is_an_error_and_not_done() {
        use kaeru_common::fabric::tcp::{Tcp, TcpListener};
        use kaeru_common::fabric::{Fabric, Incoming, LinkConfig, Listener};
        use kaeru_common::units::LaneToken;

        let mut listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, config) = (listener.address(), LinkConfig { slots: 2, ..LinkConfig::default() });
        let patience = Duration::from_secs(5);
        let connect =
            std::thread::spawn(move || Tcp.connect(address, &LaneToken([1; 16]), &config, patience).unwrap());
        let incoming = listener.accept(patience).unwrap().unwrap();
        let _server = incoming.accept(&Tcp.domain().unwrap(), &config).unwrap();
        let layout = Layout::Direct([region(1000, 64)].into());
        let mut remote = Remote::new(connect.join().unwrap(), layout, 64).unwrap();
        let _held = (remote.slot().unwrap(), remote.slot().unwrap());
        assert!(matches!(remote.write_at(0, &[1; 64], patience), Err(RemoteError::NoSlot)));
        assert!(matches!(remote.read_at(0, &mut [0; 64], patience), Err(RemoteError::NoSlot)));
    }

    #[test]
    fn windows_have_to_be_equal_and_to_cover_the_export() {
        let direct =
            |lengths: &[u64]| Layout::Direct(lengths.iter().map(|&length| region(0, length)).collect());
        assert_eq!(direct(&[100]).check(100), Ok((100, 100)));
        assert_eq!(direct(&[64, 64, 10]).check(138), Ok((64, 64)));
        assert!(direct(&[64, 64, 10]).check(139).is_err());
        assert!(direct(&[64, 63, 64]).check(1).is_err());
        assert!(direct(&[64, 65]).check(1).is_err());
        assert!(direct(&[]).check(0).is_err());
        assert!(direct(&[0]).check(0).is_err());
        assert!(direct(&[u64::MAX, u64::MAX, 1]).check(1).is_err());
    }

    #[test]
    fn a_piece_is_placed_in_its_window() {
        let layout = Layout::Direct([region(1000, 64), region(5000, 64), region(9000, 10)].into());
        let place = |offset, length| layout.place(Op::Write, ByteRange::new(offset, length).unwrap(), 64);
        assert_eq!(place(0, 64), Some(RemoteRange { address: 1000, key: 7, length: 64 }));
        assert_eq!(place(70, 8), Some(RemoteRange { address: 5006, key: 7, length: 8 }));
        assert_eq!(place(137, 1), Some(RemoteRange { address: 9009, key: 7, length: 1 }));
        assert_eq!(place(137, 2), None);
        assert_eq!(place(192, 1), None);
    }

    #[test]
    fn nothing_reads_from_the_source_and_writes_to_the_sink() {
        let layout = Layout::Null { source: region(1000, 64), sink: region(2000, 64) };
        let piece = ByteRange::new(1 << 50, 64).unwrap();
        assert_eq!(layout.check(u64::MAX), Ok((u64::MAX, 64)));
        assert_eq!(layout.place(Op::Read, piece, u64::MAX).map(|range| range.address), Some(1000));
        assert_eq!(layout.place(Op::Write, piece, u64::MAX).map(|range| range.address), Some(2000));
    }
}
