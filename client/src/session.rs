//! An attached export: its control stream, driven by a thread of its own, and the lanes that are opened on it.
//!
//! The stream does not carry data. If it falls silent, lanes that work go on working; if it ends, the server ends the
//! lanes.

use std::collections::VecDeque;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use kaeru_common::fabric::tcp::{Tcp, TcpLink};
#[cfg(feature = "verbs")]
use kaeru_common::fabric::verbs::{self, Verbs, VerbsLink};
use kaeru_common::fabric::{ConnectError, Fabric, FabricKind, LinkConfig};
use kaeru_common::session::CloseReason;
use kaeru_common::session::client::{Ask, Client as Core, ClientConfig, Event, Patience};
use kaeru_common::wire::control::{Attach, Exports, Identity, LaneTicket, Name, Refusal, Welcome};
use kaeru_common::wire::grant::{Grant, Granted, Path};
use kaeru_common::wire::version::VersionRange;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot, watch};

use crate::remote::{BadLayout, Layout, Remote};
use crate::target::{Server, Target};

/// Bytes taken from the stream at once.
const CHUNK: usize = 64 << 10;
/// How long a lane may take to connect where it surely can.
const LANE_PATIENCE: Duration = Duration::from_secs(5);
/// How long `auto` gives each way over RDMA before it tries the next one.
const AUTO_PATIENCE: Duration = Duration::from_secs(5);

/// Which fabric lanes are to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum FabricChoice {
    /// RDMA where both ends can, else TCP.
    #[default]
    Auto,
    /// RDMA or nothing.
    Verbs,
    /// TCP only.
    Tcp,
}

/// How to attach.
#[derive(Clone, Debug, Default)]
pub struct AttachOptions {
    /// Only to read.
    pub read_only: bool,
    /// Take the right to write from whoever has it.
    pub steal: bool,
    /// Which fabric.
    pub fabric: FabricChoice,
    /// How each lane is built.
    pub link: LinkConfig,
}

/// Why there is no session, or no lane.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The name means nothing here.
    #[error("cannot find {server}: {reason}; check the name, or use its address")]
    Resolve {
        /// The server.
        server: String,
        /// The system's error.
        reason: String,
    },
    /// Nothing answers there.
    #[error(
        "cannot reach {server}: {reason}; is kaerud running there, and does it --listen on that address?"
    )]
    Connect {
        /// The server.
        server: String,
        /// The system's error.
        reason: String,
    },
    /// The server said no.
    #[error("{server} refuses: {refusal}")]
    Refused {
        /// The server.
        server: String,
        /// Its reason.
        refusal: Refusal,
    },
    /// The session is over.
    #[error("the session with {server} is over: {reason}")]
    Closed {
        /// The server.
        server: String,
        /// Why.
        reason: String,
    },
    /// A lane did not connect.
    #[error("no lane: {0}")]
    Lane(#[from] ConnectError),
    /// The wanted fabric is not there.
    #[error("no lane over {wanted}: {reason}")]
    NoPath {
        /// What was wanted.
        wanted: &'static str,
        /// Why it cannot be.
        reason: String,
    },
    /// The grant is unusable.
    #[error(transparent)]
    Layout(#[from] BadLayout),
    /// The system has no room.
    #[error("cannot set up the session: {0}")]
    System(#[from] std::io::Error),
}

/// How the session is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Since when nothing has been heard from the server, while that is remarkable.
    pub silent_since: Option<Instant>,
    /// Why it is over, once it is.
    pub closed: Option<String>,
}

/// The way that the lanes go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The fabric.
    pub fabric: FabricKind,
    /// Where lanes connect.
    pub address: SocketAddr,
    /// The server's device; empty for tcp.
    pub device: String,
    /// Why this one.
    pub why: String,
    path: u8,
}

/// A lane's way to the export, on whichever fabric it runs.
#[derive(Debug)]
#[cfg_attr(
    feature = "verbs",
    expect(clippy::large_enum_variant, reason = "a handful of them exist, and each is used in place")
)]
pub enum AnyRemote {
    /// Over tcp.
    Tcp(Remote<TcpLink>),
    /// Over RDMA.
    #[cfg(feature = "verbs")]
    Verbs(Remote<VerbsLink>),
}

impl From<Remote<TcpLink>> for AnyRemote {
    fn from(remote: Remote<TcpLink>) -> Self {
        Self::Tcp(remote)
    }
}

#[cfg(feature = "verbs")]
impl From<Remote<VerbsLink>> for AnyRemote {
    fn from(remote: Remote<VerbsLink>) -> Self {
        Self::Verbs(remote)
    }
}

/// Runs the same expression for a remote of any fabric: `with_remote!(remote, inner => inner.size())`.
#[macro_export]
macro_rules! with_remote {
    ($remote:expr, $inner:ident => $body:expr) => {
        match $remote {
            $crate::session::AnyRemote::Tcp($inner) => $body,
            #[cfg(feature = "verbs")]
            $crate::session::AnyRemote::Verbs($inner) => $body,
        }
    };
}

/// What a server says of itself and exports.
#[derive(Clone, Debug)]
pub struct Listing {
    /// The server.
    pub welcome: Welcome,
    /// Its exports.
    pub exports: Exports,
}

/// An attached export. Dropping it gives the export back.
pub struct Session {
    commands: mpsc::UnboundedSender<Command>,
    health: watch::Receiver<Health>,
    granted: Granted,
    welcome: Welcome,
    server: Server,
    peer: SocketAddr,
    options: AttachOptions,
    route: Mutex<Option<Route>>,
    driver: Mutex<Option<JoinHandle<()>>>,
}

enum Command {
    OpenLane(u8, oneshot::Sender<Result<LaneTicket, SessionError>>),
    Detach,
}

/// Asks a server for its exports.
///
/// # Errors
/// [`SessionError`].
pub fn list(server: &Server) -> Result<Listing, SessionError> {
    let (_, events, commands, _) = start(server, Want::List)?;
    drop(commands);
    match events.blocking_recv() {
        Ok(Opening::Listed(listing)) => listing,
        _ => Err(closed(server, "it ended without a word")),
    }
}

impl Session {
    /// Attaches an export.
    ///
    /// # Errors
    /// [`SessionError`] says what was tried, what was found and what to do.
    pub fn attach(target: &Target, options: AttachOptions) -> Result<Self, SessionError> {
        let wanted = Attach {
            export: target.export.clone(),
            read_only: options.read_only,
            steal: options.steal,
            resume: None,
        };
        let server = target.server.clone();
        let (driver, events, commands, health) = start(&server, Want::Attach(wanted))?;
        match events.blocking_recv() {
            Ok(Opening::Attached(opened)) => {
                let (peer, welcome, granted) = (*opened)?;
                let (route, driver) = (Mutex::new(None), Mutex::new(Some(driver)));
                Ok(Self { commands, health, granted, welcome, server, peer, options, route, driver })
            }
            _ => Err(closed(&server, "it ended without a word")),
        }
    }

    /// What was granted.
    pub fn granted(&self) -> &Granted {
        &self.granted
    }

    /// Whether the export reads as zeroes everywhere and keeps nothing.
    pub fn is_all_hole(&self) -> bool {
        matches!(self.granted.grant, Grant::Null { .. })
    }

    /// What the server says of itself.
    pub fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    /// The way that the lanes go; `None` before the first one.
    pub fn route(&self) -> Option<Route> {
        self.route.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How the session is, now and when it changes.
    pub fn health(&self) -> watch::Receiver<Health> {
        self.health.clone()
    }

    /// Opens a lane. The first one chooses the way that all others take.
    ///
    /// # Errors
    /// [`SessionError`]; a later attempt may succeed.
    pub fn open_lane(&self) -> Result<AnyRemote, SessionError> {
        let mut route = self.route.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(route) = &*route {
            return self.connect(route.path, LANE_PATIENCE);
        }
        let (chosen, remote) = self.choose()?;
        tracing::info!("lanes go over {} to {}: {}", chosen.fabric, chosen.address, chosen.why);
        *route = Some(chosen);
        Ok(remote)
    }

    /// Tries the granted paths in the order of preference.
    fn choose(&self) -> Result<(Route, AnyRemote), SessionError> {
        let paths = self.granted.grant.paths();
        let numbered = || (0u8..).zip(paths.iter());
        let mut reasons = Vec::new();
        if self.options.fabric != FabricChoice::Tcp {
            if let Some(reason) = no_verbs_here() {
                reasons.push(reason);
            } else if !numbered().any(|(_, path)| path.fabric == FabricKind::Verbs) {
                reasons.push(format!("{} offers no RDMA", self.server));
            } else {
                for (number, path) in numbered().filter(|(_, path)| path.fabric == FabricKind::Verbs) {
                    match self.connect(number, AUTO_PATIENCE) {
                        Ok(remote) => {
                            let why = format!("the server's device {} is within reach", path.device);
                            return Ok((self.route_of(number, path, why), remote));
                        }
                        Err(error) => reasons.push(error.to_string()),
                    }
                }
            }
            if self.options.fabric == FabricChoice::Verbs {
                return Err(SessionError::NoPath { wanted: "verbs", reason: reasons.join("; ") });
            }
        }
        let Some((number, path)) = numbered().find(|(_, path)| path.fabric == FabricKind::Tcp) else {
            reasons.push(format!("{} offers no tcp", self.server));
            return Err(SessionError::NoPath { wanted: "tcp", reason: reasons.join("; ") });
        };
        let remote = self.connect(number, LANE_PATIENCE)?;
        let why = if reasons.is_empty() {
            "--fabric tcp".to_owned()
        } else {
            format!("not verbs: {}", reasons.join("; "))
        };
        Ok((self.route_of(number, path, why), remote))
    }

    fn route_of(&self, number: u8, path: &Path, why: String) -> Route {
        let address = self.address_of(path);
        Route { fabric: path.fabric, address, device: path.device.to_string(), why, path: number }
    }

    /// Where lanes of a path connect. Over tcp that is where the control stream went: the server may not know by which
    /// address it is reached.
    fn address_of(&self, path: &Path) -> SocketAddr {
        if path.fabric == FabricKind::Tcp { self.peer } else { path.address }
    }

    fn connect(&self, number: u8, patience: Duration) -> Result<AnyRemote, SessionError> {
        let path = self.granted.grant.paths().get(usize::from(number)).cloned();
        let path = path.ok_or_else(|| closed(&self.server, "the grant has no such path"))?;
        let (reply, ticket) = oneshot::channel();
        let gone = || closed(&self.server, &self.health.borrow().closed.clone().unwrap_or_default());
        self.commands.send(Command::OpenLane(number, reply)).map_err(|_| gone())?;
        let ticket = ticket.blocking_recv().map_err(|_| gone())??;
        let (layout, size) = (layout_of(&self.granted.grant, &path), self.granted.size);
        let (address, config) = (self.address_of(&path), &self.options.link);
        match path.fabric {
            FabricKind::Tcp => {
                let link = Tcp.connect(address, &ticket.token, config, patience)?;
                Ok(AnyRemote::Tcp(Remote::new(link, layout, size)?))
            }
            #[cfg(feature = "verbs")]
            FabricKind::Verbs => {
                let link = Verbs::client().connect(address, &ticket.token, config, patience)?;
                Ok(AnyRemote::Verbs(Remote::new(link, layout, size)?))
            }
            other => Err(SessionError::NoPath {
                wanted: "that fabric",
                reason: format!("no {other} in this build"),
            }),
        }
    }

    /// Gives the export back and waits until the server has it. Lanes should be closed before; no new ones come about
    /// afterwards.
    pub fn end(&self) {
        let _ = self.commands.send(Command::Detach);
        if let Some(driver) = self.driver.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = driver.join();
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.end();
    }
}

/// Why this machine cannot use RDMA at all; `None` if it may.
#[cfg(feature = "verbs")]
fn no_verbs_here() -> Option<String> {
    verbs::addresses().is_empty().then(|| match verbs::names() {
        names if names.is_empty() => "this machine has no RDMA device".to_owned(),
        names => format!("{} has no IP address here", names.join(", ")),
    })
}

#[cfg(not(feature = "verbs"))]
fn no_verbs_here() -> Option<String> {
    Some("this kaeru was built without RDMA (feature \"verbs\")".to_owned())
}

fn layout_of(grant: &Grant, path: &Path) -> Layout {
    match (grant, &path.regions[..]) {
        (Grant::Null { .. }, [source, sink]) => Layout::Null { source: *source, sink: *sink },
        (_, regions) => Layout::Direct(regions.into()),
    }
}

fn closed(server: &Server, reason: &str) -> SessionError {
    SessionError::Closed { server: server.to_string(), reason: reason.to_owned() }
}

// ── The thread that drives the stream ──────────────────────────────────────────────────────────────────────────────

/// What a stream is opened for.
enum Want {
    List,
    Attach(Attach),
}

type Opened = Box<Result<(SocketAddr, Welcome, Granted), SessionError>>;

/// The first thing that a driver reports.
enum Opening {
    Listed(Result<Listing, SessionError>),
    Attached(Opened),
}

type Started =
    (JoinHandle<()>, oneshot::Receiver<Opening>, mpsc::UnboundedSender<Command>, watch::Receiver<Health>);

fn start(server: &Server, want: Want) -> Result<Started, SessionError> {
    let (opening, opened) = oneshot::channel();
    let (commands, orders) = mpsc::unbounded_channel();
    let (tell, health) = watch::channel(Health::default());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let driver = Driver {
        core: Core::new(Instant::now(), client_config()),
        server: server.clone(),
        peer: None,
        want,
        welcome: None,
        opening: Some(opening),
        lanes: VecDeque::new(),
        health: tell,
    };
    let run = move || runtime.block_on(driver.run(orders));
    let thread = std::thread::Builder::new().name("control".into()).spawn(run)?;
    Ok((thread, opened, commands, health))
}

fn client_config() -> ClientConfig {
    let host = gethostname::gethostname();
    ClientConfig {
        client: Name::clipped(&host.to_string_lossy()),
        identity: Identity { bytes: identity() },
        versions: VersionRange::OURS,
        patience: Patience::default(),
    }
}

/// The machine's own id, so that it stays the same across restarts; random where it has none.
fn identity() -> [u8; 16] {
    let id = std::fs::read_to_string("/etc/machine-id").ok();
    let id = id.and_then(|id| u128::from_str_radix(id.trim(), 16).ok()).map(u128::to_be_bytes);
    id.unwrap_or_else(|| {
        let mut bytes = [0; 16];
        // Without randomness it stays zero, which only makes it less telling.
        let _ = getrandom::fill(&mut bytes);
        bytes
    })
}

struct Driver {
    core: Core,
    server: Server,
    peer: Option<SocketAddr>,
    want: Want,
    welcome: Option<Welcome>,
    opening: Option<oneshot::Sender<Opening>>,
    /// Who waits for a lane's ticket, in the order of asking.
    lanes: VecDeque<oneshot::Sender<Result<LaneTicket, SessionError>>>,
    health: watch::Sender<Health>,
}

impl Driver {
    async fn run(mut self, mut orders: mpsc::UnboundedReceiver<Command>) {
        let stream = match connect(&self.server).await {
            Ok(stream) => stream,
            Err(error) => return self.open(Err(error)),
        };
        self.peer = stream.peer_addr().ok();
        let _ = stream.set_nodelay(true);
        self.core.handle_connected(Instant::now());
        let (mut reader, mut writer) = stream.into_split();
        let (mut input, mut output) = (BytesMut::with_capacity(CHUNK), BytesMut::new());
        let mut detaching = false;
        loop {
            let over = self.handle_events();
            if output.is_empty() || over {
                self.core.poll_transmit(&mut output);
            }
            if over {
                let _ = tokio::time::timeout(Duration::from_secs(1), writer.write_all(&output)).await;
                return;
            }
            let deadline = self.core.poll_timeout().map(tokio::time::Instant::from_std);
            let timer = async {
                match deadline {
                    Some(deadline) => tokio::time::sleep_until(deadline).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                read = reader.read_buf(&mut input) => {
                    match read {
                        Ok(0) => self.core.handle_disconnected("the server closed it"),
                        Ok(_) => self.core.handle_bytes(Instant::now(), &input),
                        Err(error) => self.core.handle_disconnected(&error.to_string()),
                    }
                    input.clear();
                }
                written = writer.write_buf(&mut output), if !output.is_empty() => {
                    if let Err(error) = written {
                        self.core.handle_disconnected(&error.to_string());
                    }
                }
                order = orders.recv(), if !detaching => match order {
                    Some(Command::OpenLane(path, reply)) => self.open_lane(path, reply),
                    Some(Command::Detach) | None => {
                        detaching = true;
                        if self.core.detach(Instant::now()).is_err() && self.opening.is_none() {
                            self.core.close();
                        }
                    }
                },
                () = timer => self.core.handle_timeout(Instant::now()),
            }
        }
    }

    fn open_lane(&mut self, path: u8, reply: oneshot::Sender<Result<LaneTicket, SessionError>>) {
        match self.core.open_lane(Instant::now(), path) {
            Ok(()) => self.lanes.push_back(reply),
            Err(misuse) => {
                let _ = reply.send(Err(closed(&self.server, &misuse.to_string())));
            }
        }
    }

    /// Passes on what the core has to say. Returns whether the session is over.
    fn handle_events(&mut self) -> bool {
        while let Some(event) = self.core.poll_event() {
            match event {
                Event::Welcomed(welcome) => self.welcomed(welcome),
                Event::Listed(exports) => {
                    let listing = self.welcome.clone().map(|welcome| Listing { welcome, exports });
                    self.list_with(listing.ok_or_else(|| closed(&self.server, "it sent no welcome")));
                }
                Event::Attached(granted) => {
                    let opened = self.peer.zip(self.welcome.clone());
                    let opened = opened.map(|(peer, welcome)| (peer, welcome, granted));
                    self.open(opened.ok_or_else(|| closed(&self.server, "it sent no welcome")));
                }
                Event::Lane(_, ticket) => self.lane_with(Ok(ticket)),
                Event::Refused(Ask::Lane(_), refusal) => self.lane_with(Err(self.refused(refusal))),
                Event::Refused(_, refusal) => {
                    self.open(Err(self.refused(refusal)));
                    self.core.close();
                }
                Event::LaneLate(_) => tracing::warn!("{} is slow to let a lane in", self.server),
                Event::PeerSilent(silence) => {
                    tracing::warn!("{} has been silent for {silence:?}; lanes that work go on", self.server);
                    self.health.send_modify(|health| health.silent_since = Some(Instant::now() - silence));
                }
                Event::PeerBack(silence) => {
                    tracing::info!("{} is back after {silence:?}", self.server);
                    self.health.send_modify(|health| health.silent_since = None);
                }
                Event::Closed(reason) => {
                    self.close(&reason);
                    return true;
                }
            }
        }
        false
    }

    fn welcomed(&mut self, welcome: Welcome) {
        self.welcome = Some(welcome);
        let asked = match &self.want {
            Want::List => self.core.list(Instant::now()),
            Want::Attach(attach) => self.core.attach(Instant::now(), attach.clone()),
        };
        if let Err(misuse) = asked {
            self.open(Err(closed(&self.server, &misuse.to_string())));
        }
    }

    fn close(&mut self, reason: &CloseReason) {
        let error = match reason {
            CloseReason::Refused(refusal) => self.refused(refusal.clone()),
            reason => closed(&self.server, &reason.to_string()),
        };
        self.open(Err(error));
        self.health.send_modify(|health| health.closed = Some(reason.to_string()));
        for reply in std::mem::take(&mut self.lanes) {
            let _ = reply.send(Err(closed(&self.server, &reason.to_string())));
        }
    }

    fn refused(&self, refusal: Refusal) -> SessionError {
        SessionError::Refused { server: self.server.to_string(), refusal }
    }

    /// Reports how opening went, whatever it was for.
    fn open(&mut self, opened: Result<(SocketAddr, Welcome, Granted), SessionError>) {
        match (&self.want, opened) {
            (Want::List, Err(error)) => self.list_with(Err(error)),
            (_, opened) => self.report(Opening::Attached(Box::new(opened))),
        }
    }

    fn list_with(&mut self, listing: Result<Listing, SessionError>) {
        self.report(Opening::Listed(listing));
        self.core.close();
    }

    fn report(&mut self, opening: Opening) {
        if let Some(report) = self.opening.take() {
            // Whoever asked may have gone; then nobody needs to know.
            let _ = report.send(opening);
        }
    }

    fn lane_with(&mut self, ticket: Result<LaneTicket, SessionError>) {
        if let Some(reply) = self.lanes.pop_front() {
            let _ = reply.send(ticket);
        }
    }
}

/// Connects to the first address of the server that answers.
async fn connect(server: &Server) -> Result<TcpStream, SessionError> {
    let wanted = (server.host.clone(), server.port);
    let resolve = |reason: String| SessionError::Resolve { server: server.to_string(), reason };
    let addresses = tokio::task::spawn_blocking(move || wanted.to_socket_addrs())
        .await
        .map_err(|error| resolve(error.to_string()))?
        .map_err(|error| resolve(error.to_string()))?;
    let mut reason = "it has no address".to_owned();
    for address in addresses {
        match tokio::time::timeout(Patience::default().connect, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => reason = format!("{address}: {error}"),
            Err(_) => reason = format!("{address} did not answer within {:?}", Patience::default().connect),
        }
    }
    Err(SessionError::Connect { server: server.to_string(), reason })
}
