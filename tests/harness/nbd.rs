//! A raw NBD client, written from the specification and from nothing of ours, so that a mistake cannot be made twice.
//! It sends whatever it is told to.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::client::{Nbd, Place};

pub(crate) const OPT_EXPORT_NAME: u32 = 1;
pub(crate) const OPT_ABORT: u32 = 2;
pub(crate) const OPT_LIST: u32 = 3;
pub(crate) const OPT_GO: u32 = 7;
pub(crate) const OPT_STRUCTURED_REPLY: u32 = 8;

pub(crate) const REP_ACK: u32 = 1;
pub(crate) const REP_INFO: u32 = 3;
pub(crate) const REP_ERR_UNSUP: u32 = 0x8000_0001;
pub(crate) const REP_ERR_INVALID: u32 = 0x8000_0003;
pub(crate) const REP_ERR_UNKNOWN: u32 = 0x8000_0006;
pub(crate) const REP_ERR_TOO_BIG: u32 = 0x8000_0009;

pub(crate) const CMD_READ: u16 = 0;
pub(crate) const CMD_WRITE: u16 = 1;
pub(crate) const CMD_DISC: u16 = 2;
pub(crate) const CMD_FLUSH: u16 = 3;
pub(crate) const CMD_TRIM: u16 = 4;
pub(crate) const CMD_WRITE_ZEROES: u16 = 6;

pub(crate) const FLAG_FUA: u16 = 1;

pub(crate) const EPERM: u32 = 1;
pub(crate) const EIO: u32 = 5;
pub(crate) const EINVAL: u32 = 22;
pub(crate) const ENOSPC: u32 = 28;

/// Client flags: fixed newstyle, and no zeroes behind the answer to EXPORT_NAME.
pub(crate) const FIXED: u32 = 1;
pub(crate) const NO_ZEROES: u32 = 2;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(15);

/// A stream socket.
pub(crate) trait Duplex: Read + Write + Send {
    /// Bounds every read and write.
    fn set_patience(&self, patience: Duration);
    /// Says that nothing more will be sent.
    fn finish(&self);
    /// A second handle of the same connection.
    fn another(&self) -> Box<dyn Duplex>;
}

macro_rules! duplex {
    ($stream:ty) => {
        impl Duplex for $stream {
            fn set_patience(&self, patience: Duration) {
                self.set_read_timeout(Some(patience)).expect("sockets have timeouts");
                self.set_write_timeout(Some(patience)).expect("sockets have timeouts");
            }

            fn another(&self) -> Box<dyn Duplex> {
                Box::new(self.try_clone().expect("a descriptor"))
            }

            fn finish(&self) {
                // The peer may have closed it already.
                let _ = self.shutdown(Shutdown::Write);
            }
        }
    };
}

duplex!(UnixStream);
duplex!(TcpStream);

/// Connects and says nothing.
pub(crate) fn dial(nbd: &Nbd) -> Box<dyn Duplex> {
    let stream: Box<dyn Duplex> = match &nbd.place {
        Place::Unix(path) => Box::new(UnixStream::connect(path).expect("it listens")),
        Place::Tcp(address) => Box::new(TcpStream::connect(address).expect("it listens")),
    };
    stream.set_patience(PATIENCE);
    stream
}

/// What the server answers to an option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) option: u32,
    pub(crate) kind: u32,
    pub(crate) data: Vec<u8>,
}

/// What a request came to: the cookie that came back, and an error of the specification or the data of a read.
pub(crate) type Reply = (u64, Result<Vec<u8>, u32>);

/// A connection.
pub(crate) struct Raw {
    /// Its socket, for what the specification does not foresee.
    pub(crate) stream: Box<dyn Duplex>,
    /// Bytes of the export, once that is known.
    pub(crate) size: u64,
    /// Transmission flags of the export.
    pub(crate) flags: u16,
    cookie: u64,
}

impl Raw {
    /// Connects and exchanges flags.
    pub(crate) fn greet(nbd: &Nbd, flags: u32) -> Self {
        let mut raw = Self { stream: dial(nbd), size: 0, flags: 0, cookie: 0x0123_4567_89ab_cdef };
        assert_eq!(raw.take(16), b"NBDMAGICIHAVEOPT");
        assert_eq!(raw.take(2), [0, 3], "fixed newstyle, no zeroes");
        raw.send(&flags.to_be_bytes());
        raw
    }

    /// Connects and goes into the transmission phase with simple replies.
    pub(crate) fn attach(nbd: &Nbd) -> Self {
        let mut raw = Self::greet(nbd, FIXED | NO_ZEROES);
        raw.go(&nbd.export);
        raw
    }

    /// Sends bytes.
    #[track_caller]
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the connection lives");
    }

    /// Receives that many bytes.
    #[track_caller]
    pub(crate) fn take(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.stream.read_exact(&mut bytes).expect("the connection lives");
        bytes
    }

    #[track_caller]
    fn number<const N: usize>(&mut self) -> [u8; N] {
        self.take(N).try_into().expect("as many as asked for")
    }

    /// Sends an option.
    #[track_caller]
    pub(crate) fn option(&mut self, option: u32, data: &[u8]) {
        self.send(&option_bytes(option, data));
    }

    /// Receives the answer to an option.
    #[track_caller]
    pub(crate) fn answer(&mut self) -> Answer {
        assert_eq!(u64::from_be_bytes(self.number()), 0x0003_e889_0455_65a9, "the magic of an answer");
        let (option, kind) = (u32::from_be_bytes(self.number()), u32::from_be_bytes(self.number()));
        let length = u32::from_be_bytes(self.number());
        Answer { option, kind, data: self.take(length as usize) }
    }

    /// Sends GO for an export. Returns the kind of its last answer.
    #[track_caller]
    pub(crate) fn try_go(&mut self, name: &str) -> u32 {
        self.option(OPT_GO, &go_data(name));
        loop {
            let answer = self.answer();
            assert_eq!(answer.option, OPT_GO);
            match answer.kind {
                REP_INFO if answer.data[..2] == [0, 0] => {
                    self.size = u64::from_be_bytes(answer.data[2..10].try_into().expect("eight bytes"));
                    self.flags = u16::from_be_bytes(answer.data[10..12].try_into().expect("two bytes"));
                }
                REP_INFO => {}
                kind => return kind,
            }
        }
    }

    /// Goes into the transmission phase.
    #[track_caller]
    pub(crate) fn go(&mut self, name: &str) {
        assert_eq!(self.try_go(name), REP_ACK, "GO {name:?}");
    }

    /// Sends EXPORT_NAME and takes its answer, with or without zeroes behind it.
    #[track_caller]
    pub(crate) fn export_name(&mut self, name: &str, zeroes: bool) {
        self.option(OPT_EXPORT_NAME, name.as_bytes());
        self.size = u64::from_be_bytes(self.number());
        self.flags = u16::from_be_bytes(self.number());
        if zeroes {
            assert_eq!(self.take(124), [0; 124]);
        }
    }

    /// Sends a request header and returns its cookie.
    #[track_caller]
    pub(crate) fn request(&mut self, command: u16, flags: u16, offset: u64, length: u32) -> u64 {
        self.cookie = self.cookie.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        self.send(&request_bytes(command, flags, self.cookie, offset, length));
        self.cookie
    }

    /// Receives a simple reply, and the data of a read of `length` bytes.
    #[track_caller]
    pub(crate) fn reply(&mut self, length: usize) -> Reply {
        assert_eq!(u32::from_be_bytes(self.number()), 0x6744_6698, "the magic of a simple reply");
        let (error, cookie) = (u32::from_be_bytes(self.number()), u64::from_be_bytes(self.number()));
        (cookie, if error == 0 { Ok(self.take(length)) } else { Err(error) })
    }

    /// One request and its reply, whose cookie must be the request's.
    #[track_caller]
    pub(crate) fn ask(&mut self, command: u16, flags: u16, offset: u64, length: u32) -> Result<Vec<u8>, u32> {
        let cookie = self.request(command, flags, offset, length);
        let (back, result) = self.reply(if command == CMD_READ { length as usize } else { 0 });
        assert_eq!(back, cookie, "a reply bears the cookie of its request");
        result
    }

    /// Reads.
    #[track_caller]
    pub(crate) fn read(&mut self, offset: u64, length: u32) -> Result<Vec<u8>, u32> {
        self.ask(CMD_READ, 0, offset, length)
    }

    /// Writes.
    #[track_caller]
    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), u32> {
        let cookie = self.request(CMD_WRITE, 0, offset, u32::try_from(bytes.len()).expect("a length"));
        self.send(bytes);
        let (back, result) = self.reply(0);
        assert_eq!(back, cookie, "a reply bears the cookie of its request");
        result.map(drop)
    }

    /// Whether the server closes the connection, rather than answering or hanging.
    pub(crate) fn is_closed(&mut self) -> bool {
        match self.stream.read(&mut [0; 1]) {
            Ok(0) => true,
            Ok(_) => false,
            Err(error) => matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe),
        }
    }
}

/// The bytes of an option.
pub(crate) fn option_bytes(option: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"IHAVEOPT".to_vec();
    bytes.extend(option.to_be_bytes());
    bytes.extend(u32::try_from(data.len()).expect("a length").to_be_bytes());
    bytes.extend(data);
    bytes
}

/// The data of GO and INFO: a name, and no wishes.
pub(crate) fn go_data(name: &str) -> Vec<u8> {
    let mut data = u32::try_from(name.len()).expect("a length").to_be_bytes().to_vec();
    data.extend(name.as_bytes());
    data.extend([0, 0]);
    data
}

/// The bytes of a request header.
pub(crate) fn request_bytes(command: u16, flags: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    let mut bytes = 0x2560_9513u32.to_be_bytes().to_vec();
    bytes.extend(flags.to_be_bytes());
    bytes.extend(command.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend(length.to_be_bytes());
    bytes
}
