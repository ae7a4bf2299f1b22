//! A small NBD client on a Unix socket: fixed newstyle, `NBD_OPT_GO`, simple replies, many requests at once.
//!
//! It shares the numbers of the specification with our server and no code, so it is a second opinion on it. Here: how to
//! get at an export. `requests`: what happens then.

mod requests;

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kaeru_client::nbd::proto::{
    ClientFlags, GREETING_BYTES, HandshakeFlags, INFO_EXPORT, INIT_MAGIC, MAX_STRING, OPT_GO, OPTION_MAGIC,
    OPTION_REPLY_HEADER_BYTES, OPTION_REPLY_MAGIC, REP_ACK, REP_FLAG_ERROR, REP_INFO, TransmissionFlags,
};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

use self::requests::Requests;
pub use self::requests::{Answered, MAX_DEPTH};

/// A server that has more to say about an export never comes to an end.
const MOST_REPLIES: u32 = 64;

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
    /// It does not get on.
    #[error("the NBD server did not answer within {} s; is it alive, and is this its socket?", .patience.as_secs_f64())]
    Silent {
        /// How long it was waited for.
        patience: Duration,
    },
    /// What came is no NBD, or no NBD that we asked for.
    #[error("the NBD server broke the protocol: {0}")]
    Protocol(&'static str),
    /// The connection failed.
    #[error("the NBD connection failed: {0}")]
    Io(#[from] io::Error),
}

/// A connection to one export.
#[derive(Debug)]
pub struct NbdClient {
    size: u64,
    flags: TransmissionFlags,
    requests: Requests,
}

impl NbdClient {
    /// Connects to `export` of the server at `path`, for up to `depth` requests at once. It has to greet us within
    /// `patience`.
    ///
    /// # Errors
    /// [`NbdError`].
    pub fn connect(path: &Path, export: &str, patience: Duration, depth: u32) -> Result<Self, NbdError> {
        let stream = connect(path, patience).map_err(|source| match source.kind() {
            io::ErrorKind::WouldBlock => NbdError::Silent { patience },
            _ => NbdError::Connect { path: path.to_owned(), source },
        })?;
        Self::over(stream, export, patience, depth)
    }

    fn over(mut stream: UnixStream, export: &str, patience: Duration, depth: u32) -> Result<Self, NbdError> {
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        let described = greet(&mut stream).and_then(|()| go(&mut stream, export));
        let (size, flags) = described.map_err(|error| match error {
            NbdError::Io(error) if error.kind() == io::ErrorKind::WouldBlock => NbdError::Silent { patience },
            error => error,
        })?;
        Ok(Self { size, flags, requests: Requests::new(stream, depth)? })
    }

    /// A connection that needs no handshake, as one of the kernel's: both ends know what it is about.
    ///
    /// # Errors
    /// [`NbdError::Io`].
    pub fn agreed(stream: UnixStream, size: u64, depth: u32) -> Result<Self, NbdError> {
        Ok(Self { size, flags: TransmissionFlags::HAS_FLAGS, requests: Requests::new(stream, depth)? })
    }

    /// Bytes of the export.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Whether the server takes no writes.
    pub fn is_read_only(&self) -> bool {
        self.flags.contains(TransmissionFlags::READ_ONLY)
    }

    /// The requests of the connection.
    pub fn requests(&mut self) -> &mut Requests {
        &mut self.requests
    }
}

impl Drop for NbdClient {
    fn drop(&mut self) {
        self.requests.disconnect();
    }
}

/// As [`UnixStream::connect`], which would wait for ever where a server takes no connection from its queue.
fn connect(path: &Path, patience: Duration) -> io::Result<UnixStream> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(patience))?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
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
    for _ in 0..MOST_REPLIES {
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
    Err(NbdError::Protocol("it describes the export without end"))
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
    use std::time::Instant;

    use kaeru_client::nbd::proto::{REQUEST_BYTES, SIMPLE_REPLY_MAGIC};

    use crate::bench::workload::{Op, pattern};

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
        let error = NbdClient::over(stream, "x", PATIENCE, 1).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
        server.join().unwrap();
    }

    fn ask(client: &mut NbdClient, op: Op, offset: u64, length: u32, tag: u32) {
        client.requests().ask(op, offset, length, tag).unwrap();
    }

    /// Waits for `count` answers.
    fn answers(client: &mut NbdClient, count: usize) -> Result<Vec<(u32, u32)>, NbdError> {
        let mut answered = Vec::new();
        let deadline = Instant::now() + PATIENCE;
        while answered.len() < count {
            assert!(Instant::now() < deadline, "no answer");
            client.requests().answers(&mut answered, Instant::now() + PATIENCE)?;
        }
        Ok(answered.iter().map(|answer| (answer.tag, answer.error)).collect())
    }

    #[test]
    fn requests_are_answered_in_pieces_and_an_error_leaves_the_connection_alive() {
        const ASKED: usize = 4 + 16 + 4 + 1 + 2;
        let data: Vec<u8> = (0..=255).collect();
        let (stream, server) = server(vec![
            (0, handshake()),
            (ASKED + REQUEST_BYTES, answer(1 << 16, 5, &[])),
            (REQUEST_BYTES, answer(2 << 16, 0, &data)),
            (REQUEST_BYTES + 256, answer(3 << 16, 0, &[])),
        ]);
        let mut client = NbdClient::over(stream, "x", PATIENCE, 1).unwrap();
        assert_eq!((client.size(), client.is_read_only()), (1 << 20, true));
        ask(&mut client, Op::Read, 0, 256, 0);
        assert_eq!(answers(&mut client, 1).unwrap(), [(0, 5)]);
        ask(&mut client, Op::Read, 4096, 256, 0);
        assert_eq!(answers(&mut client, 1).unwrap(), [(0, 0)]);
        ask(&mut client, Op::Write, 8192, 256, 0);
        assert_eq!(answers(&mut client, 1).unwrap(), [(0, 0)]);
        drop(client);
        let heard = server.join().unwrap();
        let write = &heard[ASKED + 2 * REQUEST_BYTES..];
        let bytes = pattern(256);
        assert_eq!((write[7], &write[16..24], &write[28..284]), (1, &8192u64.to_be_bytes()[..], &bytes[..]));
        assert_eq!((write.len(), write[284 + 7]), (284 + REQUEST_BYTES, 2));
    }

    #[test]
    fn many_requests_are_under_way_and_answers_come_in_any_order() {
        const ASKED: usize = 4 + 16 + 4 + 1 + 2;
        let replies = [
            answer(3 << 16 | 2, 0, &[7; 50]),
            answer(1 << 16, 0, &[7; 300_000]),
            answer(2 << 16 | 1, 5, &[]),
        ];
        let (stream, server) = server(vec![(0, handshake()), (ASKED + 3 * REQUEST_BYTES, replies.concat())]);
        let mut client = NbdClient::over(stream, "x", PATIENCE, 3).unwrap();
        for (tag, length) in [(0, 300_000), (1, 10), (2, 50)] {
            ask(&mut client, Op::Read, 0, length, tag);
        }
        assert_eq!(answers(&mut client, 3).unwrap(), [(2, 0), (0, 0), (1, 5)]);
        drop(client);
        server.join().unwrap();
    }

    #[test]
    fn a_server_that_reads_little_and_answers_much_is_no_deadlock() {
        let (stream, mut theirs) = UnixStream::pair().unwrap();
        let echo = thread::spawn(move || {
            // Answers every request before it has read the next one, into a socket that is soon full.
            let (mut header, mut payload) = ([0; REQUEST_BYTES], vec![0; 1 << 20]);
            for _ in 0..64 {
                theirs.read_exact(&mut header).unwrap();
                let cookie = u64::from_be_bytes(header[8..16].try_into().unwrap());
                let reads = header[7] == 0;
                if !reads {
                    theirs.read_exact(&mut payload).unwrap();
                }
                theirs.write_all(&answer(cookie, 0, if reads { &payload } else { &[] })).unwrap();
            }
        });
        let mut client = NbdClient::agreed(stream, 1 << 30, 64).unwrap();
        for tag in 0..64 {
            ask(&mut client, Op::ALL[tag as usize % 2], 0, 1 << 20, tag);
        }
        assert_eq!(answers(&mut client, 64).unwrap().len(), 64);
        echo.join().unwrap();
    }

    #[test]
    fn a_server_that_makes_no_sense_is_left() {
        fails(b"HTTP/1.1 400 Bad Request, and so on".to_vec(), "greeting");
        let greeting = handshake()[..GREETING_BYTES].to_vec();
        fails([greeting.clone(), reply(REP_FLAG_ERROR + 6, b"no such export")].concat(), "no such export");
        fails([greeting.clone(), reply(REP_ACK, &[])].concat(), "described no export");
        fails([greeting.clone(), reply(77, &[])].concat(), "unknown reply");
        fails([greeting, reply(REP_INFO, &[0, 9]).repeat(1000)].concat(), "without end");
        let (stream, _server) = server(vec![(0, [handshake(), answer(9, 0, &[])].concat())]);
        let mut client = NbdClient::over(stream, "x", PATIENCE, 1).unwrap();
        ask(&mut client, Op::Write, 0, 1, 0);
        assert!(matches!(answers(&mut client, 1), Err(NbdError::Protocol(_))));
    }

    #[test]
    fn a_server_that_says_nothing_is_not_waited_for() {
        let (stream, _kept) = UnixStream::pair().unwrap();
        let error = NbdClient::over(stream, "x", Duration::from_millis(20), 1).unwrap_err().to_string();
        assert!(error.contains("did not answer within 0.02 s"), "{error}");
    }

    #[test]
    fn a_server_that_takes_no_connection_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        // The queue has room for one.
        let _first = UnixStream::connect(&path).unwrap();
        let error = NbdClient::connect(&path, "x", Duration::from_millis(20), 1).unwrap_err().to_string();
        assert!(error.contains("did not answer within 0.02 s"), "{error}");
        let error =
            NbdClient::connect(&folder.path().join("none"), "x", PATIENCE, 1).unwrap_err().to_string();
        assert!(error.contains("cannot reach an NBD server at") && error.contains("none"), "{error}");
    }
}
