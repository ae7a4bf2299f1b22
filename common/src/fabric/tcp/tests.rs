//! The link against a link, against a peer that writes its frames by hand, and against an oracle.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener as StdListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use rustix::event::{PollFd, PollFlags, Timespec};

use super::frame::{Denied, Frame, HEADER};
use super::*;
use crate::fabric::buffer::{Memory, Slot};
use crate::fabric::handshake::LaneRequest;
use crate::fabric::{
    Access, Completion, Domain, Incoming as _, Link, LinkDown, Listener, Op, OpError, Refused, RegionInfo,
    RejectReason, RemoteRange,
};

const SIZE: usize = 64 << 10;
const PATIENCE: Duration = Duration::from_secs(5);
/// Stands for the right key.
const KEY: u32 = 100;

fn config() -> LinkConfig {
    LinkConfig { slots: 16, slot_size: 16 << 10, depth: 8, responder_depth: 4, ..LinkConfig::default() }
}

/// One end of a link, with memory that the other end may read and write.
struct End {
    link: TcpLink,
    memory: Arc<Memory>,
    region: RegionInfo,
    done: Vec<Completion>,
}

impl End {
    fn new(socket: impl Into<OwnedFd>, config: &LinkConfig, reads: u8, access: Access) -> Self {
        let memory = Arc::new(Memory::anonymous(SIZE).unwrap());
        let mut domain = TcpDomain::default();
        let region = domain.register(&memory, access).unwrap()[0];
        let pools = pools_of(config).unwrap();
        let link = TcpLink::over(socket.into(), pools, config, reads, Regions::of(&domain)).unwrap();
        Self { link, memory, region, done: Vec::with_capacity(64) }
    }

    fn slot(&self) -> Slot {
        self.link.pool().take().unwrap()
    }

    fn filled(&self, bytes: &[u8]) -> Slot {
        let mut slot = self.slot();
        slot.copy_from(0, bytes);
        slot
    }

    fn poll(&mut self) -> bool {
        self.link.poll(&mut self.done)
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; SIZE];
        self.memory.copy_to(0, &mut bytes);
        bytes
    }

    fn range(&self, offset: u64, length: u32) -> RemoteRange {
        self.region.range(offset, length).unwrap()
    }

    /// Tags, kinds and results of what was completed so far, in order; the slots go back.
    fn results(&mut self) -> Vec<(u64, Op, Result<u32, OpError>)> {
        self.done.drain(..).map(|done| (done.tag, done.op, done.result)).collect()
    }
}

fn sockets(buffer: Option<usize>) -> (UnixStream, UnixStream) {
    let (a, b) = UnixStream::pair().unwrap();
    if let Some(buffer) = buffer {
        for end in [&a, &b] {
            sockopt::set_socket_send_buffer_size(end, buffer).unwrap();
            sockopt::set_socket_recv_buffer_size(end, buffer).unwrap();
        }
    }
    (a, b)
}

/// As [`sockets`], over real TCP: an unread byte at the end resets it, and bytes take their time.
fn tcp_sockets(buffer: usize) -> (OwnedFd, OwnedFd) {
    let listener = StdListener::bind("127.0.0.1:0").unwrap();
    let a = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let b = listener.accept().unwrap().0;
    for end in [&a, &b] {
        prepare(end).unwrap();
        sockopt::set_socket_send_buffer_size(end, buffer).unwrap();
        // A window of less than a segment or two is probed a few times a second, and tests nothing of ours.
        sockopt::set_socket_recv_buffer_size(end, buffer.max(128 << 10)).unwrap();
    }
    (a.into(), b.into())
}

fn pair(config: &LinkConfig) -> (End, End) {
    let (a, b) = sockets(None);
    let end = |socket| End::new(socket, config, config.responder_depth, Access::RemoteReadWrite);
    (end(a), end(b))
}

/// A link whose peer is a bare socket.
fn half(config: &LinkConfig) -> (End, UnixStream) {
    let (a, b) = sockets(None);
    b.set_read_timeout(Some(PATIENCE)).unwrap();
    (End::new(a, config, config.responder_depth, Access::RemoteReadWrite), b)
}

/// Polls both ends until neither has anything to do.
fn settle(a: &mut End, b: &mut End) {
    let start = Instant::now();
    let mut idle = 0;
    while idle < 3 {
        assert!(start.elapsed() < Duration::from_secs(20), "it never settled");
        idle = if a.poll() | b.poll() { 0 } else { idle + 1 };
    }
}

/// Polls both ends until both are down and have nothing left.
fn settle_down(a: &mut End, b: &mut End) {
    let start = Instant::now();
    while a.poll() | b.poll() | a.link.arm() | b.link.arm()
        || a.link.down().is_none()
        || b.link.down().is_none()
    {
        assert!(start.elapsed() < PATIENCE, "it never settled");
    }
}

fn settle_alone(end: &mut End) {
    let start = Instant::now();
    while end.poll() || end.link.arm() {
        assert!(start.elapsed() < PATIENCE, "it never settled");
    }
}

fn next_frame(peer: &mut UnixStream) -> Frame {
    let mut header = [0; HEADER];
    peer.read_exact(&mut header).unwrap();
    Frame::decode(&header).unwrap()
}

fn is_readable(end: &End) -> bool {
    let fd = end.link.wait_fd();
    let timeout = Timespec::try_from(Duration::ZERO).unwrap();
    rustix::event::poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)).unwrap() == 1
}

// The operations.

#[test]
fn each_operation_moves_its_bytes_either_way() {
    let (mut a, mut b) = pair(&config());
    for _ in 0..2 {
        b.memory.copy_from(100, b"from b's memory");
        let (to, from) = (b.range(9, 5), b.range(100, 15));
        let written = a.filled(b"hello");
        a.link.write(written, to, 1).unwrap();
        let read = a.slot();
        a.link.read(read, from, 2).unwrap();
        let posted = b.slot();
        b.link.recv(posted, 3).unwrap();
        let sent = a.filled(b"a message");
        a.link.send(sent, 9, 4).unwrap();
        settle(&mut a, &mut b);
        assert_eq!(&b.bytes()[9..14], b"hello");
        let mut bytes = [0; 15];
        a.done.iter().find(|done| done.tag == 2).unwrap().slot.copy_to(0, &mut bytes);
        assert_eq!(&bytes, b"from b's memory");
        let mut message = [0; 9];
        b.done[0].slot.copy_to(0, &mut message);
        assert_eq!(&message, b"a message");
        let mut results = a.results();
        results.sort_by_key(|result| result.0);
        assert_eq!(results, [(1, Op::Write, Ok(5)), (2, Op::Read, Ok(15)), (4, Op::Send, Ok(9))]);
        assert_eq!(b.results(), [(3, Op::Recv, Ok(9))]);
        std::mem::swap(&mut a, &mut b);
    }
}

#[test]
fn operations_of_no_bytes_complete() {
    let (mut a, mut b) = pair(&config());
    let range = b.range(SIZE as u64, 0);
    let slots = [a.slot(), a.slot(), a.slot(), b.slot()];
    let [write, read, send, posted] = slots;
    a.link.write(write, range, 1).unwrap();
    a.link.read(read, range, 2).unwrap();
    a.link.send(send, 0, 3).unwrap();
    b.link.recv(posted, 4).unwrap();
    settle(&mut a, &mut b);
    assert_eq!(a.results().len(), 3);
    assert_eq!(b.results(), [(4, Op::Recv, Ok(0))]);
}

#[test]
fn full_is_an_answer_until_the_completion_is_polled_out() {
    let (mut a, mut b) = pair(&config());
    let to = b.range(0, 1);
    for tag in 0..8 {
        let slot = a.slot();
        a.link.write(slot, to, tag).unwrap();
    }
    let slot = a.slot();
    assert!(matches!(a.link.write(slot, to, 9), Err(Refused::Full(_))));
    // A receive has room of its own.
    for tag in 0..8 {
        let slot = a.slot();
        a.link.recv(slot, tag).unwrap();
    }
    a.link.submit();
    b.poll();
    let mut one = Vec::with_capacity(1);
    for tag in 0..8 {
        assert!(a.link.poll(&mut one));
        assert_eq!((one.len(), one.capacity()), (1, 1), "it never grows");
        assert_eq!(one.pop().unwrap().tag, tag);
    }
    let slot = a.slot();
    assert!(a.link.write(slot, to, 9).is_ok());
}

#[test]
fn a_send_without_a_receive_waits_and_holds_up_nothing_else() {
    let (mut a, mut b) = pair(&config());
    let sent = a.filled(b"early");
    a.link.send(sent, 5, 1).unwrap();
    let behind = a.filled(b"behind");
    let to = b.range(0, 6);
    a.link.write(behind, to, 2).unwrap();
    settle(&mut a, &mut b);
    assert!(a.done.is_empty(), "what was posted after a send does not overtake it");
    // The other direction goes on, answers of the end that waits included.
    let (read, written) = (b.slot(), b.slot());
    let (from, to) = (a.range(0, 100), a.range(0, 100));
    b.link.read(read, from, 3).unwrap();
    b.link.write(written, to, 4).unwrap();
    settle(&mut a, &mut b);
    assert_eq!(b.results().len(), 2);
    let posted = b.slot();
    b.link.recv(posted, 5).unwrap();
    settle(&mut a, &mut b);
    assert_eq!(b.results(), [(5, Op::Recv, Ok(5))]);
    assert_eq!(a.results(), [(1, Op::Send, Ok(5)), (2, Op::Write, Ok(6))]);
}

#[test]
fn more_messages_than_receives_all_arrive_in_order() {
    let (mut a, mut b) = pair(&config());
    let (mut sent, mut received) = (0u64, 0u64);
    while received < 500 {
        while sent < 500 && sent < received + 6 {
            let slot = a.filled(&sent.to_le_bytes());
            if a.link.send(slot, 8, sent).is_err() {
                break;
            }
            sent += 1;
        }
        let posted = b.slot();
        b.link.recv(posted, 0).unwrap();
        settle(&mut a, &mut b);
        for done in b.done.drain(..) {
            let mut number = [0; 8];
            done.slot.copy_to(0, &mut number);
            assert_eq!(u64::from_le_bytes(number), received);
            received += 1;
        }
        a.done.clear();
    }
}

#[test]
fn reads_keep_to_the_window_and_writes_overtake_them() {
    let config = LinkConfig { responder_depth: 1, ..config() };
    let (mut a, mut peer) = half(&config);
    let range = |length| RemoteRange { address: 77, key: 5, length };
    for tag in 0..2 {
        let slot = a.slot();
        a.link.read(slot, range(3), tag).unwrap();
    }
    let slot = a.filled(b"w");
    a.link.write(slot, range(1), 2).unwrap();
    let slot = a.slot();
    a.link.read(slot, range(2), 3).unwrap();
    a.link.submit();
    assert_eq!(a.link.limits().reads, 1);
    assert_eq!(next_frame(&mut peer), Frame::Read { seq: 0, address: 77, key: 5, length: 3 });
    assert_eq!(next_frame(&mut peer), Frame::Write { seq: 0, address: 77, key: 5, length: 1 });
    let mut payload = [0];
    peer.read_exact(&mut payload).unwrap();
    for (seq, length) in [(0, 3), (1, 3), (2, 2)] {
        peer.set_nonblocking(true).unwrap();
        assert!(peer.read(&mut [0]).is_err(), "one at a time");
        peer.set_nonblocking(false).unwrap();
        peer.write_all(&Frame::Data { seq, length }.encode()).unwrap();
        peer.write_all(&vec![seq as u8 + 1; length as usize]).unwrap();
        a.poll();
        if seq < 2 {
            assert!(matches!(next_frame(&mut peer), Frame::Read { seq: next, .. } if next == seq + 1));
        }
    }
    assert_eq!(a.results(), [(0, Op::Read, Ok(3)), (1, Op::Read, Ok(3)), (3, Op::Read, Ok(2))]);
}

#[test]
fn a_read_does_not_overtake_a_write_that_was_posted_before_it() {
    let (mut a, mut peer) = half(&config());
    let range = RemoteRange { address: 77, key: 5, length: 2 };
    let slots = [a.slot(), a.slot(), a.slot()];
    let [send, write, read] = slots;
    a.link.send(send, 2, 0).unwrap();
    a.link.write(write, range, 1).unwrap();
    a.link.read(read, range, 2).unwrap();
    a.poll();
    peer.write_all(&Frame::Ack { placed: 0, posted: 1 }.encode()).unwrap();
    a.poll();
    let mut stream = [0; 3 * HEADER + 4];
    peer.read_exact(&mut stream).unwrap();
    assert_eq!([stream[0], stream[HEADER + 2], stream[2 * HEADER + 4]], [2, 1, 3], "send, write, read");
}

#[test]
fn more_reads_than_promised_are_a_fault() {
    let (socket, mut peer) = sockets(Some(4096));
    let mut a = End::new(socket, &config(), 1, Access::RemoteReadWrite);
    let RegionInfo { address, key, .. } = a.region;
    for seq in 0..2 {
        peer.write_all(&Frame::Read { seq, address, key, length: SIZE as u32 }.encode()).unwrap();
    }
    a.poll();
    assert!(matches!(a.link.down(), Some(LinkDown::PeerFault(_))), "{:?}", a.link.down());
}

// Refusals.

/// What an end may not do, and why.
fn trespasses(region: RegionInfo) -> Vec<(Op, RemoteRange)> {
    let at = |address, key, length| RemoteRange { address, key, length };
    let RegionInfo { address, key, length } = region;
    let mut all = Vec::new();
    for range in [
        at(address - 1, key, 10),
        at(address + length - 9, key, 10),
        at(address + length, key, 1),
        at(u64::MAX - 4, key, 10),
        at(0, key, 1),
        at(address, key ^ 1, 10),
    ] {
        all.extend([(Op::Read, range), (Op::Write, range)]);
    }
    all
}

#[test]
fn a_trespass_is_refused_and_ends_both_ends_once() {
    let region = RegionInfo { key: KEY, ..pair(&config()).0.region };
    let mut cases: Vec<_> =
        trespasses(region).into_iter().map(|case| (Access::RemoteReadWrite, case)).collect();
    let anywhere = RemoteRange { address: 0, key: 0, length: 0 };
    cases.push((Access::RemoteRead, (Op::Write, anywhere)));
    cases.push((Access::Local, (Op::Write, anywhere)));
    cases.push((Access::Local, (Op::Read, anywhere)));
    for (case, (access, (op, mut range))) in cases.into_iter().enumerate() {
        let (one, other) = tcp_sockets(64 << 10);
        let mut a = End::new(one, &config(), 4, Access::RemoteReadWrite);
        let mut b = End::new(other, &config(), 4, access);
        // The regions of this pair have keys of their own.
        range = match range {
            range if range == anywhere => b.range(0, 10),
            range if range.key == KEY => RemoteRange { key: b.region.key, ..range },
            range => RemoteRange { key: b.region.key ^ 1, ..range },
        };
        b.memory.fill(0, SIZE, 7);
        let posted = a.slot();
        a.link.recv(posted, 1).unwrap();
        let kept = b.slot();
        b.link.recv(kept, 2).unwrap();
        let slot = a.slot();
        match op {
            Op::Read => a.link.read(slot, range, 3),
            _ => a.link.write(slot, range, 3),
        }
        .unwrap();
        let behind = a.slot();
        a.link.send(behind, 4, 4).unwrap();
        settle_down(&mut a, &mut b);
        let mut results = a.results();
        results.sort_by_key(|result| result.0);
        let dead = Err(OpError::LinkDead);
        assert_eq!(
            results,
            [(1, Op::Recv, dead), (3, op, Err(OpError::Access)), (4, Op::Send, dead)],
            "case {case}: {op:?} of {range:?} with {access:?}"
        );
        assert_eq!(a.link.down(), Some(&LinkDown::Refused(OpError::Access)));
        assert_eq!(b.results(), [(2, Op::Recv, dead)]);
        assert!(matches!(b.link.down(), Some(LinkDown::PeerFault(_))));
        assert!(b.bytes().iter().all(|&byte| byte == 7), "nothing was written");
        let slot = a.slot();
        assert!(matches!(a.link.write(slot, range, 5), Err(Refused::Dead(_))));
    }
}

#[test]
fn what_came_before_a_trespass_is_completed_even_through_a_full_socket() {
    let (one, other) = tcp_sockets(4096);
    let mut a = End::new(one, &config(), 4, Access::RemoteReadWrite);
    let mut b = End::new(other, &config(), 4, Access::RemoteReadWrite);
    for tag in 0..4 {
        let (slot, to) = (b.slot(), a.range(0, 16 << 10));
        b.link.write(slot, to, tag).unwrap();
    }
    b.link.submit();
    let (slot, to) = (a.filled(b"x"), b.range(0, 16 << 10));
    a.link.write(slot, to, 1).unwrap();
    let slot = a.slot();
    a.link.write(slot, RemoteRange { key: to.key ^ 1, ..to }, 2).unwrap();
    let slot = a.slot();
    a.link.write(slot, to, 3).unwrap();
    settle_down(&mut a, &mut b);
    assert_eq!(
        a.results(),
        [
            (1, Op::Write, Ok(16 << 10)),
            (2, Op::Write, Err(OpError::Access)),
            (3, Op::Write, Err(OpError::LinkDead))
        ]
    );
    assert_eq!(b.results().len(), 4);
}

#[test]
fn a_message_too_long_fails_at_both_ends() {
    let (one, other) = sockets(None);
    let mut a = End::new(one, &config(), 4, Access::Local);
    let mut b = End::new(other, &LinkConfig { slot_size: 4096, ..config() }, 4, Access::Local);
    for tag in 0..2 {
        let posted = b.slot();
        b.link.recv(posted, tag).unwrap();
    }
    let slot = a.slot();
    a.link.send(slot, 4097, 9).unwrap();
    settle(&mut a, &mut b);
    assert_eq!(a.results(), [(9, Op::Send, Err(OpError::TooLong))]);
    assert_eq!(b.results(), [(0, Op::Recv, Err(OpError::TooLong)), (1, Op::Recv, Err(OpError::LinkDead))]);
    assert!(matches!(b.link.down(), Some(LinkDown::PeerFault(_))));
}

#[test]
fn a_peer_that_neither_reads_nor_leaves_is_left() {
    let (socket, mut peer) = sockets(Some(4096));
    let mut a = End::new(socket, &config(), 4, Access::RemoteReadWrite);
    let (slot, to) = (a.slot(), RemoteRange { address: 0, key: 0, length: 16 << 10 });
    a.link.write(slot, to, 1).unwrap();
    a.link.submit();
    peer.write_all(&Frame::Write { seq: 0, address: 0, key: 0, length: 1 }.encode()).unwrap();
    let start = Instant::now();
    while a.done.is_empty() {
        a.poll();
        assert!(a.link.arm() || !a.done.is_empty(), "nothing else would wake us");
        assert!(start.elapsed() < PATIENCE);
    }
    assert_eq!(a.results(), [(1, Op::Write, Err(OpError::LinkDead))]);
}

#[test]
fn frames_that_make_no_sense_are_a_fault() {
    let nak = |denied| Frame::Nak { denied, reason: OpError::Access };
    for frame in [
        Frame::Write { seq: 1, address: 0, key: 0, length: 1 },
        Frame::Read { seq: 1, address: 0, key: 0, length: 1 },
        Frame::Send { seq: 0, length: 1 },
        Frame::Data { seq: 0, length: 8 },
        Frame::Data { seq: 1, length: 9 },
        Frame::Ack { placed: 2, posted: 0 },
        nak(Denied::Placement(2)),
        nak(Denied::Read(1)),
    ] {
        let (mut a, mut peer) = half(&config());
        let (read, write) = (a.slot(), a.slot());
        a.link.read(read, RemoteRange { address: 0, key: 0, length: 9 }, 1).unwrap();
        a.link.write(write, RemoteRange { address: 0, key: 0, length: 9 }, 2).unwrap();
        a.link.submit();
        peer.write_all(&frame.encode()).unwrap();
        settle_alone(&mut a);
        assert!(matches!(a.link.down(), Some(LinkDown::PeerFault(_))), "{frame:?}: {:?}", a.link.down());
        assert_eq!(a.results().len(), 2);
    }
}

// The stream.

/// A peer's half of a conversation that uses every kind of frame, and an end that is ready for it.
fn transcript() -> (End, UnixStream, Vec<u8>) {
    let (mut a, mut peer) = half(&config());
    a.memory.copy_from(500, b"region");
    let posted = a.slot();
    a.link.recv(posted, 1).unwrap();
    let (read, write) = (a.slot(), a.slot());
    let range = |length| RemoteRange { address: 0, key: 0, length };
    a.link.read(read, range(6), 2).unwrap();
    a.link.write(write, range(3), 3).unwrap();
    a.link.submit();
    peer.read_exact(&mut [0; 3 * HEADER + 3]).unwrap();
    let RegionInfo { address, key, .. } = a.region;
    let mut bytes = Vec::new();
    bytes.extend(Frame::Write { seq: 0, address, key, length: 5 }.encode());
    bytes.extend(b"write");
    bytes.extend(Frame::Data { seq: 0, length: 6 }.encode());
    bytes.extend(b"answer");
    bytes.extend(Frame::Send { seq: 1, length: 7 }.encode());
    bytes.extend(b"message");
    bytes.extend(Frame::Read { seq: 0, address: address + 500, key, length: 6 }.encode());
    bytes.extend(Frame::Ack { placed: 1, posted: 0 }.encode());
    (a, peer, bytes)
}

fn check_transcript(a: &mut End, peer: &mut UnixStream) {
    assert_eq!(&a.bytes()[..5], b"write");
    let text = |tag, length| {
        let mut bytes = vec![0; length];
        a.done.iter().find(|done| done.tag == tag).unwrap().slot.copy_to(0, &mut bytes);
        bytes
    };
    assert_eq!(text(1, 7), b"message");
    assert_eq!(text(2, 6), b"answer");
    let results = a.results();
    assert_eq!(results, [(2, Op::Read, Ok(6)), (1, Op::Recv, Ok(7)), (3, Op::Write, Ok(3))]);
    let mut acks = 0;
    loop {
        match next_frame(peer) {
            Frame::Ack { placed, .. } => acks = placed,
            frame => break assert_eq!(frame, Frame::Data { seq: 0, length: 6 }),
        }
    }
    let mut data = [0; 6];
    peer.read_exact(&mut data).unwrap();
    assert_eq!(&data, b"region");
    assert_eq!(acks, 2);
}

#[test]
fn a_stream_may_be_split_at_every_byte() {
    let length = transcript().2.len();
    for at in 0..=length {
        let (mut a, mut peer, bytes) = transcript();
        for part in [&bytes[..at], &bytes[at..]] {
            peer.write_all(part).unwrap();
            a.poll();
        }
        check_transcript(&mut a, &mut peer);
    }
    let (mut a, mut peer, bytes) = transcript();
    for byte in bytes {
        peer.write_all(&[byte]).unwrap();
        a.poll();
    }
    check_transcript(&mut a, &mut peer);
}

#[test]
fn a_stream_may_end_at_every_byte() {
    let length = transcript().2.len();
    for at in 0..=length {
        let (mut a, mut peer, bytes) = transcript();
        peer.write_all(&bytes[..at]).unwrap();
        drop(peer);
        settle_alone(&mut a);
        assert_eq!(a.link.down(), Some(&LinkDown::ClosedByPeer));
        let mut results = a.results();
        results.sort_by_key(|result| result.0);
        let ended = |end, length| if at >= end { Ok(length) } else { Err(OpError::LinkDead) };
        assert_eq!(
            results,
            [
                (1, Op::Recv, ended(3 * HEADER + 18, 7)),
                (2, Op::Read, ended(2 * HEADER + 11, 6)),
                (3, Op::Write, ended(5 * HEADER + 18, 3))
            ],
            "{at} bytes"
        );
        assert_eq!(a.link.pool().available(), a.link.pool().slots());
    }
}

#[test]
fn a_nak_is_found_behind_a_broken_pipe() {
    let (mut a, mut peer) = half(&config());
    let range = RemoteRange { address: 0, key: 0, length: 1 };
    for tag in 0..2 {
        let slot = a.slot();
        a.link.write(slot, range, tag).unwrap();
    }
    a.link.submit();
    // More than one poll receives: it fails to send before it has seen the NAK.
    peer.write_all(&Frame::Ack { placed: 1, posted: 0 }.encode().repeat(3000)).unwrap();
    peer.write_all(&Frame::Nak { denied: Denied::Placement(1), reason: OpError::Access }.encode()).unwrap();
    drop(peer);
    let slot = a.slot();
    a.link.write(slot, range, 2).unwrap();
    a.link.submit();
    settle_alone(&mut a);
    let (denied, dead) = (Err(OpError::Access), Err(OpError::LinkDead));
    assert_eq!(a.results(), [(0, Op::Write, Ok(1)), (1, Op::Write, denied), (2, Op::Write, dead)]);
}

#[test]
fn a_stream_that_is_reset_was_closed() {
    let (one, other) = tcp_sockets(64 << 10);
    let mut a = End::new(one, &config(), 4, Access::Local);
    let (slot, to) = (a.slot(), RemoteRange { address: 0, key: 0, length: 9 });
    a.link.write(slot, to, 1).unwrap();
    a.link.submit();
    // Bytes of ours are unread there.
    drop(other);
    settle_alone(&mut a);
    assert_eq!(a.link.down(), Some(&LinkDown::ClosedByPeer));
    assert_eq!(a.results(), [(1, Op::Write, Err(OpError::LinkDead))]);
}

#[test]
fn a_message_needs_a_receive_that_was_announced() {
    let (mut a, mut peer) = half(&config());
    let posted = a.slot();
    a.link.recv(posted, 1).unwrap();
    peer.write_all(&Frame::Send { seq: 0, length: 0 }.encode()).unwrap();
    a.poll();
    assert!(matches!(a.link.down(), Some(LinkDown::PeerFault(_))), "{:?}", a.link.down());
}

#[test]
fn close_gives_everything_back_and_tells_the_peer() {
    let (mut a, mut b) = pair(&config());
    let (slot, posted, to) = (a.slot(), a.slot(), b.range(0, 4));
    a.link.write(slot, to, 1).unwrap();
    a.link.recv(posted, 2).unwrap();
    a.link.close();
    a.link.close();
    settle(&mut a, &mut b);
    let dead = Err(OpError::LinkDead);
    assert_eq!(a.results(), [(1, Op::Write, dead), (2, Op::Recv, dead)]);
    assert_eq!(a.link.down(), Some(&LinkDown::ClosedHere));
    assert_eq!(b.link.down(), Some(&LinkDown::ClosedByPeer));
    assert!(!a.poll() && !a.link.arm() && !is_readable(&a), "a dead link wakes nobody");
}

#[test]
fn the_wait_point_wakes_for_bytes_and_for_room() {
    let (socket, mut peer) = sockets(Some(4096));
    let mut a = End::new(socket, &config(), 4, Access::RemoteReadWrite);
    a.poll();
    assert!(!a.link.arm() && !is_readable(&a));
    let (slot, to) = (a.slot(), RemoteRange { address: 0, key: 0, length: 16 << 10 });
    a.link.write(slot, to, 1).unwrap();
    assert!(a.link.arm(), "what was not submitted must not be slept on");
    a.link.submit();
    assert!(!a.link.arm() && !is_readable(&a), "no room yet");
    let mut left = HEADER + (16 << 10);
    while left > 0 {
        peer.set_nonblocking(true).unwrap();
        match peer.read(&mut [0; 4096]) {
            Ok(got) => left -= got,
            Err(_) => {
                assert!(!a.link.arm() && is_readable(&a), "room");
                assert!(a.poll());
            }
        }
    }
    assert!(!a.link.arm() && !is_readable(&a), "all sent: room is of no interest");
    peer.write_all(&Frame::Ack { placed: 1, posted: 0 }.encode()).unwrap();
    assert!(!a.link.arm() && is_readable(&a), "bytes");
    a.poll();
    assert_eq!(a.results(), [(1, Op::Write, Ok(16 << 10))]);
    drop(peer);
    assert!(is_readable(&a), "the end");
}

// Connecting.

fn token() -> LaneToken {
    LaneToken([9; 16])
}

#[test]
fn a_link_is_made_over_tcp_and_its_pool_can_be_lent() {
    let mut listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.address();
    let client = LinkConfig { pool_access: Access::RemoteReadWrite, responder_depth: 3, ..config() };
    let connecting = thread::spawn(move || Tcp.connect(address, &token(), &client, PATIENCE));
    let incoming = listener.accept(PATIENCE).unwrap().unwrap();
    assert_eq!(incoming.token(), &token());
    let mut domain = Tcp.domain().unwrap();
    let memory = Arc::new(Memory::anonymous(SIZE).unwrap());
    let region = domain.register(&memory, Access::RemoteRead).unwrap()[0];
    let mut server = incoming.accept(&domain, &config()).unwrap();
    let mut client = connecting.join().unwrap().unwrap();
    assert_eq!((server.limits().reads, client.limits().reads), (3, 3));
    assert_eq!(server.pool_region(), None);
    memory.fill(0, SIZE, 5);
    let lent = client.pool_region().unwrap();
    let staged = client.pool().take().unwrap();
    let to = lent.range(u64::from(staged.index()) * u64::from(staged.size()), 3).unwrap();
    let mut slot = server.pool().take().unwrap();
    slot.copy_from(0, b"abc");
    server.write(slot, to, 1).unwrap();
    let slot = client.pool().take().unwrap();
    client.read(slot, region.range(0, 10).unwrap(), 2).unwrap();
    let mut done = Vec::with_capacity(4);
    let start = Instant::now();
    while done.len() < 2 {
        server.poll(&mut done);
        client.poll(&mut done);
        assert!(start.elapsed() < PATIENCE);
    }
    let mut bytes = [0; 3];
    staged.copy_to(0, &mut bytes);
    assert_eq!(&bytes, b"abc");
    assert!(done.iter().all(|done| done.result.is_ok()));
}

/// Connects to a listener whose connections are handled by `serve`.
fn connect_to(patience: Duration, serve: impl FnOnce(std::net::TcpStream) + Send + 'static) -> ConnectError {
    let listener = StdListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serving = thread::spawn(move || serve(listener.accept().unwrap().0));
    let start = Instant::now();
    let error = Tcp.connect(address, &token(), &config(), patience).unwrap_err();
    assert!(start.elapsed() < patience + Duration::from_secs(2), "patience is for all of it");
    serving.join().unwrap();
    error
}

#[test]
fn a_connect_that_comes_to_nothing_says_why_in_time() {
    let short = Duration::from_millis(300);
    let silent = connect_to(short, |stream| {
        thread::sleep(Duration::from_millis(600));
        drop(stream);
    });
    assert!(matches!(silent, ConnectError::TimedOut { .. }), "{silent}");
    let dribbling = connect_to(short, |mut stream| {
        for byte in (LaneReject { reason: RejectReason::Other }).encode() {
            let _ = stream.write_all(&[byte]);
            thread::sleep(Duration::from_millis(200));
        }
    });
    assert!(matches!(dribbling, ConnectError::TimedOut { .. }), "{dribbling}");
    let foreign = connect_to(PATIENCE, |mut stream| {
        stream.read_exact(&mut [0; LaneRequest::LEN]).unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request").unwrap();
    });
    assert!(matches!(foreign, ConnectError::Unreachable { .. }), "{foreign}");
    let newer = connect_to(PATIENCE, |mut stream| {
        stream.read_exact(&mut [0; LaneRequest::LEN]).unwrap();
        let mut reply = LaneReply { responder_depth: 1 }.encode();
        reply[9] += 1;
        stream.write_all(&reply).unwrap();
    });
    assert!(matches!(newer, ConnectError::Refused { reason: RejectReason::BadVersion, .. }), "{newer}");
    let gone = connect_to(PATIENCE, |mut stream| stream.read_exact(&mut [0; LaneRequest::LEN]).unwrap());
    assert!(matches!(gone, ConnectError::Unreachable { .. }), "{gone}");
    let refused = connect_to(PATIENCE, |mut stream| {
        let mut bytes = [0; LaneRequest::LEN];
        stream.read_exact(&mut bytes).unwrap();
        let request = LaneRequest::decode(&bytes).unwrap();
        Incoming::new(stream, request).reject(RejectReason::BadToken);
    });
    assert!(matches!(refused, ConnectError::Refused { reason: RejectReason::BadToken, .. }), "{refused}");
    let nobody: SocketAddr = StdListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = Tcp.connect(nobody, &token(), &config(), PATIENCE).unwrap_err();
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error}");
    let hasty = Tcp.connect(nobody, &token(), &config(), Duration::ZERO).unwrap_err();
    assert!(matches!(hasty, ConnectError::TimedOut { .. }), "{hasty}");
}

#[test]
fn a_silent_connection_does_not_hold_up_the_next() {
    let mut listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let connect = || std::net::TcpStream::connect(listener.address()).unwrap();
    let request = LaneRequest { token: token(), responder_depth: 2 }.encode();
    let (silent, mut partial, mut foreign, mut later, mut good) =
        (connect(), connect(), connect(), connect(), connect());
    partial.write_all(&request[..LaneRequest::LEN - 1]).unwrap();
    foreign.write_all(&[0x16; 64]).unwrap();
    let mut newer = request;
    newer[9] += 1;
    later.write_all(&newer).unwrap();
    good.write_all(&request).unwrap();
    let start = Instant::now();
    assert!(listener.accept(PATIENCE).unwrap().is_some());
    assert!(start.elapsed() < Duration::from_secs(1));
    assert!(listener.accept(Duration::from_millis(20)).unwrap().is_none());
    partial.write_all(&request[LaneRequest::LEN - 1..]).unwrap();
    assert!(listener.accept(PATIENCE).unwrap().is_some());
    let mut reply = [0; LaneReject::LEN];
    later.read_exact(&mut reply).unwrap();
    assert_eq!(LaneReject::decode(&reply), Ok(LaneReject { reason: RejectReason::BadVersion }));
    drop(silent);
}

// Against an oracle.

/// What one end does next.
#[derive(Clone, Debug)]
enum Step {
    Write { offset: u64, length: u32, byte: u8 },
    Read { offset: u64, length: u32 },
    Send { length: u32, byte: u8 },
    Recv,
    Submit,
    Poll,
}

fn steps() -> impl Strategy<Value = Vec<(bool, Step)>> {
    let range = (0u64..SIZE as u64, 0u32..16 << 10)
        .prop_map(|(offset, length)| (offset, length.min((SIZE as u64 - offset) as u32)));
    let step = prop_oneof![
        3 => (range.clone(), any::<u8>())
            .prop_map(|((offset, length), byte)| Step::Write { offset, length, byte }),
        3 => range.prop_map(|(offset, length)| Step::Read { offset, length }),
        2 => (0u32..9000, any::<u8>()).prop_map(|(length, byte)| Step::Send { length, byte }),
        2 => Just(Step::Recv),
        2 => Just(Step::Submit),
        2 => Just(Step::Poll),
    ];
    proptest::collection::vec((any::<bool>(), step), 1..300)
}

/// Bytes that tell where they belong.
fn pattern(byte: u8, length: u32) -> Vec<u8> {
    (0..length).map(|at| byte.wrapping_add(at as u8).wrapping_mul(31)).collect()
}

/// An end with what it should see.
struct Model {
    end: End,
    /// What the peer's memory holds once all of our writes are placed.
    oracle: Vec<u8>,
    /// Reads in flight: where, and what they must bring.
    reads: VecDeque<(u64, u64, Vec<u8>)>,
    /// Messages that the peer must receive, in order.
    sent: VecDeque<Vec<u8>>,
    /// Tags in flight, of each kind, in order.
    tags: [VecDeque<u64>; 4],
    next: u64,
}

impl Model {
    fn new(end: End) -> Self {
        let tags = std::array::from_fn(|_| VecDeque::new());
        Self { end, oracle: vec![0; SIZE], reads: VecDeque::new(), sent: VecDeque::new(), tags, next: 0 }
    }

    /// Posts one operation unless the link is full or a read in flight would race with it.
    fn act(&mut self, step: &Step, peer: RegionInfo) {
        if matches!(step, Step::Submit) {
            return self.end.link.submit();
        }
        let Some(mut slot) = self.end.link.pool().take() else { return };
        let (tag, link) = (self.next, &mut self.end.link);
        let (op, posted) = match *step {
            Step::Write { offset, length, byte } => {
                let races = |(from, len, _): &(u64, u64, _)| {
                    offset < from + len && *from < offset + u64::from(length)
                };
                if self.reads.iter().any(races) {
                    return;
                }
                slot.copy_from(0, &pattern(byte, length));
                let posted = link.write(slot, peer.range(offset, length).unwrap(), tag);
                if posted.is_ok() {
                    self.oracle[offset as usize..][..length as usize].copy_from_slice(&pattern(byte, length));
                }
                (Op::Write, posted)
            }
            Step::Read { offset, length } => {
                let posted = link.read(slot, peer.range(offset, length).unwrap(), tag);
                if posted.is_ok() {
                    let expected = self.oracle[offset as usize..][..length as usize].to_vec();
                    self.reads.push_back((offset, u64::from(length), expected));
                }
                (Op::Read, posted)
            }
            Step::Send { length, byte } => {
                slot.copy_from(0, &pattern(byte, length));
                let posted = link.send(slot, length, tag);
                if posted.is_ok() {
                    self.sent.push_back(pattern(byte, length));
                }
                (Op::Send, posted)
            }
            _ => (Op::Recv, link.recv(slot, tag)),
        };
        if posted.is_ok() {
            self.tags[op as usize].push_back(tag);
            self.next += 1;
        }
    }

    /// Polls, and checks what completed; `sender` is the end whose messages arrive here.
    fn poll(&mut self, sender: &mut Self) -> bool {
        let moved = self.end.poll();
        for done in std::mem::take(&mut self.end.done) {
            assert_eq!(self.tags[done.op as usize].pop_front(), Some(done.tag), "once and in order");
            let Ok(length) = done.result else { continue };
            let mut bytes = vec![0; length as usize];
            done.slot.copy_to(0, &mut bytes);
            match done.op {
                Op::Read => assert!(self.reads.pop_front().unwrap().2 == bytes, "a read brought other bytes"),
                Op::Recv => assert!(sender.sent.pop_front().unwrap() == bytes, "another message came"),
                Op::Write | Op::Send => {}
            }
        }
        self.end.done.reserve(64);
        moved
    }

    /// Posts a receive where `sender` waits for one.
    fn serve(&mut self, sender: &Self) {
        if self.tags[Op::Recv as usize].len() < sender.sent.len() {
            self.act(&Step::Recv, sender.end.region);
        }
    }

    fn in_flight(&self) -> usize {
        self.tags.iter().map(VecDeque::len).sum()
    }
}

fn models(tcp: bool, buffer: usize, reads: u8) -> [Model; 2] {
    let unix = || {
        let (a, b) = sockets(Some(buffer));
        (a.into(), b.into())
    };
    let (a, b) = if tcp { tcp_sockets(buffer) } else { unix() };
    let end = |socket: OwnedFd| Model::new(End::new(socket, &config(), reads, Access::RemoteReadWrite));
    [end(a), end(b)]
}

fn run(models: &mut [Model; 2], steps: &[(bool, Step)]) {
    let [a, b] = models;
    for (first, step) in steps {
        let (us, peer) = if *first { (&mut *a, &mut *b) } else { (&mut *b, &mut *a) };
        if matches!(step, Step::Poll) {
            us.poll(peer);
        } else {
            us.act(step, peer.end.region);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn random_operations_both_ways_leave_what_the_oracle_says(
        steps in steps(), tcp in any::<bool>(), buffer in 2048usize..40_000, reads in 1u8..6,
    ) {
        let mut models = models(tcp, buffer, reads);
        run(&mut models, &steps);
        let [a, b] = &mut models;
        let start = Instant::now();
        // Every message needs its receive.
        while !a.sent.is_empty() || !b.sent.is_empty() || a.tags[..3].iter().chain(&b.tags[..3]).any(|t| !t.is_empty()) {
            prop_assert!(start.elapsed() < PATIENCE, "stuck: {:?} {:?}", a.tags, b.tags);
            let moved = a.poll(b) | b.poll(a);
            if !moved {
                a.serve(b);
                b.serve(a);
            }
        }
        prop_assert!(a.end.bytes() == b.oracle && b.end.bytes() == a.oracle);
        prop_assert!(a.end.link.down().is_none() && b.end.link.down().is_none());
    }

    #[test]
    fn a_death_at_any_moment_completes_everything_once(
        steps in steps(), tcp in any::<bool>(), buffer in 2048usize..40_000, how in 0u8..3,
    ) {
        let mut models = models(tcp, buffer, 3);
        run(&mut models, &steps);
        let [mut a, mut b] = models;
        match how {
            0 => drop(std::mem::replace(&mut b, Model::new(pair(&config()).0))),
            1 => b.end.link.close(),
            _ => a.end.link.close(),
        }
        let start = Instant::now();
        let replaced = how == 0;
        while a.in_flight() > 0 || b.in_flight() > 0 || a.end.link.down().is_none() || !(replaced || b.end.link.down().is_some()) {
            prop_assert!(start.elapsed() < PATIENCE);
            if replaced {
                // Messages of the end that is gone cannot be checked against anything.
                a.end.poll();
                for done in std::mem::take(&mut a.end.done) {
                    prop_assert_eq!(a.tags[done.op as usize].pop_front(), Some(done.tag));
                }
                a.end.done.reserve(64);
            } else {
                a.poll(&mut b);
                b.poll(&mut a);
            }
        }
        for _ in 0..3 {
            prop_assert!(!a.end.poll());
        }
        prop_assert!(a.end.done.is_empty());
        prop_assert_eq!(a.end.link.pool().available(), a.end.link.pool().slots());
    }

    #[test]
    fn garbage_never_panics(
        chunks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..200), 1..20),
        kinds in proptest::collection::vec(0u8..9, 20), tidy in any::<bool>(),
    ) {
        let (mut a, mut peer) = half(&config());
        let slots = [a.slot(), a.slot(), a.slot(), a.slot()];
        let [read, write, send, posted] = slots;
        let range = RemoteRange { address: 0, key: 0, length: 100 };
        a.link.read(read, range, 0).unwrap();
        a.link.write(write, range, 1).unwrap();
        a.link.send(send, 100, 2).unwrap();
        a.link.recv(posted, 3).unwrap();
        a.link.submit();
        for (mut chunk, kind) in chunks.into_iter().zip(kinds) {
            if tidy {
                // Nearly frames: a valid kind, small numbers, zeroes where they belong.
                chunk.resize(HEADER, 0);
                chunk[0] = kind;
                chunk[1..4].fill(0);
                chunk[6..].fill(0);
                chunk[8] = kind % 2;
            }
            if peer.write_all(&chunk).is_err() {
                break;
            }
            a.poll();
        }
        drop(peer);
        settle_alone(&mut a);
        prop_assert!(a.link.down().is_some());
        let mut tags: Vec<u64> = a.results().iter().map(|result| result.0).collect();
        tags.sort_unstable();
        prop_assert_eq!(tags, [0, 1, 2, 3]);
    }
}

#[test]
fn two_full_links_do_not_wait_for_each_other() {
    let deep = LinkConfig { slots: 64, depth: 32, ..config() };
    let (one, other) = sockets(Some(2048));
    let mut a = End::new(one, &deep, 4, Access::RemoteReadWrite);
    let mut b = End::new(other, &deep, 4, Access::RemoteReadWrite);
    for tag in 0..32 {
        let (to_b, to_a) = (b.range(0, 16 << 10), a.range(0, 16 << 10));
        let (slot_a, slot_b) = (a.slot(), b.slot());
        if tag % 2 == 0 {
            a.link.write(slot_a, to_b, tag).unwrap();
            b.link.write(slot_b, to_a, tag).unwrap();
        } else {
            a.link.read(slot_a, to_b, tag).unwrap();
            b.link.read(slot_b, to_a, tag).unwrap();
        }
        a.link.submit();
        b.link.submit();
    }
    settle(&mut a, &mut b);
    for end in [&mut a, &mut b] {
        let results = end.results();
        assert_eq!(results.len(), 32);
        assert!(results.iter().all(|result| result.2 == Ok(16 << 10)));
    }
}
