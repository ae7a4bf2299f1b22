#![doc = include_str!("../../PROTOCOL.md")]

/// Declares a message body or a part of one: its wire form is its fields in order, and `check` names the method that a
/// decoded value must pass.
macro_rules! record {
    (
        $(#[$meta:meta])*
        pub struct $name:ident { $($(#[$field_meta:meta])* pub $field:ident: $type:ty,)* }
        $(check $check:ident)?
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name { $($(#[$field_meta])* pub $field: $type,)* }

        impl $crate::codec::Encode for $name {
            const MAX_BYTES: usize = 0 $(+ <$type as $crate::codec::Encode>::MAX_BYTES)*;

            fn encode<B: bytes::BufMut>(&self, out: &mut B) {
                $($crate::codec::Encode::encode(&self.$field, out);)*
            }
        }

        impl $crate::codec::Decode for $name {
            fn decode(input: &mut $crate::codec::Reader<'_>) -> Result<Self, $crate::codec::DecodeError> {
                let value = Self { $($field: $crate::codec::Decode::decode(input)?,)* };
                $(value.$check()?;)?
                Ok(value)
            }
        }
    };
}

pub mod activity;
pub mod control;
mod fields;
pub mod grant;
pub mod io;
pub mod version;

use bytes::{BufMut, BytesMut};

use self::control::{
    Attach, Empty, Exports, Hello, HostFacts, LaneTicket, OpenLane, Pulse, Refusal, Welcome,
};
use self::grant::Granted;
use crate::codec::{Decode, Encode};
use crate::error::PeerFault;

/// The port of the control stream and of both kinds of lanes.
pub const PORT: u16 = 17_420;

/// The first bytes of a control stream, in both directions.
pub const CONTROL_PREAMBLE: [u8; 8] = *b"KAERUCTL";

/// Bytes before the body of a message: `u32` length of the body, `u16` type.
pub const HEADER_BYTES: usize = 6;

/// The longest body that a client may send, in bytes. Small, because a server buffers it for strangers.
pub const MAX_REQUEST_BYTES: usize = 1 << 10;

/// The longest body that a server may send, in bytes.
pub const MAX_ANSWER_BYTES: usize = 384 << 10;

/// Exports in one list.
pub const MAX_EXPORTS: usize = 256;

/// Ways to reach one export, and fabrics that a server offers.
pub const MAX_PATHS: usize = 16;

/// Regions of one path.
pub const MAX_REGIONS: usize = 1024;

/// Lanes of one session.
pub const MAX_LANES: usize = 16;

/// Requests that a client may send before it has the answer to the first: one for every lane, and some to spare.
pub const MAX_PIPELINE: usize = 32;

/// Bytes of the name of a host, and of a description.
pub const MAX_NAME_BYTES: usize = 255;

/// Bytes of the name of a device.
pub const MAX_DEVICE_BYTES: usize = 64;

/// Bytes of the text of a refusal.
pub const MAX_REASON_BYTES: usize = 512;

/// Ports of RDMA devices that a server tells of.
pub const MAX_PORTS: usize = 16;

/// Links on the way from the processor to a card, both ends counted.
pub const MAX_PCI_NODES: usize = 8;

/// Bytes of one fact about a machine.
pub const MAX_FACT_BYTES: usize = 64;

/// Who may send a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// The client only.
    Client,
    /// The server only.
    Server,
    /// Both.
    Both,
}

impl Sender {
    /// The longest body that this sender may send.
    const fn limit(self) -> usize {
        match self {
            Self::Server => MAX_ANSWER_BYTES,
            Self::Client | Self::Both => MAX_REQUEST_BYTES,
        }
    }
}

macro_rules! messages {
    ($($(#[$doc:meta])* $number:literal $name:ident($body:ty) from $sender:ident;)*) => {
        /// Every message of the control stream.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Message {
            $($(#[$doc])* $name($body),)*
        }

        impl Message {
            /// Its number on the wire.
            pub const fn kind(&self) -> u16 {
                match self {
                    $(Self::$name(_) => $number,)*
                }
            }

            /// Its name.
            pub const fn name(&self) -> &'static str {
                match self {
                    $(Self::$name(_) => stringify!($name),)*
                }
            }

            /// Who may send it.
            pub const fn sender(&self) -> Sender {
                match self {
                    $(Self::$name(_) => Sender::$sender,)*
                }
            }

            fn encode_body<B: BufMut>(&self, out: &mut B) {
                match self {
                    $(Self::$name(body) => body.encode(out),)*
                }
            }

            /// Reads the message with this number from its whole body.
            ///
            /// # Errors
            /// [`PeerFault::UnknownMessage`] and [`PeerFault::BadMessage`].
            pub fn decode(kind: u16, body: &[u8]) -> Result<Self, PeerFault> {
                match kind {
                    $($number => <$body>::decode_all(body)
                        .map(Self::$name)
                        .map_err(|source| PeerFault::BadMessage { message: stringify!($name), source }),)*
                    other => Err(PeerFault::UnknownMessage(other)),
                }
            }
        }

        // The longest message of every type fits the limit of those who may send it.
        const _: () = {
            $(assert!(<$body>::MAX_BYTES <= Sender::$sender.limit());)*
        };
    };
}

messages! {
    /// The first message of a client.
    1 Hello(Hello) from Client;
    /// The answer to [`Self::Hello`].
    2 Welcome(Welcome) from Server;
    /// Asks for the exports.
    3 List(Empty) from Client;
    /// The answer to [`Self::List`].
    4 Exports(Exports) from Server;
    /// Asks for an export.
    5 Attach(Attach) from Client;
    /// The answer to [`Self::Attach`].
    6 Granted(Granted) from Server;
    /// Asks for the token of one more lane.
    7 OpenLane(OpenLane) from Client;
    /// The answer to [`Self::OpenLane`].
    8 LaneToken(LaneTicket) from Server;
    /// Gives the export back.
    9 Detach(Empty) from Client;
    /// The answer to [`Self::Detach`]: lanes are closed and the lease is free.
    10 Detached(Empty) from Server;
    /// The answer to any request that the server does not grant.
    12 Refused(Refusal) from Server;
    /// The server ends the session and says why.
    14 Goodbye(Refusal) from Server;
    /// A sign of life that wants an answer.
    16 KeepAlive(Pulse) from Both;
    /// Answers every [`Self::KeepAlive`] up to its number.
    17 KeepAliveAck(Pulse) from Both;
    /// Asks what kind of machine the server runs on.
    19 Describe(Empty) from Client;
    /// The answer to [`Self::Describe`].
    20 Described(HostFacts) from Server;
}

impl Message {
    /// Appends the whole frame, header and body.
    pub fn encode(&self, out: &mut BytesMut) {
        let start = out.len();
        out.put_bytes(0, 4);
        out.put_u16(self.kind());
        self.encode_body(out);
        // Below MAX_ANSWER_BYTES, as the compile-time check above says.
        let length = u32::try_from(out.len() - start - HEADER_BYTES).unwrap_or(u32::MAX);
        out[start..start + 4].copy_from_slice(&length.to_be_bytes());
    }
}

#[cfg(test)]
mod tests;
