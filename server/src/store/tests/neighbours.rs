//! A write of part of a block on one lane never loses what another lane wrote to that block.

use std::sync::Barrier;

use super::super::{Action, Staged};
use super::rig::{BUFFERED, DIRECT, DIRECT_4K, FILE, Lane, Random, folder, open, range, sized};

const ROUNDS: u64 = 1_500;

/// Runs two lanes against each other, round by round; after each, `check` says whether the block is as it must be.
#[track_caller]
fn race(
    staged: &Staged,
    first: impl Fn(&mut Lane, u64) + Sync,
    second: impl Fn(&mut Lane, u64) + Sync,
    check: impl Fn(&[u8], u64) -> bool,
) {
    // Looked at in the end only, so that nobody waits for a thread that has failed.
    let mut wrong = Vec::new();
    let barrier = Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut lane = Lane::new(staged);
            for round in 0..ROUNDS {
                barrier.wait();
                second(&mut lane, round);
                barrier.wait();
            }
        });
        let mut lane = Lane::new(staged);
        for round in 0..ROUNDS {
            barrier.wait();
            first(&mut lane, round);
            barrier.wait();
            if !check(&lane.read(4096, 4096).unwrap(), round) {
                wrong.push(round);
            }
        }
    });
    assert!(wrong.is_empty(), "{}: wrong after the rounds {wrong:?}", staged.description());
}

fn with_each_way(test: impl Fn(&Staged)) {
    let folder = folder();
    for way in [FILE, BUFFERED, DIRECT, DIRECT_4K] {
        let path = sized(&folder, "disk", 64 << 10);
        if let Some(staged) = open(&path, way) {
            test(&staged);
        }
    }
}

#[test]
fn a_whole_block_survives_an_odd_byte_in_it() {
    with_each_way(|staged| {
        race(
            staged,
            |lane, round| lane.write(4096, &[round as u8; 4096]).unwrap(),
            |lane, round| lane.write(4096 + round % 4095, &[0xff]).unwrap(),
            |block, round| {
                let odd = |at: usize| at as u64 == round % 4095;
                block.iter().enumerate().all(|(at, &byte)| byte == round as u8 || (odd(at) && byte == 0xff))
            },
        );
    });
}

#[test]
fn two_parts_of_one_block_both_arrive() {
    with_each_way(|staged| {
        race(
            staged,
            |lane, round| lane.write(4000, &[round as u8; 196]).unwrap(),
            |lane, round| lane.write(4196, &[!round as u8; 700]).unwrap(),
            |block, round| {
                block[..100].iter().all(|&byte| byte == round as u8)
                    && block[100..800].iter().all(|&byte| byte == !round as u8)
            },
        );
    });
}

#[test]
fn a_zeroed_block_stays_zeroed_beside_an_odd_byte() {
    with_each_way(|staged| {
        race(
            staged,
            |lane, _| {
                lane.write(4096, &[7; 4096]).unwrap();
                lane.one(Action::Zero { no_hole: true, durable: false }, range(4096, 4096), &[]).unwrap();
            },
            |lane, round| {
                for step in 0..4 {
                    lane.write(4096 + (round * 4 + step) % 4096, &[9]).unwrap();
                }
            },
            |block, _| !block.contains(&7),
        );
    });
}

/// Deep queues of whole and part blocks in one stretch, from two lanes: all end, and nobody sleeps for ever.
#[test]
fn deep_queues_of_both_kinds_end() {
    with_each_way(|staged| {
        std::thread::scope(|scope| {
            for lane in 0..3 {
                scope.spawn(move || {
                    let mut random = Random::new(lane);
                    let mut engine = Lane::new(staged);
                    for _ in 0..200 {
                        let tasks: Vec<_> = (0..8)
                            .map(|_| match random.below(3) {
                                0 => (random.below(60_000), 1 + random.below(5_000)),
                                _ => (random.below(14) * 4096, 4096),
                            })
                            .collect();
                        let bytes = [lane as u8; 5_000];
                        let tasks: Vec<_> = tasks
                            .iter()
                            .map(|&(at, length)| {
                                let write = Action::Write { durable: false };
                                (write, range(at, length.min((64 << 10) - at)), &bytes[..])
                            })
                            .collect();
                        assert!(engine.all(&tasks).iter().all(Result::is_ok));
                    }
                });
            }
        });
    });
}
