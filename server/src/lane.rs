//! A session's lanes on the server's side: the tokens that let them in, the threads that look after them, and the fence
//! that ends them all before anybody else may write.
//!
//! A lane of a RAM export needs no code of ours over verbs: its thread sleeps until the link ends. Over tcp the thread
//! stands in for the card. A lane of a file or disk is served by `staged`.

mod staged;

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
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
    /// Wakes sessions.
    census: watch::Sender<Census>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Census {
    live: usize,
    /// Whether none may come in any more.
    closed: bool,
}

impl Lanes {
    /// No lanes yet.
    ///
    /// # Errors
    /// Where the process has no descriptor left.
    pub(crate) fn new() -> std::io::Result<Arc<Self>> {
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Arc::new(Self { stop, stopped: AtomicBool::new(false), census: watch::Sender::default() }))
    }

    /// How many are alive.
    pub(crate) fn live(&self) -> usize {
        self.census.borrow().live
    }

    /// Whether the session was fenced.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Ends all lanes and lets none in any more. Resolves when the last link is torn down, so nothing of this session
    /// can touch the export's memory after it. That is never while a disk does not answer: whoever cannot wait for
    /// ever gives up, and the lanes end nevertheless.
    pub(crate) async fn fence(&self) {
        self.stop();
        // The sender lives in `self`, so waiting cannot fail.
        let _ = self.census.subscribe().wait_for(|census| census.live == 0).await;
    }

    fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.census.send_modify(|census| census.closed = true);
        // Never read back, so it wakes every lane; it can only be full already.
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
    }

    /// Resolves when the session was fenced.
    pub(crate) async fn until_stopped(&self) {
        // As above.
        let _ = self.census.subscribe().wait_for(|census| census.closed).await;
    }

    fn enter(self: &Arc<Self>, export: &Arc<Export>) -> Option<LiveLane> {
        let entered = self.census.send_if_modified(|census| {
            let has_room = !census.closed && census.live < MAX_LANES;
            census.live += usize::from(has_room);
            has_room
        });
        entered.then(|| {
            export.lanes.fetch_add(1, Ordering::Relaxed);
            LiveLane { lanes: self.clone(), export: export.clone() }
        })
    }
}

/// Counts a lane as alive.
struct LiveLane {
    lanes: Arc<Lanes>,
    export: Arc<Export>,
}

impl Drop for LiveLane {
    fn drop(&mut self) {
        self.export.lanes.fetch_sub(1, Ordering::Relaxed);
        self.lanes.census.send_modify(|census| census.live -= 1);
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
pub(crate) struct Tokens(Mutex<HashMap<LaneToken, Issued>>);

struct Issued {
    admission: Admission,
    born: Instant,
}

impl Issued {
    fn is_good(&self) -> bool {
        self.born.elapsed() < TOKEN_LIFE && !self.admission.lanes.is_stopped()
    }
}

impl Tokens {
    /// A token for `admission`, good once and for a short time.
    ///
    /// # Errors
    /// Where the system has no randomness.
    pub(crate) fn issue(&self, admission: Admission) -> Result<LaneToken, getrandom::Error> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes)?;
        let mut tokens = self.lock();
        tokens.retain(|_, issued| issued.is_good());
        tokens.insert(LaneToken(bytes), Issued { admission, born: Instant::now() });
        Ok(LaneToken(bytes))
    }

    /// How many tokens of this session may still be used.
    pub(crate) fn waiting(&self, lanes: &Arc<Lanes>) -> usize {
        let counts = |issued: &&Issued| issued.is_good() && Arc::ptr_eq(&issued.admission.lanes, lanes);
        self.lock().values().filter(counts).count()
    }

    /// What `token` lets in. It is used up.
    pub(crate) fn redeem(&self, token: &LaneToken) -> Option<Admission> {
        let issued = self.lock().remove(token)?;
        issued.is_good().then_some(issued.admission)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<LaneToken, Issued>> {
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
    let Some(live) = admission.lanes.enter(&admission.export) else {
        return incoming.reject(RejectReason::NoResources);
    };
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
        } else if link.down().is_none() && !link.arm() {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ExportConfig, StoreConfig};
    use crate::store::Null;

    fn admission() -> Admission {
        let config = ExportConfig {
            name: "x".parse().unwrap(),
            store: StoreConfig::Null(4096),
            read_only: false,
            shared: false,
        };
        let store = Store::Null(Null::new(4096).unwrap());
        let export = Arc::new(Export::new(&config, store).unwrap());
        Admission { lanes: Lanes::new().unwrap(), export, write: true, way: Way::Tcp, number: 0 }
    }

    #[test]
    fn a_token_that_is_too_old_counts_for_nothing() {
        let (tokens, admission) = (Tokens::default(), admission());
        let young = tokens.issue(admission.clone()).unwrap();
        let old = tokens.issue(admission.clone()).unwrap();
        assert_eq!(tokens.waiting(&admission.lanes), 2);
        let born = Instant::now().checked_sub(TOKEN_LIFE).unwrap();
        tokens.lock().get_mut(&old).unwrap().born = born;
        assert_eq!(tokens.waiting(&admission.lanes), 1, "a session is not to run out of lanes that way");
        assert!(tokens.redeem(&old).is_none());
        assert!(tokens.redeem(&young).is_some());
    }

    #[tokio::test]
    async fn a_fence_is_not_complete_before_the_last_lane_has_ended() {
        let Admission { lanes, export, .. } = admission();
        let live = lanes.enter(&export).unwrap();
        let mut fence = Box::pin(lanes.fence());
        assert!(at_once(&mut fence).await.is_none(), "a lane is alive");
        assert!(lanes.enter(&export).is_none(), "and none comes in any more");
        drop(live);
        assert!(at_once(&mut fence).await.is_some());
        assert_eq!(export.lanes.load(Ordering::Relaxed), 0);
    }

    /// What a future comes to, if it is ready.
    async fn at_once<T>(future: &mut (impl Future<Output = T> + Unpin)) -> Option<T> {
        tokio::time::timeout(Duration::ZERO, future).await.ok()
    }
}
