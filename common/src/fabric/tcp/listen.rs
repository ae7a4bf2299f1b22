//! Where links arrive: a listener of its own for tests and tools, and [`Incoming::new`] for a server whose port carries
//! control streams too and which therefore reads the request itself.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::regions::Regions;
use super::{Tcp, TcpDomain, TcpLink, pools_of, prepare};
use crate::fabric::handshake::{HandshakeError, LaneReject, LaneReply, LaneRequest};
use crate::fabric::{ConnectError, FabricKind, LinkConfig, Listener, RejectReason};
use crate::units::LaneToken;

/// How long a connection may take to say what it wants.
const HALF_OPEN: Duration = Duration::from_secs(5);

/// How many connections may be at that stage; one more, and the oldest is dropped.
const MAX_HALF_OPEN: usize = 64;

/// How long an answer may take to fit an empty socket buffer.
const ANSWER: Duration = Duration::from_secs(1);

/// A lane that asks to be let in.
#[derive(Debug)]
pub struct Incoming {
    stream: TcpStream,
    request: LaneRequest,
}

impl Incoming {
    /// The lane behind `stream`, from which exactly `request` has been read. The stream may be blocking or not.
    pub fn new(stream: TcpStream, request: LaneRequest) -> Self {
        Self { stream, request }
    }

    fn answer(&self, bytes: &[u8]) -> Result<(), ConnectError> {
        answer(&self.stream, bytes).map_err(|error| ConnectError::Unreachable {
            fabric: FabricKind::Tcp,
            address: self.stream.peer_addr().unwrap_or(SocketAddr::from(([0, 0, 0, 0], 0))),
            reason: format!("the lane went away while it was answered: {error}"),
        })
    }
}

impl crate::fabric::Incoming for Incoming {
    type Fabric = Tcp;

    fn token(&self) -> &LaneToken {
        &self.request.token
    }

    fn accept(self, domain: &TcpDomain, config: &LinkConfig) -> Result<TcpLink, ConnectError> {
        let pools = match pools_of(config) {
            Ok(pools) => pools,
            Err(error) => {
                self.reject(RejectReason::NoResources);
                return Err(error.into());
            }
        };
        let reads = config.responder_depth.clamp(1, self.request.responder_depth.max(1));
        self.answer(&LaneReply { responder_depth: reads }.encode())?;
        Ok(TcpLink::over(self.stream.into(), pools, config, reads, Regions::of(domain))?)
    }

    fn reject(self, reason: RejectReason) {
        // Whoever is turned away and does not listen either learns it from the closed stream.
        let _ = self.answer(&LaneReject { reason }.encode());
    }
}

fn answer(stream: &TcpStream, bytes: &[u8]) -> io::Result<()> {
    prepare(stream)?;
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(ANSWER))?;
    (&mut &*stream).write_all(bytes)
}

/// A connection that has not said all of its request.
#[derive(Debug)]
struct HalfOpen {
    stream: TcpStream,
    bytes: [u8; LaneRequest::LEN],
    filled: usize,
    until: Instant,
}

/// What became of a connection.
enum Said {
    /// There is more to come.
    Part,
    /// It asked for a lane.
    All(LaneRequest),
    /// It is of no use: gone, late, or not a lane.
    Nothing,
}

impl HalfOpen {
    fn listen(&mut self) -> Said {
        while self.filled < self.bytes.len() {
            match self.stream.read(&mut self.bytes[self.filled..]) {
                Ok(0) => return Said::Nothing,
                Ok(got) => self.filled += got,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < self.until => {
                    return Said::Part;
                }
                Err(_) => return Said::Nothing,
            }
        }
        match LaneRequest::decode(&self.bytes) {
            Ok(request) => Said::All(request),
            Err(error @ HandshakeError::Version(_)) => {
                let _ = answer(&self.stream, &LaneReject { reason: error.reject_reason() }.encode());
                Said::Nothing
            }
            Err(HandshakeError::NotKaeru | HandshakeError::Malformed(_)) => Said::Nothing,
        }
    }
}

/// A port that takes lanes and nothing else.
#[derive(Debug)]
pub struct TcpListener {
    listener: std::net::TcpListener,
    address: SocketAddr,
    half_open: Vec<HalfOpen>,
}

impl TcpListener {
    /// Listens on `address`; port 0 picks a free one.
    ///
    /// # Errors
    /// The system's, where the address is taken or not ours.
    pub fn bind(address: impl ToSocketAddrs) -> io::Result<Self> {
        let listener = std::net::TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        Ok(Self { listener, address, half_open: Vec::new() })
    }

    /// Takes every new connection in, and returns the first lane that has said what it wants.
    fn progress(&mut self) -> io::Result<Option<Incoming>> {
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => self.welcome(stream),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // It was gone before it was taken in.
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted
                    ) => {}
                Err(error) => return Err(error),
            }
        }
        let mut at = 0;
        while at < self.half_open.len() {
            match self.half_open[at].listen() {
                Said::Part => at += 1,
                Said::Nothing => drop(self.half_open.remove(at)),
                Said::All(request) => {
                    return Ok(Some(Incoming::new(self.half_open.remove(at).stream, request)));
                }
            }
        }
        Ok(None)
    }

    fn welcome(&mut self, stream: TcpStream) {
        if stream.set_nonblocking(true).is_err() {
            return;
        }
        if self.half_open.len() == MAX_HALF_OPEN {
            self.half_open.remove(0);
        }
        let until = Instant::now() + HALF_OPEN;
        self.half_open.push(HalfOpen { stream, bytes: [0; LaneRequest::LEN], filled: 0, until });
    }

    /// Sleeps until a connection or one of the half-open ones has something to say, at most for `patience`.
    fn sleep(&self, patience: Duration) -> io::Result<()> {
        let listener = PollFd::new(&self.listener, PollFlags::IN);
        let half_open = self.half_open.iter().map(|half| PollFd::new(&half.stream, PollFlags::IN));
        let mut watched: Vec<PollFd<'_>> = std::iter::once(listener).chain(half_open).collect();
        let timeout = Timespec::try_from(patience).ok();
        match poll(&mut watched, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Listener for TcpListener {
    type Incoming = Incoming;

    fn address(&self) -> SocketAddr {
        self.address
    }

    fn accept(&mut self, patience: Duration) -> io::Result<Option<Incoming>> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(incoming) = self.progress()? {
                return Ok(Some(incoming));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            // A half-open connection whose time is over is noticed when the next one says something, or here.
            self.sleep(left.min(HALF_OPEN))?;
        }
    }
}
