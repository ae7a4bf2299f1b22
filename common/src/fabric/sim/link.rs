//! A link as its owner holds it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use rustix::event::{EventfdFlags, eventfd};

use super::{Defect, LinkId, SimNet};
use crate::fabric::buffer::{Slot, SlotPool};
use crate::fabric::pools::Pools;
use crate::fabric::{
    Completion, FabricKind, Link, LinkDown, LinkLimits, Op, Refused, RegionInfo, RemoteRange, SetupError,
};

/// One end of a simulated link.
#[derive(Debug)]
pub struct SimLink {
    net: SimNet,
    id: LinkId,
    limits: LinkLimits,
    pools: Pools,
    region: Option<RegionInfo>,
    bell: Arc<OwnedFd>,
    down: OnceLock<LinkDown>,
}

/// A new descriptor to sleep on.
pub(super) fn new_bell() -> Result<Arc<OwnedFd>, SetupError> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map(Arc::new)
        .map_err(|error| SetupError::Resource { what: "an event descriptor", source: error.into() })
}

impl SimLink {
    pub(super) fn new(
        net: SimNet,
        id: LinkId,
        limits: LinkLimits,
        pools: Pools,
        region: Option<RegionInfo>,
        bell: Arc<OwnedFd>,
    ) -> Self {
        Self { net, id, limits, pools, region, bell, down: OnceLock::new() }
    }

    /// Its name, for the faults of [`SimNet`].
    pub fn id(&self) -> LinkId {
        self.id
    }

    fn post(&mut self, op: Op, slot: Slot, tag: u64, range: RemoteRange, length: u32) -> Result<(), Refused> {
        assert!(self.pools.own(&slot), "a link uses the slots of its own pools");
        assert!(length <= slot.size(), "{length} bytes for a slot of {}", slot.size());
        let mut net = self.net.lock();
        let (zombie, endless) = (net.has(Defect::TakesWhenDead), net.has(Defect::ForgetsDepth));
        let Some(end) = net.ends.get(&self.id) else { return Err(Refused::Dead(slot)) };
        let busy = if op == Op::Recv { end.busy_receives } else { end.busy };
        if end.down.is_some() && !zombie {
            return Err(Refused::Dead(slot));
        }
        if busy >= end.limits.depth && !endless {
            return Err(Refused::Full(slot));
        }
        let tag = if net.has(Defect::ConfusesTags) { tag ^ 1 } else { tag };
        net.post(self.id, op, slot, tag, range, length);
        Ok(())
    }
}

/// No range, for operations that name none.
const NOWHERE: RemoteRange = RemoteRange { address: 0, key: 0, length: 0 };

impl Link for SimLink {
    fn kind(&self) -> FabricKind {
        FabricKind::Sim
    }

    fn limits(&self) -> LinkLimits {
        self.limits
    }

    fn pool(&self) -> &SlotPool {
        &self.pools.data
    }

    fn messages(&self) -> &SlotPool {
        &self.pools.messages
    }

    fn pool_region(&self) -> Option<RegionInfo> {
        self.region
    }

    fn read(&mut self, slot: Slot, from: RemoteRange, tag: u64) -> Result<(), Refused> {
        self.post(Op::Read, slot, tag, from, from.length)
    }

    fn write(&mut self, slot: Slot, to: RemoteRange, tag: u64) -> Result<(), Refused> {
        self.post(Op::Write, slot, tag, to, to.length)
    }

    fn send(&mut self, slot: Slot, length: u32, tag: u64) -> Result<(), Refused> {
        self.post(Op::Send, slot, tag, NOWHERE, length)
    }

    fn recv(&mut self, slot: Slot, tag: u64) -> Result<(), Refused> {
        self.post(Op::Recv, slot, tag, NOWHERE, 0)
    }

    fn submit(&mut self) {
        self.net.lock().submit(self.id);
    }

    fn poll(&mut self, done: &mut Vec<Completion>) -> bool {
        let mut net = self.net.lock();
        let (stopped, overfills) = (net.stopped.clone(), net.has(Defect::OverfillsVector));
        let ends_unsaid = net.has(Defect::EndsUnsaid);
        let Some(end) = net.ends.get_mut(&self.id) else { return false };
        if stopped.contains(&end.host) {
            return false;
        }
        let room = if overfills { usize::MAX } else { done.capacity() - done.len() };
        let before = done.len();
        for completion in end.done.drain(..room.min(end.done.len())) {
            match completion.op {
                Op::Recv => end.busy_receives -= 1,
                Op::Read | Op::Write | Op::Send => end.busy -= 1,
            }
            done.push(completion);
        }
        let news = end.done.is_empty() && std::mem::take(&mut end.news);
        news && !(ends_unsaid && end.down.is_some()) || done.len() > before
    }

    fn arm(&mut self) -> bool {
        let mut net = self.net.lock();
        let (misses, mute, rings) =
            (net.has(Defect::MissesArrivals), net.has(Defect::NeverRings), net.has(Defect::AlwaysRings));
        let Some(end) = net.ends.get_mut(&self.id) else { return false };
        if (end.news || !end.done.is_empty()) && !misses {
            return true;
        }
        if !rings {
            // Nothing to read is what is hoped for.
            let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        } else {
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
        end.armed = !mute;
        false
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    fn down(&self) -> Option<&LinkDown> {
        if self.down.get().is_none()
            && let Some(why) = self.net.lock().ends.get(&self.id).and_then(|end| end.down.clone())
        {
            // Set at most once: an end dies once.
            let _ = self.down.set(why);
        }
        self.down.get()
    }

    fn close(&mut self) {
        let mut net = self.net.lock();
        if net.ends.get(&self.id).is_some_and(|end| end.down.is_none()) {
            net.announce_death(self.id, LinkDown::ClosedByPeer);
            net.die(self.id, LinkDown::ClosedHere, None);
        }
    }
}

impl Drop for SimLink {
    fn drop(&mut self) {
        self.close();
        self.net.lock().forget(self.id);
    }
}
