//! RDMA, on the card or Soft-RoCE device whose address `KAERU_VERBS_ADDRESS` names.

use std::net::{IpAddr, SocketAddr};

use kaeru_common::fabric::verbs::{Verbs, VerbsListener};

use super::real::{Open, Real};
use super::requires::variable;

/// How to get at it.
pub(crate) struct OpenVerbs;

/// A pair of it.
pub(crate) type VerbsPair = Real<OpenVerbs>;

fn address() -> Result<IpAddr, String> {
    let text = variable("KAERU_VERBS_ADDRESS", "set it to the IP address of an RDMA device")?;
    text.parse().map_err(|_| format!("KAERU_VERBS_ADDRESS={text} is no IP address"))
}

impl Open for OpenVerbs {
    type Fabric = Verbs;
    type Listener = VerbsListener;

    const PINS: bool = true;

    fn fabric() -> Result<Verbs, String> {
        // A device that is named and does not work is a failure, not a reason to skip.
        address().map(|ip| Verbs::at(ip).expect("the named device works"))
    }

    fn listen(_: &Verbs) -> Result<VerbsListener, String> {
        address().map(|ip| VerbsListener::bind(SocketAddr::new(ip, 0)).expect("the named address works"))
    }
}
