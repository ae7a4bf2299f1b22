//! Random operations against a vector of bytes: over NBD from several connections, and through the library.

use std::time::{Duration, Instant};

use kaeru_client::session::{AttachOptions, FabricChoice, Session};
use kaeru_client::with_remote;

use crate::harness::client::Nbd;
use crate::harness::nbd::*;
use crate::harness::random::{Random, with_seeds};
use crate::harness::server::{Keep, Server};

const SIZE: u64 = (1 << 20) + 77;

/// Time for the seeds of one test; the first few run in any case.
const BUDGET: Duration = Duration::from_secs(6);
const PATIENCE: Duration = Duration::from_secs(20);

/// A range of an export of `size` bytes that is short or long, anywhere or at an edge.
fn range(random: &mut Random, size: u64) -> (u64, u64) {
    let longest = [1, 600, 5000, 300_000, size][random.below(5) as usize];
    let length = 1 + random.below(longest.min(size));
    let last = size - length;
    let offset = match random.below(6) {
        0 => 0,
        1 => last,
        2 => last.min(random.below(size / 4096) * 4096),
        _ => random.below(last + 1),
    };
    (offset, length)
}

fn cut(model: &mut [u8], (offset, length): (u64, u64)) -> &mut [u8] {
    &mut model[offset as usize..(offset + length) as usize]
}

/// Runs seeds until the budget is used up.
fn many_seeds(least: u64, body: impl Fn(u64)) {
    let start = Instant::now();
    with_seeds(0..1000, |seed| {
        if seed < least || start.elapsed() < BUDGET || std::env::var_os("KAERU_SEED").is_some() {
            body(seed);
        }
    });
}

/// A range of whole blocks.
fn blocks(random: &mut Random, size: u64, block: u64) -> (u64, u64) {
    let (offset, length) = range(random, size / block);
    (offset * block, length * block)
}

#[test]
fn nbd_connections_agree_with_a_vector() {
    connections_agree(Keep::Ram, SIZE, 1);
}

#[test]
fn nbd_connections_to_a_file_past_the_page_cache_agree_with_a_vector() {
    connections_agree(Keep::DirectFile, (1 << 20) + 512, 512);
}

#[test]
fn nbd_connections_to_a_file_in_the_page_cache_agree_with_a_vector() {
    connections_agree(Keep::BufferedFile, (1 << 20) + 512, 512);
}

#[test]
fn nbd_connections_to_a_file_without_a_ring_agree_with_a_vector() {
    connections_agree(Keep::PlainFile, (1 << 20) + 512, 512);
}

/// Up to four connections to an export of `size` bytes, in blocks of `block`.
fn connections_agree(keep: Keep, size: u64, block: u64) {
    let server = Server::keeping("scratch", size, keep);
    let nbd = Nbd::unix(&server, "scratch");
    many_seeds(5, |seed| {
        let mut random = Random(seed);
        let mut connections: Vec<Raw> = (0..1 + random.below(4)).map(|_| Raw::attach(&nbd)).collect();
        let mut model = vec![seed as u8; size as usize];
        connections[0].write(0, &model).unwrap();
        for _ in 0..60 {
            let count = connections.len() as u64;
            let raw = &mut connections[random.below(count) as usize];
            let at = blocks(&mut random, size, block);
            match random.below(10) {
                0..=3 => {
                    let bytes = random.bytes(at.1 as usize);
                    let flags = if random.one_in(4) { FLAG_FUA } else { 0 };
                    let cookie = raw.request(CMD_WRITE, flags, at.0, at.1 as u32);
                    raw.send(&bytes);
                    assert_eq!(raw.reply(0), (cookie, Ok(vec![])));
                    cut(&mut model, at).copy_from_slice(&bytes);
                }
                4 => {
                    raw.ask(CMD_WRITE_ZEROES, 0, at.0, at.1 as u32).unwrap();
                    cut(&mut model, at).fill(0);
                }
                5 => {
                    raw.ask(CMD_TRIM, 0, at.0, at.1 as u32).unwrap();
                    cut(&mut model, at).fill(0);
                }
                6 => drop(raw.ask(CMD_FLUSH, 0, 0, 0).unwrap()),
                _ => assert!(raw.read(at.0, at.1 as u32).unwrap() == cut(&mut model, at), "a read at {at:?}"),
            }
        }
        let whole = (0, size);
        assert!(
            connections[0].read(0, size as u32).unwrap() == cut(&mut model, whole),
            "the whole at the end"
        );
    });
}

#[test]
fn the_library_agrees_with_a_vector() {
    let server = Server::start(&["--ram", &format!("scratch={SIZE}")]);
    let target = server.export("scratch").parse().unwrap();
    let options = AttachOptions { fabric: FabricChoice::Tcp, ..AttachOptions::default() };
    let session = Session::attach(&target, options).unwrap();
    let mut lanes: Vec<_> = (0..3).map(|_| session.open_lane().unwrap()).collect();
    many_seeds(5, |seed| {
        // The lanes are shared by all seeds, hence a lane of its own where one is needed.
        let mut random = Random(seed);
        let mut own = session.open_lane().unwrap();
        let mut model = vec![seed as u8; SIZE as usize];
        with_remote!(&mut own, remote => remote.write_at(0, &model, PATIENCE)).unwrap();
        for _ in 0..60 {
            let at = range(&mut random, SIZE);
            if random.one_in(2) {
                let bytes = random.bytes(at.1 as usize);
                with_remote!(&mut own, remote => remote.write_at(at.0, &bytes, PATIENCE)).unwrap();
                cut(&mut model, at).copy_from_slice(&bytes);
            } else {
                let mut bytes = vec![0; at.1 as usize];
                with_remote!(&mut own, remote => remote.read_at(at.0, &mut bytes, PATIENCE)).unwrap();
                assert!(bytes == cut(&mut model, at), "a read at {at:?}");
            }
        }
    });
    for lane in &mut lanes {
        let mut bytes = [0; 1];
        let error = with_remote!(lane, remote => remote.read_at(SIZE, &mut bytes, PATIENCE)).unwrap_err();
        assert!(error.to_string().contains(&SIZE.to_string()), "{error}");
        with_remote!(lane, remote => remote.write_at(SIZE - 1, &[1], PATIENCE)).unwrap();
        with_remote!(lane, remote => remote.read_at(SIZE - 1, &mut bytes, PATIENCE)).unwrap();
        assert_eq!(bytes, [1]);
    }
    session.end();
}

#[test]
fn the_library_reports_a_lost_server() {
    let mut server = Server::start(&["--ram", "scratch=1M"]);
    let session =
        Session::attach(&server.export("scratch").parse().unwrap(), AttachOptions::default()).unwrap();
    let mut lane = session.open_lane().unwrap();
    with_remote!(&mut lane, remote => remote.write_at(0, b"x", PATIENCE)).unwrap();
    server.process.kill();
    let start = Instant::now();
    with_remote!(&mut lane, remote => remote.write_at(0, b"x", PATIENCE)).unwrap_err();
    with_remote!(&mut lane, remote => remote.read_at(0, &mut [0], PATIENCE)).unwrap_err();
    assert!(session.open_lane().is_err());
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}
