//! What all lanes of a file or disk export share: the one open file, its measures, and what was learned about it.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use kaeru_common::error::Status;
use kaeru_common::units::ByteRange;
use rustix::io::Errno;

use super::engine::{Action, Extent};
use super::fault::Faults;
use super::range_lock::RangeLock;
use super::syncs::Syncs;
use super::work::Op;
use super::{Target, holes};

/// An open file or disk.
#[derive(Debug)]
pub(super) struct Backing {
    /// One open file description for all lanes, so that one fdatasync covers them all.
    pub(super) file: OwnedFd,
    pub(super) target: Target,
    pub(super) path: PathBuf,
    /// Bytes of the export: a multiple of `block` and of `align`.
    pub(super) size: u64,
    /// Bytes of a logical block.
    pub(super) block: u32,
    /// What offsets and lengths in the file must be multiples of; 1 through the page cache.
    pub(super) align: u32,
    /// What may be deallocated or zeroed at once must be multiples of this; 1 for files.
    pub(super) sector: u32,
    pub(super) read_only: bool,
    /// Keeps reads and writes of whole blocks apart from writes of parts of them.
    pub(super) lock: RangeLock,
    /// Who may call fdatasync, so that its errors reach everybody.
    pub(super) syncs: Syncs,
    pub(super) faults: Option<Arc<Faults>>,
    pub(super) learned: Learned,
}

/// What was found out while it was used.
#[derive(Debug, Default)]
pub(super) struct Learned {
    no_punch: AtomicBool,
    no_zero_range: AtomicBool,
    no_discard: AtomicBool,
    lost_writes: AtomicBool,
    ended_early: AtomicBool,
    complaints: AtomicU64,
}

/// How bytes are cleared without writing zeroes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// They read as zeroes, and their room is given back.
    Punch,
    /// They read as zeroes, and their room is kept.
    ZeroRange,
    /// The device is told that they are not needed; what they read as is its business.
    Discard,
}

/// Errors that are logged one by one; of later ones only some.
const COMPLAINTS: u64 = 10;

impl Backing {
    /// Whether it goes around the page cache.
    pub(super) fn is_direct(&self) -> bool {
        self.align > 1
    }

    /// The best way that is left to carry out `action`, if there is one.
    pub(super) fn way(&self, action: Action) -> Option<Way> {
        let usable = |way| !self.flag(way).load(Ordering::Relaxed);
        let ways: &[Way] = match (action, self.target) {
            (Action::Trim { .. }, Target::File) => &[Way::Punch],
            (Action::Trim { .. }, Target::Disk) => &[Way::Punch, Way::Discard],
            (Action::Zero { no_hole: false, .. }, _) => &[Way::Punch, Way::ZeroRange],
            (Action::Zero { no_hole: true, .. }, _) => &[Way::ZeroRange],
            _ => &[],
        };
        ways.iter().copied().find(|&way| usable(way))
    }

    /// Whether `errno` says that this store does not know `way`, which is then never tried again.
    pub(super) fn cannot(&self, way: Way, errno: Errno) -> bool {
        // Busy: somebody else holds the disk (--force), and the kernel would have to drop his cache.
        let unknown = matches!(errno, Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOTTY | Errno::BUSY);
        if unknown && !self.flag(way).swap(true, Ordering::Relaxed) {
            tracing::debug!("{} does not know {way:?}: {errno}", self.path.display());
        }
        unknown
    }

    fn flag(&self, way: Way) -> &AtomicBool {
        match way {
            Way::Punch => &self.learned.no_punch,
            Way::ZeroRange => &self.learned.no_zero_range,
            Way::Discard => &self.learned.no_discard,
        }
    }

    /// Remembers for good that writes which were answered may be lost: the kernel tells it only once.
    pub(super) fn lost_writes(&self, errno: Errno) {
        if !self.learned.lost_writes.swap(true, Ordering::AcqRel) {
            tracing::error!(
                "{}: the system could not store what was written to it ({errno}). Answered writes may be lost, so every \
                 flush fails from now on; check the disk, then start kaerud anew",
                self.path.display()
            );
        }
    }

    /// Whether answered writes may be lost.
    pub(super) fn has_lost_writes(&self) -> bool {
        self.learned.lost_writes.load(Ordering::Acquire)
    }

    /// Says once that the file is shorter than it was.
    pub(super) fn ended_early(&self, reading: bool) {
        if !self.learned.ended_early.swap(true, Ordering::Relaxed) {
            let what = if reading { "ends" } else { "takes no more bytes" };
            tracing::error!(
                "{} {what} before its size of {} bytes: something shortened it while it is exported",
                self.path.display(),
                self.size
            );
        }
    }

    /// What went wrong and stays so.
    pub(super) fn trouble(&self) -> Option<String> {
        let lost = "answered writes may be lost: the system could not store them; flushes fail until kaerud is started anew";
        let short = "the file is shorter than its export: something shortened it";
        let troubles = [
            self.has_lost_writes().then_some(lost),
            self.learned.ended_early.load(Ordering::Relaxed).then_some(short),
        ];
        let troubles: Vec<&str> = troubles.into_iter().flatten().collect();
        (!troubles.is_empty()).then(|| troubles.join("; "))
    }

    /// Says that an operation failed, unless it has been said often.
    pub(super) fn complain(&self, op: &Op, errno: Errno) {
        let count = self.learned.complaints.fetch_add(1, Ordering::Relaxed);
        if count < COMPLAINTS || count.is_power_of_two() {
            tracing::error!("{}: {op:?} failed: {errno} (error {})", self.path.display(), count + 1);
        }
    }

    /// An operation as the fault layer lets it through: shorter, if it makes transfers short.
    pub(super) fn shortened(&self, op: Op) -> Op {
        let Some(faults) = &self.faults else { return op };
        let shorter = |range: ByteRange| {
            let half = (range.length() / 2).next_multiple_of(u64::from(self.align)).min(range.length());
            ByteRange::new(range.offset(), half.max(1)).unwrap_or(range)
        };
        match op {
            Op::Read { into, range } if faults.shortens_reads() => Op::Read { into, range: shorter(range) },
            Op::Write { from, range, durable } if faults.shortens_writes() => {
                Op::Write { from, range: shorter(range), durable }
            }
            other => other,
        }
    }

    /// See [`super::Engine::extents`].
    pub(super) fn extents(
        &self,
        range: ByteRange,
        limit: usize,
        out: &mut Vec<Extent>,
    ) -> Result<(), Status> {
        if !range.fits(self.size) {
            return Err(Status::OutOfRange);
        }
        if range.length() == 0 {
            return Err(Status::BadRequest);
        }
        match self.target {
            Target::File => holes::find(&self.file, range, limit, out).inspect_err(|_| {
                self.ended_early(true);
            }),
            // The kernel knows nothing about the holes of a disk.
            Target::Disk => {
                out.push(Extent { length: range.length(), allocated: true });
                Ok(())
            }
        }
    }
}
