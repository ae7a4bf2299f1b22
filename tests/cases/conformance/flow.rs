//! Order, fullness, and what a completion means.

use kaeru_common::fabric::{Link, LinkConfig, Op, Refused};

use crate::harness::driven::bytes_of;
use crate::harness::pair::Pair;
use crate::harness::random::pattern;
use crate::harness::rig::{Rig, SMALL};

pub(super) fn every_slot_comes_back_once_with_its_tag<P: Pair>(pair: P) {
    // `Driven` checks tag, kind and slot of every completion.
    let mut rig = Rig::new(pair, 64 << 10);
    let mut duo = rig.join_small();
    for round in 0..20u64 {
        for _ in 0..8 {
            duo.server.recv();
        }
        for at in 0..8 {
            duo.client.write(&pattern(round, 100), rig.range(at * 100, 100));
            duo.client.read(rig.range(at * 100, 100));
            duo.client.send(&pattern(round, 10));
        }
        duo.client.link.submit();
        // Much may be there to be polled at once, and polls fetch a few at a time.
        (0..100).for_each(|_| rig.pair.pump());
        rig.until("all of them", &mut [&mut duo.client, &mut duo.server], |ends| {
            ends.iter().all(|end| end.owes() == 0)
        });
        for end in [&mut duo.client, &mut duo.server] {
            assert!(end.done.drain(..).all(|completion| completion.result.is_ok()));
            assert_eq!(end.link.pool().available(), end.link.pool().slots());
        }
    }
}

pub(super) fn completions_of_one_kind_come_in_order<P: Pair>(pair: P) {
    let mut rig = Rig::new(pair, 64 << 10);
    let mut duo = rig.join_small();
    for _ in 0..10 {
        let mut expected = [Vec::new(), Vec::new(), Vec::new()];
        for at in 0..10 {
            expected[0].push(duo.client.write(&[1; 64], rig.range(at * 64, 64)));
            expected[1].push(duo.client.read(rig.range(at * 4096, 4096)));
            duo.server.recv();
            expected[2].push(duo.client.send(&[1; 64]));
        }
        duo.client.link.submit();
        (0..100).for_each(|_| rig.pair.pump());
        rig.settle(&mut duo);
        for (op, expected) in [Op::Write, Op::Read, Op::Send].into_iter().zip(expected) {
            let came: Vec<u64> =
                duo.client.done.iter().filter(|done| done.op == op).map(|done| done.tag).collect();
            assert_eq!(came, expected, "{op:?}");
        }
        duo.client.done.clear();
        duo.server.done.clear();
    }
}

pub(super) fn a_full_link_says_so_and_gives_the_slot_back<P: Pair>(pair: P) {
    let mut rig = Rig::new(pair, 4096);
    for depth in [1, 4] {
        let mut duo = rig.join(&LinkConfig { depth, ..SMALL }, &SMALL);
        let depth = duo.client.link.limits().depth as usize;
        assert!((1..32).contains(&depth), "a depth that {depth} can be tested at");
        for round in 0..50u8 {
            let range = rig.range(0, 64);
            for _ in 0..depth {
                duo.client.write(&[round; 64], range);
            }
            duo.client.link.submit();
            let (slot, free) = (duo.client.slot(), duo.client.link.pool().available());
            let refused =
                duo.client.take(Op::Write, slot, |link, slot, tag| link.write(slot, range, tag)).unwrap_err();
            assert!(matches!(refused, Refused::Full(_)), "{refused:?}");
            drop(refused);
            assert_eq!(duo.client.link.pool().available(), free + 1);
            rig.settle(&mut duo);
            assert_eq!(duo.client.done.drain(..).filter(|done| done.result == Ok(64)).count(), depth);
            assert_eq!(rig.look(0, 64), [round; 64]);
        }
    }
}

pub(super) fn a_completed_write_is_seen_by_a_read_on_another_link<P: Pair>(pair: P) {
    let mut rig = Rig::new(pair, 4096);
    let (mut writer, mut reader) = (rig.join_small(), rig.join_small());
    for round in 0..100 {
        let bytes = pattern(round, 512);
        let written = writer.client.write(&bytes, rig.range(0, 512));
        rig.settle(&mut writer);
        assert_eq!(writer.client.result(written), Ok(512));
        assert_eq!(rig.read(&mut reader, 0, 512), bytes, "round {round}");
    }
}

pub(super) fn a_read_sees_the_writes_posted_before_it<P: Pair>(pair: P) {
    let mut rig = Rig::new(pair, 8192);
    let mut duo = rig.join_small();
    for round in 0..100 {
        let bytes = pattern(round, 5000);
        duo.client.write(&bytes, rig.range(100, 5000));
        let read = duo.client.read(rig.range(100, 5000));
        rig.settle(&mut duo);
        assert_eq!(duo.client.bytes(read), bytes, "round {round}");
        duo.client.done.clear();
    }
}

pub(super) fn the_last_of_many_writes_to_a_place_wins<P: Pair>(pair: P) {
    let mut rig = Rig::new(pair, 4096);
    let mut duo = rig.join_small();
    for round in 0..50u8 {
        for number in 0..20 {
            duo.client.write(&[round ^ number; 32], rig.range(7, 32));
        }
        rig.settle(&mut duo);
        duo.client.done.clear();
        assert_eq!(rig.look(7, 32), [round ^ 19; 32]);
    }
}

pub(super) fn a_message_comes_after_the_writes_before_it<P: Pair>(pair: P) {
    let mut rig = Rig::new(pair, 64 << 10);
    let mut duo = rig.join_small();
    for round in 0..100 {
        let pieces: Vec<Vec<u8>> = (0..4).map(|piece| pattern(round * 4 + piece, 4096)).collect();
        let heard = duo.server.recv();
        for (at, piece) in (0..).zip(&pieces) {
            duo.client.write(piece, rig.range(at * 4096, 4096));
        }
        duo.client.send(b"look");
        rig.until("the message", &mut [&mut duo.client, &mut duo.server], |ends| ends[1].owes() == 0);
        assert_eq!(duo.server.bytes(heard), b"look");
        assert_eq!(rig.look(0, 4 * 4096), pieces.concat(), "round {round}");
        rig.settle(&mut duo);
        duo.client.done.clear();
    }
}

pub(super) fn a_message_waits_for_a_receive<P: Pair>(pair: P) {
    let mut rig = Rig::new(pair, 4096);
    let mut duo = rig.join_small();
    let early = std::time::Duration::from_millis(50);
    for round in 0..3u8 {
        for number in 0..4 {
            duo.client.send(&[round, number]);
        }
        let ends = &mut [&mut duo.client, &mut duo.server];
        assert!(!rig.within(early, ends, |ends| !ends[1].done.is_empty()), "nothing to receive into");
        assert!(
            duo.client.link.down().is_none() && duo.server.link.down().is_none(),
            "it does not fail either"
        );
        let receives: Vec<u64> = (0..4).map(|_| duo.server.recv()).collect();
        rig.until("the messages", &mut [&mut duo.client, &mut duo.server], |ends| {
            ends.iter().all(|end| end.owes() == 0)
        });
        for (number, tag) in (0..).zip(receives) {
            assert_eq!(duo.server.bytes(tag), [round, number]);
        }
        assert!(duo.client.done.drain(..).all(|done| done.result == Ok(2)));
    }
}

pub(super) fn messages_fill_receives_in_order<P: Pair>(pair: P) {
    let mut rig = Rig::new(pair, 4096);
    let mut duo = rig.join_small();
    let receives: Vec<u64> = (0..20).map(|_| duo.server.recv()).collect();
    for number in 0..20 {
        duo.client.send(&[number; 3]);
    }
    rig.until("the messages", &mut [&mut duo.client, &mut duo.server], |ends| ends[1].owes() == 0);
    for (number, (tag, done)) in (0..).zip(receives.iter().zip(&duo.server.done)) {
        assert_eq!((done.tag, bytes_of(done)), (*tag, vec![number; 3]));
    }
}

pub(super) fn reads_beyond_the_responder_depth_queue<P: Pair>(pair: P) {
    const PIECE: usize = 512;
    let mut rig = Rig::new(pair, 256 * PIECE);
    let deep = LinkConfig { slots: 256, slot_size: 4096, depth: 256, ..SMALL };
    let bytes = pattern(5, 256 * PIECE);
    rig.memory.copy_from(0, &bytes);
    for responder_depth in [1, 4, 16] {
        let mut duo = rig.join(&deep, &LinkConfig { responder_depth, ..SMALL });
        let limits = duo.client.link.limits();
        assert!(limits.reads >= 1 && limits.reads <= u32::from(responder_depth), "{limits:?}");
        for _ in 0..4 {
            let tags: Vec<u64> = (0..limits.depth.min(256))
                .map(|at| duo.client.read(rig.range(u64::from(at) * PIECE as u64, PIECE as u32)))
                .collect();
            rig.settle(&mut duo);
            for (tag, expected) in tags.into_iter().zip(bytes.chunks(PIECE)) {
                assert_eq!(duo.client.bytes(tag), expected);
            }
        }
        assert!(duo.client.link.down().is_none());
    }
}
