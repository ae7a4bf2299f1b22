//! One queue pair with its completion queue and channel, made together and torn down in the order that the card
//! wants: queue pair, completion queue, channel.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use ibverbs_sys as ffi;

use super::cm::Id;
use super::device::Limits;
use super::memory::Pd;
use crate::fabric::{LinkConfig, SetupError};

/// Below this depth a queue pair is of no use; a device that cannot even do this fails.
const SMALLEST_DEPTH: u32 = 16;
/// Events are acknowledged in batches of this many, since each acknowledgement takes a lock.
const ACK_BATCH: u32 = 64;

/// The queues of one link.
pub(super) struct Queues {
    id: Arc<Id>,
    cq: NonNull<ffi::ibv_cq>,
    channel: NonNull<ffi::ibv_comp_channel>,
    depth: u32,
    recv_depth: u32,
    unacked: u32,
    _pd: Arc<Pd>,
}

// SAFETY: needed because a lane is built on one thread and run on another; all calls go through `&mut self` or to
// objects that the verbs library locks.
unsafe impl Send for Queues {}

/// One work request to post.
#[derive(Clone, Copy)]
pub(super) struct WorkRequest {
    pub(super) wr_id: u64,
    pub(super) opcode: ffi::ibv_wr_opcode::Type,
    pub(super) address: u64,
    pub(super) length: u32,
    pub(super) local_key: u32,
    pub(super) remote: (u64, u32),
}

impl Queues {
    /// Queues of `config`'s depth, or less where the device has not as much room.
    pub(super) fn new(
        id: &Arc<Id>,
        pd: &Arc<Pd>,
        config: &LinkConfig,
        limits: Limits,
    ) -> Result<Self, SetupError> {
        let recv_depth = config.slots.max(config.messages).clamp(1, limits.queue_depth.max(1));
        let depth = config.depth.clamp(1, limits.queue_depth.max(1));
        let channel = CompletionChannel::new(pd)?;
        let entries = (depth + recv_depth).min(limits.completions.max(2));
        // SAFETY: the context is open and the channel is of it.
        let cq = unsafe {
            ffi::ibv_create_cq(pd.context(), entries as i32, ptr::null_mut(), channel.0.as_ptr(), 0)
        };
        let cq = NonNull::new(cq).ok_or_else(|| last_error("a completion queue"))?;
        let channel = channel.into_raw();
        let mut queues = Self { id: id.clone(), cq, channel, depth, recv_depth, unacked: 0, _pd: pd.clone() };
        queues.create_qp(pd)?;
        Ok(queues)
    }

    /// Creates the queue pair, halving the send depth while the device has no room for it.
    fn create_qp(&mut self, pd: &Arc<Pd>) -> Result<(), SetupError> {
        loop {
            let mut attr = ffi::ibv_qp_init_attr {
                send_cq: self.cq.as_ptr(),
                recv_cq: self.cq.as_ptr(),
                cap: ffi::ibv_qp_cap {
                    max_send_wr: self.depth,
                    max_recv_wr: self.recv_depth,
                    max_send_sge: 1,
                    max_recv_sge: 1,
                    max_inline_data: 0,
                },
                qp_type: ffi::ibv_qp_type::IBV_QPT_RC,
                sq_sig_all: 1,
                ..ffi::ibv_qp_init_attr::default()
            };
            // SAFETY: domain and completion queue are of the id's device, and `self` keeps them past the queue pair.
            match unsafe { self.id.create_qp(pd.as_ptr(), &mut attr) } {
                Ok(()) => return Ok(()),
                Err(_) if self.depth / 2 >= SMALLEST_DEPTH => self.depth /= 2,
                Err(source) => return Err(SetupError::Resource { what: "a queue pair", source }),
            }
        }
    }

    pub(super) fn id(&self) -> &Arc<Id> {
        &self.id
    }

    pub(super) fn depth(&self) -> u32 {
        self.depth
    }

    pub(super) fn recv_depth(&self) -> u32 {
        self.recv_depth
    }

    /// Posts all of `requests` with one doorbell. Returns how many were taken; fewer means that the queue pair is
    /// broken, since callers never post more than the depth.
    pub(super) fn post(&mut self, requests: &[WorkRequest], chain: &mut Chain) -> usize {
        let Some(first) = chain.link(requests) else { return 0 };
        let mut bad: *mut ffi::ibv_send_wr = ptr::null_mut();
        // SAFETY: the context of a live queue pair has its operations set; the chain is valid for the call and the
        // buffers that it names are slots which the link holds until their completion.
        let result = unsafe {
            match (*(*self.id.qp()).context).ops.post_send {
                Some(post_send) => post_send(self.id.qp(), first, &raw mut bad),
                None => libc::ENOSYS,
            }
        };
        if result == 0 { requests.len() } else { chain.position(bad) }
    }

    /// Posts one receive.
    pub(super) fn post_recv(&mut self, request: &WorkRequest) -> bool {
        let mut sge = ffi::ibv_sge { addr: request.address, length: request.length, lkey: request.local_key };
        let mut wr = ffi::ibv_recv_wr {
            wr_id: request.wr_id,
            next: ptr::null_mut(),
            sg_list: &raw mut sge,
            num_sge: 1,
        };
        let mut bad: *mut ffi::ibv_recv_wr = ptr::null_mut();
        // SAFETY: as in `post`.
        unsafe {
            match (*(*self.id.qp()).context).ops.post_recv {
                Some(post_recv) => post_recv(self.id.qp(), &raw mut wr, &raw mut bad) == 0,
                None => false,
            }
        }
    }

    /// Takes finished work requests from the completion queue, as many as `into` holds.
    ///
    /// # Errors
    /// Where the completion queue itself is broken.
    pub(super) fn poll(&mut self, into: &mut [ffi::ibv_wc]) -> io::Result<usize> {
        // SAFETY: the completion queue is live; the call writes at most `into.len()` entries.
        let got = unsafe {
            match (*(*self.cq.as_ptr()).context).ops.poll_cq {
                Some(poll_cq) => poll_cq(self.cq.as_ptr(), into.len() as i32, into.as_mut_ptr()),
                None => -1,
            }
        };
        usize::try_from(got).map_err(|_| io::Error::other("the completion queue failed"))
    }

    /// Asks for an event at the next completion.
    pub(super) fn arm(&mut self) -> io::Result<()> {
        // SAFETY: the completion queue is live.
        let result = unsafe {
            match (*(*self.cq.as_ptr()).context).ops.req_notify_cq {
                Some(req_notify_cq) => req_notify_cq(self.cq.as_ptr(), 0),
                None => libc::ENOSYS,
            }
        };
        if result == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(result.abs())) }
    }

    /// Takes one completion event, if there is one.
    pub(super) fn take_event(&mut self) -> bool {
        let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel is live and non-blocking; both outputs are ours.
        let got = unsafe { ffi::ibv_get_cq_event(self.channel.as_ptr(), &raw mut cq, &raw mut context) } == 0;
        if got {
            self.unacked += 1;
            if self.unacked == ACK_BATCH {
                self.ack_events();
            }
        }
        got
    }

    fn ack_events(&mut self) {
        if self.unacked > 0 {
            // SAFETY: exactly as many events as were taken and not yet acknowledged.
            unsafe { ffi::ibv_ack_cq_events(self.cq.as_ptr(), self.unacked) };
            self.unacked = 0;
        }
    }

    /// The descriptor that is readable when a completion event waits.
    pub(super) fn channel_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel owns its descriptor for as long as it lives, which `self` bounds.
        unsafe { BorrowedFd::borrow_raw((*self.channel.as_ptr()).fd) }
    }

    /// Moves the queue pair to error: what is posted comes back flushed, and nothing of the peer's is served.
    pub(super) fn fail(&mut self) {
        let mut attr = ffi::ibv_qp_attr { qp_state: ffi::ibv_qp_state::IBV_QPS_ERR, ..Default::default() };
        // SAFETY: the queue pair is live; only the state field is looked at.
        unsafe {
            ffi::ibv_modify_qp(self.id.qp(), &raw mut attr, ffi::ibv_qp_attr_mask::IBV_QP_STATE.0 as i32)
        };
    }

    /// Ends the queue pair: when this returns, the card touches no memory for it any more.
    pub(super) fn destroy_qp(&mut self) {
        self.id.destroy_qp();
    }
}

impl Drop for Queues {
    fn drop(&mut self) {
        self.id.destroy_qp();
        self.ack_events();
        // SAFETY: the only queue pair on them is gone and all events are acknowledged; each is freed once.
        unsafe {
            ffi::ibv_destroy_cq(self.cq.as_ptr());
            ffi::ibv_destroy_comp_channel(self.channel.as_ptr());
        }
    }
}

/// A completion channel until [`Queues`] owns it.
struct CompletionChannel(NonNull<ffi::ibv_comp_channel>);

impl CompletionChannel {
    fn new(pd: &Pd) -> Result<Self, SetupError> {
        // SAFETY: the context is open.
        let raw = unsafe { ffi::ibv_create_comp_channel(pd.context()) };
        let channel = Self(NonNull::new(raw).ok_or_else(|| last_error("a completion channel"))?);
        // SAFETY: the channel owns its descriptor.
        let fd = unsafe { BorrowedFd::borrow_raw((*raw).fd) };
        rustix::io::ioctl_fionbio(fd.as_fd(), true)
            .map_err(|error| SetupError::Resource { what: "a completion channel", source: error.into() })?;
        Ok(channel)
    }

    fn into_raw(self) -> NonNull<ffi::ibv_comp_channel> {
        let raw = self.0;
        std::mem::forget(self);
        raw
    }
}

impl Drop for CompletionChannel {
    fn drop(&mut self) {
        // SAFETY: only reached while no completion queue uses it.
        unsafe { ffi::ibv_destroy_comp_channel(self.0.as_ptr()) };
    }
}

fn last_error(what: &'static str) -> SetupError {
    SetupError::Resource { what, source: io::Error::last_os_error() }
}

/// Room for the C structures of one batch of work requests, allocated once.
pub(super) struct Chain {
    requests: Vec<ffi::ibv_send_wr>,
    buffers: Vec<ffi::ibv_sge>,
}

// SAFETY: needed because the link that owns it moves to its lane's thread; its pointers only ever point into itself
// and are rebuilt for every batch.
unsafe impl Send for Chain {}

impl Chain {
    pub(super) fn new(depth: u32) -> Self {
        Self { requests: Vec::with_capacity(depth as usize), buffers: Vec::with_capacity(depth as usize) }
    }

    /// Builds the linked list that `ibv_post_send` takes. Never grows: a batch is no longer than the depth.
    fn link(&mut self, requests: &[WorkRequest]) -> Option<*mut ffi::ibv_send_wr> {
        debug_assert!(requests.len() <= self.requests.capacity());
        self.buffers.clear();
        self.requests.clear();
        for request in requests {
            self.buffers.push(ffi::ibv_sge {
                addr: request.address,
                length: request.length,
                lkey: request.local_key,
            });
            let mut wr = ffi::ibv_send_wr {
                wr_id: request.wr_id,
                num_sge: 1,
                opcode: request.opcode,
                ..ffi::ibv_send_wr::default()
            };
            (wr.wr.rdma.remote_addr, wr.wr.rdma.rkey) = request.remote;
            self.requests.push(wr);
        }
        // Pointers are set once both vectors are complete, so that none can be left dangling.
        for index in 0..self.requests.len() {
            let next = match self.requests.get_mut(index + 1) {
                Some(next) => &raw mut *next,
                None => ptr::null_mut(),
            };
            self.requests[index].next = next;
            self.requests[index].sg_list = &raw mut self.buffers[index];
        }
        self.requests.first_mut().map(|first| &raw mut *first)
    }

    /// Which request of the last batch `bad` is; 0 for none of them.
    fn position(&self, bad: *const ffi::ibv_send_wr) -> usize {
        self.requests.iter().position(|request| ptr::eq(request, bad)).unwrap_or(0)
    }
}
