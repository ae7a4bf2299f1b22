//! Exact to the byte: what is trimmed or zeroed, where an export ends, and where numbers grow large.

use std::fs;
use std::os::unix::fs::MetadataExt;

use kaeru_common::error::Status;

use super::super::{Action, Extent};
use super::rig::{
    BUFFERED, DIRECT, DIRECT_4K, FILE, Lane, Random, Way, content, folder, folder_in_memory, open, pattern,
    range, sized,
};

const WAYS: [Way; 4] = [FILE, BUFFERED, DIRECT, DIRECT_4K];

const CLEARINGS: [Action; 4] = [
    Action::Trim { durable: false },
    Action::Zero { no_hole: false, durable: false },
    Action::Zero { no_hole: true, durable: false },
    Action::Zero { no_hole: true, durable: true },
];

/// The pattern, and a stretch before and behind it that nothing may touch.
const PATTERN: u64 = 16 << 10;
const GUARD: u64 = 8 << 10;

fn check_clearing(folder: &tempfile::TempDir, way: Way, ranges: &[(u64, u64)]) {
    let path = sized(folder, "disk", PATTERN + 2 * GUARD);
    let Some(staged) = open(&path, way) else { return };
    let mut lane = Lane::new(&staged);
    let before = pattern(0, (PATTERN + 2 * GUARD) as usize);
    for action in CLEARINGS {
        for &(offset, length) in ranges {
            lane.write(0, &before).unwrap();
            lane.one(action, range(GUARD + offset, length), &[]).unwrap();
            let mut expected = before.clone();
            expected[(GUARD + offset) as usize..(GUARD + offset + length) as usize].fill(0);
            let found = lane.read(0, expected.len()).unwrap();
            assert!(found == expected, "{way:?}: {action:?} of {length} at {offset}");
        }
        assert!(content(&path, 0, GUARD as usize) == before[..GUARD as usize]);
    }
    assert_eq!(fs::metadata(&path).unwrap().len(), PATTERN + 2 * GUARD);
}

#[test]
fn every_step_and_length_of_a_pattern_is_cleared_exactly() {
    let steps = PATTERN / 512;
    let ranges: Vec<_> = (0..steps)
        .flat_map(|step| (1..=steps - step).map(move |length| (step * 512, length * 512)))
        // All lengths from some starts, and some from all: the rest is like them.
        .filter(|(offset, length)| offset / 512 % 5 == 0 || length / 512 % 7 == 1)
        .collect();
    let folder = folder();
    for way in WAYS {
        check_clearing(&folder, way, &ranges);
    }
}

#[test]
fn odd_bytes_are_cleared_exactly() {
    let mut random = Random::new(7);
    let mut ranges = vec![(0, 1), (PATTERN - 1, 1), (1, PATTERN - 2), (4095, 2), (511, 1), (512, 1)];
    for _ in 0..60 {
        let offset = random.below(PATTERN);
        ranges.push((offset, 1 + random.below(PATTERN - offset)));
    }
    let (disk, memory) = (folder(), folder_in_memory());
    for way in WAYS {
        check_clearing(&disk, way, &ranges);
    }
    for way in [FILE, BUFFERED] {
        memory.iter().for_each(|memory| check_clearing(memory, way, &ranges));
    }
}

#[test]
fn zeroes_keep_their_room_if_they_are_to_and_a_trim_gives_it_back() {
    let folder = folder();
    for way in WAYS {
        let path = sized(&folder, "disk", 1 << 20);
        let Some(staged) = open(&path, way) else { continue };
        let mut lane = Lane::new(&staged);
        for part in 0..8 {
            lane.write(part << 17, &pattern(0, 1 << 17)).unwrap();
        }
        lane.flush().unwrap();
        let room = || fs::metadata(&path).unwrap().blocks();
        let full = room();
        lane.one(Action::Zero { no_hole: true, durable: true }, range(0, 1 << 20), &[]).unwrap();
        assert!(room() >= full, "{way:?}: no hole may be made");
        lane.one(Action::Trim { durable: true }, range(0, 1 << 20), &[]).unwrap();
        assert!(room() < full / 4, "{way:?}: {} of {full}", room());
    }
}

#[test]
fn a_large_zeroing_without_help_from_the_file_system_lets_others_go_first() {
    // A file system in memory knows no ZERO_RANGE, so zeroes are written.
    let Some(folder) = folder_in_memory() else {
        return super::rig::skip("a_large_zeroing", "there is no /dev/shm");
    };
    for way in [FILE, BUFFERED] {
        let path = sized(&folder, "disk", 64 << 20);
        let Some(staged) = open(&path, way) else { continue };
        let mut lane = Lane::new(&staged);
        let zero = Action::Zero { no_hole: true, durable: false };
        let submit = |lane: &mut Lane, tag, action, length, slot| {
            lane.engine.submit(super::super::Job { tag, action, range: range(0, length), slot }).unwrap();
        };
        submit(&mut lane, 1, zero, 64 << 20, None);
        lane.engine.kick();
        let slot = lane.pool.take();
        submit(&mut lane, 2, Action::Read, 4096, slot);
        lane.engine.kick();
        let order: Vec<u32> = [lane.wait(), lane.wait()].iter().flatten().map(|done| done.tag).collect();
        assert_eq!(order, [2, 1], "{way:?}");
        assert_eq!(fs::metadata(&path).unwrap().blocks(), (64 << 20) / 512);
    }
}

#[test]
fn numbers_beyond_32_bits_are_numbers() {
    const TIB: u64 = 1 << 40;
    let folder = folder();
    for way in WAYS {
        let path = sized(&folder, "disk", 10 * TIB);
        let Some(staged) = open(&path, way) else { continue };
        assert_eq!(staged.size(), 10 * TIB);
        let mut lane = Lane::new(&staged);
        let marks = [0, 2 * TIB - 4096, 2 * TIB, 2 * TIB + 4096, 10 * TIB - 4096];
        for at in marks {
            lane.write(at, &pattern(at, 4096)).unwrap();
            assert_eq!(lane.read(at, 4096).unwrap(), pattern(at, 4096), "{way:?} at {at}");
        }
        for at in [2 * TIB - 1, 2 * TIB + 511, 10 * TIB - 1] {
            lane.write(at, b"!").unwrap();
            assert_eq!(lane.read(at, 1).unwrap(), b"!", "{way:?} at {at}");
            lane.write(at, &pattern(at, 1)).unwrap();
        }
        // More than 4 GiB, between two marks that must stay.
        lane.write(3 * TIB, &pattern(3 * TIB, 4096)).unwrap();
        lane.write(3 * TIB + (5 << 30), &pattern(0, 4096)).unwrap();
        lane.one(Action::Trim { durable: false }, range(2 * TIB + 4096, TIB + (5 << 30)), &[]).unwrap();
        assert_eq!(lane.read(2 * TIB, 4096).unwrap(), pattern(2 * TIB, 4096));
        assert_eq!(lane.read(3 * TIB, 4096).unwrap(), [0; 4096]);
        assert_eq!(lane.read(3 * TIB + (5 << 30), 4096).unwrap(), [[0; 4096].as_slice()].concat());
        assert_eq!(lane.read(10 * TIB - 4096, 4096).unwrap(), pattern(10 * TIB - 4096, 4096));
        assert_eq!(lane.read(10 * TIB - 1, 2), Err(Status::OutOfRange));
        assert_eq!(lane.read(10 * TIB, 1), Err(Status::OutOfRange));
        assert_eq!(lane.write(u64::MAX - 1, b"x"), Err(Status::OutOfRange));
        let beyond = lane.one(Action::Trim { durable: false }, range(10 * TIB - 1, 4096), &[]);
        assert_eq!(beyond, Err(Status::OutOfRange));
    }
}

#[test]
fn odd_sizes_are_rounded_down_and_the_rest_is_left_alone() {
    let folder = folder();
    for size in [513, 4095, 241_059, (1 << 40) + 1] {
        for way in WAYS {
            let path = sized(&folder, "disk", size);
            let mut options = super::rig::options(&path, way);
            options.direct = Default::default();
            let Ok(staged) = super::super::Staged::open("test", &options) else { continue };
            let exported = size / 512 * 512;
            assert_eq!((staged.size(), staged.block()), (exported, 512));
            let rest = (size - exported) as usize;
            {
                use std::os::unix::fs::FileExt;
                let file = fs::File::options().write(true).open(&path).unwrap();
                file.write_all_at(&pattern(exported, rest), exported).unwrap();
            }
            let mut lane = Lane::new(&staged);
            lane.write(exported - 1, b"!").unwrap();
            assert_eq!(lane.read(exported - 1, 1).unwrap(), b"!");
            assert_eq!(lane.read(exported, 1), Err(Status::OutOfRange));
            lane.one(Action::Zero { no_hole: false, durable: true }, range(exported - 300, 300), &[])
                .unwrap();
            lane.one(Action::Trim { durable: true }, range(0, exported), &[]).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().len(), size, "{way:?}");
            assert_eq!(content(&path, exported, rest), pattern(exported, rest), "{way:?} of {size}");
        }
    }
}

#[test]
fn extents_are_those_of_the_file() {
    let folder = folder();
    for way in WAYS {
        let path = sized(&folder, "disk", 1 << 20);
        let Some(staged) = open(&path, way) else { continue };
        let mut lane = Lane::new(&staged);
        lane.write(256 << 10, &pattern(0, 64 << 10)).unwrap();
        lane.write(512 << 10, &pattern(0, 64 << 10)).unwrap();
        lane.flush().unwrap();
        let mut ask = |offset: u64, length: u64, limit| {
            let mut out = Vec::new();
            lane.engine.extents(range(offset, length), limit, &mut out).map(|()| {
                out.iter().map(|Extent { length, allocated }| (length >> 10, *allocated)).collect::<Vec<_>>()
            })
        };
        let all = [(256, false), (64, true), (192, false), (64, true), (448, false)];
        assert_eq!(ask(0, 1 << 20, 9).unwrap(), all, "{way:?}");
        assert_eq!(ask(0, 1 << 20, 2).unwrap(), all[..2]);
        assert_eq!(ask(0, 1 << 20, 0).unwrap(), all[..1]);
        assert_eq!(ask(272 << 10, 16 << 10, 9).unwrap(), [(16, true)]);
        assert_eq!(ask(272 << 10, 64 << 10, 9).unwrap(), [(48, true), (16, false)]);
        assert_eq!(ask(0, (1 << 20) + 1, 9), Err(Status::OutOfRange));
        assert_eq!(ask(0, 0, 9), Err(Status::BadRequest));
        fs::File::options().write(true).open(&path).unwrap().set_len(300 << 10).unwrap();
        assert_eq!(ask(0, 1 << 20, 9), Err(Status::Io));
    }
}
