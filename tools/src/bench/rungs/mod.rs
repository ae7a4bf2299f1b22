//! The places on the way to an export where it can be measured, and two on this machine to compare with; one file each.
//!
//! A [`Rung`] opens lanes; a [`Lane`] takes operations and gives them back, driven by one thread:
//!
//! ```text
//!   Rung::open ─▶ Lane ── submit, submit, … ── reap ─▶ Done, Done, … ── submit, …
//! ```

pub mod device;
pub mod fabric;
mod pieces;
pub mod ram;
pub mod remote;
mod ring;
pub mod socket;

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use kaeru_client::nbd::lane::Spin;
use kaeru_client::session::{Session, SessionError};
use kaeru_common::fabric::FabricKind;
use serde::{Deserialize, Serialize};

use super::nbd_client::NbdError;
use super::stages::Stamp;
use super::workload::Op;

/// An operation that takes longer than this has failed, and its rung with it.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// How long lanes over RDMA spin before they sleep.
const SPIN: Duration = Duration::from_micros(20);

/// Where on the way to measure.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "lowercase")]
pub enum RungName {
    /// This machine's own memory, to compare with
    Ram,
    /// A disk or file of this machine, to compare with; needs --disk
    Disk,
    /// One-sided operations on the link alone, as ib_read_lat measures them; RAM exports only
    Fabric,
    /// The client's library: no NBD, no kernel device
    Remote,
    /// NBD over a Unix socket, and the lane that serves it
    Socket,
    /// A block device of the kernel, such as /dev/nbd0; needs --device
    Device,
}

impl RungName {
    /// From the bottom up.
    pub const ALL: [Self; 6] =
        [Self::Ram, Self::Disk, Self::Fabric, Self::Remote, Self::Socket, Self::Device];

    /// As it is typed and printed.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Ram => "ram",
            Self::Disk => "disk",
            Self::Fabric => "fabric",
            Self::Remote => "remote",
            Self::Socket => "socket",
            Self::Device => "device",
        }
    }

    /// Whether the export is measured there, and not something to compare with.
    pub const fn is_on_the_way(self) -> bool {
        !matches!(self, Self::Ram | Self::Disk)
    }

    /// What lies between it and the rung `below`; for the lowest one that was measured, it and all below it.
    pub fn adds(self, below: Option<Self>, is_tcp: bool) -> String {
        let begin = match below {
            // Where the link is not measured for itself, all that is behind it is in the lowest rung.
            None if self > Self::Fabric => vec!["network, server and store"],
            _ => Vec::new(),
        };
        let is_between = |rung: &Self| {
            *rung <= self && below.map_or(*rung > Self::Fabric || *rung == self, |below| *rung > below)
        };
        let parts =
            Self::ALL.into_iter().filter(|rung| rung.is_on_the_way() && is_between(rung)).map(|rung| {
                match rung {
                    Self::Ram => "a copy from or to this machine's own memory",
                    Self::Disk => "this machine's own disk, past the page cache",
                    Self::Fabric if is_tcp => "the network and both kernels",
                    Self::Fabric => "the link: cards, cable, memory",
                    Self::Remote => "the client's library",
                    Self::Socket => "NBD on a Unix socket, and its lane",
                    Self::Device => "the kernel's block layer and NBD driver",
                }
            });
        begin.into_iter().chain(parts).collect::<Vec<_>>().join("; ")
    }
}

impl std::fmt::Display for RungName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.word())
    }
}

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Io {
    /// Which.
    pub op: Op,
    /// Where it begins.
    pub offset: u64,
    /// Its bytes.
    pub length: u32,
    /// The caller's number for it: below the depth, and no two under way alike.
    pub tag: u32,
}

/// An operation that is over.
#[derive(Debug)]
pub struct Done {
    /// Which.
    pub tag: u32,
    /// When that was seen.
    pub at: Instant,
    /// Why it failed, if it did; others may succeed.
    pub failed: Option<String>,
    /// When it passed where, if that was asked for and can be known.
    pub stamp: Stamp,
}

/// What every lane of a measurement has to be able to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Operations under way at once.
    pub depth: u32,
    /// Bytes of each.
    pub block: u32,
    /// Whether there will be writes.
    pub writes: bool,
    /// Whether to stamp operations.
    pub stages: bool,
}

/// One lane: a way to the bytes for one thread.
pub trait Lane: Send {
    /// Makes what will be written ready; called while nothing is under way.
    fn prepare(&mut self) {}

    /// Takes an operation. Nothing need happen before [`Self::reap`].
    ///
    /// # Errors
    /// [`Dead`]: nothing will succeed on this lane any more.
    fn submit(&mut self, io: Io) -> Result<(), Dead>;

    /// Moves operations that are over to `done`, waiting for the first one until `until`. Without anything under way it
    /// may return at once.
    ///
    /// # Errors
    /// [`Dead`]: nothing will succeed on this lane any more.
    fn reap(&mut self, done: &mut Vec<Done>, until: Instant) -> Result<(), Dead>;
}

/// Why a lane is of no use any more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Dead(pub String);

/// One place to measure.
pub trait Rung {
    /// Which one it is.
    fn name(&self) -> RungName;

    /// Bytes that can be reached.
    fn size(&self) -> u64;

    /// Blocks have to be multiples of this.
    fn granule(&self) -> u32 {
        1
    }

    /// Opens a lane.
    ///
    /// # Errors
    /// [`RungError`] says what to do.
    fn open(&mut self, shape: &Shape) -> Result<Box<dyn Lane>, RungError>;
}

/// Why a rung cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum RungError {
    /// No session or lane.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// No NBD.
    #[error(transparent)]
    Nbd(#[from] NbdError),
    /// The server has a hand in every operation.
    #[error(
        "there is no rung \"fabric\" on {0}: a file or disk is not the server's memory, so no operation of the \
         link alone reaches it; measure --rung remote"
    )]
    NoFabric(String),
    /// Not a single block.
    #[error("{what} has {size} bytes; a block of {block} bytes does not fit. Choose a smaller --block")]
    TooSmall {
        /// The export.
        what: String,
        /// Its size.
        size: u64,
        /// The block.
        block: u32,
    },
    /// An odd block.
    #[error("{what} takes multiples of {granule} bytes only, and {block} is none. Choose another --block")]
    Granule {
        /// What was to be measured.
        what: String,
        /// What blocks have to be multiples of.
        granule: u32,
        /// The block.
        block: u32,
    },
    /// Writes were wanted.
    #[error("{0} is read-only; measure it without --write")]
    ReadOnly(String),
    /// Something else lies there.
    #[error("{} is {what}; --{rung} takes {wanted}", .path.display())]
    WrongKind {
        /// The path.
        path: PathBuf,
        /// What it is.
        what: &'static str,
        /// For which rung it was given.
        rung: RungName,
        /// What that takes.
        wanted: &'static str,
    },
    /// A path cannot be opened.
    #[error("cannot open {}: {source}{}", .path.display(), hint(.source))]
    Open {
        /// The path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The system refused.
    #[error("cannot measure: {0}")]
    System(#[from] io::Error),
    /// The kernel gives no ring.
    #[error(
        "the kernel refuses io_uring ({0}), which a depth above 1 needs here; use --depth 1 and --lanes N"
    )]
    Ring(io::Error),
}

/// What would help.
fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::ResourceBusy => "; something uses it: unmount it first, or measure without --write",
        io::ErrorKind::PermissionDenied => "; try as root",
        io::ErrorKind::InvalidInput => {
            "; its file system has no O_DIRECT, so the page cache would be measured: choose another place"
        }
        _ => "",
    }
}

/// How lanes of ours wait: as the user said, else as those of `kaeru` do. A card answers within microseconds; a TCP peer
/// has to be scheduled first, and spinning would only be in its way.
fn spin_of(wanted: Option<Spin>, session: &Session) -> Spin {
    let verbs = session.route().is_some_and(|route| route.fabric == FabricKind::Verbs);
    wanted.unwrap_or(Spin::For(if verbs { SPIN } else { Duration::ZERO }))
}
