//! An attached export: its control stream, driven by a thread of its own, and the lanes that are opened on it.
//!
//! The stream does not carry data. If it falls silent, lanes that work go on working; if it ends, the server ends the
//! lanes.

mod driver;

use std::net::SocketAddr;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kaeru_common::fabric::tcp::{Tcp, TcpLink};
#[cfg(feature = "verbs")]
use kaeru_common::fabric::verbs::{self, Verbs, VerbsLink};
use kaeru_common::fabric::{ConnectError, Fabric, FabricKind, Link, LinkConfig};
use kaeru_common::session::client::Patience;
use kaeru_common::wire::control::{Attach, Exports, HostFacts, LaneTicket, Refusal, Welcome};
use kaeru_common::wire::grant::{Grant, Granted, Path};
use tokio::sync::{mpsc, oneshot, watch};

use self::driver::{Opening, Want, start};
use crate::remote::{BadLayout, Layout, Remote, StagedError, staged_link};
use crate::target::{Server, Target};

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
    /// The server did not say whether a lane may come.
    #[error("no lane: {server} did not answer within {after:?}; it may be stopped, or out of reach")]
    LaneLate {
        /// The server.
        server: String,
        /// How long was waited.
        after: Duration,
    },
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
    /// A lane to a file or disk was not opened.
    #[error("no lane: {0}")]
    Staged(#[from] StagedError),
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

/// What a server's machine is.
#[derive(Clone, Debug)]
pub struct Description {
    /// The address at which the server was reached.
    pub peer: SocketAddr,
    /// What it says of its machine.
    pub facts: HostFacts,
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
    route: OnceLock<Route>,
    /// Held by who opens the first lane, which finds the route.
    choosing: Mutex<()>,
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
    list_with(server, Patience::default())
}

/// As [`list`], for somebody who waits no longer than `each` for the stream, the welcome and the list.
///
/// # Errors
/// [`SessionError`].
pub fn list_within(server: &Server, each: Duration) -> Result<Listing, SessionError> {
    list_with(server, Patience { connect: each, hello: each, list: each, ..Patience::default() })
}

fn list_with(server: &Server, patience: Patience) -> Result<Listing, SessionError> {
    let (_, events, commands, _) = start(server, Want::List, patience)?;
    drop(commands);
    match events.blocking_recv() {
        Ok(Opening::Listed(listing)) => listing,
        _ => Err(closed(server, "it ended without a word")),
    }
}

/// Asks a server what its machine is.
///
/// # Errors
/// [`SessionError`].
pub fn describe(server: &Server) -> Result<Description, SessionError> {
    let (_, events, commands, _) = start(server, Want::Describe, Patience::default())?;
    drop(commands);
    match events.blocking_recv() {
        Ok(Opening::Described(description)) => *description,
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
        let (driver, events, commands, health) = start(&server, Want::Attach(wanted), Patience::default())?;
        match events.blocking_recv() {
            Ok(Opening::Attached(opened)) => {
                let (peer, welcome, granted) = (*opened)?;
                let (route, choosing, driver) = (OnceLock::new(), Mutex::new(()), Mutex::new(Some(driver)));
                Ok(Self {
                    commands,
                    health,
                    granted,
                    welcome,
                    server,
                    peer,
                    options,
                    route,
                    choosing,
                    driver,
                })
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
        self.route.get().cloned()
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
        // Lanes whose way is known do not wait for one another.
        if let Some(route) = self.route.get() {
            return self.connect(route.path, LANE_PATIENCE);
        }
        let choosing = self.choosing.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(route) = self.route.get() {
            drop(choosing);
            return self.connect(route.path, LANE_PATIENCE);
        }
        let (chosen, remote) = self.choose()?;
        tracing::info!("lanes go over {} to {}: {}", chosen.fabric, chosen.address, chosen.why);
        let _ = self.route.set(chosen);
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
        let (address, config) = (self.address_of(&path), &self.link_config());
        match path.fabric {
            FabricKind::Tcp => {
                let link = Tcp.connect(address, &ticket.token, config, patience)?;
                Ok(AnyRemote::Tcp(self.remote(link, &path, patience)?))
            }
            #[cfg(feature = "verbs")]
            FabricKind::Verbs => {
                let link = Verbs::client().connect(address, &ticket.token, config, patience)?;
                Ok(AnyRemote::Verbs(self.remote(link, &path, patience)?))
            }
            other => Err(SessionError::NoPath {
                wanted: "that fabric",
                reason: format!("no {other} in this build"),
            }),
        }
    }

    /// How a lane's link is built for this grant.
    fn link_config(&self) -> LinkConfig {
        match self.granted.grant {
            Grant::Direct { .. } | Grant::Null { .. } => self.options.link,
            Grant::Staged { .. } => staged_link(&self.options.link),
        }
    }

    /// The way to the export over `link`.
    fn remote<L: Link>(&self, link: L, path: &Path, patience: Duration) -> Result<Remote<L>, SessionError> {
        let size = self.granted.size;
        Ok(match (&self.granted.grant, &path.regions[..]) {
            (Grant::Staged { .. }, _) => Remote::staged(link, size, patience)?,
            (Grant::Null { .. }, [source, sink]) => {
                Remote::new(link, Layout::Null { source: *source, sink: *sink }, size)?
            }
            (_, regions) => Remote::new(link, Layout::Direct(regions.into()), size)?,
        })
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

fn closed(server: &Server, reason: &str) -> SessionError {
    SessionError::Closed { server: server.to_string(), reason: reason.to_owned() }
}
