//! A client that has a lane to an export and does with it what no client of ours would.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use kaeru_common::codec::{Decode, Encode};
use kaeru_common::fabric::tcp::{Tcp, TcpLink};
use kaeru_common::fabric::{Access, Completion, Fabric, FabricKind, Link, LinkConfig, Op, RemoteRange};
use kaeru_common::session::client::{Client, ClientConfig, Event, Patience};
use kaeru_common::wire::control::{Attach, Identity, LaneTicket, Name};
use kaeru_common::wire::io::{MESSAGE_BYTES, Opening, Packed, Reply, Request};
use kaeru_common::wire::version::VersionRange;
use rustix::event::{PollFd, PollFlags, poll};

use super::server::Server;

const PATIENCE: Duration = Duration::from_secs(10);

/// A staged lane over tcp, by hand.
pub(crate) struct RawLane {
    /// The link.
    pub(crate) link: TcpLink,
    /// The server's slots.
    pub(crate) opening: Opening,
    done: Vec<Completion>,
    /// What keeps the session.
    _control: TcpStream,
}

impl RawLane {
    /// Attaches an export and opens a lane to it.
    pub(crate) fn open(server: &Server, export: &str) -> Self {
        let (control, ticket) = ticket(server, export);
        let config = LinkConfig {
            slots: 16,
            pool_access: Access::RemoteReadWrite,
            messages: 512,
            message_size: MESSAGE_BYTES as u32,
            depth: 512,
            ..LinkConfig::default()
        };
        let mut link = Tcp.connect(server.address, &ticket.token, &config, PATIENCE).unwrap();
        for _ in 0..256 {
            let slot = link.messages().take().unwrap();
            link.recv(slot, 0).unwrap();
        }
        let opening = Opening { slots: 0, slot_size: 0, region: link.pool_region().unwrap() };
        let mut lane = Self { link, opening, done: Vec::with_capacity(64), _control: control };
        let bytes = lane.message().expect("the opening");
        lane.opening = Opening::decode_all(&bytes).unwrap();
        lane
    }

    /// Sends these bytes as a message.
    pub(crate) fn say(&mut self, bytes: &[u8]) {
        let mut slot = self.link.messages().take().expect("a slot for a message");
        slot.copy_from(0, bytes);
        self.link.send(slot, bytes.len() as u32, 0).expect("room for a message");
        self.link.submit();
    }

    /// Sends a request.
    pub(crate) fn ask(&mut self, request: &Request) {
        self.say(Packed::new(request).as_bytes());
    }

    /// The next reply; `None` where the server ended the lane.
    pub(crate) fn reply(&mut self) -> Option<Reply> {
        self.message().map(|bytes| Reply::decode_all(&bytes).unwrap())
    }

    /// Where the start of one of our slots is for the server.
    pub(crate) fn target(&self, length: u32) -> RemoteRange {
        self.link.pool_region().unwrap().range(0, length).unwrap()
    }

    /// The next message; `None` where the server ended the lane.
    fn message(&mut self) -> Option<Vec<u8>> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(place) = self.done.iter().position(|done| done.op == Op::Recv && done.result.is_ok())
            {
                let completion = self.done.remove(place);
                let mut bytes = vec![0; completion.result.unwrap() as usize];
                completion.slot.copy_to(0, &mut bytes);
                let _ = self.link.recv(completion.slot, 0);
                return Some(bytes);
            }
            self.done.clear();
            let moved = self.link.poll(&mut self.done);
            if !moved && self.link.down().is_some() {
                return None;
            }
            assert!(Instant::now() < deadline, "the server neither answers nor ends the lane");
            if !moved && !self.link.arm() {
                let timeout = Duration::from_millis(100).try_into().unwrap();
                let _ =
                    poll(&mut [PollFd::from_borrowed_fd(self.link.wait_fd(), PollFlags::IN)], Some(&timeout));
                self.link.woken();
            }
        }
    }
}

/// Attaches by the session core alone and asks for a lane over tcp.
fn ticket(server: &Server, export: &str) -> (TcpStream, LaneTicket) {
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let config = ClientConfig {
        client: Name::clipped("by hand"),
        identity: Identity { bytes: [9; 16] },
        versions: VersionRange::OURS,
        patience: Patience::default(),
    };
    let mut core = Client::new(Instant::now(), config);
    core.handle_connected(Instant::now());
    let mut input = [0; 4096];
    loop {
        while let Some(event) = core.poll_event() {
            match event {
                Event::Welcomed(_) => {
                    let export = export.parse().unwrap();
                    // The one before may not be gone yet.
                    let wanted = Attach { export, read_only: false, steal: true, resume: None };
                    core.attach(Instant::now(), wanted).unwrap();
                }
                Event::Attached(granted) => {
                    let tcp = |path: &kaeru_common::wire::grant::Path| path.fabric == FabricKind::Tcp;
                    let path = granted.grant.paths().iter().position(tcp).expect("a path over tcp");
                    core.open_lane(Instant::now(), path as u8).unwrap();
                }
                Event::Lane(_, ticket) => return (stream, ticket),
                other => panic!("{other:?}"),
            }
        }
        let mut output = BytesMut::new();
        core.poll_transmit(&mut output);
        stream.write_all(&output).unwrap();
        let got = stream.read(&mut input).unwrap();
        assert!(got > 0, "the server closed the stream");
        core.handle_bytes(Instant::now(), &input[..got]);
    }
}

/// The bytes of a message.
pub(crate) fn packed(message: &impl Encode) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.encode(&mut bytes);
    bytes
}
