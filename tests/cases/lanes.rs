//! Lanes of a client whose server or network is in trouble: what is told, who waits for whom, and for how long.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use kaeru_common::wire::CONTROL_PREAMBLE;
use rustix::process::Signal;
use serde_json::Value;

use crate::harness::client::Nbd;
use crate::harness::nbd::{CMD_READ, CMD_WRITE, EIO, Raw};
use crate::harness::server::Server;

fn state(nbd: &Nbd) -> Value {
    let reports: Value = serde_json::from_str(&nbd.kaeru(&["status", "--json"]).success()).unwrap();
    reports[0].clone()
}

/// `status` asks the session how it is, and the session's thread waits for nobody who asks.
#[test]
fn looking_at_a_stopped_server_stops_nothing_else() {
    let server = Server::start(&["--ram", "scratch=1M"]);
    let mut nbd = Nbd::unix(&server, "scratch");
    let mut first = Raw::attach(&nbd);
    first.write(0, &[1; 512]).unwrap();
    server.process.signal(Signal::STOP);
    // It has its handshake, and waits for the server to grant it a lane.
    let mut second = Raw::attach(&nbd);
    let cookie = second.request(CMD_READ, 0, 0, 512);
    for _ in 0..4 {
        assert_ne!(state(&nbd)["state"], "stuck");
        thread::sleep(Duration::from_secs(1));
    }
    assert_eq!(state(&nbd)["state"], "silent");
    server.process.signal(Signal::CONT);
    assert_eq!(second.reply(512), (cookie, Ok(vec![1; 512])));
    let (code, _) = nbd.process.terminate();
    assert_eq!(code, Some(0));
}

/// A server that takes nothing for longer than TCP likes is no dead one: `--timeout` says when it is.
#[test]
fn writes_wait_for_a_server_that_stands_still_as_long_as_the_timeout_says() {
    const COUNT: u64 = 300;
    let server = Server::start(&["--ram", "scratch=64M"]);
    let nbd = Nbd::unix_with(&server, "scratch", &["--timeout", "60s"]);
    let mut client = Raw::attach(&nbd);
    client.stream.set_patience(Duration::from_secs(60));
    let mut stream = client.stream.another();
    server.process.signal(Signal::STOP);
    // Far more than fits into the buffers in between.
    let writer = thread::spawn(move || {
        for number in 0..COUNT {
            let head =
                crate::harness::nbd::request_bytes(CMD_WRITE, 0, 1000 + number, number << 17, 128 << 10);
            stream.write_all(&[head, vec![number as u8; 128 << 10]].concat()).unwrap();
        }
    });
    thread::sleep(Duration::from_secs(13));
    server.process.signal(Signal::CONT);
    for _ in 0..COUNT {
        assert_eq!(client.reply(0).1, Ok(vec![]));
    }
    writer.join().unwrap();
}

#[test]
fn a_lane_that_was_given_up_is_told_by_status() {
    let server = Server::start(&["--ram", "scratch=1M"]);
    let nbd = Nbd::unix_with(&server, "scratch", &["--timeout", "1s"]);
    let mut client = Raw::attach(&nbd);
    assert_eq!(state(&nbd)["state"], "ok");
    server.process.signal(Signal::STOP);
    assert_eq!(client.read(0, 512), Err(EIO));
    server.process.signal(Signal::CONT);
    let report = state(&nbd);
    assert_eq!(report["state"], "degraded", "{report}");
    assert!(report["detail"].as_str().unwrap().contains("1 of 1 lanes are lost"), "{report}");
    // Who comes now gets a lane that works.
    drop(client);
    assert_eq!(Raw::attach(&nbd).read(0, 512).unwrap().len(), 512);
    assert_eq!(state(&nbd)["state"], "ok");
}

#[test]
fn a_lane_that_spins_for_long_keeps_its_timeout() {
    let server = Server::start(&["--ram", "scratch=1M"]);
    let nbd = Nbd::unix_with(&server, "scratch", &["--timeout", "1s", "--spin", "30s"]);
    let mut client = Raw::attach(&nbd);
    client.write(0, &[1; 512]).unwrap();
    server.process.signal(Signal::STOP);
    let start = Instant::now();
    assert_eq!(client.read(0, 512), Err(EIO));
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

/// Room in a socket is no news to a lane that has nothing to send.
#[test]
fn a_lane_sleeps_after_its_socket_was_full() {
    let server = Server::start(&["--ram", "scratch=64M"]);
    let nbd = Nbd::unix_with(&server, "scratch", &["--spin", "5ms"]);
    let mut client = Raw::attach(&nbd);
    let mut stream = client.stream.another();
    server.process.signal(Signal::STOP);
    let writer = thread::spawn(move || {
        for number in 0..300 {
            let head =
                crate::harness::nbd::request_bytes(CMD_WRITE, 0, 1000 + number, number << 17, 128 << 10);
            stream.write_all(&[head, vec![7; 128 << 10]].concat()).unwrap();
        }
    });
    thread::sleep(Duration::from_millis(600));
    server.process.signal(Signal::CONT);
    for _ in 0..300 {
        assert_eq!(client.reply(0).1, Ok(vec![]));
    }
    writer.join().unwrap();
    thread::sleep(Duration::from_millis(300));
    let before = nbd.process.ticks();
    thread::sleep(Duration::from_secs(2));
    let used = nbd.process.ticks() - before;
    assert!(used < 50, "{used} hundredths of a second in 2 s of idling");
}

/// Lets connections through to a server, and cuts those of lanes when it is told to.
struct Wire {
    address: SocketAddr,
    lanes: Arc<Mutex<Vec<TcpStream>>>,
}

impl Wire {
    fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, lanes) = (listener.local_addr().unwrap(), Arc::<Mutex<Vec<TcpStream>>>::default());
        let kept = lanes.clone();
        thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let far = TcpStream::connect(server).unwrap();
                let mut preamble = [0; CONTROL_PREAMBLE.len()];
                (&near).read_exact(&mut preamble).unwrap();
                (&far).write_all(&preamble).unwrap();
                if preamble != CONTROL_PREAMBLE {
                    kept.lock().unwrap().extend([near.try_clone().unwrap(), far.try_clone().unwrap()]);
                }
                for (mut from, mut to) in [(near.try_clone().unwrap(), far.try_clone().unwrap()), (far, near)]
                {
                    thread::spawn(move || std::io::copy(&mut from, &mut to));
                }
            }
        });
        Self { address, lanes }
    }

    fn cut_lanes(&self) {
        for stream in self.lanes.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

#[test]
fn a_lane_that_died_while_nobody_used_it_is_given_to_nobody() {
    let mut server = Server::start(&["--ram", "scratch=1M"]);
    let wire = Wire::to(server.address);
    server.address = wire.address;
    let nbd = Nbd::unix(&server, "scratch");
    Raw::attach(&nbd).write(0, &[3; 512]).unwrap();
    // Its lane is idle by now, or about to be.
    thread::sleep(Duration::from_millis(300));
    wire.cut_lanes();
    thread::sleep(Duration::from_millis(300));
    assert_eq!(Raw::attach(&nbd).read(0, 512), Ok(vec![3; 512]));
}
