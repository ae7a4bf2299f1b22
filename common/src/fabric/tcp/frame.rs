//! The frames of a link: a header of [`HEADER`] bytes, and for three of the six kinds a payload behind it.
//!
//! Pure: bytes in, bytes out. Numbers are little-endian. Fields that a kind does not use are zero.
//!
//! ```text
//!   kind 1 | reason 1 | denied 1 | zero 1 | length 4 | seq 8 | address 8 | key 4 | zero 4   = 32 bytes
//! ```

use crate::fabric::OpError;

/// The size of every header, in bytes.
pub(super) const HEADER: usize = 32;
const _: () = assert!(HEADER == 1 + 1 + 1 + 1 + 4 + 8 + 8 + 4 + 4);

/// One header. Writes and sends are numbered together from 0, and so are reads: two counters each way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// Place the payload in your region.
    Write { seq: u64, address: u64, key: u32, length: u32 },
    /// Place the payload in your oldest posted receive.
    Send { seq: u64, length: u32 },
    /// Answer with this part of your region.
    Read { seq: u64, address: u64, key: u32, length: u32 },
    /// The payload is what your read `seq` asked for.
    Data { seq: u64, length: u32 },
    /// How many of your writes and sends are placed, and how many receives were ever posted for your sends.
    Ack { placed: u64, posted: u64 },
    /// Your operation is refused and the link is over. An [`Frame::Ack`] for what came before it went ahead.
    Nak { denied: Denied, reason: OpError },
}

/// The operation that a [`Frame::Nak`] is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Denied {
    /// The write or send of this number.
    Placement(u64),
    /// The read of this number.
    Read(u64),
}

const WRITE: u8 = 1;
const SEND: u8 = 2;
const READ: u8 = 3;
const DATA: u8 = 4;
const ACK: u8 = 5;
const NAK: u8 = 6;

/// The layout, before it means anything.
#[derive(Clone, Copy, Default)]
struct Raw {
    kind: u8,
    reason: u8,
    denied: u8,
    length: u32,
    seq: u64,
    address: u64,
    key: u32,
}

impl Raw {
    fn encode(self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..3].copy_from_slice(&[self.kind, self.reason, self.denied]);
        bytes[4..8].copy_from_slice(&self.length.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.seq.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.address.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.key.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; HEADER]) -> Self {
        Self {
            kind: bytes[0],
            reason: bytes[1],
            denied: bytes[2],
            length: u32::from_le_bytes(part(bytes, 4)),
            seq: u64::from_le_bytes(part(bytes, 8)),
            address: u64::from_le_bytes(part(bytes, 16)),
            key: u32::from_le_bytes(part(bytes, 24)),
        }
    }
}

fn part<const N: usize>(bytes: &[u8; HEADER], at: usize) -> [u8; N] {
    std::array::from_fn(|index| bytes[at + index])
}

impl Frame {
    /// Its bytes.
    pub(super) fn encode(self) -> [u8; HEADER] {
        let none = Raw::default();
        match self {
            Self::Write { seq, address, key, length } => {
                Raw { kind: WRITE, seq, address, key, length, ..none }
            }
            Self::Send { seq, length } => Raw { kind: SEND, seq, length, ..none },
            Self::Read { seq, address, key, length } => Raw { kind: READ, seq, address, key, length, ..none },
            Self::Data { seq, length } => Raw { kind: DATA, seq, length, ..none },
            Self::Ack { placed, posted } => Raw { kind: ACK, seq: placed, address: posted, ..none },
            Self::Nak { denied, reason } => {
                let (denied, seq) = match denied {
                    Denied::Placement(seq) => (1, seq),
                    Denied::Read(seq) => (2, seq),
                };
                Raw { kind: NAK, reason: number_of(reason), denied, seq, ..none }
            }
        }
        .encode()
    }

    /// Reads a header; `None` where it is not exactly what [`Self::encode`] makes of some frame.
    pub(super) fn decode(bytes: &[u8; HEADER]) -> Option<Self> {
        let Raw { kind, reason, denied, length, seq, address, key } = Raw::decode(bytes);
        let frame = match kind {
            WRITE => Self::Write { seq, address, key, length },
            SEND => Self::Send { seq, length },
            READ => Self::Read { seq, address, key, length },
            DATA => Self::Data { seq, length },
            ACK => Self::Ack { placed: seq, posted: address },
            NAK => {
                let denied = match denied {
                    1 => Denied::Placement(seq),
                    2 => Denied::Read(seq),
                    _ => return None,
                };
                Self::Nak { denied, reason: reason_of(reason)? }
            }
            _ => return None,
        };
        // Comparing the encoding finds every field that should be zero and is not: a stream that lost its frame
        // boundaries is noticed at once.
        (frame.encode() == *bytes).then_some(frame)
    }
}

fn number_of(reason: OpError) -> u8 {
    match reason {
        OpError::Access => 1,
        OpError::TooLong => 2,
        OpError::LinkDead => 3,
    }
}

fn reason_of(number: u8) -> Option<OpError> {
    match number {
        1 => Some(OpError::Access),
        2 => Some(OpError::TooLong),
        3 => Some(OpError::LinkDead),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_bytes_are_these_and_no_others() {
        let (seq, address, key, length) =
            (0x0102_0304_0506_0708, 0x1112_1314_1516_1718, 0x2122_2324, 0x3132_3334);
        for (frame, bytes) in [
            (
                Frame::Write { seq, address, key, length },
                b"\x01\0\0\0\x34\x33\x32\x31\x08\x07\x06\x05\x04\x03\x02\x01\x18\x17\x16\x15\x14\x13\x12\x11\x24\x23\x22\x21\0\0\0\0",
            ),
            (
                Frame::Send { seq, length },
                b"\x02\0\0\0\x34\x33\x32\x31\x08\x07\x06\x05\x04\x03\x02\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
            ),
            (
                Frame::Read { seq, address, key, length },
                b"\x03\0\0\0\x34\x33\x32\x31\x08\x07\x06\x05\x04\x03\x02\x01\x18\x17\x16\x15\x14\x13\x12\x11\x24\x23\x22\x21\0\0\0\0",
            ),
            (
                Frame::Data { seq, length },
                b"\x04\0\0\0\x34\x33\x32\x31\x08\x07\x06\x05\x04\x03\x02\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
            ),
            (
                Frame::Ack { placed: seq, posted: address },
                b"\x05\0\0\0\0\0\0\0\x08\x07\x06\x05\x04\x03\x02\x01\x18\x17\x16\x15\x14\x13\x12\x11\0\0\0\0\0\0\0\0",
            ),
            (
                Frame::Nak { denied: Denied::Placement(seq), reason: OpError::Access },
                b"\x06\x01\x01\0\0\0\0\0\x08\x07\x06\x05\x04\x03\x02\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
            ),
            (
                Frame::Nak { denied: Denied::Read(seq), reason: OpError::TooLong },
                b"\x06\x02\x02\0\0\0\0\0\x08\x07\x06\x05\x04\x03\x02\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
            ),
        ] {
            assert_eq!(&frame.encode(), bytes, "{frame:?}");
            assert_eq!(Frame::decode(bytes), Some(frame));
        }
    }

    fn frames() -> impl Strategy<Value = Frame> {
        let reason = prop_oneof![Just(OpError::Access), Just(OpError::TooLong), Just(OpError::LinkDead)];
        prop_oneof![
            any::<(u64, u64, u32, u32)>().prop_map(|(seq, address, key, length)| Frame::Write {
                seq,
                address,
                key,
                length
            }),
            any::<(u64, u32)>().prop_map(|(seq, length)| Frame::Send { seq, length }),
            any::<(u64, u64, u32, u32)>().prop_map(|(seq, address, key, length)| Frame::Read {
                seq,
                address,
                key,
                length
            }),
            any::<(u64, u32)>().prop_map(|(seq, length)| Frame::Data { seq, length }),
            any::<(u64, u64)>().prop_map(|(placed, posted)| Frame::Ack { placed, posted }),
            (any::<u64>(), reason.clone())
                .prop_map(|(seq, reason)| Frame::Nak { denied: Denied::Placement(seq), reason }),
            (any::<u64>(), reason).prop_map(|(seq, reason)| Frame::Nak { denied: Denied::Read(seq), reason }),
        ]
    }

    proptest! {
        #[test]
        fn a_frame_survives_the_wire(frame in frames()) {
            prop_assert_eq!(Frame::decode(&frame.encode()), Some(frame));
        }

        #[test]
        fn what_is_read_is_what_was_written(bytes in any::<[u8; HEADER]>(), kind in 0u8..8, zeroed in any::<u32>()) {
            let mut bytes = bytes;
            bytes[0] = kind;
            for (at, byte) in bytes.iter_mut().enumerate().skip(1) {
                if zeroed >> at & 1 == 1 {
                    *byte = 0;
                }
            }
            if let Some(frame) = Frame::decode(&bytes) {
                prop_assert_eq!(frame.encode(), bytes);
            }
        }
    }
}
