//! The thread that drives a session's control stream: bytes and timers in and out of the session core, and the
//! session's wishes on the way.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use kaeru_common::session::CloseReason;
use kaeru_common::session::client::{Ask, Client as Core, ClientConfig, Event, Patience};
use kaeru_common::wire::control::{Attach, Identity, LaneTicket, Name, Refusal, Welcome};
use kaeru_common::wire::grant::Granted;
use kaeru_common::wire::version::VersionRange;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot, watch};

use super::{Command, Description, Health, Listing, SessionError, closed};
use crate::target::Server;

/// Bytes taken from the stream at once.
const CHUNK: usize = 64 << 10;

/// What a stream is opened for.
pub(super) enum Want {
    List,
    Describe,
    Attach(Attach),
}

pub(super) type Opened = Box<Result<(SocketAddr, Welcome, Granted), SessionError>>;

/// The first thing that a driver reports.
pub(super) enum Opening {
    Listed(Result<Listing, SessionError>),
    Described(Box<Result<Description, SessionError>>),
    Attached(Opened),
}

pub(super) type Started =
    (JoinHandle<()>, oneshot::Receiver<Opening>, mpsc::UnboundedSender<Command>, watch::Receiver<Health>);

pub(super) fn start(server: &Server, want: Want, patience: Patience) -> Result<Started, SessionError> {
    let (opening, opened) = oneshot::channel();
    let (commands, orders) = mpsc::unbounded_channel();
    let (tell, health) = watch::channel(Health::default());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let driver = Driver {
        core: Core::new(Instant::now(), client_config(patience)),
        server: server.clone(),
        patience: patience.connect,
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

fn client_config(patience: Patience) -> ClientConfig {
    let host = gethostname::gethostname();
    ClientConfig {
        client: Name::clipped(&host.to_string_lossy()),
        identity: Identity { bytes: identity() },
        versions: VersionRange::OURS,
        patience,
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

/// Where a lane's ticket goes.
type TicketReply = oneshot::Sender<Result<LaneTicket, SessionError>>;

struct Driver {
    core: Core,
    server: Server,
    /// For the stream.
    patience: Duration,
    peer: Option<SocketAddr>,
    want: Want,
    welcome: Option<Welcome>,
    opening: Option<oneshot::Sender<Opening>>,
    /// Who waits for a lane's ticket, in the order of asking; `None` once that was too long.
    lanes: VecDeque<Option<TicketReply>>,
    health: watch::Sender<Health>,
}

impl Driver {
    async fn run(mut self, mut orders: mpsc::UnboundedReceiver<Command>) {
        let stream = match connect(&self.server, self.patience).await {
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

    fn open_lane(&mut self, path: u8, reply: TicketReply) {
        match self.core.open_lane(Instant::now(), path) {
            Ok(()) => self.lanes.push_back(Some(reply)),
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
                Event::Described(facts) => {
                    let known = self.peer.map(|peer| Description { peer, facts });
                    self.describe_with(known.ok_or_else(|| closed(&self.server, "it has no address")));
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
                Event::LaneLate(_, after) => self.lane_is_late(after),
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
            Want::Describe => self.core.describe(Instant::now()),
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
        for reply in std::mem::take(&mut self.lanes).into_iter().flatten() {
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
            (Want::Describe, Err(error)) => self.describe_with(Err(error)),
            (_, opened) => self.report(Opening::Attached(Box::new(opened))),
        }
    }

    fn list_with(&mut self, listing: Result<Listing, SessionError>) {
        self.report(Opening::Listed(listing));
        self.core.close();
    }

    fn describe_with(&mut self, description: Result<Description, SessionError>) {
        self.report(Opening::Described(Box::new(description)));
        self.core.close();
    }

    fn report(&mut self, opening: Opening) {
        if let Some(report) = self.opening.take() {
            // Whoever asked may have gone; then nobody needs to know.
            let _ = report.send(opening);
        }
    }

    fn lane_with(&mut self, ticket: Result<LaneTicket, SessionError>) {
        // What comes too late is of no use: the server forgets a ticket that nobody shows.
        if let Some(reply) = self.lanes.pop_front().flatten() {
            let _ = reply.send(ticket);
        }
    }

    /// The one who has waited longest waits no more.
    fn lane_is_late(&mut self, after: Duration) {
        tracing::warn!("{} is slow to let a lane in", self.server);
        if let Some(reply) = self.lanes.iter_mut().find_map(Option::take) {
            let _ = reply.send(Err(SessionError::LaneLate { server: self.server.to_string(), after }));
        }
    }
}

/// Connects to the first address of the server that answers.
async fn connect(server: &Server, patience: Duration) -> Result<TcpStream, SessionError> {
    let wanted = (server.host.clone(), server.port);
    let resolve = |reason: String| SessionError::Resolve { server: server.to_string(), reason };
    let addresses = tokio::task::spawn_blocking(move || wanted.to_socket_addrs())
        .await
        .map_err(|error| resolve(error.to_string()))?
        .map_err(|error| resolve(error.to_string()))?;
    let mut reason = "it has no address".to_owned();
    // An address needs no other name.
    let is_name = server.host.parse::<IpAddr>().is_err();
    for address in addresses {
        let which = if is_name { format!("{address}: ") } else { String::new() };
        match tokio::time::timeout(patience, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => reason = format!("{which}{error}"),
            Err(_) => reason = format!("{which}no answer within {patience:?}"),
        }
    }
    Err(SessionError::Connect { server: server.to_string(), reason })
}
