//! A seeded fabric in memory under a virtual clock, for tests: the contract with everything that it allows and nothing
//! that it forbids.
//!
//! ```text
//! SimNet::new(seed) ── host(ip) ─▶ Sim (a machine with a card) ── listen / connect ─▶ SimLink
//!    └─ step(), advance(d): the only ways in which time passes
//! ```
//!
//! A card that lives in the event queue does the work: it goes on serving [`Access`](super::Access)-checked reads and
//! writes while the process of its machine is stopped, it delays every packet by a random time, it lets later
//! operations overtake a read, and it kills the link of a peer that has more reads outstanding than it was promised.
//! The same seed and the same calls give the same history: there are no threads, sockets or clocks in here.
//!
//! Knobs and faults: [`Knobs`] (delay, loss, sudden death, registration limits), [`Device`] (what a card can hold),
//! [`Sim::silence`] and [`SimNet::silence`] (power cut: no answer ever again), [`SimNet::sever`] (reset),
//! [`Sim::stop_process`] (SIGSTOP), and [`Defect`], which breaks one promise of the contract on purpose so that the
//! conformance suite can be seen failing.
//!
//! Stricter than a card in three ways, to find callers that assume too much: nothing leaves before
//! [`Link::submit`](super::Link::submit), memory of a read or receive in flight is filled with [`POISON`], and so is
//! what an operation that failed would have filled.

mod connect;
mod end;
mod link;
mod net;

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub use self::connect::{SimConnecting, SimIncoming, SimListener};
pub use self::end::SimDomain;
pub use self::link::SimLink;
use self::net::Net;
use super::{ConnectError, Fabric, FabricKind, LinkConfig, SetupError};
use crate::units::LaneToken;

/// What memory holds while a read or a receive may still write to it, and after one that failed.
pub const POISON: u8 = 0xdb;

/// How the network behaves.
#[derive(Clone, Copy, Debug)]
pub struct Knobs {
    /// The shortest time of one packet on its way.
    pub delay_min: Duration,
    /// The longest time of one packet on its way; what lies between is jitter.
    pub delay_max: Duration,
    /// The longest time for which a card lets a read wait, while later operations overtake it.
    pub service: Duration,
    /// How many of a million transmissions are lost.
    pub loss: u32,
    /// How long a lost transmission waits for its next try, and a silent peer for its answer.
    pub retransmit: Duration,
    /// Tries after the first; when all fail, the link is dead.
    pub retries: u32,
    /// How many of a million packets are met by the sudden death of their link.
    pub death: u32,
    /// The longest region; more memory takes several.
    pub region_limit: u64,
    /// The number of bytes that a host can register.
    pub register_limit: u64,
}

impl Default for Knobs {
    /// A quiet InfiniBand network.
    fn default() -> Self {
        Self {
            delay_min: Duration::from_nanos(800),
            delay_max: Duration::from_micros(5),
            service: Duration::from_micros(5),
            loss: 0,
            retransmit: Duration::from_millis(500),
            retries: 7,
            death: 0,
            region_limit: u64::MAX,
            register_limit: u64::MAX,
        }
    }
}

/// What the card of a host can do.
#[derive(Clone, Copy, Debug)]
pub struct Device {
    /// Reads that it answers at once, for each link.
    pub responder_reads: u8,
    /// Reads that it has on the wire at once, for each link.
    pub initiator_reads: u8,
    /// Operations that a queue holds.
    pub depth: u32,
}

impl Default for Device {
    /// A ConnectX-3.
    fn default() -> Self {
        Self { responder_reads: 16, initiator_reads: 16, depth: 16_351 }
    }
}

/// A promise of the contract that is broken on purpose.
///
/// A conformance check proves that it can fail by failing here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Defect {
    /// The last byte of what is moved is not moved.
    CutsLastByte,
    /// A read fills all of its slot.
    FillsWholeSlot,
    /// A write changes the byte behind its range too.
    WritesOneMore,
    /// Addresses are cut to 32 bits.
    CutsOffset,
    /// Completions carry another tag.
    ConfusesTags,
    /// Completions of one kind come in any order.
    ShufflesCompletions,
    /// Poll takes no notice of the room in its vector.
    OverfillsVector,
    /// The queue takes more than it says.
    ForgetsDepth,
    /// More reads are sent than the peer promised to answer.
    OverstepsReads,
    /// The end of a region lies a byte too far.
    StretchesBounds,
    /// Keys are not looked at.
    IgnoresKeys,
    /// Rights are not looked at.
    IgnoresRights,
    /// Every link reaches the regions of every domain.
    IgnoresDomains,
    /// A violation kills every link of the host.
    SpreadsViolations,
    /// Writes and sends overtake one another.
    ReordersPackets,
    /// A read overtakes what was posted before it.
    HurriesReads,
    /// A write completes before it is placed.
    AnswersEarly,
    /// A send without a receive is lost.
    DropsUnexpectedSends,
    /// The newest receive is filled first.
    FillsNewestReceive,
    /// A message is cut to its receive.
    CutsLongMessages,
    /// Death does not complete the last operation in flight.
    ForgetsOneAtDeath,
    /// A dead link takes operations.
    TakesWhenDead,
    /// The peer does not learn of a close.
    KeepsCloseSecret,
    /// A poll that meets the end of the link says that nothing happened.
    EndsUnsaid,
    /// Dropping a link does not free what was in flight.
    LeaksAtDrop,
    /// A refusal says nothing of its reason.
    HidesReason,
    /// The listener does not wait.
    Impatient,
    /// The token does not arrive as it was.
    GarblesToken,
    /// Arming answers `false` although something arrived.
    MissesArrivals,
    /// Nothing is signalled on the descriptor.
    NeverRings,
    /// The descriptor is always readable.
    AlwaysRings,
}

/// What happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Operations that were taken.
    pub posted: u64,
    /// Completions that were handed out.
    pub completed: u64,
    /// Operations whose link was dropped before their completion was polled.
    pub abandoned: u64,
    /// Packets sent.
    pub packets: u64,
    /// Transmissions that were lost and tried again.
    pub lost: u64,
    /// Links killed because the peer had more reads outstanding than it was promised.
    pub naks: u64,
    /// Links whose posted operations are not the sum of the completed and the abandoned ones.
    pub unbalanced: u64,
    /// A digest of every event in its order: equal for equal histories.
    pub digest: u64,
}

/// Names one end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(u64);

impl LinkId {
    /// The other end.
    pub const fn peer(self) -> Self {
        Self(self.0 ^ 1)
    }
}

/// The network: a virtual clock, an event queue, and everything that is connected.
#[derive(Clone, Debug)]
pub struct SimNet(Arc<Mutex<Net>>);

impl SimNet {
    /// A quiet network. The same seed and calls give the same history.
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(Net::new(seed))))
    }

    /// A machine on the network, with the card of [`Device::default`].
    pub fn host(&self, address: impl Into<IpAddr>) -> Sim {
        self.host_with(address, Device::default())
    }

    /// A machine on the network with this card.
    pub fn host_with(&self, address: impl Into<IpAddr>, device: Device) -> Sim {
        Sim { net: self.clone(), host: address.into(), device }
    }

    /// Changes how the network behaves from now on.
    pub fn set_knobs(&self, knobs: Knobs) {
        self.lock().knobs = knobs;
    }

    /// Breaks a promise from now on.
    pub fn break_promise(&self, defect: Defect) {
        self.lock().defect = Some(defect);
    }

    /// The virtual time since the start.
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.lock().now)
    }

    /// When the next event is due, if there is one.
    pub fn next_due(&self) -> Option<Duration> {
        self.lock().next_due().map(Duration::from_nanos)
    }

    /// Goes to the next event and lets it happen; `false` where nothing is due at all.
    pub fn step(&self) -> bool {
        let stepped = self.lock().step(u64::MAX);
        self.answer_dials();
        stepped
    }

    /// Lets `time` pass with all that happens in it.
    pub fn advance(&self, time: Duration) {
        let until = self.lock().now.saturating_add(nanos(time));
        while self.step_until(until) {}
        self.lock().now = until;
    }

    /// What happened so far.
    pub fn stats(&self) -> Stats {
        self.lock().stats
    }

    /// Resets a link: both ends learn of it soon.
    pub fn sever(&self, link: LinkId) {
        self.lock().sever(link);
    }

    /// Cuts the wire of a link: neither end hears from the other again. Only what is in flight notices.
    pub fn silence(&self, link: LinkId) {
        self.lock().silence(link);
    }

    fn step_until(&self, until: u64) -> bool {
        let stepped = self.lock().step(until);
        self.answer_dials();
        stepped
    }

    /// Runs the handlers of listeners outside of the lock, since they call back into the network.
    fn answer_dials(&self) {
        loop {
            let ready = self.lock().take_answerable();
            let Some((address, mut handler, request)) = ready else { return };
            handler(SimIncoming::new(self.clone(), request));
            self.lock().put_handler(address, handler);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Net> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// A machine on a [`SimNet`].
#[derive(Clone, Debug)]
pub struct Sim {
    net: SimNet,
    host: IpAddr,
    device: Device,
}

impl Sim {
    /// The network that it is on.
    pub fn net(&self) -> &SimNet {
        &self.net
    }

    /// Listens on `port`.
    ///
    /// # Errors
    /// Where the port is taken.
    pub fn listen(&self, port: u16) -> std::io::Result<SimListener> {
        SimListener::bind(&self.net, SocketAddr::new(self.host, port), self.device)
    }

    /// Begins to connect; unlike [`Fabric::connect`] it does not wait, so that one thread can play both sides.
    ///
    /// # Errors
    /// Where there is no room for the pool.
    pub fn begin_connect(
        &self,
        address: SocketAddr,
        token: &LaneToken,
        config: &LinkConfig,
    ) -> Result<SimConnecting, ConnectError> {
        SimConnecting::begin(self, address, token, config)
    }

    /// Cuts the machine's power: nobody hears from it again.
    pub fn silence(&self) {
        self.net.lock().silence_host(self.host);
    }

    /// Stops its process, as SIGSTOP does: its links hand out nothing and its listeners accept nothing, but its card
    /// goes on serving reads and writes and puts messages into receives that are posted already.
    pub fn stop_process(&self) {
        self.net.lock().stopped.insert(self.host);
    }

    /// Lets its process go on.
    pub fn resume_process(&self) {
        self.net.lock().stopped.remove(&self.host);
    }
}

impl Fabric for Sim {
    type Domain = SimDomain;
    type Link = SimLink;

    fn kind(&self) -> FabricKind {
        FabricKind::Sim
    }

    fn domain(&self) -> Result<SimDomain, SetupError> {
        Ok(SimDomain::new(self.net.clone(), self.host))
    }

    /// Lets virtual time pass until the peer answered. Only a listener with
    /// [a handler](SimListener::answer_with) can answer meanwhile; otherwise see [`Sim::begin_connect`].
    fn connect(
        &self,
        address: SocketAddr,
        token: &LaneToken,
        config: &LinkConfig,
        patience: Duration,
    ) -> Result<SimLink, ConnectError> {
        self.begin_connect(address, token, config)?.finish(patience)
    }
}
