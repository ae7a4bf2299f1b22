//! The first bytes of a lane, before it is a link: who asks, and whether it may.
//!
//! Control stream and lanes arrive at one port, so whoever accepts reads [`LanePreamble::LEN`] bytes and tells them by
//! [`PREAMBLE_MAGIC`]. Pure: bytes in, bytes out. Numbers are little-endian.
//!
//! ```text
//!   preamble  magic 8 | version 2 | own length 2 | token 16 | responder depth 1 | zero 3     = 32 bytes
//!   reply     magic 8 | version 2 | own length 2 | status 1 | reads 1           | zero 2     = 16 bytes
//! ```
//!
//! A later version may be longer; its first 12 bytes stay as they are, so that it can be told from garbage and refused
//! with [`RejectReason::BadVersion`].

use crate::fabric::RejectReason;
use crate::units::LaneToken;

/// What a lane starts with, either way.
pub const PREAMBLE_MAGIC: [u8; 8] = *b"KAERULNK";

/// The version of the lane protocol: 1 is the first.
const VERSION: u16 = 1;

const FIXED: usize = 8 + 2 + 2;
const _: () = assert!(LanePreamble::LEN == FIXED + 16 + 1 + 3);
const _: () = assert!(LaneReply::LEN == FIXED + 1 + 1 + 2);

/// What a connecting side says first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LanePreamble {
    /// The one-time secret that its control stream was given.
    pub token: LaneToken,
    /// Reads that it is willing to answer at once, from 1.
    pub responder_depth: u8,
}

/// Why some bytes are no preamble.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadPreamble {
    /// They do not start with [`PREAMBLE_MAGIC`].
    #[error("this is no lane preamble")]
    NotOurs,
    /// They do, and another version follows; to be turned away with [`RejectReason::BadVersion`].
    #[error("the lane protocol's version {0} is not spoken here")]
    Version(u16),
    /// The version is ours, the content is not.
    #[error("the lane preamble is malformed")]
    Malformed,
}

impl LanePreamble {
    /// Its size on the wire, in bytes.
    pub const LEN: usize = 32;

    /// Its bytes.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        start(&mut bytes);
        bytes[FIXED..FIXED + 16].copy_from_slice(&self.token.0);
        bytes[FIXED + 16] = self.responder_depth;
        bytes
    }

    /// Reads it.
    ///
    /// # Errors
    /// See [`BadPreamble`].
    pub fn decode(bytes: &[u8; Self::LEN]) -> Result<Self, BadPreamble> {
        if bytes[..8] != PREAMBLE_MAGIC {
            return Err(BadPreamble::NotOurs);
        }
        let version = u16::from_le_bytes([bytes[8], bytes[9]]);
        if version != VERSION {
            return Err(BadPreamble::Version(version));
        }
        let mut token = [0; 16];
        token.copy_from_slice(&bytes[FIXED..FIXED + 16]);
        let preamble = Self { token: LaneToken(token), responder_depth: bytes[FIXED + 16] };
        // Encoding again finds a wrong length and set padding alike.
        if preamble.responder_depth == 0 || preamble.encode() != *bytes {
            return Err(BadPreamble::Malformed);
        }
        Ok(preamble)
    }
}

/// An accepting side's answer, where it is a yes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LaneReply {
    /// Reads that may be outstanding, in either direction; from 1.
    pub(super) reads: u8,
}

/// Why there is no [`LaneReply`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BadReply {
    /// The answer is a no.
    Rejected(RejectReason),
    /// The answer is not of this protocol.
    NotOurs,
}

impl LaneReply {
    /// Its size on the wire, in bytes.
    pub(super) const LEN: usize = 16;

    /// A yes.
    pub(super) fn encode(self) -> [u8; Self::LEN] {
        Self::bytes(0, self.reads)
    }

    /// A no.
    pub(super) fn rejecting(reason: RejectReason) -> [u8; Self::LEN] {
        Self::bytes(reason as u8, 0)
    }

    fn bytes(status: u8, reads: u8) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        start(&mut bytes);
        bytes[FIXED] = status;
        bytes[FIXED + 1] = reads;
        bytes
    }

    /// Reads it. A no is understood in any version.
    pub(super) fn decode(bytes: &[u8; Self::LEN]) -> Result<Self, BadReply> {
        if bytes[..8] != PREAMBLE_MAGIC {
            return Err(BadReply::NotOurs);
        }
        match (bytes[FIXED], bytes[FIXED + 1]) {
            (0, reads) if reads > 0 && *bytes == Self::bytes(0, reads) => Ok(Self { reads }),
            (0, _) => Err(BadReply::NotOurs),
            (reason, _) => Err(BadReply::Rejected(RejectReason::from_wire(reason))),
        }
    }
}

fn start<const N: usize>(bytes: &mut [u8; N]) {
    const { assert!(N <= u16::MAX as usize) };
    bytes[..8].copy_from_slice(&PREAMBLE_MAGIC);
    bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
    bytes[10..12].copy_from_slice(&(N as u16).to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_bytes_are_these_and_no_others() {
        let preamble = LanePreamble { token: LaneToken(*b"0123456789abcdef"), responder_depth: 16 };
        assert_eq!(&preamble.encode(), b"KAERULNK\x01\0\x20\x000123456789abcdef\x10\0\0\0");
        assert_eq!(&LaneReply { reads: 9 }.encode(), b"KAERULNK\x01\0\x10\0\0\x09\0\0");
        assert_eq!(&LaneReply::rejecting(RejectReason::BadToken), b"KAERULNK\x01\0\x10\0\x01\0\0\0");
    }

    #[test]
    fn another_version_is_told_from_garbage() {
        let mut bytes = LanePreamble { token: LaneToken([7; 16]), responder_depth: 1 }.encode();
        bytes[8] = 2;
        bytes[31] = 1;
        assert_eq!(LanePreamble::decode(&bytes), Err(BadPreamble::Version(2)));
        bytes[0] = b'k';
        assert_eq!(LanePreamble::decode(&bytes), Err(BadPreamble::NotOurs));
    }

    #[test]
    fn a_no_is_understood_whatever_its_version() {
        let mut bytes = LaneReply::rejecting(RejectReason::BadVersion);
        bytes[8] = 9;
        assert_eq!(LaneReply::decode(&bytes), Err(BadReply::Rejected(RejectReason::BadVersion)));
        bytes[FIXED] = 200;
        assert_eq!(LaneReply::decode(&bytes), Err(BadReply::Rejected(RejectReason::Other)));
    }

    proptest! {
        #[test]
        fn a_preamble_survives_the_wire(token in any::<[u8; 16]>(), responder_depth in 1u8..) {
            let preamble = LanePreamble { token: LaneToken(token), responder_depth };
            prop_assert_eq!(LanePreamble::decode(&preamble.encode()), Ok(preamble));
        }

        #[test]
        fn every_changed_byte_is_noticed_or_meant(at in 0usize..32, byte in any::<u8>()) {
            let mut bytes = LanePreamble { token: LaneToken([7; 16]), responder_depth: 3 }.encode();
            bytes[at] = byte;
            if let Ok(read) = LanePreamble::decode(&bytes) {
                prop_assert_eq!(read.encode(), bytes);
            }
        }
    }
}
