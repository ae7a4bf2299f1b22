//! The loop: warm up, then time one operation after the other until there are enough.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::rungs::{Failure, Rung};
use super::samples::Samples;
use super::stop::Stop;
use super::workload::{Offsets, Op};

/// The warm-up ends after this long, or after [`WARM_UP_OPS`].
const WARM_UP: Duration = Duration::from_millis(500);
/// As many operations are enough for caches, page tables and the branch predictor.
const WARM_UP_OPS: u64 = 2000;
/// As many failures in a row say all that there is to say.
const FAILURES: u64 = 100;
/// How often the progress line changes.
const TICK: Duration = Duration::from_millis(200);

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// For this long.
    Time(Duration),
    /// This many operations.
    Count(u64),
}

impl Limit {
    /// How much of it is done, in thousandths.
    fn done(self, elapsed: Duration, count: u64) -> u64 {
        let (part, whole) = match self {
            Self::Time(whole) => (elapsed.as_nanos(), whole.as_nanos()),
            Self::Count(whole) => (count.into(), whole.into()),
        };
        (part * 1000).checked_div(whole).map_or(1000, |done| done.min(1000) as u64)
    }
}

/// What came of one measurement.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Where it was measured.
    pub rung: &'static str,
    /// What was measured.
    pub op: Op,
    /// The latencies of what succeeded.
    pub samples: Samples,
    /// How many operations failed.
    pub errors: u64,
    /// Why the first one did.
    pub first_error: Option<String>,
    /// How long it took.
    pub elapsed: Duration,
}

impl Outcome {
    /// Successful operations in a second.
    pub fn iops(&self) -> f64 {
        match self.elapsed.as_secs_f64() {
            0.0 => 0.0,
            seconds => self.samples.count() as f64 / seconds,
        }
    }
}

/// Measures `op` on `rung`. Ends early where the user or the rung wants it.
///
/// # Errors
/// Only where there is no histogram.
pub fn measure(
    rung: &mut dyn Rung,
    op: Op,
    offsets: &mut Offsets,
    limit: Limit,
    stop: &Stop,
) -> Result<Outcome, hdrhistogram::CreationError> {
    let (name, samples) = (rung.name(), Samples::new()?);
    let mut outcome =
        Outcome { rung: name, op, samples, errors: 0, first_error: None, elapsed: Duration::ZERO };
    if let Err(failure) = warm_up(rung, op, offsets, stop) {
        outcome.errors = 1;
        outcome.first_error = Some(failure.to_string());
        return Ok(outcome);
    }
    let line = progress_line(name, op);
    let (start, mut in_a_row) = (Instant::now(), 0);
    let (mut before, mut drawn) = (start, start);
    while !stop.is_asked() {
        let offset = offsets.next_offset();
        let began = Instant::now();
        let result = rung.once(op, offset);
        before = Instant::now();
        match result {
            Ok(()) => {
                outcome.samples.add(before - began);
                in_a_row = 0;
            }
            Err(failure) => {
                (outcome.errors, in_a_row) = (outcome.errors + 1, in_a_row + 1);
                outcome.first_error.get_or_insert_with(|| failure.to_string());
                if matches!(failure, Failure::Fatal(_)) || in_a_row == FAILURES {
                    break;
                }
            }
        }
        let done = limit.done(before - start, outcome.samples.count() + outcome.errors);
        if done == 1000 {
            break;
        }
        if before - drawn >= TICK {
            drawn = before;
            line.set_position(done);
        }
    }
    outcome.elapsed = before - start;
    line.finish_and_clear();
    Ok(outcome)
}

/// Operations that are not counted. What fails here and is not fatal fails again later.
fn warm_up(rung: &mut dyn Rung, op: Op, offsets: &mut Offsets, stop: &Stop) -> Result<(), Failure> {
    let (start, mut done, mut failed) = (Instant::now(), 0, 0);
    while done < WARM_UP_OPS && failed < FAILURES && start.elapsed() < WARM_UP && !stop.is_asked() {
        match rung.once(op, offsets.next_offset()) {
            Err(failure @ Failure::Fatal(_)) => return Err(failure),
            Err(Failure::Failed(_)) => failed += 1,
            Ok(()) => done += 1,
        }
    }
    Ok(())
}

/// On standard error, and only where that is a terminal.
fn progress_line(rung: &str, op: Op) -> ProgressBar {
    let line = ProgressBar::new(1000).with_message(format!("{rung} {op}"));
    if let Ok(style) = ProgressStyle::with_template("{msg:12} {bar:40} {percent:>3} %") {
        line.set_style(style);
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails as it was told to.
    struct Scripted {
        calls: u64,
        fails: fn(u64) -> Option<Failure>,
    }

    impl Rung for Scripted {
        fn name(&self) -> &'static str {
            "scripted"
        }

        fn once(&mut self, _: Op, offset: u64) -> Result<(), Failure> {
            assert_eq!(offset % 4096, 0);
            self.calls += 1;
            (self.fails)(self.calls).map_or(Ok(()), Err)
        }
    }

    fn run(fails: fn(u64) -> Option<Failure>, limit: Limit, stop: &Stop) -> (Outcome, u64) {
        let mut rung = Scripted { calls: 0, fails };
        let mut offsets = Offsets::new(1 << 20).unwrap();
        let outcome = measure(&mut rung, Op::Read, &mut offsets, limit, stop).unwrap();
        (outcome, rung.calls)
    }

    #[test]
    fn as_many_as_wanted_are_measured_and_the_warm_up_is_not_counted() {
        let (outcome, calls) = run(|_| None, Limit::Count(5000), &Stop::default());
        assert_eq!((outcome.samples.count(), outcome.errors), (5000, 0));
        assert_eq!(calls, 5000 + WARM_UP_OPS);
    }

    #[test]
    fn a_time_ends_it() {
        let (outcome, _) = run(|_| None, Limit::Time(Duration::from_millis(20)), &Stop::default());
        assert!(outcome.elapsed >= Duration::from_millis(20) && outcome.samples.count() > 0);
        assert!(outcome.iops() > 0.0);
    }

    #[test]
    fn failures_are_counted_and_are_no_samples() {
        let every_other = |call: u64| call.is_multiple_of(2).then(|| Failure::Failed("odd".into()));
        let (outcome, _) = run(every_other, Limit::Count(100), &Stop::default());
        assert_eq!((outcome.samples.count(), outcome.errors), (50, 50));
        assert_eq!(outcome.first_error.as_deref(), Some("odd"));
    }

    #[test]
    fn nothing_but_failures_ends_it() {
        let (outcome, _) =
            run(|_| Some(Failure::Failed("no".into())), Limit::Count(u64::MAX), &Stop::default());
        assert_eq!((outcome.samples.count(), outcome.errors), (0, FAILURES));
    }

    #[test]
    fn a_fatal_failure_ends_it_at_once_and_keeps_what_there_is() {
        let late = |call: u64| (call > WARM_UP_OPS + 10).then(|| Failure::Fatal("gone".into()));
        let (outcome, _) = run(late, Limit::Count(100), &Stop::default());
        assert_eq!((outcome.samples.count(), outcome.errors), (10, 1));
        let early = |_| Some(Failure::Fatal("gone".into()));
        let (outcome, calls) = run(early, Limit::Count(100), &Stop::default());
        assert_eq!((outcome.samples.count(), outcome.errors, calls), (0, 1, 1));
    }

    #[test]
    fn the_user_may_have_had_enough() {
        let stop = Stop::default();
        stop.ask();
        let (outcome, calls) = run(|_| None, Limit::Count(u64::MAX), &stop);
        assert_eq!((outcome.samples.count(), calls), (0, 0));
    }
}
