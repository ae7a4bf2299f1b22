//! Faults on purpose: errors, delays and short transfers, in front of any engine. The shipped server can load them
//! (`--fault`), so that tests and people who rehearse make the same failure happen.

mod engine;
mod rule;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use kaeru_common::error::Status;

pub use self::engine::FaultyEngine;
pub use self::rule::{BadRule, Delay, On, Rule};
use super::engine::Job;

/// The rules of one export, and how often each has met a job, over all lanes.
#[derive(Debug)]
pub struct Faults {
    export: String,
    rules: Vec<Counted>,
}

#[derive(Debug)]
struct Counted {
    rule: Rule,
    met: AtomicU64,
    fired: AtomicBool,
    drawn: AtomicU64,
}

/// What the rules make of one job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    /// It fails with this, and the store does not see it.
    pub(super) error: Option<Status>,
    /// It is answered no sooner than this after it was submitted.
    pub(super) delay: Duration,
    /// Whether its lane cannot end before that either.
    pub(super) hang: bool,
}

impl Faults {
    /// These rules for the export of this name.
    pub fn new(export: &str, rules: Vec<Rule>) -> Self {
        let counted = |rule| Counted {
            rule,
            met: AtomicU64::new(0),
            fired: AtomicBool::new(false),
            drawn: AtomicU64::new(0),
        };
        Self { export: export.to_owned(), rules: rules.into_iter().map(counted).collect() }
    }

    /// How many jobs each rule has met, in the order of the rules.
    pub fn met(&self) -> Vec<u64> {
        self.rules.iter().map(|counted| counted.met.load(Relaxed)).collect()
    }

    /// Whether the kernel is asked for less than a read wants.
    pub(super) fn shortens_reads(&self) -> bool {
        self.rules.iter().any(|counted| counted.rule.short && matches!(counted.rule.on, On::Read | On::All))
    }

    /// Whether the kernel is given less than a write has.
    pub(super) fn shortens_writes(&self) -> bool {
        self.rules.iter().any(|counted| counted.rule.short && matches!(counted.rule.on, On::Write | On::All))
    }

    /// What becomes of a job.
    pub(super) fn judge(&self, job: &Job) -> Verdict {
        let mut verdict = Verdict::default();
        for counted in self.rules.iter().filter(|counted| counted.rule.meets(job)) {
            let rule = &counted.rule;
            let number = counted.met.fetch_add(1, Relaxed) + 1;
            if rule.count {
                tracing::info!("{}: {} number {number}", self.export, rule.on);
            }
            if !rule.is_due(number) || (rule.once && counted.fired.swap(true, Relaxed)) {
                continue;
            }
            verdict.error = verdict.error.or(rule.error);
            if let Some(delay) = rule.delay {
                verdict.hang |= rule.hang;
                verdict.delay += delay.draw(rule.seed, counted.drawn.fetch_add(1, Relaxed));
            }
        }
        verdict
    }
}
