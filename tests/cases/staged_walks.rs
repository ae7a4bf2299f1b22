//! Random walks of a staged lane on random networks, with a server that answers in any order, fails at random, and dies
//! at a random moment.
//!
//! Whatever happens: every request that was taken is answered once, with the right bytes where it succeeded; every slot
//! comes back, and none before the link has nothing left that could land in it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kaeru_client::remote::{Action, Answer, Failure, NotTaken, Remote, staged_link};
use kaeru_common::codec::{BoundedList, Decode};
use kaeru_common::error::Status;
use kaeru_common::fabric::buffer::Slot;
use kaeru_common::fabric::sim::{Knobs, SimLink};
use kaeru_common::fabric::{
    Access, Completion, Fabric, Incoming, Link, LinkConfig, Op, OpError, Refused, RemoteRange,
};
use kaeru_common::units::{ByteRange, LaneToken};
use kaeru_common::wire::io::{Extent, MESSAGE_BYTES, Opening, Packed, Reply, Request};

use crate::harness::pair::{Pair, SimPair};
use crate::harness::random::{Random, pattern, with_seeds};
use crate::harness::rig::SMALL;

/// Bytes that one request moves; each has a block of its own, so that the order of answers does not matter.
const BLOCK: usize = 4096;
const BLOCKS: u64 = 64;

/// A server of memory, as far as one lane sees it.
struct Keeper {
    link: SimLink,
    slots: Vec<Option<Slot>>,
    bytes: Vec<u8>,
    /// What came and was not done, in the order of coming.
    requests: Vec<Request>,
    done: Vec<Completion>,
}

impl Keeper {
    fn new(mut link: SimLink) -> Self {
        let count = link.pool().slots();
        let mut slots: Vec<Option<Slot>> = (0..count).map(|_| None).collect();
        while let Some(slot) = link.pool().take() {
            let index = slot.index() as usize;
            slots[index] = Some(slot);
        }
        for _ in 0..count {
            let slot = link.messages().take().unwrap();
            link.recv(slot, 0).unwrap();
        }
        let region = link.pool_region().unwrap();
        let opening = Opening { slots: count as u16, slot_size: link.pool().slot_size(), region };
        let bytes = vec![0; BLOCK * BLOCKS as usize];
        let mut keeper = Self { link, slots, bytes, requests: Vec::new(), done: Vec::with_capacity(64) };
        assert!(keeper.say(&Packed::new(&opening)));
        keeper.link.submit();
        keeper
    }

    fn say(&mut self, packed: &Packed) -> bool {
        let Some(mut slot) = self.link.messages().take() else { return false };
        slot.copy_from(0, packed.as_bytes());
        self.link.send(slot, packed.as_bytes().len() as u32, 0).is_ok()
    }

    /// Takes what came, and does some of it.
    fn step(&mut self, random: &mut Random) {
        self.link.poll(&mut self.done);
        for Completion { op, tag, slot, result } in std::mem::take(&mut self.done) {
            match op {
                Op::Recv => {
                    let Ok(length) = result else { continue };
                    let mut bytes = vec![0; length as usize];
                    slot.copy_to(0, &mut bytes);
                    let _ = self.link.recv(slot, 0);
                    self.requests.push(Request::decode_all(&bytes).unwrap());
                }
                Op::Write => self.slots[tag as usize] = Some(slot),
                Op::Send | Op::Read => {}
            }
        }
        self.done = Vec::with_capacity(64);
        while !self.requests.is_empty() && !random.one_in(3) {
            let at = random.below(self.requests.len() as u64) as usize;
            let request = self.requests.remove(at);
            if !self.answer(&request, random) {
                self.requests.push(request);
                break;
            }
        }
        self.link.submit();
    }

    /// Does a request; `false` where the link has no room or the slot is not back.
    fn answer(&mut self, request: &Request, random: &mut Random) -> bool {
        let number = usize::from(request.slot);
        let room = self.link.messages().available() > 0 && self.slots[number].is_some();
        if !room {
            return false;
        }
        let place = request.offset as usize..(request.offset + request.length) as usize;
        let failed = random.one_in(20);
        let mut extents = Vec::new();
        match request.action {
            _ if failed => {}
            Action::Read => {
                let mut slot = self.slots[number].take().unwrap();
                slot.copy_from(0, &self.bytes[place]);
                let length = request.length as u32;
                let to = RemoteRange { address: request.address, key: request.key, length };
                if let Err(Refused::Full(slot)) = self.link.write(slot, to, number as u64) {
                    self.slots[number] = Some(slot);
                    return false;
                }
            }
            Action::Write { .. } => self.slots[number].as_ref().unwrap().copy_to(0, &mut self.bytes[place]),
            Action::Zero { .. } | Action::Trim { .. } => self.bytes[place].fill(0),
            Action::Flush => {}
            Action::Extents => extents.push(Extent { length: request.length as u32, hole: false }),
        }
        let result = if failed { Err(Status::NoSpace) } else { Ok(()) };
        let extents = BoundedList::new(extents).unwrap();
        let reply = Reply { slot: request.slot, result, waited: 0, stored: 0, extents };
        // Room was looked at; on a dead link it does not matter.
        let _ = self.say(&Packed::new(&reply));
        true
    }
}

fn join(pair: &mut SimPair, random: &mut Random) -> (Remote<SimLink>, Keeper) {
    let base =
        LinkConfig { slots: 4 + random.below(20) as u32, slot_size: BLOCK as u32, depth: 160, ..SMALL };
    let slots = 1 + random.below(24) as u32;
    let serving = LinkConfig {
        slots,
        slot_size: BLOCK as u32,
        pool_access: Access::RemoteReadWrite,
        messages: 3 * slots,
        message_size: MESSAGE_BYTES as u32,
        depth: 4 * slots,
        ..SMALL
    };
    let domain = pair.server().domain().unwrap();
    let (client, server) = pair.meet(&LaneToken([3; 16]), &staged_link(&base), |incoming| {
        incoming.accept(&domain, &serving).unwrap()
    });
    let keeper = Keeper::new(server);
    // The client waits for the opening in real time, so somebody has to move the virtual one.
    let opened = Arc::new(AtomicBool::new(false));
    let (net, seen) = (pair.net.clone(), opened.clone());
    let mover = std::thread::spawn(move || {
        while !seen.load(Ordering::Acquire) {
            net.advance(Duration::from_millis(1));
            std::thread::yield_now();
        }
    });
    let remote = Remote::staged(client.unwrap(), BLOCKS * BLOCK as u64, Duration::from_secs(20));
    opened.store(true, Ordering::Release);
    mover.join().unwrap();
    (remote.unwrap(), keeper)
}

/// A client that knows what every block holds, as far as that can be known.
struct Walker {
    remote: Remote<SimLink>,
    /// `None`: a write was not answered, so it may be either.
    model: Vec<Option<Vec<u8>>>,
    in_flight: BTreeMap<u64, (Action, Vec<u8>)>,
    done: Vec<Answer>,
    answered: u64,
}

impl Walker {
    fn ask(&mut self, random: &mut Random) {
        let block = random.below(BLOCKS);
        if self.in_flight.contains_key(&block) {
            return;
        }
        let range = ByteRange::new(block * BLOCK as u64, BLOCK as u64).unwrap();
        let bytes = pattern(random.below(u64::MAX), BLOCK);
        let action = match random.below(7) {
            0..=1 => Action::Write { durable: random.one_in(2) },
            2 => Action::Zero { no_hole: random.one_in(2), durable: false },
            3 => Action::Extents,
            _ => Action::Read,
        };
        let taken = match action {
            Action::Write { durable } => self.remote.slot().map(|mut slot| {
                slot.copy_from(0, &bytes);
                self.remote.write(slot, range, durable, block).is_ok()
            }),
            Action::Read => self.remote.slot().map(|mut slot| {
                slot.fill(0, BLOCK, 0xee);
                self.remote.read(slot, range, block).is_ok()
            }),
            _ => Some(!matches!(
                self.remote.command(action, range, block),
                Err(NotTaken::Full | NotTaken::Dead)
            )),
        };
        if taken == Some(true) {
            self.in_flight.insert(block, (action, bytes));
        }
    }

    fn take(&mut self) -> bool {
        let moved = self.remote.poll(&mut self.done);
        for Answer { tag, slot, result, extents, .. } in std::mem::take(&mut self.done) {
            let (action, bytes) =
                self.in_flight.remove(&tag).expect("it was asked for, and not answered before");
            self.answered += 1;
            assert_eq!(slot.is_some(), action.moves_data());
            let known = &mut self.model[tag as usize];
            match (action, result) {
                (Action::Read, Ok(length)) => {
                    let mut found = vec![0; length as usize];
                    slot.unwrap().copy_to(0, &mut found);
                    assert_eq!(found.len(), BLOCK);
                    assert!(known.as_ref().is_none_or(|known| *known == found), "block {tag}");
                }
                (Action::Write { .. }, Ok(_)) => *known = Some(bytes),
                (Action::Zero { .. }, Ok(_)) => *known = Some(vec![0; BLOCK]),
                (Action::Extents, Ok(_)) => assert_eq!(extents.len(), 1),
                (_, Err(Failure::Store(status))) => assert_eq!(status, Status::NoSpace),
                (_, Err(Failure::Link(error))) => {
                    assert_eq!(error, OpError::LinkDead);
                    assert!(self.remote.down().is_some());
                    // Only once the link has nothing left can nothing land in the slot any more.
                    let messages = self.remote.link().messages();
                    assert_eq!(messages.available(), messages.slots());
                    if action.modifies() {
                        *known = None;
                    }
                }
                (action, Ok(_)) => panic!("{action:?}"),
            }
        }
        self.done = Vec::with_capacity(7);
        moved
    }
}

fn walk(seed: u64) {
    let mut random = Random(seed);
    let mut pair = SimPair::new(seed, Knobs::default());
    let (remote, mut keeper) = join(&mut pair, &mut random);
    let model = (0..BLOCKS).map(|_| Some(vec![0; BLOCK])).collect();
    let mut walker =
        Walker { remote, model, in_flight: BTreeMap::new(), done: Vec::with_capacity(7), answered: 0 };
    let pool = walker.remote.link().pool().clone();
    let (steps, doom) = (200 + random.below(600), random.below(1200));
    for step in 0..steps {
        if step == doom {
            match random.below(4) {
                0 => pair.net.sever(walker.remote.link().id()),
                1 => walker.remote.close(),
                2 => keeper.link.close(),
                _ => pair.net.silence(keeper.link.id()),
            }
        }
        for _ in 0..random.below(4) {
            walker.ask(&mut random);
        }
        walker.remote.submit();
        walker.take();
        keeper.step(&mut random);
        pair.net.advance(Duration::from_micros(random.below(20)));
    }
    let deadline = pair.now() + Duration::from_secs(120);
    while !walker.in_flight.is_empty() {
        assert!(pair.now() < deadline, "{} requests were never answered", walker.in_flight.len());
        walker.remote.submit();
        let moved = walker.take();
        keeper.step(&mut random);
        if !moved {
            pair.pump();
        }
    }
    assert!(walker.answered > 20 || walker.remote.down().is_some(), "{} answers", walker.answered);
    assert_eq!(pool.available(), pool.slots(), "every slot is free again");
}

#[test]
fn two_hundred_walks_of_a_staged_lane_answer_everything_once() {
    with_seeds(0..200, walk);
}
