//! A small NBD client on a blocking Unix socket: fixed newstyle, `NBD_OPT_GO`, simple replies, one request at a time.
//!
//! It shares the numbers of the specification with our server and no code, so it is a second opinion on it. Per request
//! it makes one system call to ask and one to be answered, as long as the socket gives all at once.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kaeru_client::nbd::proto::{
    ClientFlags, GREETING_BYTES, HandshakeFlags, INFO_EXPORT, INIT_MAGIC, MAX_STRING, OPT_GO, OPTION_MAGIC,
    OPTION_REPLY_HEADER_BYTES, OPTION_REPLY_MAGIC, REP_ACK, REP_FLAG_ERROR, REP_INFO, REQUEST_BYTES,
    REQUEST_MAGIC, SIMPLE_REPLY_BYTES, SIMPLE_REPLY_MAGIC, TransmissionFlags,
};

const READ: u16 = 0;
const WRITE: u16 = 1;
const DISCONNECT: u16 = 2;

/// Why an export cannot be used, or a request failed.
#[derive(Debug, thiserror::Error)]
pub enum NbdError {
    /// Nobody is there.
    #[error("cannot reach an NBD server at {}: {source}", .path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The server does not give the export.
    #[error("the NBD server refuses the export \"{export}\": {reason}")]
    NoExport {
        /// Its name.
        export: String,
        /// What the server said.
        reason: String,
    },
    /// What came is no NBD, or no NBD that we asked for.
    #[error("the NBD server broke the protocol: {0}")]
    Protocol(&'static str),
    /// The connection failed.
    #[error("the NBD connection failed: {0}")]
    Io(#[from] io::Error),
    /// One request was refused; the connection lives on.
    #[error("the NBD server answered with error {0}")]
    Refused(u32),
}

/// A connection to one export.
#[derive(Debug)]
pub struct NbdClient {
    stream: UnixStream,
    size: u64,
    flags: TransmissionFlags,
    cookie: u64,
}

impl NbdClient {
    /// Connects to `export` of the server at `path`. No answer may take longer than `patience`.
    ///
    /// # Errors
    /// [`NbdError`].
    pub fn connect(path: &Path, export: &str, patience: Duration) -> Result<Self, NbdError> {
        let connect = |source| NbdError::Connect { path: path.to_owned(), source };
        Self::over(UnixStream::connect(path).map_err(connect)?, export, patience)
    }

    fn over(mut stream: UnixStream, export: &str, patience: Duration) -> Result<Self, NbdError> {
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        greet(&mut stream)?;
        let (size, flags) = go(&mut stream, export)?;
        Ok(Self { stream, size, flags, cookie: 0 })
    }

    /// Bytes of the export.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Whether the server takes no writes.
    pub fn is_read_only(&self) -> bool {
        self.flags.contains(TransmissionFlags::READ_ONLY)
    }

    /// Reads `into.len()` bytes at `offset`.
    ///
    /// # Errors
    /// [`NbdError::Refused`], or the connection is of no use any more.
    pub fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), NbdError> {
        let header = self.request(READ, offset, into.len())?;
        self.stream.write_all(&header)?;
        self.answer(into)
    }

    /// Writes `bytes` at `offset`.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), NbdError> {
        let header = self.request(WRITE, offset, bytes.len())?;
        let sent = self.stream.write_vectored(&[IoSlice::new(&header), IoSlice::new(bytes)])?;
        self.stream.write_all(header.get(sent..).unwrap_or_default())?;
        self.stream.write_all(&bytes[sent.saturating_sub(REQUEST_BYTES)..])?;
        self.answer(&mut [])
    }

    /// Takes leave. There is no answer to it.
    pub fn disconnect(&mut self) {
        if let Ok(header) = self.request(DISCONNECT, 0, 0) {
            let _ = self.stream.write_all(&header);
        }
    }

    fn request(&mut self, command: u16, offset: u64, length: usize) -> Result<[u8; REQUEST_BYTES], NbdError> {
        let length = u32::try_from(length).map_err(|_| NbdError::Protocol("a request of 4 GiB or more"))?;
        self.cookie += 1;
        let mut header = [0; REQUEST_BYTES];
        header[0..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        header[6..8].copy_from_slice(&command.to_be_bytes());
        header[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        header[16..24].copy_from_slice(&offset.to_be_bytes());
        header[24..28].copy_from_slice(&length.to_be_bytes());
        Ok(header)
    }

    /// Receives the reply to the one request under way, and its data. An error has no data.
    fn answer(&mut self, data: &mut [u8]) -> Result<(), NbdError> {
        let mut header = [0; SIMPLE_REPLY_BYTES];
        let mut got = 0;
        while got < SIMPLE_REPLY_BYTES {
            let mut parts = [IoSliceMut::new(&mut header[got..]), IoSliceMut::new(data)];
            got += match self.stream.read_vectored(&mut parts) {
                Ok(0) => return Err(NbdError::Io(io::ErrorKind::UnexpectedEof.into())),
                Ok(more) => more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
                Err(error) => return Err(error.into()),
            };
        }
        let [magic, error, high, low] = words(&header);
        if magic != SIMPLE_REPLY_MAGIC {
            return Err(NbdError::Protocol("a reply has the wrong magic"));
        }
        if (u64::from(high) << 32 | u64::from(low)) != self.cookie {
            return Err(NbdError::Protocol("a reply to a request that is not under way"));
        }
        if error != 0 {
            return Err(NbdError::Refused(error));
        }
        Ok(self.stream.read_exact(&mut data[got - SIMPLE_REPLY_BYTES..])?)
    }
}

fn words(bytes: &[u8; SIMPLE_REPLY_BYTES]) -> [u32; 4] {
    let word = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    [word(0), word(4), word(8), word(12)]
}

fn greet(stream: &mut UnixStream) -> Result<(), NbdError> {
    let mut greeting = [0; GREETING_BYTES];
    stream.read_exact(&mut greeting)?;
    let flags = HandshakeFlags::from_bits(u16::from_be_bytes([greeting[16], greeting[17]]));
    if greeting[..8] != INIT_MAGIC.to_be_bytes() || greeting[8..16] != OPTION_MAGIC.to_be_bytes() {
        return Err(NbdError::Protocol("its greeting is not that of a newstyle NBD server"));
    }
    if !flags.contains(HandshakeFlags::FIXED_NEWSTYLE) {
        return Err(NbdError::Protocol("it does not speak fixed newstyle"));
    }
    Ok(stream.write_all(&ClientFlags::FIXED_NEWSTYLE.bits().to_be_bytes())?)
}

/// Chooses the export; the answers describe it.
fn go(stream: &mut UnixStream, export: &str) -> Result<(u64, TransmissionFlags), NbdError> {
    if export.len() > MAX_STRING {
        return Err(NbdError::Protocol("an export name of more than 4,096 bytes"));
    }
    let name_length = export.len() as u32;
    let mut option = Vec::new();
    option.extend(OPTION_MAGIC.to_be_bytes());
    option.extend(OPT_GO.to_be_bytes());
    option.extend((4 + name_length + 2).to_be_bytes());
    option.extend(name_length.to_be_bytes());
    option.extend(export.as_bytes());
    // No particular information is asked for.
    option.extend(0u16.to_be_bytes());
    stream.write_all(&option)?;
    let mut found = None;
    loop {
        let (reply, data) = option_reply(stream)?;
        match reply {
            REP_ACK => {
                return found.ok_or(NbdError::Protocol("it described no export"));
            }
            REP_INFO if data.get(..2) == Some(&INFO_EXPORT.to_be_bytes()) => found = export_info(&data[2..]),
            REP_INFO => {}
            error if error & REP_FLAG_ERROR != 0 => {
                let reason = match String::from_utf8_lossy(&data) {
                    text if text.is_empty() => format!("error {}", error & !REP_FLAG_ERROR),
                    text => text.into_owned(),
                };
                return Err(NbdError::NoExport { export: export.to_owned(), reason });
            }
            _ => return Err(NbdError::Protocol("an unknown reply to NBD_OPT_GO")),
        }
    }
}

fn option_reply(stream: &mut UnixStream) -> Result<(u32, Vec<u8>), NbdError> {
    let mut header = [0; OPTION_REPLY_HEADER_BYTES];
    stream.read_exact(&mut header)?;
    if header[..8] != OPTION_REPLY_MAGIC.to_be_bytes() || header[8..12] != OPT_GO.to_be_bytes() {
        return Err(NbdError::Protocol("a reply to an option that was not sent"));
    }
    let reply = u32::from_be_bytes([header[12], header[13], header[14], header[15]]);
    let length = u32::from_be_bytes([header[16], header[17], header[18], header[19]]) as usize;
    if length > 2 * MAX_STRING {
        return Err(NbdError::Protocol("a reply to an option that is too long"));
    }
    let mut data = vec![0; length];
    stream.read_exact(&mut data)?;
    Ok((reply, data))
}

fn export_info(data: &[u8]) -> Option<(u64, TransmissionFlags)> {
    let (size, flags) = (data.get(..8)?.try_into().ok()?, data.get(8..10)?.try_into().ok()?);
    Some((u64::from_be_bytes(size), TransmissionFlags::from_bits(u16::from_be_bytes(flags))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread::{self, JoinHandle};

    const PATIENCE: Duration = Duration::from_secs(5);

    /// What a server sends before transmission: greeting, a description of 1 MiB read-only, and its end.
    fn handshake() -> Vec<u8> {
        let mut bytes = [INIT_MAGIC.to_be_bytes(), OPTION_MAGIC.to_be_bytes()].concat();
        bytes.extend(1u16.to_be_bytes());
        let mut info = INFO_EXPORT.to_be_bytes().to_vec();
        info.extend((1u64 << 20).to_be_bytes());
        info.extend(3u16.to_be_bytes());
        bytes.extend(reply(3, &[0, 1, b'x']));
        bytes.extend(reply(REP_INFO, &info));
        bytes.extend(reply(REP_ACK, &[]));
        bytes
    }

    fn reply(kind: u32, data: &[u8]) -> Vec<u8> {
        let mut bytes = OPTION_REPLY_MAGIC.to_be_bytes().to_vec();
        bytes.extend(OPT_GO.to_be_bytes());
        bytes.extend(kind.to_be_bytes());
        bytes.extend((data.len() as u32).to_be_bytes());
        bytes.extend(data);
        bytes
    }

    fn answer(cookie: u64, error: u32, data: &[u8]) -> Vec<u8> {
        let mut bytes = SIMPLE_REPLY_MAGIC.to_be_bytes().to_vec();
        bytes.extend(error.to_be_bytes());
        bytes.extend(cookie.to_be_bytes());
        bytes.extend(data);
        bytes
    }

    /// A server that, step by step, takes so many bytes and then sends others, a few at a time; whatever it is asked.
    /// It gives back what it was sent.
    fn server(steps: Vec<(usize, Vec<u8>)>) -> (UnixStream, JoinHandle<Vec<u8>>) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let run = move || {
            let mut heard = Vec::new();
            for (take, send) in steps {
                let start = heard.len();
                heard.resize(start + take, 0);
                // A client that has left early is a test's business, not ours.
                if theirs.read_exact(&mut heard[start..]).is_err() {
                    return heard;
                }
                if send.chunks(7).any(|part| theirs.write_all(part).is_err()) {
                    return heard;
                }
            }
            let _ = theirs.read_to_end(&mut heard);
            heard
        };
        (ours, thread::spawn(run))
    }

    fn fails(script: Vec<u8>, part: &str) {
        let (stream, server) = server(vec![(0, script)]);
        let error = NbdClient::over(stream, "x", PATIENCE).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
        server.join().unwrap();
    }

    #[test]
    fn requests_are_answered_in_pieces_and_an_error_leaves_the_connection_alive() {
        const ASKED: usize = 4 + 16 + 4 + 1 + 2;
        let data: Vec<u8> = (0..=255).collect();
        let (stream, server) = server(vec![
            (0, handshake()),
            (ASKED + REQUEST_BYTES, answer(1, 5, &[])),
            (REQUEST_BYTES, answer(2, 0, &data)),
            (REQUEST_BYTES + 256, answer(3, 0, &[])),
        ]);
        let mut client = NbdClient::over(stream, "x", PATIENCE).unwrap();
        assert_eq!((client.size(), client.is_read_only()), (1 << 20, true));
        let mut into = [0; 256];
        assert!(matches!(client.read(0, &mut into), Err(NbdError::Refused(5))));
        client.read(4096, &mut into).unwrap();
        assert_eq!(into, data[..]);
        client.write(8192, &data).unwrap();
        client.disconnect();
        drop(client);
        let heard = server.join().unwrap();
        let write = &heard[ASKED + 2 * REQUEST_BYTES..];
        assert_eq!((write[7], &write[16..24], &write[28..284]), (1, &8192u64.to_be_bytes()[..], &data[..]));
        assert_eq!((write.len(), write[284 + 7]), (284 + REQUEST_BYTES, 2));
    }

    #[test]
    fn a_server_that_makes_no_sense_is_left() {
        fails(b"HTTP/1.1 400 Bad Request, and so on".to_vec(), "greeting");
        let greeting = handshake()[..GREETING_BYTES].to_vec();
        fails([greeting.clone(), reply(REP_FLAG_ERROR + 6, b"no such export")].concat(), "no such export");
        fails([greeting.clone(), reply(REP_ACK, &[])].concat(), "described no export");
        fails([greeting, reply(77, &[])].concat(), "unknown reply");
        let (stream, _server) = server(vec![(0, [handshake(), answer(9, 0, &[])].concat())]);
        let mut client = NbdClient::over(stream, "x", PATIENCE).unwrap();
        assert!(matches!(client.write(0, &[1]), Err(NbdError::Protocol(_))));
    }

    #[test]
    fn a_server_that_says_nothing_is_not_waited_for() {
        let (stream, _kept) = UnixStream::pair().unwrap();
        let result = NbdClient::over(stream, "x", Duration::from_millis(20));
        assert!(matches!(result, Err(NbdError::Io(_))));
    }
}
