//! The port of `kaerud` against strangers, half-sentences and loquacious clients.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use kaeru_common::fabric::RejectReason;
use kaeru_common::fabric::handshake::{LaneReject, LaneReply, LaneRequest};
use kaeru_common::units::LaneToken;
use kaeru_common::wire::control::{Attach, Hello, Identity, Name};
use kaeru_common::wire::version::VersionRange;
use kaeru_common::wire::{CONTROL_PREAMBLE, MAX_REQUEST_BYTES, Message};

use crate::harness::client::{Nbd, run_kaeru};
use crate::harness::nbd::Raw;
use crate::harness::process::{binary, eventually};
use crate::harness::random::Random;
use crate::harness::server::Server;

/// A server with an attached client, and what its process had open when nobody bothered it.
struct Bothered {
    server: Server,
    client: Raw,
    _nbd: Nbd,
    descriptors: usize,
    threads: usize,
}

impl Bothered {
    fn start() -> Self {
        let server = Server::start(&["--ram", "scratch=1M", "--ram", "other=1M"]);
        let nbd = Nbd::unix(&server, "scratch");
        let client = Raw::attach(&nbd);
        // The server's pools of threads have come about by then.
        run_kaeru(&["ls", &server.address.to_string()]).success();
        let mut bothered = Self { descriptors: 0, threads: 0, server, client, _nbd: nbd };
        let settled = |server: &Server| (server.process.descriptors(), server.process.threads());
        let mut last = (0, 0);
        eventually("the server settles", || {
            std::thread::sleep(Duration::from_millis(20));
            std::mem::replace(&mut last, settled(&bothered.server)) == settled(&bothered.server)
        });
        (bothered.descriptors, bothered.threads) = last;
        bothered
    }

    fn dial(&self) -> TcpStream {
        let stream = TcpStream::connect(self.server.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(15))).unwrap();
        stream
    }

    /// Says something, then that this was all, and listens until the server closes.
    fn say(&self, bytes: &[u8]) -> Vec<u8> {
        let mut stream = self.dial();
        // The server may close it before it has heard everything.
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(Shutdown::Write);
        let mut heard = Vec::new();
        let _ = stream.read_to_end(&mut heard);
        heard
    }

    /// Checks that the server serves old and new clients and has kept nothing.
    fn end(mut self) {
        self.client.write(512, b"still attached").unwrap();
        assert_eq!(self.client.read(512, 14).unwrap(), b"still attached");
        let listed = run_kaeru(&["ls", &self.server.address.to_string()]).success();
        assert!(listed.contains("scratch") && listed.contains("other"), "{listed}");
        Raw::attach(&Nbd::unix(&self.server, "other")).write(0, b"new").unwrap();
        let process = &self.server.process;
        eventually("every descriptor is closed", || process.descriptors() <= self.descriptors);
        // Threads for blocking jobs are kept for ten seconds by tokio: two may have been needed at once.
        eventually("no thread is left", || process.threads() <= self.threads + 2);
    }
}

/// What a client says to attach, by messages; the first is no message but the preamble.
fn handshake() -> Vec<Vec<u8>> {
    let hello = Message::Hello(Hello {
        versions: VersionRange::OURS,
        identity: Identity { bytes: [7; 16] },
        client: Name::clipped("a test"),
    });
    let attach = Message::Attach(Attach {
        export: "other".parse().unwrap(),
        read_only: false,
        steal: false,
        resume: None,
    });
    let encoded = |message: Message| {
        let mut bytes = BytesMut::new();
        message.encode(&mut bytes);
        bytes.to_vec()
    };
    vec![CONTROL_PREAMBLE.to_vec(), encoded(hello), encoded(attach)]
}

/// Whether the server granted something: the only message of a server that is longer than a refusal of ours.
fn has_granted(heard: &[u8]) -> bool {
    // Frames: length, type, body; Granted is 6.
    let mut rest = heard.get(8..).unwrap_or_default();
    while let [a, b, c, d, high, low, body @ ..] = rest {
        if [*high, *low] == [0, 6] {
            return true;
        }
        let length = u32::from_be_bytes([*a, *b, *c, *d]) as usize;
        rest = body.get(length..).unwrap_or_default();
    }
    false
}

#[test]
fn the_recorded_handshake_is_valid() {
    let bothered = Bothered::start();
    let mut stream = bothered.dial();
    stream.write_all(&handshake().concat()).unwrap();
    // A client that says no more has gone, and needs no grant; so this one stays until it has one.
    let (mut heard, mut chunk) = (Vec::new(), [0; 4096]);
    while !has_granted(&heard) {
        let count = stream.read(&mut chunk).unwrap();
        assert!(count > 0, "the server closed: {heard:?}");
        heard.extend_from_slice(&chunk[..count]);
    }
    drop(stream);
    bothered.end();
}

#[test]
fn garbage_ends_its_own_connection_only() {
    let bothered = Bothered::start();
    let mut random = Random(1);
    for length in [1, 7, 8, 9, 32, 1000, 100_000] {
        assert!(bothered.say(&random.bytes(length)).is_empty(), "{length} bytes of garbage are not answered");
        let mut stream = CONTROL_PREAMBLE.to_vec();
        stream.extend(random.bytes(length));
        assert!(!has_granted(&bothered.say(&stream)));
        let [preamble, hello, _] = &handshake()[..] else { panic!("three parts") };
        let mut stream = [preamble.as_slice(), hello].concat();
        stream.extend(random.bytes(length));
        assert!(!has_granted(&bothered.say(&stream)));
    }
    bothered.say(b"GET / HTTP/1.1\r\nHost: kaeru\r\n\r\n");
    bothered.end();
}

#[test]
fn a_handshake_cut_at_any_byte_grants_nothing() {
    let bothered = Bothered::start();
    let stream = handshake().concat();
    for length in 0..stream.len() {
        let heard = bothered.say(&stream[..length]);
        assert!(!has_granted(&heard), "cut at {length}");
    }
    bothered.end();
}

#[test]
fn a_message_with_a_byte_too_many_grants_nothing() {
    let bothered = Bothered::start();
    let parts = handshake();
    for longer in 0..parts.len() {
        for extra in [1, 2, 100] {
            let mut stream = parts.clone();
            stream[longer].extend(vec![0; extra]);
            if longer > 0 {
                // The body, too, says that it is longer.
                let length = u32::try_from(stream[longer].len() - 6).unwrap();
                stream[longer][..4].copy_from_slice(&length.to_be_bytes());
            }
            assert!(!has_granted(&bothered.say(&stream.concat())), "part {longer} with {extra} more");
        }
    }
    bothered.end();
}

#[test]
fn a_changed_byte_anywhere_ends_at_most_its_own_connection() {
    let bothered = Bothered::start();
    let stream = handshake().concat();
    for at in 0..stream.len() {
        let mut changed = stream.clone();
        changed[at] ^= 0xff;
        bothered.say(&changed);
    }
    bothered.end();
}

#[test]
fn an_announced_length_is_not_waited_for_where_it_is_too_long() {
    let bothered = Bothered::start();
    for length in [MAX_REQUEST_BYTES as u32 + 1, 1 << 20, u32::MAX] {
        let mut stream = bothered.dial();
        let mut bytes = CONTROL_PREAMBLE.to_vec();
        bytes.extend(length.to_be_bytes());
        bytes.extend([0, 1]);
        let start = Instant::now();
        stream.write_all(&bytes).unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
        assert!(start.elapsed() < Duration::from_secs(3), "{length}: it waited {:?}", start.elapsed());
    }
    bothered.end();
}

#[test]
fn a_lane_without_a_token_is_turned_away() {
    let bothered = Bothered::start();
    let preamble = LaneRequest { token: LaneToken([7; 16]), responder_depth: 16 }.encode();
    let heard = bothered.say(&preamble);
    assert_eq!(LaneReject::decode(&heard), Ok(LaneReject { reason: RejectReason::BadToken }));
    for length in 0..preamble.len() {
        assert!(bothered.say(&preamble[..length]).is_empty(), "cut at {length}");
    }
    for at in 8..preamble.len() {
        let mut changed = preamble;
        changed[at] ^= 0xff;
        let heard = bothered.say(&changed);
        assert!(LaneReply::decode(&heard).is_err(), "byte {at}");
    }
    bothered.end();
}

#[test]
fn three_hundred_half_open_connections_stop_nobody() {
    let mut bothered = Bothered::start();
    let preamble = LaneRequest { token: LaneToken([7; 16]), responder_depth: 16 }.encode();
    let half_open: Vec<TcpStream> = (0..300)
        .map(|number| {
            let mut stream = bothered.dial();
            let said: &[u8] =
                [&[], &CONTROL_PREAMBLE[..4], &CONTROL_PREAMBLE[..], &preamble[..20]][number % 4];
            stream.write_all(said).unwrap();
            stream
        })
        .collect();
    let start = Instant::now();
    bothered.client.write(0, b"working").unwrap();
    run_kaeru(&["ls", &bothered.server.address.to_string()]).success();
    Raw::attach(&Nbd::unix(&bothered.server, "other")).write(0, b"new").unwrap();
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    // They are dropped after a few seconds although they stay connected on their side.
    let process = &bothered.server.process;
    eventually("strangers are dropped", || process.descriptors() <= bothered.descriptors);
    drop(half_open);
    bothered.end();
}

#[test]
fn a_stranger_who_says_nothing_delays_no_stop() {
    let mut server = Server::start(&["--ram", "scratch=1M"]);
    let before = server.process.descriptors();
    let silent = [(); 3].map(|()| TcpStream::connect(server.address).unwrap());
    (&silent[1]).write_all(&CONTROL_PREAMBLE).unwrap();
    eventually("they are taken", || server.process.descriptors() >= before + silent.len());
    let (code, took) = server.process.terminate();
    assert_eq!(code, Some(0));
    assert!(took < Duration::from_secs(3), "{took:?}");
}

#[test]
fn a_server_without_descriptors_says_so_now_and_then() {
    let mut limited = std::process::Command::new("sh");
    limited.args(["-c", "ulimit -n 32; exec \"$0\" \"$@\""]).arg(binary("kaerud"));
    let server = Server::started_by(limited, &["--ram", "scratch=1M"]);
    let strangers = [(); 40].map(|()| TcpStream::connect(server.address).unwrap());
    let complaints = || server.process.errors().matches("Too many open files").count();
    eventually("it says what it lacks", || complaints() > 0);
    std::thread::sleep(Duration::from_secs(2));
    assert!(complaints() <= 2, "{} complaints", complaints());
    drop(strangers);
    run_kaeru(&["ls", &server.address.to_string()]).success();
}
