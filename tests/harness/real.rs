//! Fabrics in real time: what the pairs of `tcp` and `verbs` have in common.
//!
//! A new one says in [`Open`] how to get at it; `Real<It>` is its [`Pair`].

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use kaeru_common::fabric::{ConnectError, Fabric, Incoming, LinkConfig, Listener};
use kaeru_common::units::LaneToken;

use super::pair::{LinkOf, PATIENCE, Pair, any_readable};

/// How to get at a fabric that is there or not.
pub(crate) trait Open {
    /// The fabric.
    type Fabric: Fabric;
    /// Its listener.
    type Listener: Listener<Incoming: Incoming<Fabric = Self::Fabric>>;

    /// Whether registered memory is physical memory.
    const PINS: bool;

    /// The fabric of one side.
    fn fabric() -> Result<Self::Fabric, String>;

    /// A listener on a free port of the machine's address on this fabric.
    fn listen(fabric: &Self::Fabric) -> Result<Self::Listener, String>;
}

/// A pair in real time.
pub(crate) struct Real<O: Open> {
    server: O::Fabric,
    client: O::Fabric,
    listener: O::Listener,
    start: Instant,
}

impl<O: Open> Pair for Real<O> {
    type Fabric = O::Fabric;
    type Incoming = <O::Listener as Listener>::Incoming;

    const CONCURRENT: bool = true;
    const PINS: bool = O::PINS;

    fn open() -> Result<Self, String> {
        let (server, client) = (O::fabric()?, O::fabric()?);
        let listener = O::listen(&server)?;
        Ok(Self { server, client, listener, start: Instant::now() })
    }

    fn server(&self) -> &O::Fabric {
        &self.server
    }

    fn client(&self) -> &O::Fabric {
        &self.client
    }

    /// A listener's address after it is gone.
    fn nowhere(&self) -> SocketAddr {
        O::listen(&self.server).unwrap().address()
    }

    fn meet<R>(
        &mut self,
        token: &LaneToken,
        config: &LinkConfig,
        answer: impl FnOnce(Self::Incoming) -> R,
    ) -> (Result<LinkOf<Self>, ConnectError>, R) {
        let (client, address) = (&self.client, self.listener.address());
        std::thread::scope(|scope| {
            let connecting = scope.spawn(|| client.connect(address, token, config, PATIENCE));
            let incoming = self.listener.accept(PATIENCE).unwrap().expect("a client knocks");
            let answered = answer(incoming);
            (connecting.join().unwrap(), answered)
        })
    }

    fn anyone(&mut self, patience: Duration) -> bool {
        self.listener.accept(patience).unwrap().is_some()
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn pump(&mut self) {
        std::thread::yield_now();
    }

    fn sleep(&mut self, fds: &[BorrowedFd<'_>]) -> bool {
        any_readable(fds, PATIENCE)
    }
}
