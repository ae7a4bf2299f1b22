//! An export as one lane reaches it: byte ranges in, one-sided operations and messages out.
//!
//! This is the only place that knows how an export's bytes are reached, and what flush and force-unit-access mean on it.
//! Front ends sit on top and know nothing of regions; fabrics sit below and know nothing of exports.
//!
//! A front end cuts a range with [`Remote::pieces`], takes a [`Slot`] for each piece, and calls [`Remote::read`] or
//! [`Remote::write`]; [`Remote::poll`] gives the slots back. Where [`Remote::takes_commands`], [`Remote::command`] does
//! all that moves no data. `read_at` and its like, in `transfer`, do all of it for callers that can wait.
//!
//! `direct`: RAM, by one-sided operations alone. `staged`: files and disks, by messages about the server's slots.

mod direct;
mod raw;
mod staged;
mod transfer;

use std::collections::VecDeque;
use std::time::Duration;

use kaeru_common::codec::BoundedList;
use kaeru_common::error::Status;
use kaeru_common::fabric::buffer::Slot;
use kaeru_common::fabric::{Completion, Link, LinkDown, Op, OpError, Refused};
use kaeru_common::units::{ByteRange, Pieces};
pub use kaeru_common::wire::io::{Action, Extent, REPLY_EXTENTS};

pub use self::direct::{BadLayout, Layout};
pub use self::raw::Raw;
use self::staged::Staged;
pub use self::staged::{StagedError, staged_link};
pub use self::transfer::RemoteError;

/// What a server found out about holes, for one request.
pub type Extents = BoundedList<Extent, REPLY_EXTENTS>;

/// One lane's way to an export.
#[derive(Debug)]
pub struct Remote<L> {
    link: L,
    way: Way,
    size: u64,
    window: u64,
    piece: u64,
    /// What the link gave back in this poll.
    completions: Vec<Completion>,
    answers: VecDeque<Answer>,
}

#[derive(Debug)]
enum Way {
    Direct(Layout),
    Staged(Staged),
}

/// The end of one operation.
#[derive(Debug)]
#[must_use = "an answer carries the slot and whether the bytes arrived"]
pub struct Answer {
    /// The caller's tag.
    pub tag: u64,
    /// The slot of a read or a write, back in the caller's hands.
    pub slot: Option<Slot>,
    /// The number of bytes moved, or why they were not.
    pub result: Result<u32, Failure>,
    /// For [`Action::Extents`]: what was found, from the start of the range on.
    pub extents: Extents,
    /// What the server said of the time; nothing where no server had a hand in it.
    pub spent: Option<Spent>,
}

/// Where a request's time went on the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spent {
    /// From its arrival until the store had it.
    pub waited: Duration,
    /// In the store.
    pub stored: Duration,
}

/// Why an operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The lane is dead.
    #[error(transparent)]
    Link(#[from] OpError),
    /// The server's store failed; the lane goes on.
    #[error(transparent)]
    Store(#[from] Status),
}

impl<L: Link> Remote<L> {
    /// An export of `size` bytes that lies as `layout` says, behind `link`.
    ///
    /// # Errors
    /// [`BadLayout`] where the layout does not cover the export.
    pub fn new(link: L, layout: Layout, size: u64) -> Result<Self, BadLayout> {
        let (window, longest) = layout.check(size)?;
        let piece = u64::from(link.pool().slot_size()).min(longest);
        Ok(Self::over(link, Way::Direct(layout), size, window, piece))
    }

    /// An export of `size` bytes that the server keeps in a file or on a disk, behind `link`, which was built as
    /// [`staged_link`] says. Waits up to `patience` for the server's slots.
    ///
    /// # Errors
    /// [`StagedError`] where the server names none.
    pub fn staged(mut link: L, size: u64, patience: Duration) -> Result<Self, StagedError> {
        let staged = Staged::open(&mut link, patience)?;
        let piece = u64::from(link.pool().slot_size().min(staged.slot_size()));
        Ok(Self::over(link, Way::Staged(staged), size, u64::MAX, piece))
    }

    fn over(link: L, way: Way, size: u64, window: u64, piece: u64) -> Self {
        let depth = link.limits().depth as usize;
        let operations = depth + link.messages().slots() as usize;
        let completions = Vec::with_capacity(depth.clamp(1, 128));
        Self { link, way, size, window, piece, completions, answers: VecDeque::with_capacity(operations) }
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
        match &mut self.way {
            Way::Direct(layout) => match layout.place(Op::Read, piece, self.window) {
                Some(from) => self.link.read(slot, from, tag),
                None => Err(Refused::Dead(slot)),
            },
            Way::Staged(staged) => staged.read(&mut self.link, slot, piece, tag),
        }
    }

    /// Writes one piece from the start of `slot`. Complete means that the server's side has it: in its memory on a RAM
    /// export, so that there is nothing that `durable` could add; in its file or disk on others, and with `durable` past
    /// all caches that a loss of power would empty.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn write(&mut self, slot: Slot, piece: ByteRange, durable: bool, tag: u64) -> Result<(), Refused> {
        match &mut self.way {
            Way::Direct(layout) => match layout.place(Op::Write, piece, self.window) {
                Some(to) => self.link.write(slot, to, tag),
                None => Err(Refused::Dead(slot)),
            },
            Way::Staged(staged) => staged.write(&mut self.link, slot, piece, durable, tag),
        }
    }

    /// Whether [`Self::command`] means anything here. Where it does not, a flush has nothing to do, zeroes are written
    /// like other bytes, and all is data.
    pub fn takes_commands(&self) -> bool {
        matches!(self.way, Way::Staged(_))
    }

    /// Has the server do what moves no data, on a range of any length.
    ///
    /// # Errors
    /// [`NotTaken`]; only where [`Self::takes_commands`] is anything ever taken.
    pub fn command(&mut self, action: Action, range: ByteRange, tag: u64) -> Result<(), NotTaken> {
        match &mut self.way {
            Way::Direct(_) => Err(NotTaken::Dead),
            Way::Staged(staged) => staged.command(&mut self.link, action, range, tag),
        }
    }

    /// Hands what was taken to the network, with one doorbell.
    pub fn submit(&mut self) {
        self.link.submit();
    }

    /// Moves finished operations to `done`, as many as its spare capacity holds. Returns whether anything happened.
    pub fn poll(&mut self, done: &mut Vec<Answer>) -> bool {
        let moved = self.link.poll(&mut self.completions);
        match &mut self.way {
            Way::Direct(_) => self.answers.extend(self.completions.drain(..).map(Answer::from)),
            Way::Staged(staged) => staged.digest(&mut self.link, &mut self.completions, &mut self.answers),
        }
        let count = self.answers.len().min(done.capacity() - done.len());
        done.extend(self.answers.drain(..count));
        moved || count > 0
    }

    /// See [`Link::arm`].
    pub fn arm(&mut self) -> bool {
        !self.answers.is_empty() || self.link.arm()
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
}

/// Why a command was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotTaken {
    /// The lane is as full as it may be: poll, then try again.
    Full,
    /// The lane is dead.
    Dead,
}

impl From<Completion> for Answer {
    fn from(completion: Completion) -> Self {
        let Completion { tag, slot, result, .. } = completion;
        let (slot, result) = (Some(slot), result.map_err(Failure::Link));
        Self { tag, slot, result, extents: Extents::default(), spent: None }
    }
}
