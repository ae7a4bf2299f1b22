//! Ends: of clients, of servers, on purpose and by accident. Nothing hangs, and the next one is welcome.

use std::time::{Duration, Instant};

use kaeru_client::session::{AttachOptions, Session, SessionError};
use rustix::process::Signal;

use crate::harness::client::Nbd;
use crate::harness::nbd::*;
use crate::harness::process::run;
use crate::harness::server::Server;

#[test]
fn a_killed_client_is_replaced_within_five_seconds() {
    let server = Server::start(&["--ram", "scratch=16M"]);
    let mut killed = Nbd::unix(&server, "scratch");
    let path = killed.socket().to_owned();
    let mut client = Raw::attach(&killed);
    client.write(0, b"kept").unwrap();
    // In the middle of something.
    client.request(CMD_WRITE, 0, 8192, 1 << 20);
    client.send(&[7; 500_000]);
    killed.process.kill();
    let start = Instant::now();
    let second = Nbd::unix_at(&server, "scratch", &path);
    let mut raw = Raw::attach(&second);
    assert_eq!(raw.read(0, 4).unwrap(), b"kept", "what was answered is there");
    raw.write(0, b"next").unwrap();
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

#[test]
fn a_server_asked_to_end_ends_at_once_with_clients_attached() {
    let mut server = Server::start(&["--ram", "scratch=16M", "--ram", "other=16M"]);
    let (mut busy, idle) = (Nbd::unix(&server, "scratch"), Nbd::unix(&server, "other"));
    let mut client = Raw::attach(&busy);
    client.write(0, &[1; 1 << 20]).unwrap();
    for _ in 0..20 {
        client.request(CMD_READ, 0, 0, 1 << 20);
    }
    let (code, took) = server.process.terminate();
    assert_eq!(code, Some(0));
    assert!(took < Duration::from_secs(2), "{took:?}");
    ends_without_silence(&mut client);
    for (name, nbd) in [("busy", &mut busy), ("idle", &mut { idle })] {
        let status = nbd.process.ended_within(Duration::from_secs(5)).expect("it ends without its server");
        assert_eq!(status.code(), Some(1), "{name}");
        let errors = nbd.process.errors();
        assert!(errors.contains("kaerud was stopped") && errors.contains("I/O errors"), "{errors}");
    }
}

#[test]
fn requests_to_a_killed_server_fail_rather_than_hang() {
    let mut server = Server::start(&["--ram", "scratch=16M"]);
    let nbd = Nbd::unix(&server, "scratch");
    let mut client = Raw::attach(&nbd);
    client.write(0, &[1; 4096]).unwrap();
    for _ in 0..8 {
        client.request(CMD_READ, 0, 0, 1 << 20);
    }
    server.process.kill();
    ends_without_silence(&mut client);
}

/// Whatever comes now, it is answers or the end of the connection, and soon.
#[track_caller]
fn ends_without_silence(client: &mut Raw) {
    let start = Instant::now();
    let _ = client.stream.read_to_end(&mut Vec::new());
    assert!(start.elapsed() < Duration::from_secs(5), "it hung for {:?}", start.elapsed());
}

#[test]
fn a_stopped_server_is_waited_for_and_goes_on() {
    let server = Server::start(&["--ram", "scratch=1M"]);
    let nbd = Nbd::unix(&server, "scratch");
    let mut client = Raw::attach(&nbd);
    server.process.signal(Signal::STOP);
    let cookie = client.request(CMD_WRITE, 0, 0, 512);
    client.send(&[9; 512]);
    std::thread::sleep(Duration::from_millis(1500));
    server.process.signal(Signal::CONT);
    assert_eq!(client.reply(0), (cookie, Ok(vec![])));
    assert_eq!(client.read(0, 512).unwrap(), [9; 512]);
}

#[test]
fn a_server_that_stays_stopped_is_given_up_after_the_timeout() {
    given_up_after_the_timeout(&[]);
}

#[test]
fn a_lane_that_never_sleeps_gives_up_after_the_timeout_too() {
    given_up_after_the_timeout(&["--spin", "always"]);
}

fn given_up_after_the_timeout(flags: &[&str]) {
    let server = Server::start(&["--ram", "scratch=1M"]);
    let mut nbd = Nbd::unix_with(&server, "scratch", &[&["--timeout", "2s"], flags].concat());
    let mut client = Raw::attach(&nbd);
    client.write(0, &[1; 512]).unwrap();
    server.process.signal(Signal::STOP);
    let start = Instant::now();
    let cookies = [(); 3].map(|()| client.request(CMD_READ, 0, 0, 512));
    for cookie in cookies {
        assert_eq!(client.reply(512), (cookie, Err(EIO)));
    }
    let waited = start.elapsed();
    assert!((Duration::from_millis(1900)..Duration::from_secs(4)).contains(&waited), "{waited:?}");
    // Further ones fail at once, and the connection lives: a kernel would keep its disk.
    let start = Instant::now();
    for _ in 0..10 {
        assert_eq!(client.read(0, 512), Err(EIO));
        assert_eq!(client.write(0, &[2; 4096]), Err(EIO));
    }
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    let (code, took) = nbd.process.terminate();
    assert_eq!(code, Some(0));
    assert!(took < Duration::from_secs(8), "{took:?}");
}

#[test]
fn a_lane_that_a_stopped_server_does_not_grant_is_given_up_and_later_ones_are_granted() {
    let server = Server::start(&["--ram", "scratch=1M"]);
    let target = server.export("scratch").parse().unwrap();
    let session = Session::attach(&target, AttachOptions::default()).unwrap();
    server.process.signal(Signal::STOP);
    let late = session.open_lane().err();
    server.process.signal(Signal::CONT);
    assert!(matches!(late, Some(SessionError::LaneLate { .. })), "{late:?}");
    // What the server grants now is for the lane that nobody waits for; the next one gets a grant of its own.
    for _ in 0..3 {
        session.open_lane().unwrap();
    }
}

#[test]
fn a_client_asked_to_end_answers_what_it_has_taken() {
    let server = Server::start(&["--ram", "scratch=16M"]);
    for signal in [Signal::TERM, Signal::INT] {
        let mut nbd = Nbd::unix(&server, "scratch");
        let mut client = Raw::attach(&nbd);
        client.write(0, b"answered").unwrap();
        let start = Instant::now();
        nbd.process.signal(signal);
        let status = nbd.process.ended_within(Duration::from_secs(5)).expect("it ends");
        assert_eq!(status.code(), Some(0), "after {:?}", start.elapsed());
        assert!(client.is_closed());
        assert!(!nbd.socket().exists());
    }
    assert_eq!(Raw::attach(&Nbd::unix(&server, "scratch")).read(0, 8).unwrap(), b"answered");
}

#[test]
fn a_signal_right_behind_the_announcement_ends_it_cleanly() {
    let server = Server::start(&["--null", "x=1M"]);
    for _ in 0..20 {
        let mut nbd = Nbd::unix(&server, "x");
        assert_eq!(nbd.process.terminate().0, Some(0));
        assert!(!nbd.socket().exists());
    }
}

#[test]
fn what_one_client_wrote_the_next_one_reads() {
    let server = Server::start(&["--ram", "scratch=1M"]);
    for round in 0..5u8 {
        let mut nbd = Nbd::unix(&server, "scratch");
        let mut raw = Raw::attach(&nbd);
        if round > 0 {
            assert_eq!(raw.read(u64::from(round) - 1, 1).unwrap(), [round]);
        }
        raw.write(u64::from(round), &[round + 1]).unwrap();
        drop(raw);
        // The right to write is back when the process has ended.
        assert_eq!(nbd.process.terminate().0, Some(0));
    }
}

#[test]
fn a_hundred_attachments_leave_nothing_in_the_server() {
    let server = Server::start(&["--ram", "scratch=1M"]);
    let serve_once = || {
        let mut nbd = Nbd::unix(&server, "scratch");
        Raw::attach(&nbd).write(0, b"x").unwrap();
        assert_eq!(nbd.process.terminate().0, Some(0));
    };
    (0..3).for_each(|_| serve_once());
    let before = (server.process.descriptors(), server.process.threads());
    (0..30).for_each(|_| serve_once());
    // Sessions that are refused, and lists.
    let folder = crate::harness::process::scratch();
    for _ in 0..70 {
        let target = server.export("unknown");
        run(&mut crate::harness::client::kaeru(folder.path(), &["nbd", &target, "--listen", "127.0.0.1:0"]))
            .failure(1, &["unknown"]);
    }
    crate::harness::process::eventually("descriptors and threads are back", || {
        server.process.descriptors() <= before.0 && server.process.threads() <= before.1 + 2
    });
}
