//! The figures of measurements, as every form of output shows them: what is here is what JSON has.
//!
//! Times are microseconds to the nanosecond, and absent where there were too few samples for them to mean anything.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::cpu::Cpu;
use super::engine::{Kind, Outcome};
use super::rungs::RungName;
use super::samples::Samples;
use super::stages::{Stage, Stages};
use super::workload::{Op, Pattern};

/// Latencies of many operations.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Half of the operations took no longer.
    pub p50: Option<f64>,
    /// 90 % took no longer.
    pub p90: Option<f64>,
    /// 99 % took no longer.
    pub p99: Option<f64>,
    /// 99.9 % took no longer.
    #[serde(rename = "p99.9")]
    pub p99_9: Option<f64>,
    /// 99.99 % took no longer.
    #[serde(rename = "p99.99")]
    pub p99_99: Option<f64>,
    /// The shortest.
    pub min: Option<f64>,
    /// The longest.
    pub max: Option<f64>,
    /// The mean.
    pub mean: Option<f64>,
    /// The standard deviation.
    pub deviation: Option<f64>,
}

/// Microseconds, to the nanosecond.
pub fn micros(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}

impl Latency {
    /// Of these samples.
    pub fn of(samples: &Samples) -> Self {
        let part = |part| samples.part(part, 10_000).map(micros);
        Self {
            p50: part(5000),
            p90: part(9000),
            p99: part(9900),
            p99_9: part(9990),
            p99_99: part(9999),
            min: samples.min().map(micros),
            max: samples.max().map(micros),
            mean: samples.mean().map(micros),
            deviation: samples.deviation().map(micros),
        }
    }

    /// Names and figures, in the order of a table.
    pub fn columns(&self) -> [(&'static str, Option<f64>); 8] {
        [
            ("p50", self.p50),
            ("p90", self.p90),
            ("p99", self.p99),
            ("p99.9", self.p99_9),
            ("p99.99", self.p99_99),
            ("max", self.max),
            ("mean", self.mean),
            ("dev", self.deviation),
        ]
    }

    /// Each of them halved.
    fn halved(&self) -> Self {
        let half = |figure: Option<f64>| figure.map(|figure| figure / 2.0);
        Self {
            p50: half(self.p50),
            p90: half(self.p90),
            p99: half(self.p99),
            p99_9: half(self.p99_9),
            p99_99: half(self.p99_99),
            min: half(self.min),
            max: half(self.max),
            mean: half(self.mean),
            deviation: half(self.deviation),
        }
    }
}

/// One run, or several together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Operations that succeeded.
    pub count: u64,
    /// Operations that failed.
    pub errors: u64,
    /// With a rate: operations that were due and never begun. The latencies have how long each had waited until then.
    #[serde(default)]
    pub missed: u64,
    /// Times that a card or the kernel had to send something again; absent where nobody counts.
    pub retries: Option<u64>,
    /// How long it took.
    pub seconds: f64,
    /// Successful operations a second.
    pub iops: f64,
    /// Bytes a second.
    pub bytes_per_second: f64,
    /// Processor time of kaeru-bench and the kernel on its behalf, for all operations of the run.
    pub client_cpu_seconds: f64,
    /// The same in per cent of one processor.
    pub client_cpu_percent: Option<f64>,
    /// Processor time of the server, by its own count and for all of its clients; absent where it does not tell.
    pub server_cpu_seconds: Option<f64>,
    /// The same in per cent of one processor.
    pub server_cpu_percent: Option<f64>,
    /// Full round trips; with a rate, from when each operation was due.
    pub latency_us: Latency,
}

impl Figures {
    /// Of one kind of operation in runs that are given as elapsed time, processor time and retries.
    fn of(kind: &Kind, block: u32, elapsed: Duration, cpu: Cpu, retries: Option<u64>) -> Self {
        let percent = |cpu: Duration, seconds: f64| round(100.0 * cpu.as_secs_f64() / seconds, 10.0);
        let seconds = elapsed.as_secs_f64();
        let iops = if seconds > 0.0 { kind.count() as f64 / seconds } else { 0.0 };
        Self {
            count: kind.count(),
            errors: kind.errors,
            missed: kind.missed,
            retries,
            seconds,
            iops: round(iops, 1e3),
            bytes_per_second: round(iops * f64::from(block), 10.0),
            client_cpu_seconds: cpu.client.as_secs_f64(),
            client_cpu_percent: (seconds > 0.0).then(|| percent(cpu.client, seconds)),
            server_cpu_seconds: cpu.server.map(|cpu| cpu.as_secs_f64()),
            server_cpu_percent: cpu.server.filter(|_| seconds > 0.0).map(|cpu| percent(cpu, seconds)),
            latency_us: Latency::of(&kind.samples),
        }
    }
}

/// A rate is kept where this part of it is done: the last operations of a run end after the time in which they were due.
const KEPT: f64 = 0.95;

/// As many parts of one as are worth writing down: what is shorter is read back as it was.
fn round(number: f64, parts: f64) -> f64 {
    (number * parts).round() / parts
}

/// A stage of operations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StageFigures {
    /// Which.
    pub stage: Stage,
    /// How it is known.
    pub source: String,
    /// How long it took.
    pub latency_us: Latency,
}

/// A number of operations up to a latency, beginning where the one before ends.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bucket {
    /// No operation in it took longer, but for the precision of three digits.
    pub up_to_us: f64,
    /// Operations in it.
    pub count: u64,
}

/// A point of the curve of percentiles.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CurvePoint {
    /// From 0 to 100.
    pub percentile: f64,
    /// As many per cent of the operations took no longer.
    pub us: f64,
}

/// What was measured at one place with one load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Where.
    pub rung: RungName,
    /// Which operation.
    pub operation: Op,
    /// In a mixed load: reads in a hundred operations. All other figures are of this operation alone, but for
    /// processor time and retries, which are of the whole load.
    pub mixed_reads_percent: Option<u8>,
    /// In which order.
    pub pattern: Pattern,
    /// Bytes of one operation.
    pub block_bytes: u32,
    /// Operations under way at once on each lane.
    pub depth: u32,
    /// Lanes.
    pub lanes: u32,
    /// Operations a second that were asked for.
    pub rate: Option<f64>,
    /// Operations of the whole load that were done a second, where that is short of what was asked for.
    #[serde(default)]
    pub rate_missed: Option<f64>,
    /// All runs together.
    pub all: Figures,
    /// Each run.
    pub runs: Vec<Figures>,
    /// The lowest and the highest median of the runs; absent with one run.
    pub median_spread_us: Option<(f64, f64)>,
    /// Half of each latency, where perftest prints such: `ib_write_lat` halves the time there and back.
    pub half_round_trip_us: Option<Latency>,
    /// With a rate: from when each operation was begun. It hides how long operations waited for that.
    pub uncorrected_us: Option<Latency>,
    /// Where the time went, if that was asked for.
    pub stages: Vec<StageFigures>,
    /// Why the first failure failed.
    pub first_error: Option<String>,
    /// How latencies are distributed.
    pub distribution: Vec<Bucket>,
    /// The same as a curve.
    pub curve: Vec<CurvePoint>,
}

/// What stays the same from run to run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Place {
    /// Where.
    pub rung: RungName,
    /// In a mixed load: reads in a hundred operations.
    pub mixed_reads_percent: Option<u8>,
    /// In which order.
    pub pattern: Pattern,
    /// Bytes of one operation.
    pub block: u32,
    /// Operations under way at once on each lane.
    pub depth: u32,
    /// Lanes.
    pub lanes: u32,
    /// Operations a second that were asked for.
    pub rate: Option<f64>,
}

/// The runs of one place and load, as they are gathered.
#[derive(Debug)]
pub struct Gathered {
    place: Place,
    kinds: Vec<(Kind, Vec<Figures>)>,
    elapsed: Duration,
    /// None before the first run.
    cpu: Option<Cpu>,
    retries: Option<u64>,
    first_error: Option<String>,
}

impl Gathered {
    /// Nothing yet.
    pub fn new(place: Place) -> Self {
        Self {
            place,
            kinds: Vec::new(),
            elapsed: Duration::ZERO,
            cpu: None,
            retries: None,
            first_error: None,
        }
    }

    /// Adds a run.
    pub fn add(&mut self, outcome: Outcome, retries: Option<u64>) {
        let Outcome { kinds, first_error, elapsed, cpu, .. } = outcome;
        self.elapsed += elapsed;
        match &mut self.cpu {
            None => self.cpu = Some(cpu),
            Some(sum) => *sum += cpu,
        }
        if let Some(retries) = retries {
            let sum = self.retries.get_or_insert(0);
            *sum = sum.saturating_add(retries);
        }
        self.first_error = self.first_error.take().or(first_error);
        for kind in kinds {
            let run = Figures::of(&kind, self.place.block, elapsed, cpu, retries);
            match self.kinds.iter_mut().find(|(known, _)| known.op == kind.op) {
                None => self.kinds.push((kind, vec![run])),
                Some((known, runs)) => {
                    runs.push(run);
                    known.errors += kind.errors;
                    known.missed += kind.missed;
                    known.samples.merge(&kind.samples);
                    if let (Some(ours), Some(theirs)) = (&mut known.service, &kind.service) {
                        ours.merge(theirs);
                    }
                    if let (Some(ours), Some(theirs)) = (&mut known.stages, &kind.stages) {
                        ours.merge(theirs);
                    }
                }
            }
        }
    }

    /// What came of it.
    pub fn measured(&self) -> Vec<Measured> {
        self.kinds.iter().map(|(kind, runs)| self.of_kind(kind, runs)).collect()
    }

    /// See [`Measured::rate_missed`].
    fn rate_missed(&self) -> Option<f64> {
        let (wanted, seconds) = (self.place.rate?, self.elapsed.as_secs_f64());
        // What failed was begun in time.
        let kinds = self.kinds.iter().map(|(kind, _)| (kind.count() + kind.errors, kind.missed));
        let (over, missed) = kinds.fold((0, 0), |sum, kind| (sum.0 + kind.0, sum.1 + kind.1));
        let done = if seconds > 0.0 { round(over as f64 / seconds, 1e3) } else { 0.0 };
        (missed > 0 || done < wanted * KEPT).then_some(done)
    }

    fn of_kind(&self, kind: &Kind, runs: &[Figures]) -> Measured {
        let Place { rung, mixed_reads_percent, pattern, block, depth, lanes, rate } = self.place;
        let cpu = self.cpu.unwrap_or_default();
        let all = Figures::of(kind, block, self.elapsed, cpu, self.retries);
        let halves = rung == RungName::Fabric && kind.op == Op::Write && depth == 1 && rate.is_none();
        Measured {
            rung,
            operation: kind.op,
            mixed_reads_percent,
            pattern,
            block_bytes: block,
            depth,
            lanes,
            rate,
            rate_missed: self.rate_missed(),
            half_round_trip_us: halves.then(|| all.latency_us.halved()),
            uncorrected_us: kind.service.as_ref().map(Latency::of),
            stages: kind.stages.as_ref().map(stage_figures).unwrap_or_default(),
            first_error: self.first_error.clone().filter(|_| kind.errors > 0),
            distribution: kind
                .samples
                .distribution()
                .into_iter()
                .map(|(nanos, count)| Bucket { up_to_us: (nanos).round() / 1e3, count })
                .collect(),
            curve: kind
                .samples
                .curve()
                .into_iter()
                .map(|(percentile, time)| CurvePoint { percentile, us: micros(time) })
                .collect(),
            all,
            median_spread_us: spread(runs, |run| run.latency_us.p50),
            runs: runs.to_vec(),
        }
    }
}

fn stage_figures(stages: &Stages) -> Vec<StageFigures> {
    stages
        .known()
        .map(|(stage, samples)| StageFigures {
            stage,
            source: stage.source().to_owned(),
            latency_us: Latency::of(samples),
        })
        .collect()
}

/// The smallest and the largest of a figure over the runs; `None` where fewer than two have it.
pub fn spread(runs: &[Figures], figure: impl Fn(&Figures) -> Option<f64>) -> Option<(f64, f64)> {
    let found: Vec<f64> = runs.iter().filter_map(figure).collect();
    let (low, high) = (found.iter().copied().reduce(f64::min)?, found.iter().copied().reduce(f64::max)?);
    (found.len() > 1).then_some((low, high))
}

impl Measured {
    /// That the rate was not kept, in words.
    pub fn rate_remark(&self) -> Option<String> {
        let (wanted, done) = (super::units::rate(self.rate?), super::units::rate(self.rate_missed?));
        let missed = match self.all.missed {
            0 => String::new(),
            missed => format!(
                "; {missed} were due and never begun, and count among the latencies with how long they had waited"
            ),
        };
        Some(format!(
            "{}: {wanted} operations a second were asked for and {done} were done{missed}",
            self.title()
        ))
    }

    /// Its place and operation in words: `remote read 4 KiB, depth 1`.
    pub fn title(&self) -> String {
        let lanes = if self.lanes > 1 { format!(" × {} lanes", self.lanes) } else { String::new() };
        let block = super::units::block(self.block_bytes);
        let mix = self.mixed_reads_percent.map_or_else(String::new, |reads| format!(" in {reads} % reads"));
        format!("{} {}{mix}, {block}, depth {}{lanes}", self.rung, self.operation, self.depth)
    }
}
