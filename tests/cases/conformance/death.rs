//! Death is complete: everything comes back once, nothing is taken any more, and no slot is lost.

use kaeru_common::fabric::{Link, LinkDown, Op, OpError, Refused};

use crate::harness::pair::Pair;
use crate::harness::rig::{Duo, Rig};

/// Fills a link with operations of every kind, and a message that nobody receives.
fn load<P: Pair>(rig: &Rig<P>, duo: &mut Duo<P>) {
    for at in 0..6 {
        duo.client.recv();
        duo.server.recv();
        duo.client.write(&[at as u8; 4096], rig.range(at * 4096, 4096));
        duo.client.read(rig.range(at * 4096, 4096));
        duo.client.send(b"received");
    }
    duo.client.send(b"not received");
    duo.client.link.submit();
    duo.server.link.submit();
}

/// Checks that both ends gave everything back, and that their pools are whole.
fn check_corpses<P: Pair>(rig: &mut Rig<P>, duo: &mut Duo<P>) {
    rig.drain(duo);
    for end in [&mut duo.client, &mut duo.server] {
        for completion in end.done.drain(..) {
            assert!(matches!(completion.result, Ok(_) | Err(OpError::LinkDead)), "{completion:?}");
        }
        assert_eq!(end.link.pool().available(), end.link.pool().slots());
        assert!(!end.poll() || !end.poll(), "a dead link comes to rest");
    }
}

pub(super) fn a_link_closed_here_gives_everything_back_once<P: Pair>(pair: P) {
    let mut rig = Rig::new(pair, 64 << 10);
    for pumps in 0..12 {
        let mut duo = rig.join_small();
        load(&rig, &mut duo);
        (0..pumps).for_each(|_| rig.pair.pump());
        duo.client.link.close();
        duo.client.link.close();
        check_corpses(&mut rig, &mut duo);
        assert_eq!(duo.client.link.down(), Some(&LinkDown::ClosedHere));
    }
}

pub(super) fn a_link_closed_by_the_peer_gives_everything_back_once<P: Pair>(pair: P) {
    let mut rig = Rig::new(pair, 64 << 10);
    for pumps in 0..12 {
        let mut duo = rig.join_small();
        load(&rig, &mut duo);
        (0..pumps).for_each(|_| rig.pair.pump());
        duo.server.link.close();
        check_corpses(&mut rig, &mut duo);
        assert_eq!(duo.server.link.down(), Some(&LinkDown::ClosedHere));
    }
}

pub(super) fn a_dropped_peer_ends_the_link_and_no_other<P: Pair>(pair: P) {
    let mut rig = Rig::new(pair, 64 << 10);
    let mut bystander = rig.join_small();
    for pumps in 0..12 {
        let mut duo = rig.join_small();
        load(&rig, &mut duo);
        (0..pumps).for_each(|_| rig.pair.pump());
        let Duo { mut client, server } = duo;
        let pool = server.link.pool().clone();
        drop(server);
        assert_eq!(pool.available(), pool.slots(), "the dropped side is whole at once");
        rig.until("the survivor gets everything back", &mut [&mut client], |ends| {
            ends[0].owes() == 0 && ends[0].link.down().is_some()
        });
        rig.write(&mut bystander, 0, b"alive");
    }
}

pub(super) fn a_dead_link_refuses_and_gives_the_slot_back<P: Pair>(pair: P) {
    let mut rig = Rig::new(pair, 64 << 10);
    let mut duo = rig.join_small();
    load(&rig, &mut duo);
    duo.server.link.close();
    check_corpses(&mut rig, &mut duo);
    let range = rig.range(0, 8);
    for end in [&mut duo.client, &mut duo.server] {
        for op in [Op::Read, Op::Write, Op::Send, Op::Recv] {
            let slot = end.slot();
            let answer = end.take(op, slot, |link, slot, tag| match op {
                Op::Read => link.read(slot, range, tag),
                Op::Write => link.write(slot, range, tag),
                Op::Send => link.send(slot, 8, tag),
                Op::Recv => link.recv(slot, tag),
            });
            assert!(matches!(answer, Err(Refused::Dead(_))), "{op:?}: {answer:?}");
        }
        end.link.submit();
        assert_eq!(end.link.pool().available(), end.link.pool().slots());
    }
}

pub(super) fn dropping_a_link_with_operations_in_flight_leaks_no_slot<P: Pair>(pair: P) {
    let mut rig = Rig::new(pair, 64 << 10);
    for pumps in 0..12 {
        let mut duo = rig.join_small();
        load(&rig, &mut duo);
        (0..pumps).for_each(|_| rig.pair.pump());
        duo.client.link.poll(&mut Vec::with_capacity(2));
        let pool = duo.client.link.pool().clone();
        assert!(pool.available() < pool.slots(), "something is in flight");
        drop(duo.client);
        assert_eq!(pool.available(), pool.slots());
        let server = &mut duo.server;
        rig.until("the server gets everything back", &mut [server], |ends| ends[0].owes() == 0);
    }
}

pub(super) fn what_was_written_before_a_drop_stays_written<P: Pair>(pair: P) {
    let mut rig = Rig::new(pair, 4096);
    for round in 0..20u8 {
        let mut duo = rig.join_small();
        rig.write(&mut duo, 0, &[round; 100]);
        drop(duo);
        assert_eq!(rig.look(0, 100), [round; 100]);
        let mut next = rig.join_small();
        assert_eq!(rig.read(&mut next, 0, 100), [round; 100]);
    }
}
