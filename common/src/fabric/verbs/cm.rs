//! `librdmacm`: the dozen calls that find a device, path and queue-pair settings for an address, and the events that
//! tell how it went. No maintained crate binds them alone.
//!
//! [`Id`] and [`EventChannel`] own their C objects; every event is copied out and acknowledged at once, since an
//! unacknowledged one blocks `rdma_destroy_id` for ever.

use std::ffi::{c_int, c_void};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ibverbs_sys as ffi;
use rustix::event::{PollFd, PollFlags, poll};

#[repr(C)]
struct RawChannel {
    fd: c_int,
}

/// The head of `struct rdma_cm_id`; librdmacm allocates it, so the fields behind are of no interest here.
#[repr(C)]
pub(super) struct RawId {
    verbs: *mut ffi::ibv_context,
    channel: *mut RawChannel,
    context: *mut c_void,
    qp: *mut ffi::ibv_qp,
}

/// `struct rdma_conn_param`.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawConnParam {
    private_data: *const c_void,
    private_data_len: u8,
    responder_resources: u8,
    initiator_depth: u8,
    flow_control: u8,
    retry_count: u8,
    rnr_retry_count: u8,
    srq: u8,
    qp_num: u32,
}

/// The head of `struct rdma_cm_event`: the union behind starts with `conn` for every event read here.
#[repr(C)]
struct RawEvent {
    id: *mut RawId,
    listen_id: *mut RawId,
    event: c_int,
    status: c_int,
    conn: RawConnParam,
}

const RDMA_PS_TCP: c_int = 0x0106;
const RDMA_OPTION_ID: c_int = 0;
const RDMA_OPTION_ID_REUSEADDR: c_int = 1;

#[link(name = "rdmacm")]
unsafe extern "C" {
    fn rdma_create_event_channel() -> *mut RawChannel;
    fn rdma_destroy_event_channel(channel: *mut RawChannel);
    fn rdma_create_id(
        channel: *mut RawChannel,
        id: *mut *mut RawId,
        context: *mut c_void,
        ps: c_int,
    ) -> c_int;
    fn rdma_destroy_id(id: *mut RawId) -> c_int;
    fn rdma_bind_addr(id: *mut RawId, address: *mut libc::sockaddr) -> c_int;
    fn rdma_resolve_addr(
        id: *mut RawId,
        from: *mut libc::sockaddr,
        to: *mut libc::sockaddr,
        ms: c_int,
    ) -> c_int;
    fn rdma_resolve_route(id: *mut RawId, ms: c_int) -> c_int;
    fn rdma_create_qp(id: *mut RawId, pd: *mut ffi::ibv_pd, attr: *mut ffi::ibv_qp_init_attr) -> c_int;
    fn rdma_destroy_qp(id: *mut RawId);
    fn rdma_connect(id: *mut RawId, param: *mut RawConnParam) -> c_int;
    fn rdma_listen(id: *mut RawId, backlog: c_int) -> c_int;
    fn rdma_accept(id: *mut RawId, param: *mut RawConnParam) -> c_int;
    fn rdma_reject(id: *mut RawId, private_data: *const c_void, len: u8) -> c_int;
    fn rdma_disconnect(id: *mut RawId) -> c_int;
    fn rdma_migrate_id(id: *mut RawId, channel: *mut RawChannel) -> c_int;
    fn rdma_get_cm_event(channel: *mut RawChannel, event: *mut *mut RawEvent) -> c_int;
    fn rdma_ack_cm_event(event: *mut RawEvent) -> c_int;
    fn rdma_set_option(id: *mut RawId, level: c_int, name: c_int, value: *mut c_void, len: usize) -> c_int;
    fn rdma_get_src_port(id: *mut RawId) -> u16;
}

/// What connection management reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EventKind {
    AddressResolved,
    AddressError,
    RouteResolved,
    RouteError,
    ConnectRequest,
    ConnectError,
    Unreachable,
    Rejected,
    Established,
    Disconnected,
    DeviceRemoval,
    Other,
}

impl EventKind {
    fn from_raw(number: c_int) -> Self {
        match number {
            0 => Self::AddressResolved,
            1 => Self::AddressError,
            2 => Self::RouteResolved,
            3 => Self::RouteError,
            4 => Self::ConnectRequest,
            6 => Self::ConnectError,
            7 => Self::Unreachable,
            8 => Self::Rejected,
            9 => Self::Established,
            10 => Self::Disconnected,
            11 => Self::DeviceRemoval,
            _ => Self::Other,
        }
    }
}

/// One event, copied out of librdmacm.
pub(super) struct Event {
    pub(super) kind: EventKind,
    /// 0, a negative errno, or for a rejection the CM's own reason.
    pub(super) status: c_int,
    /// The new id of a connect request.
    pub(super) request: Option<Id>,
    /// Reads that the peer answers at once.
    pub(super) initiator_depth: u8,
    /// Reads that the peer wants to have outstanding.
    pub(super) responder_resources: u8,
    private_data: [u8; 256],
    private_len: u8,
}

impl Event {
    /// The peer's private data, zero-padded by the CM.
    pub(super) fn private_data(&self) -> &[u8] {
        &self.private_data[..usize::from(self.private_len)]
    }
}

/// Where the events of some ids arrive.
pub(super) struct EventChannel(NonNull<RawChannel>);

// SAFETY: needed because a lane is built on one thread and run on another. librdmacm locks its channels and ids.
unsafe impl Send for EventChannel {}
// SAFETY: as above: `rdma_get_cm_event` may be called from any thread.
unsafe impl Sync for EventChannel {}

impl EventChannel {
    /// A new channel that never blocks.
    pub(super) fn new() -> io::Result<Arc<Self>> {
        // SAFETY: no arguments; null means failure with errno set.
        let raw =
            NonNull::new(unsafe { rdma_create_event_channel() }).ok_or_else(io::Error::last_os_error)?;
        let channel = Self(raw);
        rustix::io::ioctl_fionbio(channel.as_fd(), true)?;
        Ok(Arc::new(channel))
    }

    /// The next event, or `None` while there is none.
    pub(super) fn next(self: &Arc<Self>) -> io::Result<Option<Event>> {
        let mut raw: *mut RawEvent = ptr::null_mut();
        // SAFETY: the channel lives as long as `self`; on success librdmacm stores a valid event.
        if unsafe { rdma_get_cm_event(self.0.as_ptr(), &raw mut raw) } != 0 {
            return match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
                error => Err(error),
            };
        }
        // SAFETY: valid until acknowledged, which happens below after everything was copied.
        let event = self.copy(unsafe { &*raw });
        // SAFETY: an event that was got and not yet acknowledged.
        unsafe { rdma_ack_cm_event(raw) };
        Ok(Some(event))
    }

    fn copy(self: &Arc<Self>, raw: &RawEvent) -> Event {
        let kind = EventKind::from_raw(raw.event);
        let has_data =
            matches!(kind, EventKind::ConnectRequest | EventKind::Established | EventKind::Rejected);
        let mut private_data = [0; 256];
        let private_len =
            if has_data && !raw.conn.private_data.is_null() { raw.conn.private_data_len } else { 0 };
        if private_len > 0 {
            // SAFETY: librdmacm keeps this many bytes at the address until the event is acknowledged.
            let data =
                unsafe { std::slice::from_raw_parts(raw.conn.private_data.cast::<u8>(), private_len.into()) };
            private_data[..data.len()].copy_from_slice(data);
        }
        let request = (kind == EventKind::ConnectRequest)
            .then(|| NonNull::new(raw.id).map(|id| Id { raw: id, channel: self.clone() }))
            .flatten();
        let (initiator_depth, responder_resources) = (raw.conn.initiator_depth, raw.conn.responder_resources);
        Event {
            kind,
            status: raw.status,
            request,
            initiator_depth,
            responder_resources,
            private_data,
            private_len,
        }
    }

    /// The next event, waiting for it until `deadline`.
    pub(super) fn next_before(self: &Arc<Self>, deadline: Instant) -> io::Result<Option<Event>> {
        loop {
            if let Some(event) = self.next()? {
                return Ok(Some(event));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            wait_readable(self.as_fd(), left)?;
        }
    }
}

/// Sleeps until `fd` is readable or `patience` is over.
pub(super) fn wait_readable(fd: BorrowedFd<'_>, patience: Duration) -> io::Result<()> {
    let timeout = patience.try_into().map_err(|_| io::ErrorKind::InvalidInput)?;
    match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel owns this descriptor for as long as it lives.
        unsafe { BorrowedFd::borrow_raw((*self.0.as_ptr()).fd) }
    }
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        // SAFETY: every id holds an `Arc` of its channel, so no id is left on it.
        unsafe { rdma_destroy_event_channel(self.0.as_ptr()) }
    }
}

/// What both sides of a connection state about themselves.
#[derive(Clone, Copy)]
pub(super) struct ConnParam<'a> {
    pub(super) private_data: &'a [u8],
    /// Reads of the peer that we answer at once.
    pub(super) responder_resources: u8,
    /// Reads of ours that may be outstanding.
    pub(super) initiator_depth: u8,
}

impl ConnParam<'_> {
    fn raw(&self) -> RawConnParam {
        RawConnParam {
            private_data: self.private_data.as_ptr().cast(),
            private_data_len: self.private_data.len() as u8,
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            flow_control: 0,
            // The most that the three bits hold: 7 transport retries, and for ever where the peer has posted no
            // receive yet (a send waits, it does not fail).
            retry_count: 7,
            rnr_retry_count: 7,
            srq: 0,
            qp_num: 0,
        }
    }
}

/// A `rdma_cm_id`: one end of a connection, or a listener.
pub(super) struct Id {
    raw: NonNull<RawId>,
    channel: Arc<EventChannel>,
}

// SAFETY: needed because a lane is built on one thread and run on another. librdmacm locks ids itself.
unsafe impl Send for Id {}
// SAFETY: as above.
unsafe impl Sync for Id {}

impl Id {
    /// A new id whose events arrive on `channel`.
    pub(super) fn new(channel: &Arc<EventChannel>) -> io::Result<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: the channel outlives the id, which holds its `Arc`.
        check(unsafe { rdma_create_id(channel.0.as_ptr(), &raw mut raw, ptr::null_mut(), RDMA_PS_TCP) })?;
        let raw = NonNull::new(raw).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { raw, channel: channel.clone() })
    }

    pub(super) fn channel(&self) -> &Arc<EventChannel> {
        &self.channel
    }

    /// The device that the id is bound to; null before it is.
    pub(super) fn context(&self) -> *mut ffi::ibv_context {
        // SAFETY: the id is live; librdmacm writes the field only inside calls made on this id.
        unsafe { (*self.raw.as_ptr()).verbs }
    }

    /// Its queue pair; null before [`Self::create_qp`].
    pub(super) fn qp(&self) -> *mut ffi::ibv_qp {
        // SAFETY: as in `context`.
        unsafe { (*self.raw.as_ptr()).qp }
    }

    pub(super) fn bind(&self, address: SocketAddr) -> io::Result<()> {
        let mut address = SockAddr::new(address);
        // SAFETY: the id is live and the address is valid for the call.
        check(unsafe { rdma_bind_addr(self.raw.as_ptr(), address.as_mut_ptr()) })
    }

    /// Lets a restarted server listen at once where its last life's connections linger.
    pub(super) fn reuse_address(&self) -> io::Result<()> {
        let mut on: c_int = 1;
        let value = (&raw mut on).cast();
        // SAFETY: the option takes an int, which is what is passed, with its size.
        check(unsafe {
            rdma_set_option(
                self.raw.as_ptr(),
                RDMA_OPTION_ID,
                RDMA_OPTION_ID_REUSEADDR,
                value,
                size_of::<c_int>(),
            )
        })
    }

    pub(super) fn listen(&self, backlog: i32) -> io::Result<()> {
        // SAFETY: the id is live and bound.
        check(unsafe { rdma_listen(self.raw.as_ptr(), backlog) })
    }

    /// The port that it is bound to.
    pub(super) fn port(&self) -> u16 {
        // SAFETY: the id is live; the value comes in network order.
        u16::from_be(unsafe { rdma_get_src_port(self.raw.as_ptr()) })
    }

    pub(super) fn resolve_address(&self, to: SocketAddr, patience: Duration) -> io::Result<()> {
        let mut to = SockAddr::new(to);
        // SAFETY: the id is live; null lets routing pick the source.
        check(unsafe {
            rdma_resolve_addr(self.raw.as_ptr(), ptr::null_mut(), to.as_mut_ptr(), millis(patience))
        })
    }

    pub(super) fn resolve_route(&self, patience: Duration) -> io::Result<()> {
        // SAFETY: the id is live and its address is resolved.
        check(unsafe { rdma_resolve_route(self.raw.as_ptr(), millis(patience)) })
    }

    /// Makes the id's queue pair. `attr` gets back what the device really allocated.
    ///
    /// # Safety
    /// `pd` and the queues in `attr` must be of the id's device and must outlive the queue pair.
    pub(super) unsafe fn create_qp(
        &self,
        pd: *mut ffi::ibv_pd,
        attr: &mut ffi::ibv_qp_init_attr,
    ) -> io::Result<()> {
        // SAFETY: the id is live and bound; the rest is the caller's promise.
        check(unsafe { rdma_create_qp(self.raw.as_ptr(), pd, attr) })
    }

    /// Ends the queue pair: when this returns, the card touches no memory for it any more.
    pub(super) fn destroy_qp(&self) {
        if !self.qp().is_null() {
            // SAFETY: the id is live and has a queue pair.
            unsafe { rdma_destroy_qp(self.raw.as_ptr()) }
        }
    }

    pub(super) fn connect(&self, param: ConnParam<'_>) -> io::Result<()> {
        // SAFETY: the id is live, its route is resolved, and the private data is valid for the call.
        check(unsafe { rdma_connect(self.raw.as_ptr(), &mut param.raw()) })
    }

    pub(super) fn accept(&self, param: ConnParam<'_>) -> io::Result<()> {
        // SAFETY: the id came with a connect request; the private data is valid for the call.
        check(unsafe { rdma_accept(self.raw.as_ptr(), &mut param.raw()) })
    }

    pub(super) fn reject(&self, private_data: &[u8]) {
        // SAFETY: the id came with a connect request. A peer that is gone makes this fail, which is as good.
        unsafe { rdma_reject(self.raw.as_ptr(), private_data.as_ptr().cast(), private_data.len() as u8) };
    }

    /// Moves the queue pair to error and tells the peer.
    pub(super) fn disconnect(&self) {
        // SAFETY: the id is live. An already broken connection makes this fail, which is as good.
        unsafe { rdma_disconnect(self.raw.as_ptr()) };
    }

    /// Lets the id's events arrive on `channel` from now on.
    pub(super) fn migrate(&mut self, channel: &Arc<EventChannel>) -> io::Result<()> {
        // SAFETY: both are live; the id keeps the new channel alive from here.
        check(unsafe { rdma_migrate_id(self.raw.as_ptr(), channel.0.as_ptr()) })?;
        self.channel = channel.clone();
        Ok(())
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        self.destroy_qp();
        // SAFETY: the last use of the id; its events were all acknowledged when they were copied.
        unsafe { rdma_destroy_id(self.raw.as_ptr()) };
    }
}

fn check(result: c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn millis(patience: Duration) -> c_int {
    c_int::try_from(patience.as_millis()).unwrap_or(c_int::MAX).max(1)
}

/// A socket address in C's shape.
#[repr(C)]
union SockAddr {
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

impl SockAddr {
    fn new(address: SocketAddr) -> Self {
        let port = address.port().to_be();
        match address.ip() {
            IpAddr::V4(ip) => Self {
                v4: libc::sockaddr_in {
                    sin_family: libc::AF_INET as u16,
                    sin_port: port,
                    sin_addr: libc::in_addr { s_addr: u32::from(ip).to_be() },
                    sin_zero: [0; 8],
                },
            },
            IpAddr::V6(ip) => Self {
                v6: libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as u16,
                    sin6_port: port,
                    sin6_flowinfo: 0,
                    sin6_addr: libc::in6_addr { s6_addr: ip.octets() },
                    sin6_scope_id: if let SocketAddr::V6(v6) = address { v6.scope_id() } else { 0 },
                },
            },
        }
    }

    fn as_mut_ptr(&mut self) -> *mut libc::sockaddr {
        (&raw mut *self).cast()
    }
}

impl AsRawFd for EventChannel {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.as_fd().as_raw_fd()
    }
}
