//! A job as a sequence of operations of the kernel: which comes next, and what the answer to one means. It touches no
//! file itself, so that the engines differ only in how they carry an [`Op`] out.
//!
//! Three things happen here and nowhere else: a short transfer is continued, a piece that is not aligned for direct
//! I/O goes through a bounce buffer (read, patch, write), and a way to clear bytes that the file system lacks is
//! replaced by the next best one.

use kaeru_common::error::Status;
use kaeru_common::fabric::buffer::{Slot, SlotPool};
use kaeru_common::units::ByteRange;
use rustix::io::Errno;

use super::backing::{Backing, Way};
use super::engine::{Action, Done, Job};
use super::range_lock::Mode;
use super::syncs::Arrival;

/// Bytes of a bounce buffer: the longest unaligned piece.
pub(super) const BOUNCE: u32 = 64 << 10;

/// Bytes of zeroes that are written at once.
pub(super) const ZERO_STEP: u32 = 256 << 10;

/// Bytes that are deallocated or zeroed by the file system at once, so that no operation lasts for ever.
const CLEAR_STEP: u64 = 1 << 30;

/// Times in a row that the kernel may ask to try again.
const PATIENCE: u8 = 100;

/// One operation of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    /// From the file.
    Read { into: Place, range: ByteRange },
    /// To the file.
    Write { from: Place, range: ByteRange, durable: bool },
    /// By the file system or the device.
    Clear { how: Way, range: ByteRange },
    /// Everything so far survives a loss of power.
    Sync,
}

/// Where the bytes of an [`Op`] are in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In the slot of the job, from here.
    Slot(u32),
    /// In the bounce buffer, from here.
    Bounce(u32),
    /// Nowhere: they are zeroes.
    Zeroes,
}

/// What to do next for a job.
#[derive(Debug)]
pub(super) enum Next {
    /// This, and then tell [`Work::answered`].
    Op(Op),
    /// Nothing: it is over.
    Over(Result<u32, Status>),
}

/// A job under way.
#[derive(Debug)]
pub(super) struct Work {
    job: Job,
    /// Everything before this is finished.
    at: u64,
    /// An unaligned piece on its way through the bounce buffer.
    piece: Option<Piece>,
    bounce: Option<Slot>,
    asked: Option<Op>,
    /// When everything was written that is to be synced.
    arrival: Option<Arrival>,
    synced: bool,
    tries: u8,
    failed: Option<Status>,
}

/// Whole blocks around some unaligned bytes.
#[derive(Clone, Copy, Debug)]
struct Piece {
    /// The bytes that the job is about.
    wanted: ByteRange,
    /// The blocks that hold them.
    blocks: ByteRange,
    /// Bytes of the blocks that were read.
    read: u64,
    /// Bytes of the blocks that were written.
    written: u64,
}

impl Piece {
    /// Where the wanted bytes begin in the blocks.
    fn inside(self) -> usize {
        (self.wanted.offset() - self.blocks.offset()) as usize
    }

    /// Whether nothing of it was written yet.
    fn is_unwritten(self) -> bool {
        self.written == 0
    }
}

/// The bounce buffers of an engine, made when the first is needed: most lanes never need one.
#[derive(Debug)]
pub(super) struct Bounces {
    count: u32,
    pool: Option<SlotPool>,
}

impl Bounces {
    /// Up to `count` buffers. What is never used takes no memory.
    pub(super) fn new(count: u32) -> Self {
        Self { count, pool: None }
    }

    fn take(&mut self) -> Option<Slot> {
        if self.pool.is_none() {
            self.pool = SlotPool::new(self.count, BOUNCE).ok();
        }
        self.pool.as_ref()?.take()
    }
}

impl Work {
    /// Begins a job. What is wrong with it is told by the first [`Self::next`].
    pub(super) fn new(job: Job, backing: &Backing) -> Self {
        let failed = refusal(&job, backing).err();
        let at = job.range.offset();
        Self {
            job,
            at,
            piece: None,
            bounce: None,
            asked: None,
            arrival: None,
            synced: false,
            tries: 0,
            failed,
        }
    }

    /// The blocks that no other lane may change in part meanwhile, and whether this job changes some in part.
    pub(super) fn lock(&self, backing: &Backing) -> Option<(ByteRange, Mode)> {
        let align = u64::from(backing.align);
        if align == 1 || self.failed.is_some() || !self.job.action.writes() || self.job.range.length() == 0 {
            return None;
        }
        let blocks = around(self.job.range, align);
        let partial = blocks != self.job.range && !matches!(self.job.action, Action::Trim { .. });
        Some((blocks, if partial { Mode::Exclusive } else { Mode::Shared }))
    }

    /// Whether the job moves the bytes of a slot.
    pub(super) fn transfers(&self) -> bool {
        matches!(self.job.action, Action::Read | Action::Write { .. })
    }

    /// The memory of a [`Place`]: a slot and where in it. `None` for zeroes.
    pub(super) fn memory(&mut self, place: Place) -> Option<(&mut Slot, u32)> {
        match place {
            Place::Slot(at) => self.job.slot.as_mut().map(|slot| (slot, at)),
            Place::Bounce(at) => self.bounce.as_mut().map(|slot| (slot, at)),
            Place::Zeroes => None,
        }
    }

    /// The end of the job.
    pub(super) fn finish(self, result: Result<u32, Status>) -> Done {
        Done { tag: self.job.tag, slot: self.job.slot, result }
    }

    /// What to do next.
    pub(super) fn next(&mut self, backing: &Backing, bounces: &mut Bounces) -> Next {
        if let Some(status) = self.failed {
            return Next::Over(Err(status));
        }
        let op = match self.job.action {
            Action::Flush if self.synced => None,
            Action::Flush => Some(Op::Sync),
            Action::Read | Action::Write { .. } => self.next_transfer(backing),
            Action::Trim { .. } | Action::Zero { .. } => self.next_clearing(backing),
        };
        match op {
            Some(op) => {
                if let Err(status) = self.provide(bounces) {
                    return Next::Over(Err(status));
                }
                let op = backing.shortened(op);
                self.asked = Some(op);
                if op == Op::Sync {
                    self.arrival.get_or_insert_with(|| backing.syncs.arrive());
                }
                Next::Op(op)
            }
            None => Next::Over(Ok(self.moved())),
        }
    }

    /// Takes the kernel's answer to the operation that [`Self::next`] gave: bytes, or an error.
    pub(super) fn answered(&mut self, result: Result<u32, Errno>, backing: &Backing) {
        let Some(op) = self.asked.take() else { return };
        match result {
            Err(Errno::INTR | Errno::AGAIN) if self.tries < PATIENCE => self.tries += 1,
            Err(errno) => self.refused(op, errno, backing),
            Ok(bytes) => {
                self.tries = 0;
                self.advanced(op, bytes, backing);
            }
        }
    }

    /// The answer to [`Op::Sync`] for who has the turn, where it needs no call: the one who had it before learned that
    /// writes were lost, or synced these, too.
    pub(super) fn sync_at_once(&mut self, backing: &Backing) -> Option<Result<u32, Errno>> {
        if backing.has_lost_writes() {
            return Some(Err(Errno::IO));
        }
        if self.arrival.is_some_and(|arrival| backing.syncs.covers(arrival)) {
            self.synced = true;
            return Some(Ok(0));
        }
        backing.syncs.begin();
        None
    }

    fn rest(&self) -> ByteRange {
        let end = self.job.range.end();
        ByteRange::new(self.at, end.saturating_sub(self.at)).unwrap_or(ByteRange::EMPTY)
    }

    fn moved(&self) -> u32 {
        match self.job.action {
            // A slot is shorter than 4 GiB, and the range was checked against it.
            Action::Read | Action::Write { .. } => self.job.range.length() as u32,
            _ => 0,
        }
    }

    fn next_transfer(&mut self, backing: &Backing) -> Option<Op> {
        let rest = self.rest();
        let durable = matches!(self.job.action, Action::Write { durable: true });
        if rest.length() == 0 {
            // In the page cache, a durable write of the kernel's would also report that *earlier* writes were lost, and as
            // the same ENOSPC that a write without room gets. So the two are asked apart.
            return (durable && !backing.is_direct() && !self.synced).then_some(Op::Sync);
        }
        let align = u64::from(backing.align);
        if around(self.job.range, align) != self.job.range {
            return Some(self.next_of_piece(rest, backing));
        }
        let place = Place::Slot((self.at - self.job.range.offset()) as u32);
        Some(match self.job.action {
            Action::Write { .. } => {
                Op::Write { from: place, range: rest, durable: durable && backing.is_direct() }
            }
            _ => Op::Read { into: place, range: rest },
        })
    }

    /// Gives a new piece its bounce buffer, and the buffer of a piece that is written whole its bytes.
    fn provide(&mut self, bounces: &mut Bounces) -> Result<(), Status> {
        let Some(piece) = self.piece.filter(|piece| piece.is_unwritten()) else { return Ok(()) };
        if self.bounce.is_none() {
            self.bounce = Some(bounces.take().ok_or(Status::NoResources)?);
        }
        // What is read must stay as it was read, however many steps that takes.
        if piece.blocks == piece.wanted && self.job.action != Action::Read {
            self.patch(piece);
        }
        Ok(())
    }

    /// The next operation of the piece on its way, or the first of a new one at the start of `rest`.
    fn next_of_piece(&mut self, rest: ByteRange, backing: &Backing) -> Op {
        let align = u64::from(backing.align);
        let piece = *self.piece.get_or_insert_with(|| {
            let wanted = rest.pieces(u64::from(BOUNCE), u64::from(BOUNCE)).next().unwrap_or(ByteRange::EMPTY);
            let blocks = around(wanted, align);
            // Whole blocks need no reading before they are overwritten.
            let whole = blocks == wanted && self.job.action != Action::Read;
            let read = if whole { blocks.length() } else { 0 };
            Piece { wanted, blocks, read, written: 0 }
        });
        if piece.read < piece.blocks.length() {
            return Op::Read {
                into: Place::Bounce(piece.read as u32),
                range: after(piece.blocks, piece.read),
            };
        }
        Op::Write {
            from: Place::Bounce(piece.written as u32),
            range: after(piece.blocks, piece.written),
            durable: matches!(self.job.action, Action::Write { durable: true }),
        }
    }

    fn next_clearing(&mut self, backing: &Backing) -> Option<Op> {
        loop {
            let rest = self.rest();
            if rest.length() == 0 {
                let sync = self.job.action.durable() && !self.synced;
                return sync.then_some(Op::Sync);
            }
            if self.piece.is_some() {
                return Some(self.next_of_piece(rest, backing));
            }
            let zero = matches!(self.job.action, Action::Zero { .. });
            let Some(how) = backing.way(self.job.action) else {
                if zero {
                    return Some(self.next_zeroes(rest, backing));
                }
                // To trim is advice, and this store cannot take it.
                self.at = rest.end();
                continue;
            };
            match first_part(rest, u64::from(backing.sector)) {
                Part::Whole(range) => {
                    let length = range.length().min(CLEAR_STEP);
                    return Some(Op::Clear { how, range: first(range, length) });
                }
                Part::Edge(range) if zero => return Some(self.next_zeroes(range, backing)),
                // A sector that is trimmed in part keeps all of its bytes.
                Part::Edge(range) => self.at = range.end(),
            }
        }
    }

    /// Writes zeroes to the start of `range`.
    fn next_zeroes(&mut self, range: ByteRange, backing: &Backing) -> Op {
        match first_part(range, u64::from(backing.align)) {
            Part::Whole(range) => {
                let range = first(range, range.length().min(u64::from(ZERO_STEP)));
                Op::Write { from: Place::Zeroes, range, durable: false }
            }
            Part::Edge(range) => self.next_of_piece(range, backing),
        }
    }

    fn advanced(&mut self, op: Op, bytes: u32, backing: &Backing) {
        match op {
            // Somebody else's is no success of this one.
            Op::Sync if self.synced => {}
            Op::Sync => {
                backing.syncs.succeed();
                self.synced = true;
            }
            Op::Clear { range, .. } => self.at = range.end(),
            Op::Read { .. } | Op::Write { .. } if bytes == 0 => {
                backing.ended_early(matches!(op, Op::Read { .. }));
                self.failed = Some(Status::Io);
            }
            Op::Read { into: Place::Bounce(_), .. } => self.piece_was_read(bytes),
            Op::Write { from: Place::Bounce(_), .. } => self.piece_was_written(bytes),
            Op::Read { .. } | Op::Write { .. } => self.at += u64::from(bytes),
        }
    }

    fn piece_was_read(&mut self, bytes: u32) {
        let Some(piece) = &mut self.piece else { return };
        piece.read += u64::from(bytes);
        let piece = *piece;
        if piece.read < piece.blocks.length() {
            return;
        }
        if self.job.action != Action::Read {
            return self.patch(piece);
        }
        let at = (piece.wanted.offset() - self.job.range.offset()) as usize;
        if let (Some(bounce), Some(slot)) = (&self.bounce, &mut self.job.slot) {
            copy(bounce, piece.inside(), slot, at, piece.wanted.length() as usize);
        }
        self.at = piece.wanted.end();
        self.piece = None;
    }

    /// Puts the bytes that are to be written into the bounce buffer.
    fn patch(&mut self, piece: Piece) {
        let Some(bounce) = &mut self.bounce else { return };
        let length = piece.wanted.length() as usize;
        match &self.job.slot {
            Some(slot) => {
                let at = (piece.wanted.offset() - self.job.range.offset()) as usize;
                copy(slot, at, bounce, piece.inside(), length);
            }
            None => bounce.fill(piece.inside(), length, 0),
        }
    }

    fn piece_was_written(&mut self, bytes: u32) {
        let Some(piece) = &mut self.piece else { return };
        piece.written += u64::from(bytes);
        if piece.written >= piece.blocks.length() {
            self.at = piece.wanted.end();
            self.piece = None;
        }
    }

    fn refused(&mut self, op: Op, errno: Errno, backing: &Backing) {
        match op {
            Op::Clear { how, .. } if backing.cannot(how, errno) => {}
            Op::Sync => {
                backing.lost_writes(errno);
                self.failed = Some(Status::Io);
            }
            _ => {
                let status = status(errno);
                if matches!(op, Op::Write { durable: true, .. }) && status != Status::NoSpace {
                    backing.lost_writes(errno);
                }
                backing.complain(&op, errno);
                self.failed = Some(status);
            }
        }
    }
}

/// Why a job cannot even begin.
fn refusal(job: &Job, backing: &Backing) -> Result<(), Status> {
    if job.action.writes() && backing.read_only {
        return Err(Status::ReadOnly);
    }
    if job.action.durable() && backing.has_lost_writes() {
        return Err(Status::Io);
    }
    if job.action != Action::Flush && !job.range.fits(backing.size) {
        return Err(Status::OutOfRange);
    }
    match (job.action, &job.slot) {
        (Action::Read | Action::Write { .. }, Some(slot)) if job.range.length() <= u64::from(slot.size()) => {
            Ok(())
        }
        (Action::Read | Action::Write { .. }, _) => Err(Status::BadRequest),
        _ => Ok(()),
    }
}

/// What a client is told about an error of the store.
fn status(errno: Errno) -> Status {
    match errno {
        Errno::NOSPC | Errno::DQUOT => Status::NoSpace,
        Errno::ROFS => Status::ReadOnly,
        _ => Status::Io,
    }
}

enum Part {
    /// Whole blocks.
    Whole(ByteRange),
    /// Bytes of one block, not all.
    Edge(ByteRange),
}

/// The longest start of a range that is either whole blocks of `grain` bytes or lies in one of them.
fn first_part(range: ByteRange, grain: u64) -> Part {
    let into = range.offset() % grain;
    let whole = range.length() - range.length() % grain;
    if into == 0 && whole > 0 {
        Part::Whole(first(range, whole))
    } else {
        Part::Edge(first(range, range.length().min(grain - into)))
    }
}

/// The first `length` bytes of a range, which has as many.
fn first(range: ByteRange, length: u64) -> ByteRange {
    ByteRange::new(range.offset(), length.min(range.length())).unwrap_or(ByteRange::EMPTY)
}

/// A range without its first `skip` bytes.
fn after(range: ByteRange, skip: u64) -> ByteRange {
    let skip = skip.min(range.length());
    ByteRange::new(range.offset() + skip, range.length() - skip).unwrap_or(ByteRange::EMPTY)
}

/// The whole blocks around a range. A range of an export has them, since its size is a multiple of the block.
fn around(range: ByteRange, block: u64) -> ByteRange {
    let start = range.offset() - range.offset() % block;
    let end = range.end().checked_next_multiple_of(block).unwrap_or(u64::MAX);
    ByteRange::new(start, end - start).unwrap_or(ByteRange::EMPTY)
}

/// Copies between two slots, through a little memory that has no other user.
fn copy(from: &Slot, from_at: usize, to: &mut Slot, to_at: usize, length: usize) {
    let mut chunk = [0; 4096];
    let mut done = 0;
    while done < length {
        let part = &mut chunk[..(length - done).min(4096)];
        from.copy_to(from_at + done, part);
        to.copy_from(to_at + done, part);
        done += part.len();
    }
}
