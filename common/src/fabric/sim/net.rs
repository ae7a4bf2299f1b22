//! The event queue, the clock and the wire: who hears what, and when.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use super::connect::{Dial, Handler, ListenerState, Request};
use super::end::{Answer, End, Packet, RegionTable};
use super::{Defect, Knobs, LinkId, Stats, nanos};
use crate::fabric::{LinkDown, Op, RejectReason, RemoteRange};

/// Everything behind the lock of a [`SimNet`](super::SimNet).
#[derive(Debug)]
pub(super) struct Net {
    pub(super) now: u64,
    pub(super) knobs: Knobs,
    pub(super) defect: Option<Defect>,
    pub(super) stats: Stats,
    pub(super) ends: BTreeMap<LinkId, End>,
    pub(super) listeners: BTreeMap<SocketAddr, ListenerState>,
    pub(super) dials: BTreeMap<u64, Dial>,
    pub(super) domains: Vec<RegionTable>,
    pub(super) registered: BTreeMap<IpAddr, u64>,
    pub(super) stopped: BTreeSet<IpAddr>,
    silent: BTreeSet<IpAddr>,
    events: BTreeMap<(u64, u64), Event>,
    next: u64,
    random: u64,
}

/// What happens at a time.
#[derive(Debug)]
pub(super) enum Event {
    /// A packet reaches the card of an end.
    Arrive(LinkId, Packet),
    /// The card of an end answers a read that it took before.
    Serve(LinkId, u64, RemoteRange),
    /// The answer to an operation reaches the end that posted it.
    Answer(LinkId, u64, Answer),
    /// The end has tried an operation often enough.
    GiveUp(LinkId, u64),
    /// The end learns that its link is dead.
    Die(LinkId, LinkDown),
    /// A wish to connect reaches a listener.
    Knock(SocketAddr, Box<Request>),
    /// A refusal reaches the one who asked; `None` where nobody listens.
    TurnAway(u64, Option<RejectReason>),
    /// An acceptance reaches the one who asked.
    Welcome(u64, LinkId),
    /// A write that was answered before is placed ([`Defect::AnswersEarly`]).
    PlaceLate(LinkId, RemoteRange, Vec<u8>),
}

impl Event {
    /// A number for the digest of the history.
    fn number(&self) -> u64 {
        match self {
            Self::Arrive(id, packet) => id.0 << 8 | packet.number << 24,
            Self::Serve(id, number, _) => 1 | id.0 << 8 | number << 24,
            Self::Answer(id, number, _) => 2 | id.0 << 8 | number << 24,
            Self::GiveUp(id, number) => 3 | id.0 << 8 | number << 24,
            Self::Die(id, _) => 4 | id.0 << 8,
            Self::Knock(..) => 5,
            Self::TurnAway(dial, _) => 6 | dial << 8,
            Self::Welcome(dial, _) => 7 | dial << 8,
            Self::PlaceLate(id, ..) => 8 | id.0 << 8,
        }
    }
}

impl Net {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            now: 0,
            knobs: Knobs::default(),
            defect: None,
            stats: Stats::default(),
            ends: BTreeMap::new(),
            listeners: BTreeMap::new(),
            dials: BTreeMap::new(),
            domains: Vec::new(),
            registered: BTreeMap::new(),
            stopped: BTreeSet::new(),
            silent: BTreeSet::new(),
            events: BTreeMap::new(),
            next: 0,
            random: seed,
        }
    }

    /// Whether this promise is broken.
    pub(super) fn has(&self, defect: Defect) -> bool {
        self.defect == Some(defect)
    }

    /// A number that was not given out before; even and followed by an odd one that is not given out either.
    pub(super) fn fresh(&mut self) -> u64 {
        self.next += 2;
        self.next
    }

    pub(super) fn next_due(&self) -> Option<u64> {
        self.events.first_key_value().map(|(&(at, _), _)| at)
    }

    /// Lets the next event happen if it is due by `until`.
    pub(super) fn step(&mut self, until: u64) -> bool {
        match self.events.first_entry() {
            Some(entry) if entry.key().0 <= until => {
                let ((at, _), event) = entry.remove_entry();
                self.now = self.now.max(at);
                self.stats.digest = mix(self.stats.digest ^ at ^ event.number().rotate_left(32));
                self.happen(event);
                true
            }
            _ => false,
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Arrive(id, packet) => self.arrive(id, packet),
            Event::Serve(id, number, range) => self.serve(id, number, range),
            Event::Answer(id, number, answer) => self.settle(id, number, answer),
            Event::GiveUp(id, number) => self.give_up(id, number),
            Event::Die(id, why) => self.die(id, why, None),
            Event::Knock(address, request) => self.knock(address, *request),
            Event::TurnAway(dial, reason) => self.turned_away(dial, reason),
            Event::Welcome(dial, id) => self.welcomed(dial, id),
            Event::PlaceLate(id, range, bytes) => self.place_late(id, range, &bytes),
        }
    }

    pub(super) fn schedule(&mut self, at: u64, event: Event) {
        let order = self.fresh();
        self.events.insert((at, order), event);
    }

    /// Puts a packet on the wire behind those that were sent before it.
    pub(super) fn transmit(&mut self, from: LinkId, op: Op, packet: Packet) {
        let Some(end) = self.ends.get(&from) else { return };
        let (silent, last, number) = (end.silent, end.last_arrival, packet.number);
        if silent {
            return self.expect_silence(from, number);
        }
        let Some(flight) = self.flight() else { return self.silence(from) };
        let overtakes =
            self.has(Defect::ReordersPackets) || (self.has(Defect::HurriesReads) && op == Op::Read);
        let at = if overtakes { self.now + flight } else { last.max(self.now + flight) };
        if let Some(end) = self.ends.get_mut(&from) {
            end.last_arrival = last.max(at);
        }
        self.stats.packets += 1;
        self.schedule(at, Event::Arrive(from.peer(), packet));
        if self.chance(self.knobs.death) {
            self.sever(from);
        }
    }

    /// Sends the answer to an operation back to the end that posted it.
    pub(super) fn answer(&mut self, to: LinkId, number: u64, op: Op, answer: Answer) {
        let Some(end) = self.ends.get(&to) else { return };
        let (silent, last) = (end.silent, end.last_answer(op));
        if silent {
            return;
        }
        let Some(flight) = self.flight() else { return self.silence(to) };
        let at = last.max(self.now + flight);
        if let Some(end) = self.ends.get_mut(&to) {
            end.set_last_answer(op, at);
        }
        self.stats.packets += 1;
        self.schedule(at, Event::Answer(to, number, answer));
    }

    /// Tells the other end, behind all packets that are on their way, that the link is dead.
    pub(super) fn announce_death(&mut self, from: LinkId, why: LinkDown) {
        let Some(end) = self.ends.get(&from) else { return };
        if end.silent || self.has(Defect::KeepsCloseSecret) {
            return;
        }
        let at = end.last_arrival.max(self.now + self.knobs_delay());
        self.schedule(at, Event::Die(from.peer(), why));
    }

    pub(super) fn sever(&mut self, link: LinkId) {
        for id in [link, link.peer()] {
            let at = self.now + self.knobs_delay();
            self.schedule(at, Event::Die(id, LinkDown::Failed("the connection was reset".into())));
        }
    }

    pub(super) fn silence(&mut self, link: LinkId) {
        for id in [link, link.peer()] {
            let Some(end) = self.ends.get_mut(&id) else { continue };
            end.silent = true;
            for number in end.on_wire() {
                self.expect_silence(id, number);
            }
        }
    }

    pub(super) fn silence_host(&mut self, host: IpAddr) {
        self.silent.insert(host);
        let links: Vec<LinkId> =
            self.ends.iter().filter(|(_, end)| end.host == host).map(|(&id, _)| id).collect();
        links.into_iter().for_each(|id| self.silence(id));
    }

    pub(super) fn is_silent(&self, host: IpAddr) -> bool {
        self.silent.contains(&host)
    }

    fn expect_silence(&mut self, id: LinkId, number: u64) {
        let tries = u64::from(self.knobs.retries) + 1;
        let at = self.now.saturating_add(nanos(self.knobs.retransmit).saturating_mul(tries));
        self.schedule(at, Event::GiveUp(id, number));
    }

    /// How long a packet is on its way with all its retransmissions; `None` where the last try was lost too.
    pub(super) fn flight(&mut self) -> Option<u64> {
        let mut time = self.knobs_delay();
        for _ in 0..=self.knobs.retries {
            if !self.chance(self.knobs.loss) {
                return Some(time);
            }
            self.stats.lost += 1;
            time += nanos(self.knobs.retransmit);
        }
        None
    }

    fn knobs_delay(&mut self) -> u64 {
        let (least, most) = (nanos(self.knobs.delay_min), nanos(self.knobs.delay_max));
        least + self.below(most.saturating_sub(least) + 1)
    }

    /// A number below `bound`, which is at least one.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        ((u128::from(mix(self.random)) * u128::from(bound)) >> 64) as u64
    }

    fn chance(&mut self, per_million: u32) -> bool {
        per_million > 0 && self.below(1_000_000) < u64::from(per_million)
    }

    /// A listener with a handler and a request for it.
    pub(super) fn take_answerable(&mut self) -> Option<(SocketAddr, Handler, Request)> {
        let stopped = &self.stopped;
        let (address, listener) = self.listeners.iter_mut().find(|(at, one)| {
            one.handler.is_some() && !one.queue.is_empty() && !stopped.contains(&at.ip())
        })?;
        let request = listener.queue.pop_front()?;
        Some((*address, listener.handler.take()?, request))
    }

    pub(super) fn put_handler(&mut self, address: SocketAddr, handler: Handler) {
        if let Some(listener) = self.listeners.get_mut(&address) {
            listener.handler = Some(handler);
        }
    }
}

/// The finaliser of splitmix64.
fn mix(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
