//! What an export keeps its bytes in.
//!
//! Both stores of this version are memory that a peer's card reaches by itself; no code of ours runs for a read or a
//! write. They differ in what a grant of them says: see [`Store::memory`].

mod null;
mod ram;

use std::sync::Arc;

use kaeru_common::fabric::Access;
use kaeru_common::fabric::buffer::Memory;
use kaeru_common::wire::control::ExportKind;

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
    /// What a list calls it.
    pub fn kind(&self) -> ExportKind {
        match self {
            Self::Ram(_) => ExportKind::Ram,
            Self::Null(_) => ExportKind::Null,
        }
    }

    /// Bytes of the export.
    pub fn size(&self) -> u64 {
        match self {
            Self::Ram(ram) => ram.size(),
            Self::Null(null) => null.size(),
        }
    }

    /// The memory to register for a peer that may write or only read, in the order in which a grant names it.
    pub fn memory(&self, write: bool) -> Vec<(Arc<Memory>, Access)> {
        match self {
            Self::Ram(ram) => {
                let access = if write { Access::RemoteReadWrite } else { Access::RemoteRead };
                vec![(ram.memory().clone(), access)]
            }
            // A reader is granted a sink as well: the layout is the same, and its front end refuses writes.
            Self::Null(null) => {
                let sink = if write { Access::RemoteReadWrite } else { Access::RemoteRead };
                vec![(null.source().clone(), Access::RemoteRead), (null.sink().clone(), sink)]
            }
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
