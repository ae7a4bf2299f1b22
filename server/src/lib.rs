//! The server: it exports RAM, files and disks to clients, over RDMA where there is a card and over TCP anywhere.
//!
//! Reading order: [`config`] (what is exported), [`store`] (what keeps the bytes), [`gate`] and [`export`] (how they are
//! reached and who may write), `fabrics` (what is offered, or why not), `listener`, `session`, `lane` (a client from its
//! first byte to its last), [`status`] (what came of it).
//!
//! The control plane runs on tokio. A lane is a plain thread, and over verbs it sleeps: a client's card reads and writes
//! the export's memory without any help.

pub mod args;
pub mod config;
pub mod export;
mod fabrics;
pub mod gate;
mod lane;
mod listener;
mod session;
pub mod status;
pub mod store;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kaeru_common::error::Status;
use kaeru_common::fabric::FabricKind;
use kaeru_common::fabric::tcp::Tcp;
use kaeru_common::session::server::ServerConfig;
use kaeru_common::units::{BootId, SessionId, Size};
use kaeru_common::wire::control::{DeviceName, FabricOffer, Name, Refusal, Welcome};
use kaeru_common::wire::version::VersionRange;
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::watch;

use crate::config::{Config, ExportConfig, StoreConfig};
use crate::export::{Export, Exports};
use crate::fabrics::VerbsOffer;
use crate::gate::Gate;
use crate::lane::Tokens;
use crate::status::Overview;
use crate::store::{MemoryLimits, Null, OpenError, Ram, RamError, Staged, Store};

/// How long a port may stay busy at the start.
const PORT_PATIENCE: Duration = Duration::from_secs(1);
/// Connections that may wait to be accepted.
const BACKLOG: u32 = 1024;

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The port is taken, or the address is not this machine's.
    #[error("cannot listen on {address}: {source}; {advice}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
        /// What to do.
        advice: &'static str,
    },
    /// Memory.
    #[error(transparent)]
    Ram(#[from] RamError),
    /// A file or disk.
    #[error("export {name}: {source}")]
    Staged {
        /// The export.
        name: String,
        /// What was found, and what to do.
        source: OpenError,
    },
    /// The system has no room.
    #[error("cannot set up {what}: {source}")]
    System {
        /// What was to be made.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// A fabric that was demanded cannot be had.
    #[error("{0}")]
    Fabric(String),
    /// An export's memory cannot be registered.
    #[error("export {name} cannot be offered over {fabric}: {source}")]
    Gate {
        /// The export.
        name: String,
        /// The fabric.
        fabric: FabricKind,
        /// What failed.
        source: kaeru_common::fabric::SetupError,
    },
}

/// What every session and lane of a server shares.
struct Shared {
    exports: Exports,
    tokens: Tokens,
    responder_depth: u8,
    name: String,
    boot_id: BootId,
    tcp: bool,
    #[cfg(feature = "verbs")]
    verbs: Vec<(String, Vec<SocketAddr>)>,
}

impl Shared {
    fn session_config(&self, local: SocketAddr) -> ServerConfig {
        let mut fabrics = Vec::new();
        #[cfg(feature = "verbs")]
        for (device, addresses) in &self.verbs {
            fabrics.extend(addresses.iter().map(|&address| FabricOffer {
                fabric: FabricKind::Verbs,
                address,
                device: DeviceName::clipped(device),
            }));
        }
        if self.tcp {
            fabrics.push(FabricOffer {
                fabric: FabricKind::Tcp,
                address: local,
                device: DeviceName::default(),
            });
        }
        ServerConfig {
            versions: VersionRange::OURS,
            welcome: Welcome {
                version: VersionRange::OURS.newest,
                server: Name::clipped(&self.name),
                boot_id: self.boot_id,
                keep_alive_ms: ServerConfig::KEEP_ALIVE_MS,
                lease_ms: ServerConfig::LEASE_MS,
                fabrics: session::bounded(fabrics),
            },
            handshake: ServerConfig::HANDSHAKE,
        }
    }

    fn new_session_id(&self) -> Result<SessionId, Refusal> {
        getrandom::u64().map(SessionId).map_err(|error| Refusal::new(Status::Internal, &error.to_string()))
    }

    #[cfg(feature = "verbs")]
    fn verbs_addresses(&self, gate: usize) -> &[SocketAddr] {
        self.verbs.get(gate).map_or(&[], |(_, addresses)| addresses)
    }
}

/// A server that listens, with all of its memory ready.
pub struct Server {
    listener: TcpListener,
    verbs: VerbsOffer,
    shared: Arc<Shared>,
    address: SocketAddr,
}

impl Server {
    /// Gets the memory, opens the devices and listens. What cannot be had is an error before anything is served.
    ///
    /// # Errors
    /// [`StartError`] says what was tried, what was found and what to do.
    pub async fn bind(config: &Config) -> Result<Self, StartError> {
        MemoryLimits::current().check(config.ram(), config.lock)?;
        let failed = |source| listen_error(config.listen, source);
        // Takes the port, so that a busy one is found before any memory is; clients are let in once all is ready.
        let socket = if config.listen.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }
            .map_err(failed)?;
        socket.set_reuseaddr(true).map_err(failed)?;
        // One that was killed a moment ago may not have given the port back yet.
        let deadline = Instant::now() + PORT_PATIENCE;
        while let Err(error) = socket.bind(config.listen) {
            if error.kind() != io::ErrorKind::AddrInUse || Instant::now() >= deadline {
                return Err(failed(error));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let address = socket.local_addr().map_err(failed)?;
        let verbs = fabrics::verbs(config, address).map_err(StartError::Fabric)?;
        let mut exports = Exports::new();
        for wanted in &config.exports {
            let store = open_store(wanted, config)?;
            let mut export = Export::new(wanted, store).map_err(system("an export"))?;
            open_gates(&mut export, config, &verbs)?;
            exports.insert(wanted.name.clone(), Arc::new(export));
        }
        let mut boot_id = [0; 16];
        getrandom::fill(&mut boot_id)
            .map_err(|error| system("an identity")(io::Error::other(error.to_string())))?;
        let shared = Shared {
            exports,
            tokens: Tokens::default(),
            responder_depth: config.responder_depth,
            name: gethostname::gethostname().to_string_lossy().into_owned(),
            boot_id: BootId(boot_id),
            tcp: fabrics::offers_tcp(config),
            #[cfg(feature = "verbs")]
            verbs: verbs_devices(&verbs),
        };
        let listener = socket.listen(BACKLOG).map_err(failed)?;
        Ok(Self { listener, verbs, shared: Arc::new(shared), address })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it exports, on which fabrics, and why a fabric is missing; a line each.
    pub fn report(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for export in self.shared.exports.values() {
            let mode = match (export.read_only, export.shared) {
                (true, _) => "read-only",
                (false, true) => "read-write for several clients at once",
                (false, false) => "read-write for one client, read-only for others",
            };
            let store = &export.store;
            let size = Size(store.size());
            lines.push(format!(
                "export {}: {}, {size}, {mode}, {}",
                export.name,
                export.kind(),
                store.description()
            ));
        }
        match &self.verbs {
            #[cfg(feature = "verbs")]
            VerbsOffer::Yes(_) => {
                for (device, addresses) in &self.shared.verbs {
                    let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
                    lines.push(format!("fabric verbs: {device} at {}", addresses.join(", ")));
                }
            }
            VerbsOffer::No(reason) => lines.push(format!("fabric verbs: not offered: {reason}")),
        }
        lines.push(match self.shared.tcp {
            true => format!("fabric tcp: {}, not encrypted", self.address),
            false => "fabric tcp: not offered: --fabric verbs".into(),
        });
        lines
    }

    /// What its exports do, to be asked while it runs and after.
    pub fn overview(&self) -> Overview {
        Overview::new(self.shared.clone())
    }

    /// Serves until `stop` resolves; then says goodbye to every client, ends every lane, and returns.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let (tell, stopping) = watch::channel(false);
        #[cfg(feature = "verbs")]
        let verbs = match self.verbs {
            VerbsOffer::Yes(fabric) => {
                let (shared, stopping) = (self.shared.clone(), stopping.clone());
                Some(tokio::task::spawn_blocking(move || take_verbs_lanes(fabric, &shared, &stopping)))
            }
            VerbsOffer::No(_) => None,
        };
        let serve = listener::listen(self.listener, self.shared, stopping);
        let stopped = async {
            stop.await;
            tell.send_replace(true);
        };
        tokio::join!(serve, stopped);
        #[cfg(feature = "verbs")]
        if let Some(verbs) = verbs {
            let _ = verbs.await;
        }
    }
}

/// Takes lanes over RDMA until the server stops.
#[cfg(feature = "verbs")]
fn take_verbs_lanes(
    mut fabric: fabrics::VerbsFabric,
    shared: &Arc<Shared>,
    stopping: &watch::Receiver<bool>,
) {
    use kaeru_common::fabric::Listener;

    const LOOK_UP: Duration = Duration::from_millis(200);
    while !*stopping.borrow() {
        match fabric.listener.accept(LOOK_UP) {
            Ok(Some(incoming)) => listener::admit(incoming, shared),
            Ok(None) => {}
            Err(error) => {
                tracing::error!("RDMA connections are not taken any more: {error}");
                return;
            }
        }
    }
}

#[cfg(feature = "verbs")]
fn verbs_devices(offer: &VerbsOffer) -> Vec<(String, Vec<SocketAddr>)> {
    let VerbsOffer::Yes(fabric) = offer else { return Vec::new() };
    let named = |(verbs, addresses): &(kaeru_common::fabric::verbs::Verbs, Vec<SocketAddr>)| {
        (verbs.device().map_or_else(String::new, |device| device.name().to_owned()), addresses.clone())
    };
    fabric.devices.iter().map(named).collect()
}

/// Gets an export's memory, or opens its file or disk.
fn open_store(wanted: &ExportConfig, config: &Config) -> Result<Store, StartError> {
    let name = wanted.name.as_str();
    Ok(match &wanted.store {
        StoreConfig::Ram(size) => Store::Ram(Ram::new(name, *size, config.lock)?),
        StoreConfig::Null(size) => Store::Null(Null::new(*size).map_err(system("a null export"))?),
        StoreConfig::Staged(options) => Store::Staged(
            Staged::open(name, options)
                .map_err(|source| StartError::Staged { name: name.to_owned(), source })?,
        ),
    })
}

/// Gives an export its gates, and opens those that its first client will need, so that what fails fails now.
fn open_gates(export: &mut Export, config: &Config, verbs: &VerbsOffer) -> Result<(), StartError> {
    let write = !export.read_only;
    let failed = |fabric, source| StartError::Gate { name: export.name.to_string(), fabric, source };
    #[cfg(feature = "verbs")]
    if let VerbsOffer::Yes(fabric) = verbs {
        let gates = fabric.devices.iter().map(|(device, _)| Gate::new(device.clone(), export.store.clone()));
        let gates: Vec<_> = gates.collect();
        for gate in &gates {
            gate.open(write).map_err(|source| failed(FabricKind::Verbs, source))?;
        }
        export.verbs = gates;
    }
    let _ = verbs;
    if fabrics::offers_tcp(config) {
        let gate = Gate::new(Tcp, export.store.clone());
        gate.open(write).map_err(|source| failed(FabricKind::Tcp, source))?;
        export.tcp = Some(gate);
    }
    Ok(())
}

fn system(what: &'static str) -> impl Fn(io::Error) -> StartError {
    move |source| StartError::System { what, source }
}

fn listen_error(address: SocketAddr, source: io::Error) -> StartError {
    let advice = match source.kind() {
        io::ErrorKind::AddrInUse => {
            "another program listens there (another kaerud?); stop it or pass another --listen ADDR:PORT"
        }
        io::ErrorKind::AddrNotAvailable => "that is no address of this machine; \"ip addr\" lists them",
        io::ErrorKind::PermissionDenied => "ports below 1024 need root; pass another --listen ADDR:PORT",
        _ => "pass another --listen ADDR:PORT",
    };
    StartError::Listen { address, source, advice }
}
