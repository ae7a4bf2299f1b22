//! What a range of memory must hold, and a walk of random operations that asks it.
//!
//! Writes of one link take effect in the order of posting. So what a read must see is known at its posting, except
//! where a later write overlaps it; and what a dead link leaves behind is what was answered plus the first few of what
//! was not.

use std::collections::{BTreeMap, VecDeque};

use kaeru_common::fabric::{Completion, Link, Op};

use super::driven::bytes_of;
use super::pair::{PATIENCE, Pair};
use super::random::Random;
use super::rig::{Duo, Rig};

/// The bytes that one link writes to and nobody else.
pub(crate) struct Oracle {
    answered: Vec<u8>,
    posted: Vec<u8>,
    writes: VecDeque<(u64, usize, Vec<u8>)>,
    reads: BTreeMap<u64, Vec<(usize, Option<u8>)>>,
}

impl Oracle {
    /// Of memory that holds `bytes`.
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        Self { posted: bytes.clone(), answered: bytes, writes: VecDeque::new(), reads: BTreeMap::new() }
    }

    /// A write was posted.
    pub(crate) fn write(&mut self, tag: u64, at: usize, bytes: Vec<u8>) {
        self.posted[at..at + bytes.len()].copy_from_slice(&bytes);
        for (place, known) in self.reads.values_mut().flatten() {
            if (at..at + bytes.len()).contains(place) {
                *known = None;
            }
        }
        self.writes.push_back((tag, at, bytes));
    }

    /// A read was posted.
    pub(crate) fn read(&mut self, tag: u64, at: usize, length: usize) {
        let expected = (at..at + length).map(|place| (place, Some(self.posted[place]))).collect();
        self.reads.insert(tag, expected);
    }

    /// An operation ended.
    pub(crate) fn ended(&mut self, completion: &Completion) {
        match (completion.op, completion.result) {
            (Op::Write, Ok(length)) => {
                let (tag, at, bytes) = self.writes.pop_front().expect("a write was posted");
                assert_eq!((completion.tag, length as usize), (tag, bytes.len()), "writes complete in order");
                self.answered[at..at + bytes.len()].copy_from_slice(&bytes);
            }
            (Op::Read, Ok(_)) => {
                let (tag, expected) = self.reads.pop_first().expect("a read was posted");
                assert_eq!(completion.tag, tag, "reads complete in order");
                let bytes = bytes_of(completion);
                assert_eq!(bytes.len(), expected.len());
                for (byte, (place, known)) in bytes.iter().zip(expected) {
                    assert!(
                        known.is_none_or(|known| known == *byte),
                        "byte {place}: {byte} is not {known:?}"
                    );
                }
            }
            _ => {}
        }
    }

    /// Checks what the memory holds at the end, when nothing changes it any more.
    pub(crate) fn check(&self, memory: &[u8]) {
        let mut possible = self.answered.clone();
        let mut writes = self.writes.iter();
        while possible != memory {
            let (_, at, bytes) =
                writes.next().expect("memory holds what was answered and the first of what was not");
            possible[*at..at + bytes.len()].copy_from_slice(bytes);
        }
    }
}

/// Random operations on one link and its share of the memory: writes, reads, and messages that name a write.
pub(crate) struct Walk<P: Pair> {
    /// The link.
    pub(crate) duo: Duo<P>,
    oracle: Oracle,
    base: usize,
    length: usize,
    announced: u64,
    heard: u64,
}

/// The first bytes of a share hold the number of the last announcement.
const COUNTER: usize = 8;

impl<P: Pair> Walk<P> {
    /// A walk over `length` bytes from `base`.
    pub(crate) fn new(rig: &Rig<P>, duo: Duo<P>, base: usize, length: usize) -> Self {
        let oracle = Oracle::new(rig.look(base, length));
        Self { duo, oracle, base, length, announced: 0, heard: 0 }
    }

    /// One random thing; `false` once the link has refused it for being dead.
    pub(crate) fn step(&mut self, rig: &mut Rig<P>, random: &mut Random) -> bool {
        match random.below(12) {
            0..=3 => self.write(rig, random),
            4..=6 => self.read(rig, random),
            7 => self.announce(rig),
            8 => self.receive(),
            9 => self.duo.client.link.submit(),
            10 => self.look(rig),
            _ => rig.pair.pump(),
        }
        self.duo.client.link.down().is_none()
    }

    fn room(&self) -> bool {
        let limits = self.duo.client.link.limits();
        self.duo.client.link.down().is_none()
            && self.duo.client.owes_work() + self.duo.client.done.len() + 2 < limits.depth as usize
            && self.duo.client.link.pool().available() > 2
    }

    fn place(&self, random: &mut Random) -> (usize, usize) {
        // Small and often in the same places, so that they overlap; sometimes a whole slot.
        let slot = self.duo.client.slot_size() as usize;
        let longest = if random.one_in(8) { slot } else { 64 };
        let length = 1 + random.below(longest as u64) as usize;
        let last = self.length - length;
        let near = last.min(if random.one_in(4) { last } else { COUNTER + 256 });
        (random.below(near as u64 + 1).max(COUNTER as u64) as usize, length)
    }

    fn write(&mut self, rig: &Rig<P>, random: &mut Random) {
        if self.room() {
            let (at, length) = self.place(random);
            let at = at.min(self.length - length);
            self.put(rig, at, random.bytes(length));
        }
    }

    fn put(&mut self, rig: &Rig<P>, at: usize, bytes: Vec<u8>) {
        let range = rig.range((self.base + at) as u64, bytes.len() as u32);
        let tag = self.duo.client.write(&bytes, range);
        self.oracle.write(tag, at, bytes);
    }

    fn read(&mut self, rig: &Rig<P>, random: &mut Random) {
        if self.room() {
            let (at, length) = self.place(random);
            let at = at.min(self.length - length);
            let tag = self.duo.client.read(rig.range((self.base + at) as u64, length as u32));
            self.oracle.read(tag, at, length);
        }
    }

    /// Writes the next number, and says so in a message behind it.
    fn announce(&mut self, rig: &Rig<P>) {
        if self.room() {
            self.announced += 1;
            self.put(rig, 0, self.announced.to_ne_bytes().to_vec());
            self.duo.client.send(&self.announced.to_ne_bytes());
        }
    }

    /// Looks at what came back on both sides.
    fn look(&mut self, rig: &Rig<P>) {
        let counter = |rig: &Rig<P>| u64::from_ne_bytes(rig.look(self.base, COUNTER).try_into().unwrap());
        self.duo.server.poll();
        for completion in self.duo.server.done.drain(..).filter(|one| one.result.is_ok()) {
            self.heard += 1;
            assert_eq!(bytes_of(&completion), self.heard.to_ne_bytes(), "messages come in order");
            assert!(counter(rig) >= self.heard, "a message comes after the writes before it");
        }
        self.duo.client.poll();
        for completion in self.duo.client.done.drain(..) {
            self.oracle.ended(&completion);
        }
    }

    /// Posts a receive where there is room for it.
    fn receive(&mut self) {
        let server = &mut self.duo.server;
        let room = server.owes() + server.done.len() < server.link.limits().depth as usize;
        if server.link.down().is_none() && room && server.link.pool().available() > 0 {
            server.recv();
        }
    }

    /// Lets everything end, and checks that it did as it should.
    pub(crate) fn finish(&mut self, rig: &mut Rig<P>) {
        let deadline = rig.pair.now() + PATIENCE;
        self.duo.client.link.submit();
        while !self.over() {
            assert!(rig.pair.now() < deadline, "the walk comes to an end");
            self.receive();
            self.duo.server.link.submit();
            self.look(rig);
            rig.pair.pump();
        }
        if self.alive() {
            self.oracle.check(&rig.look(self.base, self.length));
        }
    }

    fn alive(&self) -> bool {
        self.duo.client.link.down().is_none() && self.duo.server.link.down().is_none()
    }

    fn over(&self) -> bool {
        self.duo.client.owes_work() == 0 && (self.heard == self.announced || !self.alive())
    }

    /// Ends the link on both sides, and checks what it leaves behind.
    pub(crate) fn bury(mut self, rig: &mut Rig<P>) {
        self.duo.client.link.close();
        self.duo.server.link.close();
        rig.drain(&mut self.duo);
        self.look(rig);
        self.oracle.check(&rig.look(self.base, self.length));
        for end in [&self.duo.client, &self.duo.server] {
            assert_eq!(end.link.pool().available(), end.link.pool().slots(), "every slot is free again");
        }
    }
}
