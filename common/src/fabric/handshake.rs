//! What two ends of a lane tell each other while it connects, the same on every wire: the private data of `rdma_cm`, or
//! the first bytes of a TCP stream.
//!
//! ```text
//!  bytes  field
//!  8      magic "KAERULNK"
//!  2      version of this layout, 1
//!  2      bytes of the message, from the magic on
//!  1      kind: 1 request, 2 reply, 3 reject
//!         request: 16 token, 1 responder depth    reply: 1 responder depth    reject: 1 reason
//! ```
//!
//! Integers are big-endian. The connection manager pads with bytes that mean nothing, hence the length; a TCP stream
//! carries the message alone. A later version may be longer, but its first 12 bytes stay as they are, so that it can be
//! told from garbage and turned away with [`RejectReason::BadVersion`].

use bytes::BufMut;

use super::RejectReason;
use crate::codec::{Decode, DecodeError, Encode, Reader};
use crate::units::LaneToken;

/// The first bytes of every such message.
pub const MAGIC: [u8; 8] = *b"KAERULNK";

/// The version of the layout.
pub const VERSION: u16 = 1;

/// Bytes of private data that a request may have (`rdma_cm` over InfiniBand, port space TCP).
pub const MAX_REQUEST_BYTES: usize = 56;

/// Bytes of private data that a reply or a rejection may have.
pub const MAX_REPLY_BYTES: usize = 148;

const HEADER_BYTES: usize = 8 + 2 + 2 + 1;

const _: () = assert!(LaneRequest::LEN <= MAX_REQUEST_BYTES);
const _: () = assert!(LaneReply::LEN <= MAX_REPLY_BYTES && LaneReject::LEN <= MAX_REPLY_BYTES);

/// Why some bytes are no such message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// It does not begin with our magic.
    #[error("it does not speak Kaeru's lane protocol")]
    NotKaeru,
    /// It is of another version.
    #[error("it speaks version {0} of the lane protocol, and we speak {VERSION}")]
    Version(u16),
    /// It is cut, or a field means nothing.
    #[error("its handshake is malformed: {0}")]
    Malformed(#[from] DecodeError),
}

impl HandshakeError {
    /// How to turn such a peer away.
    pub const fn reject_reason(self) -> RejectReason {
        match self {
            Self::Version(_) => RejectReason::BadVersion,
            Self::NotKaeru | Self::Malformed(_) => RejectReason::Other,
        }
    }
}

/// A client asks to be let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneRequest {
    /// What the control stream gave for this lane.
    pub token: LaneToken,
    /// Reads that the client answers at once, from 1.
    pub responder_depth: u8,
}

impl LaneRequest {
    /// Its size on the wire, in bytes.
    pub const LEN: usize = HEADER_BYTES + 16 + 1;
    const KIND: u8 = 1;

    /// Its bytes.
    pub fn encode(&self) -> [u8; Self::LEN] {
        message(Self::KIND, |mut out| {
            self.token.0.encode(&mut out);
            self.responder_depth.encode(&mut out);
        })
    }

    /// Reads it, padded or not.
    ///
    /// # Errors
    /// See [`HandshakeError`].
    pub fn decode(data: &[u8]) -> Result<Self, HandshakeError> {
        let mut input = body(data, Self::KIND, Self::LEN)?;
        Ok(Self { token: LaneToken(input.array()?), responder_depth: depth(&mut input)? })
    }
}

/// The server lets it in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneReply {
    /// Reads that the server answers at once, from 1; over tcp never more than the client asked for.
    pub responder_depth: u8,
}

impl LaneReply {
    /// Its size on the wire, in bytes.
    pub const LEN: usize = HEADER_BYTES + 1;
    const KIND: u8 = 2;

    /// Its bytes.
    pub fn encode(&self) -> [u8; Self::LEN] {
        message(Self::KIND, |mut out| self.responder_depth.encode(&mut out))
    }

    /// Reads it, padded or not.
    ///
    /// # Errors
    /// See [`HandshakeError`].
    pub fn decode(data: &[u8]) -> Result<Self, HandshakeError> {
        let mut input = body(data, Self::KIND, Self::LEN)?;
        Ok(Self { responder_depth: depth(&mut input)? })
    }
}

/// The server turns it away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneReject {
    /// Why.
    pub reason: RejectReason,
}

impl LaneReject {
    /// Its size on the wire, in bytes.
    pub const LEN: usize = HEADER_BYTES + 1;
    const KIND: u8 = 3;

    /// Its bytes.
    pub fn encode(&self) -> [u8; Self::LEN] {
        message(Self::KIND, |mut out| (self.reason as u8).encode(&mut out))
    }

    /// Reads it, padded or not.
    ///
    /// # Errors
    /// See [`HandshakeError`].
    pub fn decode(data: &[u8]) -> Result<Self, HandshakeError> {
        let mut input = body(data, Self::KIND, Self::LEN)?;
        Ok(Self { reason: RejectReason::from_wire(u8::decode(&mut input)?) })
    }
}

/// A header, then what `fields` writes; `N` is the length of both.
fn message<const N: usize>(kind: u8, fields: impl FnOnce(&mut [u8])) -> [u8; N] {
    let mut bytes = [0; N];
    let mut out = &mut bytes[..];
    MAGIC.encode(&mut out);
    out.put_u16(VERSION);
    out.put_u16(u16::try_from(N).unwrap_or(u16::MAX));
    out.put_u8(kind);
    fields(out);
    bytes
}

/// Checks the header of a message of `length` bytes and gives the rest of it, without the padding.
fn body(data: &[u8], kind: u8, length: usize) -> Result<Reader<'_>, HandshakeError> {
    let mut header = Reader::new(data);
    if header.array().ok() != Some(MAGIC) {
        return Err(HandshakeError::NotKaeru);
    }
    match u16::decode(&mut header)? {
        VERSION => {}
        other => return Err(HandshakeError::Version(other)),
    }
    if usize::from(u16::decode(&mut header)?) != length {
        return Err(DecodeError::BadValue { what: "the length" }.into());
    }
    if u8::decode(&mut header)? != kind {
        return Err(DecodeError::BadValue { what: "the kind" }.into());
    }
    Ok(Reader::new(header.take(length - HEADER_BYTES)?))
}

fn depth(input: &mut Reader<'_>) -> Result<u8, DecodeError> {
    match u8::decode(input)? {
        0 => Err(DecodeError::BadValue { what: "the responder depth" }),
        depth => Ok(depth),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const REQUEST: LaneRequest = LaneRequest { token: LaneToken([0xa5; 16]), responder_depth: 16 };

    fn padded(bytes: &[u8], length: usize) -> Vec<u8> {
        let mut padded = bytes.to_vec();
        padded.resize(length, 0);
        padded
    }

    #[test]
    fn the_bytes_are_these() {
        let mut request = b"KAERULNK\x00\x01\x00\x1e\x01".to_vec();
        request.extend_from_slice(&[0xa5; 16]);
        request.push(16);
        assert_eq!(REQUEST.encode(), request[..]);
        assert_eq!(&LaneReply { responder_depth: 7 }.encode(), b"KAERULNK\x00\x01\x00\x0e\x02\x07");
        assert_eq!(
            &LaneReject { reason: RejectReason::BadToken }.encode(),
            b"KAERULNK\x00\x01\x00\x0e\x03\x01"
        );
    }

    #[test]
    fn padding_is_ignored_and_every_cut_is_noticed() {
        let request = REQUEST.encode();
        let reply = LaneReply { responder_depth: 1 };
        let reject = LaneReject { reason: RejectReason::NoResources };
        assert_eq!(LaneRequest::decode(&padded(&request, MAX_REQUEST_BYTES)), Ok(REQUEST));
        assert_eq!(LaneReply::decode(&padded(&reply.encode(), MAX_REPLY_BYTES)), Ok(reply));
        assert_eq!(LaneReject::decode(&padded(&reject.encode(), MAX_REPLY_BYTES)), Ok(reject));
        for length in 0..request.len() {
            assert!(LaneRequest::decode(&request[..length]).is_err(), "{length}");
            // What was cut off and then padded is no request either: its token or depth is missing.
            assert_ne!(LaneRequest::decode(&padded(&request[..length], 56)), Ok(REQUEST), "{length}");
        }
    }

    #[test]
    fn what_is_not_ours_says_what_it_is() {
        let reply = LaneReply { responder_depth: 3 }.encode();
        let with = |at: usize, value: u8| {
            let mut bytes = reply;
            bytes[at] = value;
            LaneReply::decode(&bytes)
        };
        assert_eq!(LaneReply::decode(&[]), Err(HandshakeError::NotKaeru));
        assert_eq!(with(0, b'X'), Err(HandshakeError::NotKaeru));
        assert_eq!(with(9, 2), Err(HandshakeError::Version(2)));
        assert_eq!(with(11, 200), Err(DecodeError::BadValue { what: "the length" }.into()));
        assert_eq!(with(12, 3), Err(DecodeError::BadValue { what: "the kind" }.into()));
        assert_eq!(with(13, 0), Err(DecodeError::BadValue { what: "the responder depth" }.into()));
        assert_eq!(HandshakeError::Version(2).reject_reason(), RejectReason::BadVersion);
    }

    proptest! {
        #[test]
        fn a_request_survives_and_garbage_never_panics(
            token in any::<[u8; 16]>(), responder_depth in 1u8.., garbage in proptest::collection::vec(any::<u8>(), 0..64),
        ) {
            let request = LaneRequest { token: LaneToken(token), responder_depth };
            prop_assert_eq!(LaneRequest::decode(&padded(&request.encode(), 56)), Ok(request));
            let mut bytes = request.encode().to_vec();
            bytes.truncate(8);
            bytes.extend_from_slice(&garbage);
            let _ = (LaneRequest::decode(&bytes), LaneReply::decode(&bytes), LaneReject::decode(&bytes));
        }
    }
}
