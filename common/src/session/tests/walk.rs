//! Random walks: whatever goes wrong at whatever step, both sides end attached or closed with a reason.

use super::pair::{Owner, Pair, attach, ms};
use crate::session::client::{Event, State as ClientState};
use crate::session::server::State as ServerState;

/// SplitMix64, enough to choose steps by.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }
}

/// One thing that a driver, an owner, a user or the network does.
fn step(pair: &mut Pair, dice: &mut Dice, faults: bool) {
    let now = pair.now;
    match dice.below(if faults { 20 } else { 8 }) {
        0 => pair.connect(),
        // Requests in any state: those that do not fit are refused by the client itself.
        1 => {
            let _ = pair.client.list(now);
        }
        2 => {
            let _ = pair.client.attach(now, attach());
        }
        3 | 4 => {
            let _ = pair.client.open_lane(now, 0);
        }
        5 => pair.delay = ms(dice.below(300)),
        6 => pair.run_for(ms(dice.below(50))),
        7 => pair.run_for(ms(dice.below(1500))),
        8 => pair.owner = [Owner::Grants, Owner::Refuses, Owner::Dithers][dice.below(3) as usize],
        9 => pair.to_server.stalled = dice.below(2) == 0,
        10 => pair.to_client.stalled = dice.below(2) == 0,
        11 => pair.run_for(ms(dice.below(12_000))),
        12 => {
            let _ = pair.client.detach(now);
        }
        13 | 14 => {
            pair.transmit();
            let (place, value) = (dice.below(4096) as usize, dice.below(256) as u8);
            let pipe = if dice.below(2) == 0 { &mut pair.to_server } else { &mut pair.to_client };
            pipe.meddle(|bytes| damage(bytes, place, value));
        }
        15 if dice.below(4) == 0 => pair.hang_up(),
        16 if dice.below(4) == 0 => pair.client.handle_disconnected("the client's network is gone"),
        17 if dice.below(4) == 0 => pair.server.handle_disconnected("the server's network is gone"),
        18 if dice.below(8) == 0 => pair.client.close(),
        19 => {
            let _ = pair.server.detached();
        }
        _ => {}
    }
}

/// Changes, cuts, doubles or adds.
fn damage(bytes: &mut Vec<u8>, place: usize, value: u8) {
    let place = place % bytes.len().max(1);
    match value % 4 {
        0 => bytes.truncate(place),
        1 => bytes.extend_from_within(place..),
        2 => bytes.insert(place, value),
        _ => bytes.iter_mut().skip(place).take(1).for_each(|byte| *byte ^= value),
    }
}

/// What every driver does in the end: it wants the export, waits for as long as anyone waits, and sees a closed socket
/// when the peer has closed it.
fn bring_home(pair: &mut Pair) {
    pair.owner = Owner::Grants;
    (pair.to_server.stalled, pair.to_client.stalled) = (false, false);
    pair.connect();
    for _ in 0..4 {
        pair.run_for(ms(31_000));
        let _ = pair.client.attach(pair.now, attach());
        if pair.server.state() == ServerState::Closed {
            pair.client.handle_disconnected("the server closed the stream");
        }
        if pair.client.state() == ClientState::Closed {
            pair.server.handle_disconnected("the client closed the stream");
        }
    }
    pair.run_for(ms(1000));
}

fn walk(seed: u64, faults: bool) -> (ClientState, ServerState) {
    let mut dice = Dice(seed);
    let mut pair = Pair::new();
    for _ in 0..dice.below(60) {
        step(&mut pair, &mut dice, faults);
    }
    bring_home(&mut pair);
    let (client, server) = (pair.client.state(), pair.server.state());
    let closed = |count: usize, last: bool, over: bool| count == usize::from(over) && last == over;
    let endings = pair.client_events.iter().filter(|event| matches!(event, Event::Closed(_))).count();
    assert!(
        closed(endings, pair.client_end().is_some(), client == ClientState::Closed),
        "seed {seed}: {client:?}"
    );
    assert!(pair.server_end().is_some() == (server == ServerState::Closed), "seed {seed}: {server:?}");
    match (client, server) {
        (ClientState::Attached, ServerState::Attached) | (ClientState::Closed, ServerState::Closed) => {}
        stuck => panic!("seed {seed}: {stuck:?}\n{:?}\n{:?}", pair.client_events, pair.server_events),
    }
    (client, server)
}

#[test]
fn every_walk_ends_attached_or_closed_with_a_reason() {
    let ends: Vec<_> = (0..1_000).map(|seed| walk(seed, true).0).collect();
    let attached = ends.iter().filter(|end| **end == ClientState::Attached).count();
    assert!((50..950).contains(&attached), "the walks are worth walking: {attached} of 1,000 end attached");
}

#[test]
fn without_faults_every_walk_ends_attached() {
    for seed in 0..200 {
        // The server's patience with a client that does not connect is the one thing that may run out.
        let mut pair = Pair::new();
        pair.connect();
        let mut dice = Dice(seed);
        (0..40).for_each(|_| step(&mut pair, &mut dice, false));
        bring_home(&mut pair);
        assert_eq!(pair.client.state(), ClientState::Attached, "seed {seed}: {:?}", pair.client_events);
        assert_eq!(pair.server.state(), ServerState::Attached, "seed {seed}");
    }
}
