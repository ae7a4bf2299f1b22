//! The bodies of the control messages, except what a grant holds.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::BufMut;

use super::activity::Activity;
use super::version::VersionRange;
use super::{
    MAX_DEVICE_BYTES, MAX_EXPORTS, MAX_FACT_BYTES, MAX_NAME_BYTES, MAX_PATHS, MAX_PCI_NODES, MAX_PORTS,
    MAX_REASON_BYTES,
};
use crate::codec::{BoundedList, Decode, DecodeError, Encode, Reader, Text};
use crate::error::Status;
use crate::fabric::FabricKind;
use crate::units::{BootId, ExportName, LaneToken, SessionId};

/// The name of a host, a client, a holder; or a description.
pub type Name = Text<MAX_NAME_BYTES>;

/// The name of a device.
pub type DeviceName = Text<MAX_DEVICE_BYTES>;

record! {
    /// Tells one client installation from another, across its reconnects and restarts. Chosen by the client; whether
    /// to believe it is a matter of authentication.
    #[derive(Copy, Hash)]
    pub struct Identity {
        /// The bytes; they mean nothing.
        pub bytes: [u8; 16],
    }
}

record! {
    /// The first message of a client. Its layout is the same in every version.
    pub struct Hello {
        /// The versions that the client speaks.
        pub versions: VersionRange,
        /// Who it is, for a program.
        pub identity: Identity,
        /// Who it is, for a person: its host's name.
        pub client: Name,
    }
}

record! {
    /// What the server says of itself.
    pub struct Welcome {
        /// The version that both speak from now on.
        pub version: u16,
        /// The server's name, for a person.
        pub server: Name,
        /// This life of the server.
        pub boot_id: BootId,
        /// Milliseconds between two keep-alives, in either direction: 10 to 60,000.
        pub keep_alive_ms: u32,
        /// Milliseconds of silence after which the server drops the session: two keep-alives to an hour.
        pub lease_ms: u32,
        /// The fabrics that lanes may come over.
        pub fabrics: BoundedList<FabricOffer, MAX_PATHS>,
    }
    check check
}

impl Welcome {
    /// Whether its times make sense.
    ///
    /// # Errors
    /// [`DecodeError::BadValue`] names the field.
    pub fn check(&self) -> Result<(), DecodeError> {
        if !(10..=60_000).contains(&self.keep_alive_ms) {
            return Err(DecodeError::BadValue { what: "the keep-alive interval" });
        }
        if !(2 * self.keep_alive_ms..=3_600_000).contains(&self.lease_ms) {
            return Err(DecodeError::BadValue { what: "the lease" });
        }
        Ok(())
    }

    /// Time between two keep-alives.
    pub const fn keep_alive(&self) -> Duration {
        Duration::from_millis(self.keep_alive_ms as u64)
    }

    /// Silence after which the server drops the session.
    pub const fn lease(&self) -> Duration {
        Duration::from_millis(self.lease_ms as u64)
    }
}

record! {
    /// A fabric that lanes may come over.
    pub struct FabricOffer {
        /// Which fabric.
        pub fabric: FabricKind,
        /// Where it listens.
        pub address: SocketAddr,
        /// The device, such as `mlx4_0` or `eth0`.
        pub device: DeviceName,
    }
}

record! {
    /// What a server exports.
    pub struct Exports {
        /// The exports.
        pub exports: BoundedList<ExportInfo, MAX_EXPORTS>,
        /// Processor time that the server has used since it began, in microseconds, in the kernel and outside.
        pub cpu_us: u64,
    }
}

record! {
    /// One export in a list.
    pub struct ExportInfo {
        /// Its name.
        pub name: ExportName,
        /// What keeps its bytes.
        pub kind: ExportKind,
        /// Its size in bytes: a multiple of the least block, not zero.
        pub size: u64,
        /// Whether nobody may write to it.
        pub read_only: bool,
        /// Its block sizes.
        pub blocks: BlockSizes,
        /// Whether its bytes are gone when the server's machine stops.
        pub volatile: bool,
        /// What the administrator says about it.
        pub description: Name,
        /// Who holds the right to write, if anyone does.
        pub writer: Option<Name>,
        /// What its lanes did; none where clients reach its memory by themselves, which the server does not see.
        pub activity: Option<Activity>,
        /// What is wrong with it, for a person; empty if nothing is.
        pub trouble: Name,
    }
    check check
}

impl ExportInfo {
    fn check(&self) -> Result<(), DecodeError> {
        self.blocks.check_size(self.size)
    }
}

/// What keeps the bytes of an export; a `u8` on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ExportKind {
    /// The server's memory.
    Ram = 1,
    /// A file.
    File = 2,
    /// A disk or partition.
    Disk = 3,
    /// Nothing: reads give zeros and writes go nowhere.
    Null = 4,
}

impl std::fmt::Display for ExportKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Ram => "ram",
            Self::File => "file",
            Self::Disk => "disk",
            Self::Null => "null",
        })
    }
}

impl Encode for ExportKind {
    const MAX_BYTES: usize = 1;

    fn encode<B: BufMut>(&self, out: &mut B) {
        out.put_u8(*self as u8);
    }
}

impl Decode for ExportKind {
    fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match u8::decode(input)? {
            1 => Ok(Self::Ram),
            2 => Ok(Self::File),
            3 => Ok(Self::Disk),
            4 => Ok(Self::Null),
            _ => Err(DecodeError::BadValue { what: "the kind of an export" }),
        }
    }
}

record! {
    /// The block sizes of an export, in bytes; both are powers of two, as in NBD.
    #[derive(Copy)]
    pub struct BlockSizes {
        /// What offsets, lengths and the size are multiples of: 1 to 65,536.
        pub least: u32,
        /// What is fast: from 512, and not below the least, to 32 MiB.
        pub preferred: u32,
    }
    check check
}

impl BlockSizes {
    /// Whether they keep their limits.
    ///
    /// # Errors
    /// [`DecodeError::BadValue`].
    pub fn check(&self) -> Result<(), DecodeError> {
        let Self { least, preferred } = *self;
        let good = least.is_power_of_two()
            && least <= 64 << 10
            && preferred.is_power_of_two()
            && (least.max(512)..=32 << 20).contains(&preferred);
        if good { Ok(()) } else { Err(DecodeError::BadValue { what: "the block sizes" }) }
    }

    /// Whether an export may have `size` bytes with these blocks.
    pub(super) fn check_size(&self, size: u64) -> Result<(), DecodeError> {
        if size == 0 || !size.is_multiple_of(u64::from(self.least)) {
            return Err(DecodeError::BadValue { what: "the size of an export" });
        }
        Ok(())
    }
}

record! {
    /// Asks for an export.
    pub struct Attach {
        /// Its name.
        pub export: ExportName,
        /// Whether only to read. A server never grants less than was asked: it refuses.
        pub read_only: bool,
        /// Whether to take the right to write from whoever holds it.
        pub steal: bool,
        /// The session that this one continues. The server fences its old epoch before it answers.
        pub resume: Option<SessionId>,
    }
}

record! {
    /// Asks for the token of one more lane.
    #[derive(Copy)]
    pub struct OpenLane {
        /// The path of the grant that the lane will take, from 0.
        pub path: u8,
        /// The fabric of that path.
        pub fabric: FabricKind,
    }
}

record! {
    /// Lets one lane in, once.
    #[derive(Copy)]
    pub struct LaneTicket {
        /// The lane's number in its session, from 0; for logs.
        pub lane: u16,
        /// What to present where the lane connects.
        pub token: LaneToken,
    }
}

record! {
    /// The number of a keep-alive, from 1.
    #[derive(Copy)]
    pub struct Pulse {
        /// The number.
        pub sequence: u32,
    }
}

record! {
    /// Why something is not granted, or is over.
    pub struct Refusal {
        /// The reason, for a program.
        pub status: Status,
        /// The reason, for a person; may be empty.
        pub text: Text<MAX_REASON_BYTES>,
    }
}

impl Refusal {
    /// A refusal with its explanation.
    pub fn new(status: Status, text: &str) -> Self {
        Self { status, text: Text::clipped(text) }
    }

    /// A second writer is refused: `holder` has been writing for `held`.
    pub fn busy(holder: &str, held: Duration) -> Self {
        Self::new(Status::Busy, &format!("{holder} has been writing to it for {} s", held.as_secs()))
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.text.as_str() {
            "" => write!(f, "{}", self.status),
            text => write!(f, "{}: {text}", self.status),
        }
    }
}

/// What a file of the kernel said of something, word for word; empty where it could not be read.
pub type Said = Text<MAX_FACT_BYTES>;

record! {
    /// What a server's machine is, as far as it matters to RDMA. For people who look for what is wrong: nothing else
    /// depends on it.
    pub struct HostFacts {
        /// The program, with its version.
        pub software: Name,
        /// The machine's name.
        pub host: Name,
        /// Its kernel.
        pub kernel: Name,
        /// The ports of its RDMA devices; those of one device follow one another.
        pub ports: BoundedList<PortFacts, MAX_PORTS>,
    }
}

record! {
    /// A port of an RDMA device, and the device.
    pub struct PortFacts {
        /// The device's name.
        pub device: Said,
        /// The port's number, from 1.
        pub number: u8,
        /// The interface below a device that is software.
        pub parent: Said,
        /// The kind of device: `1: CA`.
        pub node_type: Said,
        /// The firmware's version.
        pub firmware: Said,
        /// The PSID.
        pub psid: Said,
        /// The device's number.
        pub node_guid: Said,
        /// The card's maker on PCI.
        pub pci_vendor: Said,
        /// The card's model on PCI.
        pub pci_device: Said,
        /// The card, then the bridges above it.
        pub pci: BoundedList<PciFacts, MAX_PCI_NODES>,
        /// `InfiniBand` or `Ethernet`.
        pub link_layer: Said,
        /// `4: ACTIVE`.
        pub state: Said,
        /// `5: LinkUp`.
        pub phys_state: Said,
        /// `56 Gb/sec (4X FDR)`.
        pub rate: Said,
        /// Its local address.
        pub lid: Said,
        /// The subnet manager's.
        pub sm_lid: Said,
        /// The greatest packet that an InfiniBand port is set to.
        pub mtu: Said,
        /// What the port is set to: `ib`, `eth`, `auto (ib)`.
        pub mode: Said,
        /// The network interface that goes with it.
        pub interface: Said,
        /// That interface's greatest packet.
        pub interface_mtu: Said,
        /// That interface's speed.
        pub interface_speed: Said,
        /// Whether it has addresses of the first version of RoCE.
        pub roce_v1: bool,
        /// Whether it has addresses of the second.
        pub roce_v2: bool,
    }
}

record! {
    /// One end of a PCI link.
    pub struct PciFacts {
        /// Bus, device and function.
        pub address: Said,
        /// How fast it runs.
        pub speed: Said,
        /// How wide it runs.
        pub width: Said,
        /// How fast it could.
        pub max_speed: Said,
        /// How wide it could.
        pub max_width: Said,
    }
}

/// A body without fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Empty;

impl Encode for Empty {
    const MAX_BYTES: usize = 0;

    fn encode<B: BufMut>(&self, _: &mut B) {}
}

impl Decode for Empty {
    fn decode(_: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self)
    }
}
