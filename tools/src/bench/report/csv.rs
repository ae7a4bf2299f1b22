//! Comma-separated values for sheets: a row for all runs of a result together, one for each run, and one for each stage.

use std::io::{self, Write};

use super::Report;
use crate::bench::figures::{Figures, Latency, Measured};

/// The columns, with their units.
pub const HEAD: &str = "rung,operation,mixed_reads_percent,pattern,block_bytes,depth,lanes,rate_per_second,run,stage,count,errors,\
    missed,retries,seconds,iops,bytes_per_second,client_cpu_seconds,server_cpu_seconds,p50_us,p90_us,p99_us,p99.9_us,p99.99_us,\
    max_us,mean_us,deviation_us,min_us,half_round_trip_p50_us,labels,remarks";

/// Columns between those that say which row it is and the latencies.
const COUNTS: usize = 9;

/// Prints `report`. In the column `run`, `all` is all runs together; `stage` is empty for whole operations.
///
/// # Errors
/// Where it cannot be printed.
pub fn print(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{HEAD}")?;
    let mut labels = report.labels.clone();
    if report.interrupted {
        labels.push("interrupted".into());
    }
    let (labels, remarks) = (quoted(&labels.join("; ")), quoted(&report.remarks.join("; ")));
    let mut row = |result: &Measured,
                   run: &str,
                   stage: &str,
                   counts: Vec<String>,
                   latency: &Latency,
                   half: Option<f64>| {
        let which = vec![
            result.rung.to_string(),
            result.operation.to_string(),
            result.mixed_reads_percent.map_or_else(String::new, |reads| reads.to_string()),
            result.pattern.to_string(),
            result.block_bytes.to_string(),
            result.depth.to_string(),
            result.lanes.to_string(),
            or_empty(result.rate),
            run.to_owned(),
            stage.to_owned(),
        ];
        let times = latency.columns().map(|(_, figure)| or_empty(figure)).to_vec();
        let rest = vec![or_empty(latency.min), or_empty(half), labels.clone(), remarks.clone()];
        writeln!(out, "{}", [which, counts, times, rest].concat().join(","))
    };
    for result in &report.results {
        let half = result.half_round_trip_us.as_ref().and_then(|half| half.p50);
        row(result, "all", "", counts(&result.all), &result.all.latency_us, half)?;
        for (run, number) in result.runs.iter().zip(1..) {
            row(result, &number.to_string(), "", counts(run), &run.latency_us, None)?;
        }
        for stage in &result.stages {
            row(result, "all", stage.stage.word(), vec![String::new(); COUNTS], &stage.latency_us, None)?;
        }
    }
    out.flush()
}

fn counts(figures: &Figures) -> Vec<String> {
    let counts: [String; COUNTS] = [
        figures.count.to_string(),
        figures.errors.to_string(),
        figures.missed.to_string(),
        figures.retries.map_or_else(String::new, |retries| retries.to_string()),
        figures.seconds.to_string(),
        figures.iops.to_string(),
        figures.bytes_per_second.to_string(),
        figures.client_cpu_seconds.to_string(),
        or_empty(figures.server_cpu_seconds),
    ];
    counts.to_vec()
}

fn or_empty(value: Option<f64>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}
