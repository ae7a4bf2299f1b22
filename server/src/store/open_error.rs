//! Why a file or disk cannot be exported, and what to do.

use std::io;
use std::path::PathBuf;

use kaeru_common::units::Size;

/// Why a file or disk cannot be exported.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Nothing is there.
    #[error("{} does not exist; name one that does{cure}", path.display())]
    Missing {
        /// The path.
        path: PathBuf,
        /// What else can be done.
        cure: &'static str,
    },
    /// Something else is there.
    #[error("{} is {found}, not {wanted}", path.display())]
    Wrong {
        /// The path.
        path: PathBuf,
        /// What is there.
        found: &'static str,
        /// What should be, and what to do.
        wanted: &'static str,
    },
    /// It cannot be opened.
    #[error("cannot open {}: {source}{cure}", path.display())]
    Open {
        /// The path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
        /// What to do.
        cure: &'static str,
    },
    /// It cannot be created.
    #[error("cannot create {} with {size}: {source}{cure}", path.display())]
    Create {
        /// The path.
        path: PathBuf,
        /// How large.
        size: Size,
        /// The system's error.
        source: io::Error,
        /// What to do.
        cure: &'static str,
    },
    /// It is there, with another size.
    #[error("{} exists and has {found}, but create says {wanted}: leave create out to use it as it is", path.display())]
    OtherSize {
        /// The path.
        path: PathBuf,
        /// Its size.
        found: Size,
        /// What was asked for.
        wanted: Size,
    },
    /// Somebody uses it.
    #[error("{} is in use: {holder}. Free it first; --force exports it all the same, which can destroy its content", path.display())]
    InUse {
        /// The path.
        path: PathBuf,
        /// Who.
        holder: String,
    },
    /// Less than a block.
    #[error("{} has {size}, which is less than one block of {block} bytes: there is nothing to export", path.display())]
    TooSmall {
        /// The path.
        path: PathBuf,
        /// Its size.
        size: Size,
        /// Bytes of a block.
        block: u32,
    },
    /// No such block.
    #[error("{} cannot have blocks of {block} bytes: {reason}", path.display())]
    Block {
        /// The path.
        path: PathBuf,
        /// What was asked for.
        block: u32,
        /// Why not.
        reason: String,
    },
    /// No direct I/O.
    #[error("{} cannot be reached around the page cache: {reason}; use direct=auto", path.display())]
    Direct {
        /// The path.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// No io_uring.
    #[error("{} cannot be reached by io_uring: {reason}; use engine=auto", path.display())]
    Uring {
        /// The path.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
}
