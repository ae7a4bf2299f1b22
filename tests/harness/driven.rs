//! A link that keeps account: every operation comes back exactly once, with its tag, kind and slot.

use std::collections::{BTreeMap, VecDeque};

use kaeru_common::fabric::buffer::Slot;
use kaeru_common::fabric::{Completion, Link, Op, OpError, Refused, RemoteRange};

/// A link and what it owes.
pub(crate) struct Driven<L> {
    /// The link itself.
    pub(crate) link: L,
    /// Completions that the test has not looked at.
    pub(crate) done: VecDeque<Completion>,
    owed: BTreeMap<u64, (Op, u32)>,
    next_tag: u64,
}

impl<L: Link> Driven<L> {
    /// A link that owes nothing yet.
    pub(crate) fn new(link: L) -> Self {
        // Tags need not be small.
        Self { link, done: VecDeque::new(), owed: BTreeMap::new(), next_tag: 0xfeed_0000_0000_0000 }
    }

    /// A free slot.
    pub(crate) fn slot(&self) -> Slot {
        self.link.pool().take().expect("a free slot")
    }

    /// Bytes of a slot.
    pub(crate) fn slot_size(&self) -> u32 {
        self.link.pool().slot_size()
    }

    /// Posts a write of `bytes`.
    pub(crate) fn write(&mut self, bytes: &[u8], to: RemoteRange) -> u64 {
        assert_eq!(bytes.len(), to.length as usize);
        let mut slot = self.slot();
        slot.copy_from(0, bytes);
        self.take(Op::Write, slot, |link, slot, tag| link.write(slot, to, tag)).expect("room for a write")
    }

    /// Posts a read.
    pub(crate) fn read(&mut self, from: RemoteRange) -> u64 {
        let slot = self.slot();
        self.take(Op::Read, slot, |link, slot, tag| link.read(slot, from, tag)).expect("room for a read")
    }

    /// Posts a message.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> u64 {
        let mut slot = self.slot();
        slot.copy_from(0, bytes);
        self.take(Op::Send, slot, |link, slot, tag| link.send(slot, bytes.len() as u32, tag))
            .expect("room for a send")
    }

    /// Posts a receive.
    pub(crate) fn recv(&mut self) -> u64 {
        let slot = self.slot();
        self.take(Op::Recv, slot, |link, slot, tag| link.recv(slot, tag)).expect("room for a receive")
    }

    /// Posts anything with a slot of the caller's; a refusal must give back that same slot.
    pub(crate) fn take(
        &mut self,
        op: Op,
        slot: Slot,
        post: impl FnOnce(&mut L, Slot, u64) -> Result<(), Refused>,
    ) -> Result<u64, Refused> {
        let (tag, index) = (self.next_tag, slot.index());
        self.next_tag += 1;
        match post(&mut self.link, slot, tag) {
            Ok(()) => {
                self.owed.insert(tag, (op, index));
                Ok(tag)
            }
            Err(refused) => {
                let (Refused::Full(slot) | Refused::Dead(slot)) = &refused;
                assert_eq!(slot.index(), index, "a refusal gives back the slot");
                Err(refused)
            }
        }
    }

    /// Polls into a small vector, and checks each completion against what is owed.
    pub(crate) fn poll(&mut self) -> bool {
        let mut batch = Vec::with_capacity(3);
        let room = batch.capacity();
        // It may have been asleep; a link that was not only looks once more than it had to.
        self.link.woken();
        let happened = self.link.poll(&mut batch);
        assert!(batch.len() <= room && batch.capacity() == room, "poll fills spare capacity and no more");
        assert!(happened || batch.is_empty(), "a completion is something that happened");
        for completion in batch {
            let Some((op, index)) = self.owed.remove(&completion.tag) else {
                panic!("{completion:?} was not owed, or came twice")
            };
            assert_eq!((completion.op, completion.slot.index()), (op, index), "{completion:?}");
            self.done.push_back(completion);
        }
        happened
    }

    /// Operations that have not come back.
    pub(crate) fn owes(&self) -> usize {
        self.owed.len()
    }

    /// Operations other than receives that have not come back.
    pub(crate) fn owes_work(&self) -> usize {
        self.owed.values().filter(|(op, _)| *op != Op::Recv).count()
    }

    /// The completion of one operation, if it is there.
    pub(crate) fn done_with(&mut self, tag: u64) -> Option<Completion> {
        let at = self.done.iter().position(|completion| completion.tag == tag)?;
        self.done.remove(at)
    }

    /// The result of one operation that has completed.
    pub(crate) fn result(&mut self, tag: u64) -> Result<u32, OpError> {
        self.done_with(tag).expect("the operation has completed").result
    }

    /// The bytes of one read or receive that has succeeded.
    pub(crate) fn bytes(&mut self, tag: u64) -> Vec<u8> {
        bytes_of(&self.done_with(tag).expect("the operation has completed"))
    }
}

/// The bytes that a successful completion moved.
pub(crate) fn bytes_of(completion: &Completion) -> Vec<u8> {
    let mut bytes = vec![0; completion.result.expect("a success") as usize];
    completion.slot.copy_to(0, &mut bytes);
    bytes
}
