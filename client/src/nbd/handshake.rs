//! The handshake, pure: fixed newstyle negotiation from the server's side. Sections "Fixed newstyle
//! negotiation", "Option types" and "Option reply types" of the NBD specification.
//!
//! This module decides which export a client gets and which features both sides will use. It owns no socket:
//! a caller obeys [`Handshake::poll`] (send this, receive more, go on to transmission, close) and passes what
//! came in to [`Handshake::receive`], in pieces of any size.
//!
//! Three rules shape it:
//!
//! - **An option never ends the session if it can be answered.** Unknown, malformed, mistimed or oversized:
//!   there is an error reply for it, with a text for the human, and the next option is served. Clients try
//!   features and fall back, and rely on this. The few cases without an answer are [`HandshakeError`].
//! - **Nothing a client says is kept before it is known to be bounded.** At most [`MAX_OPTION_DATA`] bytes
//!   are buffered, longer data is counted and dropped, and no input is taken while an answer waits to be
//!   sent.
//! - **What was promised is what is served.** [`Negotiated`] carries the flags exactly as the client was
//!   told.

use std::sync::Arc;

use bytes::{Buf, BufMut, BytesMut};

use super::proto::{
    BASE_ALLOCATION, BASE_WILDCARD, CLIENT_FLAGS_BYTES, ClientFlags, EXPORT_NAME_ZEROES, HandshakeFlags,
    INFO_BLOCK_SIZE, INFO_DESCRIPTION, INFO_EXPORT, INFO_NAME, INIT_MAGIC, MAX_MINIMUM_BLOCK, MAX_STRING,
    MIN_PREFERRED_BLOCK, NO_MAXIMUM_BLOCK, OPT_ABORT, OPT_EXPORT_NAME, OPT_GO, OPT_INFO, OPT_LIST,
    OPT_LIST_META_CONTEXT, OPT_SET_META_CONTEXT, OPT_STARTTLS, OPT_STRUCTURED_REPLY, OPTION_HEADER_BYTES,
    OPTION_MAGIC, OPTION_REPLY_MAGIC, REP_ACK, REP_ERR_INVALID, REP_ERR_TOO_BIG, REP_ERR_UNKNOWN,
    REP_ERR_UNSUP, REP_INFO, REP_META_CONTEXT, REP_SERVER, TransmissionFlags, cut,
};

/// The most data of one option that is buffered, in bytes. More is answered with `NBD_REP_ERR_TOO_BIG`.
pub const MAX_OPTION_DATA: u32 = 64 << 10;
/// The most data of one option that is read past, in bytes. A client that announces more is cut off.
pub const MAX_OPTION_SKIP: u32 = 16 << 20;
/// The most options in one handshake. Real clients need about ten, or two for each export that they list.
pub const MAX_OPTIONS: u32 = 1024;
/// The metadata context ID of `base:allocation`, to be used in block status replies.
pub const BASE_ALLOCATION_ID: u32 = 1;

/// How many exports an error message names at most; `NBD_OPT_LIST` names them all.
const NAMES_IN_MESSAGE: usize = 8;
/// How much of one name an error message shows, in bytes.
const NAME_IN_MESSAGE: usize = 128;

// ---- What is on offer ----

/// Block sizes of an export, in bytes. Section "Block size constraints".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSizes {
    /// Smallest unit of offset and length: a power of two, at most 64 KiB.
    pub min: u32,
    /// Smallest length that is efficient: a power of two, at least 512 and at least `min`.
    pub preferred: u32,
    /// Longest request: a multiple of `min`, or `u32::MAX` for no limit.
    pub max: u32,
}

/// One export as clients are to see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportInfo {
    /// Its name, at most 4096 bytes, without NUL. An export named `""` is the default export.
    pub name: String,
    /// A text for a human; may be empty.
    pub description: String,
    /// Its size in bytes, a multiple of `block.min`.
    pub size: u64,
    /// What it can do. `HAS_FLAGS` is added and `SEND_DF` withheld by the handshake as the specification
    /// asks.
    pub flags: TransmissionFlags,
    /// Its block sizes.
    pub block: BlockSizes,
}

impl ExportInfo {
    /// The transmission flags to send to a client that did or did not agree to structured replies.
    fn flags_for(&self, structured: bool) -> TransmissionFlags {
        let mut flags = self.flags.union(TransmissionFlags::HAS_FLAGS);
        if !structured {
            flags = flags.without(TransmissionFlags::SEND_DF);
        }
        if !flags.contains(TransmissionFlags::SEND_WRITE_ZEROES) {
            flags = flags.without(TransmissionFlags::SEND_FAST_ZERO);
        }
        flags
    }

    fn check(&self) -> Result<(), ExportError> {
        let name = || shown(&self.name);
        for text in [&self.name, &self.description] {
            if text.len() > MAX_STRING || text.contains('\0') {
                return Err(ExportError::Text { name: name(), length: text.len() });
            }
        }
        let BlockSizes { min, preferred, max } = self.block;
        let min_ok = min.is_power_of_two() && min <= MAX_MINIMUM_BLOCK;
        let preferred_ok = preferred.is_power_of_two() && preferred >= min.max(MIN_PREFERRED_BLOCK);
        let max_ok = max == NO_MAXIMUM_BLOCK
            || (min_ok && max.is_multiple_of(min) && u64::from(max) >= self.size.min(u64::from(preferred)));
        if !(min_ok && preferred_ok && max_ok) {
            return Err(ExportError::BlockSizes { name: name(), min, preferred, max });
        }
        if !self.size.is_multiple_of(u64::from(min)) {
            return Err(ExportError::Size { name: name(), size: self.size, min });
        }
        Ok(())
    }
}

/// Why a list of exports cannot be offered over NBD.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExportError {
    /// A name or description that is no NBD string.
    #[error("export {name}: a name or description of {length} bytes; use at most {MAX_STRING} and no NUL")]
    Text {
        /// The export.
        name: String,
        /// Length of the text in bytes.
        length: usize,
    },
    /// Two exports of one name.
    #[error("export {name} is listed twice; give each export its own name")]
    Duplicate {
        /// The export.
        name: String,
    },
    /// Block sizes that may not be advertised.
    #[error(
        "export {name}: block sizes {min}/{preferred}/{max} are not allowed; use powers of two, the minimum at \
         most {MAX_MINIMUM_BLOCK}, the preferred at least {MIN_PREFERRED_BLOCK} and the minimum, and as maximum \
         a multiple of the minimum that is not below the preferred size"
    )]
    BlockSizes {
        /// The export.
        name: String,
        /// Minimum block size in bytes.
        min: u32,
        /// Preferred block size in bytes.
        preferred: u32,
        /// Maximum block size in bytes.
        max: u32,
    },
    /// A tail that no client could reach.
    #[error(
        "export {name}: its size of {size} bytes is no multiple of the minimum block size {min}, so its last {} \
         bytes would be lost; choose a smaller minimum or round the size",
        size % u64::from(*min)
    )]
    Size {
        /// The export.
        name: String,
        /// Size in bytes.
        size: u64,
        /// Minimum block size in bytes.
        min: u32,
    },
}

/// The exports that a handshake offers; cheap to clone, one for each connection.
#[derive(Clone, Debug)]
pub struct Exports(Arc<[ExportInfo]>);

impl Exports {
    /// A checked list of exports.
    ///
    /// # Errors
    /// [`ExportError`] if a client could not be told of one of them correctly.
    pub fn new(exports: Vec<ExportInfo>) -> Result<Self, ExportError> {
        let mut names = std::collections::HashSet::new();
        for export in &exports {
            export.check()?;
            if !names.insert(&export.name) {
                return Err(ExportError::Duplicate { name: shown(&export.name) });
            }
        }
        Ok(Self(exports.into()))
    }

    /// The export of a name. The empty name means the default export: the one with that name, else the first.
    pub fn find(&self, name: &str) -> Option<&ExportInfo> {
        let named = self.0.iter().find(|export| export.name == name);
        if name.is_empty() { named.or(self.0.first()) } else { named }
    }

    /// Every export, in the order of the list.
    pub fn iter(&self) -> std::slice::Iter<'_, ExportInfo> {
        self.0.iter()
    }
}

/// A name in quotes, short enough for a message.
fn shown(name: &str) -> String {
    let short = cut(name, NAME_IN_MESSAGE);
    if short.len() < name.len() { format!("{short:?}...") } else { format!("{name:?}") }
}

// ---- What comes of it ----

/// What client and server agreed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// The canonical name of the export, to be looked up with [`Exports::find`].
    pub export: String,
    /// The transmission flags, as the client was told.
    pub flags: TransmissionFlags,
    /// Whether every read must be answered with structured replies.
    pub structured: bool,
    /// Whether `base:allocation` was selected for this export; its ID is [`BASE_ALLOCATION_ID`].
    pub base_allocation: bool,
}

/// Why a connection must be closed without another word. Each is final: there is no reply in the protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// The client wants something that we cannot know the meaning of. Section "Client flags": must be
    /// dropped.
    #[error("client flags {flags:#x} hold unknown bits; the specification says to close the connection")]
    UnknownClientFlags {
        /// The flags as received.
        flags: u32,
    },
    /// The stream is out of step, or the client does not speak NBD.
    #[error(
        "option starts with {magic:#018x} instead of IHAVEOPT; close the connection (is the client an NBD client?)"
    )]
    BadOptionMagic {
        /// What stood in place of the magic.
        magic: u64,
    },
    /// Only fixed newstyle has replies to options other than `NBD_OPT_EXPORT_NAME`.
    #[error(
        "option {option} from a client without NBD_FLAG_C_FIXED_NEWSTYLE has no reply; close the connection"
    )]
    NotFixedNewstyle {
        /// The option.
        option: u32,
    },
    /// More data than anybody would want to read past.
    #[error("option {option} announces {length} bytes, more than {MAX_OPTION_SKIP}; close the connection")]
    OptionTooLong {
        /// The option.
        option: u32,
        /// Its announced length in bytes.
        length: u32,
    },
    /// A client that never comes to the point.
    #[error("more than {MAX_OPTIONS} options without choosing an export; close the connection")]
    TooManyOptions,
    /// `NBD_OPT_EXPORT_NAME` for something that does not exist: this option has no error reply.
    #[error("{reason}; NBD_OPT_EXPORT_NAME has no error reply, so close the connection")]
    ExportName {
        /// What was wrong with the name.
        reason: String,
    },
}

/// What the caller has to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Send these bytes, then poll again.
    Send(BytesMut),
    /// Read from the client and pass it to [`Handshake::receive`], then poll again.
    Receive,
    /// The handshake is over: start transmission with the bytes that `receive` did not take.
    Go(Negotiated),
    /// The client took its leave: close the connection.
    Aborted,
    /// Close the connection at once.
    Failed(HandshakeError),
}

// ---- The machine ----

/// One client's handshake. See the module's text for the loop around it.
#[derive(Debug)]
pub struct Handshake {
    exports: Exports,
    state: State,
    /// The part of a message that has arrived; never longer than what the state wants.
    input: BytesMut,
    /// What waits to be sent; while it is not empty, no input is taken.
    output: BytesMut,
    client: ClientFlags,
    options: u32,
    structured: bool,
    /// The name for which `base:allocation` was selected, as the client spelled it.
    context: Option<String>,
}

/// Where in the client's stream we are.
#[derive(Debug)]
enum State {
    ClientFlags,
    OptionHeader,
    /// Collecting the data of an option that has a meaning.
    Data {
        option: u32,
        length: u32,
    },
    /// Dropping the data of an option that is decided already.
    Skip {
        option: u32,
        left: u32,
        then: Verdict,
    },
    /// Nothing is read any more; what `poll` says once everything is sent.
    Ended(Next),
}

/// What to do with an option whose data does not matter.
#[derive(Debug)]
enum Verdict {
    List,
    StructuredReply,
    Abort,
    Refuse(Refusal),
}

/// An error reply: its type and its text for a human.
#[derive(Debug)]
struct Refusal {
    reply: u32,
    message: String,
}

/// What becomes of an option whose data does not matter; `None` if the data has to be collected first.
fn verdict(option: u32, length: u32) -> Option<Verdict> {
    let refuse = |reply, message: String| Verdict::Refuse(Refusal { reply, message });
    Some(match option {
        OPT_EXPORT_NAME => return None,
        OPT_INFO | OPT_GO | OPT_LIST_META_CONTEXT | OPT_SET_META_CONTEXT if length <= MAX_OPTION_DATA => {
            return None;
        }
        OPT_INFO | OPT_GO | OPT_LIST_META_CONTEXT | OPT_SET_META_CONTEXT => {
            refuse(REP_ERR_TOO_BIG, format!("{length} bytes of data; the limit is {MAX_OPTION_DATA}"))
        }
        // The specification asks to ignore any data of an abort.
        OPT_ABORT => Verdict::Abort,
        OPT_LIST | OPT_STRUCTURED_REPLY if length > 0 => {
            refuse(REP_ERR_INVALID, format!("option {option} takes no data, but {length} bytes came"))
        }
        OPT_LIST => Verdict::List,
        OPT_STRUCTURED_REPLY => Verdict::StructuredReply,
        OPT_STARTTLS => refuse(REP_ERR_UNSUP, "TLS is not offered here".into()),
        _ => refuse(REP_ERR_UNSUP, format!("option {option} is not supported")),
    })
}

fn invalid(message: impl Into<String>) -> Refusal {
    Refusal { reply: REP_ERR_INVALID, message: message.into() }
}

impl Handshake {
    /// Starts a handshake; the greeting is the first thing to send.
    pub fn new(exports: Exports) -> Self {
        let mut output = BytesMut::new();
        output.put_u64(INIT_MAGIC);
        output.put_u64(OPTION_MAGIC);
        output.put_u16(HandshakeFlags::FIXED_NEWSTYLE.union(HandshakeFlags::NO_ZEROES).bits());
        Self {
            exports,
            state: State::ClientFlags,
            input: BytesMut::new(),
            output,
            client: ClientFlags::NONE,
            options: 0,
            structured: false,
            context: None,
        }
    }

    /// What to do next. Ends in [`Next::Go`], [`Next::Aborted`] or [`Next::Failed`], which then stay.
    pub fn poll(&mut self) -> Next {
        if !self.output.is_empty() {
            return Next::Send(self.output.split());
        }
        match &self.state {
            State::Ended(outcome) => outcome.clone(),
            _ => Next::Receive,
        }
    }

    /// Takes bytes of the client and returns how many it took. It takes none of what follows the handshake,
    /// and none while something waits to be sent: poll, then offer the rest again.
    pub fn receive(&mut self, bytes: &[u8]) -> usize {
        let mut rest = bytes;
        while self.output.is_empty() {
            let complete = match self.state {
                State::ClientFlags => self.collect(&mut rest, CLIENT_FLAGS_BYTES),
                State::OptionHeader => self.collect(&mut rest, OPTION_HEADER_BYTES),
                State::Data { length, .. } => self.collect(&mut rest, length as usize),
                State::Skip { ref mut left, .. } => {
                    let skipped = rest.len().min(*left as usize);
                    rest.advance(skipped);
                    *left -= skipped as u32;
                    *left == 0
                }
                State::Ended(_) => false,
            };
            if !complete {
                break;
            }
            self.advance();
        }
        bytes.len() - rest.len()
    }

    /// Moves bytes into the input until it holds `wanted`; says whether it does.
    fn collect(&mut self, rest: &mut &[u8], wanted: usize) -> bool {
        let taken = rest.len().min(wanted - self.input.len());
        self.input.extend_from_slice(&rest[..taken]);
        rest.advance(taken);
        self.input.len() == wanted
    }

    /// Acts on a complete message and enters the next state.
    fn advance(&mut self) {
        let input = self.input.split();
        match std::mem::replace(&mut self.state, State::OptionHeader) {
            State::ClientFlags => self.client_flags(&input),
            State::OptionHeader => self.option_header(&input),
            State::Data { option: OPT_EXPORT_NAME, .. } => self.export_name(&input),
            State::Data { option, .. } => self.data(option, &input),
            State::Skip { option, then, .. } => self.act(option, then),
            ended @ State::Ended(_) => self.state = ended,
        }
    }

    fn fail(&mut self, error: HandshakeError) {
        self.state = State::Ended(Next::Failed(error));
    }

    /// Section "Client flags".
    fn client_flags(&mut self, mut input: &[u8]) {
        let known = ClientFlags::FIXED_NEWSTYLE.union(ClientFlags::NO_ZEROES);
        self.client = ClientFlags::from_bits(input.get_u32());
        if !known.contains(self.client) {
            self.fail(HandshakeError::UnknownClientFlags { flags: self.client.bits() });
        }
    }

    /// Decides from the header alone whether the data of an option is worth keeping.
    fn option_header(&mut self, mut input: &[u8]) {
        let (magic, option, length) = (input.get_u64(), input.get_u32(), input.get_u32());
        self.options += 1;
        if let Err(error) = self.admit(magic, option, length) {
            return self.fail(error);
        }
        if option == OPT_SET_META_CONTEXT {
            // It replaces the earlier selection "including when this command fails".
            self.context = None;
        }
        self.state = match verdict(option, length) {
            Some(then) => State::Skip { option, left: length, then },
            None => State::Data { option, length },
        };
    }

    /// The checks that have no reply.
    fn admit(&self, magic: u64, option: u32, length: u32) -> Result<(), HandshakeError> {
        if magic != OPTION_MAGIC {
            return Err(HandshakeError::BadOptionMagic { magic });
        }
        if self.options > MAX_OPTIONS {
            return Err(HandshakeError::TooManyOptions);
        }
        if option == OPT_EXPORT_NAME {
            return if length as usize > MAX_STRING {
                let reason = format!("export name of {length} bytes, the limit is {MAX_STRING}");
                Err(HandshakeError::ExportName { reason })
            } else {
                Ok(())
            };
        }
        if !self.client.contains(ClientFlags::FIXED_NEWSTYLE) {
            return Err(HandshakeError::NotFixedNewstyle { option });
        }
        if length > MAX_OPTION_SKIP {
            return Err(HandshakeError::OptionTooLong { option, length });
        }
        Ok(())
    }

    /// `NBD_OPT_EXPORT_NAME`: the whole data is the name, and failure has no reply.
    fn export_name(&mut self, data: &[u8]) {
        let (name, export) = match string(data).and_then(|name| Ok((name, self.lookup(name)?.clone()))) {
            Ok(found) => found,
            Err(refusal) => return self.fail(HandshakeError::ExportName { reason: refusal.message }),
        };
        self.output.put_u64(export.size);
        self.output.put_u16(export.flags_for(self.structured).bits());
        if !self.client.contains(ClientFlags::NO_ZEROES) {
            self.output.put_bytes(0, EXPORT_NAME_ZEROES);
        }
        self.go(name, &export);
    }

    /// Options that carry data and have replies.
    fn data(&mut self, option: u32, data: &[u8]) {
        let result = match option {
            OPT_INFO | OPT_GO => self.info(option, data),
            _ => self.meta_context(option, data),
        };
        if let Err(refusal) = result {
            self.refuse(option, &refusal);
        }
    }

    /// `NBD_OPT_INFO` and `NBD_OPT_GO`: describe an export; `GO` also starts transmission.
    fn info(&mut self, option: u32, data: &[u8]) -> Result<(), Refusal> {
        let mut reader = Reader(data);
        let name = reader.string()?;
        let count = reader.u16()?;
        let wanted = reader.take(usize::from(count) * 2)?;
        reader.end()?;
        let wants = |info: u16| wanted.chunks_exact(2).any(|request| request == info.to_be_bytes());
        let export = self.lookup(name)?.clone();

        let size_and_flags =
            [&export.size.to_be_bytes()[..], &export.flags_for(self.structured).bits().to_be_bytes()[..]];
        self.reply_info(option, INFO_EXPORT, &size_and_flags);
        if wants(INFO_NAME) {
            self.reply_info(option, INFO_NAME, &[export.name.as_bytes()]);
        }
        if wants(INFO_DESCRIPTION) && !export.description.is_empty() {
            self.reply_info(option, INFO_DESCRIPTION, &[export.description.as_bytes()]);
        }
        // Always, asked or not: a client that understands it avoids requests that we would refuse.
        let BlockSizes { min, preferred, max } = export.block;
        let sizes = [min, preferred, max].map(u32::to_be_bytes);
        self.reply_info(option, INFO_BLOCK_SIZE, &[sizes.as_flattened()]);
        self.reply(option, REP_ACK, &[]);
        if option == OPT_GO {
            self.go(name, &export);
        }
        Ok(())
    }

    /// `NBD_OPT_LIST_META_CONTEXT` and `NBD_OPT_SET_META_CONTEXT`, for the one context that we have.
    fn meta_context(&mut self, option: u32, data: &[u8]) -> Result<(), Refusal> {
        if !self.structured {
            return Err(invalid("negotiate structured replies before metadata contexts"));
        }
        let list = option == OPT_LIST_META_CONTEXT;
        let mut reader = Reader(data);
        let name = reader.string()?;
        let queries = reader.u32()?;
        // To list without a query is to list everything; to set without a query is to set nothing.
        let mut selected = list && queries == 0;
        for _ in 0..queries {
            // Each query takes at least four bytes of the data, so a large count ends early.
            let query = reader.counted()?;
            selected |= query == BASE_ALLOCATION.as_bytes() || (list && query == BASE_WILDCARD.as_bytes());
        }
        reader.end()?;
        self.lookup(name)?;

        if selected {
            let id = if list { 0 } else { BASE_ALLOCATION_ID };
            self.reply(option, REP_META_CONTEXT, &[&id.to_be_bytes(), BASE_ALLOCATION.as_bytes()]);
        }
        if selected && !list {
            self.context = Some(name.to_owned());
        }
        self.reply(option, REP_ACK, &[]);
        Ok(())
    }

    /// Options whose data, if any, has been dropped.
    fn act(&mut self, option: u32, verdict: Verdict) {
        match verdict {
            Verdict::List => self.list(option),
            Verdict::StructuredReply => {
                self.structured = true;
                self.reply(option, REP_ACK, &[]);
            }
            Verdict::Abort => {
                self.reply(option, REP_ACK, &[]);
                self.state = State::Ended(Next::Aborted);
            }
            Verdict::Refuse(refusal) => self.refuse(option, &refusal),
        }
    }

    /// `NBD_OPT_LIST`.
    fn list(&mut self, option: u32) {
        for export in self.exports.clone().iter() {
            let length = (export.name.len() as u32).to_be_bytes();
            let data = [&length, export.name.as_bytes(), export.description.as_bytes()];
            self.reply(option, REP_SERVER, &data);
        }
        self.reply(option, REP_ACK, &[]);
    }

    /// Ends the handshake with an export that the client asked for as `name`.
    fn go(&mut self, name: &str, export: &ExportInfo) {
        self.state = State::Ended(Next::Go(Negotiated {
            export: export.name.clone(),
            flags: export.flags_for(self.structured),
            structured: self.structured,
            base_allocation: self.context.as_deref() == Some(name),
        }));
    }

    fn lookup(&self, name: &str) -> Result<&ExportInfo, Refusal> {
        self.exports.find(name).ok_or_else(|| {
            let names: Vec<_> =
                self.exports.iter().take(NAMES_IN_MESSAGE).map(|export| shown(&export.name)).collect();
            let more = if self.exports.0.len() > NAMES_IN_MESSAGE { ", ..." } else { "" };
            let offer = if names.is_empty() { "no export at all".into() } else { names.join(", ") };
            let message = format!("no export {}; there is: {offer}{more}", shown(name));
            Refusal { reply: REP_ERR_UNKNOWN, message }
        })
    }

    fn refuse(&mut self, option: u32, refusal: &Refusal) {
        self.reply(option, refusal.reply, &[cut(&refusal.message, MAX_STRING).as_bytes()]);
    }

    fn reply_info(&mut self, option: u32, info: u16, data: &[&[u8]]) {
        self.reply(option, REP_INFO, &[&[&info.to_be_bytes()[..]], data].concat());
    }

    /// One reply packet. Section "Fixed newstyle negotiation".
    fn reply(&mut self, option: u32, reply: u32, data: &[&[u8]]) {
        let length: usize = data.iter().map(|part| part.len()).sum();
        self.output.put_u64(OPTION_REPLY_MAGIC);
        self.output.put_u32(option);
        self.output.put_u32(reply);
        self.output.put_u32(length as u32);
        for part in data {
            self.output.put_slice(part);
        }
    }
}

/// Reads the data of an option, never past its end.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], Refusal> {
        let Some((taken, rest)) = self.0.split_at_checked(length) else {
            return Err(invalid(format!("data ends {} bytes too early", length - self.0.len())));
        };
        self.0 = rest;
        Ok(taken)
    }

    fn u16(&mut self) -> Result<u16, Refusal> {
        self.take(2).map(|mut bytes| bytes.get_u16())
    }

    fn u32(&mut self) -> Result<u32, Refusal> {
        self.take(4).map(|mut bytes| bytes.get_u32())
    }

    /// A 32-bit length and that many bytes, at most [`MAX_STRING`].
    fn counted(&mut self) -> Result<&'a [u8], Refusal> {
        let length = self.u32()? as usize;
        if length > MAX_STRING {
            return Err(invalid(format!("a string of {length} bytes; the limit is {MAX_STRING}")));
        }
        self.take(length)
    }

    fn string(&mut self) -> Result<&'a str, Refusal> {
        self.counted().and_then(string)
    }

    fn end(&self) -> Result<(), Refusal> {
        match self.0.len() {
            0 => Ok(()),
            extra => Err(invalid(format!("{extra} bytes more than the lengths inside the data account for"))),
        }
    }
}

/// A string of the specification: UTF-8 without NUL. Section "Conventions".
fn string(bytes: &[u8]) -> Result<&str, Refusal> {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.contains('\0') => Ok(text),
        _ => Err(invalid("an export name has to be UTF-8 without NUL")),
    }
}

#[cfg(test)]
mod tests;
