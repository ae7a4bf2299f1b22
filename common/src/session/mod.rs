//! Who says what when: the two roles of a control stream as state machines without socket, thread or clock.
//!
//! ```text
//! client  Connecting ─▶ Hello ─▶ Ready ⇄ Listing
//!                                Ready ⇄ Attaching ─▶ Attached ─▶ Detaching ─▶ Closed
//! server  Greeting ─▶ Ready ─▶ Attached ─▶ Closed
//!         every state of both ─▶ Closed, with a reason
//! ```
//!
//! A driver owns the socket and the clock and does this, for [`client::Client`] and [`server::Server`] alike:
//!
//! 1. `handle_connected` (client only), `handle_bytes`, `handle_timeout`, `handle_disconnected`: what happened;
//! 2. `poll_event` until `None`: what it means. Requests at a server must be answered, sooner or later;
//! 3. `poll_transmit` into a buffer, when the last one has been written, and write that to the socket;
//! 4. sleep until the socket is ready, or `poll_timeout`.
//!
//! Read before you look at the clock: where both a timer and bytes are due, `handle_bytes` comes first. The last event is
//! always `Closed` with its [`CloseReason`]; what `poll_transmit` gives then is still to be sent before the socket is
//! closed. Nothing that a peer sends makes a session hold more than a bounded number of bytes or messages.

mod channel;
pub mod client;
pub mod framer;
pub mod server;
pub mod timer;

use std::time::{Duration, Instant};

use crate::error::{DecodeError, PeerFault};
use crate::units::about_time;
use crate::wire::control::Refusal;

/// Why a session is over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// The client gave the export back.
    #[error("the export was detached")]
    Detached,
    /// This side ended it.
    #[error("the session was closed on this side")]
    ClosedHere,
    /// The stream broke, ended, or never came about.
    #[error("the control stream is gone: {0}")]
    Disconnected(String),
    /// The server said goodbye.
    #[error("the server ended the session: {0}")]
    Goodbye(Refusal),
    /// The server refused something without which there is no session.
    #[error("the server refused: {0}")]
    Refused(Refusal),
    /// The peer did not answer.
    #[error("no answer to {what} within {}", about_time(*after))]
    TimedOut {
        /// What was waited for.
        what: &'static str,
        /// How long.
        after: Duration,
    },
    /// The client was silent for longer than its lease.
    #[error("nothing was heard from the client for {silence:?}")]
    Expired {
        /// How long.
        silence: Duration,
    },
    /// The peer broke the protocol.
    #[error("the peer broke the protocol: {0}")]
    Fault(#[from] PeerFault),
}

/// A call that does not fit the session's state. Nothing happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misuse {
    /// Not in this state.
    #[error("that cannot be done while the session is {state}")]
    NotNow {
        /// The state's name.
        state: &'static str,
    },
    /// Too many requests are unanswered.
    #[error("too many requests are unanswered")]
    TooMany,
    /// The grant has no such path.
    #[error("the grant has no path {0}")]
    NoSuchPath(u8),
    /// The message is one that the peer would not take.
    #[error("the message is not valid: {0}")]
    Invalid(DecodeError),
}

/// The keep-alive after the one that was due at `due`: on the beat, unless whole beats were missed.
fn next_beat(due: Instant, interval: Duration, now: Instant) -> Instant {
    let next = due + interval;
    if next > now { next } else { now + interval }
}

#[cfg(test)]
mod tests;
