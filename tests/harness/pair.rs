//! Two ends of a fabric in one test, whatever the fabric.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use kaeru_common::fabric::sim::{Defect, Knobs, Sim, SimIncoming, SimListener, SimNet};
use kaeru_common::fabric::{ConnectError, Fabric, Incoming, LinkConfig, Listener};
use kaeru_common::units::LaneToken;

/// How long a test waits for what must happen, in the time of its fabric.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// The links of a pair.
pub(crate) type LinkOf<P> = <<P as Pair>::Fabric as Fabric>::Link;
/// The domains of a pair.
pub(crate) type DomainOf<P> = <<P as Pair>::Fabric as Fabric>::Domain;

/// A client's and a server's fabric with a listener between them.
pub(crate) trait Pair: Sized {
    /// The fabric.
    type Fabric: Fabric;
    /// What its listener hands out.
    type Incoming: Incoming<Fabric = Self::Fabric>;

    /// Whether the two sides may run in threads of their own.
    const CONCURRENT: bool;
    /// Whether registered memory is physical memory.
    const PINS: bool;

    /// A new pair, or why this machine has none.
    fn open() -> Result<Self, String>;

    /// The server's side.
    fn server(&self) -> &Self::Fabric;

    /// The client's side.
    fn client(&self) -> &Self::Fabric;

    /// An address of this fabric where nobody listens.
    fn nowhere(&self) -> SocketAddr;

    /// Connects a client and lets `answer` decide at the server.
    fn meet<R>(
        &mut self,
        token: &LaneToken,
        config: &LinkConfig,
        answer: impl FnOnce(Self::Incoming) -> R,
    ) -> (Result<LinkOf<Self>, ConnectError>, R);

    /// Whether somebody knocks at the listener within `patience`.
    fn anyone(&mut self, patience: Duration) -> bool;

    /// The time of the fabric.
    fn now(&self) -> Duration;

    /// Lets a little time pass.
    fn pump(&mut self);

    /// Sleeps until one of `fds` is readable; `false` where none was in [`PATIENCE`].
    fn sleep(&mut self, fds: &[BorrowedFd<'_>]) -> bool;
}

/// The simulated fabric.
pub(crate) struct SimPair {
    /// Its network, for faults.
    pub(crate) net: SimNet,
    server: Sim,
    client: Sim,
    listener: SimListener,
}

impl SimPair {
    /// A pair on a network of this kind.
    pub(crate) fn new(seed: u64, knobs: Knobs) -> Self {
        let net = SimNet::new(seed);
        net.set_knobs(knobs);
        let (server, client) = (net.host(Ipv4Addr::new(10, 0, 0, 1)), net.host(Ipv4Addr::new(10, 0, 0, 2)));
        let listener = server.listen(17_420).unwrap();
        Self { net, server, client, listener }
    }

    /// A pair that breaks a promise.
    pub(crate) fn broken(seed: u64, defect: Defect) -> Self {
        let pair = Self::new(seed, Knobs::default());
        pair.net.break_promise(defect);
        pair
    }
}

impl Drop for SimPair {
    /// Whatever a test does, the books must balance and no card may have said no.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let stats = self.net.stats();
            assert_eq!((stats.unbalanced, stats.naks), (0, 0), "{stats:?}");
            assert_eq!(stats.posted, stats.completed + stats.abandoned, "{stats:?}");
        }
    }
}

impl Pair for SimPair {
    type Fabric = Sim;
    type Incoming = SimIncoming;

    const CONCURRENT: bool = false;
    const PINS: bool = false;

    fn open() -> Result<Self, String> {
        Ok(Self::new(1, Knobs::default()))
    }

    fn server(&self) -> &Sim {
        &self.server
    }

    fn client(&self) -> &Sim {
        &self.client
    }

    fn nowhere(&self) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 3], 17_420))
    }

    fn meet<R>(
        &mut self,
        token: &LaneToken,
        config: &LinkConfig,
        answer: impl FnOnce(SimIncoming) -> R,
    ) -> (Result<LinkOf<Self>, ConnectError>, R) {
        let connecting = self.client.begin_connect(self.listener.address(), token, config).unwrap();
        let incoming = self.listener.accept(PATIENCE).unwrap().expect("a client knocks");
        let answered = answer(incoming);
        (connecting.finish(PATIENCE), answered)
    }

    fn anyone(&mut self, patience: Duration) -> bool {
        self.listener.accept(patience).unwrap().is_some()
    }

    fn now(&self) -> Duration {
        self.net.now()
    }

    fn pump(&mut self) {
        const LITTLE: Duration = Duration::from_millis(10);
        match self.net.next_due() {
            Some(due) if due <= self.net.now() + LITTLE => assert!(self.net.step()),
            _ => self.net.advance(LITTLE),
        }
    }

    fn sleep(&mut self, fds: &[BorrowedFd<'_>]) -> bool {
        loop {
            if any_readable(fds, Duration::ZERO) {
                return true;
            }
            if !self.net.step() {
                return false;
            }
        }
    }
}

/// Whether one of `fds` becomes readable within `patience`.
pub(crate) fn any_readable(fds: &[BorrowedFd<'_>], patience: Duration) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut polled: Vec<PollFd<'_>> =
        fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    let timeout = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: i64::from(patience.subsec_nanos()) };
    poll(&mut polled, Some(&timeout)).unwrap() > 0
}
