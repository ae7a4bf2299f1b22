//! Comma-separated values for sheets: a row for all runs of a result together, and one for each run.

use std::io::{self, Write};

use super::Report;
use crate::bench::figures::{Figures, Measured};

/// The columns, with their units.
pub const HEAD: &str = "rung,operation,mixed_reads_percent,pattern,block_bytes,depth,lanes,rate_per_second,run,count,errors,\
    retries,seconds,iops,bytes_per_second,client_cpu_seconds,server_cpu_seconds,p50_us,p90_us,p99_us,p99.9_us,p99.99_us,\
    max_us,mean_us,deviation_us,min_us,half_round_trip_p50_us,labels";

/// Prints `report`. In the column `run`, `all` is all runs together.
///
/// # Errors
/// Where it cannot be printed.
pub fn print(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{HEAD}")?;
    let mut labels = report.labels.clone();
    if report.interrupted {
        labels.push("interrupted".into());
    }
    let labels = quoted(&labels.join("; "));
    for result in &report.results {
        let half = result.half_round_trip_us.as_ref().and_then(|half| half.p50);
        row(result, "all", &result.all, half, &labels, out)?;
        for (run, number) in result.runs.iter().zip(1..) {
            row(result, &number.to_string(), run, None, &labels, out)?;
        }
    }
    out.flush()
}

fn row(
    result: &Measured,
    run: &str,
    figures: &Figures,
    half: Option<f64>,
    labels: &str,
    out: &mut dyn Write,
) -> io::Result<()> {
    let or_empty = |value: Option<f64>| value.map_or_else(String::new, |value| value.to_string());
    let mut cells = vec![
        result.rung.to_string(),
        result.operation.to_string(),
        result.mixed_reads_percent.map_or_else(String::new, |reads| reads.to_string()),
        result.pattern.to_string(),
        result.block_bytes.to_string(),
        result.depth.to_string(),
        result.lanes.to_string(),
        or_empty(result.rate),
        run.to_owned(),
        figures.count.to_string(),
        figures.errors.to_string(),
        figures.retries.map_or_else(String::new, |retries| retries.to_string()),
        figures.seconds.to_string(),
        figures.iops.to_string(),
        figures.bytes_per_second.to_string(),
        figures.client_cpu_seconds.to_string(),
        or_empty(figures.server_cpu_seconds),
    ];
    cells.extend(figures.latency_us.columns().map(|(_, figure)| or_empty(figure)));
    cells.extend([or_empty(figures.latency_us.min), or_empty(half), labels.to_owned()]);
    writeln!(out, "{}", cells.join(","))
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}
