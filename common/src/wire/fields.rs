//! How the units, and what the fabrics tell of themselves, look on the wire.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use bytes::BufMut;

use crate::codec::{Decode, DecodeError, Encode, Reader, Text};
use crate::error::Status;
use crate::fabric::{FabricKind, RegionInfo};
use crate::units::{BootId, Epoch, ExportName, LaneToken, SessionId};

macro_rules! newtypes {
    ($($name:ident($inner:ty)),*) => {$(
        impl Encode for $name {
            const MAX_BYTES: usize = <$inner>::MAX_BYTES;

            fn encode<B: BufMut>(&self, out: &mut B) {
                self.0.encode(out);
            }
        }

        impl Decode for $name {
            fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
                <$inner>::decode(input).map(Self)
            }
        }
    )*};
}

newtypes!(SessionId(u64), Epoch(u32), BootId([u8; 16]), LaneToken([u8; 16]));

/// Its text.
impl Encode for ExportName {
    const MAX_BYTES: usize = Text::<{ Self::MAX_BYTES }>::MAX_BYTES;

    fn encode<B: BufMut>(&self, out: &mut B) {
        Text::<{ Self::MAX_BYTES }>::clipped(self.as_str()).encode(out);
    }
}

impl Decode for ExportName {
    fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let text = Text::<{ Self::MAX_BYTES }>::decode(input)?;
        text.as_str().parse().map_err(|_| DecodeError::BadValue { what: "the name of an export" })
    }
}

impl Encode for Status {
    const MAX_BYTES: usize = 2;

    fn encode<B: BufMut>(&self, out: &mut B) {
        self.code().encode(out);
    }
}

impl Decode for Status {
    fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Self::from_code(u16::decode(input)?).ok_or(DecodeError::BadValue { what: "the status" })
    }
}

/// `u8`: 1 verbs, 2 tcp, 255 sim.
impl Encode for FabricKind {
    const MAX_BYTES: usize = 1;

    fn encode<B: BufMut>(&self, out: &mut B) {
        out.put_u8(match self {
            Self::Verbs => 1,
            Self::Tcp => 2,
            Self::Sim => 255,
        });
    }
}

impl Decode for FabricKind {
    fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match u8::decode(input)? {
            1 => Ok(Self::Verbs),
            2 => Ok(Self::Tcp),
            255 => Ok(Self::Sim),
            _ => Err(DecodeError::BadValue { what: "the fabric" }),
        }
    }
}

/// `u8` 4 or 6, the address, `u16` port. Scope and flow of IPv6 mean nothing to a peer and are left out.
impl Encode for SocketAddr {
    const MAX_BYTES: usize = 1 + 16 + 2;

    fn encode<B: BufMut>(&self, out: &mut B) {
        match self.ip() {
            IpAddr::V4(ip) => {
                out.put_u8(4);
                ip.octets().encode(out);
            }
            IpAddr::V6(ip) => {
                out.put_u8(6);
                ip.octets().encode(out);
            }
        }
        self.port().encode(out);
    }
}

impl Decode for SocketAddr {
    fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let ip = match u8::decode(input)? {
            4 => IpAddr::V4(Ipv4Addr::from(input.array::<4>()?)),
            6 => IpAddr::V6(Ipv6Addr::from(input.array::<16>()?)),
            _ => return Err(DecodeError::BadValue { what: "the family of an address" }),
        };
        Ok(Self::new(ip, u16::decode(input)?))
    }
}

/// `u64` address, `u32` key, `u64` length; not empty, and its end fits a `u64`.
impl Encode for RegionInfo {
    const MAX_BYTES: usize = 8 + 4 + 8;

    fn encode<B: BufMut>(&self, out: &mut B) {
        self.address.encode(out);
        self.key.encode(out);
        self.length.encode(out);
    }
}

impl Decode for RegionInfo {
    fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let region =
            Self { address: u64::decode(input)?, key: u32::decode(input)?, length: u64::decode(input)? };
        if region.length == 0 || region.address.checked_add(region.length).is_none() {
            return Err(DecodeError::BadValue { what: "the extent of a region" });
        }
        Ok(region)
    }
}
