//! How links come about: a client knocks, a listener lets it in or turns it away.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use super::end::{End, RegionTable};
use super::link::{SimLink, new_bell};
use super::net::{Event, Net};
use super::{Defect, Device, LinkId, Sim, SimDomain, SimNet, nanos};
use crate::fabric::pools::Pools;
use crate::fabric::{
    Access, ConnectError, FabricKind, Incoming, LinkConfig, LinkDown, LinkLimits, Listener, RegionInfo,
    RejectReason, SetupError,
};
use crate::units::LaneToken;

/// What a listener does with those who knock.
pub(super) type Handler = Box<dyn FnMut(SimIncoming) + Send>;

/// A listener as the network sees it.
#[derive(Default)]
pub(super) struct ListenerState {
    pub(super) queue: VecDeque<Request>,
    pub(super) handler: Option<Handler>,
    device: Device,
}

impl fmt::Debug for ListenerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListenerState").field("queue", &self.queue).finish_non_exhaustive()
    }
}

/// How far a wish to connect has come.
#[derive(Debug)]
pub(super) enum Dial {
    Waiting,
    Unreachable,
    Refused(RejectReason),
    Connected(LinkId),
}

/// One side's part of a link that is being built.
#[derive(Clone, Debug)]
struct Side {
    host: IpAddr,
    config: LinkConfig,
    device: Device,
    pools: Pools,
    bell: Arc<OwnedFd>,
    table: RegionTable,
    region: Option<RegionInfo>,
}

impl Side {
    fn new(net: &SimNet, host: IpAddr, device: Device, config: &LinkConfig) -> Result<Self, SetupError> {
        let pools = Pools::new(config)
            .map_err(|source| SetupError::Resource { what: "the slots of a lane", source })?;
        let table = RegionTable::default();
        let regions = match config.pool_access {
            Access::Local => Vec::new(),
            access => net.lock().register(&table, pools.data.memory(), access),
        };
        let region = regions.first().copied();
        Ok(Self { host, config: *config, device, pools, bell: new_bell()?, table, region })
    }

    /// Reads that this side answers at once.
    fn promise(&self) -> u32 {
        u32::from(self.config.responder_depth.min(self.device.responder_reads).max(1))
    }

    fn limits(&self, peer_promise: u32) -> LinkLimits {
        LinkLimits {
            depth: self.config.depth.clamp(1, self.device.depth),
            reads: peer_promise.min(u32::from(self.device.initiator_reads.max(1))),
        }
    }

    fn end(&self, peer_promise: u32, domain: Option<&RegionTable>) -> End {
        let mut end = End::new(self.host, self.limits(peer_promise), self.promise(), self.bell.clone());
        end.tables.push(self.table.clone());
        end.tables.extend(domain.cloned());
        end
    }

    fn link(self, net: &SimNet, id: LinkId, limits: LinkLimits) -> SimLink {
        SimLink::new(net.clone(), id, limits, self.pools, self.region, self.bell)
    }
}

/// A wish to connect.
#[derive(Debug)]
pub(super) struct Request {
    dial: u64,
    token: LaneToken,
    from: Side,
    device: Device,
}

/// A connect that is under way.
#[derive(Debug)]
#[must_use = "finish it to get the link"]
pub struct SimConnecting {
    net: SimNet,
    dial: u64,
    address: SocketAddr,
    side: Side,
}

impl SimConnecting {
    pub(super) fn begin(
        sim: &Sim,
        address: SocketAddr,
        token: &LaneToken,
        config: &LinkConfig,
    ) -> Result<Self, ConnectError> {
        let side = Side::new(&sim.net, sim.host, sim.device, config)?;
        let mut net = sim.net.lock();
        let dial = net.fresh();
        net.dials.insert(dial, Dial::Waiting);
        let mut token = *token;
        if net.has(Defect::GarblesToken) {
            token.0[15] ^= 1;
        }
        let request = Request { dial, token, from: side.clone(), device: sim.device };
        let silent = net.is_silent(address.ip()) || net.is_silent(sim.host);
        if let Some(flight) = net.flight().filter(|_| !silent) {
            let at = net.now + flight;
            net.schedule(at, Event::Knock(address, Box::new(request)));
        }
        Ok(Self { net: sim.net.clone(), dial, address, side })
    }

    /// Lets virtual time pass until the peer answered, for up to `patience`.
    ///
    /// # Errors
    /// As [`Fabric::connect`](crate::fabric::Fabric::connect).
    pub fn finish(self, patience: Duration) -> Result<SimLink, ConnectError> {
        let until = self.net.lock().now.saturating_add(nanos(patience));
        while matches!(self.net.lock().dials.get(&self.dial), Some(Dial::Waiting)) {
            if !self.net.step_until(until) {
                self.net.lock().now = until;
                break;
            }
        }
        let (fabric, address) = (FabricKind::Sim, self.address);
        let outcome = self.net.lock().dials.remove(&self.dial);
        match outcome {
            Some(Dial::Connected(id)) => {
                let limits = self.net.lock().ends.get(&id).map(|end| end.limits);
                // Only its owner forgets an end, and nobody owns this one yet.
                let limits = limits.unwrap_or_else(|| self.side.limits(1));
                Ok(self.side.clone().link(&self.net, id, limits))
            }
            Some(Dial::Refused(reason)) => Err(ConnectError::Refused { fabric, address, reason }),
            Some(Dial::Unreachable) => {
                Err(ConnectError::Unreachable { fabric, address, reason: "nobody listens there".into() })
            }
            Some(Dial::Waiting) | None => Err(ConnectError::TimedOut { fabric, address, after: patience }),
        }
    }
}

impl Drop for SimConnecting {
    fn drop(&mut self) {
        let mut net = self.net.lock();
        if let Some(Dial::Connected(id)) = net.dials.remove(&self.dial) {
            net.abandon(id);
        }
    }
}

impl Net {
    /// A wish to connect reached its address.
    pub(super) fn knock(&mut self, address: SocketAddr, request: Request) {
        if self.is_silent(address.ip()) {
            return;
        }
        match self.listeners.get_mut(&address) {
            Some(listener) => {
                let device = listener.device;
                listener.queue.push_back(Request { device, ..request });
            }
            None => {
                let wrong = self.has(Defect::HidesReason).then_some(RejectReason::Other);
                self.turn_away(request.dial, wrong);
            }
        }
    }

    fn turn_away(&mut self, dial: u64, reason: Option<RejectReason>) {
        let reason =
            reason.map(|told| if self.has(Defect::HidesReason) { RejectReason::Other } else { told });
        if let Some(flight) = self.flight() {
            self.schedule(self.now + flight, Event::TurnAway(dial, reason));
        }
    }

    pub(super) fn turned_away(&mut self, dial: u64, reason: Option<RejectReason>) {
        if let Some(state) = self.dials.get_mut(&dial) {
            *state = reason.map_or(Dial::Unreachable, Dial::Refused);
        }
    }

    /// An acceptance reached the one who asked, who may have lost patience.
    pub(super) fn welcomed(&mut self, dial: u64, id: LinkId) {
        match self.dials.get_mut(&dial) {
            Some(state) => *state = Dial::Connected(id),
            None => self.abandon(id),
        }
    }

    /// Closes an end that nobody came to own.
    fn abandon(&mut self, id: LinkId) {
        self.announce_death(id, LinkDown::ClosedByPeer);
        self.forget(id);
    }
}

/// Where simulated links arrive.
#[derive(Debug)]
pub struct SimListener {
    net: SimNet,
    address: SocketAddr,
}

impl SimListener {
    pub(super) fn bind(net: &SimNet, address: SocketAddr, device: Device) -> io::Result<Self> {
        let mut inside = net.lock();
        if inside.listeners.contains_key(&address) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        inside.listeners.insert(address, ListenerState { device, ..ListenerState::default() });
        drop(inside);
        Ok(Self { net: net.clone(), address })
    }

    /// From now on `handler` gets everyone who knocks, while time passes; [`Listener::accept`] gets nobody.
    pub fn answer_with(&self, handler: impl FnMut(SimIncoming) + Send + 'static) {
        self.net.lock().put_handler(self.address, Box::new(handler));
    }

    fn next(&self) -> Option<Request> {
        let mut net = self.net.lock();
        if net.stopped.contains(&self.address.ip()) {
            return None;
        }
        net.listeners.get_mut(&self.address)?.queue.pop_front()
    }
}

impl Listener for SimListener {
    type Incoming = SimIncoming;

    fn address(&self) -> SocketAddr {
        self.address
    }

    /// Lets virtual time pass until someone knocks.
    fn accept(&mut self, patience: Duration) -> io::Result<Option<SimIncoming>> {
        let until = self.net.lock().now.saturating_add(nanos(patience));
        loop {
            if let Some(request) = self.next() {
                return Ok(Some(SimIncoming::new(self.net.clone(), request)));
            }
            if self.net.lock().has(Defect::Impatient) {
                return Ok(None);
            }
            if !self.net.step_until(until) {
                self.net.lock().now = until;
                return Ok(None);
            }
        }
    }
}

impl Drop for SimListener {
    fn drop(&mut self) {
        let gone = self.net.lock().listeners.remove(&self.address);
        for request in gone.map(|listener| listener.queue).unwrap_or_default() {
            self.net.lock().turn_away(request.dial, None);
        }
    }
}

/// A simulated link that asks to be let in. Dropping it turns it away.
#[derive(Debug)]
pub struct SimIncoming {
    net: SimNet,
    request: Request,
    answered: bool,
}

impl SimIncoming {
    pub(super) fn new(net: SimNet, request: Request) -> Self {
        Self { net, request, answered: false }
    }
}

impl Incoming for SimIncoming {
    type Fabric = Sim;

    fn token(&self) -> &LaneToken {
        &self.request.token
    }

    fn accept(mut self, domain: &SimDomain, config: &LinkConfig) -> Result<SimLink, ConnectError> {
        let Request { dial, from, device, .. } = &self.request;
        let server = Side::new(&self.net, domain.host(), *device, config)?;
        let mut net = self.net.lock();
        let id = LinkId(net.fresh());
        let end = server.end(from.promise(), Some(&domain.table));
        let limits = end.limits;
        net.ends.insert(id, end);
        net.ends.insert(id.peer(), from.end(server.promise(), None));
        if let Some(flight) = net.flight() {
            let at = net.now + flight;
            net.schedule(at, Event::Welcome(*dial, id.peer()));
        }
        drop(net);
        self.answered = true;
        Ok(server.link(&self.net, id, limits))
    }

    fn reject(mut self, reason: RejectReason) {
        self.answered = true;
        self.net.lock().turn_away(self.request.dial, Some(reason));
    }
}

impl Drop for SimIncoming {
    fn drop(&mut self) {
        if !self.answered {
            self.net.lock().turn_away(self.request.dial, Some(RejectReason::Other));
        }
    }
}
