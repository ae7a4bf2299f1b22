//! What lanes have measured, where everybody can look at it while they run.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{Kind, Load, Outcome};
use crate::bench::cpu::Cpu;
use crate::bench::rungs::Done;
use crate::bench::samples::Samples;
use crate::bench::stages::Stages;
use crate::bench::workload::Op;

/// What one lane has measured.
#[derive(Debug)]
pub(super) struct Sheet {
    /// By [`Op::index`].
    kinds: [Option<Kind>; 2],
    pub(super) first_error: Option<String>,
    pub(super) begin: Option<Instant>,
    pub(super) end: Option<Instant>,
}

impl Sheet {
    fn new(load: &Load) -> Result<Self, hdrhistogram::CreationError> {
        let mut kinds = [None, None];
        for &op in load.mix.ops() {
            kinds[op.index()] = Some(Kind {
                op,
                samples: Samples::new()?,
                service: load.rate.map(|_| Samples::new()).transpose()?,
                stages: load.stages.then(Stages::new).transpose()?,
                errors: 0,
                missed: 0,
            });
        }
        Ok(Self { kinds, first_error: None, begin: None, end: None })
    }

    /// Notes an operation that was due, begun, and is over. Allocates nothing unless it failed.
    pub(super) fn note(&mut self, op: Op, due: Instant, began: Instant, done: Done) {
        let Some(kind) = &mut self.kinds[op.index()] else { return };
        // With a rate it takes until the last one is begun: how long that one takes says nothing about the rate.
        self.end = self.end.max(Some(if kind.service.is_some() { began } else { done.at }));
        if let Some(reason) = done.failed {
            kind.errors += 1;
            self.first_error.get_or_insert(reason);
            return;
        }
        kind.samples.add(done.at.saturating_duration_since(due));
        if let Some(service) = &mut kind.service {
            service.add(done.at.saturating_duration_since(began));
        }
        if let Some(stages) = &mut kind.stages {
            stages.add(began, &done.stamp, done.at);
        }
    }

    /// Notes operations that were due and never begun, `count` of which had waited for about as long.
    pub(super) fn miss(&mut self, op: Op, count: u64, waited: Duration) {
        if let Some(kind) = &mut self.kinds[op.index()] {
            kind.samples.add_many(waited, count);
            kind.missed += count;
        }
    }

    /// Notes that a lane stopped after so many failures in a row.
    pub(super) fn give_up(&mut self, failures: u64) {
        let first = self.first_error.take().unwrap_or_default();
        self.first_error = Some(format!("{first}; after {failures} failures in a row a lane stopped"));
    }

    /// Time that belongs to the measurement although nothing came of it.
    pub(super) fn last_until(&mut self, end: Instant) {
        self.end = self.end.max(Some(end));
    }

    /// Notes the failure of a lane, and of what it had under way.
    fn fail(&mut self, under_way: [u64; 2], reason: &str) {
        for (kind, under_way) in self.kinds.iter_mut().zip(under_way) {
            if let Some(kind) = kind {
                kind.errors += under_way;
            }
        }
        // A lane that had nothing to do is lost too.
        if under_way == [0; 2]
            && let Some(kind) = self.kinds.iter_mut().flatten().next()
        {
            kind.errors += 1;
        }
        self.last_until(Instant::now());
        self.first_error.get_or_insert_with(|| reason.to_owned());
    }

    /// Operations that are over.
    pub(super) fn count(&self) -> u64 {
        self.kinds.iter().flatten().map(|kind| kind.count() + kind.errors).sum()
    }

    fn merge(&mut self, other: &Self) {
        for (ours, theirs) in self.kinds.iter_mut().zip(&other.kinds) {
            let (Some(ours), Some(theirs)) = (ours, theirs) else { continue };
            ours.samples.merge(&theirs.samples);
            if let (Some(ours), Some(theirs)) = (&mut ours.service, &theirs.service) {
                ours.merge(theirs);
            }
            if let (Some(ours), Some(theirs)) = (&mut ours.stages, &theirs.stages) {
                ours.merge(theirs);
            }
            ours.errors += theirs.errors;
            ours.missed += theirs.missed;
        }
        if let Some(reason) = &other.first_error {
            self.first_error.get_or_insert_with(|| reason.clone());
        }
        self.begin = [self.begin, other.begin].into_iter().flatten().min();
        self.end = self.end.max(other.end);
    }
}

/// How many operations one lane has under way, by [`Op::index`]. Written by its lane alone, in a line of the cache of its
/// own; read by whoever gives that lane up.
#[derive(Debug, Default)]
#[repr(align(64))]
struct UnderWay([AtomicU64; 2]);

/// See the module.
#[derive(Debug)]
pub(super) struct Board {
    sheets: Vec<Mutex<Sheet>>,
    under_way: Vec<UnderWay>,
    empty: Mutex<Sheet>,
    beats: AtomicU64,
    warm: AtomicU64,
    /// Whether lanes may begin.
    go: Mutex<bool>,
    started: Condvar,
    over: AtomicBool,
}

impl Board {
    pub(super) fn new(load: &Load, lanes: u32) -> Result<Self, hdrhistogram::CreationError> {
        let mut sheets = Vec::new();
        for _ in 0..lanes {
            sheets.push(Mutex::new(Sheet::new(load)?));
        }
        Ok(Self {
            sheets,
            under_way: (0..lanes).map(|_| UnderWay::default()).collect(),
            empty: Mutex::new(Sheet::new(load)?),
            beats: AtomicU64::new(0),
            warm: AtomicU64::new(0),
            go: Mutex::new(false),
            started: Condvar::new(),
            over: AtomicBool::new(false),
        })
    }

    /// The sheet of a lane. Only its lane and whoever looks at it ever want it, so it is free.
    pub(super) fn sheet(&self, lane: u32) -> MutexGuard<'_, Sheet> {
        self.sheets[lane as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A lane begins an operation.
    pub(super) fn begins(&self, lane: u32, op: Op) {
        let count = &self.under_way[lane as usize].0[op.index()];
        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// An operation of a lane is over.
    pub(super) fn ends(&self, lane: u32, op: Op) {
        let count = &self.under_way[lane as usize].0[op.index()];
        count.store(count.load(Ordering::Relaxed).saturating_sub(1), Ordering::Relaxed);
    }

    /// A lane is lost, and with it what it has under way.
    pub(super) fn fail(&self, lane: u32, reason: &str) {
        let under_way = self.under_way[lane as usize].0.each_ref().map(|count| count.load(Ordering::Relaxed));
        self.sheet(lane).fail(under_way, reason);
    }

    /// A sign of life.
    pub(super) fn beat(&self) {
        self.beats.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn beats(&self) -> u64 {
        self.beats.load(Ordering::Relaxed)
    }

    /// A lane is warm, or will never be.
    pub(super) fn is_one_warm(&self) {
        self.warm.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn is_warm(&self) -> bool {
        self.warm.load(Ordering::Acquire) >= self.sheets.len() as u64
    }

    /// Lets the lanes begin.
    pub(super) fn go(&self) {
        *self.go.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.started.notify_all();
    }

    /// Waits until the lanes may begin, or it is over.
    pub(super) fn wait_for_go(&self, is_stopped: impl Fn() -> bool) {
        let mut go = self.go.lock().unwrap_or_else(PoisonError::into_inner);
        while !*go && !self.is_over() && !is_stopped() {
            let step = Duration::from_millis(50);
            go = self.started.wait_timeout(go, step).unwrap_or_else(PoisonError::into_inner).0;
            self.beat();
        }
    }

    /// Whether nobody waits for the lanes any more.
    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Leaves the lanes to themselves. Those that have nothing under way have done what they had to.
    pub(super) fn give_up(&self, reason: &str) {
        self.over.store(true, Ordering::Relaxed);
        let is_busy =
            |under_way: &UnderWay| under_way.0.iter().any(|count| count.load(Ordering::Relaxed) > 0);
        let busy = (0u32..).zip(&self.under_way).filter(|(_, under_way)| is_busy(under_way));
        let busy: Vec<u32> = busy.map(|(lane, _)| lane).collect();
        // One that hangs before it has begun anything is lost as well.
        let lost = if busy.is_empty() { &[0][..] } else { &busy };
        lost.iter().for_each(|&lane| self.fail(lane, reason));
    }

    /// Operations that are over, since when, and the mean of the first kind, for the progress line.
    pub(super) fn glance(&self) -> (u64, Option<Instant>, Option<Duration>) {
        let (mut count, mut begin, mut mean) = (0, None, None);
        for lane in 0..self.sheets.len() as u32 {
            let sheet = self.sheet(lane);
            count += sheet.count();
            begin = [begin, sheet.begin].into_iter().flatten().min();
            mean = mean.or_else(|| sheet.kinds.iter().flatten().next()?.samples.mean());
        }
        (count, begin, mean)
    }

    /// All sheets together.
    pub(super) fn outcome(&self, cpu: Cpu, is_broken: bool) -> Outcome {
        let mut whole = self.empty.lock().unwrap_or_else(PoisonError::into_inner);
        for lane in 0..self.sheets.len() as u32 {
            whole.merge(&self.sheet(lane));
        }
        let elapsed = whole
            .end
            .zip(whole.begin)
            .map_or(Duration::ZERO, |(end, begin)| end.saturating_duration_since(begin));
        let kinds = std::mem::take(&mut whole.kinds).into_iter().flatten().collect();
        Outcome { kinds, first_error: whole.first_error.take(), elapsed, cpu, is_broken }
    }
}
