//! The one port: control streams and tcp lanes by TCP, verbs lanes by `rdma_cm`.
//!
//! A stranger costs a descriptor and a small buffer until it has said what it is; that takes a few seconds at most, and
//! the number of strangers is bounded, the oldest leaving first.

use std::collections::VecDeque;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kaeru_common::fabric::handshake::{HandshakeError, LaneReject, LaneRequest, MAGIC as LANE_MAGIC};
use kaeru_common::fabric::tcp;
use kaeru_common::fabric::{Incoming, RejectReason};
use kaeru_common::wire::CONTROL_PREAMBLE;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

use crate::Shared;
use crate::{lane, session};

/// How long a connection may take to say what it is.
const GREETING: Duration = Duration::from_secs(5);
/// Connections that have not said yet what they are.
const STRANGERS: usize = 512;
/// Connections in all: strangers and sessions. Beyond it new ones are hung up on.
const CONNECTIONS: usize = 1024;
/// A pause after accepting failed, as it does while the process has no descriptor left.
const BREATHER: Duration = Duration::from_millis(50);
/// Time between two words about connections that cannot be taken.
const SILENCE: Duration = Duration::from_secs(5);

/// Takes connections until the server stops; returns when every session has ended.
pub(crate) async fn listen(listener: TcpListener, shared: Arc<Shared>, mut stopping: watch::Receiver<bool>) {
    let mut tasks = JoinSet::new();
    let mut strangers: VecDeque<(watch::Receiver<bool>, AbortHandle)> = VecDeque::new();
    let mut last_word = None;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopping.wait_for(|&stopping| stopping) => break,
            Some(_) = tasks.join_next(), if !tasks.is_empty() => continue,
        };
        match accepted {
            Ok((stream, peer)) => {
                strangers.retain(|(known, task)| !*known.borrow() && !task.is_finished());
                if strangers.len() >= STRANGERS
                    && let Some((_, oldest)) = strangers.pop_front()
                {
                    oldest.abort();
                }
                if tasks.len() >= CONNECTIONS {
                    if is_due(&mut last_word) {
                        tracing::warn!("{peer} is turned away: there are {CONNECTIONS} connections already");
                    }
                    continue;
                }
                let (say, known) = watch::channel(false);
                let task = greet(stream, peer, say, shared.clone(), stopping.clone());
                strangers.push_back((known, tasks.spawn(task)));
            }
            Err(error) => {
                if is_due(&mut last_word) {
                    tracing::warn!(
                        "connections are not taken at the moment: {error}; if the limit of open files is the cause \
                         (ulimit -n), raise it"
                    );
                }
                tokio::time::sleep(BREATHER).await;
            }
        }
    }
    drop(listener);
    // Nobody waits for those who have not said what they are, and have nothing yet.
    for (known, stranger) in strangers {
        if !*known.borrow() {
            stranger.abort();
        }
    }
    while tasks.join_next().await.is_some() {}
}

/// Whether it is time for another word, which is then the last.
fn is_due(last_word: &mut Option<Instant>) -> bool {
    let due = last_word.is_none_or(|last: Instant| last.elapsed() >= SILENCE);
    if due {
        *last_word = Some(Instant::now());
    }
    due
}

/// Finds out what a connection is, and makes it that.
async fn greet(
    mut stream: TcpStream,
    peer: SocketAddr,
    known: watch::Sender<bool>,
    shared: Arc<Shared>,
    stopping: watch::Receiver<bool>,
) {
    let _ = stream.set_nodelay(true);
    let mut first = [0; LaneRequest::LEN];
    let magic = match tokio::time::timeout(GREETING, stream.read_exact(&mut first[..8])).await {
        Ok(Ok(_)) => &first[..8],
        _ => return tracing::debug!("{peer} did not say what it is"),
    };
    if magic == CONTROL_PREAMBLE {
        let early = CONTROL_PREAMBLE;
        session::run(stream, &early, shared, stopping, known).await;
    } else if magic == LANE_MAGIC {
        match tokio::time::timeout(GREETING, stream.read_exact(&mut first[8..])).await {
            Ok(Ok(_)) => take_lane(stream, &first, &shared),
            _ => tracing::debug!("{peer} did not finish its lane's preamble"),
        }
    } else {
        tracing::debug!("{peer} is no client of ours");
    }
}

fn take_lane(stream: TcpStream, preamble: &[u8; LaneRequest::LEN], shared: &Arc<Shared>) {
    let stream = match stream.into_std().and_then(|stream| stream.set_nonblocking(false).map(|()| stream)) {
        Ok(stream) => stream,
        Err(error) => return tracing::warn!("a lane's stream cannot be used: {error}"),
    };
    match LaneRequest::decode(preamble) {
        Ok(preamble) => admit(tcp::Incoming::new(stream, preamble), shared),
        Err(error) => turn_away(stream, error),
    }
}

/// Tells a lane of another version why it is not let in.
fn turn_away(mut stream: std::net::TcpStream, error: HandshakeError) {
    tracing::debug!("a lane's preamble is wrong: {error}");
    // So few bytes never block on a new connection, and a peer that is gone needs no answer.
    let _ = stream
        .set_nonblocking(true)
        .and_then(|()| stream.write_all(&LaneReject { reason: error.reject_reason() }.encode()));
}

/// Lets a lane in if its token says so.
pub(crate) fn admit<I>(incoming: I, shared: &Arc<Shared>)
where
    I: Incoming + 'static,
    I::Fabric: lane::Gates,
{
    match shared.tokens.redeem(incoming.token()) {
        Some(admission) => lane::start(incoming, admission, shared.responder_depth),
        None => {
            tracing::debug!("a lane came with a token that is unknown, used or too old");
            incoming.reject(RejectReason::BadToken);
        }
    }
}
