//! The verbs fabric: RDMA over InfiniBand, RoCE or Soft-RoCE, by classic `ibv_post_send` (a ConnectX-3 has nothing
//! newer) and `rdma_cm`.
//!
//! Reading order: `connect` (how two queue pairs find each other), `link` (a lane's operations), `queues` (what the
//! card sees of them), `memory`, `device`, `cm` (the C calls).
//!
//! Who keeps what alive, innermost first; each holds the one behind it:
//! `Queues` → completion queue → `Id` (device) · `Mr` → `Pd` → `Device` or `Id`. A link drops its queue pair before
//! its slots and their registration, so the card never writes to memory that was freed.

#![expect(unsafe_code, reason = "the home of RDMA: calls of libibverbs and librdmacm")]

mod cm;
mod connect;
mod device;
mod link;
mod memory;
mod queues;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

pub use self::connect::{VerbsIncoming, VerbsListener};
pub use self::device::{Device, Packets, addresses, interface_of, names, packets};
pub use self::link::VerbsLink;
pub use self::memory::VerbsDomain;
use super::{ConnectError, Fabric, FabricKind, LinkConfig, SetupError};
use crate::units::LaneToken;

/// RDMA as a fabric. A client needs no device of its own choice: `rdma_cm` finds it by the address.
#[derive(Clone)]
pub struct Verbs {
    device: Option<Arc<Device>>,
}

impl Verbs {
    /// The fabric of a client.
    pub fn client() -> Self {
        Self { device: None }
    }

    /// The fabric of a server on the device that `address` belongs to.
    ///
    /// # Errors
    /// Where it belongs to none, or the RDMA modules are not loaded.
    pub fn at(address: IpAddr) -> std::io::Result<Self> {
        Ok(Self { device: Some(Device::at(address)?) })
    }

    /// The device of a server's fabric.
    pub fn device(&self) -> Option<&Device> {
        self.device.as_deref()
    }
}

impl Fabric for Verbs {
    type Domain = VerbsDomain;
    type Link = VerbsLink;

    fn kind(&self) -> FabricKind {
        FabricKind::Verbs
    }

    fn domain(&self) -> Result<VerbsDomain, SetupError> {
        match &self.device {
            Some(device) => VerbsDomain::new(device),
            None => Err(SetupError::Resource {
                what: "a protection domain",
                source: std::io::Error::other("this side has not chosen a device"),
            }),
        }
    }

    fn connect(
        &self,
        address: SocketAddr,
        token: &LaneToken,
        config: &LinkConfig,
        patience: Duration,
    ) -> Result<VerbsLink, ConnectError> {
        connect::connect(address, token, config, patience)
    }
}
