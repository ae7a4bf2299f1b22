//! Tables for people, within 80 columns unless a name is longer than that.

use std::io::{self, Write};

use kaeru_common::units::Size;

use super::Report;
use super::text::{columns, paragraph};
use crate::bench::figures::{Figures, Measured};
use crate::bench::route::Way;
use crate::bench::rungs::RungName;
use crate::bench::units::{micros_f64, rate, short, speed};

/// The margin of the head.
const MARGIN: usize = 9;

/// Prints `report`.
///
/// # Errors
/// Where it cannot be printed.
pub fn print(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    head(report, out)?;
    if !report.results.is_empty() {
        latencies(report, out)?;
        throughput(report, out)?;
        steps(report, out)?;
        stages(report, out)?;
    }
    tail(report, out)?;
    out.flush()
}

fn head(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let size = report.target_bytes.map_or_else(String::new, |size| format!(", {}", Size(size)));
    paragraph(out, "export", MARGIN, &format!("{}{size}", report.target))?;
    if let Some(way) = &report.route {
        paragraph(out, "fabric", MARGIN, &describe(way))?;
    }
    if let Some(warning) = report.warning() {
        paragraph(out, "", MARGIN, &warning)?;
    }
    remarks(report, MARGIN, out)?;
    if let Some(first) = report.results.first() {
        paragraph(out, "load", MARGIN, &load(report, first))?;
    }
    Ok(())
}

/// What the user wants to have said.
pub(super) fn remarks(report: &Report, margin: usize, out: &mut dyn Write) -> io::Result<()> {
    report.remarks.iter().try_for_each(|remark| paragraph(out, "remark", margin, remark))
}

/// The load in words.
pub(super) fn load(report: &Report, first: &Measured) -> String {
    let Measured { pattern, lanes, runs, mixed_reads_percent, .. } = first;
    let block = match report.is_sweep() {
        true => "blocks and depths as below".to_owned(),
        false => format!("{}, depth {}", crate::bench::units::block(first.block_bytes), first.depth),
    };
    let lanes = if *lanes == 1 { "1 lane".to_owned() } else { format!("{lanes} lanes") };
    let runs = if runs.len() == 1 { "1 run".to_owned() } else { format!("{} runs", runs.len()) };
    let mix = mixed_reads_percent.map_or_else(String::new, |reads| format!(", {reads} % reads"));
    let pace = match first.rate {
        Some(wanted) => {
            format!(", {} operations a second asked for, latency from when each was due", rate(wanted))
        }
        None => String::new(),
    };
    let has_lanes =
        |result: &Measured| matches!(result.rung, RungName::Fabric | RungName::Remote | RungName::Socket);
    let spin = match !report.spin.is_empty() && report.results.iter().any(has_lanes) {
        true => format!("; {}", report.spin),
        false => String::new(),
    };
    format!("{pattern}, {block}, {lanes}{mix}{pace}; {runs} of each{spin}")
}

/// The way in words.
pub(super) fn describe(way: &Way) -> String {
    let Way { server, fabric, address, why, .. } = way;
    match (&way.device, &way.server_device) {
        (Some(ours), Some(theirs)) => format!("{fabric}, {ours} here to {theirs} of {server} ({address})"),
        (None, Some(theirs)) => format!("{fabric}, to {theirs} of {server} ({address})"),
        _ => format!("{fabric}, to {server} ({address}): {why}"),
    }
}

/// The columns that say which result a row is about.
fn which(result: &Measured, is_sweep: bool) -> Vec<String> {
    let mut cells = vec![result.rung.to_string(), result.operation.to_string()];
    if is_sweep {
        cells.extend([short(result.block_bytes), result.depth.to_string()]);
    }
    cells
}

fn which_head(is_sweep: bool) -> Vec<String> {
    let all: &[&str] = if is_sweep { &["RUNG", "OP", "SIZE", "QD"] } else { &["RUNG", "OP"] };
    all.iter().map(ToString::to_string).collect()
}

fn latencies(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let sweep = report.is_sweep();
    writeln!(out, "\nlatency in µs, full round trips")?;
    let names = ["p50", "p90", "p99", "p99.9", "p99.99", "max", "mean", "dev"];
    // A sweep has two columns more, and tails say little there.
    let shown: Vec<&str> =
        names.into_iter().filter(|name| !sweep || !["p99.99", "dev"].contains(name)).collect();
    let mut rows = vec![[which_head(sweep), shown.iter().map(ToString::to_string).collect()].concat()];
    for result in &report.results {
        let row = |figures: [(&str, Option<f64>); 8]| -> Vec<String> {
            let wanted = figures.into_iter().filter(|(name, _)| shown.contains(name));
            wanted.map(|(_, figure)| micros_f64(figure)).collect()
        };
        rows.push([which(result, sweep), row(result.all.latency_us.columns())].concat());
        if let Some(half) = &result.half_round_trip_us {
            let name = vec![" half".to_owned(), result.operation.to_string()];
            let name = if sweep { [name, which(result, true)[2..].to_vec()].concat() } else { name };
            rows.push([name, row(half.columns())].concat());
        }
        if let Some(uncorrected) = &result.uncorrected_us {
            let name = vec![" begun".to_owned(), result.operation.to_string()];
            let name = if sweep { [name, which(result, true)[2..].to_vec()].concat() } else { name };
            rows.push([name, row(uncorrected.columns())].concat());
        }
    }
    columns(out, 2, &rows)?;
    if report.results.iter().any(|result| result.half_round_trip_us.is_some()) {
        paragraph(
            out,
            "half:",
            6,
            "half a round trip, to be held against ib_write_lat. It halves a write there and one back, \
            this halves a write and its acknowledgement: near, where the wire takes most of the time",
        )?;
    }
    if report.has_rate() {
        paragraph(
            out,
            "begun:",
            7,
            "from when the operation was begun, which hides how long it waited for that",
        )?;
    }
    Ok(())
}

fn throughput(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let sweep = report.is_sweep();
    writeln!(out, "\nthroughput, processors, and the spread of the median over the runs")?;
    let head =
        ["IOPS", "BYTES/S", "CPU", "SERVER", "ERRORS", "RETRIES", "MEDIAN, µs"].map(str::to_owned).to_vec();
    let mut rows = vec![[which_head(sweep), head].concat()];
    for result in &report.results {
        let Figures { iops, bytes_per_second, errors, retries, .. } = &result.all;
        let percent =
            |percent: Option<f64>| percent.map_or("-".to_owned(), |percent| format!("{percent:.0} %"));
        let (ours, theirs) = (percent(result.all.client_cpu_percent), percent(result.all.server_cpu_percent));
        let spread = result.median_spread_us.map_or("-".to_owned(), |(low, high)| {
            format!("{} to {}", micros_f64(Some(low)), micros_f64(Some(high)))
        });
        let retries = retries.map_or("-".to_owned(), |retries| retries.to_string());
        let through = vec![rate(*iops), speed(*bytes_per_second)];
        let rest = vec![ours, theirs, errors.to_string(), retries, spread];
        rows.push([which(result, sweep), through, rest].concat());
    }
    columns(out, 2, &rows)?;
    let server = match report.results.iter().any(|result| result.all.server_cpu_percent.is_some()) {
        true => "SERVER: of the server, by its own count, for all of its clients",
        false => "of the server: not told",
    };
    paragraph(out, "CPU:", 5, &format!("of kaeru-bench, in per cent of one processor; {server}"))?;
    legend(report, out)
}

/// What else stands in the tables and does not explain itself.
fn legend(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let results = &report.results;
    if results.iter().any(|result| result.mixed_reads_percent.is_some()) {
        paragraph(out, "mixed:", 7, "CPU, SERVER and RETRIES of each row are of reads and writes together")?;
    }
    if results.iter().any(|result| result.all.retries.is_some()) {
        let who = match report.is_tcp() {
            true => "this machine's kernel, on all of its TCP connections",
            false => "the RDMA device",
        };
        paragraph(out, "RETRIES:", 9, &format!("what was sent again, by the count of {who}"))?;
    }
    if !report.is_sweep() {
        paragraph(out, "dev:", 5, "the standard deviation")?;
    }
    let unknown = |result: &Measured| {
        let Figures { client_cpu_percent, server_cpu_percent, retries, latency_us, .. } = &result.all;
        let is_short = latency_us.columns().iter().any(|(_, figure)| figure.is_none());
        let is_untold = client_cpu_percent.is_none() || server_cpu_percent.is_none() || retries.is_none();
        is_short || is_untold || result.median_spread_us.is_none()
    };
    if results.iter().any(unknown) {
        paragraph(out, "-", 5, "too few operations or runs for it, or not known")?;
    }
    Ok(())
}

/// What is said of a difference that chance may have made.
pub(super) const WITHIN: &str = "less than the spread of the runs";

/// Why rungs are no part of the steps.
pub(super) fn apart(report: &Report) -> Option<String> {
    let rungs: Vec<&str> = report.apart.iter().map(|rung| rung.word()).collect();
    (!rungs.is_empty()).then(|| {
        format!(
            "{}: not known to lead to the same export over the same fabric, so no difference is taken",
            rungs.join(", ")
        )
    })
}

fn steps(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let apart = apart(report);
    if report.steps.is_empty() {
        return apart.map_or(Ok(()), |text| writeln!(out).and_then(|()| paragraph(out, "", 0, &text)));
    }
    writeln!(out, "\nwhere the time goes, in µs (derived: differences of medians)")?;
    let mut rows = Vec::new();
    for step in &report.steps {
        let what = match step.from {
            None => step.to.word().to_owned(),
            Some(from) => format!("{} - {from}", step.to),
        };
        let op = step.operation.to_string();
        let (us, adds) = (format!("{:+.2}", step.us), report.adds(step));
        rows.push(match step.is_within_spread {
            true => vec![op, what, "≈ 0".to_owned(), format!("{WITHIN} ({us}): {adds}")],
            false => vec![op, what, us, adds],
        });
    }
    let widest = rows.iter().map(|row| row[1].len()).max().unwrap_or(0);
    for row in rows {
        let lead = format!("{:5} {:widest$} {:>9}", row[0], row[1], row[2]);
        paragraph(out, &lead, 5 + 1 + widest + 1 + 9 + 2, &row[3])?;
    }
    apart.map_or(Ok(()), |text| paragraph(out, "", 0, &text))
}

pub(super) fn stages(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let sweep = report.is_sweep();
    let head = ["STAGE", "p50", "p99", "max", "mean", "KNOWN"].map(str::to_owned).to_vec();
    let mut rows = vec![[which_head(sweep), head].concat()];
    for result in &report.results {
        for (at, stage) in result.stages.iter().enumerate() {
            let latency = &stage.latency_us;
            let cells = [latency.p50, latency.p99, latency.max, latency.mean].map(micros_f64).to_vec();
            let (title, source) = (stage.stage.title().to_owned(), stage.source.clone());
            let mut which = which(result, sweep);
            if at > 0 {
                which.iter_mut().for_each(String::clear);
            }
            rows.push([which, vec![title], cells, vec![source]].concat());
        }
    }
    if rows.len() == 1 {
        return Ok(());
    }
    writeln!(out, "\nstages of each operation, in µs")?;
    columns(out, if sweep { 5 } else { 3 }, &rows)
}

/// What went wrong, and is to be known beside the figures.
pub(super) fn troubles(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    for result in &report.results {
        if let Some(remark) = result.rate_remark() {
            paragraph(out, "", 0, &remark)?;
        }
        if let Some(error) = &result.first_error {
            paragraph(out, "", 0, &format!("{}: {error}", result.title()))?;
        }
    }
    match &report.problem {
        Some(problem) => paragraph(out, "", 0, &format!("the rest was not measured: {problem}")),
        None => Ok(()),
    }
}

fn tail(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    troubles(report, out)?;
    if report.interrupted {
        writeln!(out, "interrupted: this is what was measured until then")?;
    }
    Ok(())
}
