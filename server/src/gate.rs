//! How an export is reached over one fabric: a protection domain for readers and one for writers, each with the
//! export's memory registered once. A reader's domain has no key that could write.

use std::sync::{Arc, Mutex, PoisonError};

use kaeru_common::fabric::{Access, Domain, Fabric, RegionInfo, SetupError};

use crate::store::{Piece, Store};

/// One access mode of a gate.
pub struct Opening<F: Fabric> {
    /// What a lane is accepted into.
    pub domain: F::Domain,
    /// What its peer is told.
    pub regions: Vec<RegionInfo>,
}

/// One fabric's way to one export.
pub struct Gate<F: Fabric> {
    fabric: F,
    store: Arc<Store>,
    /// For readers, then for writers; made when first needed, since each registration counts against the limits.
    openings: [Mutex<Option<Arc<Opening<F>>>>; 2],
}

impl<F: Fabric> Gate<F> {
    /// A gate to `store` over `fabric`; nothing is registered yet.
    pub fn new(fabric: F, store: Arc<Store>) -> Self {
        Self { fabric, store, openings: [Mutex::new(None), Mutex::new(None)] }
    }

    /// The fabric.
    pub fn fabric(&self) -> &F {
        &self.fabric
    }

    /// The way in for a writer or a reader. Registers the memory the first time, which may take a while.
    ///
    /// # Errors
    /// Where the device cannot register it.
    pub fn open(&self, write: bool) -> Result<Arc<Opening<F>>, SetupError> {
        if let Store::Staged(_) = *self.store {
            // Each lane in a domain of its own: its slots are registered there, and no other lane is to reach them.
            return Ok(Arc::new(Opening { domain: self.fabric.domain()?, regions: Vec::new() }));
        }
        let mut slot = self.openings[usize::from(write)].lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(opening) = &*slot {
            return Ok(opening.clone());
        }
        let mut domain = self.fabric.domain()?;
        let mut regions = Vec::new();
        for Piece { memory, writable } in self.store.memory(write) {
            let access = if write && writable { Access::RemoteReadWrite } else { Access::RemoteRead };
            regions.extend(domain.register(&memory, access)?);
        }
        Ok(slot.insert(Arc::new(Opening { domain, regions })).clone())
    }
}
