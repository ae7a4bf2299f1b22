//! Faults on purpose: what fails stays failed where it must, and what is slow or short is still right.

use std::time::{Duration, Instant};

use kaeru_common::error::Status;

use super::super::{Action, OpenError, Staged};
use super::rig::{BUFFERED, FILE, Lane, Way, folder, options, pattern, range, sized};

const WAYS: [Way; 2] = [FILE, BUFFERED];

/// A file reached in `way`, with faults.
fn faulty(path: &std::path::Path, way: Way, rules: &[&str]) -> Option<Staged> {
    let mut options = options(path, way);
    options.faults = rules.iter().map(|rule| rule.parse().unwrap()).collect();
    match Staged::open("test", &options) {
        Err(error @ OpenError::Uring { .. }) => {
            super::rig::skip("faults", &error.to_string());
            None
        }
        opened => Some(opened.unwrap()),
    }
}

#[test]
fn a_flush_that_failed_once_fails_for_ever_on_every_lane() {
    let folder = folder();
    for way in WAYS {
        let path = sized(&folder, "disk", 1 << 20);
        let Some(staged) = faulty(&path, way, &["flush:error=EIO,once,after=1"]) else { continue };
        let (mut one, mut other) = (Lane::new(&staged), Lane::new(&staged));
        one.flush().unwrap();
        assert_eq!(one.flush(), Err(Status::Io));
        for lane in [&mut one, &mut other] {
            assert_eq!(lane.flush(), Err(Status::Io), "{way:?}");
            let durable = Action::Write { durable: true };
            assert_eq!(lane.one(durable, range(0, 5), b"12345"), Err(Status::Io), "{way:?}");
            lane.write(0, b"12345").unwrap();
            assert_eq!(lane.read(0, 5).unwrap(), b"12345");
        }
        drop((one, other, staged));
        let staged = faulty(&path, way, &["read:count"]).unwrap();
        Lane::new(&staged).flush().unwrap();
    }
}

#[test]
fn a_full_disk_fails_what_does_not_fit_and_nothing_else() {
    let folder = folder();
    for way in WAYS {
        let path = sized(&folder, "disk", 1 << 20);
        let Some(staged) = faulty(&path, way, &["write:error=ENOSPC,range=4K-8K"]) else { continue };
        let mut lane = Lane::new(&staged);
        assert_eq!(lane.write(4096, &[1; 4096]), Err(Status::NoSpace));
        lane.write(0, &pattern(0, 4096)).unwrap();
        assert_eq!(lane.one(Action::Write { durable: true }, range(5000, 1), b"x"), Err(Status::NoSpace));
        lane.flush().unwrap();
        assert_eq!(lane.read(0, 4096).unwrap(), pattern(0, 4096));
    }
}

#[test]
fn jobs_are_counted_over_all_lanes() {
    let folder = folder();
    for way in WAYS {
        let path = sized(&folder, "disk", 1 << 20);
        let Some(staged) = faulty(&path, way, &["flush:count", "read:error=EIO,every=3"]) else { continue };
        let (mut one, mut other) = (Lane::new(&staged), Lane::new(&staged));
        one.flush().unwrap();
        other.flush().unwrap();
        let failed = (0..9).filter(|_| one.read(0, 512).is_err()).count();
        assert_eq!(failed, 3);
        assert_eq!(staged.faults().unwrap().met(), [2, 9]);
    }
}

#[test]
fn a_delayed_answer_comes_when_it_is_due_and_holds_up_nothing_else() {
    let folder = folder();
    for way in WAYS {
        let path = sized(&folder, "disk", 1 << 20);
        let rules = ["read:delay=60ms,range=0-4K", "write:error=EIO,delay=30ms"];
        let Some(staged) = faulty(&path, way, &rules) else { continue };
        let mut lane = Lane::new(&staged);
        let begin = Instant::now();
        let read = |at| (Action::Read, range(at, 512), &b""[..]);
        lane.read(8192, 512).unwrap();
        assert!(begin.elapsed() < Duration::from_millis(50), "{:?}", begin.elapsed());
        let begin = Instant::now();
        let results = lane.all(&[
            read(0),
            read(8192),
            (Action::Write { durable: false }, range(0, 1), b"x"),
            read(512),
        ]);
        assert_eq!(results[2], Err(Status::Io));
        assert!(results[0].is_ok() && results[1].is_ok() && results[3].is_ok());
        let took = begin.elapsed();
        assert!((Duration::from_millis(60)..Duration::from_secs(2)).contains(&took), "{took:?}");
    }
}
