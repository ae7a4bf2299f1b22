//! The software fabric, on loopback.

use kaeru_common::fabric::tcp::{Tcp, TcpListener};

use super::real::{Open, Real};

/// How to get at it.
pub(crate) struct OpenTcp;

/// A pair of it.
pub(crate) type TcpPair = Real<OpenTcp>;

impl Open for OpenTcp {
    type Fabric = Tcp;
    type Listener = TcpListener;

    const PINS: bool = false;

    fn fabric() -> Result<Tcp, String> {
        Ok(Tcp)
    }

    fn listen(_: &Tcp) -> Result<TcpListener, String> {
        TcpListener::bind("127.0.0.1:0").map_err(|error| format!("loopback does not work: {error}"))
    }
}
