//! Requests and their answers: all that waits goes out with one system call, and what comes back is taken with one.
//!
//! The data of reads is received and forgotten: it has been in this process, which is what is measured.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use kaeru_client::nbd::proto::{REQUEST_BYTES, REQUEST_MAGIC, SIMPLE_REPLY_BYTES, SIMPLE_REPLY_MAGIC};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, sendmsg};

use super::NbdError;
use crate::bench::workload::{Op, pattern};

/// The most requests that a connection has under way: they are told apart by as many bits of their cookies.
pub const MAX_DEPTH: u32 = 1024;

const DISCONNECT: u16 = 2;
/// Bits of a cookie that say which request it is; the rest counts.
const TAG_BITS: u32 = 16;
/// Bytes that are received at once at most.
const INCOMING: usize = 256 << 10;
/// Requests that are sent at once at most; each is a header and maybe a payload.
const TOGETHER: usize = 32;
/// How long a receive may block: a program that was told to stop looks up as often.
const NAP: Duration = Duration::from_millis(100);

/// A request that was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answered {
    /// Which.
    pub tag: u32,
    /// Its cookie.
    pub cookie: u64,
    /// The server's error; 0 for none.
    pub error: u32,
}

/// A request that waits to be sent.
#[derive(Debug)]
struct Ask {
    header: [u8; REQUEST_BYTES],
    /// Bytes of payload behind it.
    payload: usize,
}

/// A request that was asked and not yet answered.
#[derive(Clone, Copy, Debug)]
struct Flight {
    cookie: u64,
    /// Bytes that come with its answer.
    data: usize,
}

/// The requests of one connection.
#[derive(Debug)]
pub struct Requests {
    stream: UnixStream,
    serial: u64,
    /// By tag.
    flights: Box<[Option<Flight>]>,
    outgoing: VecDeque<Ask>,
    /// Bytes of the first of them that were sent.
    sent: usize,
    /// What every write writes; grown before measuring.
    payload: Vec<u8>,
    incoming: Box<[u8]>,
    /// What is in it.
    filled: usize,
    /// The answer whose data is being received, and how much of it is still to come.
    receiving: Option<(Answered, usize)>,
}

impl Requests {
    pub(super) fn new(stream: UnixStream, depth: u32) -> Result<Self, NbdError> {
        stream.set_read_timeout(Some(NAP))?;
        Ok(Self {
            stream,
            serial: 0,
            flights: vec![None; depth.min(MAX_DEPTH) as usize].into(),
            outgoing: VecDeque::with_capacity(depth as usize),
            sent: 0,
            payload: Vec::new(),
            incoming: vec![0; INCOMING].into(),
            filled: 0,
            receiving: None,
        })
    }

    /// Has payload ready for writes of up to `length` bytes.
    pub fn reserve(&mut self, length: usize) {
        if self.payload.len() < length {
            self.payload = pattern(length);
        }
    }

    /// Asks for something. It is sent with the next [`Self::answers`].
    ///
    /// # Errors
    /// [`NbdError::Protocol`] for a tag that is under way, or beyond the depth.
    pub fn ask(&mut self, op: Op, offset: u64, length: u32, tag: u32) -> Result<(), NbdError> {
        self.serial += 1;
        let cookie = self.serial << TAG_BITS | u64::from(tag);
        let (command, data, payload) = match op {
            Op::Read => (0, length as usize, 0),
            Op::Write => (1, 0, length as usize),
        };
        match self.flights.get_mut(tag as usize) {
            Some(place @ None) => *place = Some(Flight { cookie, data }),
            _ => return Err(NbdError::Protocol("a request of ours has no place")),
        }
        self.reserve(payload);
        self.outgoing.push_back(Ask { header: header(command, cookie, offset, length), payload });
        Ok(())
    }

    /// Sends what waits and moves answers to `answered`. Waits until `until` at most for the first one.
    ///
    /// # Errors
    /// [`NbdError`]: the connection is of no use any more.
    pub fn answers(&mut self, answered: &mut Vec<Answered>, until: Instant) -> Result<(), NbdError> {
        let before = answered.len();
        loop {
            self.send()?;
            let got = self.receive(until)?;
            self.digest(answered)?;
            let is_over = answered.len() > before || self.flights.iter().all(Option::is_none);
            if is_over || (got == 0 && Instant::now() >= until) {
                return Ok(());
            }
        }
    }

    /// Sends what the socket takes.
    fn send(&mut self) -> Result<(), NbdError> {
        while !self.outgoing.is_empty() {
            let mut parts = [IoSlice::new(&[]); 2 * TOGETHER];
            for (pair, ask) in parts.chunks_exact_mut(2).zip(&self.outgoing) {
                pair[0] = IoSlice::new(&ask.header);
                pair[1] = IoSlice::new(&self.payload[..ask.payload]);
            }
            let mut parts = &mut parts[..2 * self.outgoing.len().min(TOGETHER)];
            IoSlice::advance_slices(&mut parts, self.sent);
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match sendmsg(&self.stream, parts, &mut SendAncillaryBuffer::default(), flags) {
                Ok(sent) => self.sent += sent,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(io::Error::from(error).into()),
            }
            while let Some(first) = self.outgoing.front() {
                let whole = REQUEST_BYTES + first.payload;
                if self.sent < whole {
                    break;
                }
                self.sent -= whole;
                self.outgoing.pop_front();
            }
        }
        Ok(())
    }

    /// Receives what there is; waits for it until `until`, unless it becomes possible to send. Returns how much came.
    fn receive(&mut self, until: Instant) -> Result<usize, NbdError> {
        let mut flags = RecvFlags::empty();
        let left = until.saturating_duration_since(Instant::now());
        // One system call is enough where there is no hurry to do anything else.
        if !self.outgoing.is_empty() || left < NAP / 2 {
            let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            let mut wanted = PollFlags::IN;
            wanted.set(PollFlags::OUT, !self.outgoing.is_empty());
            match poll(&mut [PollFd::new(&self.stream, wanted)], Some(&timeout)) {
                Ok(_) | Err(Errno::INTR) => flags = RecvFlags::DONTWAIT,
                Err(error) => return Err(io::Error::from(error).into()),
            }
        }
        match recv(&self.stream, &mut self.incoming[self.filled..], flags) {
            Ok((0, _)) => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            Ok((got, _)) => {
                self.filled += got;
                Ok(got)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(0),
            Err(error) => Err(io::Error::from(error).into()),
        }
    }

    /// Takes answers out of what was received. The start of one that is not whole stays.
    fn digest(&mut self, answered: &mut Vec<Answered>) -> Result<(), NbdError> {
        let mut at = 0;
        loop {
            if let Some((answer, data)) = self.receiving {
                let now = data.min(self.filled - at);
                at += now;
                if now < data {
                    self.receiving = Some((answer, data - now));
                    break;
                }
                self.receiving = None;
                answered.push(answer);
            }
            let header = self.incoming[at..self.filled].first_chunk::<SIMPLE_REPLY_BYTES>().copied();
            let Some(header) = header else { break };
            let (answer, data) = self.parse(header)?;
            self.receiving = Some((answer, data));
            at += SIMPLE_REPLY_BYTES;
        }
        self.incoming.copy_within(at..self.filled, 0);
        self.filled -= at;
        Ok(())
    }

    /// Whose answer it is, and the bytes that follow it. An error has no data.
    fn parse(&mut self, bytes: [u8; SIMPLE_REPLY_BYTES]) -> Result<(Answered, usize), NbdError> {
        let word = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let (error, cookie) = (word(4), u64::from(word(8)) << 32 | u64::from(word(12)));
        if word(0) != SIMPLE_REPLY_MAGIC {
            return Err(NbdError::Protocol("a reply has the wrong magic"));
        }
        let tag = (cookie & ((1 << TAG_BITS) - 1)) as u32;
        let flight =
            self.flights.get_mut(tag as usize).and_then(|place| place.take_if(|is| is.cookie == cookie));
        let flight = flight.ok_or(NbdError::Protocol("a reply to a request that is not under way"))?;
        Ok((Answered { tag, cookie, error }, if error == 0 { flight.data } else { 0 }))
    }

    /// Takes leave. There is no answer to it.
    pub(super) fn disconnect(&mut self) {
        if self.outgoing.is_empty() {
            self.outgoing.push_back(Ask { header: header(DISCONNECT, 0, 0, 0), payload: 0 });
            let _ = self.send();
        }
    }
}

fn header(command: u16, cookie: u64, offset: u64, length: u32) -> [u8; REQUEST_BYTES] {
    let mut header = [0; REQUEST_BYTES];
    header[0..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
    header[6..8].copy_from_slice(&command.to_be_bytes());
    header[8..16].copy_from_slice(&cookie.to_be_bytes());
    header[16..24].copy_from_slice(&offset.to_be_bytes());
    header[24..28].copy_from_slice(&length.to_be_bytes());
    header
}
