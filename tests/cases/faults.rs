//! What only a simulated network can do to a link: silence, stopped processes, loss, greedy peers, and time.

use std::sync::mpsc;
use std::time::Duration;

use kaeru_common::fabric::sim::{Device, Knobs, SimNet, Stats};
use kaeru_common::fabric::{
    Access, ConnectError, Domain, Fabric, Incoming, Link, LinkConfig, LinkDown, OpError, RejectReason,
    SetupError,
};

use crate::harness::oracle::Walk;
use crate::harness::pair::{PATIENCE, Pair, SimPair};
use crate::harness::random::Random;
use crate::harness::rig::{Rig, SMALL, TOKEN};

const RETRIES: Duration = Duration::from_secs(4);

#[test]
fn a_silent_peer_fails_everything_in_flight_once_its_retries_are_over() {
    for pumps in 0..20 {
        let mut rig = Rig::new(SimPair::new(pumps, Knobs::default()), 64 << 10);
        let mut duo = rig.join_small();
        for at in 0..8 {
            duo.client.recv();
            duo.client.write(&[1; 512], rig.range(at * 512, 512));
            duo.client.read(rig.range(at * 512, 512));
            duo.client.send(b"hello?");
        }
        duo.client.link.submit();
        (0..pumps).for_each(|_| rig.pair.pump());
        rig.pair.server().silence();
        let client = &mut duo.client;
        let early = rig.within(RETRIES / 2, &mut [client], |ends| ends[0].link.down().is_some());
        assert!(!early, "silence takes its time");
        rig.until("the retries are over", &mut [client], |ends| ends[0].owes() == 0);
        assert!(matches!(duo.client.link.down(), Some(LinkDown::Failed(_))), "{:?}", duo.client.link.down());
        assert!(duo.client.done.iter().all(|done| matches!(done.result, Ok(_) | Err(OpError::LinkDead))));
    }
}

#[test]
fn an_idle_link_to_a_silent_peer_looks_alive() {
    let mut rig = Rig::new(SimPair::new(1, Knobs::default()), 4096);
    let mut duo = rig.join_small();
    duo.client.recv();
    rig.pair.server().silence();
    rig.pair.net.advance(Duration::from_secs(3600));
    assert!(!duo.client.poll() && duo.client.link.down().is_none(), "only what is in flight notices");
}

#[test]
fn a_stopped_process_serves_one_sided_operations_and_takes_no_messages() {
    let mut rig = Rig::new(SimPair::new(1, Knobs::default()), 4096);
    let mut duo = rig.join_small();
    rig.pair.server().stop_process();
    rig.write(&mut duo, 0, b"nobody is at home");
    assert_eq!(rig.read(&mut duo, 0, 17), b"nobody is at home");
    duo.client.send(b"anybody?");
    let ends = &mut [&mut duo.client, &mut duo.server];
    assert!(!rig.within(Duration::from_secs(60), ends, |ends| ends[0].owes() == 0), "the message waits");
    rig.pair.server().resume_process();
    let heard = duo.server.recv();
    rig.settle(&mut duo);
    assert_eq!(duo.server.bytes(heard), b"anybody?");
}

#[test]
fn a_severed_link_dies_on_both_sides() {
    let mut rig = Rig::new(SimPair::new(1, Knobs::default()), 4096);
    let (mut duo, mut bystander) = (rig.join_small(), rig.join_small());
    duo.client.recv();
    rig.pair.net.sever(duo.server.link.id());
    rig.drain(&mut duo);
    rig.write(&mut bystander, 0, b"alive");
}

#[test]
fn losses_delay_and_do_not_lose() {
    let knobs = Knobs { loss: 200_000, retries: 30, ..Knobs::default() };
    let mut rig = Rig::new(SimPair::new(7, knobs), 64 << 10);
    let mut random = Random(7);
    let duo = rig.join_small();
    let mut walk = Walk::new(&rig, duo, 0, 64 << 10);
    for _ in 0..300 {
        assert!(walk.step(&mut rig, &mut random));
        rig.pair.net.advance(Duration::from_millis(random.below(50)));
    }
    walk.finish(&mut rig);
    walk.bury(&mut rig);
    assert!(rig.pair.net.stats().lost > 20);
}

#[test]
fn a_network_that_loses_everything_ends_the_link() {
    let mut rig = Rig::new(SimPair::new(7, Knobs::default()), 4096);
    let mut duo = rig.join_small();
    rig.pair.net.set_knobs(Knobs { loss: 1_000_000, ..Knobs::default() });
    duo.client.read(rig.range(0, 64));
    rig.until("the retries are over", &mut [&mut duo.client], |ends| ends[0].owes() == 0);
    assert!(matches!(duo.client.link.down(), Some(LinkDown::Failed(_))));
}

#[test]
fn a_later_write_may_overtake_a_read() {
    let mut seen = [0; 2];
    for seed in 0..100 {
        let mut rig = Rig::new(SimPair::new(seed, Knobs::default()), 64);
        let mut duo = rig.join_small();
        let read = duo.client.read(rig.range(0, 1));
        duo.client.write(&[1], rig.range(0, 1));
        rig.settle(&mut duo);
        seen[usize::from(duo.client.bytes(read)[0])] += 1;
    }
    assert!(seen.iter().all(|&times| times > 5), "both orders happen: {seen:?}");
}

#[test]
fn the_card_with_the_least_reads_decides() {
    for (initiator_reads, responder_reads, responder_depth, expected) in
        [(16, 16, 16, 16), (128, 16, 255, 16), (4, 16, 16, 4), (16, 1, 16, 1), (16, 16, 3, 3), (16, 16, 0, 1)]
    {
        let net = SimNet::new(1);
        let server = net.host_with([10, 0, 0, 1], Device { responder_reads, ..Device::default() });
        let client = net.host_with([10, 0, 0, 2], Device { initiator_reads, ..Device::default() });
        let listener = server.listen(1).unwrap();
        let (domain, config) = (server.domain().unwrap(), LinkConfig { responder_depth, ..SMALL });
        let (links, made) = mpsc::channel();
        listener.answer_with(move |incoming| links.send(incoming.accept(&domain, &config)).unwrap());
        let link = client.connect(([10, 0, 0, 1], 1).into(), &TOKEN, &SMALL, PATIENCE).unwrap();
        assert!(made.recv().unwrap().is_ok());
        assert_eq!(link.limits().reads, expected);
    }
}

#[test]
fn a_handler_answers_those_who_connect() {
    let net = SimNet::new(1);
    let (server, client) = (net.host([10, 0, 0, 1]), net.host([10, 0, 0, 2]));
    let listener = server.listen(1).unwrap();
    listener.answer_with(|incoming| incoming.reject(RejectReason::BadToken));
    let outcome = client.connect(([10, 0, 0, 1], 1).into(), &TOKEN, &SMALL, PATIENCE);
    assert!(matches!(outcome, Err(ConnectError::Refused { reason: RejectReason::BadToken, .. })));
}

#[test]
fn connecting_to_a_silent_host_takes_all_patience_and_no_more() {
    let net = SimNet::new(1);
    let (server, client) = (net.host([10, 0, 0, 1]), net.host([10, 0, 0, 2]));
    let _listener = server.listen(1).unwrap();
    server.silence();
    let outcome = client.connect(([10, 0, 0, 1], 1).into(), &TOKEN, &SMALL, Duration::from_secs(3));
    assert!(matches!(outcome, Err(ConnectError::TimedOut { .. })));
    assert_eq!(net.now(), Duration::from_secs(3));
}

#[test]
fn a_client_that_lost_patience_leaves_no_half_of_a_link() {
    let mut rig = Rig::new(SimPair::new(1, Knobs::default()), 4096);
    let (outcome, mut server) = {
        let domain = &rig.domain;
        let net = rig.pair.net.clone();
        rig.pair.meet(&TOKEN, &SMALL, |incoming| {
            let link = incoming.accept(domain, &SMALL).unwrap();
            net.set_knobs(Knobs { delay_min: PATIENCE * 2, delay_max: PATIENCE * 2, ..Knobs::default() });
            link
        })
    };
    // The acceptance was on its way before the network became slow, so this one came about; the next does not.
    drop(outcome.unwrap());
    rig.pair.net.advance(PATIENCE * 3);
    assert!(server.poll(&mut Vec::new()) && server.down().is_some());
    let connecting = rig.pair.client().begin_connect(([10, 0, 0, 1], 17_420).into(), &TOKEN, &SMALL).unwrap();
    assert!(matches!(connecting.finish(PATIENCE), Err(ConnectError::TimedOut { .. })));
}

#[test]
fn memory_may_take_several_regions_and_may_not_fit() {
    let knobs = Knobs { region_limit: 4096, register_limit: 20_000, ..Knobs::default() };
    let mut rig = Rig::new(SimPair::new(1, knobs), 10_000);
    assert_eq!(rig.regions.iter().map(|region| region.length).collect::<Vec<_>>(), [4096, 4096, 1808]);
    let mut duo = rig.join_small();
    for offset in [0, 4096, 8192, 9_990] {
        rig.write(&mut duo, offset, b"0123456789");
        assert_eq!(rig.look(offset as usize, 10), b"0123456789");
    }
    let memory = rig.memory.clone();
    rig.domain.register(&memory, Access::RemoteRead).unwrap();
    let refused = rig.domain.register(&memory, Access::RemoteRead).unwrap_err();
    assert!(matches!(refused, SetupError::Register { bytes: 10_000, done: 20_000, .. }), "{refused}");
}

#[test]
fn one_seed_has_one_history() {
    let history = |seed| -> Stats {
        let knobs = Knobs { loss: 10_000, ..Knobs::default() };
        let mut rig = Rig::new(SimPair::new(seed, knobs), 64 << 10);
        let mut random = Random(seed);
        let duo = rig.join_small();
        let mut walk = Walk::new(&rig, duo, 0, 64 << 10);
        for _ in 0..500 {
            walk.step(&mut rig, &mut random);
        }
        walk.finish(&mut rig);
        walk.bury(&mut rig);
        rig.pair.net.stats()
    };
    assert_eq!(history(3), history(3));
    assert_ne!(history(3).digest, history(4).digest);
}
