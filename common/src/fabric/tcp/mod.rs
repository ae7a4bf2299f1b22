//! The one-sided operations over a TCP stream: what a card does in hardware, done by the thread that polls the link.
//!
//! It is the fabric of machines without a card, the fallback of those with one, and the easiest of the three to read.
//!
//! ```text
//!   connecting side                                    accepting side
//!   request: token, responder depth ─────────────────▶ Incoming
//!                                             ◀─────── reply: reads that may be outstanding, either way; or a reject
//!   ── from here on both ends are equal ──
//!   WRITE seq, address, key, length | bytes ─────────▶ checked, placed in the region
//!   SEND seq, length | bytes ────────────────────────▶ placed in the oldest posted receive
//!                                             ◀─────── ACK placed, posted                 (one for many)
//!   READ seq, address, key, length ──────────────────▶ checked
//!                                             ◀─────── DATA seq, length | bytes           (straight from the region)
//!   WRITE outside of the grant ──────────────────────▶ refused
//!                                             ◀─────── NAK seq, reason; then the end of the stream
//! ```
//!
//! Three choices carry the rest:
//! - **Receiving never waits for anything.** What a peer can make us owe is bounded by what it was promised: one
//!   cumulative ACK and as many DATA as reads are negotiated, kept in queues made at the start. A SEND leaves its sender
//!   only when a posted receive was announced for it (`posted` in the ACK), so it never blocks the bytes behind it. Two
//!   links that are both full therefore cannot wait for each other, and a waiting send holds up no answer, as on a card.
//! - **Payload is never parsed out of a side buffer.** A header names where its payload goes, and the socket call fills
//!   that place directly, with a small stage behind it for the headers that follow. The few bytes of payload that came
//!   with their header are copied; everything is sent straight from slot or region.
//! - **The owner of the memory checks.** Key, bounds and right are looked up in the link's own table
//!   (`regions`): no lock, no allocation, and nothing shared with other links.
//!
//! Reading order: `frame`, `link`, then the parts that a link is made of: `initiator` (our operations),
//! `responder` (the peer's), `inbox` and `outbox` (the two directions of the stream).
//!
//! A port to Windows replaces `poller`, the socket options in this file and the two socket calls of
//! [`super::buffer`].

mod frame;
mod inbox;
mod initiator;
mod link;
mod listen;
mod outbox;
mod poller;
mod regions;
mod responder;
#[cfg(test)]
mod tests;

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::net::sockopt;

pub use self::link::TcpLink;
pub use self::listen::{Incoming, TcpListener};
pub use self::regions::TcpDomain;

use self::regions::Regions;
use super::handshake::{HandshakeError, LaneReject, LaneReply, LaneRequest};
use super::pools::Pools;
use super::{ConnectError, Fabric, FabricKind, LinkConfig, RejectReason, SetupError};
use crate::units::LaneToken;

/// How long the machine of an idle peer may say nothing before the link counts as dead. (Its kernel answers, so a busy
/// or stopped process is not meant.) It is for who owes and is owed nothing: a client that waits has a patience of its
/// own, and a server ends the lanes of a session that it has not heard of for long. `TCP_USER_TIMEOUT` would cut both
/// short, and end a lane whose peer has no room for a while.
const PEER_SILENCE: Duration = Duration::from_secs(10);
/// Of that, how often the peer is asked in vain at the end.
const PROBES: u32 = 5;

/// The fabric itself: it has no state.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tcp;

impl Fabric for Tcp {
    type Domain = TcpDomain;
    type Link = TcpLink;

    fn kind(&self) -> FabricKind {
        FabricKind::Tcp
    }

    fn domain(&self) -> Result<TcpDomain, SetupError> {
        Ok(TcpDomain::default())
    }

    fn connect(
        &self,
        address: SocketAddr,
        token: &LaneToken,
        config: &LinkConfig,
        patience: Duration,
    ) -> Result<TcpLink, ConnectError> {
        let pools = pools_of(config)?;
        let request = LaneRequest { token: *token, responder_depth: config.responder_depth.max(1) };
        let (stream, reply) = introduce(address, &request, patience)
            .map_err(|error| error.into_connect_error(address, patience))?;
        // A peer that promises more than we asked for is held to what we asked for.
        let reads = reply.responder_depth.min(request.responder_depth);
        Ok(TcpLink::over(stream.into(), pools, config, reads, Regions::of_nobody())?)
    }
}

/// Why [`introduce`] failed.
enum Introduction {
    Io(io::Error),
    /// The peer said no.
    Rejected(RejectReason),
    /// What it said is neither a yes nor a no.
    NotOurs,
}

impl From<io::Error> for Introduction {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl Introduction {
    fn into_connect_error(self, address: SocketAddr, after: Duration) -> ConnectError {
        let fabric = FabricKind::Tcp;
        let reason = match self {
            Self::Rejected(reason) => return ConnectError::Refused { fabric, address, reason },
            // A socket with a time limit reports the end of the wait as either of the two.
            Self::Io(error)
                if matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock) =>
            {
                return ConnectError::TimedOut { fabric, address, after };
            }
            Self::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                "the connection was closed before the lane was answered; is it a Kaeru server?".to_owned()
            }
            Self::Io(error) => error.to_string(),
            Self::NotOurs => {
                "what answers there does not speak the lane protocol; is it a Kaeru server?".to_owned()
            }
        };
        ConnectError::Unreachable { fabric, address, reason }
    }
}

/// Connects and exchanges request and reply, all within `patience`.
fn introduce(
    address: SocketAddr,
    request: &LaneRequest,
    patience: Duration,
) -> Result<(TcpStream, LaneReply), Introduction> {
    let deadline = Instant::now() + patience;
    let stream = TcpStream::connect_timeout(&address, left_until(deadline)?)?;
    prepare(&stream)?;
    stream.set_write_timeout(Some(left_until(deadline)?))?;
    (&stream).write_all(&request.encode())?;
    const { assert!(LaneReply::LEN == LaneReject::LEN, "one read takes either") };
    let mut reply = [0; LaneReply::LEN];
    let mut filled = 0;
    // Not `read_exact`: a peer that dribbles single bytes would renew its time limit with each.
    while filled < reply.len() {
        stream.set_read_timeout(Some(left_until(deadline)?))?;
        match (&stream).read(&mut reply[filled..]) {
            Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            Ok(got) => filled += got,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok((stream, read_reply(&reply)?))
}

/// What the peer answered: a yes, or why not.
fn read_reply(bytes: &[u8; LaneReply::LEN]) -> Result<LaneReply, Introduction> {
    match (LaneReply::decode(bytes), LaneReject::decode(bytes)) {
        (Ok(reply), _) => Ok(reply),
        (_, Ok(reject)) => Err(Introduction::Rejected(reject.reason)),
        (Err(HandshakeError::Version(_)), _) => Err(Introduction::Rejected(RejectReason::BadVersion)),
        _ => Err(Introduction::NotOurs),
    }
}

/// The time that is left, or `TimedOut`. Never zero, which means "no limit" to sockets.
fn left_until(deadline: Instant) -> io::Result<Duration> {
    match deadline.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
        left => Ok(left),
    }
}

/// Socket options of a lane: send at once, and notice a peer whose machine is gone even while nothing is sent.
///
/// Buffer sizes are left to the kernel, which tunes them to the connection. Fixed sizes have not been compared with that.
fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, PEER_SILENCE / 2)?;
    sockopt::set_tcp_keepintvl(stream, PEER_SILENCE / 2 / PROBES)?;
    sockopt::set_tcp_keepcnt(stream, PROBES)?;
    Ok(())
}

fn pools_of(config: &LinkConfig) -> Result<Pools, SetupError> {
    Pools::new(config).map_err(|source| SetupError::Resource { what: "the slots of a lane", source })
}
