//! What an export keeps its bytes in.
//!
//! [`Ram`] and [`Null`] are memory that a peer's card reaches by itself; no code of ours runs for a read or a write. They
//! differ in what a grant of them says: see [`Store::memory`].
//!
//! [`Staged`] is a file or a disk. A lane gets an [`Engine`] of its own to it, which moves bytes between the file and the
//! lane's slots. What all lanes share is the open file; what differs between the engines is only who carries the kernel's
//! operations out:
//!
//! ```text
//! engine (contract) ── fault (errors and delays on purpose)
//!    ├── file   pread and pwrite on the lane's thread ─┐
//!    └── uring  one ring a lane                       ─┴── work (a job as operations) ── backing (the open file)
//!                  └── range_lock (parts of blocks)                       ├── syncs (fdatasync by turns)
//!                                                                         └── holes (what is allocated)
//! options ── open, with direct and in_use: what must be true before there is a backing ── staged: what lanes start from
//! ```

mod backing;
mod direct;
mod engine;
pub mod fault;
mod file;
mod holes;
mod in_use;
mod null;
mod open;
mod open_error;
mod options;
mod ram;
mod range_lock;
mod staged;
mod syncs;
mod uring;
mod work;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use kaeru_common::fabric::buffer::Memory;

pub use self::engine::{Action, Done, Engine, Extent, Job};
pub use self::file::FileEngine;
pub use self::null::Null;
pub use self::open_error::OpenError;
pub use self::options::{Direct, EngineChoice, StagedOptions, Target};
pub use self::ram::{MemoryLimits, Ram, RamError};
pub use self::staged::{Capabilities, Staged};
pub use self::uring::UringEngine;

/// Jobs without a slot (flush, trim, zero) that an engine takes beside one for each slot.
const SLOTLESS: usize = 64;

/// A store.
#[derive(Debug)]
pub enum Store {
    /// Memory.
    Ram(Ram),
    /// Nothing.
    Null(Null),
    /// A file or disk.
    Staged(Staged),
}

impl Store {
    /// Bytes of the export.
    pub fn size(&self) -> u64 {
        match self {
            Self::Ram(ram) => ram.size(),
            Self::Null(null) => null.size(),
            Self::Staged(staged) => staged.size(),
        }
    }

    /// Bytes of a block: what the size is a multiple of, and what a client may see as a sector.
    pub fn block(&self) -> u32 {
        match self {
            Self::Ram(_) | Self::Null(_) => 1,
            Self::Staged(staged) => staged.block(),
        }
    }

    /// Whether it cannot be written to.
    pub fn read_only(&self) -> bool {
        matches!(self, Self::Staged(staged) if staged.read_only())
    }

    /// Whether its bytes are gone when the machine stops.
    pub fn volatile(&self) -> bool {
        !matches!(self, Self::Staged(_))
    }

    /// The memory that a writer or a reader reaches, in the order in which a grant names it; none of a staged store.
    pub fn memory(&self, write: bool) -> Vec<Piece> {
        let piece = |memory: &Arc<Memory>, writable| Piece { memory: memory.clone(), writable };
        match self {
            Self::Ram(ram) => vec![piece(ram.memory(), true)],
            Self::Null(null) if write => vec![piece(null.source(), false), piece(null.sink(), true)],
            // A reader has nothing to write, and what others write is none of its business.
            Self::Null(null) => vec![piece(null.source(), false); 2],
            Self::Staged(_) => Vec::new(),
        }
    }

    /// A word for people about where the bytes are.
    pub fn description(&self) -> String {
        match self {
            Self::Ram(ram) => ram.description(),
            Self::Null(_) => "reads give zeroes, writes go nowhere".into(),
            Self::Staged(staged) => staged.description(),
        }
    }

    /// What went wrong for good, for people: it stays until the store is opened anew.
    pub fn trouble(&self) -> Option<String> {
        match self {
            Self::Ram(_) | Self::Null(_) => None,
            Self::Staged(staged) => staged.trouble(),
        }
    }
}

/// A stretch of memory that a peer reaches.
#[derive(Clone, Debug)]
pub struct Piece {
    /// The memory.
    pub memory: Arc<Memory>,
    /// Whether a writer may write to it.
    pub writable: bool,
}
