//! Protection domains and registered memory, each released in the order that the card wants: regions, then domain,
//! then device.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use ibverbs_sys as ffi;

use super::cm::Id;
use super::device::{Device, Limits};
use crate::fabric::buffer::{HUGE_PAGE, Memory, Slot, SlotPool};
use crate::fabric::pools::Pools;
use crate::fabric::{Access, Domain, RegionInfo, SetupError};

/// Registering in pieces gives up below this many bytes a piece: the limit is another one then.
const SMALLEST_CHUNK: u64 = 256 << 20;

/// What keeps a device open.
pub(super) enum Keeper {
    Device(Arc<Device>),
    Id(Arc<Id>),
}

impl Keeper {
    pub(super) fn context(&self) -> *mut ffi::ibv_context {
        match self {
            Self::Device(device) => device.context(),
            Self::Id(id) => id.context(),
        }
    }
}

/// A protection domain.
pub(super) struct Pd {
    raw: NonNull<ffi::ibv_pd>,
    keeper: Keeper,
}

// SAFETY: needed because domains are made on the control plane and used by lanes. The verbs library locks.
unsafe impl Send for Pd {}
// SAFETY: as above: verbs calls are thread-safe by specification.
unsafe impl Sync for Pd {}

impl Pd {
    pub(super) fn new(keeper: Keeper) -> Result<Arc<Self>, SetupError> {
        // SAFETY: the keeper holds the context open.
        let raw = NonNull::new(unsafe { ffi::ibv_alloc_pd(keeper.context()) }).ok_or_else(|| {
            SetupError::Resource { what: "a protection domain", source: io::Error::last_os_error() }
        })?;
        Ok(Arc::new(Self { raw, keeper }))
    }

    pub(super) fn as_ptr(&self) -> *mut ffi::ibv_pd {
        self.raw.as_ptr()
    }

    pub(super) fn context(&self) -> *mut ffi::ibv_context {
        self.keeper.context()
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        // SAFETY: regions and queue pairs hold an `Arc` of their domain, so none is left.
        unsafe { ffi::ibv_dealloc_pd(self.raw.as_ptr()) };
    }
}

/// A registered stretch of memory.
pub(super) struct Mr {
    raw: NonNull<ffi::ibv_mr>,
    _pd: Arc<Pd>,
    _memory: Arc<Memory>,
}

// SAFETY: needed as for `Pd`; an MR is only a handle, and the verbs library locks.
unsafe impl Send for Mr {}
// SAFETY: as above.
unsafe impl Sync for Mr {}

impl Mr {
    pub(super) fn new(
        pd: &Arc<Pd>,
        memory: &Arc<Memory>,
        offset: u64,
        len: u64,
        access: Access,
    ) -> io::Result<Self> {
        let (local, read, write) = (
            ffi::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE,
            ffi::ibv_access_flags::IBV_ACCESS_REMOTE_READ,
            ffi::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE,
        );
        let flags = match access {
            Access::Local => local,
            Access::RemoteRead => read,
            Access::RemoteReadWrite => local | read | write,
        };
        let address = (memory.address() + offset) as *mut std::ffi::c_void;
        // SAFETY: needed to let the card at the memory. The range lies in the mapping (callers cut it from its
        // length), and the `Arc` keeps it mapped until the region is gone.
        let raw = unsafe { ffi::ibv_reg_mr(pd.as_ptr(), address, len as usize, flags.0 as i32) };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { raw, _pd: pd.clone(), _memory: memory.clone() })
    }

    pub(super) fn local_key(&self) -> u32 {
        // SAFETY: a live MR; its keys never change.
        unsafe { self.raw.as_ref() }.lkey
    }

    pub(super) fn info(&self) -> RegionInfo {
        // SAFETY: as in `local_key`.
        let mr = unsafe { self.raw.as_ref() };
        RegionInfo { address: mr.addr as u64, key: mr.rkey, length: mr.length as u64 }
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        // SAFETY: the queue pairs that used it are gone or in error: links drop theirs first, and a server drops a
        // domain after its lanes.
        unsafe { ffi::ibv_dereg_mr(self.raw.as_ptr()) };
    }
}

/// A lane's pools with their registrations.
pub(super) struct LaneMemory {
    // Deregistered before the pools are freed.
    data: Mr,
    messages: Mr,
    remote_access: bool,
    pub(super) pools: Pools,
}

impl LaneMemory {
    /// Registers `pools`: the data for `access`, the messages for this side alone.
    ///
    /// # Errors
    /// The device's; `ENOMEM` where more memory may not be locked.
    pub(super) fn register(pd: &Arc<Pd>, pools: Pools, access: Access) -> io::Result<Self> {
        let whole =
            |pool: &SlotPool, access| Mr::new(pd, pool.memory(), 0, pool.memory().len() as u64, access);
        Ok(Self {
            data: whole(&pools.data, access)?,
            messages: whole(&pools.messages, Access::Local)?,
            remote_access: access != Access::Local,
            pools,
        })
    }

    /// The key by which the card reaches `slot`.
    pub(super) fn local_key(&self, slot: &Slot) -> u32 {
        if self.pools.messages.owns(slot) { self.messages.local_key() } else { self.data.local_key() }
    }

    /// The data as the peer may address it.
    pub(super) fn remote(&self) -> Option<RegionInfo> {
        self.remote_access.then(|| self.data.info())
    }
}

/// The regions of one export in one access mode on one device.
pub struct VerbsDomain {
    regions: Vec<Mr>,
    pd: Arc<Pd>,
    device: Arc<Device>,
}

impl VerbsDomain {
    pub(super) fn new(device: &Arc<Device>) -> Result<Self, SetupError> {
        Ok(Self { regions: Vec::new(), pd: Pd::new(Keeper::Device(device.clone()))?, device: device.clone() })
    }

    pub(super) fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }
}

impl Domain for VerbsDomain {
    fn register(&mut self, memory: &Arc<Memory>, access: Access) -> Result<Vec<RegionInfo>, SetupError> {
        let total = memory.len() as u64;
        let mut chunk = first_chunk(total, self.device.limits());
        loop {
            match register_in_chunks(&self.pd, memory, access, chunk) {
                Ok(regions) => {
                    let infos = regions.iter().map(Mr::info).collect();
                    self.regions.extend(regions);
                    return Ok(infos);
                }
                Err((_, source)) if chunk / 2 >= SMALLEST_CHUNK => {
                    tracing::debug!(
                        "{}: no region of {chunk} bytes ({source}), trying smaller ones",
                        self.device.name()
                    );
                    chunk = (chunk / 2).next_multiple_of(HUGE_PAGE);
                }
                Err((done, source)) => {
                    let device = self.device.name().to_owned();
                    return Err(SetupError::Register { device, bytes: total, done, source });
                }
            }
        }
    }
}

/// The largest region to try: all of it where the device says that it can.
fn first_chunk(total: u64, limits: Limits) -> u64 {
    if limits.region == 0 || total <= limits.region {
        total
    } else {
        (limits.region / HUGE_PAGE).max(1) * HUGE_PAGE
    }
}

/// Registers everything in regions of `chunk` bytes, or gives all back and says how far it got.
fn register_in_chunks(
    pd: &Arc<Pd>,
    memory: &Arc<Memory>,
    access: Access,
    chunk: u64,
) -> Result<Vec<Mr>, (u64, io::Error)> {
    let total = memory.len() as u64;
    let mut regions = Vec::new();
    let mut done = 0;
    while done < total {
        let len = chunk.min(total - done);
        regions.push(Mr::new(pd, memory, done, len, access).map_err(|error| (done, error))?);
        done += len;
    }
    Ok(regions)
}
