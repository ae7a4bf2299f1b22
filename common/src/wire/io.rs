//! The messages of a staged lane: one [`Opening`] from the server, then [`Request`]s and their [`Reply`]s.
//!
//! The client owns the server's slots: a request names the slot that it uses, and until its reply nobody else may name
//! it. So there are never more requests than slots, and neither side has to queue. A write's data goes ahead into the
//! slot, by a one-sided write on the same link; a read's data comes back by one, ahead of the reply.

use bytes::BufMut;

use crate::codec::{BoundedList, Decode, DecodeError, Encode, Reader};
use crate::error::Status;
use crate::fabric::{RegionInfo, RemoteRange};
use crate::units::ByteRange;

/// Bytes of the longest message of a staged lane: the size of both sides' message slots.
pub const MESSAGE_BYTES: usize = 64;

/// Slots of the server that one lane may have.
pub const MAX_STAGED_SLOTS: u16 = 256;

/// Extents in one reply.
pub const REPLY_EXTENTS: usize = 5;

record! {
    /// The first message of the server: the slots that the lane's client owns from now on.
    pub struct Opening {
        /// How many; slot `n` begins at `n` × `slot_size` of the region.
        pub slots: u16,
        /// Bytes of each.
        pub slot_size: u32,
        /// Where they are.
        pub region: RegionInfo,
    }
    check check
}

impl Opening {
    fn check(&self) -> Result<(), DecodeError> {
        let bytes = u64::from(self.slots) * u64::from(self.slot_size);
        let good = (1..=MAX_STAGED_SLOTS).contains(&self.slots) && self.slot_size > 0;
        let fits = bytes <= self.region.length && self.region.address.checked_add(bytes).is_some();
        if good && fits { Ok(()) } else { Err(DecodeError::BadValue { what: "the slots of a lane" }) }
    }

    /// The first `length` bytes of a slot; `None` where there are not as many.
    pub fn slot(&self, slot: u16, length: u32) -> Option<RemoteRange> {
        if slot >= self.slots || length > self.slot_size {
            return None;
        }
        self.region.range(u64::from(slot) * u64::from(self.slot_size), length)
    }
}

/// What a request asks for, with what it means on disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Send the range's bytes.
    Read,
    /// Keep the bytes that are in the slot.
    Write {
        /// Answer only when they would survive a loss of power.
        durable: bool,
    },
    /// Make all that was answered before, on any lane, survive a loss of power. Has no range.
    Flush,
    /// The range is no longer needed.
    Trim {
        /// As for writes.
        durable: bool,
    },
    /// Make the range read as zeroes.
    Zero {
        /// Keep its room on the disk.
        no_hole: bool,
        /// As for writes.
        durable: bool,
    },
    /// Say which parts of the range are holes.
    Extents,
}

impl Action {
    /// Whether it changes bytes.
    pub const fn modifies(self) -> bool {
        matches!(self, Self::Write { .. } | Self::Trim { .. } | Self::Zero { .. })
    }

    /// Whether bytes of the range travel, so that it has to fit a slot.
    pub const fn moves_data(self) -> bool {
        matches!(self, Self::Read | Self::Write { .. })
    }
}

const DURABLE: u8 = 1;
const NO_HOLE: u8 = 2;

/// `u8` (1 read, 2 write, 3 flush, 4 trim, 5 zero, 6 extents), then `u8` flags (1 durable, 2 no hole).
impl Encode for Action {
    const MAX_BYTES: usize = 2;

    fn encode<B: BufMut>(&self, out: &mut B) {
        let durably = |durable| if durable { DURABLE } else { 0 };
        let (action, flags) = match *self {
            Self::Read => (1, 0),
            Self::Write { durable } => (2, durably(durable)),
            Self::Flush => (3, 0),
            Self::Trim { durable } => (4, durably(durable)),
            Self::Zero { no_hole, durable } => (5, durably(durable) | if no_hole { NO_HOLE } else { 0 }),
            Self::Extents => (6, 0),
        };
        out.put_u8(action);
        out.put_u8(flags);
    }
}

impl Decode for Action {
    fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let [action, flags] = input.array()?;
        let (durable, no_hole) = (flags & DURABLE != 0, flags & NO_HOLE != 0);
        Ok(match (action, flags) {
            (1, 0) => Self::Read,
            (2, 0 | DURABLE) => Self::Write { durable },
            (3, 0) => Self::Flush,
            (4, 0 | DURABLE) => Self::Trim { durable },
            (5, 0..=3) => Self::Zero { no_hole, durable },
            (6, 0) => Self::Extents,
            _ => return Err(DecodeError::BadValue { what: "the action of a request" }),
        })
    }
}

record! {
    /// A request of the client.
    pub struct Request {
        /// What to do.
        pub action: Action,
        /// The server's slot that it uses; also its name until the reply.
        pub slot: u16,
        /// For a read: the key of the client's memory where the data goes; otherwise 0.
        pub key: u32,
        /// Where the range starts, in bytes.
        pub offset: u64,
        /// How long it is, in bytes.
        pub length: u64,
        /// For a read: where in the client's memory the data goes; otherwise 0.
        pub address: u64,
    }
}

const _: () = assert!(Request::MAX_BYTES == 32 && Reply::MAX_BYTES <= MESSAGE_BYTES);
const _: () = assert!(Opening::MAX_BYTES <= MESSAGE_BYTES);

impl Request {
    /// The range; `None` where it reaches beyond all bounds.
    pub fn range(&self) -> Option<ByteRange> {
        ByteRange::new(self.offset, self.length)
    }
}

record! {
    /// A stretch of an export that is all data or all hole.
    pub struct Extent {
        /// Its length in bytes; not zero.
        pub length: u32,
        /// Whether it is a hole, which reads as zeroes.
        pub hole: bool,
    }
    check check
}

impl Extent {
    fn check(&self) -> Result<(), DecodeError> {
        if self.length > 0 { Ok(()) } else { Err(DecodeError::BadValue { what: "the length of an extent" }) }
    }
}

/// `u16`: 0 for success, else the status.
impl Encode for Result<(), Status> {
    const MAX_BYTES: usize = 2;

    fn encode<B: BufMut>(&self, out: &mut B) {
        out.put_u16(self.err().map_or(0, Status::code));
    }
}

impl Decode for Result<(), Status> {
    fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Status::from_code(u16::decode(input)?).map_or(Ok(()), Err))
    }
}

record! {
    /// The reply to a request.
    pub struct Reply {
        /// The slot that the request named; it is the client's again.
        pub slot: u16,
        /// What came of it. A read's data was placed before.
        pub result: Result<(), Status>,
        /// Nanoseconds from the request's arrival until the store had it.
        pub waited: u32,
        /// Nanoseconds that the store took.
        pub stored: u32,
        /// For [`Action::Extents`]: the extents from the start of the range on, at least one. They may end before it
        /// does, and never after it.
        pub extents: BoundedList<Extent, REPLY_EXTENTS>,
    }
}

/// A message in the bytes that are sent.
#[derive(Clone, Copy, Debug)]
pub struct Packed {
    bytes: [u8; MESSAGE_BYTES],
    length: usize,
}

impl Packed {
    /// Packs a message that is no longer than [`MESSAGE_BYTES`].
    pub fn new<M: Encode>(message: &M) -> Self {
        const { assert!(M::MAX_BYTES <= MESSAGE_BYTES) };
        let mut bytes = [0; MESSAGE_BYTES];
        let mut rest = &mut bytes[..];
        message.encode(&mut rest);
        let length = MESSAGE_BYTES - rest.len();
        Self { bytes, length }
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn action() -> impl Strategy<Value = Action> {
        let flags = (any::<bool>(), any::<bool>());
        (0..6, flags).prop_map(|(action, (durable, no_hole))| match action {
            0 => Action::Read,
            1 => Action::Write { durable },
            2 => Action::Flush,
            3 => Action::Trim { durable },
            4 => Action::Zero { no_hole, durable },
            _ => Action::Extents,
        })
    }

    proptest! {
        #[test]
        fn messages_survive_the_wire(
            action in action(),
            slot: u16, key: u32, offset: u64, length: u64, address: u64, code: u16, waited: u32, stored: u32,
            extents in proptest::collection::vec((1u32.., any::<bool>()), 0..=REPLY_EXTENTS),
        ) {
            let request = Request { action, slot, key, offset, length, address };
            prop_assert_eq!(Request::decode_all(Packed::new(&request).as_bytes()), Ok(request));
            let result = Status::from_code(code).map_or(Ok(()), Err);
            let extents = extents.into_iter().map(|(length, hole)| Extent { length, hole }).collect();
            let extents = BoundedList::new(extents).unwrap();
            let reply = Reply { slot, result, waited, stored, extents };
            prop_assert_eq!(Reply::decode_all(Packed::new(&reply).as_bytes()), Ok(reply));
        }

        #[test]
        fn any_bytes_are_a_message_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..=MESSAGE_BYTES)) {
            if let Ok(request) = Request::decode_all(&bytes) {
                let packed = Packed::new(&request);
                prop_assert_eq!(packed.as_bytes(), &bytes[..]);
            }
            let _ = (Reply::decode_all(&bytes), Opening::decode_all(&bytes));
        }
    }

    #[test]
    fn a_request_looks_as_the_protocol_says() {
        let action = Action::Zero { no_hole: true, durable: true };
        let request = Request { action, slot: 0x0102, key: 3, offset: 1 << 32, length: 512, address: 5 };
        let golden =
            [5, 3, 1, 2, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 5];
        assert_eq!(Packed::new(&request).as_bytes(), golden);
    }

    #[test]
    fn an_opening_has_room_for_its_slots() {
        let region = RegionInfo { address: 4096, key: 7, length: 8 << 12 };
        let opening = Opening { slots: 8, slot_size: 4096, region };
        let decode = |opening: &Opening| Opening::decode_all(Packed::new(opening).as_bytes());
        assert_eq!(decode(&opening), Ok(opening.clone()));
        assert_eq!(
            opening.slot(7, 4096),
            Some(RemoteRange { address: 4096 + (7 << 12), key: 7, length: 4096 })
        );
        assert_eq!((opening.slot(8, 1), opening.slot(0, 4097)), (None, None));
        for bad in [
            Opening { slots: 0, ..opening.clone() },
            Opening { slots: MAX_STAGED_SLOTS + 1, slot_size: 1, ..opening.clone() },
            Opening { slots: 9, ..opening.clone() },
            Opening { slot_size: 0, ..opening.clone() },
            Opening { region: RegionInfo { address: u64::MAX - 4096, ..region }, ..opening },
        ] {
            assert!(decode(&bad).is_err(), "{bad:?}");
        }
    }
}
