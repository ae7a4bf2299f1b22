use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::bench::rungs::{Dead, Done, Io};
use crate::bench::stages::Stamp;

/// What the lanes of a test did.
#[derive(Default)]
struct Log {
    submitted: AtomicU64,
    deepest: AtomicU64,
}

/// Answers each operation after a time, or fails, as it was told to.
struct Scripted {
    log: Arc<Log>,
    takes: fn(u64) -> Duration,
    fails: fn(u64) -> Option<&'static str>,
    dies_at: u64,
    under_way: VecDeque<(u32, Instant, u64)>,
}

impl Lane for Scripted {
    fn submit(&mut self, io: Io) -> Result<(), Dead> {
        assert!(io.offset.is_multiple_of(u64::from(io.length)) && io.length == 4096);
        let number = self.log.submitted.fetch_add(1, Ordering::Relaxed) + 1;
        if number >= self.dies_at {
            return Err(Dead("gone".into()));
        }
        self.under_way.push_back((io.tag, Instant::now() + (self.takes)(number), number));
        self.log.deepest.fetch_max(self.under_way.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn reap(&mut self, done: &mut Vec<Done>, until: Instant) -> Result<(), Dead> {
        let Some(&(tag, ready, number)) = self.under_way.front() else { return Ok(()) };
        std::thread::sleep(ready.min(until).saturating_duration_since(Instant::now()));
        if Instant::now() >= ready {
            self.under_way.pop_front();
            let failed = (self.fails)(number).map(str::to_owned);
            done.push(Done { tag, at: Instant::now(), failed, stamp: Stamp::default() });
        }
        Ok(())
    }
}

struct Case {
    lanes: u32,
    takes: fn(u64) -> Duration,
    fails: fn(u64) -> Option<&'static str>,
    dies_at: u64,
    load: Load,
}

fn case() -> Case {
    let load = Load {
        mix: Mix::Only(Op::Read),
        pattern: Pattern::Random,
        block: 4096,
        depth: 1,
        rate: None,
        limit: Limit::Count(100),
        warm_up: Duration::ZERO,
        stages: false,
    };
    Case { lanes: 1, takes: |_| Duration::ZERO, fails: |_| None, dies_at: u64::MAX, load }
}

impl Case {
    fn run(&self, stop: &Stop) -> (Outcome, usize, Arc<Log>) {
        let log = Arc::new(Log::default());
        let lane = |_| -> Box<dyn Lane> {
            let Self { takes, fails, dies_at, .. } = *self;
            Box::new(Scripted { log: log.clone(), takes, fails, dies_at, under_way: VecDeque::new() })
        };
        let lanes = (0..self.lanes).map(lane).collect();
        let (outcome, lanes) = measure(lanes, &self.load, 1 << 30, None, "test", stop).unwrap();
        (outcome, lanes.len(), log)
    }
}

fn count(outcome: &Outcome) -> (u64, u64) {
    let kinds = &outcome.kinds;
    (kinds.iter().map(Kind::count).sum(), kinds.iter().map(|kind| kind.errors).sum())
}

#[test]
fn as_many_as_wanted_are_measured_by_all_lanes_together() {
    let mut case = case();
    (case.lanes, case.load.limit) = (3, Limit::Count(1000));
    let (outcome, lanes, log) = case.run(&Stop::default());
    assert_eq!((count(&outcome), lanes, outcome.is_broken), ((1000, 0), 3, false));
    assert_eq!(log.submitted.load(Ordering::Relaxed), 1000);
}

#[test]
fn the_warm_up_is_not_counted() {
    let mut case = case();
    case.load.warm_up = Duration::from_millis(20);
    let (outcome, _, log) = case.run(&Stop::default());
    assert_eq!(count(&outcome), (100, 0));
    assert!(log.submitted.load(Ordering::Relaxed) > 100);
}

#[test]
fn as_many_are_under_way_as_wanted() {
    let mut case = case();
    (case.load.depth, case.takes) = (8, |_| Duration::from_micros(200));
    let (outcome, _, log) = case.run(&Stop::default());
    assert_eq!((count(&outcome), log.deepest.load(Ordering::Relaxed)), ((100, 0), 8));
}

#[test]
fn a_time_ends_it() {
    let mut case = case();
    case.load.limit = Limit::Time(Duration::from_millis(20));
    let start = Instant::now();
    let (outcome, ..) = case.run(&Stop::default());
    // It is taken from the first begin to the last end, which may lie a little before the time is up.
    assert!(start.elapsed() >= Duration::from_millis(20) && outcome.elapsed <= start.elapsed());
    assert!(count(&outcome).0 > 0);
}

#[test]
fn a_mix_is_counted_by_operation() {
    let mut case = case();
    (case.load.mix, case.load.limit) = (Mix::Reads(50), Limit::Count(1000));
    let (outcome, ..) = case.run(&Stop::default());
    let counts: Vec<u64> = outcome.kinds.iter().map(|kind| kind.samples.count()).collect();
    assert!(counts.iter().sum::<u64>() == 1000 && counts.iter().all(|count| *count > 400), "{counts:?}");
}

#[test]
fn failures_are_counted_and_are_no_samples() {
    let mut case = case();
    case.fails = |number| number.is_multiple_of(2).then_some("odd");
    let (outcome, lanes, _) = case.run(&Stop::default());
    assert_eq!((count(&outcome), lanes), ((50, 50), 1));
    assert_eq!(outcome.first_error.as_deref(), Some("odd"));
}

#[test]
fn nothing_but_failures_ends_it() {
    let mut case = case();
    (case.fails, case.load.limit) = (|_| Some("no"), Limit::Count(u64::MAX));
    let (outcome, ..) = case.run(&Stop::default());
    assert_eq!(count(&outcome), (0, 100));
    assert_eq!(outcome.first_error.as_deref(), Some("no; after 100 failures in a row a lane stopped"));
}

#[test]
fn a_dead_lane_ends_it_at_once_and_keeps_what_there_is() {
    let mut case = case();
    (case.dies_at, case.load.limit) = (11, Limit::Count(100));
    let (outcome, lanes, _) = case.run(&Stop::default());
    assert_eq!((count(&outcome), lanes, outcome.is_broken), ((10, 1), 0, true));
    assert_eq!(outcome.first_error.as_deref(), Some("gone"));
}

#[test]
fn the_user_may_have_had_enough() {
    let (case, stop) = (case(), Stop::default());
    stop.ask();
    let (outcome, ..) = case.run(&stop);
    assert_eq!(count(&outcome).0, 0);
}

#[test]
fn a_stop_ends_it_although_nothing_is_answered_and_keeps_what_there_is() {
    let mut case = case();
    case.load.limit = Limit::Count(u64::MAX);
    case.takes = |number| if number <= 5 { Duration::ZERO } else { Duration::from_secs(3600) };
    let stop = Stop::default();
    let asked = stop.clone();
    let later = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        asked.ask();
    });
    let start = Instant::now();
    let (outcome, ..) = case.run(&stop);
    assert_eq!(count(&outcome).0, 5);
    assert!(start.elapsed() < Duration::from_secs(2));
    later.join().unwrap();
}

#[test]
fn with_a_rate_the_time_that_operations_waited_counts() {
    // One operation in a hundred takes 50 ms; of those that are due meanwhile each waited for that.
    let mut case = case();
    case.load.rate = Some(1000.0);
    case.load.limit = Limit::Count(300);
    case.takes = |number| if number == 100 { Duration::from_millis(50) } else { Duration::ZERO };
    let (outcome, ..) = case.run(&Stop::default());
    let kind = &outcome.kinds[0];
    assert!(outcome.elapsed >= Duration::from_millis(290), "{:?}", outcome.elapsed);
    let (due, begun) =
        (kind.samples.part(9, 10).unwrap(), kind.service.as_ref().unwrap().part(9, 10).unwrap());
    assert!(due > Duration::from_millis(10), "a tenth of all operations waited: {due:?}");
    assert!(begun < due / 2, "which is not seen from when they begin: {begun:?}");
}

/// A stall at the end of a run of half a second, at 1000 a second.
fn stalled(takes: fn(u64) -> Duration) -> (Outcome, Case) {
    let mut case = case();
    case.load.rate = Some(1000.0);
    case.load.limit = Limit::Time(Duration::from_millis(500));
    case.takes = takes;
    let (outcome, ..) = case.run(&Stop::default());
    (outcome, case)
}

#[test]
fn what_was_due_before_the_end_counts_although_a_stall_at_the_end_held_it_up() {
    let (outcome, _) = stalled(|number| Duration::from_millis(if number == 100 { 900 } else { 0 }));
    let kind = &outcome.kinds[0];
    assert_eq!((count(&outcome), kind.missed), ((500, 0), 0));
    // Each of those due after the stall began waited for its end, the last of them for 500 of its 900 ms.
    let waited = kind.samples.part(3, 10).unwrap();
    assert!(waited >= Duration::from_millis(400), "{waited:?}");
    assert!(outcome.elapsed >= Duration::from_millis(900), "{:?}", outcome.elapsed);
}

#[test]
fn what_was_due_and_never_begun_is_told_and_counts_as_long_as_it_waited() {
    let (outcome, case) = stalled(|number| Duration::from_millis(if number == 100 { 2700 } else { 0 }));
    let kind = &outcome.kinds[0];
    assert_eq!((count(&outcome), kind.missed, kind.samples.count()), ((100, 0), 400, 500));
    assert!(kind.samples.part(3, 10).unwrap() >= Duration::from_millis(2000));
    assert_eq!(kind.service.as_ref().unwrap().count(), 100, "they were never begun");
    // Millions of them are noted as fast as hundreds.
    let mut case = case;
    (case.load.rate, case.takes) = (Some(1e8), |_| Duration::from_millis(1));
    case.load.mix = Mix::Reads(50);
    let (outcome, ..) = case.run(&Stop::default());
    let all: u64 = outcome.kinds.iter().map(|kind| kind.samples.count()).sum();
    assert_eq!(all, 50_000_000);
    assert!(outcome.kinds.iter().all(|kind| kind.missed > 20_000_000), "{:?}", count(&outcome));
}

#[test]
fn with_a_rate_the_times_at_which_operations_were_due_are_all_in_the_time_it_took() {
    for (rate, limit, operations, seconds) in [
        (20.0, Limit::Time(Duration::from_millis(300)), 6, 0.3),
        (20.0, Limit::Count(4), 4, 0.2),
        (0.0001, Limit::Time(Duration::from_millis(100)), 1, 0.1),
        // The product of fractions is a little above 11.
        (10.0, Limit::Time(Duration::from_millis(1100)), 11, 1.1),
    ] {
        let mut case = case();
        (case.load.rate, case.load.limit) = (Some(rate), limit);
        let (outcome, ..) = case.run(&Stop::default());
        assert_eq!((count(&outcome).0, outcome.kinds[0].missed), (operations, 0), "{rate}");
        assert!(outcome.elapsed.as_secs_f64() >= seconds, "{rate}: {:?}", outcome.elapsed);
    }
}

#[test]
fn lanes_take_turns_and_do_the_rate_together() {
    for (rate, limit, operations) in [
        (20.0, Limit::Time(Duration::from_millis(500)), 10),
        (100.0, Limit::Count(17), 17),
        // Not every lane has a turn.
        (10.0, Limit::Time(Duration::from_millis(300)), 3),
    ] {
        let mut case = case();
        (case.lanes, case.load.rate, case.load.limit) = (8, Some(rate), limit);
        let (outcome, ..) = case.run(&Stop::default());
        assert_eq!((count(&outcome), outcome.kinds[0].missed), ((operations, 0), 0), "{rate}");
        let done = operations as f64 / outcome.elapsed.as_secs_f64();
        assert!(done <= rate * 1.001, "{done} of {rate}");
    }
}

/// What was due when a lane died or the user had enough had waited for as long as the rest of the stall.
#[test]
fn a_stall_that_ends_badly_is_no_better_than_one_that_ends() {
    let mut case = case();
    case.load.rate = Some(1000.0);
    case.load.limit = Limit::Time(Duration::from_secs(30));
    // The tenth takes a second, and the one after it is the lane's last.
    case.takes = |number| Duration::from_millis(if number == 10 { 1000 } else { 0 });
    case.dies_at = 11;
    let (outcome, ..) = case.run(&Stop::default());
    let kind = &outcome.kinds[0];
    assert_eq!(count(&outcome), (10, 1));
    assert!((900..2000).contains(&kind.missed), "{}", kind.missed);
    assert!(kind.samples.part(1, 2).unwrap() >= Duration::from_millis(300));

    let stop = Stop::default();
    case.takes = |number| Duration::from_secs(if number == 10 { 3600 } else { 0 });
    case.dies_at = u64::MAX;
    let later = stop.clone();
    let user = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(1));
        later.ask();
    });
    let (outcome, ..) = case.run(&stop);
    let kind = &outcome.kinds[0];
    assert_eq!(count(&outcome), (9, 0));
    assert!(kind.missed >= 900, "the one under way, and those that were due: {}", kind.missed);
    assert!(kind.samples.part(1, 2).unwrap() >= Duration::from_millis(300));
    user.join().unwrap();
}

#[test]
fn a_second_operation_that_is_due_in_no_lifetime_is_no_panic() {
    let mut case = case();
    (case.lanes, case.load.rate) = (2, Some(1e-20));
    case.load.limit = Limit::Time(Duration::from_millis(10));
    assert_eq!(count(&case.run(&Stop::default()).0), (1, 0));
}

#[test]
fn what_a_dead_lane_had_under_way_has_failed_and_the_time_until_then_counts() {
    let mut case = case();
    (case.load.depth, case.lanes, case.load.limit) = (8, 2, Limit::Count(u64::MAX));
    // Answers the first of them, and then nothing for as long as a lane is patient with it.
    case.takes = |number| if number <= 20 { Duration::ZERO } else { Duration::from_millis(50) };
    case.dies_at = 40;
    let (outcome, lanes, log) = case.run(&Stop::default());
    let (succeeded, failed) = count(&outcome);
    assert_eq!((lanes, outcome.is_broken), (0, true));
    assert_eq!(succeeded + failed, log.submitted.load(Ordering::Relaxed), "nothing is lost from the count");
    assert!((8..=16).contains(&failed), "{failed}");
}

#[test]
fn the_distribution_of_delays_comes_out() {
    // Delays that rise evenly from 0 to 4 ms, in an order that is not theirs.
    let mut case = case();
    case.load.limit = Limit::Count(400);
    case.takes = |number| Duration::from_micros(number * 163 % 400 * 10);
    let (outcome, ..) = case.run(&Stop::default());
    let samples = &outcome.kinds[0].samples;
    // A busy machine adds to each; nothing takes away.
    let found = [50, 90].map(|part| samples.part(part, 100).unwrap().as_micros());
    assert!(found[0] >= 2000 && found[1] >= 3600 && found[0] < found[1], "{found:?} µs");
}

#[test]
fn the_time_until_a_lane_died_is_part_of_what_it_took() {
    let board = Board::new(&case().load, 1).unwrap();
    board.sheet(0).begin = Instant::now().checked_sub(Duration::from_secs(1));
    board.fail(0, "gone");
    let outcome = board.outcome(Cpu::default(), true);
    assert!(outcome.elapsed >= Duration::from_secs(1), "{:?}", outcome.elapsed);
    assert_eq!(count(&outcome), (0, 1), "a lane that had nothing to do is lost too");
}
