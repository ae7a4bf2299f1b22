//! What the lanes of an export did: told in a list, written to logs, and shown by `status`, always in the same words.

use std::fmt;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::codec::DecodeError;
use crate::metrics::{LaneSnapshot, Latencies, Totals};
use crate::units::{Size, about_time};

/// What is said of an export whose memory clients reach by themselves, so that the server sees none of it.
pub const UNCOUNTED: &str = "not counted here: clients reach its memory by themselves";

record! {
    /// What all lanes did so far, those that are closed included. In JSON it has the names of its fields.
    #[derive(Copy, Default, Serialize, Deserialize)]
    #[serde(default)]
    pub struct Activity {
        /// Lanes that are open.
        pub lanes: u16,
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
        /// Milliseconds since the last answer; none before the first.
        pub last_answer_ms: Option<u64>,
        /// How long requests took; none before the first answer.
        pub latency: Option<LatencySummary>,
    }
}

record! {
    /// How long requests took, in nanoseconds, rounded up by at most a sixteenth. No field is less than the one before.
    #[derive(Copy, Serialize, Deserialize)]
    pub struct LatencySummary {
        /// Half of them took no longer.
        pub p50_ns: u64,
        /// 90 % took no longer.
        pub p90_ns: u64,
        /// 99 % took no longer.
        pub p99_ns: u64,
        /// 99.9 % took no longer.
        pub p999_ns: u64,
        /// None took longer.
        pub max_ns: u64,
    }
    check check
}

impl Activity {
    /// What the lanes of `totals` did until `now`.
    pub fn of(totals: &Totals, now: Instant) -> Self {
        let LaneSnapshot { reads, writes, others, bytes_read, bytes_written, errors, in_flight, last_answer } =
            totals.snapshot();
        let millis =
            |last| u64::try_from(now.saturating_duration_since(last).as_millis()).unwrap_or(u64::MAX);
        Self {
            lanes: u16::try_from(totals.lanes()).unwrap_or(u16::MAX),
            reads,
            writes,
            others,
            bytes_read,
            bytes_written,
            errors,
            in_flight,
            last_answer_ms: last_answer.map(millis),
            latency: LatencySummary::of(&totals.latencies()),
        }
    }

    /// Time since the last answer; `None` before the first.
    pub fn last_answer(&self) -> Option<Duration> {
        self.last_answer_ms.map(Duration::from_millis)
    }

    /// How much was done, for people.
    pub fn counts(&self) -> String {
        let Self { reads, writes, others, errors, in_flight, .. } = self;
        let (read, written) = (Size(self.bytes_read).about(), Size(self.bytes_written).about());
        format!(
            "{reads} reads ({read}), {writes} writes ({written}), {others} others, {errors} errors, {in_flight} in flight"
        )
    }

    /// When the last answer was, and how long answers took, for people.
    pub fn times(&self) -> String {
        let Some(last) = self.last_answer() else { return "no answer yet".into() };
        let latency = self.latency.map_or_else(String::new, |latency| format!("; {latency}"));
        match last.is_zero() {
            true => format!("last answer just now{latency}"),
            false => format!("last answer {} ago{latency}", about_time(last)),
        }
    }
}

/// All of it in one line.
impl fmt::Display for Activity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.lanes == 1 { "" } else { "s" };
        write!(f, "{} lane{plural}, {}; {}", self.lanes, self.counts(), self.times())
    }
}

impl LatencySummary {
    /// The summary of `latencies`, if there are any.
    pub fn of(latencies: &Latencies) -> Option<Self> {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let percentile = |percent| latencies.percentile(percent).map(nanos);
        Some(Self {
            p50_ns: percentile(50.0)?,
            p90_ns: percentile(90.0)?,
            p99_ns: percentile(99.0)?,
            p999_ns: percentile(99.9)?,
            max_ns: latencies.max().map(nanos)?,
        })
    }

    /// Every figure with its name, as people read it.
    pub fn figures(&self) -> [(&'static str, String); 5] {
        let Self { p50_ns, p90_ns, p99_ns, p999_ns, max_ns } = *self;
        [("p50", p50_ns), ("p90", p90_ns), ("p99", p99_ns), ("p99.9", p999_ns), ("max", max_ns)]
            .map(|(name, nanos)| (name, about_time(Duration::from_nanos(nanos))))
    }

    fn check(&self) -> Result<(), DecodeError> {
        let Self { p50_ns, p90_ns, p99_ns, p999_ns, max_ns } = *self;
        match [p50_ns, p90_ns, p99_ns, p999_ns, max_ns].is_sorted() {
            true => Ok(()),
            false => Err(DecodeError::BadValue { what: "the latencies of an export" }),
        }
    }
}

impl fmt::Display for LatencySummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let figures = self.figures().map(|(name, time)| format!("{name} {time}"));
        f.write_str(&figures.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lanes_did_reads_as_people_say_it() {
        let idle = Activity::of(&Totals::default(), Instant::now());
        assert_eq!(idle, Activity::default());
        assert_eq!(
            idle.to_string(),
            "0 lanes, 0 reads (0 bytes), 0 writes (0 bytes), 0 others, 0 errors, 0 in flight; no answer yet"
        );
        let latency =
            LatencySummary { p50_ns: 12_345, p90_ns: 20_000, p99_ns: 999, p999_ns: 1 << 20, max_ns: 1 << 31 };
        let busy = Activity {
            lanes: 1,
            reads: 51,
            bytes_read: 1056 << 10,
            in_flight: 3,
            last_answer_ms: Some(1234),
            latency: Some(latency),
            ..idle
        };
        assert_eq!(busy.counts(), "51 reads (1.0 MiB), 0 writes (0 bytes), 0 others, 0 errors, 3 in flight");
        assert_eq!(
            busy.times(),
            "last answer 1.2 s ago; p50 12.3 µs, p90 20.0 µs, p99 999 ns, p99.9 1.0 ms, max 2.1 s"
        );
        assert!(busy.to_string().starts_with("1 lane, 51 reads"));
    }

    #[test]
    fn the_sum_of_all_lanes_is_told() {
        let totals = Totals::default();
        let (closed, open) = (totals.open(), totals.open());
        for lane in [&closed, &open] {
            lane.read(4096);
            lane.answered(Duration::from_micros(10));
            lane.set_in_flight(2);
        }
        open.write(512);
        open.error();
        open.other();
        totals.close(&closed);
        let later = Instant::now() + Duration::from_secs(5);
        let told = Activity::of(&totals, later);
        assert_eq!((told.lanes, told.reads, told.bytes_read), (1, 2, 8192));
        assert_eq!((told.writes, told.bytes_written, told.others, told.errors), (1, 512, 1, 1));
        assert_eq!(told.in_flight, 2);
        assert!(told.last_answer_ms.is_some_and(|last| (5000..65_000).contains(&last)), "{told:?}");
        let latency = told.latency.unwrap();
        assert!((10_000..=10_625).contains(&latency.p50_ns), "{latency}");
        assert_eq!(latency.p50_ns, latency.max_ns);
        // The past of the clock: an answer may be given between two looks at it.
        assert_eq!(Activity::of(&totals, later - Duration::from_secs(3600)).last_answer_ms, Some(0));
    }
}
