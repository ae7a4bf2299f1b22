//! Several connections, many requests in flight, no byte in the wrong place.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use crate::harness::client::Nbd;
use crate::harness::nbd::*;
use crate::harness::process::eventually;
use crate::harness::random::{Random, pattern};
use crate::harness::server::Server;

/// One block of the tests.
const BLOCK: u32 = 4096;

#[test]
fn what_is_in_flight_on_four_connections_lands_where_it_belongs() {
    const SIZE: u64 = 256 << 20;
    let server = Server::start(&["--ram", &format!("scratch={SIZE}")]);
    let nbd = Nbd::unix(&server, "scratch");
    // Each connection has every fourth block, so that neighbours are written at the same time.
    let blocks = |connection: u64| {
        let mut random = Random(connection);
        let mut blocks: Vec<u64> =
            (0..64 * 16).map(|_| random.below(SIZE / u64::from(BLOCK) / 4) * 4 + connection).collect();
        blocks.sort_unstable();
        blocks.dedup();
        // In no order at all.
        (0..blocks.len()).for_each(|at| blocks.swap(at, random.below(at as u64 + 1) as usize));
        blocks
    };
    thread::scope(|scope| {
        for connection in 0..4 {
            let (mut raw, blocks) = (Raw::attach(&nbd), blocks(connection));
            scope.spawn(move || {
                for batch in blocks.chunks(64) {
                    let mut sent: Vec<u64> = Vec::new();
                    for block in batch {
                        sent.push(raw.request(CMD_WRITE, 0, block * u64::from(BLOCK), BLOCK));
                        raw.send(&pattern(*block, BLOCK as usize));
                    }
                    let mut back: Vec<u64> = batch
                        .iter()
                        .map(|_| {
                            let (cookie, result) = raw.reply(0);
                            result.unwrap();
                            cookie
                        })
                        .collect();
                    back.sort_unstable();
                    sent.sort_unstable();
                    assert_eq!(back, sent);
                }
            });
        }
    });
    let mut reader = Raw::attach(&nbd);
    for connection in 0..4 {
        for batch in blocks(connection).chunks(64) {
            let sent: HashMap<u64, u64> = batch
                .iter()
                .map(|block| (reader.request(CMD_READ, 0, block * u64::from(BLOCK), BLOCK), *block))
                .collect();
            for _ in batch {
                let (cookie, result) = reader.reply(BLOCK as usize);
                assert!(result.unwrap() == pattern(sent[&cookie], BLOCK as usize), "block {}", sent[&cookie]);
            }
        }
    }
}

#[test]
fn an_answered_write_is_seen_on_every_other_connection() {
    let server = Server::start(&["--ram", "scratch=1M"]);
    let nbd = Nbd::unix(&server, "scratch");
    let mut all: Vec<Raw> = (0..4).map(|_| Raw::attach(&nbd)).collect();
    for round in 0..200u64 {
        let writer = (round % 4) as usize;
        let bytes = pattern(round, 777);
        all[writer].write(round * 1234, &bytes).unwrap();
        for raw in &mut all {
            assert_eq!(raw.read(round * 1234, 777).unwrap(), bytes, "round {round}");
        }
    }
}

#[test]
fn as_many_connections_as_a_session_has_lanes_are_served_and_one_more_is_turned_away() {
    let server = Server::start(&["--ram", "scratch=1M"]);
    let nbd = Nbd::unix(&server, "scratch");
    let mut all: Vec<Raw> = (0..16).map(|_| Raw::attach(&nbd)).collect();
    for (number, raw) in (0u8..).zip(&mut all) {
        raw.write(u64::from(number) * 512, &[number; 512]).unwrap();
    }
    // Its handshake succeeds, which promises nothing yet; it is not left waiting.
    let mut one_more = Raw::attach(&nbd);
    assert!(one_more.is_closed());
    for (number, raw) in (0u8..).zip(&mut all) {
        assert_eq!(raw.read(u64::from(number) * 512, 512).unwrap(), [number; 512]);
    }
    // With room again, the next one is served.
    all.truncate(8);
    eventually("a lane comes back", || {
        let mut next = Raw::attach(&nbd);
        let _ = next.stream.write_all(&request_bytes(CMD_READ, 0, 1, 0, 1));
        !next.is_closed()
    });
}

#[test]
fn a_slow_reader_holds_up_nobody_and_gets_everything() {
    let server = Server::start(&["--ram", "scratch=16M"]);
    let nbd = Nbd::unix(&server, "scratch");
    let mut slow = Raw::attach(&nbd);
    let bytes = pattern(5, 16 << 20);
    slow.write(0, &bytes).unwrap();
    // Far more than sockets hold, and nothing is taken.
    let cookies: Vec<u64> = (0..32).map(|_| slow.request(CMD_READ, 0, 0, 8 << 20)).collect();
    let mut other = Raw::attach(&nbd);
    for round in 0..200 {
        assert_eq!(other.read(round * 4096, 4096).unwrap(), bytes[round as usize * 4096..][..4096]);
    }
    for cookie in cookies {
        let (back, result) = slow.reply(8 << 20);
        assert_eq!(back, cookie);
        assert!(result.unwrap() == bytes[..8 << 20], "the bytes of a slow read");
    }
}

/// Requests whose answers nobody takes must not pile up: the lane stops reading, and goes on once they are taken.
#[test]
fn answers_that_nobody_takes_hold_up_their_own_client_only() {
    const REQUESTS: u64 = 100_000;
    let server = Server::start(&["--ram", "scratch=1M"]);
    let nbd = Nbd::unix(&server, "scratch");
    let mut stream = UnixStream::connect(nbd.socket()).unwrap();
    stream.read_exact(&mut [0; 18]).unwrap();
    stream.write_all(&[0, 0, 0, 3]).unwrap();
    stream.write_all(&option_bytes(OPT_EXPORT_NAME, b"scratch")).unwrap();
    stream.read_exact(&mut [0; 10]).unwrap();

    let mut sender = stream.try_clone().unwrap();
    let sending = thread::spawn(move || {
        for cookie in 0..REQUESTS {
            sender.write_all(&request_bytes(CMD_FLUSH, 0, cookie, 0, 0)).unwrap();
        }
    });
    let mut other = Raw::attach(&nbd);
    for _ in 0..200 {
        other.ask(CMD_FLUSH, 0, 0, 0).unwrap();
        thread::sleep(Duration::from_millis(5));
    }
    assert!(!sending.is_finished(), "{REQUESTS} requests were taken although no answer was");
    for cookie in 0..REQUESTS {
        let mut reply = [0; 16];
        stream.read_exact(&mut reply).unwrap();
        assert_eq!(reply[4..], [&[0; 4][..], &cookie.to_be_bytes()].concat());
    }
    sending.join().unwrap();
}

#[test]
fn long_and_short_requests_mix_on_one_connection() {
    let server = Server::start(&["--ram", "scratch=48M"]);
    let nbd = Nbd::unix(&server, "scratch");
    let mut raw = Raw::attach(&nbd);
    let bytes = pattern(6, 48 << 20);
    raw.write(0, &bytes[..24 << 20]).unwrap();
    raw.write(24 << 20, &bytes[24 << 20..]).unwrap();
    let mut random = Random(6);
    let mut sent = HashMap::new();
    for _ in 0..60 {
        let length = [1, 512, 4096, 100_000, 5 << 20][random.below(5) as usize];
        let offset = random.below((48 << 20) - u64::from(length) + 1);
        sent.insert(raw.request(CMD_READ, 0, offset, length), (offset as usize, length as usize));
    }
    // A simple reply does not say how long it is, so the header is looked at first.
    while !sent.is_empty() {
        let (cookie, result) = raw.reply(0);
        result.unwrap();
        let (offset, length) = sent.remove(&cookie).expect("each is answered once");
        assert!(raw.take(length) == bytes[offset..offset + length], "{length} bytes at {offset}");
    }
}

#[test]
fn reads_that_wait_for_slots_go_on_once_a_client_takes_the_data_of_others() {
    // A client takes nothing for a while: then every slot holds data that waits for the socket, and further reads wait
    // for slots. Once it reads, fast enough, one send empties them all, and nothing else ever wakes the lane.
    const LENGTH: u32 = 16 << 10;
    let server = Server::start(&["--null", "void=1G"]);
    let nbd = Nbd::unix(&server, "void");
    for count in (500..1000u64).step_by(25) {
        let mut raw = Raw::attach(&nbd);
        let requests: Vec<u8> =
            (0..count).flat_map(|cookie| request_bytes(CMD_READ, 0, cookie, 0, LENGTH)).collect();
        raw.send(&requests);
        thread::sleep(Duration::from_millis(50));
        let mut answered: Vec<u64> = (0..count).map(|_| raw.reply(LENGTH as usize).0).collect();
        answered.sort_unstable();
        assert!(answered.into_iter().eq(0..count));
    }
}
