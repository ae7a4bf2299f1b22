//! A disk that hangs: its export waits for it, and nothing else does.

use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use kaeru_common::wire::control::{Attach, Hello, Identity, Name};
use kaeru_common::wire::version::VersionRange;
use kaeru_common::wire::{CONTROL_PREAMBLE, Message};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::harness::client::{Nbd, run_kaeru};
use crate::harness::nbd::{CMD_WRITE, Raw};
use crate::harness::process::{SOON, eventually};
use crate::harness::server::{Server, disk_folder};

/// A server whose export "disk" hangs with a write of a client that is attached to it.
struct Hanging {
    server: Server,
    since: Instant,
    _client: Raw,
    _nbd: Nbd,
    folder: TempDir,
}

impl Hanging {
    fn start(time: Duration) -> Self {
        let folder = disk_folder();
        let file = format!("disk={},create=1M", folder.path().join("export.img").display());
        let fault = format!("disk=write:delay={}s,hang,count", time.as_secs());
        let server = Server::start(&["-v", "--file", &file, "--fault", &fault, "--ram", "memory=1M"]);
        let nbd = Nbd::unix(&server, "disk");
        let mut client = Raw::attach(&nbd);
        let since = Instant::now();
        client.request(CMD_WRITE, 0, 0, 512);
        client.send(&[1; 512]);
        eventually("the store has the write", || server.process.errors().contains("write number 1"));
        Self { server, since, _client: client, _nbd: nbd, folder }
    }
}

/// Asks to take the right to write, and does not wait for an answer.
fn steal(server: &Server) -> TcpStream {
    let hello = Message::Hello(Hello {
        versions: VersionRange::OURS,
        identity: Identity { bytes: [7; 16] },
        client: Name::clipped("a thief"),
    });
    let (export, resume) = ("disk".parse().unwrap(), None);
    let attach = Message::Attach(Attach { export, read_only: false, steal: true, resume });
    let mut bytes = BytesMut::from(&CONTROL_PREAMBLE[..]);
    hello.encode(&mut bytes);
    attach.encode(&mut bytes);
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.write_all(&bytes).unwrap();
    stream
}

#[test]
fn the_right_to_write_is_not_given_on_before_the_last_write_of_the_old_one_is_over() {
    let time = Duration::from_secs(3);
    let hanging = Hanging::start(time);
    let taken = Nbd::unix_with(&hanging.server, "disk", &["--steal"]);
    assert!(hanging.since.elapsed() >= time, "granted after {:?}", hanging.since.elapsed());
    drop(taken);
}

#[test]
fn a_steal_from_a_client_whose_disk_hangs_is_refused_with_the_reason() {
    let hanging = Hanging::start(Duration::from_secs(600));
    let target = hanging.server.export("disk");
    let socket = hanging.folder.path().join("nbd.sock");
    let arguments = ["nbd", &target, "--steal", "--socket", socket.to_str().unwrap()];
    run_kaeru(&arguments).failure(1, &["another client writes", "does not answer", "dmesg"]);
    // Once more: the first try has changed nothing about it.
    run_kaeru(&arguments).failure(1, &["another client writes", "does not answer"]);
}

#[test]
fn many_who_wait_for_a_disk_that_hangs_are_in_nobody_s_way_and_may_leave() {
    let hanging = Hanging::start(Duration::from_secs(600));
    let server = &hanging.server;
    let (descriptors, threads) = (server.process.descriptors(), server.process.threads());
    let thieves: Vec<TcpStream> = (0..600).map(|_| steal(server)).collect();
    eventually("they are taken", || server.process.descriptors() > descriptors + thieves.len());
    Raw::attach(&Nbd::unix(server, "memory")).write(0, b"healthy").unwrap();
    assert!(server.process.threads() < threads + 50, "{} threads", server.process.threads());
    drop(thieves);
    eventually("they have left", || server.process.descriptors() <= descriptors);
}

#[test]
fn a_stop_says_what_it_waits_for_and_a_second_one_does_not_wait() {
    let Hanging { mut server, .. } = Hanging::start(Duration::from_secs(600));
    server.process.signal(Signal::TERM);
    eventually("it says what it waits for", || {
        let errors = server.process.errors();
        errors.contains("waiting for export disk") && errors.contains("another SIGTERM")
    });
    assert!(!server.process.errors().contains("export memory"), "nobody is attached to it");
    assert!(server.process.is_alive(), "it waits");
    server.process.signal(Signal::INT);
    let status = server.process.ended_within(SOON).expect("it does not wait any more");
    assert_eq!(status.code(), Some(1));
    assert!(server.process.errors().contains("told a second time"), "{}", server.process.errors());
}
