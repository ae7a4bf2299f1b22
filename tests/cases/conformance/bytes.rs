//! The right bytes in the right places.

use kaeru_common::fabric::buffer::Memory;
use kaeru_common::fabric::{Access, Link, LinkConfig, Op};

use crate::harness::oracle::Walk;
use crate::harness::pair::Pair;
use crate::harness::random::{Random, pattern};
use crate::harness::rig::{Rig, SMALL};
use crate::requires;

pub(super) fn reads_and_writes_move_the_right_bytes_at_every_boundary<P: Pair>(pair: P) {
    // Odd, so that neither a page nor a slot divides it.
    const REGION: u64 = 100_003;
    let mut rig = Rig::new(pair, REGION as usize);
    let mut duo = rig.join_small();
    let slot = u64::from(duo.client.slot_size());
    for length in [1, 2, 511, 4095, 4096, 4097, slot - 1, slot] {
        for offset in [0, 1, slot - 1, REGION - length] {
            let bytes = pattern(offset << 32 | length, length as usize);
            rig.write(&mut duo, offset, &bytes);
            assert_eq!(
                rig.look(offset as usize, length as usize),
                bytes,
                "{length} bytes written to {offset}"
            );
            let read = rig.read(&mut duo, offset, length as u32);
            assert_eq!(read, bytes, "{length} bytes read from {offset}");
        }
    }
}

pub(super) fn a_read_leaves_the_rest_of_its_slot_alone<P: Pair>(pair: P) {
    let mut rig = Rig::new(pair, 4096);
    rig.memory.fill(0, 4096, 0x11);
    let mut duo = rig.join_small();
    let mut slot = duo.client.slot();
    let size = slot.size() as usize;
    slot.fill(0, size, 0x77);
    let from = rig.range(0, 100);
    let tag = duo.client.take(Op::Read, slot, |link, slot, tag| link.read(slot, from, tag)).unwrap();
    rig.settle(&mut duo);
    let completion = duo.client.done_with(tag).unwrap();
    let mut bytes = vec![0; size];
    completion.slot.copy_to(0, &mut bytes);
    assert!(bytes[..100].iter().all(|&byte| byte == 0x11) && bytes[100..].iter().all(|&byte| byte == 0x77));
}

pub(super) fn a_write_leaves_the_bytes_around_it_alone<P: Pair>(pair: P) {
    let mut rig = Rig::new(pair, 4096);
    rig.memory.fill(0, 4096, 0x11);
    let mut duo = rig.join_small();
    rig.write(&mut duo, 100, &[0x22; 50]);
    let bytes = rig.look(0, 4096);
    assert!(
        bytes
            .iter()
            .enumerate()
            .all(|(at, &byte)| byte == if (100..150).contains(&at) { 0x22 } else { 0x11 })
    );
}

pub(super) fn messages_carry_the_right_bytes_both_ways<P: Pair>(pair: P) {
    let mut rig = Rig::new(pair, 4096);
    let mut duo = rig.join_small();
    for length in [1, 16, 255, 256, 4095, 4096, 8192] {
        let (there, back) = (pattern(length, length as usize), pattern(!length, length as usize));
        let (at_server, at_client) = (duo.server.recv(), duo.client.recv());
        duo.client.send(&there);
        duo.server.send(&back);
        rig.until("both messages", &mut [&mut duo.client, &mut duo.server], |ends| {
            ends.iter().all(|end| end.owes() == 0)
        });
        assert_eq!(duo.server.bytes(at_server), there);
        assert_eq!(duo.client.bytes(at_client), back);
        duo.client.done.clear();
        duo.server.done.clear();
    }
}

pub(super) fn messages_have_slots_of_their_own<P: Pair>(pair: P) {
    let mut rig = Rig::new(pair, 4096);
    let config = LinkConfig { pool_access: Access::RemoteReadWrite, messages: 5, message_size: 64, ..SMALL };
    let mut duo = rig.join(&config, &config);
    assert_eq!((duo.client.link.messages().slots(), duo.client.link.messages().slot_size()), (5, 64));
    let data = duo.server.link.pool_region().unwrap();
    let whole = u64::from(duo.server.slot_size()) * u64::from(duo.server.link.pool().slots());
    assert_eq!(data.length, whole, "the peer is let at the data alone");
    // Every slot of them, data beside it on the same link, both ways.
    for round in 0..20u64 {
        let (bytes, message) = (pattern(round, 100), pattern(!round, 64));
        let slot = duo.server.link.messages().take().expect("a free message slot");
        let heard = duo.server.take(Op::Recv, slot, |link, slot, tag| link.recv(slot, tag)).unwrap();
        duo.client.write(&bytes, data.range(round * 100, 100).unwrap());
        let mut slot = duo.client.link.messages().take().expect("a free message slot");
        slot.copy_from(0, &message);
        duo.client.take(Op::Send, slot, |link, slot, tag| link.send(slot, 64, tag)).unwrap();
        rig.until("the message", &mut [&mut duo.client, &mut duo.server], |ends| {
            ends.iter().all(|end| end.owes() == 0)
        });
        assert_eq!(duo.server.bytes(heard), message);
        let read = duo.client.read(data.range(round * 100, 100).unwrap());
        rig.settle(&mut duo);
        assert_eq!(duo.client.bytes(read), bytes);
        duo.client.done.clear();
        assert_eq!(duo.client.link.messages().available(), 5, "every slot is free again");
        assert_eq!(duo.server.link.messages().available(), 5);
    }
}

pub(super) fn addresses_beyond_4_gib_are_exact<P: Pair>(pair: P) {
    const SIZE: u64 = (5 << 30) + 12_345;
    requires!(if P::PINS { Err("it would take 5 GiB of memory".to_owned()) } else { Ok(()) });
    let memory = Memory::memfd("beyond-4-gib", SIZE as usize).unwrap();
    let mut rig = Rig::with(pair, memory, Access::RemoteReadWrite);
    let mut duo = rig.join_small();
    for offset in [(1 << 31) - 50, (1 << 32) - 50, 1 << 32, (1 << 32) + 4096, SIZE - 100] {
        let bytes = pattern(offset, 100);
        rig.write(&mut duo, offset, &bytes);
        assert_eq!(rig.look(offset as usize, 100), bytes, "at {offset}");
        assert_eq!(rig.read(&mut duo, offset, 100), bytes, "at {offset}");
    }
    assert_eq!(rig.look(0, 4196), vec![0; 4196], "no write landed 4 GiB too low");
}

pub(super) fn the_peer_moves_bytes_in_and_out_of_a_granted_pool<P: Pair>(pair: P) {
    let mut rig = Rig::new(pair, 4096);
    let granting = LinkConfig { pool_access: Access::RemoteReadWrite, ..SMALL };
    let mut duo = rig.join(&granting, &granting);
    // As a staged read does: the client lends a slot, and the server writes into it.
    let slot = duo.client.slot();
    let size = duo.client.slot_size();
    let region = duo.client.link.pool_region().unwrap();
    assert_eq!(region.length, u64::from(size) * u64::from(duo.client.link.pool().slots()));
    let lent = region.range(u64::from(slot.index()) * u64::from(size), size).unwrap();
    let bytes = pattern(9, size as usize);
    let written = duo.server.write(&bytes, lent);
    rig.settle(&mut duo);
    assert_eq!(duo.server.result(written), Ok(size));
    let mut landed = vec![0; size as usize];
    slot.copy_to(0, &mut landed);
    assert_eq!(landed, bytes);
    let read = duo.server.read(lent);
    rig.settle(&mut duo);
    assert_eq!(duo.server.bytes(read), bytes);
    // And as a staged write does, the other way round.
    let slot = duo.server.slot();
    let region = duo.server.link.pool_region().unwrap();
    let lent = region.range(u64::from(slot.index()) * u64::from(size), 5).unwrap();
    duo.client.write(b"kaeru", lent);
    rig.settle(&mut duo);
    let mut landed = [0; 5];
    slot.copy_to(0, &mut landed);
    assert_eq!(&landed, b"kaeru");
}

pub(super) fn random_operations_agree_with_an_oracle<P: Pair>(pair: P) {
    const SHARE: usize = 64 << 10;
    let mut rig = Rig::new(pair, 2 * SHARE);
    for seed in 0..8 {
        let mut random = Random(seed);
        let (one, other) = (rig.join_small(), rig.join_small());
        let mut walks = [Walk::new(&rig, one, 0, SHARE), Walk::new(&rig, other, SHARE, SHARE)];
        for _ in 0..3000 {
            let walk = &mut walks[random.below(2) as usize];
            assert!(walk.step(&mut rig, &mut random), "the link lives, seed {seed}");
        }
        for walk in &mut walks {
            walk.finish(&mut rig);
        }
        walks.into_iter().for_each(|walk| walk.bury(&mut rig));
    }
}
