//! Counters of one lane, written by its thread and read by anybody.

use std::array;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// What a lane has done so far. One thread writes, so plain loads and stores suffice and cost nothing.
#[derive(Debug, Default)]
pub struct LaneCounters {
    reads: AtomicU64,
    writes: AtomicU64,
    others: AtomicU64,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    errors: AtomicU64,
    in_flight: AtomicU64,
    /// Nanoseconds of [`clock`] at the last answer; 0 for none.
    last_answer: AtomicU64,
    is_lost: AtomicBool,
    latencies: LatencyCounters,
}

/// A lane's counters at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneSnapshot {
    /// Reads that were answered.
    pub reads: u64,
    /// Writes that were answered.
    pub writes: u64,
    /// Other requests that were answered.
    pub others: u64,
    /// Bytes of answered reads.
    pub bytes_read: u64,
    /// Bytes of answered writes.
    pub bytes_written: u64,
    /// Requests that were answered with an error.
    pub errors: u64,
    /// Requests that are not yet answered.
    pub in_flight: u64,
    /// When the last answer was given; `None` before the first.
    pub last_answer: Option<Instant>,
}

impl LaneCounters {
    /// Counts an answered read.
    pub fn read(&self, bytes: u64) {
        add(&self.reads, 1);
        add(&self.bytes_read, bytes);
    }

    /// Counts an answered write.
    pub fn write(&self, bytes: u64) {
        add(&self.writes, 1);
        add(&self.bytes_written, bytes);
    }

    /// Counts any other answered request.
    pub fn other(&self) {
        add(&self.others, 1);
    }

    /// Counts a request that failed.
    pub fn error(&self) {
        add(&self.errors, 1);
    }

    /// Says how many requests are under way.
    pub fn set_in_flight(&self, requests: u64) {
        self.in_flight.store(requests, Ordering::Relaxed);
    }

    /// Notes that nothing comes of it any more: its link is dead.
    pub fn lose(&self) {
        self.is_lost.store(true, Ordering::Relaxed);
    }

    /// Notes an answer, and how long its request took.
    pub fn answered(&self, took: Duration) {
        self.latencies.record(took);
        self.last_answer.store(clock().max(1), Ordering::Relaxed);
    }

    /// How long requests took, so far.
    pub fn latencies(&self) -> Latencies {
        self.latencies.snapshot()
    }

    /// The counters now.
    pub fn snapshot(&self) -> LaneSnapshot {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        LaneSnapshot {
            reads: load(&self.reads),
            writes: load(&self.writes),
            others: load(&self.others),
            bytes_read: load(&self.bytes_read),
            bytes_written: load(&self.bytes_written),
            errors: load(&self.errors),
            in_flight: load(&self.in_flight),
            last_answer: match load(&self.last_answer) {
                0 => None,
                last => Some(start() + Duration::from_nanos(last)),
            },
        }
    }
}

impl std::ops::AddAssign for LaneSnapshot {
    fn add_assign(&mut self, other: Self) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.others += other.others;
        self.bytes_read += other.bytes_read;
        self.bytes_written += other.bytes_written;
        self.errors += other.errors;
        self.in_flight += other.in_flight;
        self.last_answer = self.last_answer.max(other.last_answer);
    }
}

fn add(counter: &AtomicU64, amount: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
}

/// What all lanes of something did, those that are closed included.
#[derive(Debug, Default)]
pub struct Totals(Mutex<Lanes>);

#[derive(Debug, Default)]
struct Lanes {
    open: Vec<Arc<LaneCounters>>,
    past: LaneSnapshot,
    past_latencies: Latencies,
}

impl Totals {
    /// Counters for a new lane.
    pub fn open(&self) -> Arc<LaneCounters> {
        let counters = Arc::<LaneCounters>::default();
        self.lock().open.push(counters.clone());
        counters
    }

    /// Keeps what a lane did that is closed now.
    pub fn close(&self, counters: &Arc<LaneCounters>) {
        let mut lanes = self.lock();
        lanes.open.retain(|open| !Arc::ptr_eq(open, counters));
        lanes.past += LaneSnapshot { in_flight: 0, ..counters.snapshot() };
        lanes.past_latencies += &counters.latencies();
    }

    /// How many lanes are open.
    pub fn lanes(&self) -> usize {
        self.lock().open.len()
    }

    /// How many of the open lanes are lost.
    pub fn lost(&self) -> usize {
        self.lock().open.iter().filter(|counters| counters.is_lost.load(Ordering::Relaxed)).count()
    }

    /// The sum of all counters.
    pub fn snapshot(&self) -> LaneSnapshot {
        let lanes = self.lock();
        lanes.open.iter().fold(lanes.past, |mut sum, counters| {
            sum += counters.snapshot();
            sum
        })
    }

    /// How long all requests took.
    pub fn latencies(&self) -> Latencies {
        let lanes = self.lock();
        lanes.open.iter().fold(lanes.past_latencies.clone(), |mut sum, counters| {
            sum += &counters.latencies();
            sum
        })
    }

    fn lock(&self) -> MutexGuard<'_, Lanes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// When this process first asked.
fn start() -> Instant {
    static START: OnceLock<Instant> = OnceLock::new();
    *START.get_or_init(Instant::now)
}

/// Nanoseconds since [`start`].
fn clock() -> u64 {
    start().elapsed().as_nanos() as u64
}

/// Buckets in each octave: a latency is known to a sixteenth.
const STEPS: u32 = 16;
const BUCKETS: usize = 61 * STEPS as usize;

/// How often each latency was seen, in buckets that widen with it.
#[derive(Debug)]
struct LatencyCounters([AtomicU64; BUCKETS]);

impl Default for LatencyCounters {
    fn default() -> Self {
        Self(array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl LatencyCounters {
    fn record(&self, took: Duration) {
        add(&self.0[bucket(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX))], 1);
    }

    fn snapshot(&self) -> Latencies {
        Latencies(self.0.iter().map(|count| count.load(Ordering::Relaxed)).collect())
    }
}

/// The bucket of a latency in nanoseconds: exact below [`STEPS`], then as many buckets to an octave.
fn bucket(nanos: u64) -> usize {
    match nanos.checked_ilog2() {
        Some(octave) if octave >= STEPS.ilog2() => {
            let shift = octave - STEPS.ilog2();
            ((shift * STEPS) as u64 + (nanos >> shift)) as usize
        }
        _ => nanos as usize,
    }
}

/// The longest latency of a bucket.
fn longest(bucket: usize) -> u64 {
    let (bucket, steps) = (bucket as u64, u64::from(STEPS));
    if bucket < steps {
        return bucket;
    }
    let shift = bucket / steps - 1;
    let first = steps + bucket % steps;
    (first << shift) + ((1 << shift) - 1)
}

/// How long requests took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Latencies(Vec<u64>);

impl Default for Latencies {
    fn default() -> Self {
        Self(vec![0; BUCKETS])
    }
}

impl Latencies {
    /// How many requests.
    pub fn count(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The time within which `percent` of them were answered, rounded up by at most a sixteenth; `None` without any.
    pub fn percentile(&self, percent: f64) -> Option<Duration> {
        let total = self.count();
        let wanted = ((percent / 100.0 * total as f64).ceil() as u64).clamp(1, total.max(1));
        let mut seen = 0;
        let found = self.0.iter().position(|count| {
            seen += count;
            seen >= wanted
        })?;
        Some(Duration::from_nanos(longest(found)))
    }

    /// The longest time that any took, rounded up by at most a sixteenth; `None` without any.
    pub fn max(&self) -> Option<Duration> {
        let last = self.0.iter().rposition(|&count| count > 0)?;
        Some(Duration::from_nanos(longest(last)))
    }
}

impl std::ops::AddAssign<&Self> for Latencies {
    fn add_assign(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(sum, count)| *sum += count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_one_another_and_hold_what_they_say() {
        for bucket_number in 0..BUCKETS {
            let last = longest(bucket_number);
            assert_eq!(bucket(last), bucket_number);
            if let Some(next) = last.checked_add(1) {
                assert_eq!(bucket(next), bucket_number + 1, "after {last}");
            }
        }
        assert_eq!(longest(BUCKETS - 1), u64::MAX);
    }

    #[test]
    fn percentiles_agree_with_sorted_samples_to_a_sixteenth() {
        let counters = LaneCounters::default();
        let mut samples: Vec<u64> = (0..1000u64).map(|n| n * n * 37 % 5_000_003 + 1).collect();
        samples.iter().for_each(|&nanos| counters.answered(Duration::from_nanos(nanos)));
        samples.sort_unstable();
        let latencies = counters.latencies();
        assert_eq!(latencies.count(), 1000);
        for percent in [0.1, 50.0, 90.0, 99.0, 99.9, 100.0] {
            let exact = samples[(percent * 10.0) as usize - 1];
            let found = latencies.percentile(percent).unwrap().as_nanos() as u64;
            assert!((exact..=exact + exact / 16).contains(&found), "{percent}: {found} for {exact}");
        }
        assert_eq!(latencies.max(), latencies.percentile(100.0));
        assert_eq!((Latencies::default().percentile(50.0), Latencies::default().max()), (None, None));
        assert!(counters.snapshot().last_answer.is_some_and(|last| last <= Instant::now()));
        assert_eq!(LaneCounters::default().snapshot().last_answer, None);
    }
}
