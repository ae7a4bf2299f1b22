//! The NBD handshake against clients that are new, old, confused, cut off or talk too much.

use std::time::{Duration, Instant};

use crate::harness::client::Nbd;
use crate::harness::nbd::*;
use crate::harness::process::eventually;
use crate::harness::server::Server;

fn serve() -> (Server, Nbd) {
    serve_export("scratch")
}

fn serve_export(name: &str) -> (Server, Nbd) {
    let server = Server::start(&["--ram", &format!("{name}=1M")]);
    let nbd = Nbd::unix(&server, name);
    (server, nbd)
}

/// Another client is served, and the process has nothing left of those before.
#[track_caller]
fn still_serves(nbd: &Nbd) {
    let mut raw = Raw::attach(nbd);
    raw.write(4096, b"still here").unwrap();
    assert_eq!(raw.read(4096, 10).unwrap(), b"still here");
}

#[test]
fn an_unknown_option_of_any_length_is_unsupported_and_go_works_after_it() {
    let (_server, nbd) = serve();
    for option in [11, 12, 0x7fff_ffff] {
        for length in [0, 1, 64 << 10] {
            let mut raw = Raw::greet(&nbd, FIXED | NO_ZEROES);
            raw.option(option, &vec![0x5a; length]);
            let answer = raw.answer();
            assert_eq!((answer.option, answer.kind), (option, REP_ERR_UNSUP), "{length} bytes");
            raw.go("scratch");
            assert_eq!(raw.read(0, 512).unwrap(), [0; 512]);
        }
    }
}

#[test]
fn structured_replies_with_payload_are_invalid_and_go_works_after_it() {
    let (_server, nbd) = serve();
    for (length, kind) in [(0, REP_ACK), (1, REP_ERR_INVALID), (64 << 10, REP_ERR_INVALID)] {
        let mut raw = Raw::greet(&nbd, FIXED | NO_ZEROES);
        raw.option(OPT_STRUCTURED_REPLY, &vec![0; length]);
        assert_eq!(raw.answer().kind, kind, "{length} bytes");
        raw.go("scratch");
    }
}

#[test]
fn many_options_before_go_are_answered_one_by_one() {
    let (_server, nbd) = serve();
    let mut raw = Raw::greet(&nbd, FIXED | NO_ZEROES);
    // All at once, so that the server has to cut the stream itself.
    let options: Vec<u8> = (100..120).flat_map(|option| option_bytes(option, &[1, 2, 3])).collect();
    raw.send(&options);
    for option in 100..120 {
        let answer = raw.answer();
        assert_eq!((answer.option, answer.kind), (option, REP_ERR_UNSUP));
    }
    raw.go("scratch");
}

#[test]
fn the_empty_name_is_the_export_and_others_are_unknown() {
    let (_server, nbd) = serve();
    let mut raw = Raw::greet(&nbd, FIXED | NO_ZEROES);
    for unknown in ["scratch2", "Scratch", &"x".repeat(255), "蛙", &"y".repeat(4096)] {
        assert_eq!(raw.try_go(unknown), REP_ERR_UNKNOWN, "a name of {} bytes", unknown.len());
    }
    let kind = raw.try_go(&"z".repeat(4097));
    assert!([REP_ERR_TOO_BIG, REP_ERR_INVALID, REP_ERR_UNKNOWN].contains(&kind), "{kind:#x}");
    raw.go("");
    assert_eq!(raw.size, 1 << 20);
}

#[test]
fn long_and_foreign_names_are_found() {
    for name in ["蛙が帰る", &"n".repeat(255)] {
        let (_server, nbd) = serve_export(name);
        Raw::attach(&nbd);
        Raw::greet(&nbd, FIXED).export_name(name, true);
    }
}

#[test]
fn export_name_is_answered_with_and_without_zeroes() {
    let (_server, nbd) = serve();
    for (flags, zeroes) in [(FIXED, true), (FIXED | NO_ZEROES, false), (0, true), (NO_ZEROES, false)] {
        for name in ["scratch", ""] {
            let mut raw = Raw::greet(&nbd, flags);
            raw.export_name(name, zeroes);
            assert_eq!((raw.size, raw.flags & 1), (1 << 20, 1), "flags {flags}, name {name:?}");
            // DF means nothing without structured replies.
            assert_eq!(raw.flags & 1 << 7, 0, "flags {flags}, name {name:?}");
            raw.write(7, b"in step").unwrap();
            assert_eq!(raw.read(7, 7).unwrap(), b"in step");
        }
    }
}

#[test]
fn export_name_of_something_unknown_closes_the_connection() {
    let (_server, nbd) = serve();
    for name in ["nothing", &"x".repeat(4096), &"x".repeat(4097)] {
        let mut raw = Raw::greet(&nbd, FIXED | NO_ZEROES);
        raw.option(OPT_EXPORT_NAME, name.as_bytes());
        assert!(raw.is_closed(), "a name of {} bytes", name.len());
    }
    still_serves(&nbd);
}

#[test]
fn unknown_client_flags_close_the_connection() {
    let (_server, nbd) = serve();
    for flags in [4, 0x8000_0000 | FIXED] {
        let mut raw = Raw::greet(&nbd, flags);
        // It may be closed before this is sent.
        let _ = raw.stream.write_all(&option_bytes(OPT_LIST, &[]));
        assert!(raw.is_closed(), "{flags:#x}");
    }
    still_serves(&nbd);
}

#[test]
fn abort_is_acknowledged_and_closes() {
    let (_server, nbd) = serve();
    let mut raw = Raw::greet(&nbd, FIXED | NO_ZEROES);
    raw.option(OPT_ABORT, &[]);
    assert_eq!(raw.answer().kind, REP_ACK);
    assert!(raw.is_closed());
}

/// A handshake as a client sends it, by messages.
fn messages() -> Vec<Vec<u8>> {
    vec![
        (FIXED | NO_ZEROES).to_be_bytes().to_vec(),
        option_bytes(OPT_STRUCTURED_REPLY, &[]),
        option_bytes(OPT_LIST, &[]),
        option_bytes(OPT_GO, &go_data("scratch")),
        request_bytes(CMD_READ, 0, 1, 0, 512),
        [request_bytes(CMD_WRITE, 0, 2, 0, 64), vec![7; 64]].concat(),
        request_bytes(CMD_DISC, 0, 3, 0, 0),
    ]
}

#[test]
fn a_client_cut_off_at_any_byte_leaves_nothing_behind() {
    let (_server, nbd) = serve();
    still_serves(&nbd);
    let (descriptors, threads) = (nbd.process.descriptors(), nbd.process.threads());
    let stream = messages().concat();
    for length in 0..stream.len() {
        let mut cut = dial(&nbd);
        cut.write_all(&stream[..length]).unwrap();
        if length % 2 == 0 {
            // Says that it is done and waits for the end; the others just go.
            cut.finish();
            let mut rest = Vec::new();
            let end = cut.read_to_end(&mut rest);
            assert!(end.is_ok(), "cut at {length}: {end:?} after {} bytes", rest.len());
        }
    }
    eventually("the clients' threads end", || nbd.process.threads() <= threads + 1);
    still_serves(&nbd);
    // An idle lane or two may be kept for the next clients.
    eventually("the clients' descriptors are closed", || nbd.process.descriptors() <= descriptors + 8);
}

#[test]
fn a_message_with_a_byte_too_many_anywhere_ends_at_most_its_own_connection() {
    let (_server, nbd) = serve();
    let messages = messages();
    for longer in 0..messages.len() {
        for at in 0..=messages[longer].len() {
            let mut stream = messages.clone();
            stream[longer].insert(at, 0xee);
            let mut raw = dial(&nbd);
            // The server may close it before all is sent.
            let _ = raw.write_all(&stream.concat());
            raw.finish();
            let start = Instant::now();
            let _ = raw.read_to_end(&mut Vec::new());
            assert!(start.elapsed() < Duration::from_secs(10), "message {longer}, byte {at}: it hangs");
        }
    }
    still_serves(&nbd);
}

#[test]
fn an_option_that_announces_gigabytes_is_not_waited_for() {
    let (_server, nbd) = serve();
    for option in [OPT_EXPORT_NAME, OPT_GO, OPT_LIST, 77] {
        let mut raw = Raw::greet(&nbd, FIXED | NO_ZEROES);
        let mut header = option_bytes(option, &[]);
        header[12..].copy_from_slice(&u32::MAX.to_be_bytes());
        raw.send(&header);
        // An error reply, or the end; the header alone has to suffice.
        if !raw.is_closed() {
            raw.take(19);
        }
    }
    still_serves(&nbd);
}

#[test]
fn a_client_that_says_nothing_keeps_nobody_waiting() {
    let (_server, mut nbd) = serve();
    let _silent: Vec<_> = (0..20).map(|_| dial(&nbd)).collect();
    still_serves(&nbd);
    let (code, took) = nbd.process.terminate();
    assert_eq!(code, Some(0));
    assert!(took < Duration::from_secs(3), "silent clients held it up for {took:?}");
}

#[test]
fn a_client_killed_in_its_payload_harms_no_other() {
    let (_server, nbd) = serve();
    let mut other = Raw::attach(&nbd);
    other.write(0, &[1; 4096]).unwrap();
    for sent in [0, 1, 4095, 100_000, 262_143] {
        let mut killed = Raw::attach(&nbd);
        killed.request(CMD_WRITE, 0, 8192, 262_144);
        killed.send(&vec![2; sent]);
        drop(killed);
        other.write(4096, &[3; 512]).unwrap();
        assert_eq!(other.read(0, 4096).unwrap(), [1; 4096]);
        assert_eq!(other.read(4096, 512).unwrap(), [3; 512]);
    }
    // More often than there are lanes in a session, so each must have come back.
    for _ in 0..40 {
        let mut killed = Raw::attach(&nbd);
        killed.request(CMD_WRITE, 0, 8192, 65_536);
        killed.send(&[2; 100]);
    }
    eventually("lanes come back", || nbd.process.threads() < 16);
    still_serves(&nbd);
}
