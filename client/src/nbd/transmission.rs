//! The transmission phase, pure: requests in, replies out. Section "Transmission phase" of the NBD
//! specification.
//!
//! This module decides two things. [`parse_request`] decides whether the stream is still in step: a wrong
//! magic ends the connection, everything else (even a command from the future) is answered and the connection
//! lives on. [`validate`] decides, once and at the door, whether a request may go further; code behind it can
//! rely on a range that lies inside the export, is aligned and is not empty.
//!
//! A lane reads [`proto::REQUEST_BYTES`](super::proto::REQUEST_BYTES) bytes, calls [`parse_request`], then
//! takes [`Request::payload`] bytes: into a slot if [`validate`] was content, else into the void. Only then
//! does it answer, with [`simple_reply`] or a [`ReplyHeader`] that goes out in one vectored write with its
//! payload.
//!
//! Nothing here allocates.

use super::proto::{
    CHUNK_HEADER_BYTES, CMD_BLOCK_STATUS, CMD_CACHE, CMD_DISC, CMD_FLUSH, CMD_READ, CMD_TRIM, CMD_WRITE,
    CMD_WRITE_ZEROES, CommandFlags, EXTENT_BYTES, NbdError, REPLY_TYPE_BLOCK_STATUS, REPLY_TYPE_ERROR,
    REPLY_TYPE_ERROR_OFFSET, REPLY_TYPE_NONE, REPLY_TYPE_OFFSET_DATA, REPLY_TYPE_OFFSET_HOLE, REQUEST_BYTES,
    REQUEST_MAGIC, ReplyFlags, SIMPLE_REPLY_BYTES, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC,
    TransmissionFlags, cut,
};

/// What a client wants done. Section "Request types".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Command {
    /// `NBD_CMD_READ`: send `length` bytes from `offset`.
    Read = CMD_READ,
    /// `NBD_CMD_WRITE`: store the `length` bytes that follow the header at `offset`.
    Write = CMD_WRITE,
    /// `NBD_CMD_DISC`: finish what is under way and close; never answered.
    Disconnect = CMD_DISC,
    /// `NBD_CMD_FLUSH`: make every answered write durable.
    Flush = CMD_FLUSH,
    /// `NBD_CMD_TRIM`: the range is no longer needed.
    Trim = CMD_TRIM,
    /// `NBD_CMD_CACHE`: the range will be needed soon.
    Cache = CMD_CACHE,
    /// `NBD_CMD_WRITE_ZEROES`: make the range read as zeroes.
    WriteZeroes = CMD_WRITE_ZEROES,
    /// `NBD_CMD_BLOCK_STATUS`: say which parts of the range are holes.
    BlockStatus = CMD_BLOCK_STATUS,
}

impl Command {
    /// The command of a request's type field; `None` for types that we do not know.
    pub const fn from_wire(value: u16) -> Option<Self> {
        Some(match value {
            CMD_READ => Self::Read,
            CMD_WRITE => Self::Write,
            CMD_DISC => Self::Disconnect,
            CMD_FLUSH => Self::Flush,
            CMD_TRIM => Self::Trim,
            CMD_CACHE => Self::Cache,
            CMD_WRITE_ZEROES => Self::WriteZeroes,
            CMD_BLOCK_STATUS => Self::BlockStatus,
            _ => return None,
        })
    }

    /// Whether the command changes the bytes of the export.
    pub const fn modifies(self) -> bool {
        matches!(self, Self::Write | Self::Trim | Self::WriteZeroes)
    }

    /// The transmission flag without which a client must not send this command.
    const fn needs(self) -> TransmissionFlags {
        match self {
            Self::Flush => TransmissionFlags::SEND_FLUSH,
            Self::Trim => TransmissionFlags::SEND_TRIM,
            Self::Cache => TransmissionFlags::SEND_CACHE,
            Self::WriteZeroes => TransmissionFlags::SEND_WRITE_ZEROES,
            Self::Read | Self::Write | Self::Disconnect | Self::BlockStatus => TransmissionFlags::NONE,
        }
    }

    /// The command flags that mean something on this command of an export with these transmission flags.
    const fn permits(self, export: TransmissionFlags) -> CommandFlags {
        // FUA is legal on every command, reads included: existing clients do set it there.
        let fua =
            if export.contains(TransmissionFlags::SEND_FUA) { CommandFlags::FUA } else { CommandFlags::NONE };
        let own = match self {
            Self::Read if export.contains(TransmissionFlags::SEND_DF) => CommandFlags::DF,
            Self::WriteZeroes if export.contains(TransmissionFlags::SEND_FAST_ZERO) => {
                CommandFlags::NO_HOLE.union(CommandFlags::FAST_ZERO)
            }
            Self::WriteZeroes => CommandFlags::NO_HOLE,
            Self::BlockStatus => CommandFlags::REQ_ONE,
            _ => CommandFlags::NONE,
        };
        fua.union(own)
    }
}

/// One request of a client, well-formed but not yet checked against the export. Section "Request message".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The client's name for this request (`handle` in older texts); every reply carries it back.
    pub cookie: u64,
    /// What to do.
    pub command: Command,
    /// How to do it, with unknown bits kept so that [`validate`] can refuse them.
    pub flags: CommandFlags,
    /// Where the range starts, in bytes from the start of the export.
    pub offset: u64,
    /// How long the range is, in bytes.
    pub length: u32,
}

impl Request {
    /// How many bytes of payload follow the header. They have to be taken from the stream even if the request
    /// is refused, or the next header is read from the middle of them.
    pub const fn payload(&self) -> u32 {
        match self.command {
            Command::Write => self.length,
            _ => 0,
        }
    }
}

/// Why a header is no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The stream is out of step and nobody knows where the next request starts: close the connection.
    #[error(
        "request starts with {magic:#010x} instead of {REQUEST_MAGIC:#010x}: the stream is out of step, close it"
    )]
    BadMagic {
        /// What stood in place of the magic.
        magic: u32,
    },
    /// A command that we do not know: answer [`NbdError::Inval`] and go on. No payload follows, since of the
    /// commands with this header only a write has one.
    #[error("unknown command {command}: answer with EINVAL and go on")]
    UnknownCommand {
        /// The cookie to answer with.
        cookie: u64,
        /// The type field of the request.
        command: u16,
    },
}

impl Malformed {
    /// The answer to send before going on; `None` means that the connection must be closed.
    pub const fn reply(&self) -> Option<(u64, NbdError)> {
        match self {
            Self::BadMagic { .. } => None,
            Self::UnknownCommand { cookie, .. } => Some((*cookie, NbdError::Inval)),
        }
    }
}

/// Parses one request header. Section "Request message".
///
/// # Errors
/// [`Malformed`], which says whether the connection can go on.
pub fn parse_request(header: &[u8; REQUEST_BYTES]) -> Result<Request, Malformed> {
    let magic = u32::from_be_bytes(field(header, 0));
    if magic != REQUEST_MAGIC {
        return Err(Malformed::BadMagic { magic });
    }
    let cookie = u64::from_be_bytes(field(header, 8));
    let command = u16::from_be_bytes(field(header, 6));
    let Some(command) = Command::from_wire(command) else {
        return Err(Malformed::UnknownCommand { cookie, command });
    };
    Ok(Request {
        cookie,
        command,
        flags: CommandFlags::from_bits(u16::from_be_bytes(field(header, 4))),
        offset: u64::from_be_bytes(field(header, 16)),
        length: u32::from_be_bytes(field(header, 24)),
    })
}

/// The `N` bytes of the header at `at`, all of which lie inside it.
fn field<const N: usize>(header: &[u8; REQUEST_BYTES], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&header[at..at + N]);
    bytes
}

/// What an export allows, as it was told to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportLimits {
    /// Size of the export in bytes.
    pub size: u64,
    /// The transmission flags that the client was given; they say what is offered and what is read-only.
    pub flags: TransmissionFlags,
    /// Whether `base:allocation` was negotiated, without which there is no block status.
    pub base_allocation: bool,
    /// Smallest unit of offset and length in bytes, a power of two; 0 counts as 1.
    pub min_block: u32,
    /// Longest read and longest write in bytes. Other commands carry no payload and are not held to it.
    pub max_request: u32,
}

/// Checks a request against its export. Section "Error values", and each command in "Request types".
///
/// The checks run in this order: may it change the export, is the command offered, do its flags apply, is the
/// range sound. Three choices that the specification leaves open:
///
/// - a length of zero is "unspecified, but do not disconnect": we answer [`NbdError::Inval`], as nbdkit does,
///   so that nothing behind this door ever meets an empty range;
/// - an oversize read or write is [`NbdError::Inval`]. [`NbdError::Overflow`] is reserved by the
///   specification for reads with `DF` that could be served in several chunks; these could not;
/// - trim, cache, write zeroes and block status carry no payload, so they may be as long as the field allows.
///
/// `NBD_CMD_DISC` always passes: it cannot be answered, and refusing to part helps nobody.
///
/// # Errors
/// The value for the error field of the reply. The connection goes on; the payload, if any, is still to be
/// taken from the stream.
pub fn validate(request: &Request, limits: &ExportLimits) -> Result<(), NbdError> {
    if request.command == Command::Disconnect {
        return Ok(());
    }
    if request.command.modifies() && limits.flags.contains(TransmissionFlags::READ_ONLY) {
        return Err(NbdError::Perm);
    }
    if !limits.flags.contains(request.command.needs())
        || !request.command.permits(limits.flags).contains(request.flags)
    {
        return Err(NbdError::Inval);
    }
    match request.command {
        Command::Flush if request.offset != 0 || request.length != 0 => Err(NbdError::Inval),
        Command::Flush => Ok(()),
        Command::BlockStatus if !limits.base_allocation => Err(NbdError::Inval),
        _ => validate_range(request, limits),
    }
}

/// Checks offset and length of a command that has a range.
fn validate_range(request: &Request, limits: &ExportLimits) -> Result<(), NbdError> {
    let Request { offset, length, .. } = *request;
    let block = limits.min_block.max(1);
    if length == 0 || !length.is_multiple_of(block) || !offset.is_multiple_of(u64::from(block)) {
        return Err(NbdError::Inval);
    }
    let carries_payload = matches!(request.command, Command::Read | Command::Write);
    if carries_payload && length > limits.max_request {
        return Err(NbdError::Inval);
    }
    match offset.checked_add(u64::from(length)) {
        Some(end) if end <= limits.size => Ok(()),
        // Beyond the end, or beyond the end of u64, which is further still.
        _ if matches!(request.command, Command::Write | Command::WriteZeroes) => Err(NbdError::NoSpc),
        _ => Err(NbdError::Inval),
    }
}

/// Encodes a simple reply. Section "Simple reply message".
///
/// The data of a read that went well follows it; after an error nothing does. Never for a read once
/// structured replies were negotiated.
pub fn simple_reply(cookie: u64, result: Result<(), NbdError>) -> [u8; SIMPLE_REPLY_BYTES] {
    let error = result.err().map_or(0, NbdError::wire);
    let mut reply = [0; SIMPLE_REPLY_BYTES];
    reply[..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    reply[4..8].copy_from_slice(&error.to_be_bytes());
    reply[8..].copy_from_slice(&cookie.to_be_bytes());
    reply
}

/// One stretch of an export with the same status. Section "Structured reply types",
/// `NBD_REPLY_TYPE_BLOCK_STATUS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// How long it is, in bytes; never zero.
    pub length: u32,
    /// [`STATE_HOLE`](super::proto::STATE_HOLE) and [`STATE_ZERO`](super::proto::STATE_ZERO); 0 ("data, or
    /// not known") is always a correct answer.
    pub status: u32,
}

/// The longest [`ReplyHeader`], in bytes.
pub const REPLY_HEADER_MAX: usize = 64;
/// How many extents fit into one [`ReplyHeader`].
pub const REPLY_EXTENTS_MAX: usize = (REPLY_HEADER_MAX - CHUNK_HEADER_BYTES - 4) / EXTENT_BYTES;
const _: () = assert!(kaeru_common::wire::io::REPLY_EXTENTS <= REPLY_EXTENTS_MAX);

/// Everything of a reply that is not the data of a read, in a fixed buffer for a vectored write.
///
/// Made by one constructor for each kind of reply. Where data follows, the constructor says so; everything
/// else is complete in itself.
#[derive(Clone, Copy, Debug)]
pub struct ReplyHeader {
    bytes: [u8; REPLY_HEADER_MAX],
    length: usize,
}

impl ReplyHeader {
    /// A simple reply, see [`simple_reply`].
    pub fn simple(cookie: u64, result: Result<(), NbdError>) -> Self {
        Self::empty().put(&simple_reply(cookie, result))
    }

    /// A last chunk that only says that the reply is complete: `NBD_REPLY_TYPE_NONE`.
    pub fn done(cookie: u64) -> Self {
        Self::chunk(cookie, true, REPLY_TYPE_NONE, 0)
    }

    /// The head of a chunk of data: `NBD_REPLY_TYPE_OFFSET_DATA`. The `length` bytes of data follow it.
    ///
    /// `length` is not zero and at most [`MAX_REQUEST`](super::proto::MAX_REQUEST), as [`validate`] assures.
    /// `done` only if no error can come to light any more.
    pub fn offset_data(cookie: u64, offset: u64, length: u32, done: bool) -> Self {
        debug_assert!(length > 0 && length <= u32::MAX - 8, "no chunk holds {length} bytes");
        // Saturating, because a length that wrapped to a small one would put the whole stream out of step.
        Self::chunk(cookie, done, REPLY_TYPE_OFFSET_DATA, length.saturating_add(8)).put(&offset.to_be_bytes())
    }

    /// A stretch of a read that is all zeroes: `NBD_REPLY_TYPE_OFFSET_HOLE`. Complete in itself.
    ///
    /// `length` is not zero. Not for a read with [`CommandFlags::DF`] that also has data.
    pub fn offset_hole(cookie: u64, offset: u64, length: u32, done: bool) -> Self {
        debug_assert!(length > 0, "a hole has a length");
        Self::chunk(cookie, done, REPLY_TYPE_OFFSET_HOLE, 8 + 4)
            .put(&offset.to_be_bytes())
            .put(&length.to_be_bytes())
    }

    /// The extents of one metadata context, as the whole reply: `NBD_REPLY_TYPE_BLOCK_STATUS`, done.
    ///
    /// The specification wants at least one extent, hence `first`. What does not fit (more than
    /// [`REPLY_EXTENTS_MAX`] in all) is left out: a short answer is legal and the client asks on from its
    /// end.
    pub fn block_status(cookie: u64, context: u32, first: Extent, rest: &[Extent]) -> Self {
        let rest = &rest[..rest.len().min(REPLY_EXTENTS_MAX - 1)];
        let length = 4 + (1 + rest.len()) * EXTENT_BYTES;
        let head =
            Self::chunk(cookie, true, REPLY_TYPE_BLOCK_STATUS, length as u32).put(&context.to_be_bytes());
        std::iter::once(&first).chain(rest).fold(head, |reply, extent| {
            debug_assert!(extent.length > 0, "an extent has a length");
            reply.put(&extent.length.to_be_bytes()).put(&extent.status.to_be_bytes())
        })
    }

    /// The end of a reply that failed: `NBD_REPLY_TYPE_ERROR`, done.
    ///
    /// `message` is for a human and may be empty; it is cut, between characters, at what fits.
    pub fn error(cookie: u64, error: NbdError, message: &str) -> Self {
        let message = fitting(message, 0);
        Self::chunk(cookie, true, REPLY_TYPE_ERROR, (4 + 2 + message.len()) as u32).put_error(error, message)
    }

    /// A failure at an offset of the export: `NBD_REPLY_TYPE_ERROR_OFFSET`.
    ///
    /// `offset` lies inside the request. Data that was sent for the range before it counts as good.
    pub fn error_offset(cookie: u64, error: NbdError, message: &str, offset: u64, done: bool) -> Self {
        let message = fitting(message, 8);
        Self::chunk(cookie, done, REPLY_TYPE_ERROR_OFFSET, (4 + 2 + message.len() + 8) as u32)
            .put_error(error, message)
            .put(&offset.to_be_bytes())
    }

    /// The bytes to send, at most [`REPLY_HEADER_MAX`].
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    fn empty() -> Self {
        Self { bytes: [0; REPLY_HEADER_MAX], length: 0 }
    }

    /// The 20 bytes that start every chunk. Section "Structured reply chunk message".
    fn chunk(cookie: u64, done: bool, kind: u16, payload: u32) -> Self {
        let flags = if done { ReplyFlags::DONE } else { ReplyFlags::NONE };
        Self::empty()
            .put(&STRUCTURED_REPLY_MAGIC.to_be_bytes())
            .put(&flags.bits().to_be_bytes())
            .put(&kind.to_be_bytes())
            .put(&cookie.to_be_bytes())
            .put(&payload.to_be_bytes())
    }

    fn put_error(self, error: NbdError, message: &str) -> Self {
        self.put(&error.wire().to_be_bytes())
            .put(&(message.len() as u16).to_be_bytes())
            .put(message.as_bytes())
    }

    /// Appends bytes, of which each constructor knows that they fit.
    fn put(mut self, bytes: &[u8]) -> Self {
        let end = self.length + bytes.len();
        self.bytes[self.length..end].copy_from_slice(bytes);
        self.length = end;
        self
    }
}

/// As much of a message as fits into an error chunk that `after` more bytes follow, whole characters only.
fn fitting(message: &str, after: usize) -> &str {
    let room = REPLY_HEADER_MAX - CHUNK_HEADER_BYTES - 4 - 2 - after;
    cut(message, room)
}

#[cfg(test)]
mod tests;
