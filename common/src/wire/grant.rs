//! What a server gives on attach: the paths to an export and the regions at their ends.

use std::net::SocketAddr;

use bytes::BufMut;

use super::control::{BlockSizes, DeviceName};
use super::{MAX_PATHS, MAX_REGIONS};
use crate::codec::{BoundedList, Decode, DecodeError, Encode, Reader};
use crate::fabric::{FabricKind, RegionInfo};
use crate::units::{BootId, Epoch, SessionId};

record! {
    /// An export is attached.
    pub struct Granted {
        /// The session.
        pub session: SessionId,
        /// Its epoch: 0 for a new session, one more for every resumption.
        pub epoch: Epoch,
        /// This life of the export's content.
        pub boot_id: BootId,
        /// Bytes of the export: a multiple of the least block, not zero.
        pub size: u64,
        /// Whether only reads are granted.
        pub read_only: bool,
        /// Its block sizes.
        pub blocks: BlockSizes,
        /// Whether its bytes are gone when the server's machine stops.
        pub volatile: bool,
        /// How it is reached.
        pub grant: Grant,
    }
    check check
}

impl Granted {
    /// Whether it is one that a client will take: see [`Grant`].
    ///
    /// # Errors
    /// [`DecodeError::BadValue`] names what is wrong.
    pub fn check(&self) -> Result<(), DecodeError> {
        self.blocks.check()?;
        self.blocks.check_size(self.size)?;
        self.grant.check(self.size)
    }
}

/// The ways to an export, best first.
pub type Paths = BoundedList<Path, MAX_PATHS>;

/// What an export's bytes are reached through; a `u8` (1 direct, 2 null, 3 staged), then the paths, of which there is
/// at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Grant {
    /// Regions of the export itself: consecutive windows that are all equal in length except that the last may be
    /// shorter, and that together cover the export.
    Direct {
        /// The ways to it.
        paths: Paths,
    },
    /// Two regions for each path: one full of zeros to read from, one to write into.
    Null {
        /// The ways to it.
        paths: Paths,
    },
    /// No regions: every lane gets slots of the server's, see [`super::io`].
    Staged {
        /// The ways to it.
        paths: Paths,
    },
}

impl Grant {
    /// The ways to the export.
    pub const fn paths(&self) -> &Paths {
        match self {
            Self::Direct { paths } | Self::Null { paths } | Self::Staged { paths } => paths,
        }
    }

    fn check(&self, size: u64) -> Result<(), DecodeError> {
        if self.paths().is_empty() {
            return Err(DecodeError::BadValue { what: "the number of paths" });
        }
        let good = match self {
            Self::Direct { paths } => paths.iter().all(|path| path.covers(size)),
            Self::Null { paths } => paths.iter().all(|path| path.regions.len() == 2),
            Self::Staged { paths } => paths.iter().all(|path| path.regions.is_empty()),
        };
        if good { Ok(()) } else { Err(DecodeError::BadValue { what: "the regions of a path" }) }
    }
}

impl Encode for Grant {
    const MAX_BYTES: usize = 1 + Paths::MAX_BYTES;

    fn encode<B: BufMut>(&self, out: &mut B) {
        out.put_u8(match self {
            Self::Direct { .. } => 1,
            Self::Null { .. } => 2,
            Self::Staged { .. } => 3,
        });
        self.paths().encode(out);
    }
}

impl Decode for Grant {
    fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match u8::decode(input)? {
            1 => Ok(Self::Direct { paths: Paths::decode(input)? }),
            2 => Ok(Self::Null { paths: Paths::decode(input)? }),
            3 => Ok(Self::Staged { paths: Paths::decode(input)? }),
            _ => Err(DecodeError::BadValue { what: "the kind of a grant" }),
        }
    }
}

record! {
    /// One way to an export: a fabric, a place on it, and the regions as they are addressed there.
    pub struct Path {
        /// The fabric.
        pub fabric: FabricKind,
        /// Where lanes connect.
        pub address: SocketAddr,
        /// The server's device, such as `mlx4_0`.
        pub device: DeviceName,
        /// The regions.
        pub regions: BoundedList<RegionInfo, MAX_REGIONS>,
    }
}

impl Path {
    /// Whether the regions are equal windows, the last possibly shorter, over at least `size` bytes.
    fn covers(&self, size: u64) -> bool {
        let Some((last, windows)) = self.regions.split_last() else { return false };
        let window = windows.first().unwrap_or(last).length;
        let even =
            windows.iter().all(|region| region.length == window) && (1..=window).contains(&last.length);
        // 1,024 lengths of 64 bits each fit 128 bits.
        let total: u128 = self.regions.iter().map(|region| u128::from(region.length)).sum();
        even && total >= u128::from(size)
    }
}
