//! A session's lanes on the server's side: the tokens that let them in, the threads that look after them, and the fence
//! that ends them all before anybody else may write.
//!
//! A lane of a RAM export needs no code of ours over verbs: its thread sleeps until the link ends. Over tcp the thread
//! stands in for the card. A lane of a file or disk is served by `staged`.

mod staged;

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use kaeru_common::fabric::{Fabric, Incoming, Link, LinkConfig, RejectReason};
use kaeru_common::units::LaneToken;
use kaeru_common::wire::MAX_LANES;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use tokio::sync::watch;

use self::staged::Desk;
use crate::export::Export;
use crate::store::Store;

/// How long a token may be used.
const TOKEN_LIFE: Duration = Duration::from_secs(30);

/// The lanes of one session.
pub(crate) struct Lanes {
    /// Wakes the threads of the lanes.
    stop: OwnedFd,
    /// What the threads look at between two operations.
    stopped: AtomicBool,
    /// Wakes the session.
    told: watch::Sender<bool>,
    live: Mutex<usize>,
    ended: Condvar,
}

impl Lanes {
    /// No lanes yet.
    ///
    /// # Errors
    /// Where the process has no descriptor left.
    pub(crate) fn new() -> std::io::Result<Arc<Self>> {
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Arc::new(Self {
            stop,
            stopped: AtomicBool::new(false),
            told: watch::Sender::new(false),
            live: Mutex::new(0),
            ended: Condvar::new(),
        }))
    }

    /// How many are alive.
    pub(crate) fn live(&self) -> usize {
        *self.lock()
    }

    /// Whether the session was fenced.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Ends all lanes and lets none in any more. Returns when the last link is torn down, so nothing of this session
    /// can touch the export's memory after it.
    pub(crate) fn fence(&self) {
        let mut live = self.lock();
        self.stopped.store(true, Ordering::Release);
        // Never read back, so it wakes every lane; it can only be full already.
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        self.told.send_replace(true);
        while *live > 0 {
            live = self.ended.wait(live).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Resolves when the session was fenced.
    pub(crate) async fn until_stopped(&self) {
        // The sender lives in `self`, so waiting cannot fail.
        let _ = self.told.subscribe().wait_for(|&stopped| stopped).await;
    }

    fn enter(self: &Arc<Self>) -> Option<LiveLane> {
        let mut live = self.lock();
        if self.is_stopped() || *live >= MAX_LANES {
            return None;
        }
        *live += 1;
        Some(LiveLane(self.clone()))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, usize> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts a lane as alive.
struct LiveLane(Arc<Lanes>);

impl Drop for LiveLane {
    fn drop(&mut self) {
        *self.0.lock() -= 1;
        self.0.ended.notify_all();
    }
}

/// The way that a lane was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Over tcp.
    Tcp,
    /// Over the export's verbs gate of this number.
    #[cfg(feature = "verbs")]
    Verbs(usize),
}

/// What a token lets in.
#[derive(Clone)]
pub(crate) struct Admission {
    /// The session's lanes.
    pub(crate) lanes: Arc<Lanes>,
    /// The export.
    pub(crate) export: Arc<Export>,
    /// Whether the lane may write.
    pub(crate) write: bool,
    /// How it comes.
    pub(crate) way: Way,
    /// Its number in the session, for logs.
    pub(crate) number: u16,
}

/// The tokens that were given and not yet used.
#[derive(Default)]
pub(crate) struct Tokens(Mutex<HashMap<LaneToken, (Admission, Instant)>>);

impl Tokens {
    /// A token for `admission`, good once and for a short time.
    ///
    /// # Errors
    /// Where the system has no randomness.
    pub(crate) fn issue(&self, admission: Admission) -> Result<LaneToken, getrandom::Error> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes)?;
        let mut tokens = self.lock();
        tokens.retain(|_, (admission, born)| born.elapsed() < TOKEN_LIFE && !admission.lanes.is_stopped());
        tokens.insert(LaneToken(bytes), (admission, Instant::now()));
        Ok(LaneToken(bytes))
    }

    /// How many tokens of this session are waiting to be used.
    pub(crate) fn waiting(&self, lanes: &Arc<Lanes>) -> usize {
        self.lock().values().filter(|(admission, _)| Arc::ptr_eq(&admission.lanes, lanes)).count()
    }

    /// What `token` lets in. It is used up.
    pub(crate) fn redeem(&self, token: &LaneToken) -> Option<Admission> {
        let (admission, born) = self.lock().remove(token)?;
        (born.elapsed() < TOKEN_LIFE).then_some(admission)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<LaneToken, (Admission, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A lane's link as the server builds it. Where the peer reaches the export's own memory the server starts no
/// operations, so it needs next to no queue; other lanes are lent slots.
fn link_config(store: &Store, responder_depth: u8) -> LinkConfig {
    match store {
        Store::Ram(_) | Store::Null(_) => {
            LinkConfig { slots: 1, slot_size: 4096, depth: 16, responder_depth, ..LinkConfig::default() }
        }
        Store::Staged(_) => staged::link_config(responder_depth),
    }
}

/// Lets `incoming` in as `admission` says and looks after it on a thread of its own, until it ends or is fenced.
pub(crate) fn start<I>(incoming: I, admission: Admission, responder_depth: u8)
where
    I: Incoming + 'static,
    I::Fabric: Gates,
{
    let Some(live) = admission.lanes.enter() else { return incoming.reject(RejectReason::NoResources) };
    let name = format!("lane-{}-{}", admission.export.name, admission.number);
    let run = move || {
        match accept(incoming, &admission, responder_depth) {
            Ok(link) => serve(link, &admission),
            Err(error) => tracing::warn!("a lane of {} did not come about: {error}", admission.export.name),
        }
        drop(live);
    };
    if let Err(error) = std::thread::Builder::new().name(name).spawn(run) {
        tracing::error!("no thread for a lane: {error}");
    }
}

/// A fabric whose gates an export has.
pub(crate) trait Gates: Fabric {
    /// The way in for a writer or reader over this fabric.
    fn opening(export: &Export, way: Way, write: bool) -> Option<Arc<crate::gate::Opening<Self>>>
    where
        Self: Sized;
}

impl Gates for kaeru_common::fabric::tcp::Tcp {
    fn opening(export: &Export, way: Way, write: bool) -> Option<Arc<crate::gate::Opening<Self>>> {
        (way == Way::Tcp).then(|| export.tcp.as_ref()?.open(write).ok()).flatten()
    }
}

#[cfg(feature = "verbs")]
impl Gates for kaeru_common::fabric::verbs::Verbs {
    fn opening(export: &Export, way: Way, write: bool) -> Option<Arc<crate::gate::Opening<Self>>> {
        let Way::Verbs(gate) = way else { return None };
        export.verbs.get(gate)?.open(write).ok()
    }
}

fn accept<I: Incoming>(
    incoming: I,
    admission: &Admission,
    responder_depth: u8,
) -> Result<<I::Fabric as Fabric>::Link, Box<dyn std::error::Error>>
where
    I::Fabric: Gates,
{
    let Some(opening) = <I::Fabric as Gates>::opening(&admission.export, admission.way, admission.write)
    else {
        incoming.reject(RejectReason::BadToken);
        return Err("its token was given for another fabric".into());
    };
    Ok(incoming.accept(&opening.domain, &link_config(&admission.export.store, responder_depth))?)
}

/// Serves the peer until the link ends or the session is fenced.
fn serve(link: impl Link, admission: &Admission) {
    let Admission { lanes, export, write, .. } = admission;
    match &*export.store {
        Store::Ram(_) | Store::Null(_) => look_after(link, lanes),
        Store::Staged(store) => match Desk::open(link, export, store, *write) {
            Ok(desk) => desk.serve(lanes),
            Err(error) => tracing::error!("a lane of {} cannot be served: {error}", export.name),
        },
    }
}

/// Serves a peer that reaches the memory by itself. Dropping the link tears it down.
fn look_after(mut link: impl Link, lanes: &Lanes) {
    tracing::debug!("a lane over {} is up", link.kind());
    let mut done = Vec::with_capacity(16);
    while !lanes.is_stopped() && link.down().is_none() {
        if link.poll(&mut done) {
            done.clear();
            link.submit();
        } else if !link.arm() {
            let mut fds = [
                PollFd::from_borrowed_fd(link.wait_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(lanes.stop.as_fd(), PollFlags::IN),
            ];
            // A failure (of which there is none but a signal) is a wake-up like any other.
            let _ = poll(&mut fds, None);
            link.woken();
        }
    }
    match link.down() {
        Some(why) => tracing::debug!("a lane over {} ended: {why}", link.kind()),
        None => tracing::debug!("a lane over {} was fenced", link.kind()),
    }
}
