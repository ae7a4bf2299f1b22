//! What a peer may touch: the regions of a domain, and each link's own table of them.
//!
//! A link looks keys up in a table of its own, which takes neither lock nor allocation and shares no cache line with
//! other links. Only a key that the table lacks, which is a new region or the end of the link, makes it look at the
//! domain again; so a region registered after the link was accepted is reachable, as on a card.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use super::super::buffer::Memory;
use super::super::{Access, Domain, RegionInfo, SetupError};

/// Where the addresses of every region start. Not the mapping's own: a peer has no use for our address space.
const REGION_BASE: u64 = 1 << 32;

/// One region as its owner keeps it.
#[derive(Clone, Debug)]
pub(super) struct Region {
    key: u32,
    access: Access,
    memory: Arc<Memory>,
}

impl Region {
    /// A region of all of `memory` under a key that is none of `others`.
    pub(super) fn new(memory: &Arc<Memory>, access: Access, others: &[Region]) -> io::Result<Self> {
        loop {
            let key = getrandom::u32().map_err(io::Error::other)?;
            if others.iter().all(|other| other.key != key) {
                return Ok(Self { key, access, memory: Arc::clone(memory) });
            }
        }
    }

    /// As a peer addresses it.
    pub(super) fn info(&self) -> RegionInfo {
        RegionInfo { address: REGION_BASE, key: self.key, length: self.memory.len() as u64 }
    }
}

/// A protection domain: the regions of one export in one access mode.
#[derive(Debug, Default)]
pub struct TcpDomain {
    /// Regions are only ever added, so a link that knows the first so many need not look at them again.
    regions: Arc<Mutex<Vec<Region>>>,
}

impl Domain for TcpDomain {
    fn register(&mut self, memory: &Arc<Memory>, access: Access) -> Result<Vec<RegionInfo>, SetupError> {
        let mut regions = self.regions.lock().unwrap_or_else(PoisonError::into_inner);
        let region = Region::new(memory, access, &regions)
            .map_err(|source| SetupError::Resource { what: "a region key", source })?;
        let info = region.info();
        regions.push(region);
        Ok(vec![info])
    }
}

/// A stretch of a region that was checked: whoever holds one may touch it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    region: usize,
    offset: usize,
    pub(super) length: u32,
}

/// A link's table of what its peer may touch.
#[derive(Debug)]
pub(super) struct Regions {
    known: Vec<Region>,
    domain: Arc<Mutex<Vec<Region>>>,
    /// How many of the domain's regions are among the known ones.
    seen: usize,
}

impl Regions {
    /// An empty table: that of a connecting side, which lends at most its pool.
    pub(super) fn of_nobody() -> Self {
        Self::of(&TcpDomain::default())
    }

    /// What `domain` holds.
    pub(super) fn of(domain: &TcpDomain) -> Self {
        let mut regions = Self { known: Vec::new(), domain: Arc::clone(&domain.regions), seen: 0 };
        regions.refresh();
        regions
    }

    /// Adds memory of this link alone: its pool.
    pub(super) fn lend(&mut self, memory: &Arc<Memory>, access: Access) -> io::Result<RegionInfo> {
        let region = Region::new(memory, access, &self.known)?;
        let info = region.info();
        self.known.push(region);
        Ok(info)
    }

    /// `length` bytes from `address` under `key`, if they are there and `writing` is allowed or not asked for.
    pub(super) fn check(&mut self, address: u64, key: u32, length: u32, writing: bool) -> Option<Target> {
        let index = self.find(key).or_else(|| {
            self.refresh();
            self.find(key)
        })?;
        let region = &self.known[index];
        let allowed = match region.access {
            Access::Local => false,
            Access::RemoteRead => !writing,
            Access::RemoteReadWrite => true,
        };
        let offset = address.checked_sub(REGION_BASE)?;
        let end = offset.checked_add(u64::from(length))?;
        (allowed && end <= region.memory.len() as u64).then_some(Target {
            region: index,
            offset: usize::try_from(offset).ok()?,
            length,
        })
    }

    /// The memory under `target`, and where it starts there.
    pub(super) fn resolve(&self, target: &Target) -> (&Memory, usize) {
        (&self.known[target.region].memory, target.offset)
    }

    fn find(&self, key: u32) -> Option<usize> {
        self.known.iter().position(|region| region.key == key)
    }

    fn refresh(&mut self) {
        let all = self.domain.lock().unwrap_or_else(PoisonError::into_inner);
        self.known.extend_from_slice(&all[self.seen..]);
        self.seen = all.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(len: usize) -> Arc<Memory> {
        Arc::new(Memory::anonymous(len).unwrap())
    }

    #[test]
    fn bounds_key_and_right_are_all_checked() {
        let mut domain = TcpDomain::default();
        let info = domain.register(&memory(10_000), Access::RemoteReadWrite).unwrap()[0];
        let mut regions = Regions::of(&domain);
        let mut check = |address, key, length| regions.check(address, key, length, true).is_some();
        assert!(check(info.address, info.key, 10_000));
        assert!(check(info.address + 9_999, info.key, 1));
        assert!(!check(info.address, info.key, 10_001));
        assert!(!check(info.address + 1, info.key, 10_000));
        assert!(!check(info.address - 1, info.key, 1));
        assert!(!check(info.address + 10_000, info.key, 1));
        assert!(!check(u64::MAX, info.key, 1));
        assert!(!check(u64::MAX - 10, info.key, u32::MAX));
        assert!(!check(0, info.key, 1));
        assert!(!check(info.address, info.key ^ 1, 1));
    }

    #[test]
    fn a_right_is_not_more_than_was_given() {
        let mut domain = TcpDomain::default();
        let local = domain.register(&memory(1), Access::Local).unwrap()[0];
        let readable = domain.register(&memory(1), Access::RemoteRead).unwrap()[0];
        let mut regions = Regions::of(&domain);
        assert!(regions.check(local.address, local.key, 1, false).is_none());
        assert!(regions.check(local.address, local.key, 1, true).is_none());
        assert!(regions.check(readable.address, readable.key, 1, false).is_some());
        assert!(regions.check(readable.address, readable.key, 1, true).is_none());
    }

    #[test]
    fn a_region_registered_later_is_found_and_other_targets_stay() {
        let mut domain = TcpDomain::default();
        let first = domain.register(&memory(1), Access::RemoteRead).unwrap()[0];
        let mut regions = Regions::of(&domain);
        let pool = regions.lend(&memory(2), Access::RemoteReadWrite).unwrap();
        let target = regions.check(pool.address, pool.key, 2, true).unwrap();
        let later = domain.register(&memory(3), Access::RemoteRead).unwrap()[0];
        assert!(regions.check(later.address, later.key, 3, false).is_some());
        assert!(regions.check(first.address, first.key, 1, false).is_some());
        assert_eq!(regions.resolve(&target).0.len(), 2);
    }
}
