//! Who gets in, and who may touch what.

use std::sync::Arc;
use std::time::Duration;

use kaeru_common::fabric::buffer::Memory;
use kaeru_common::fabric::{
    Access, ConnectError, Domain, Fabric, Incoming, Link, LinkConfig, OpError, RegionInfo, RejectReason,
    RemoteRange,
};
use kaeru_common::units::LaneToken;

use crate::harness::driven::Driven;
use crate::harness::pair::{LinkOf, PATIENCE, Pair};
use crate::harness::rig::{Duo, Rig, SMALL};

/// Does one forbidden thing on a link of its own: that link dies of it, and nothing else does.
fn forbid<P: Pair>(
    rig: &mut Rig<P>,
    mut duo: Duo<P>,
    what: &str,
    offend: impl FnOnce(&mut Driven<LinkOf<P>>) -> u64,
) {
    let mut bystander = rig.join_small();
    let tag = offend(&mut duo.client);
    duo.client.read(rig.range(0, 16));
    rig.drain(&mut duo);
    assert_eq!(duo.client.result(tag), Err(OpError::Access), "{what}");
    assert!(duo.client.done.iter().all(|done| done.result == Err(OpError::LinkDead)), "{what}");
    drop(duo);
    let mut newcomer = rig.join_small();
    for living in [&mut bystander, &mut newcomer] {
        rig.write(living, 0, b"alive");
        assert_eq!(rig.read(living, 0, 5), b"alive", "after {what}");
    }
}

/// Forbids both a read and a write of `range`.
fn forbid_range<P: Pair>(rig: &mut Rig<P>, what: &str, range: RemoteRange) {
    let duo = rig.join_small();
    forbid(rig, duo, what, |client| client.read(range));
    let duo = rig.join_small();
    forbid(rig, duo, what, |client| client.write(&vec![0xbd; range.length as usize], range));
}

pub(super) fn a_range_one_byte_outside_of_its_region_is_refused<P: Pair>(pair: P) {
    let mut rig = Rig::new(pair, 10_000);
    let RegionInfo { address, key, length } = rig.regions[0];
    let end = address + length;
    for (what, address, length) in [
        ("one byte behind the end", end, 1),
        ("a byte across the end", end - 4095, 4096),
        ("a byte before the start", address - 1, 1),
        ("a byte across the start", address - 1, 4096),
        ("far behind the end", end + (1 << 32), 8),
        ("across the end of all addresses", u64::MAX - 3, 8),
    ] {
        forbid_range(&mut rig, what, RemoteRange { address, key, length });
    }
    let whole = rig.look(0, 10_000);
    assert!(!whole.contains(&0xbd), "nothing was written");
}

pub(super) fn a_wrong_key_is_refused<P: Pair>(pair: P) {
    let mut rig = Rig::new(pair, 10_000);
    let range = rig.range(0, 64);
    for key in [range.key ^ 1, range.key ^ 0x100, range.key.wrapping_add(0x0100_0000), !range.key] {
        forbid_range(&mut rig, "a wrong key", RemoteRange { key, ..range });
    }
}

pub(super) fn a_write_to_a_read_only_region_is_refused<P: Pair>(pair: P) {
    let mut rig = Rig::new(pair, 4096);
    let memory = Arc::new(Memory::anonymous(4096).unwrap());
    memory.fill(0, 4096, 0x42);
    let region = rig.domain.register(&memory, Access::RemoteRead).unwrap()[0];
    let range = region.range(100, 8).unwrap();
    let mut duo = rig.join_small();
    let read = duo.client.read(range);
    rig.settle(&mut duo);
    assert_eq!(duo.client.bytes(read), [0x42; 8], "reading is allowed");
    forbid(&mut rig, duo, "a write to a read-only region", |client| client.write(&[0; 8], range));
    let mut bytes = vec![0; 4096];
    memory.copy_to(0, &mut bytes);
    assert_eq!(bytes, [0x42; 4096]);
}

pub(super) fn a_local_pool_is_not_to_be_reached<P: Pair>(pair: P) {
    let mut rig = Rig::new(pair, 4096);
    let duo = rig.join_small();
    assert_eq!(duo.client.link.pool_region(), None);
    assert_eq!(duo.server.link.pool_region(), None);
    let key = rig.regions[0].key;
    let address = duo.server.slot().address();
    forbid_range(&mut rig, "the address of a local slot", RemoteRange { address, key, length: 8 });
    let memory = Arc::new(Memory::anonymous(4096).unwrap());
    for region in rig.domain.register(&memory, Access::Local).unwrap() {
        let range = region.range(0, 8).unwrap();
        forbid_range(&mut rig, "a local region", range);
    }
}

pub(super) fn a_read_only_pool_is_not_to_be_written<P: Pair>(pair: P) {
    let mut rig = Rig::new(pair, 4096);
    let readable = LinkConfig { pool_access: Access::RemoteRead, ..SMALL };
    let mut duo = rig.join(&SMALL, &readable);
    let mut slot = duo.server.slot();
    slot.copy_from(0, b"only read");
    let offset = u64::from(slot.index()) * u64::from(slot.size());
    let range = duo.server.link.pool_region().unwrap().range(offset, 9).unwrap();
    let read = duo.client.read(range);
    rig.settle(&mut duo);
    assert_eq!(duo.client.bytes(read), b"only read");
    forbid(&mut rig, duo, "a write to a read-only pool", |client| client.write(&[0; 9], range));
}

pub(super) fn two_domains_do_not_reach_one_another<P: Pair>(pair: P) {
    let mut rig = Rig::new(pair, 4096);
    let mut other = rig.pair.server().domain().unwrap();
    let memory = Arc::new(Memory::anonymous(4096).unwrap());
    let region = other.register(&memory, Access::RemoteReadWrite).unwrap()[0];
    forbid_range(&mut rig, "a region of another domain", region.range(0, 64).unwrap());
    let (link, peer) = rig.pair.meet(&LaneToken([1; 16]), &SMALL, |incoming| incoming.accept(&other, &SMALL));
    let mut there = Duo::<P> { client: Driven::new(link.unwrap()), server: Driven::new(peer.unwrap()) };
    let read = there.client.read(region.range(0, 64).unwrap());
    rig.settle(&mut there);
    assert_eq!(there.client.bytes(read), [0; 64], "its own links reach it");
    let foreign = rig.range(0, 16);
    there.client.read(foreign);
    rig.drain(&mut there);
    assert_eq!(there.client.done[0].result, Err(OpError::Access));
}

pub(super) fn a_message_longer_than_its_receive_is_too_long<P: Pair>(pair: P) {
    let mut rig = Rig::new(pair, 4096);
    let mut duo = rig.join(&SMALL, &LinkConfig { slot_size: 4096, ..SMALL });
    let fits = duo.server.slot_size();
    assert!(fits < duo.client.slot_size(), "the sender has longer slots");
    let (whole, short) = (duo.server.recv(), duo.server.recv());
    duo.client.send(&vec![1; fits as usize]);
    let long = duo.client.send(&vec![2; fits as usize + 1]);
    rig.drain(&mut duo);
    assert_eq!(duo.server.result(whole), Ok(fits), "the message before it fitted");
    assert_eq!(duo.server.result(short), Err(OpError::TooLong));
    let sent = duo.client.result(long);
    assert!(matches!(sent, Err(OpError::TooLong | OpError::LinkDead)), "{sent:?}");
    let mut another = rig.join_small();
    rig.write(&mut another, 0, b"alive");
}

pub(super) fn the_listener_gets_the_token_and_its_reason_gets_back<P: Pair>(mut pair: P) {
    for reason in [RejectReason::BadToken, RejectReason::NoResources, RejectReason::BadVersion] {
        let token = LaneToken(std::array::from_fn(|at| at as u8 ^ reason as u8));
        let (link, seen) = pair.meet(&token, &SMALL, |incoming| {
            let seen = *incoming.token();
            incoming.reject(reason);
            seen
        });
        assert!(seen == token, "the token arrives as it was sent");
        match link {
            Err(ConnectError::Refused { reason: told, fabric, .. }) => {
                assert_eq!((told, fabric), (reason, pair.client().kind()));
            }
            Err(error) => panic!("the reason got lost: {error}"),
            Ok(_) => panic!("a rejected link came about"),
        }
    }
    let mut rig = Rig::new(pair, 4096);
    let mut duo = rig.join_small();
    rig.write(&mut duo, 0, b"the listener lives on");
}

pub(super) fn connecting_to_nobody_fails_and_names_the_address<P: Pair>(pair: P) {
    let nowhere = pair.nowhere();
    match pair.client().connect(nowhere, &LaneToken([0; 16]), &SMALL, PATIENCE) {
        Err(error @ (ConnectError::Unreachable { .. } | ConnectError::TimedOut { .. })) => {
            assert!(error.to_string().contains(&nowhere.to_string()), "{error}");
        }
        Err(error) => panic!("nobody is there, but: {error}"),
        Ok(_) => panic!("nobody is there, but it connected"),
    }
}

pub(super) fn a_listener_does_not_wait_longer_than_its_patience<P: Pair>(mut pair: P) {
    let before = pair.now();
    assert!(!pair.anyone(Duration::from_millis(50)), "nobody knocked");
    let waited = pair.now() - before;
    assert!(waited >= Duration::from_millis(45) && waited < Duration::from_secs(5), "{waited:?}");
}
