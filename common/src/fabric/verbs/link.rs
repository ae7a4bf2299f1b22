//! A lane's link on verbs: one RC queue pair, its completion queue, and the slots that the card owns meanwhile.
//!
//! ```text
//!   read ──▶ waiting (beyond the read window) ─┐
//!   read, write, send ─────────────────────────┴▶ staged ──submit, one doorbell──▶ posted ──poll──▶ Completion
//! ```
//! Dispatch is on our own work-request id, never on the opcode that the provider reports: an id is the index of an
//! entry in `flights`.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use ibverbs_sys as ffi;
use ibverbs_sys::ibv_wc_status as wc;
use ibverbs_sys::ibv_wr_opcode as opcode;
use rustix::event::epoll;

use super::cm::{EventKind, wait_readable};
use super::memory::LaneMemory;
use super::queues::{Chain, Queues, WorkRequest};
use crate::fabric::buffer::{Slot, SlotPool};
use crate::fabric::{
    Completion, FabricKind, Link, LinkDown, LinkLimits, Op, OpError, Refused, RegionInfo, RemoteRange,
    SetupError,
};

/// How long a link that is dropped waits for the card to give back what is posted. The queue pair is destroyed
/// afterwards in any case, which ends all access.
const DRAIN: Duration = Duration::from_secs(2);
/// Completions taken from the card at once.
const POLL_BATCH: usize = 32;
/// After this many polls in a row that found nothing, one asks connection management whether the peer hung up: whoever
/// polls without ever sleeping has to hear of it too, and asking is a system call.
const QUIET_POLLS: u32 = 1024;

/// An operation between the call that took it and its completion.
struct Flight {
    slot: Slot,
    tag: u64,
    op: Op,
    length: u32,
    /// Whether the card has it. If not, nothing will come back from the completion queue.
    posted: bool,
}

/// A link over verbs.
pub struct VerbsLink {
    // Dropped in this order: the queue pair must be gone before slots and registration are.
    queues: Queues,
    flights: Vec<Option<Flight>>,
    free: Vec<u32>,
    staged: Vec<WorkRequest>,
    chain: Chain,
    waiting_reads: VecDeque<WorkRequest>,
    sends_in_flight: u32,
    receives_in_flight: u32,
    reads_on_wire: u32,
    limits: LinkLimits,
    down: Option<LinkDown>,
    /// Whether a completion event is asked for and has not been taken yet.
    armed: bool,
    /// Whether the wait point was readable.
    woken: bool,
    /// Polls in a row that found nothing.
    quiet_polls: u32,
    /// A completion that `arm` came across.
    stash: Option<ffi::ibv_wc>,
    wait: OwnedFd,
    memory: LaneMemory,
}

/// What a link is made of.
pub(super) struct Parts {
    pub(super) queues: Queues,
    pub(super) memory: LaneMemory,
    /// Reads that may be on the wire at once.
    pub(super) reads: u8,
}

impl VerbsLink {
    pub(super) fn new(parts: Parts) -> Result<Self, SetupError> {
        let Parts { queues, memory, reads } = parts;
        let wait = wait_point(&queues)
            .map_err(|error| SetupError::Resource { what: "a wait point", source: error.into() })?;
        let depth = queues.depth();
        let entries = depth + queues.recv_depth();
        Ok(Self {
            flights: (0..entries).map(|_| None).collect(),
            free: (0..entries).rev().collect(),
            staged: Vec::with_capacity(depth as usize),
            chain: Chain::new(depth),
            waiting_reads: VecDeque::with_capacity(depth as usize),
            sends_in_flight: 0,
            receives_in_flight: 0,
            reads_on_wire: 0,
            limits: LinkLimits { depth, reads: u32::from(reads.max(1)) },
            down: None,
            armed: false,
            woken: false,
            quiet_polls: 0,
            stash: None,
            wait,
            queues,
            memory,
        })
    }

    /// Takes a one-sided or send operation, or says why not.
    fn take(&mut self, slot: Slot, op: Op, length: u32, remote: (u64, u32), tag: u64) -> Result<(), Refused> {
        assert!(length <= slot.size(), "{length} bytes of a slot of {}", slot.size());
        debug_assert!(self.memory.pools.own(&slot), "a slot of another link's pool");
        if self.down.is_some() {
            return Err(Refused::Dead(slot));
        }
        if self.sends_in_flight == self.limits.depth {
            return Err(Refused::Full(slot));
        }
        self.sends_in_flight += 1;
        let request = self.enter(slot, op, length, remote, tag);
        if op == Op::Read && (self.reads_on_wire == self.limits.reads || !self.waiting_reads.is_empty()) {
            self.waiting_reads.push_back(request);
        } else {
            self.stage(request, op);
        }
        Ok(())
    }

    fn enter(&mut self, slot: Slot, op: Op, length: u32, remote: (u64, u32), tag: u64) -> WorkRequest {
        let index =
            self.free.pop().unwrap_or_else(|| unreachable!("as many entries as both queues together"));
        let request = WorkRequest {
            wr_id: u64::from(index),
            opcode: match op {
                Op::Read => opcode::IBV_WR_RDMA_READ,
                Op::Write => opcode::IBV_WR_RDMA_WRITE,
                Op::Send | Op::Recv => opcode::IBV_WR_SEND,
            },
            address: slot.address(),
            length,
            local_key: self.memory.local_key(&slot),
            remote,
        };
        self.flights[index as usize] = Some(Flight { slot, tag, op, length, posted: false });
        request
    }

    fn stage(&mut self, request: WorkRequest, op: Op) {
        self.reads_on_wire += u32::from(op == Op::Read);
        self.staged.push(request);
    }

    /// Ends the link. The peer is told in any case: a queue pair that broke while it only served has nothing posted that
    /// would come back to say so.
    fn set_down(&mut self, why: LinkDown) {
        if self.down.is_none() {
            tracing::debug!("verbs link down: {why}");
            self.down = Some(why);
            self.queues.fail();
            self.queues.id().disconnect();
        }
    }

    /// Turns one entry of the completion queue into a completion of ours.
    fn finish(&mut self, entry: &ffi::ibv_wc, done: &mut Vec<Completion>) {
        let index = entry.wr_id();
        let status = entry.error().map_or(wc::IBV_WC_SUCCESS, |(status, _)| status);
        let Some(flight) = self.flights.get_mut(index as usize).and_then(Option::take) else {
            return self.set_down(LinkDown::Failed(format!(
                "a completion for work request {index}, which is not posted"
            )));
        };
        let result = match status {
            wc::IBV_WC_SUCCESS if flight.op == Op::Recv => Ok(entry.len() as u32),
            wc::IBV_WC_SUCCESS => Ok(flight.length),
            wc::IBV_WC_REM_ACCESS_ERR => Err(OpError::Access),
            // Soft-RoCE calls the same thing a local operation error; our receives are well-formed, so it is nothing else.
            wc::IBV_WC_LOC_LEN_ERR | wc::IBV_WC_LOC_QP_OP_ERR if flight.op == Op::Recv => {
                Err(OpError::TooLong)
            }
            _ => Err(OpError::LinkDead),
        };
        if status != wc::IBV_WC_SUCCESS {
            self.set_down(match result {
                Err(error @ (OpError::Access | OpError::TooLong)) => LinkDown::Refused(error),
                _ => LinkDown::Failed(status_text(status)),
            });
        }
        self.leave(index as u32, flight, result, done);
    }

    fn leave(
        &mut self,
        index: u32,
        flight: Flight,
        result: Result<u32, OpError>,
        done: &mut Vec<Completion>,
    ) {
        self.free.push(index);
        match flight.op {
            Op::Recv => self.receives_in_flight -= 1,
            _ => self.sends_in_flight -= 1,
        }
        if flight.op == Op::Read && flight.posted {
            self.reads_on_wire -= 1;
        }
        done.push(Completion { tag: flight.tag, op: flight.op, slot: flight.slot, result });
    }

    /// Moves reads from the software queue to the wire while the window has room.
    fn release_reads(&mut self) {
        while self.reads_on_wire < self.limits.reads
            && let Some(request) = self.waiting_reads.pop_front()
        {
            self.stage(request, Op::Read);
        }
    }

    /// Completes what a dead link had taken and the card never saw.
    fn fail_unposted(&mut self, done: &mut Vec<Completion>) {
        self.staged.clear();
        self.waiting_reads.clear();
        for index in 0..self.flights.len() {
            if done.len() == done.capacity() {
                return;
            }
            if self.flights[index].as_ref().is_some_and(|flight| !flight.posted)
                && let Some(flight) = self.flights[index].take()
            {
                self.leave(index as u32, flight, Err(OpError::LinkDead), done);
            }
        }
    }

    /// Takes the completion event that was asked for, if that is what woke us.
    fn take_event(&mut self) -> bool {
        let taken = self.queues.take_event();
        self.armed &= !taken;
        taken
    }

    /// Looks at what connection management has to say, after a wake-up that no completion explains.
    fn hear_events(&mut self) {
        loop {
            let why = match self.queues.id().channel().clone().next() {
                Ok(None) => return,
                Ok(Some(event)) => match event.kind {
                    EventKind::Disconnected => LinkDown::ClosedByPeer,
                    EventKind::DeviceRemoval => LinkDown::Failed("the RDMA device was removed".into()),
                    _ => continue,
                },
                // It may well fail the next time, too.
                Err(error) => return self.set_down(LinkDown::Failed(error.to_string())),
            };
            self.set_down(why);
        }
    }

    /// Counts a poll, and hears events when many of them found nothing.
    fn count_poll(&mut self, found: bool) {
        self.quiet_polls = if found { 0 } else { self.quiet_polls + 1 };
        if self.quiet_polls == QUIET_POLLS {
            self.quiet_polls = 0;
            self.hear_events();
        }
    }

    fn in_flight(&self) -> u32 {
        self.sends_in_flight + self.receives_in_flight
    }
}

/// One descriptor that is readable when a completion or a connection event waits.
fn wait_point(queues: &Queues) -> rustix::io::Result<OwnedFd> {
    let wait = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for fd in [queues.channel_fd(), queues.id().channel().as_fd()] {
        epoll::add(&wait, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
    }
    Ok(wait)
}

fn status_text(status: wc::Type) -> String {
    // SAFETY: takes any number and returns a static C string.
    let text = unsafe { std::ffi::CStr::from_ptr(ffi::ibv_wc_status_str(status)) };
    text.to_string_lossy().into_owned()
}

/// An empty completion-queue entry to be filled by the card's driver.
fn blank() -> ffi::ibv_wc {
    ffi::ibv_wc::default()
}

impl Link for VerbsLink {
    fn kind(&self) -> FabricKind {
        FabricKind::Verbs
    }

    fn limits(&self) -> LinkLimits {
        self.limits
    }

    fn pool(&self) -> &SlotPool {
        &self.memory.pools.data
    }

    fn messages(&self) -> &SlotPool {
        &self.memory.pools.messages
    }

    fn pool_region(&self) -> Option<RegionInfo> {
        self.memory.remote()
    }

    fn read(&mut self, slot: Slot, from: RemoteRange, tag: u64) -> Result<(), Refused> {
        self.take(slot, Op::Read, from.length, (from.address, from.key), tag)
    }

    fn write(&mut self, slot: Slot, to: RemoteRange, tag: u64) -> Result<(), Refused> {
        self.take(slot, Op::Write, to.length, (to.address, to.key), tag)
    }

    fn send(&mut self, slot: Slot, length: u32, tag: u64) -> Result<(), Refused> {
        self.take(slot, Op::Send, length, (0, 0), tag)
    }

    fn recv(&mut self, slot: Slot, tag: u64) -> Result<(), Refused> {
        debug_assert!(self.memory.pools.own(&slot), "a slot of another link's pool");
        if self.down.is_some() {
            return Err(Refused::Dead(slot));
        }
        if self.receives_in_flight == self.queues.recv_depth() {
            return Err(Refused::Full(slot));
        }
        self.receives_in_flight += 1;
        let size = slot.size();
        let request = self.enter(slot, Op::Recv, size, (0, 0), tag);
        if self.queues.post_recv(&request) {
            if let Some(flight) = &mut self.flights[request.wr_id as usize] {
                flight.posted = true;
            }
        } else {
            self.set_down(LinkDown::Failed("the device refused a receive".into()));
        }
        Ok(())
    }

    fn submit(&mut self) {
        if self.staged.is_empty() || self.down.is_some() {
            return;
        }
        let posted = self.queues.post(&self.staged, &mut self.chain);
        for request in &self.staged[..posted] {
            if let Some(flight) = &mut self.flights[request.wr_id as usize] {
                flight.posted = true;
            }
        }
        if posted < self.staged.len() {
            self.set_down(LinkDown::Failed("the device refused a work request".into()));
        }
        self.staged.clear();
    }

    fn poll(&mut self, done: &mut Vec<Completion>) -> bool {
        let (before, was_down) = (done.len(), self.down.is_some());
        if std::mem::take(&mut self.woken) && !(self.armed && self.take_event()) {
            self.hear_events();
        }
        if done.len() < done.capacity()
            && let Some(entry) = self.stash.take()
        {
            self.finish(&entry, done);
        }
        let mut entries = [blank(); POLL_BATCH];
        loop {
            let room = (done.capacity() - done.len()).min(POLL_BATCH);
            let got = match self.queues.poll(&mut entries[..room]) {
                Ok(got) => got,
                Err(error) => {
                    self.set_down(LinkDown::Failed(error.to_string()));
                    break;
                }
            };
            for entry in &entries[..got] {
                self.finish(entry, done);
            }
            if got == 0 || got < room {
                break;
            }
        }
        self.count_poll(done.len() != before);
        if self.down.is_some() {
            self.fail_unposted(done);
        } else if !self.waiting_reads.is_empty() {
            self.release_reads();
            self.submit();
        }
        done.len() != before || self.down.is_some() != was_down
    }

    fn arm(&mut self) -> bool {
        if self.stash.is_some() || (!self.armed && self.queues.arm().is_err()) {
            return true;
        }
        self.armed = true;
        let mut entry = [blank()];
        match self.queues.poll(&mut entry) {
            Ok(0) => self.down.is_some() && self.flights.iter().flatten().any(|flight| !flight.posted),
            Ok(_) => {
                self.stash = Some(entry[0]);
                true
            }
            Err(_) => true,
        }
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        self.wait.as_fd()
    }

    fn woken(&mut self) {
        self.woken = true;
    }

    fn down(&self) -> Option<&LinkDown> {
        self.down.as_ref()
    }

    fn close(&mut self) {
        self.set_down(LinkDown::ClosedHere);
    }
}

impl std::fmt::Debug for VerbsLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let in_flight = self.in_flight();
        f.debug_struct("VerbsLink")
            .field("in_flight", &in_flight)
            .field("down", &self.down)
            .finish_non_exhaustive()
    }
}

impl Drop for VerbsLink {
    fn drop(&mut self) {
        self.close();
        let deadline = Instant::now() + DRAIN;
        let mut done = Vec::with_capacity(POLL_BATCH);
        while self.in_flight() > 0 && Instant::now() < deadline {
            self.poll(&mut done);
            done.clear();
            if self.in_flight() > 0 && !self.arm() {
                let _ = wait_readable(self.wait.as_fd(), Duration::from_millis(10));
                self.woken();
            }
        }
        if self.in_flight() > 0 {
            tracing::warn!(
                "the device did not give back {} operations; ending the queue pair",
                self.in_flight()
            );
        }
        self.queues.destroy_qp();
    }
}
