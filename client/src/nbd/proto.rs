//! NBD constants and layouts, by section of `doc/proto.md` of the NBD project.
//!
//! This module decides nothing: it gives numbers their names, in the spelling of the specification less the
//! prefix that the module path already says (`NBD_OPT_GO` is [`OPT_GO`]). The two refinements are
//! [`NbdError`], because only these few values may ever be sent, and the flag sets, because flags of
//! different fields share the same bits and must not be mixed up. All integers travel in network byte order.

// ---- Section "Newstyle negotiation" and "Fixed newstyle negotiation" ----

/// `NBDMAGIC`, also called `INIT_PASSWD`: the first eight bytes that a server sends.
pub const INIT_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// `IHAVEOPT`: follows [`INIT_MAGIC`], and starts every option of the client.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Starts every reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;

/// Greeting of the server: two magics and the handshake flags, in bytes.
pub const GREETING_BYTES: usize = 8 + 8 + 2;
/// Client flags, in bytes.
pub const CLIENT_FLAGS_BYTES: usize = 4;
/// Header of an option (magic, option, length of data), in bytes.
pub const OPTION_HEADER_BYTES: usize = 8 + 4 + 4;
/// Header of an option reply (magic, option, reply type, length of data), in bytes.
pub const OPTION_REPLY_HEADER_BYTES: usize = 8 + 4 + 4 + 4;
/// Reserved zeroes that end the answer to [`OPT_EXPORT_NAME`], in bytes. Left out if
/// [`ClientFlags::NO_ZEROES`] was agreed.
pub const EXPORT_NAME_ZEROES: usize = 124;

/// The longest string (name, description, query, message) that the protocol allows, in bytes. Section
/// "Conventions".
pub const MAX_STRING: usize = 4096;

/// As much of a text as fits into `room` bytes, whole characters only: a string on the wire is valid UTF-8.
pub(super) fn cut(text: &str, room: usize) -> &str {
    let end = (0..=room.min(text.len())).rev().find(|&at| text.is_char_boundary(at));
    &text[..end.unwrap_or(0)]
}

/// Declares a set of flags that is one integer on the wire.
macro_rules! flag_set {
    ($(#[$meta:meta])* $name:ident: $int:ty { $($(#[$flag_meta:meta])* $flag:ident = $bit:literal;)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub struct $name($int);

        impl $name {
            $($(#[$flag_meta])* pub const $flag: Self = Self(1 << $bit);)*

            /// No flag at all.
            pub const NONE: Self = Self(0);

            /// The set with exactly these bits, known or not.
            pub const fn from_bits(bits: $int) -> Self {
                Self(bits)
            }

            /// The integer that goes on the wire.
            pub const fn bits(self) -> $int {
                self.0
            }

            /// Whether every flag of `other` is in this set.
            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// The flags of either set.
            pub const fn union(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }

            /// The flags of this set that are not in `other`.
            pub const fn without(self, other: Self) -> Self {
                Self(self.0 & !other.0)
            }

            /// Whether no bit is set.
            pub const fn is_empty(self) -> bool {
                self.0 == 0
            }
        }
    };
}

// ---- Section "Values / Handshake phase / Flag fields" ----

flag_set! {
    /// What the server can do in the handshake (16 bits). Section "Handshake flags".
    HandshakeFlags: u16 {
        /// `NBD_FLAG_FIXED_NEWSTYLE`: the server speaks the fixed newstyle protocol.
        FIXED_NEWSTYLE = 0;
        /// `NBD_FLAG_NO_ZEROES`: the server can leave out [`EXPORT_NAME_ZEROES`].
        NO_ZEROES = 1;
    }
}

flag_set! {
    /// What the client agrees to (32 bits). Section "Client flags".
    ClientFlags: u32 {
        /// `NBD_FLAG_C_FIXED_NEWSTYLE`: the client speaks the fixed newstyle protocol.
        FIXED_NEWSTYLE = 0;
        /// `NBD_FLAG_C_NO_ZEROES`: the server must leave out [`EXPORT_NAME_ZEROES`].
        NO_ZEROES = 1;
    }
}

flag_set! {
    /// What an export can do (16 bits). Section "Transmission flags".
    TransmissionFlags: u16 {
        /// `NBD_FLAG_HAS_FLAGS`: always set.
        HAS_FLAGS = 0;
        /// `NBD_FLAG_READ_ONLY`: every write is refused.
        READ_ONLY = 1;
        /// `NBD_FLAG_SEND_FLUSH`: `NBD_CMD_FLUSH` is offered.
        SEND_FLUSH = 2;
        /// `NBD_FLAG_SEND_FUA`: [`CommandFlags::FUA`] is offered, on every command.
        SEND_FUA = 3;
        /// `NBD_FLAG_ROTATIONAL`: schedule as for a spinning disk.
        ROTATIONAL = 4;
        /// `NBD_FLAG_SEND_TRIM`: `NBD_CMD_TRIM` is offered.
        SEND_TRIM = 5;
        /// `NBD_FLAG_SEND_WRITE_ZEROES`: `NBD_CMD_WRITE_ZEROES` and [`CommandFlags::NO_HOLE`] are offered.
        SEND_WRITE_ZEROES = 6;
        /// `NBD_FLAG_SEND_DF`: [`CommandFlags::DF`] is offered. Never sent unless structured replies were
        /// agreed.
        SEND_DF = 7;
        /// `NBD_FLAG_CAN_MULTI_CONN`: a flush on one connection covers the writes of all.
        CAN_MULTI_CONN = 8;
        /// `NBD_FLAG_SEND_RESIZE`: of an experimental extension; we never set it.
        SEND_RESIZE = 9;
        /// `NBD_FLAG_SEND_CACHE`: `NBD_CMD_CACHE` is offered.
        SEND_CACHE = 10;
        /// `NBD_FLAG_SEND_FAST_ZERO`: [`CommandFlags::FAST_ZERO`] is offered.
        SEND_FAST_ZERO = 11;
    }
}

// ---- Section "Option types" ----

/// `NBD_OPT_EXPORT_NAME`: choose an export, no answer but success.
pub const OPT_EXPORT_NAME: u32 = 1;
/// `NBD_OPT_ABORT`: the client takes its leave.
pub const OPT_ABORT: u32 = 2;
/// `NBD_OPT_LIST`: name every export.
pub const OPT_LIST: u32 = 3;
/// `NBD_OPT_PEEK_EXPORT`: withdrawn.
pub const OPT_PEEK_EXPORT: u32 = 4;
/// `NBD_OPT_STARTTLS`: go on under TLS.
pub const OPT_STARTTLS: u32 = 5;
/// `NBD_OPT_INFO`: describe an export.
pub const OPT_INFO: u32 = 6;
/// `NBD_OPT_GO`: describe an export and start transmission.
pub const OPT_GO: u32 = 7;
/// `NBD_OPT_STRUCTURED_REPLY`: use structured replies from now on.
pub const OPT_STRUCTURED_REPLY: u32 = 8;
/// `NBD_OPT_LIST_META_CONTEXT`: name metadata contexts of an export.
pub const OPT_LIST_META_CONTEXT: u32 = 9;
/// `NBD_OPT_SET_META_CONTEXT`: choose metadata contexts of an export.
pub const OPT_SET_META_CONTEXT: u32 = 10;
/// `NBD_OPT_EXTENDED_HEADERS`: 64-bit lengths in transmission.
pub const OPT_EXTENDED_HEADERS: u32 = 11;

// ---- Section "Option reply types" ----

/// `NBD_REP_ACK`: done.
pub const REP_ACK: u32 = 1;
/// `NBD_REP_SERVER`: name and description of one export.
pub const REP_SERVER: u32 = 2;
/// `NBD_REP_INFO`: one aspect of an export, see the `INFO_*` constants.
pub const REP_INFO: u32 = 3;
/// `NBD_REP_META_CONTEXT`: number and name of one metadata context.
pub const REP_META_CONTEXT: u32 = 4;
/// Bit 31 marks the replies that are errors; their data is a message for a human.
pub const REP_FLAG_ERROR: u32 = 1 << 31;
/// `NBD_REP_ERR_UNSUP`: the option is not known here.
pub const REP_ERR_UNSUP: u32 = REP_FLAG_ERROR + 1;
/// `NBD_REP_ERR_POLICY`: the option is known and forbidden.
pub const REP_ERR_POLICY: u32 = REP_FLAG_ERROR + 2;
/// `NBD_REP_ERR_INVALID`: the option is malformed, or comes at the wrong time.
pub const REP_ERR_INVALID: u32 = REP_FLAG_ERROR + 3;
/// `NBD_REP_ERR_PLATFORM`: this platform cannot do it.
pub const REP_ERR_PLATFORM: u32 = REP_FLAG_ERROR + 4;
/// `NBD_REP_ERR_TLS_REQD`: start TLS first.
pub const REP_ERR_TLS_REQD: u32 = REP_FLAG_ERROR + 5;
/// `NBD_REP_ERR_UNKNOWN`: no such export.
pub const REP_ERR_UNKNOWN: u32 = REP_FLAG_ERROR + 6;
/// `NBD_REP_ERR_SHUTDOWN`: the server is being shut down.
pub const REP_ERR_SHUTDOWN: u32 = REP_FLAG_ERROR + 7;
/// `NBD_REP_ERR_BLOCK_SIZE_REQD`: ask for [`INFO_BLOCK_SIZE`] first.
pub const REP_ERR_BLOCK_SIZE_REQD: u32 = REP_FLAG_ERROR + 8;
/// `NBD_REP_ERR_TOO_BIG`: the request or its answer is too large to process.
pub const REP_ERR_TOO_BIG: u32 = REP_FLAG_ERROR + 9;
/// `NBD_REP_ERR_EXT_HEADER_REQD`: ask for [`OPT_EXTENDED_HEADERS`] first.
pub const REP_ERR_EXT_HEADER_REQD: u32 = REP_FLAG_ERROR + 10;

// ---- Section "Option reply types", under `NBD_REP_INFO` ----

/// `NBD_INFO_EXPORT`: size and transmission flags; every success carries it.
pub const INFO_EXPORT: u16 = 0;
/// `NBD_INFO_NAME`: the canonical name.
pub const INFO_NAME: u16 = 1;
/// `NBD_INFO_DESCRIPTION`: text for a human.
pub const INFO_DESCRIPTION: u16 = 2;
/// `NBD_INFO_BLOCK_SIZE`: minimum, preferred and maximum block size.
pub const INFO_BLOCK_SIZE: u16 = 3;

// ---- Section "Metadata querying" ----

/// The one metadata context that the specification defines.
pub const BASE_ALLOCATION: &str = "base:allocation";
/// The query that lists every context of the namespace `base`.
pub const BASE_WILDCARD: &str = "base:";
/// `NBD_STATE_HOLE` of [`BASE_ALLOCATION`]: the extent is not allocated.
pub const STATE_HOLE: u32 = 1 << 0;
/// `NBD_STATE_ZERO` of [`BASE_ALLOCATION`]: the extent reads as zeroes.
pub const STATE_ZERO: u32 = 1 << 1;

// ---- Section "Block size constraints" ----

/// The largest minimum block size that may be advertised, in bytes.
pub const MAX_MINIMUM_BLOCK: u32 = 1 << 16;
/// The smallest preferred block size that may be advertised, in bytes.
pub const MIN_PREFERRED_BLOCK: u32 = 512;
/// The maximum block size that stands for "no limit".
pub const NO_MAXIMUM_BLOCK: u32 = u32::MAX;
/// The payload up to which a request is never an attack, in bytes: 32 MiB, and the most that we ever carry.
pub const MAX_REQUEST: u32 = 32 << 20;

// ---- Section "Transmission": request, simple reply, structured reply chunk ----

/// `NBD_REQUEST_MAGIC`: starts every request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// `NBD_SIMPLE_REPLY_MAGIC`: starts every simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// `NBD_STRUCTURED_REPLY_MAGIC`: starts every structured reply chunk.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Request header (magic, command flags, type, cookie, offset, length), in bytes.
pub const REQUEST_BYTES: usize = 4 + 2 + 2 + 8 + 8 + 4;
/// Simple reply (magic, error, cookie), in bytes.
pub const SIMPLE_REPLY_BYTES: usize = 4 + 4 + 8;
/// Header of a structured reply chunk (magic, flags, type, cookie, length), in bytes.
pub const CHUNK_HEADER_BYTES: usize = 4 + 2 + 2 + 8 + 4;
/// One block descriptor (length, status flags) of a block status chunk, in bytes.
pub const EXTENT_BYTES: usize = 4 + 4;

const _: () = assert!(REQUEST_BYTES == 28 && SIMPLE_REPLY_BYTES == 16 && CHUNK_HEADER_BYTES == 20);

/// The length up to which a read with [`CommandFlags::DF`] must be served in one chunk, in bytes. Section
/// "Request types".
pub const MIN_UNFRAGMENTED_READ: u32 = 65_536;

// ---- Section "Request types" ----

/// `NBD_CMD_READ`.
pub const CMD_READ: u16 = 0;
/// `NBD_CMD_WRITE`: the only request that a payload follows.
pub const CMD_WRITE: u16 = 1;
/// `NBD_CMD_DISC`.
pub const CMD_DISC: u16 = 2;
/// `NBD_CMD_FLUSH`.
pub const CMD_FLUSH: u16 = 3;
/// `NBD_CMD_TRIM`.
pub const CMD_TRIM: u16 = 4;
/// `NBD_CMD_CACHE`.
pub const CMD_CACHE: u16 = 5;
/// `NBD_CMD_WRITE_ZEROES`.
pub const CMD_WRITE_ZEROES: u16 = 6;
/// `NBD_CMD_BLOCK_STATUS`.
pub const CMD_BLOCK_STATUS: u16 = 7;

flag_set! {
    /// How a command is to be carried out (16 bits). Section "Command flags".
    CommandFlags: u16 {
        /// `NBD_CMD_FLAG_FUA`: answer only when the data is on stable storage.
        FUA = 0;
        /// `NBD_CMD_FLAG_NO_HOLE`: write zeroes without making a hole.
        NO_HOLE = 1;
        /// `NBD_CMD_FLAG_DF`: answer a read with at most one content chunk.
        DF = 2;
        /// `NBD_CMD_FLAG_REQ_ONE`: answer a block status with one extent.
        REQ_ONE = 3;
        /// `NBD_CMD_FLAG_FAST_ZERO`: write zeroes only if it is faster than a write, else fail.
        FAST_ZERO = 4;
        /// `NBD_CMD_FLAG_PAYLOAD_LEN`: of extended headers, which we do not offer.
        PAYLOAD_LEN = 5;
    }
}

// ---- Section "Structured reply flags" and "Structured reply types" ----

flag_set! {
    /// What a structured reply chunk says of itself (16 bits). Section "Structured reply flags".
    ReplyFlags: u16 {
        /// `NBD_REPLY_FLAG_DONE`: the last chunk of this reply.
        DONE = 0;
    }
}

/// `NBD_REPLY_TYPE_NONE`: nothing more; only ever the last chunk.
pub const REPLY_TYPE_NONE: u16 = 0;
/// `NBD_REPLY_TYPE_OFFSET_DATA`: data of a read.
pub const REPLY_TYPE_OFFSET_DATA: u16 = 1;
/// `NBD_REPLY_TYPE_OFFSET_HOLE`: a range of a read that is all zeroes.
pub const REPLY_TYPE_OFFSET_HOLE: u16 = 2;
/// `NBD_REPLY_TYPE_BLOCK_STATUS`: the extents of one metadata context.
pub const REPLY_TYPE_BLOCK_STATUS: u16 = 5;
/// Bit 15 marks the chunk types that are errors.
pub const REPLY_TYPE_FLAG_ERROR: u16 = 1 << 15;
/// `NBD_REPLY_TYPE_ERROR`: the request failed.
pub const REPLY_TYPE_ERROR: u16 = REPLY_TYPE_FLAG_ERROR + 1;
/// `NBD_REPLY_TYPE_ERROR_OFFSET`: the request failed at an offset.
pub const REPLY_TYPE_ERROR_OFFSET: u16 = REPLY_TYPE_FLAG_ERROR + 2;

// ---- Section "Error values" ----

/// Why a request failed: the only error values that may be sent. Section "Error values".
///
/// The numbers are those of the specification, which are not everywhere the operating system's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[repr(u32)]
pub enum NbdError {
    /// `NBD_EPERM`: a write to a read-only export.
    #[error("operation not permitted")]
    Perm = 1,
    /// `NBD_EIO`: the store or the fabric failed.
    #[error("input/output error")]
    Io = 5,
    /// `NBD_ENOMEM`: out of memory; to be avoided.
    #[error("cannot allocate memory")]
    NoMem = 12,
    /// `NBD_EINVAL`: the request makes no sense on this export.
    #[error("invalid argument")]
    Inval = 22,
    /// `NBD_ENOSPC`: no space left, or a write beyond the end.
    #[error("no space left on device")]
    NoSpc = 28,
    /// `NBD_EOVERFLOW`: only for a read with [`CommandFlags::DF`] that cannot be answered in one chunk.
    #[error("value too large")]
    Overflow = 75,
    /// `NBD_ENOTSUP`: only for a write of zeroes with [`CommandFlags::FAST_ZERO`] that would be slow.
    #[error("operation not supported")]
    NotSup = 95,
    /// `NBD_ESHUTDOWN`: the server is being shut down.
    #[error("server is being shut down")]
    Shutdown = 108,
}

impl NbdError {
    /// Every error value, in the order of the specification.
    pub const ALL: [Self; 8] = [
        Self::Perm,
        Self::Io,
        Self::NoMem,
        Self::Inval,
        Self::NoSpc,
        Self::Overflow,
        Self::NotSup,
        Self::Shutdown,
    ];

    /// The value of the error field on the wire; never zero.
    pub const fn wire(self) -> u32 {
        self as u32
    }

    /// The error of a wire value; `None` for success (0) and for values outside the specification.
    pub fn from_wire(value: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|error| error.wire() == value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn magics_spell_what_the_specification_says() {
        assert_eq!(&INIT_MAGIC.to_be_bytes(), b"NBDMAGIC");
        assert_eq!(&OPTION_MAGIC.to_be_bytes(), b"IHAVEOPT");
        assert_eq!(OPTION_REPLY_MAGIC, 0x3e889045565a9);
    }

    #[test]
    fn error_values_are_those_of_the_specification_and_round_trip() {
        assert_eq!(NbdError::ALL.map(NbdError::wire), [1, 5, 12, 22, 28, 75, 95, 108]);
        for error in NbdError::ALL {
            assert_eq!(NbdError::from_wire(error.wire()), Some(error));
        }
        assert_eq!(NbdError::from_wire(0), None);
        assert_eq!(NbdError::from_wire(2), None);
    }

    #[test]
    fn error_replies_have_bit_31_and_error_chunks_bit_15() {
        assert_eq!((REP_ERR_UNSUP, REP_ERR_TOO_BIG), (0x8000_0001, 0x8000_0009));
        assert_eq!((REPLY_TYPE_ERROR, REPLY_TYPE_ERROR_OFFSET), (0x8001, 0x8002));
    }

    #[test]
    fn cutting_keeps_whole_characters() {
        assert_eq!(cut("kaeru", 9), "kaeru");
        assert_eq!(cut("kaeru", 2), "ka");
        assert_eq!(cut("蛙蛙", 5), "蛙");
        assert_eq!(cut("蛙", 2), "");
    }

    #[test]
    fn flag_sets_combine_and_separate() {
        let both = CommandFlags::FUA.union(CommandFlags::NO_HOLE);
        assert_eq!(both.bits(), 3);
        assert!(both.contains(CommandFlags::FUA) && !both.contains(CommandFlags::DF));
        assert_eq!(both.without(CommandFlags::FUA), CommandFlags::NO_HOLE);
        assert!(both.without(both).is_empty());
        assert_eq!(TransmissionFlags::SEND_FAST_ZERO.bits(), 1 << 11);
    }
}
