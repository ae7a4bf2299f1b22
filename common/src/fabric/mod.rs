//! The fabric contract: what a network must offer to carry one-sided operations, and what callers may assume.
//!
//! Three fabrics keep it, proved by one conformance suite: `verbs` (RDMA), [`tcp`] (the same operations in software)
//! and `sim` (in memory, seeded, for tests).
//!
//! ```text
//!   server                                              client
//!   Fabric::domain ─ Domain::register ─▶ RegionInfo ──▶ (control stream) ──▶ RemoteRange
//!   Listener::accept ─▶ Incoming ─ accept(domain) ─▶ Link ◀── one pair of queues ──▶ Link ◀─ Fabric::connect(token)
//! ```
//!
//! # What callers may assume
//! - **Slots move.** A slot goes into [`Link::read`], [`Link::write`], [`Link::send`] or [`Link::recv`] and comes back
//!   in exactly one [`Completion`], or at once in [`Refused`]. In between the fabric owns it. A length beyond the
//!   slot's size and a slot of another link's pools are mistakes of the caller: they panic, the latter in debug builds at
//!   least. A length of zero is not to be used either: fabrics make different things of it.
//!
//!   ```compile_fail,E0382
//!   # use kaeru_common::fabric::{Link, RemoteRange, buffer::Slot};
//!   fn overwrite(link: &mut impl Link, mut slot: Slot, to: RemoteRange) {
//!       let _ = link.write(slot, to, 1);
//!       slot.fill(0, 1, 0); // the card owns it now
//!   }
//!   ```
//! - **Full is an answer.** [`Refused::Full`] says to poll first. Nothing else about the link changed. Reads, writes and
//!   sends are counted together, and [`LinkLimits::depth`] of them may be in flight; one counts until its completion
//!   was polled. Receives have a queue of their own, for as many as the larger pool has slots or the depth says,
//!   whichever is less.
//! - **Leaving.** [`Link::submit`] hands over what was taken. [`Link::poll`] may do so too: not to submit holds nothing back.
//! - **Order.** Writes and sends of one link take effect at the peer in the order they were posted: a peer that has
//!   received a send sees the data of every write posted before it. A read overtakes nothing that was posted before it,
//!   so it sees those writes; but what is posted later may overtake *it*: whoever needs a read to be over waits for its
//!   completion. Completions of one kind come in the order of posting.
//! - **A completed write is placed**: any read posted after its completion, on any link of the same server, sees it.
//! - **A completed send is with the peer**: a receive of its took the message. Nobody need have polled or read it. Where the
//!   peer [answers messages](LinkConfig::answers_messages), completions may come as late as its answer.
//! - **Sends wait for receives.** A send that finds no posted receive waits; it is not lost and does not fail.
//! - **Access is checked by the side that owns the memory**: bounds, key, right. A violation is fatal to that link
//!   and to nothing else, as on a card. The operation comes back with [`OpError::Access`], and earlier ones that were not
//!   complete may come back as [`OpError::LinkDead`] though they took effect.
//! - **A message that is too long** ends the link as well. The receiver's receive completes with [`OpError::TooLong`]; the
//!   sender sees that or [`OpError::LinkDead`], as the fabric can tell.
//! - **Regions are what they are.** Memory may be registered in several regions, and an operation reaches into one: to
//!   cut a range at their borders is the caller's work.
//! - **Death is complete.** On a dead link every operation in flight completes once with [`OpError::LinkDead`] (or its
//!   own error), and new ones are refused with [`Refused::Dead`]. Memory is reusable only once its completion came.
//! - **Death is noticed** where something is in flight: only then is a peer that fell silent sure to be found out. A peer
//!   that was killed looks like one that closed, [`LinkDown::ClosedByPeer`], since its kernel tidies up after it.
//! - **Fencing means dropping links.** A dropped [`Domain`] cuts no live link, and whether its regions stay within
//!   reach of one depends on the fabric; after a link is dropped or closed *and* drained its peer touches nothing any more.
//! - **Waiting.** [`Link::arm`], sleep on [`Link::wait_fd`], [`Link::woken`] if it was readable, [`Link::poll`]. `arm`
//!   returning `true` means that something arrived meanwhile: poll instead of sleeping. No wake-up is lost.
//! - No atomics, no immediate data, no inline, one scatter/gather entry: a ConnectX-3, NetworkDirect and iWARP all do.

pub mod buffer;
pub mod handshake;
mod pools;
#[cfg(feature = "sim")]
pub mod sim;
pub mod tcp;
#[cfg(all(feature = "verbs", target_os = "linux"))]
pub mod verbs;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use self::buffer::{Memory, Slot, SlotPool};
use crate::units::LaneToken;

/// Which fabric a link runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FabricKind {
    /// RDMA verbs: InfiniBand, RoCE, Soft-RoCE.
    Verbs,
    /// The same operations in software over a TCP stream.
    Tcp,
    /// In memory, for tests.
    Sim,
}

impl fmt::Display for FabricKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Verbs => "verbs",
            Self::Tcp => "tcp",
            Self::Sim => "sim",
        })
    }
}

/// What a peer may do with a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Nothing: the memory is only a local source and destination.
    Local,
    /// Read it.
    RemoteRead,
    /// Read and write it.
    RemoteReadWrite,
}

/// A registered region as its peer addresses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RegionInfo {
    /// Address of the first byte, in the owner's terms.
    pub address: u64,
    /// The key that the owner's side checks.
    pub key: u32,
    /// Number of bytes.
    pub length: u64,
}

impl RegionInfo {
    /// `length` bytes from `offset`, or `None` outside of the region.
    pub fn range(&self, offset: u64, length: u32) -> Option<RemoteRange> {
        let end = offset.checked_add(u64::from(length))?;
        let address = self.address.checked_add(offset)?;
        (end <= self.length).then_some(RemoteRange { address, key: self.key, length })
    }
}

/// A stretch of a peer's region: the target of one read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteRange {
    /// Address of the first byte, in the owner's terms.
    pub address: u64,
    /// The region's key.
    pub key: u32,
    /// Number of bytes, at most a slot's size.
    pub length: u32,
}

/// How a link is to be built. Both ends choose their own; what must agree is negotiated.
#[derive(Clone, Copy, Debug)]
pub struct LinkConfig {
    /// Slots of the link's pool.
    pub slots: u32,
    /// Bytes of each slot.
    pub slot_size: u32,
    /// What the peer may do with the pool: [`Access::RemoteReadWrite`] only where staged data is to land in it.
    pub pool_access: Access,
    /// Slots of the link's second pool, for messages: small ones, which the peer never reaches. At least one is made.
    pub messages: u32,
    /// Bytes of each of those.
    pub message_size: u32,
    /// Whether this side answers every message of the peer's with one of its own, so that the peer's completions may
    /// wait for that: a fabric that acknowledges in software then does so along with the answer.
    pub answers_messages: bool,
    /// Reads, writes and sends that may be in flight, all together; at least one. Receives are not counted.
    pub depth: u32,
    /// Reads that this side is willing to answer at once, from 1; a fabric may lower it to what its device can.
    pub responder_depth: u8,
}

impl Default for LinkConfig {
    /// A client's lane: as deep as the kernel's NBD socket (128), in slots that are a full-speed transfer each.
    fn default() -> Self {
        Self {
            slots: 128,
            slot_size: 128 << 10,
            pool_access: Access::Local,
            messages: 1,
            message_size: 64,
            answers_messages: false,
            depth: 256,
            responder_depth: 16,
        }
    }
}

/// What a link turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkLimits {
    /// Reads, writes and sends that may be in flight, all together.
    pub depth: u32,
    /// Reads that are on the wire at once; further ones queue in software.
    pub reads: u32,
}

/// The kinds of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// A one-sided read of the peer's memory.
    Read,
    /// A one-sided write to the peer's memory.
    Write,
    /// A message to the peer.
    Send,
    /// A message from the peer.
    Recv,
}

/// The end of one operation.
#[derive(Debug)]
#[must_use = "a completion carries the slot and whether the bytes arrived"]
pub struct Completion {
    /// The caller's tag.
    pub tag: u64,
    /// What kind of operation ended.
    pub op: Op,
    /// The slot, back in the caller's hands.
    pub slot: Slot,
    /// The number of bytes moved, or why they did not.
    pub result: Result<u32, OpError>,
}

/// Why an operation failed. All of them end the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpError {
    /// The owner of the memory refused: out of bounds, an unknown key, or no right.
    #[error("the peer refused access to its memory: range, key or right does not fit")]
    Access,
    /// A message was longer than the posted receive.
    #[error("a message was longer than the buffer that was posted for it")]
    TooLong,
    /// The link died first.
    #[error("the link died before the operation completed")]
    LinkDead,
}

/// An operation that was not taken, with its slot.
#[derive(Debug)]
#[must_use = "a refused operation carries its slot"]
pub enum Refused {
    /// The link is as full as it may be: poll, then try again.
    Full(Slot),
    /// The link is dead.
    Dead(Slot),
}

impl Refused {
    /// The slot that was to be used.
    pub fn into_slot(self) -> Slot {
        match self {
            Self::Full(slot) | Self::Dead(slot) => slot,
        }
    }
}

/// Why a link is dead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkDown {
    /// The peer ended it in good order, or its process was killed.
    #[error("the peer closed the link")]
    ClosedByPeer,
    /// We ended it.
    #[error("the link was closed on this side")]
    ClosedHere,
    /// An operation of ours was refused by the peer.
    #[error("{0}")]
    Refused(#[from] OpError),
    /// The peer broke the protocol or overstepped its grant.
    #[error("the peer broke the rules: {0}")]
    PeerFault(&'static str),
    /// The network or the device failed.
    #[error("the fabric failed: {0}")]
    Failed(String),
}

/// Why no link came about.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The address cannot be reached over this fabric.
    #[error("{address} is not reachable over {fabric}: {reason}")]
    Unreachable {
        /// The fabric that was tried.
        fabric: FabricKind,
        /// The address that was tried.
        address: SocketAddr,
        /// What the system said, and what would help.
        reason: String,
    },
    /// The peer answered and refused.
    #[error("{address} refused the lane over {fabric}: {reason}")]
    Refused {
        /// The fabric that was tried.
        fabric: FabricKind,
        /// The address that was tried.
        address: SocketAddr,
        /// The peer's reason.
        reason: RejectReason,
    },
    /// The peer did not answer in time.
    #[error("{address} did not answer over {fabric} within {after:?}")]
    TimedOut {
        /// The fabric that was tried.
        fabric: FabricKind,
        /// The address that was tried.
        address: SocketAddr,
        /// How long we waited.
        after: Duration,
    },
    /// Our side could not set the link up.
    #[error(transparent)]
    Local(#[from] SetupError),
}

/// Why this side could not set up memory or queues.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// Registering memory failed.
    #[error(
        "could not register {bytes} bytes with {device}: {source}; {done} bytes were registered before. \
         If the memory lock limit is the cause (ulimit -l), raise it in /etc/security/limits.conf \
         or with LimitMEMLOCK=infinity in the systemd unit"
    )]
    Register {
        /// The device.
        device: String,
        /// The bytes that were asked for.
        bytes: u64,
        /// The bytes that had been registered.
        done: u64,
        /// The system's error.
        source: io::Error,
    },
    /// A queue, pool or descriptor could not be made.
    #[error("could not set up {what}: {source}")]
    Resource {
        /// What was to be made.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

/// Why an incoming lane is turned away; a byte on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[repr(u8)]
pub enum RejectReason {
    /// The token is unknown, used up or too old.
    #[error("the lane token is unknown or was used before")]
    BadToken = 1,
    /// The versions have nothing in common.
    #[error("the peer speaks another version of the lane protocol")]
    BadVersion = 2,
    /// The peer has no room for another lane.
    #[error("the peer has no room for another lane")]
    NoResources = 3,
    /// Anything else.
    #[error("the peer gave no reason that this version knows")]
    Other = 255,
}

impl RejectReason {
    /// The reason with this number; unknown ones are [`Self::Other`].
    pub fn from_wire(number: u8) -> Self {
        match number {
            1 => Self::BadToken,
            2 => Self::BadVersion,
            3 => Self::NoResources,
            _ => Self::Other,
        }
    }
}

/// A network that carries one-sided operations.
pub trait Fabric: Send + Sync + 'static {
    /// Its protection domains.
    type Domain: Domain;
    /// Its links.
    type Link: Link;

    /// Which one it is.
    fn kind(&self) -> FabricKind;

    /// A new, empty protection domain. A link that is accepted into it reaches its regions and no others.
    ///
    /// # Errors
    /// Where the device has no room for it.
    fn domain(&self) -> Result<Self::Domain, SetupError>;

    /// Connects a link to `address` and presents `token` there. Blocks up to `patience`.
    ///
    /// # Errors
    /// See [`ConnectError`].
    fn connect(
        &self,
        address: SocketAddr,
        token: &LaneToken,
        config: &LinkConfig,
        patience: Duration,
    ) -> Result<Self::Link, ConnectError>;
}

/// A set of regions that travel together: one export in one access mode.
pub trait Domain: Send + Sync + 'static {
    /// Registers all of `memory`, in one region or, where the device wants it, several consecutive ones that are all
    /// equal in length except the last. Never called on the I/O path.
    ///
    /// # Errors
    /// [`SetupError::Register`]; what had been registered is released.
    fn register(&mut self, memory: &Arc<Memory>, access: Access) -> Result<Vec<RegionInfo>, SetupError>;
}

/// Where links arrive.
pub trait Listener: Send {
    /// A link that asks to be let in.
    type Incoming: Incoming;

    /// The address that it listens on.
    fn address(&self) -> SocketAddr;

    /// Waits up to `patience` for the next link whose request is complete and well-formed; `None` where none came.
    ///
    /// # Errors
    /// Where the listener itself is broken.
    fn accept(&mut self, patience: Duration) -> io::Result<Option<Self::Incoming>>;
}

/// A link that asks to be let in.
pub trait Incoming: Send {
    /// The fabric that it came over.
    type Fabric: Fabric;

    /// The token that it presented.
    fn token(&self) -> &LaneToken;

    /// Lets it in: its peer reaches what `domain` holds.
    ///
    /// # Errors
    /// Where this side has no room for it, or the peer went away.
    fn accept(
        self,
        domain: &<Self::Fabric as Fabric>::Domain,
        config: &LinkConfig,
    ) -> Result<<Self::Fabric as Fabric>::Link, ConnectError>;

    /// Turns it away.
    fn reject(self, reason: RejectReason);
}

/// One connected pair of queues with its pool of slots, driven by one thread. Dropping it closes it: the queues are
/// torn down, and only then the slots in flight are freed.
pub trait Link: Send {
    /// Which fabric it runs on.
    fn kind(&self) -> FabricKind;

    /// What it can hold.
    fn limits(&self) -> LinkLimits;

    /// Its slots for data. Operations take slots of this pool and of [`Self::messages`] only.
    fn pool(&self) -> &SlotPool;

    /// Its slots for messages, out of the peer's reach.
    fn messages(&self) -> &SlotPool;

    /// The pool as the peer may address it; `None` for [`Access::Local`].
    fn pool_region(&self) -> Option<RegionInfo>;

    /// Reads `from` into the start of `slot`.
    ///
    /// # Errors
    /// [`Refused`] gives the slot back.
    fn read(&mut self, slot: Slot, from: RemoteRange, tag: u64) -> Result<(), Refused>;

    /// Writes the start of `slot` to `to`.
    ///
    /// # Errors
    /// As [`Self::read`].
    fn write(&mut self, slot: Slot, to: RemoteRange, tag: u64) -> Result<(), Refused>;

    /// Sends the first `length` bytes of `slot` as one message.
    ///
    /// # Errors
    /// As [`Self::read`].
    fn send(&mut self, slot: Slot, length: u32, tag: u64) -> Result<(), Refused>;

    /// Posts `slot`, all of it, for one incoming message; messages fill receives in order.
    ///
    /// # Errors
    /// As [`Self::read`].
    fn recv(&mut self, slot: Slot, tag: u64) -> Result<(), Refused>;

    /// Hands what was taken since the last call to the network, with one doorbell for all of it. Without it, what was taken
    /// may leave at [`Self::poll`] or not at all.
    fn submit(&mut self);

    /// Serves the peer and moves finished operations to `done`, as many as its spare capacity holds (it never grows).
    /// Returns whether anything at all happened. To meet the end of the link is something, even where nothing comes back
    /// for it: whoever sleeps after a poll that found nothing would sleep through it.
    fn poll(&mut self, done: &mut Vec<Completion>) -> bool;

    /// Asks for a wake-up on [`Self::wait_fd`]. `true`: something happened meanwhile, so poll instead of sleeping.
    /// Whoever has nothing in flight looks at [`Self::down`] first: the end of a link wakes only once.
    fn arm(&mut self) -> bool;

    /// Readable when there is something to poll, after [`Self::arm`]. Without arming only the end of the link shows.
    fn wait_fd(&self) -> BorrowedFd<'_>;

    /// Says that [`Self::wait_fd`] was readable: the next poll looks at what made it so.
    fn woken(&mut self) {}

    /// Why it is dead, if it is. Completions may still have to be polled.
    fn down(&self) -> Option<&LinkDown>;

    /// Ends the link. What is in flight still comes back through [`Self::poll`].
    fn close(&mut self);
}
