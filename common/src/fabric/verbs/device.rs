//! Devices, by the address that reaches them: which of this machine's addresses belong to an RDMA device, and what
//! that device can do. Limits are asked for, never assumed; device names are for people only.

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ibverbs_sys as ffi;

use super::cm::{EventChannel, Id};

/// An RDMA device that an address of this machine belongs to.
///
/// librdmacm closes a device that no id uses, so this holds one bound id for as long as anything needs the device.
pub struct Device {
    anchor: Id,
    name: String,
    limits: Limits,
}

/// What a device can do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Work requests of one queue.
    pub(super) queue_depth: u32,
    /// Entries of one completion queue.
    pub(super) completions: u32,
    /// Reads that it answers at once, for each queue pair.
    pub(super) responder_reads: u8,
    /// Reads that it may have outstanding, for each queue pair.
    pub(super) initiator_reads: u8,
    /// Bytes of one region; often "no limit" although there is one.
    pub(super) region: u64,
}

impl Device {
    /// The device that `address` belongs to.
    ///
    /// # Errors
    /// Where it belongs to none, or the RDMA modules are not loaded.
    pub(super) fn at(address: IpAddr) -> io::Result<Arc<Self>> {
        let anchor = Id::new(&EventChannel::new()?)?;
        anchor.bind(SocketAddr::new(address, 0))?;
        let context = anchor.context();
        if context.is_null() {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                format!("{address} belongs to no RDMA device"),
            ));
        }
        let (name, limits) = (name_of(context), limits_of(context)?);
        Ok(Arc::new(Self { anchor, name, limits }))
    }

    /// Its name, for people: names change between kernels and boots.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn context(&self) -> *mut ffi::ibv_context {
        self.anchor.context()
    }

    pub(super) fn limits(&self) -> Limits {
        self.limits
    }
}

/// The name of an open device.
pub(super) fn name_of(context: *mut ffi::ibv_context) -> String {
    // SAFETY: an open context points to its device for life, whose name is a C string of the same life.
    unsafe { CStr::from_ptr(ffi::ibv_get_device_name((*context).device)) }.to_string_lossy().into_owned()
}

/// The limits of an open device.
pub(super) fn limits_of(context: *mut ffi::ibv_context) -> io::Result<Limits> {
    let mut attr = ffi::ibv_device_attr::default();
    // SAFETY: the context is open and the structure is of the size that this call fills.
    match unsafe { ffi::ibv_query_device(context, &raw mut attr) } {
        0 => Ok(Limits {
            queue_depth: positive(attr.max_qp_wr),
            completions: positive(attr.max_cqe),
            responder_reads: positive(attr.max_qp_rd_atom).min(255) as u8,
            initiator_reads: positive(attr.max_qp_init_rd_atom).min(255) as u8,
            region: attr.max_mr_size,
        }),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

fn positive(value: i32) -> u32 {
    u32::try_from(value).unwrap_or(0)
}

/// The addresses of this machine that belong to an RDMA device, each with the device's name. Empty without one.
pub fn addresses() -> Vec<(IpAddr, String)> {
    let mut addresses: Vec<IpAddr> = local_addresses().into_iter().map(|(address, _)| address).collect();
    addresses.sort_unstable();
    addresses.dedup();
    addresses
        .into_iter()
        .filter(|address| !address.is_loopback())
        .filter_map(|address| Device::at(address).ok().map(|device| (address, device.name.clone())))
        .collect()
}

/// The network interface of this machine that has `address`.
pub fn interface_of(address: IpAddr) -> Option<String> {
    local_addresses().into_iter().find(|(local, _)| *local == address).map(|(_, interface)| interface)
}

/// The names of this machine's RDMA devices, with or without an address. Empty where there is none.
pub fn names() -> Vec<String> {
    ibverbs::devices()
        .map(|list| {
            list.iter().filter_map(|device| Some(device.name()?.to_string_lossy().into_owned())).collect()
        })
        .unwrap_or_default()
}

/// How many bytes of data the packets of a port have at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packets {
    /// As the link is.
    pub active: u32,
    /// As the port could.
    pub greatest: u32,
}

/// How long the packets of a device's port are. `None` where it cannot be opened, or does not say.
pub fn packets(device: &str, port: u8) -> Option<Packets> {
    let mut count = 0;
    // SAFETY: the call stores how many devices the list has that it returns, or returns null.
    let list = unsafe { ffi::ibv_get_device_list(&raw mut count) };
    if list.is_null() {
        return None;
    }
    let count = usize::try_from(count).unwrap_or(0);
    // SAFETY: the list has that many devices, and lives until it is freed below.
    let devices = unsafe { std::slice::from_raw_parts(list, count) };
    let found = devices.iter().find(|&&found| {
        // SAFETY: a device of a list that lives, whose name is a C string of the same life.
        unsafe { CStr::from_ptr(ffi::ibv_get_device_name(found)) }.to_bytes() == device.as_bytes()
    });
    // SAFETY: as above; null where this user may not open it.
    let context = found.map_or(std::ptr::null_mut(), |&found| unsafe { ffi::ibv_open_device(found) });
    // SAFETY: freed once; an open device does not need the list.
    unsafe { ffi::ibv_free_device_list(list) };
    if context.is_null() {
        return None;
    }
    let mut attr = ffi::ibv_port_attr::default();
    // SAFETY: the context is open, and the call fills the beginning of the structure, which is as in older libraries.
    let status = unsafe { ffi::ibv_query_port(context, port, (&raw mut attr).cast()) };
    // SAFETY: opened above, used by nothing else, closed once.
    unsafe { ffi::ibv_close_device(context) };
    let bytes = |mtu: ffi::ibv_mtu| (1..=5).contains(&mtu).then(|| 128 << mtu);
    (status == 0).then_some(())?;
    Some(Packets { active: bytes(attr.active_mtu)?, greatest: bytes(attr.max_mtu)? })
}

/// The addresses of this machine, each with its network interface.
fn local_addresses() -> Vec<(IpAddr, String)> {
    let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: on success the call stores a list that is ours until freed.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return Vec::new();
    }
    let mut addresses = Vec::new();
    let mut next = list;
    // SAFETY: the list is linked by `ifa_next` up to null; an address, where present, is of the family it names.
    while let Some(entry) = unsafe { next.as_ref() } {
        // SAFETY: as above; every entry has a name, which is a C string.
        let (address, name) = unsafe { (ip_of(entry.ifa_addr), CStr::from_ptr(entry.ifa_name)) };
        addresses.extend(address.map(|address| (address, name.to_string_lossy().into_owned())));
        next = entry.ifa_next;
    }
    // SAFETY: freed once, after the last use.
    unsafe { libc::freeifaddrs(list) };
    addresses
}

/// The IP address behind a C socket address; `None` for other families and for link-local IPv6, which does not name
/// one interface.
///
/// # Safety
/// `address` is null or points to a socket address of the family that it names.
unsafe fn ip_of(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: the caller's promise.
    let family = i32::from(unsafe { address.as_ref() }?.sa_family);
    match family {
        libc::AF_INET => {
            // SAFETY: the family says so.
            let v4 = unsafe { &*address.cast::<libc::sockaddr_in>() };
            Some(IpAddr::V4(u32::from_be(v4.sin_addr.s_addr).into()))
        }
        libc::AF_INET6 => {
            // SAFETY: the family says so.
            let v6 = unsafe { &*address.cast::<libc::sockaddr_in6>() };
            let ip = std::net::Ipv6Addr::from(v6.sin6_addr.s6_addr);
            (!ip.is_unicast_link_local()).then_some(IpAddr::V6(ip))
        }
        _ => None,
    }
}
