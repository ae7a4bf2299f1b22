//! Random work of several lanes at once, against a vector of bytes.

use super::super::{Action, Staged};
use super::rig::{
    BUFFERED, DIRECT_4K, FILE, Lane, Random, WAYS, Way, content, folder, folder_in_memory, open, range, sized,
};

/// Bytes of the export: a multiple of every alignment.
const SIZE: u64 = 1 << 20;

/// Bytes that belong to one lane before the next one's begin: odd, so that blocks are shared.
const STRIPE: u64 = 10_007;

const LANES: u64 = 3;
const ROUNDS: u64 = 60;

/// What one lane does to its own bytes; returns what they must be. The others' are left alone.
fn work(staged: &Staged, lane: u64, seed: u64) -> Vec<(u64, Vec<u8>)> {
    let mut random = Random::new(seed * LANES + lane);
    let mut mine: Vec<(u64, Vec<u8>)> = (lane..SIZE / STRIPE)
        .step_by(LANES as usize)
        .map(|stripe| (stripe * STRIPE, vec![0; STRIPE as usize]))
        .collect();
    let mut engine = Lane::new(staged);
    for round in 0..ROUNDS {
        // One task in each of some stripes, all at once.
        let first = random.below(mine.len() as u64 - 4) as usize;
        let mut tasks = Vec::new();
        let mut payloads = Vec::new();
        for (start, bytes) in &mine[first..first + 4] {
            let grain = [1, 512, 4096][random.below(3) as usize];
            let from = start + random.below(STRIPE - 1);
            let from = (from / grain * grain).max(*start);
            let length = (1 + random.below(bytes.len() as u64)).next_multiple_of(grain);
            let length = length.min(start + STRIPE - from);
            let durable = random.below(8) == 0;
            let action = match random.below(8) {
                0 => Action::Trim { durable },
                1 => Action::Zero { no_hole: true, durable },
                2 => Action::Zero { no_hole: false, durable },
                3 | 4 => Action::Read,
                _ => Action::Write { durable },
            };
            let payload: Vec<u8> = match action {
                Action::Write { .. } => (0..length).map(|_| random.below(255) as u8 + 1).collect(),
                _ => Vec::new(),
            };
            tasks.push((action, range(from, length)));
            payloads.push(payload);
        }
        let given: Vec<_> = tasks
            .iter()
            .zip(&payloads)
            .map(|(&(action, range), bytes)| (action, range, &bytes[..]))
            .collect();
        let results = engine.all(&given);
        for (((action, range), payload), (result, (start, bytes))) in
            tasks.iter().zip(&payloads).zip(results.into_iter().zip(&mut mine[first..first + 4]))
        {
            let at = (range.offset() - *start) as usize..(range.end() - *start) as usize;
            let result = result.unwrap_or_else(|status| panic!("{action:?} {range:?}: {status}"));
            match action {
                Action::Read => assert!(result == bytes[at], "round {round}: {range:?} of {lane}"),
                Action::Write { .. } => bytes[at].copy_from_slice(payload),
                _ => bytes[at].fill(0),
            }
        }
        if round % 16 == 0 {
            engine.flush().unwrap();
        }
    }
    mine
}

fn check(folder: &tempfile::TempDir, way: Way, seed: u64) {
    let path = sized(folder, "disk", SIZE);
    let Some(staged) = open(&path, way) else { return };
    let mut expected = vec![0; SIZE as usize];
    let lanes = std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..LANES)
            .map(|lane| {
                let staged = &staged;
                scope.spawn(move || work(staged, lane, seed))
            })
            .collect();
        lanes.into_iter().map(|lane| lane.join().unwrap()).collect::<Vec<_>>()
    });
    for (start, bytes) in lanes.into_iter().flatten() {
        expected[start as usize..start as usize + bytes.len()].copy_from_slice(&bytes);
    }
    let found = content(&path, 0, SIZE as usize);
    let wrong = found.iter().zip(&expected).position(|(found, expected)| found != expected);
    assert_eq!(wrong, None, "{way:?}, seed {seed}");
    assert_eq!(std::fs::metadata(&path).unwrap().len(), SIZE);
}

#[test]
fn all_ways_on_a_real_file_system_do_what_a_vector_does() {
    let folder = folder();
    for way in WAYS.into_iter().chain([Way { short: true, ..DIRECT_4K }]) {
        (1..=4).for_each(|seed| check(&folder, way, seed));
    }
}

#[test]
fn all_ways_in_memory_do_what_a_vector_does() {
    let Some(folder) = folder_in_memory() else {
        return super::rig::skip("all_ways_in_memory_do_what_a_vector_does", "there is no /dev/shm");
    };
    for way in [FILE, BUFFERED, Way { short: true, ..BUFFERED }] {
        (1..=4).for_each(|seed| check(&folder, way, seed));
    }
}
