//! One end of a link as its card sees it: what it asked for, what it was asked for, and which memory it may touch.
//!
//! ```text
//!   requester                                       responder
//!   post ─▶ staged ─ submit ─▶ wire (in order) ──▶ inbound ─▶ place / fill a receive / take a read ─┐
//!   done ◀─ settle ◀──────── answer (in order for each kind) ◀──────── (a read waits a while) ◀─────┘
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::net::{Event, Net};
use super::{Defect, LinkId, POISON, SimNet, nanos};
use crate::fabric::buffer::{Memory, Slot};
use crate::fabric::{
    Access, Completion, Domain, LinkDown, LinkLimits, Op, OpError, RegionInfo, RemoteRange, SetupError,
};

/// One end of a link.
#[derive(Debug)]
pub(super) struct End {
    pub(super) host: IpAddr,
    pub(super) limits: LinkLimits,
    /// Reads that this end answers at once, as its peer was told.
    pub(super) promise: u32,
    /// The regions that the peer may reach: the domain's and the pool's.
    pub(super) tables: Vec<RegionTable>,
    /// Rung when something is to be polled.
    pub(super) bell: Arc<OwnedFd>,
    pub(super) down: Option<LinkDown>,
    pub(super) silent: bool,
    pub(super) armed: bool,
    /// Something happened that poll has not reported.
    pub(super) news: bool,
    pub(super) done: VecDeque<Completion>,
    /// Places of the queue that are taken, up to and including completions not polled yet.
    pub(super) busy: u32,
    pub(super) busy_receives: u32,
    pub(super) posted: u64,
    pub(super) completed: u64,
    pub(super) last_arrival: u64,
    last_answers: [u64; 3],
    /// What is in flight, in the order of posting.
    operations: BTreeMap<u64, Operation>,
    receives: VecDeque<(u64, Slot)>,
    staged: VecDeque<u64>,
    waiting_reads: VecDeque<u64>,
    reads_on_wire: u32,
    inbound: VecDeque<Packet>,
    /// Reads that are being answered, in their order, with the bytes of those that are ready.
    serving: VecDeque<(u64, Option<Vec<u8>>)>,
}

/// An operation in flight at the end that posted it.
#[derive(Debug)]
struct Operation {
    op: Op,
    slot: Slot,
    tag: u64,
    range: RemoteRange,
    length: u32,
    on_wire: bool,
}

/// What is asked of the peer's card.
#[derive(Debug)]
pub(super) struct Packet {
    pub(super) number: u64,
    body: Body,
}

#[derive(Debug)]
enum Body {
    Write(RemoteRange, Vec<u8>),
    Send(Vec<u8>),
    Read(RemoteRange),
}

/// What the peer's card answers.
#[derive(Debug)]
pub(super) enum Answer {
    Done,
    Data(Vec<u8>),
    Refused(OpError),
}

/// Regions of one domain or pool, shared by its links.
#[derive(Clone, Debug, Default)]
pub(super) struct RegionTable(Arc<Mutex<Vec<Region>>>);

#[derive(Clone, Debug)]
struct Region {
    info: RegionInfo,
    access: Access,
    memory: Arc<Memory>,
    start: u64,
}

impl RegionTable {
    fn lock(&self) -> MutexGuard<'_, Vec<Region>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A set of regions on a [`Sim`](super::Sim). They live as long as it or any link that was accepted into it.
#[derive(Debug)]
pub struct SimDomain {
    net: SimNet,
    host: IpAddr,
    pub(super) table: RegionTable,
}

impl SimDomain {
    pub(super) fn host(&self) -> IpAddr {
        self.host
    }

    pub(super) fn new(net: SimNet, host: IpAddr) -> Self {
        let table = RegionTable::default();
        net.lock().domains.push(table.clone());
        Self { net, host, table }
    }
}

impl Domain for SimDomain {
    fn register(&mut self, memory: &Arc<Memory>, access: Access) -> Result<Vec<RegionInfo>, SetupError> {
        let mut net = self.net.lock();
        let (bytes, done) = (memory.len() as u64, net.registered.get(&self.host).copied().unwrap_or(0));
        if done.saturating_add(bytes) > net.knobs.register_limit {
            let source = std::io::ErrorKind::OutOfMemory.into();
            return Err(SetupError::Register { device: "sim".into(), bytes, done, source });
        }
        net.registered.insert(self.host, done + bytes);
        Ok(net.register(&self.table, memory, access))
    }
}

impl End {
    pub(super) fn new(host: IpAddr, limits: LinkLimits, promise: u32, bell: Arc<OwnedFd>) -> Self {
        Self {
            host,
            limits,
            promise,
            tables: Vec::new(),
            bell,
            down: None,
            silent: false,
            armed: false,
            news: false,
            done: VecDeque::new(),
            busy: 0,
            busy_receives: 0,
            posted: 0,
            completed: 0,
            last_arrival: 0,
            last_answers: [0; 3],
            operations: BTreeMap::new(),
            receives: VecDeque::new(),
            staged: VecDeque::new(),
            waiting_reads: VecDeque::new(),
            reads_on_wire: 0,
            inbound: VecDeque::new(),
            serving: VecDeque::new(),
        }
    }

    pub(super) fn last_answer(&self, op: Op) -> u64 {
        self.last_answers[op as usize % 3]
    }

    pub(super) fn set_last_answer(&mut self, op: Op, at: u64) {
        self.last_answers[op as usize % 3] = at;
    }

    /// Operations that wait for an answer.
    pub(super) fn on_wire(&self) -> Vec<u64> {
        self.operations.iter().filter(|(_, one)| one.on_wire).map(|(&number, _)| number).collect()
    }

    /// Operations that were taken and not completed.
    pub(super) fn in_flight(&self) -> u64 {
        (self.operations.len() + self.receives.len()) as u64
    }

    /// The oldest read, if its bytes are ready.
    fn next_served(&mut self) -> Option<(u64, Vec<u8>)> {
        let bytes = self.serving.front_mut()?.1.take()?;
        self.serving.pop_front().map(|(number, _)| (number, bytes))
    }

    fn complete(&mut self, tag: u64, op: Op, slot: Slot, result: Result<u32, OpError>) {
        self.completed += 1;
        self.done.push_back(Completion { tag, op, slot, result });
        self.ring();
    }

    /// Wakes whoever armed.
    fn ring(&mut self) {
        self.news = true;
        if std::mem::take(&mut self.armed) {
            // The counter of an eventfd is full only after 2^64 rings that nobody heard.
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
    }
}

// What an end asks for.
impl Net {
    /// Takes an operation if the link is alive and has room.
    pub(super) fn post(
        &mut self,
        id: LinkId,
        op: Op,
        mut slot: Slot,
        tag: u64,
        range: RemoteRange,
        length: u32,
    ) {
        let number = self.fresh();
        let whole = self.has(Defect::FillsWholeSlot);
        let Some(end) = self.ends.get_mut(&id) else { return };
        end.posted += 1;
        match op {
            Op::Recv => {
                slot.fill(0, slot.size() as usize, POISON);
                end.busy_receives += 1;
                end.receives.push_back((tag, slot));
                return self.take_inbound(id);
            }
            Op::Read => slot.fill(0, if whole { slot.size() } else { length } as usize, POISON),
            Op::Write | Op::Send => {}
        }
        end.busy += 1;
        end.operations.insert(number, Operation { op, slot, tag, range, length, on_wire: false });
        end.staged.push_back(number);
    }

    /// Sends what was posted; reads beyond the peer's promise wait.
    pub(super) fn submit(&mut self, id: LinkId) {
        while let Some(number) = self.ends.get_mut(&id).and_then(|end| end.staged.pop_front()) {
            self.launch(id, number);
        }
    }

    fn launch(&mut self, id: LinkId, number: u64) {
        let (oversteps, cuts) = (self.has(Defect::OverstepsReads), self.has(Defect::CutsLastByte));
        let Some(end) = self.ends.get_mut(&id) else { return };
        let Some(one) = end.operations.get_mut(&number) else { return };
        if one.op == Op::Read {
            if end.reads_on_wire >= end.limits.reads && !oversteps {
                return end.waiting_reads.push_back(number);
            }
            end.reads_on_wire += 1;
        }
        one.on_wire = true;
        let op = one.op;
        let payload = |one: &Operation| {
            let mut bytes = vec![0; one.length as usize];
            one.slot.copy_to(0, &mut bytes);
            if cuts && let Some(last) = bytes.last_mut() {
                *last = !*last;
            }
            bytes
        };
        let body = match op {
            Op::Write => Body::Write(one.range, payload(one)),
            Op::Send | Op::Recv => Body::Send(payload(one)),
            Op::Read => Body::Read(one.range),
        };
        self.transmit(id, op, Packet { number, body });
    }

    /// An answer reached the end that asked.
    pub(super) fn settle(&mut self, id: LinkId, number: u64, answer: Answer) {
        let shuffles = self.has(Defect::ShufflesCompletions);
        let Some(end) = self.ends.get_mut(&id).filter(|end| end.down.is_none() && !end.silent) else {
            return;
        };
        if let Answer::Refused(error) = answer {
            return self.die(id, LinkDown::Refused(error), Some((number, error)));
        }
        let Some(mut one) = end.operations.remove(&number) else { return };
        if let Answer::Data(bytes) = answer {
            one.slot.copy_from(0, &bytes);
        }
        end.complete(one.tag, one.op, one.slot, Ok(one.length));
        if shuffles {
            end.done.rotate_right(1);
        }
        if one.op == Op::Read {
            end.reads_on_wire -= 1;
            if let Some(next) = end.waiting_reads.pop_front() {
                self.launch(id, next);
            }
        }
    }

    /// An operation was tried often enough: the peer is gone.
    pub(super) fn give_up(&mut self, id: LinkId, number: u64) {
        if self.ends.get(&id).is_some_and(|end| end.operations.contains_key(&number)) {
            let tries = self.knobs.retries + 1;
            self.die(id, LinkDown::Failed(format!("no answer in {tries} tries")), None);
        }
    }

    /// Ends this end's part of the link: everything in flight comes back, once.
    pub(super) fn die(&mut self, id: LinkId, why: LinkDown, own: Option<(u64, OpError)>) {
        let forgets = self.has(Defect::ForgetsOneAtDeath);
        let Some(end) = self.ends.get_mut(&id).filter(|end| end.down.is_none()) else { return };
        end.down = Some(why);
        end.staged.clear();
        end.waiting_reads.clear();
        end.inbound.clear();
        if forgets {
            end.operations.pop_last();
        }
        for (number, mut one) in std::mem::take(&mut end.operations) {
            let error =
                own.filter(|(whose, _)| *whose == number).map_or(OpError::LinkDead, |(_, error)| error);
            if one.op == Op::Read {
                one.slot.fill(0, one.length as usize, POISON);
            }
            end.complete(one.tag, one.op, one.slot, Err(error));
        }
        for (tag, slot) in std::mem::take(&mut end.receives) {
            end.complete(tag, Op::Recv, slot, Err(OpError::LinkDead));
        }
        end.ring();
    }

    /// Forgets a link's end; the slots in flight go back to their pool.
    pub(super) fn forget(&mut self, id: LinkId) {
        let Some(end) = self.ends.remove(&id) else { return };
        let undelivered = end.done.len() as u64;
        self.stats.posted += end.posted;
        self.stats.completed += end.completed - undelivered;
        self.stats.abandoned += end.in_flight() + undelivered;
        self.stats.unbalanced += u64::from(end.posted != end.completed + end.in_flight());
        if self.has(Defect::LeaksAtDrop) {
            std::mem::forget(end);
        }
    }
}

// What an end is asked for.
impl Net {
    /// A packet reached the card of `id`.
    pub(super) fn arrive(&mut self, id: LinkId, packet: Packet) {
        if let Some(end) = self.ends.get_mut(&id).filter(|end| end.down.is_none() && !end.silent) {
            end.inbound.push_back(packet);
            self.take_inbound(id);
        }
    }

    /// Does what was asked, in order, up to a message that no receive is posted for.
    fn take_inbound(&mut self, id: LinkId) {
        let drops = self.has(Defect::DropsUnexpectedSends);
        while let Some(end) = self.ends.get_mut(&id) {
            let waits = matches!(end.inbound.front(), Some(Packet { body: Body::Send(_), .. }))
                && end.receives.is_empty();
            if waits && !drops {
                return;
            }
            let Some(Packet { number, body }) = end.inbound.pop_front() else { return };
            match body {
                Body::Write(range, bytes) => self.take_write(id, number, range, bytes),
                Body::Send(bytes) => self.take_message(id, number, &bytes),
                Body::Read(range) => self.take_read(id, number, range),
            }
        }
    }

    fn take_write(&mut self, id: LinkId, number: u64, range: RemoteRange, bytes: Vec<u8>) {
        if self.resolve(id, range, true).is_none() {
            return self.refuse(id, number, Op::Write, OpError::Access);
        }
        if self.has(Defect::AnswersEarly) {
            self.schedule(self.now + 100_000, Event::PlaceLate(id, range, bytes));
        } else {
            self.place_late(id, range, &bytes);
        }
        self.answer(id.peer(), number, Op::Write, Answer::Done);
    }

    pub(super) fn place_late(&mut self, id: LinkId, range: RemoteRange, bytes: &[u8]) {
        let Some((memory, at)) = self.resolve(id, range, true) else { return };
        memory.copy_from(at, bytes);
        if self.has(Defect::WritesOneMore) && at + bytes.len() < memory.len() {
            memory.fill(at + bytes.len(), 1, 0xee);
        }
    }

    fn take_message(&mut self, id: LinkId, number: u64, bytes: &[u8]) {
        let (newest, cuts) = (self.has(Defect::FillsNewestReceive), self.has(Defect::CutsLongMessages));
        let Some(end) = self.ends.get_mut(&id) else { return };
        let receive = if newest { end.receives.pop_back() } else { end.receives.pop_front() };
        let Some((tag, mut slot)) = receive else {
            return self.answer(id.peer(), number, Op::Send, Answer::Done);
        };
        if bytes.len() > slot.size() as usize && !cuts {
            end.complete(tag, Op::Recv, slot, Err(OpError::TooLong));
            return self.refuse(id, number, Op::Send, OpError::TooLong);
        }
        let bytes = &bytes[..bytes.len().min(slot.size() as usize)];
        slot.copy_from(0, bytes);
        end.complete(tag, Op::Recv, slot, Ok(bytes.len() as u32));
        self.answer(id.peer(), number, Op::Send, Answer::Done);
    }

    fn take_read(&mut self, id: LinkId, number: u64, range: RemoteRange) {
        if self.resolve(id, range, false).is_none() {
            return self.refuse(id, number, Op::Read, OpError::Access);
        }
        let Some(end) = self.ends.get_mut(&id) else { return };
        end.serving.push_back((number, None));
        if end.serving.len() > end.promise as usize {
            self.stats.naks += 1;
            let why = "it has more reads outstanding than it was promised";
            self.announce_death(id, LinkDown::Failed("the peer's card does not answer so many reads".into()));
            return self.die(id, LinkDown::PeerFault(why), None);
        }
        let at = self.now + self.below(nanos(self.knobs.service) + 1);
        self.schedule(at, Event::Serve(id, number, range));
    }

    /// Reads the memory, which what arrived after the request may have changed; answers go out in the order of requests.
    pub(super) fn serve(&mut self, id: LinkId, number: u64, range: RemoteRange) {
        if self.ends.get(&id).is_none_or(|end| end.down.is_some()) {
            return;
        }
        let Some((memory, at)) = self.resolve(id, range, false) else {
            return self.refuse(id, number, Op::Read, OpError::Access);
        };
        let mut bytes = vec![0; range.length as usize];
        memory.copy_to(at, &mut bytes);
        let Some(end) = self.ends.get_mut(&id) else { return };
        if let Some((_, ready)) = end.serving.iter_mut().find(|(whose, _)| *whose == number) {
            *ready = Some(bytes);
        }
        while let Some((number, bytes)) = self.ends.get_mut(&id).and_then(End::next_served) {
            self.answer(id.peer(), number, Op::Read, Answer::Data(bytes));
        }
    }

    /// Answers with an error, which ends the link on both sides.
    fn refuse(&mut self, id: LinkId, number: u64, op: Op, error: OpError) {
        let why = match error {
            OpError::TooLong => "it sent a message longer than the receive",
            _ => "it asked for memory that it was not granted",
        };
        self.answer(id.peer(), number, op, Answer::Refused(error));
        self.die(id, LinkDown::PeerFault(why), None);
        if self.has(Defect::SpreadsViolations) {
            let all: Vec<LinkId> = self.ends.keys().copied().collect();
            all.into_iter()
                .filter(|one| *one != id.peer())
                .for_each(|one| self.die(one, LinkDown::PeerFault(why), None));
        }
    }

    /// The memory and offset that `range` names for the peer of `id`, if it may touch them.
    fn resolve(&self, id: LinkId, range: RemoteRange, write: bool) -> Option<(Arc<Memory>, usize)> {
        let end = self.ends.get(&id)?;
        let every = self.has(Defect::IgnoresDomains);
        let tables = if every { &self.domains } else { &end.tables };
        tables
            .iter()
            .chain(&end.tables)
            .find_map(|table| table.lock().iter().find_map(|region| self.resolve_in(region, range, write)))
    }

    fn resolve_in(&self, region: &Region, range: RemoteRange, write: bool) -> Option<(Arc<Memory>, usize)> {
        let key = range.key == region.info.key || self.has(Defect::IgnoresKeys);
        let right = match region.access {
            Access::Local => false,
            Access::RemoteRead => !write,
            Access::RemoteReadWrite => true,
        };
        let mut offset = range.address.checked_sub(region.info.address)?;
        if self.has(Defect::CutsOffset) {
            offset &= u64::from(u32::MAX);
        }
        let end = offset.checked_add(u64::from(range.length))?;
        let spare = u64::from(self.has(Defect::StretchesBounds));
        if !(key && (right || self.has(Defect::IgnoresRights)) && end <= region.info.length + spare) {
            return None;
        }
        // A stretched bound would leave the mapping: move the range back into it.
        let offset = offset.min(region.info.length.checked_sub(u64::from(range.length))?);
        Some((region.memory.clone(), usize::try_from(region.start + offset).ok()?))
    }

    /// Makes `memory` known in `table`, in as many regions as the device needs.
    pub(super) fn register(
        &mut self,
        table: &RegionTable,
        memory: &Arc<Memory>,
        access: Access,
    ) -> Vec<RegionInfo> {
        let piece = self.knobs.region_limit.max(1);
        let total = memory.len() as u64;
        // Addresses are made up, so that a history does not depend on where the kernel puts mappings.
        let base = (1 << 44) + (self.below(1 << 20) << 24);
        let mut infos = Vec::new();
        for start in (0..total).step_by(usize::try_from(piece).unwrap_or(usize::MAX)) {
            let (serial, salt) = (self.fresh(), self.below(1 << 12));
            let key = ((serial << 12 | salt) & u64::from(u32::MAX)) as u32;
            let info = RegionInfo { address: base + start, key, length: piece.min(total - start) };
            table.lock().push(Region { info, access, memory: memory.clone(), start });
            infos.push(info);
        }
        infos
    }
}
