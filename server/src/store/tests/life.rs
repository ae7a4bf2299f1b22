//! The life of an engine: full, polled with little room, dropped in the middle; and a file that gets shorter.

use std::fs::File;

use kaeru_common::error::Status;
use kaeru_common::fabric::buffer::SlotPool;

use super::super::{Action, Engine, Job};
use super::rig::{BUFFERED, Lane, WAYS, folder, open, pattern, range, sized};

fn job(tag: u32, action: Action, offset: u64, length: u64, pool: &SlotPool) -> Job {
    let slot = matches!(action, Action::Read | Action::Write { .. }).then(|| pool.take().unwrap());
    Job { tag, action, range: range(offset, length), slot }
}

#[test]
fn an_engine_can_move_to_another_thread() {
    fn is_send<T: Send>() {}
    is_send::<Engine>();
}

#[test]
fn a_dropped_engine_gives_every_slot_back_and_lets_others_write() {
    let folder = folder();
    for way in WAYS {
        let path = sized(&folder, "disk", 1 << 20);
        let Some(staged) = open(&path, way) else { continue };
        let mut other = Lane::new(&staged);
        for kicked in [true, false] {
            let mut lane = Lane::new(&staged);
            for tag in 0..8 {
                let (offset, length) = if tag % 2 == 0 { (0, 65_536) } else { (1, 100) };
                let write = Action::Write { durable: false };
                lane.engine.submit(job(tag, write, offset, length, &lane.pool)).unwrap();
            }
            if kicked {
                lane.engine.kick();
            }
            assert_eq!(lane.engine.in_flight(), 8);
            let Lane { engine, pool, .. } = lane;
            drop(engine);
            assert_eq!(pool.available(), pool.slots(), "{way:?}");
        }
        other.write(7, b"still possible").unwrap();
        other.write(0, &[1; 4096]).unwrap();
    }
}

#[test]
fn a_full_engine_gives_the_job_back_and_takes_it_later() {
    let folder = folder();
    for way in WAYS {
        let path = sized(&folder, "disk", 1 << 20);
        let Some(staged) = open(&path, way) else { continue };
        let mut lane = Lane::with_slots(&staged, 2, 4096);
        let mut taken = 0;
        let back = loop {
            match lane.engine.submit(job(taken, Action::Flush, 0, 0, &lane.pool)) {
                Ok(()) => taken += 1,
                Err(back) => break back,
            }
        };
        assert!(taken >= 2 && back.tag == taken, "{way:?}");
        lane.engine.kick();
        let mut done = lane.wait().len() as u32;
        lane.engine.submit(back).unwrap();
        lane.engine.kick();
        while done <= taken {
            done += lane.wait().len() as u32;
        }
        assert_eq!(lane.engine.in_flight(), 0);
    }
}

#[test]
fn what_makes_no_sense_is_refused_and_the_next_job_works() {
    let folder = folder();
    for way in WAYS {
        let path = sized(&folder, "disk", 1 << 20);
        let Some(staged) = open(&path, way) else { continue };
        let mut lane = Lane::new(&staged);
        assert_eq!(lane.read(1 << 20, 1), Err(Status::OutOfRange));
        let too_long = u64::from(lane.pool.slot_size()) + 1;
        assert_eq!(lane.one(Action::Read, range(0, too_long), &[]), Err(Status::BadRequest));
        lane.engine.submit(Job { tag: 0, action: Action::Read, range: range(0, 1), slot: None }).unwrap();
        assert_eq!(lane.wait().pop().unwrap().result, Err(Status::BadRequest));
        assert_eq!(lane.read(77, 0), Ok(Vec::new()));
        assert_eq!(lane.one(Action::Trim { durable: true }, range(5, 0), &[]), Ok(Vec::new()));
        lane.write(5, b"works").unwrap();
        assert_eq!(lane.read(5, 5).unwrap(), b"works");
    }
}

#[test]
fn slots_of_another_pool_are_taken_too() {
    let folder = folder();
    let path = sized(&folder, "disk", 1 << 20);
    let Some(staged) = open(&path, BUFFERED) else { return };
    let mut lane = Lane::new(&staged);
    lane.write(0, &pattern(0, 4096)).unwrap();
    let strange = SlotPool::new(1, 4096).unwrap();
    lane.engine.submit(job(3, Action::Read, 0, 4096, &strange)).unwrap();
    lane.engine.kick();
    let done = lane.wait().pop().unwrap();
    let mut bytes = vec![0; 4096];
    done.slot.unwrap().copy_to(0, &mut bytes);
    assert_eq!(bytes, pattern(0, 4096));
}

#[test]
fn a_file_that_gets_shorter_gives_errors_for_what_is_gone_only() {
    let folder = folder();
    for way in WAYS {
        let path = sized(&folder, "disk", 1 << 20);
        let Some(staged) = open(&path, way) else { continue };
        let mut lane = Lane::new(&staged);
        lane.write(0, &pattern(0, 8192)).unwrap();
        File::options().write(true).open(&path).unwrap().set_len(10_000).unwrap();
        assert_eq!(lane.read(12_288, 4096), Err(Status::Io), "{way:?}");
        assert_eq!(lane.read(8192, 4096), Err(Status::Io), "{way:?}: half of it is gone");
        assert_eq!(lane.read(13_000, 10), Err(Status::Io), "{way:?}");
        assert_eq!(lane.read(0, 8192).unwrap(), pattern(0, 8192));
        lane.flush().unwrap();
    }
}
