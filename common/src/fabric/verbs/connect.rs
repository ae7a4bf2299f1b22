//! How two queue pairs find each other: `rdma_cm` with a few bytes of private data, the only way that InfiniBand,
//! RoCE and a NetworkDirect client on Windows share.
//!
//! ```text
//!   client                                   server
//!   resolve address, route
//!   queues, pool
//!   REQ  token, responder depth  ──────────▶ listener: well-formed? known token?
//!                                            queues in the export's domain, pool
//!        reply: responder depth  ◀────────── REP  (or REJ with a reason)
//!   RTU                          ──────────▶ established, within a few seconds or not at all
//! ```

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Verbs;
use super::cm::{ConnParam, Event, EventChannel, EventKind, Id};
use super::device::{self, Limits};
use super::link::{Parts, VerbsLink};
use super::memory::{Keeper, LaneMemory, Pd, VerbsDomain};
use super::queues::Queues;
use crate::fabric::handshake::{LaneReject, LaneReply, LaneRequest};
use crate::fabric::pools::Pools;
use crate::fabric::{ConnectError, FabricKind, Incoming, LinkConfig, Listener, RejectReason, SetupError};
use crate::units::LaneToken;

/// How long a server waits for the last step of a connect.
const ESTABLISH: Duration = Duration::from_secs(5);
/// A pool is not made smaller than this many slots.
const SMALLEST_POOL: u32 = 8;
/// Connect requests that may wait in the kernel.
const BACKLOG: i32 = 64;

/// Connects to `address`; see [`crate::fabric::Fabric::connect`].
pub(super) fn connect(
    address: SocketAddr,
    token: &LaneToken,
    config: &LinkConfig,
    patience: Duration,
) -> Result<VerbsLink, ConnectError> {
    let attempt = Attempt { address, deadline: Instant::now() + patience, patience };
    let channel = EventChannel::new().map_err(|error| attempt.unreachable(&error))?;
    let id = Arc::new(Id::new(&channel).map_err(|error| attempt.unreachable(&error))?);
    id.resolve_address(address, patience).map_err(|error| attempt.unreachable(&error))?;
    attempt.expect(&channel, EventKind::AddressResolved)?;
    id.resolve_route(patience).map_err(|error| attempt.unreachable(&error))?;
    attempt.expect(&channel, EventKind::RouteResolved)?;

    let limits = limits_of(&id)?;
    let pd = Pd::new(Keeper::Id(id.clone()))?;
    let (queues, memory) = build(&id, &pd, config, limits)?;
    let responder_depth = config.responder_depth.min(limits.responder_reads).max(1);
    let request = LaneRequest { token: *token, responder_depth };
    id.connect(ConnParam {
        private_data: &request.encode(),
        responder_resources: responder_depth,
        initiator_depth: limits.initiator_reads.max(1),
    })
    .map_err(|error| attempt.unreachable(&error))?;
    let established = attempt.expect(&channel, EventKind::Established)?;
    let reply = LaneReply::decode(established.private_data())
        .map_err(|_| attempt.refused(RejectReason::BadVersion))?;
    let reads = window(limits.initiator_reads, reply.responder_depth, established.initiator_depth);
    Ok(VerbsLink::new(Parts { queues, memory, reads })?)
}

/// Reads that may be outstanding: what we can issue, what the peer said it answers, and what the CM negotiated
/// (0 where the CM says nothing).
fn window(own: u8, peer: u8, negotiated: u8) -> u8 {
    let negotiated = if negotiated == 0 { u8::MAX } else { negotiated };
    own.min(peer).min(negotiated).max(1)
}

fn limits_of(id: &Id) -> Result<Limits, SetupError> {
    device::limits_of(id.context())
        .map_err(|source| SetupError::Resource { what: "the device's limits", source })
}

fn build(
    id: &Arc<Id>,
    pd: &Arc<Pd>,
    config: &LinkConfig,
    limits: Limits,
) -> Result<(Queues, LaneMemory), SetupError> {
    let memory = lane_memory(id, pd, config)?;
    let queues = Queues::new(id, pd, &LinkConfig { slots: memory.pools.data.slots(), ..*config }, limits)?;
    Ok((queues, memory))
}

/// The pools, or smaller ones where not as much memory may be locked: a shallow lane over RDMA beats none.
fn lane_memory(id: &Id, pd: &Arc<Pd>, config: &LinkConfig) -> Result<LaneMemory, SetupError> {
    let mut slots = config.slots.max(1);
    loop {
        let pools = Pools::new(&LinkConfig { slots, ..*config })
            .map_err(|source| SetupError::Resource { what: "the slots of a lane", source })?;
        let bytes = pools.data.memory().len() as u64;
        match LaneMemory::register(pd, pools, config.pool_access) {
            Ok(memory) => {
                if slots < config.slots {
                    tracing::warn!(
                        "a lane has {slots} slots instead of {}, {bytes} bytes: more memory may not be locked (ulimit -l)",
                        config.slots
                    );
                }
                return Ok(memory);
            }
            Err(error) if error.raw_os_error() == Some(libc::ENOMEM) && slots / 2 >= SMALLEST_POOL => {
                slots /= 2
            }
            Err(source) => {
                let device = device::name_of(id.context());
                return Err(SetupError::Register { device, bytes, done: 0, source });
            }
        }
    }
}

/// One attempt to connect, for its errors.
struct Attempt {
    address: SocketAddr,
    deadline: Instant,
    patience: Duration,
}

impl Attempt {
    /// Waits for `wanted`; any other answer is an error that says what happened.
    fn expect(&self, channel: &Arc<EventChannel>, wanted: EventKind) -> Result<Event, ConnectError> {
        loop {
            let event = channel.next_before(self.deadline).map_err(|error| self.unreachable(&error))?.ok_or(
                ConnectError::TimedOut {
                    fabric: FabricKind::Verbs,
                    address: self.address,
                    after: self.patience,
                },
            )?;
            return match event.kind {
                kind if kind == wanted => Ok(event),
                EventKind::Rejected => Err(match LaneReject::decode(event.private_data()) {
                    Ok(reject) => self.refused(reject.reason),
                    Err(_) => self.unreachable(&"nothing accepts RDMA connections there".to_owned()),
                }),
                EventKind::AddressError
                | EventKind::RouteError
                | EventKind::ConnectError
                | EventKind::Unreachable => {
                    Err(self.unreachable(&io::Error::from_raw_os_error(event.status.abs())))
                }
                EventKind::Disconnected => Err(self.unreachable(&"the peer hung up".to_owned())),
                EventKind::DeviceRemoval => Err(self.unreachable(&"the RDMA device was removed".to_owned())),
                _ => continue,
            };
        }
    }

    fn unreachable(&self, reason: &impl ToString) -> ConnectError {
        let reason = format!("{} ({})", reason.to_string(), local_devices());
        ConnectError::Unreachable { fabric: FabricKind::Verbs, address: self.address, reason }
    }

    fn refused(&self, reason: RejectReason) -> ConnectError {
        ConnectError::Refused { fabric: FabricKind::Verbs, address: self.address, reason }
    }
}

/// What this machine has, for the error of one that cannot connect.
fn local_devices() -> String {
    let addresses = device::addresses();
    if addresses.is_empty() {
        return match device::names() {
            names if names.is_empty() => "this machine has no RDMA device".to_owned(),
            names => format!(
                "RDMA devices here have no address: {}; give their network interface one",
                names.join(", ")
            ),
        };
    }
    let list: Vec<String> = addresses.iter().map(|(address, name)| format!("{name} at {address}")).collect();
    format!("RDMA devices here: {}", list.join(", "))
}

/// Where verbs links arrive.
pub struct VerbsListener {
    id: Id,
    address: SocketAddr,
}

impl VerbsListener {
    /// Listens on `address`, which belongs to an RDMA device or is the wildcard (then all devices are listened on).
    ///
    /// # Errors
    /// Where the address belongs to none, or the port is taken.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let id = Id::new(&EventChannel::new()?)?;
        id.reuse_address()?;
        id.bind(address)?;
        id.listen(BACKLOG)?;
        let address = SocketAddr::new(address.ip(), id.port());
        Ok(Self { id, address })
    }
}

impl Listener for VerbsListener {
    type Incoming = VerbsIncoming;

    fn address(&self) -> SocketAddr {
        self.address
    }

    fn accept(&mut self, patience: Duration) -> io::Result<Option<VerbsIncoming>> {
        let deadline = Instant::now() + patience;
        while let Some(mut event) = self.id.channel().next_before(deadline)? {
            let Some(id) = event.request.take() else { continue };
            match LaneRequest::decode(event.private_data()) {
                Ok(request) => {
                    return Ok(Some(VerbsIncoming {
                        id: Some(id),
                        request,
                        wanted_reads: event.responder_resources,
                    }));
                }
                Err(error) => id.reject(&LaneReject { reason: error.reject_reason() }.encode()),
            }
        }
        Ok(None)
    }
}

/// A queue pair that asks to be let in. Dropping it turns it away.
pub struct VerbsIncoming {
    id: Option<Id>,
    request: LaneRequest,
    /// Reads that the peer wants to have outstanding.
    wanted_reads: u8,
}

impl Incoming for VerbsIncoming {
    type Fabric = Verbs;

    fn token(&self) -> &LaneToken {
        &self.request.token
    }

    fn accept(mut self, domain: &VerbsDomain, config: &LinkConfig) -> Result<VerbsLink, ConnectError> {
        let Some(id) = self.id.take() else { return Err(lost("the request was answered before")) };
        match admit(id, &self.request, self.wanted_reads, domain, config) {
            Ok(link) => Ok(link),
            Err((id, error)) => {
                if let Some(id) = id {
                    id.reject(&LaneReject { reason: RejectReason::NoResources }.encode());
                }
                Err(error)
            }
        }
    }

    fn reject(mut self, reason: RejectReason) {
        if let Some(id) = self.id.take() {
            id.reject(&LaneReject { reason }.encode());
        }
    }
}

impl Drop for VerbsIncoming {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            id.reject(&LaneReject { reason: RejectReason::Other }.encode());
        }
    }
}

fn lost(reason: &str) -> ConnectError {
    SetupError::Resource { what: "the link", source: io::Error::other(reason.to_owned()) }.into()
}

/// Accepts `id` into `domain`. On failure the id comes back where it can still be turned away.
fn admit(
    mut id: Id,
    request: &LaneRequest,
    wanted_reads: u8,
    domain: &VerbsDomain,
    config: &LinkConfig,
) -> Result<VerbsLink, (Option<Id>, ConnectError)> {
    if id.context() != domain.pd().context() {
        return Err((Some(id), lost("the lane came in on another RDMA device than it was granted on")));
    }
    let channel = match EventChannel::new().and_then(|channel| id.migrate(&channel).map(|()| channel)) {
        Ok(channel) => channel,
        Err(error) => return Err((Some(id), lost(&error.to_string()))),
    };
    let id = Arc::new(id);
    let limits = limits_of(&id).map_err(|error| (None, error.into()))?;
    let (queues, memory) = match build(&id, domain.pd(), config, limits) {
        Ok(built) => built,
        Err(error) => return Err((Arc::into_inner(id), error.into())),
    };
    // Never 0: a responder depth of 0 would forbid reads altogether. Never above what the device answers.
    let responder_depth = config.responder_depth.min(limits.responder_reads).min(wanted_reads).max(1);
    let reply = LaneReply { responder_depth };
    let param = ConnParam {
        private_data: &reply.encode(),
        responder_resources: responder_depth,
        initiator_depth: limits.initiator_reads.min(request.responder_depth).max(1),
    };
    id.accept(param).map_err(|error| (None, lost(&error.to_string())))?;
    let reads = window(limits.initiator_reads, request.responder_depth, 0);
    let link = VerbsLink::new(Parts { queues, memory, reads }).map_err(|e| (None, e.into()))?;
    match channel.next_before(Instant::now() + ESTABLISH) {
        Ok(Some(event)) if event.kind == EventKind::Established => Ok(link),
        Ok(Some(_)) => Err((None, lost("the peer gave up while connecting"))),
        Ok(None) => Err((None, lost("the peer did not finish connecting in time"))),
        Err(error) => Err((None, lost(&error.to_string()))),
    }
}
