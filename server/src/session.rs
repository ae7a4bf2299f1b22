//! One client's control stream: bytes and timers in and out of the session core, and the decisions that it asks for.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use bytes::BytesMut;
use kaeru_common::cpu;
use kaeru_common::error::Status;
use kaeru_common::fabric::FabricKind;
use kaeru_common::host::Host;
use kaeru_common::session::server::{Event, Server as Core};
use kaeru_common::session::{CloseReason, Misuse};
use kaeru_common::units::{Epoch, SessionId};
use kaeru_common::wire::MAX_LANES;
use kaeru_common::wire::control::{
    Attach, DeviceName, Exports, Hello, HostFacts, LaneTicket, OpenLane, Refusal,
};
use kaeru_common::wire::grant::{Grant, Granted, Path, Paths};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::Shared;
use crate::export::{Export, Writing};
use crate::lane::{Admission, Lanes, Way};
use crate::store::Store;

/// Bytes taken from a stream at once.
const CHUNK: usize = 4096;

/// Runs one session until its stream ends, its client detaches or falls silent, or the server stops.
///
/// `known` is told once the client has introduced itself.
pub(crate) async fn run(
    stream: TcpStream,
    early: &[u8],
    shared: Arc<Shared>,
    stopping: watch::Receiver<bool>,
    known: watch::Sender<bool>,
) {
    let Ok(local) = stream.local_addr() else { return };
    let peer = stream.peer_addr().map_or_else(|_| "a client".to_owned(), |peer| peer.to_string());
    let mut core = Core::new(Instant::now(), shared.session_config(local));
    core.handle_bytes(Instant::now(), early);
    let session = Session { shared, local, peer, greeted: None, attaching: None, attached: None, known };
    session.drive(core, stream, stopping).await;
}

struct Session {
    shared: Arc<Shared>,
    /// Our address as this client sees it.
    local: SocketAddr,
    /// The client's address.
    peer: String,
    greeted: Option<Hello>,
    known: watch::Sender<bool>,
    attaching: Option<Attaching>,
    attached: Option<Attached>,
}

/// An attach under way. It may wait for another session's lanes to end; dropping it gives everything back.
type Attaching = Pin<Box<dyn Future<Output = Result<(Attached, Granted), Refusal>> + Send>>;

/// What a session holds while it is attached. Dropping it does not fence; [`Session::release`] does.
struct Attached {
    id: SessionId,
    export: Arc<Export>,
    write: bool,
    lanes: Arc<Lanes>,
    /// The ways of the granted paths, in their order.
    ways: Vec<(FabricKind, Way)>,
    next_lane: u16,
    _writing: Option<Writing>,
}

impl Session {
    async fn drive(mut self, mut core: Core, stream: TcpStream, mut stopping: watch::Receiver<bool>) {
        let (mut reader, mut writer) = stream.into_split();
        let mut input = BytesMut::with_capacity(CHUNK);
        let mut output = BytesMut::new();
        loop {
            let closed = self.handle_events(&mut core).await;
            // More only once the last was written: that bounds what a slow client makes us hold.
            if output.is_empty() {
                core.poll_transmit(&mut output);
            }
            if let Some(reason) = closed {
                self.attaching = None;
                core.poll_transmit(&mut output);
                self.release().await;
                // The last words; a client that does not take them has gone anyway.
                let _ =
                    tokio::time::timeout(std::time::Duration::from_secs(1), writer.write_all(&output)).await;
                self.log_end(&reason);
                return;
            }
            let deadline = core.poll_timeout().map(tokio::time::Instant::from_std);
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
                        Ok(0) => core.handle_disconnected("the client closed it"),
                        Ok(_) => core.handle_bytes(Instant::now(), &input),
                        Err(error) => core.handle_disconnected(&error.to_string()),
                    }
                    input.clear();
                }
                written = writer.write_buf(&mut output), if !output.is_empty() => {
                    if let Err(error) = written {
                        core.handle_disconnected(&error.to_string());
                    }
                }
                () = timer => core.handle_timeout(Instant::now()),
                outcome = done(&mut self.attaching) => self.answer_attach(&mut core, outcome),
                _ = stopping.wait_for(|&stopping| stopping) => {
                    core.goodbye(Refusal::new(Status::ShuttingDown, "kaerud was stopped"));
                }
                () = fenced(self.attached.as_ref()) => {
                    core.goodbye(Refusal::new(Status::Busy, "another client took the right to write"));
                }
            }
        }
    }

    /// Acts on everything that the core has to say. Returns the reason once the session is over.
    async fn handle_events(&mut self, core: &mut Core) -> Option<CloseReason> {
        while let Some(event) = core.poll_event() {
            let answered = match event {
                Event::Greeted(hello) => {
                    tracing::debug!("{} at {} says hello", hello.client, self.peer);
                    self.greeted = Some(hello);
                    self.known.send_replace(true);
                    Ok(())
                }
                Event::ListWanted => core.exports(self.list()),
                Event::DescribeWanted => match describe().await {
                    Ok(facts) => core.describe(facts),
                    Err(refusal) => core.refuse(refusal),
                },
                Event::AttachWanted(wanted) => {
                    // It may take long, and the client may go away meanwhile.
                    let (shared, hello) = (self.shared.clone(), self.greeted.clone());
                    self.attaching = Some(Box::pin(attach(shared, self.local, hello, wanted)));
                    Ok(())
                }
                Event::LaneWanted(wanted) => match self.lane(wanted) {
                    Ok(ticket) => core.lane_token(ticket),
                    Err(refusal) => core.refuse(refusal),
                },
                Event::DetachWanted => {
                    self.release().await;
                    core.detached()
                }
                Event::Closed(reason) => return Some(reason),
            };
            self.note_misuse(answered);
        }
        None
    }

    fn answer_attach(&mut self, core: &mut Core, outcome: Result<(Attached, Granted), Refusal>) {
        self.attaching = None;
        let answered = match outcome {
            Ok((attached, granted)) => {
                let mode = if attached.write { "read and write" } else { "read" };
                let (export, id) = (&attached.export.name, attached.id);
                tracing::info!("{} attached {export} to {mode} (session {id})", self.who());
                self.attached = Some(attached);
                core.grant(granted)
            }
            Err(refusal) => {
                tracing::info!("{} is refused: {refusal}", self.who());
                core.refuse(refusal)
            }
        };
        self.note_misuse(answered);
    }

    fn note_misuse(&self, answered: Result<(), Misuse>) {
        if let Err(misuse) = answered {
            tracing::warn!("a decision for {} came too late: {misuse}", self.who());
        }
    }

    fn list(&self) -> Exports {
        let exports = self.shared.exports.values().map(|export| export.info()).collect();
        let cpu_us = u64::try_from(cpu::process().as_micros()).unwrap_or(u64::MAX);
        Exports { exports: bounded(exports), cpu_us }
    }

    fn lane(&mut self, wanted: OpenLane) -> Result<LaneTicket, Refusal> {
        let attached =
            self.attached.as_mut().ok_or_else(|| Refusal::new(Status::BadRequest, "nothing is attached"))?;
        let way = match attached.ways.get(usize::from(wanted.path)) {
            Some(&(fabric, way)) if fabric == wanted.fabric => way,
            _ => return Err(Refusal::new(Status::BadRequest, "no such path was granted")),
        };
        if attached.lanes.live() + self.shared.tokens.waiting(&attached.lanes) >= MAX_LANES {
            let text = format!("a session has at most {MAX_LANES} lanes");
            return Err(Refusal::new(Status::NoResources, &text));
        }
        let number = attached.next_lane;
        attached.next_lane = attached.next_lane.wrapping_add(1);
        let admission = Admission {
            lanes: attached.lanes.clone(),
            export: attached.export.clone(),
            write: attached.write,
            way,
            number,
        };
        let token = self
            .shared
            .tokens
            .issue(admission)
            .map_err(|error| Refusal::new(Status::Internal, &error.to_string()))?;
        Ok(LaneTicket { lane: number, token })
    }

    /// Fences the session's lanes, then lets others write.
    async fn release(&mut self) {
        let Some(attached) = self.attached.take() else { return };
        attached.lanes.fence().await;
        tracing::info!("{} is detached from {} (session {})", self.who(), attached.export.name, attached.id);
    }

    fn who(&self) -> String {
        match &self.greeted {
            Some(hello) => format!("{} at {}", hello.client, self.peer),
            None => format!("a client at {}", self.peer),
        }
    }

    fn log_end(&self, reason: &CloseReason) {
        match reason {
            CloseReason::Fault(_) | CloseReason::TimedOut { .. } | CloseReason::Expired { .. } => {
                tracing::warn!("the session of {} ended: {reason}", self.who());
            }
            _ => tracing::debug!("the session of {} ended: {reason}", self.who()),
        }
    }
}

/// What an attach came to, once it is done.
async fn done(attaching: &mut Option<Attaching>) -> Result<(Attached, Granted), Refusal> {
    match attaching {
        Some(attaching) => attaching.await,
        None => std::future::pending().await,
    }
}

/// Resolves when somebody else fenced this session to take its lease.
async fn fenced(attached: Option<&Attached>) {
    match attached {
        Some(attached) => attached.lanes.until_stopped().await,
        None => std::future::pending().await,
    }
}

/// Decides on an attach, and gets what it needs.
async fn attach(
    shared: Arc<Shared>,
    local: SocketAddr,
    hello: Option<Hello>,
    wanted: Attach,
) -> Result<(Attached, Granted), Refusal> {
    let hello = hello.ok_or_else(|| Refusal::new(Status::BadRequest, "hello comes first"))?;
    let export = shared.exports.get(&wanted.export).cloned().ok_or_else(|| {
        let known: Vec<&str> = shared.exports.keys().map(|name| name.as_str()).collect();
        let text = format!("\"{}\"; there are: {}", wanted.export, known.join(", "));
        Refusal::new(Status::UnknownExport, &text)
    })?;
    let lanes = Lanes::new().map_err(|error| Refusal::new(Status::NoResources, &error.to_string()))?;
    let id = shared.new_session_id()?;
    let write = !wanted.read_only && !export.read_only;
    let writing = match write {
        true => export.start_writing(id, &hello.client, &lanes, wanted.steal).await?,
        false => None,
    };
    // Registering memory may take a while: not on this thread.
    let job = {
        let export = export.clone();
        move || paths(&export, write, local, &shared)
    };
    let (paths, ways) = tokio::task::spawn_blocking(job)
        .await
        .map_err(|error| Refusal::new(Status::Internal, &error.to_string()))??;
    let granted = Granted {
        session: id,
        epoch: Epoch(0),
        boot_id: export.boot_id,
        size: export.store.size(),
        read_only: !write,
        blocks: export.blocks(),
        volatile: export.store.volatile(),
        grant: match *export.store {
            Store::Ram(_) => Grant::Direct { paths },
            Store::Null(_) => Grant::Null { paths },
            Store::Staged(_) => Grant::Staged { paths },
        },
    };
    Ok((Attached { id, export, write, lanes, ways, next_lane: 0, _writing: writing }, granted))
}

/// What this machine is. Some of the files take their time, so they are not read on this thread.
async fn describe() -> Result<HostFacts, Refusal> {
    let software = concat!("kaerud ", env!("CARGO_PKG_VERSION"));
    tokio::task::spawn_blocking(move || Host::read(std::path::Path::new("/")).facts(software))
        .await
        .map_err(|error| Refusal::new(Status::Internal, &error.to_string()))
}

/// The ways to an export, best first: RDMA where the client's own way in leads, other RDMA, then tcp.
fn paths(
    export: &Export,
    write: bool,
    local: SocketAddr,
    shared: &Shared,
) -> Result<(Paths, Vec<(FabricKind, Way)>), Refusal> {
    let mut paths: Vec<(Path, Way)> = Vec::new();
    let failed = |error: kaeru_common::fabric::SetupError| {
        tracing::error!("{} cannot be reached: {error}", export.name);
        Refusal::new(Status::NoResources, &error.to_string())
    };
    #[cfg(feature = "verbs")]
    for (index, gate) in export.verbs.iter().enumerate() {
        let opening = gate.open(write).map_err(failed)?;
        for address in shared.verbs_addresses(index) {
            let device = gate.fabric().device().map_or("", |device| device.name());
            let path = Path {
                fabric: FabricKind::Verbs,
                address: *address,
                device: DeviceName::clipped(device),
                regions: bounded(opening.regions.clone()),
            };
            paths.push((path, Way::Verbs(index)));
        }
    }
    paths.sort_by_key(|(path, _)| path.address.ip() != local.ip());
    if let Some(gate) = &export.tcp {
        let regions = bounded(gate.open(write).map_err(failed)?.regions.clone());
        let path = Path { fabric: FabricKind::Tcp, address: local, device: DeviceName::default(), regions };
        paths.push((path, Way::Tcp));
    }
    let _ = shared;
    let ways = paths.iter().map(|(path, way)| (path.fabric, *way)).collect();
    Ok((bounded(paths.into_iter().map(|(path, _)| path).collect()), ways))
}

/// As much of a list as a message holds.
pub(crate) fn bounded<T, const N: usize>(mut items: Vec<T>) -> kaeru_common::codec::BoundedList<T, N> {
    items.truncate(N);
    kaeru_common::codec::BoundedList::new(items).unwrap_or_default()
}
