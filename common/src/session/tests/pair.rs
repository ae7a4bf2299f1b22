//! A client and a server joined by two queues of bytes and one clock that only moves when it is told to.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::BytesMut;

use crate::codec::BoundedList;
use crate::fabric::{FabricKind, RegionInfo};
use crate::session::client::{self, Client, ClientConfig, Patience};
use crate::session::server::{self, Server, ServerConfig};
use crate::units::{BootId, Epoch, LaneToken, SessionId};
use crate::wire::control::{Attach, BlockSizes, Exports, HostFacts, Identity, LaneTicket, Refusal, Welcome};
use crate::wire::grant::{Grant, Granted, Path};
use crate::wire::version::VersionRange;

pub(super) const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

pub(super) fn client_config() -> ClientConfig {
    ClientConfig {
        client: "tama".into(),
        identity: Identity { bytes: [1; 16] },
        versions: VersionRange::OURS,
        patience: Patience::default(),
    }
}

pub(super) fn server_config() -> ServerConfig {
    let welcome = Welcome {
        version: 0,
        server: "frog".into(),
        boot_id: BootId([2; 16]),
        keep_alive_ms: ServerConfig::KEEP_ALIVE_MS,
        lease_ms: ServerConfig::LEASE_MS,
        fabrics: BoundedList::default(),
    };
    ServerConfig { versions: VersionRange::OURS, welcome, handshake: ServerConfig::HANDSHAKE }
}

pub(super) fn attach() -> Attach {
    Attach { export: "scratch".parse().unwrap(), read_only: false, steal: false, resume: None }
}

/// What every server's machine is.
pub(super) fn facts() -> HostFacts {
    HostFacts {
        software: "kaerud".into(),
        host: "frog".into(),
        kernel: "6".into(),
        ports: BoundedList::default(),
    }
}

pub(super) fn granted() -> Granted {
    let regions = BoundedList::new(vec![RegionInfo { address: 4096, key: 5, length: 1 << 20 }]).unwrap();
    let address = "127.0.0.1:17420".parse().unwrap();
    let path = Path { fabric: FabricKind::Tcp, address, device: "lo".into(), regions };
    Granted {
        session: SessionId(9),
        epoch: Epoch(0),
        boot_id: BootId([3; 16]),
        size: 1 << 20,
        read_only: false,
        blocks: BlockSizes { least: 512, preferred: 4096 },
        volatile: true,
        grant: Grant::Direct { paths: BoundedList::new(vec![path]).unwrap() },
    }
}

pub(super) const TICKET: LaneTicket = LaneTicket { lane: 0, token: LaneToken([4; 16]) };

/// One direction of the stream.
#[derive(Default)]
pub(super) struct Pipe {
    /// What is under way, and when it arrives.
    under_way: VecDeque<(Instant, Vec<u8>)>,
    /// Everything that was ever put in.
    pub(super) log: Vec<u8>,
    /// Nothing arrives while it is stalled.
    pub(super) stalled: bool,
}

impl Pipe {
    fn put(&mut self, arrival: Instant, bytes: &[u8]) {
        self.log.extend_from_slice(bytes);
        self.under_way.push_back((arrival, bytes.to_vec()));
    }

    fn take(&mut self, now: Instant) -> Option<Vec<u8>> {
        let due = !self.stalled && self.under_way.front().is_some_and(|(at, _)| *at <= now);
        due.then(|| self.under_way.pop_front()).flatten().map(|(_, bytes)| bytes)
    }

    fn next(&self) -> Option<Instant> {
        self.under_way.front().filter(|_| !self.stalled).map(|(at, _)| *at)
    }

    /// Changes what is under way.
    pub(super) fn meddle(&mut self, change: impl FnOnce(&mut Vec<u8>)) {
        if let Some((_, bytes)) = self.under_way.back_mut() {
            change(bytes);
        }
    }
}

/// What the server's owner does with requests.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    Grants,
    Refuses,
    Dithers,
}

/// Both sides. Fields are for tests to set.
pub(super) struct Pair {
    pub(super) start: Instant,
    pub(super) now: Instant,
    pub(super) client: Client,
    pub(super) server: Server,
    pub(super) to_server: Pipe,
    pub(super) to_client: Pipe,
    /// How long bytes are under way.
    pub(super) delay: Duration,
    pub(super) owner: Owner,
    pub(super) client_events: Vec<client::Event>,
    pub(super) server_events: Vec<server::Event>,
}

impl Pair {
    pub(super) fn new() -> Self {
        Self::with(client_config(), server_config())
    }

    pub(super) fn with(client: ClientConfig, server: ServerConfig) -> Self {
        let start = Instant::now();
        Self {
            start,
            now: start,
            client: Client::new(start, client),
            server: Server::new(start, server),
            to_server: Pipe::default(),
            to_client: Pipe::default(),
            delay: ms(1),
            owner: Owner::Grants,
            client_events: Vec::new(),
            server_events: Vec::new(),
        }
    }

    /// A pair whose client is attached.
    pub(super) fn attached() -> Self {
        let mut pair = Self::new();
        pair.connect();
        pair.run_for(ms(10));
        pair.client.attach(pair.now, attach()).unwrap();
        pair.run_for(ms(10));
        assert_eq!(pair.client.state(), client::State::Attached);
        assert_eq!(pair.server.state(), server::State::Attached);
        pair
    }

    pub(super) fn connect(&mut self) {
        self.client.handle_connected(self.now);
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.now - self.start
    }

    /// Lets `span` pass, stepping from one thing that is due to the next.
    pub(super) fn run_for(&mut self, span: Duration) {
        let end = self.now + span;
        loop {
            self.settle();
            let timers = [self.client.poll_timeout(), self.server.poll_timeout()];
            let pipes = [self.to_server.next(), self.to_client.next()];
            match timers.into_iter().chain(pipes).flatten().min() {
                Some(next) if next <= end => self.now = self.now.max(next),
                _ => break,
            }
        }
        self.now = end;
        self.settle();
    }

    /// Does all that is due now.
    fn settle(&mut self) {
        while let Some(bytes) = self.to_server.take(self.now) {
            self.server.handle_bytes(self.now, &bytes);
        }
        while let Some(bytes) = self.to_client.take(self.now) {
            self.client.handle_bytes(self.now, &bytes);
        }
        self.client.handle_timeout(self.now);
        self.server.handle_timeout(self.now);
        self.collect();
        self.transmit();
    }

    /// Takes the events; the owner answers.
    fn collect(&mut self) {
        self.client_events.extend(std::iter::from_fn(|| self.client.poll_event()));
        while let Some(event) = self.server.poll_event() {
            self.answer(&event);
            self.server_events.push(event);
        }
    }

    pub(super) fn answer(&mut self, event: &server::Event) {
        let refusal = || Refusal::busy("mike", Duration::from_secs(60));
        let answered = match (event, self.owner) {
            (server::Event::Greeted(_) | server::Event::Closed(_), _) | (_, Owner::Dithers) => return,
            (server::Event::DetachWanted, _) => self.server.detached(),
            (_, Owner::Refuses) => self.server.refuse(refusal()),
            (server::Event::ListWanted, _) => {
                self.server.exports(Exports { exports: BoundedList::default(), cpu_us: 0 })
            }
            (server::Event::DescribeWanted, _) => self.server.describe(facts()),
            (server::Event::AttachWanted(_), _) => self.server.grant(granted()),
            (server::Event::LaneWanted(_), _) => self.server.lane_token(TICKET),
        };
        // A session that closed meanwhile wants no answer any more.
        assert!(answered.is_ok() || self.server.state() == server::State::Closed, "{answered:?}");
    }

    pub(super) fn transmit(&mut self) {
        let arrival = self.now + self.delay;
        let mut out = BytesMut::new();
        if self.client.poll_transmit(&mut out) {
            self.to_server.put(arrival, &out);
        }
        out.clear();
        if self.server.poll_transmit(&mut out) {
            self.to_client.put(arrival, &out);
        }
    }

    /// Both ends see the stream end.
    pub(super) fn hang_up(&mut self) {
        self.client.handle_disconnected("reset");
        self.server.handle_disconnected("reset");
        self.collect();
    }

    pub(super) fn client_end(&self) -> Option<&super::super::CloseReason> {
        match self.client_events.last() {
            Some(client::Event::Closed(reason)) => Some(reason),
            _ => None,
        }
    }

    pub(super) fn server_end(&self) -> Option<&super::super::CloseReason> {
        match self.server_events.last() {
            Some(server::Event::Closed(reason)) => Some(reason),
            _ => None,
        }
    }
}
