//! Random walks on random networks with death at a random moment.
//!
//! Whatever happens: bytes agree with the oracle, everything comes back once, no card says no, slots are all there at
//! the end, and the end comes within bounded virtual time.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use kaeru_common::fabric::sim::{Defect, Knobs};
use kaeru_common::fabric::{Link, LinkConfig};

use crate::harness::oracle::Walk;
use crate::harness::pair::{Pair, SimPair};
use crate::harness::random::{Random, with_seeds};
use crate::harness::rig::{Duo, Rig, SMALL};

/// Longer than any walk, its retries and the patience at its end.
const BOUND: Duration = Duration::from_secs(300);

fn random_knobs(random: &mut Random) -> Knobs {
    let least = Duration::from_nanos(random.below(10_000));
    Knobs {
        delay_min: least,
        delay_max: least + Duration::from_nanos(random.below(200_000)),
        service: Duration::from_nanos(random.below(100_000)),
        loss: [0, 0, 1_000, 50_000][random.below(4) as usize],
        retransmit: Duration::from_micros(1 + random.below(10_000)),
        retries: 1 + random.below(7) as u32,
        death: [0, 0, 0, 2_000][random.below(4) as usize],
        ..Knobs::default()
    }
}

fn random_config(random: &mut Random) -> LinkConfig {
    LinkConfig {
        slots: 4 + random.below(60) as u32,
        slot_size: 4096 << random.below(3),
        depth: 4 + random.below(60) as u32,
        responder_depth: [1, 2, 4, 16][random.below(4) as usize],
        ..SMALL
    }
}

/// One of the ways in which a link ends.
fn strike(pair: &SimPair, duo: &mut Duo<SimPair>, random: &mut Random) {
    match random.below(7) {
        0 => pair.net.sever(duo.client.link.id()),
        1 => pair.net.silence(duo.server.link.id()),
        2 => pair.server().silence(),
        3 => duo.client.link.close(),
        4 => duo.server.link.close(),
        5 => pair.server().stop_process(),
        _ => {}
    }
}

fn walk_to_the_end(pair: SimPair, seed: u64) {
    const SHARE: usize = 32 << 10;
    let mut random = Random(seed);
    let mut rig = Rig::new(pair, 2 * SHARE);
    let mut walks: Vec<Walk<SimPair>> = (0..2)
        .map(|share| {
            let (client, server) = (random_config(&mut random), random_config(&mut random));
            let duo = rig.join(&client, &server);
            Walk::new(&rig, duo, share * SHARE, SHARE)
        })
        .collect();
    rig.pair.net.set_knobs(random_knobs(&mut random));
    let (steps, doom) = (random.below(800), random.below(800));
    for step in 0..steps {
        let walk = &mut walks[random.below(2) as usize];
        if step == doom {
            strike(&rig.pair, &mut walk.duo, &mut random);
        }
        walk.step(&mut rig, &mut random);
    }
    rig.pair.server().resume_process();
    for walk in &mut walks {
        walk.finish(&mut rig);
    }
    walks.into_iter().for_each(|walk| walk.bury(&mut rig));
    assert!(rig.pair.now() < BOUND, "it took {:?}", rig.pair.now());
    // The drop of the pair checks that the books balance and that no card was asked for too much.
}

#[test]
fn five_hundred_seeds_of_random_life_and_death_keep_every_promise() {
    with_seeds(0..500, |seed| walk_to_the_end(SimPair::new(seed, Knobs::default()), seed));
}

#[test]
fn the_walks_notice_a_fabric_that_breaks_a_promise() {
    for defect in [
        Defect::CutsLastByte,
        Defect::WritesOneMore,
        Defect::ConfusesTags,
        Defect::OverstepsReads,
        Defect::ReordersPackets,
        Defect::HurriesReads,
        Defect::AnswersEarly,
        Defect::DropsUnexpectedSends,
        Defect::ForgetsOneAtDeath,
    ] {
        let noticed = (0..50).any(|seed| {
            let pair = SimPair::broken(seed, defect);
            catch_unwind(AssertUnwindSafe(|| walk_to_the_end(pair, seed))).is_err()
        });
        assert!(noticed, "nobody notices {defect:?}");
    }
}
