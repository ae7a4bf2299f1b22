//! A server's memory and the links that reach it.

use std::sync::Arc;
use std::time::Duration;

use kaeru_common::fabric::buffer::Memory;
use kaeru_common::fabric::{Access, Domain, Fabric, Incoming, LinkConfig, RegionInfo, RemoteRange};
use kaeru_common::units::LaneToken;

use super::driven::Driven;
use super::pair::{DomainOf, LinkOf, PATIENCE, Pair};

/// The token of links whose token does not matter.
pub(crate) const TOKEN: LaneToken = LaneToken(*b"kaeru lane token");

/// A small link.
pub(crate) const SMALL: LinkConfig = LinkConfig {
    slots: 32,
    slot_size: 8192,
    pool_access: Access::Local,
    messages: 8,
    message_size: 64,
    answers_messages: false,
    depth: 32,
    responder_depth: 16,
};

/// A domain with one piece of registered memory.
pub(crate) struct Rig<P: Pair> {
    /// The fabrics.
    pub(crate) pair: P,
    /// The server's domain.
    pub(crate) domain: DomainOf<P>,
    /// Its memory.
    pub(crate) memory: Arc<Memory>,
    /// The memory's regions.
    pub(crate) regions: Vec<RegionInfo>,
}

/// Both ends of a link.
pub(crate) struct Duo<P: Pair> {
    /// The client's end.
    pub(crate) client: Driven<LinkOf<P>>,
    /// The server's end.
    pub(crate) server: Driven<LinkOf<P>>,
}

impl<P: Pair> Rig<P> {
    /// Registers `length` bytes for reading and writing.
    pub(crate) fn new(pair: P, length: usize) -> Self {
        Self::with(pair, Memory::anonymous(length).unwrap(), Access::RemoteReadWrite)
    }

    /// Registers this memory.
    pub(crate) fn with(pair: P, memory: Memory, access: Access) -> Self {
        let mut domain = pair.server().domain().unwrap();
        let memory = Arc::new(memory);
        let regions = domain.register(&memory, access).unwrap();
        assert_eq!(regions.iter().map(|region| region.length).sum::<u64>(), memory.len() as u64);
        Self { pair, domain, memory, regions }
    }

    /// A new link into the domain.
    pub(crate) fn join(&mut self, client: &LinkConfig, server: &LinkConfig) -> Duo<P> {
        let domain = &self.domain;
        let (link, peer) =
            self.pair.meet(&TOKEN, client, |incoming| incoming.accept(domain, server).unwrap());
        Duo { client: Driven::new(link.unwrap()), server: Driven::new(peer) }
    }

    /// A new small link into the domain.
    pub(crate) fn join_small(&mut self) -> Duo<P> {
        self.join(&SMALL, &SMALL)
    }

    /// The range of the memory; it must lie in one region.
    pub(crate) fn range(&self, offset: u64, length: u32) -> RemoteRange {
        let each = self.regions[0].length;
        let (index, offset) = ((offset / each) as usize, offset % each);
        self.regions[index].range(offset, length).expect("a range in one region")
    }

    /// The memory's bytes, behind the back of the fabric.
    pub(crate) fn look(&self, offset: usize, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.memory.copy_to(offset, &mut bytes);
        bytes
    }

    /// Polls `ends` and lets time pass until `reached`, which must come.
    pub(crate) fn until(
        &mut self,
        what: &str,
        ends: &mut [&mut Driven<LinkOf<P>>],
        reached: impl Fn(&[&mut Driven<LinkOf<P>>]) -> bool,
    ) {
        assert!(self.within(PATIENCE, ends, reached), "never happened: {what}");
    }

    /// As [`Self::until`], for `patience`, with the answer whether it came.
    pub(crate) fn within(
        &mut self,
        patience: Duration,
        ends: &mut [&mut Driven<LinkOf<P>>],
        reached: impl Fn(&[&mut Driven<LinkOf<P>>]) -> bool,
    ) -> bool {
        use kaeru_common::fabric::Link;
        let deadline = self.pair.now() + patience;
        ends.iter_mut().for_each(|end| end.link.submit());
        loop {
            while ends.iter_mut().map(|end| end.poll()).fold(false, |any, one| any | one) {}
            if reached(ends) {
                return true;
            }
            if self.pair.now() > deadline {
                return false;
            }
            self.pair.pump();
        }
    }

    /// Waits until all reads, writes and sends of a link came back.
    pub(crate) fn settle(&mut self, duo: &mut Duo<P>) {
        self.until("everything comes back", &mut [&mut duo.client, &mut duo.server], |ends| {
            ends.iter().all(|end| end.owes_work() == 0)
        });
    }

    /// Waits until everything came back, receives too, as on a dead link.
    pub(crate) fn drain(&mut self, duo: &mut Duo<P>) {
        self.until("the dead link gives everything back", &mut [&mut duo.client, &mut duo.server], |ends| {
            ends.iter().all(|end| {
                end.owes() == 0 && {
                    use kaeru_common::fabric::Link;
                    end.link.down().is_some()
                }
            })
        });
    }

    /// Writes and waits.
    pub(crate) fn write(&mut self, duo: &mut Duo<P>, offset: u64, bytes: &[u8]) {
        let tag = duo.client.write(bytes, self.range(offset, bytes.len() as u32));
        self.settle(duo);
        assert_eq!(duo.client.result(tag), Ok(bytes.len() as u32));
    }

    /// Reads and waits.
    pub(crate) fn read(&mut self, duo: &mut Duo<P>, offset: u64, length: u32) -> Vec<u8> {
        let tag = duo.client.read(self.range(offset, length));
        self.settle(duo);
        duo.client.bytes(tag)
    }
}
