//! What an export keeps its bytes in.
//!
//! Both stores of this version are memory that a peer's card reaches by itself; no code of ours runs for a read or a
//! write. They differ in what a grant of them says: see [`Store::memory`].

mod null;
mod ram;

use std::sync::Arc;

use kaeru_common::fabric::buffer::Memory;

pub use self::null::Null;
pub use self::ram::{MemoryLimits, Ram, RamError};

/// A store.
#[derive(Debug)]
pub enum Store {
    /// Memory.
    Ram(Ram),
    /// Nothing.
    Null(Null),
}

impl Store {
    /// Bytes of the export.
    pub fn size(&self) -> u64 {
        match self {
            Self::Ram(ram) => ram.size(),
            Self::Null(null) => null.size(),
        }
    }

    /// The memory that a writer or a reader reaches, in the order in which a grant names it.
    pub fn memory(&self, write: bool) -> Vec<Piece> {
        let piece = |memory: &Arc<Memory>, writable| Piece { memory: memory.clone(), writable };
        match self {
            Self::Ram(ram) => vec![piece(ram.memory(), true)],
            Self::Null(null) if write => vec![piece(null.source(), false), piece(null.sink(), true)],
            // A reader has nothing to write, and what others write is none of its business.
            Self::Null(null) => vec![piece(null.source(), false); 2],
        }
    }

    /// A word for people about where the bytes are.
    pub fn description(&self) -> String {
        match self {
            Self::Ram(ram) => ram.description(),
            Self::Null(_) => "reads give zeroes, writes go nowhere".into(),
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
