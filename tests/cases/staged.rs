//! Clients that break the rules of a staged lane: their request fails, or their lane ends, and nothing else happens.

use kaeru_client::session::{AttachOptions, Session};
use kaeru_common::error::Status;
use kaeru_common::fabric::Link;
use kaeru_common::wire::io::{Action, Request};

use crate::harness::client::Nbd;
use crate::harness::lane::{RawLane, packed};
use crate::harness::nbd::Raw;
use crate::harness::process::eventually;
use crate::harness::random::Random;
use crate::harness::server::{Keep, Server};

const MIB: u64 = 1 << 20;

fn request(action: Action, slot: u16, offset: u64, length: u64) -> Request {
    Request { action, slot, key: 0, offset, length, address: 0 }
}

/// A server, and what it had open before anybody came.
struct Bothered {
    server: Server,
    descriptors: usize,
}

/// Threads that serve lanes.
fn lanes(server: &Server) -> usize {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", server.process.pid())).unwrap();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.starts_with("lane-")).count()
}

impl Bothered {
    fn start() -> Self {
        let server = Server::keeping("scratch", MIB, Keep::BufferedFile);
        // Once for what comes about with the first client.
        drop(RawLane::open(&server, "scratch"));
        eventually("the server settles", || lanes(&server) == 0);
        let descriptors = server.process.descriptors();
        Self { server, descriptors }
    }

    fn lane(&self) -> RawLane {
        RawLane::open(&self.server, "scratch")
    }

    /// Checks that the server serves others and has kept nothing.
    fn end(mut self) {
        assert!(self.server.process.is_alive());
        eventually("nothing is left behind", || {
            lanes(&self.server) == 0 && self.server.process.descriptors() <= self.descriptors
        });
        let nbd = Nbd::unix(&self.server, "scratch");
        let mut raw = Raw::attach(&nbd);
        raw.write(0, &[7; 512]).unwrap();
        assert_eq!(raw.read(0, 512).unwrap(), [7; 512]);
    }
}

#[test]
fn a_request_that_cannot_be_is_answered_with_the_reason() {
    let bothered = Bothered::start();
    let mut lane = bothered.lane();
    let size = u64::from(lane.opening.slot_size);
    let bad = [
        (request(Action::Read, 3, MIB, 1), Status::OutOfRange),
        (request(Action::Read, 3, u64::MAX, 2), Status::OutOfRange),
        (request(Action::Write { durable: false }, 3, MIB - 511, 512), Status::OutOfRange),
        (request(Action::Trim { durable: true }, 3, 1, u64::MAX), Status::OutOfRange),
        (request(Action::Extents, 3, 0, MIB + 1), Status::OutOfRange),
        (request(Action::Read, 3, 0, 0), Status::BadRequest),
        (request(Action::Zero { no_hole: true, durable: false }, 3, 0, 0), Status::BadRequest),
        (request(Action::Write { durable: true }, 3, 0, size + 1), Status::BadRequest),
    ];
    for (request, status) in bad {
        lane.ask(&request);
        let reply = lane.reply().expect("an answer");
        assert_eq!((reply.slot, reply.result), (3, Err(status)), "{request:?}");
    }
    // The lane lives on.
    lane.ask(&request(Action::Flush, 3, 0, 0));
    assert_eq!(lane.reply().unwrap().result, Ok(()));
    drop(lane);
    bothered.end();
}

#[test]
fn a_slot_that_is_not_the_client_s_to_use_ends_its_lane() {
    let bothered = Bothered::start();
    let mut lane = bothered.lane();
    let foreign = lane.opening.slots;
    lane.ask(&request(Action::Flush, foreign, 0, 0));
    assert_eq!(lane.reply(), None);
    let mut lane = bothered.lane();
    lane.ask(&request(Action::Flush, u16::MAX, 0, 0));
    assert_eq!(lane.reply(), None);
    // The same slot for more requests than it can have: some may be answered before the server notices.
    let mut lane = bothered.lane();
    for _ in 0..200 {
        lane.ask(&request(Action::Zero { no_hole: true, durable: true }, 0, 0, MIB));
    }
    let answered = std::iter::from_fn(|| lane.reply()).take(200).count();
    assert!(answered < 200, "the lane was not ended");
    drop(lane);
    bothered.end();
}

/// A session may have 16 at once, and as many as it likes one after another.
#[test]
fn a_lane_that_is_closed_makes_room_while_its_session_lives() {
    for keep in [Keep::Ram, Keep::DirectFile, Keep::BufferedFile, Keep::PlainFile] {
        let server = Server::keeping("scratch", MIB, keep);
        let target = server.export("scratch").parse().unwrap();
        let session = Session::attach(&target, AttachOptions::default()).unwrap();
        for _ in 0..3 {
            let open: Vec<_> = (0..16).map(|_| session.open_lane().unwrap()).collect();
            assert!(
                session.open_lane().is_err_and(|error| error.to_string().contains("16 lanes")),
                "{keep:?}"
            );
            drop(open);
            eventually("the lanes of the server end", || lanes(&server) == 0);
        }
    }
}

#[test]
fn garbage_ends_its_own_lane() {
    let bothered = Bothered::start();
    let good = packed(&request(Action::Flush, 0, 0, 0));
    let mut random = Random(11);
    let mut messages: Vec<Vec<u8>> =
        vec![vec![0], vec![0xff; 64], good[..31].to_vec(), [&good[..], &[0]].concat()];
    messages.extend((0..8).map(|_| random.bytes(32)).map(|mut bytes| {
        bytes[0] = 9;
        bytes
    }));
    for message in messages {
        let mut lane = bothered.lane();
        lane.say(&message);
        assert_eq!(lane.reply(), None, "{message:?}");
    }
    bothered.end();
}

#[test]
fn a_message_longer_than_a_slot_ends_its_own_lane() {
    let bothered = Bothered::start();
    let mut lane = bothered.lane();
    let mut slot = lane.link.pool().take().unwrap();
    slot.fill(0, 65, 1);
    lane.link.send(slot, 65, 0).unwrap();
    lane.link.submit();
    assert_eq!(lane.reply(), None);
    drop(lane);
    bothered.end();
}

#[test]
fn a_read_to_memory_that_was_not_lent_ends_its_own_lane() {
    let bothered = Bothered::start();
    for stray in 0..3 {
        let mut lane = bothered.lane();
        let target = lane.target(4096);
        let (key, address) = match stray {
            0 => (target.key.wrapping_add(1), target.address),
            1 => (target.key, 0),
            _ => (target.key, target.address + (16 << 20)),
        };
        lane.ask(&Request { key, address, ..request(Action::Read, 0, 0, 4096) });
        assert_eq!(lane.reply(), None, "stray {stray}");
    }
    bothered.end();
}

#[test]
fn a_client_that_leaves_in_the_middle_leaves_nothing_behind() {
    let bothered = Bothered::start();
    for _ in 0..5 {
        let mut lane = bothered.lane();
        for slot in 0..lane.opening.slots {
            lane.ask(&request(Action::Zero { no_hole: true, durable: true }, slot, 0, MIB));
        }
        drop(lane);
    }
    bothered.end();
}
