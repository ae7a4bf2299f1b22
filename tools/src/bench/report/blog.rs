//! A block to paste into a blog or an issue: the figures, and all that a reader needs to judge them.

use std::io::{self, Write};

use super::Report;
use super::table::{describe, load, remarks, stages, troubles};
use super::text::{columns, paragraph};
use crate::bench::machine::Machine;
use crate::bench::units::{micros_f64, rate, short, speed};

const MARGIN: usize = 10;

/// Prints `report`.
///
/// # Errors
/// Where it cannot be printed.
pub fn print(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    paragraph(out, "", 0, &format!("kaeru-bench {} {}: {}", report.version, report.preset, report.target))?;
    if let Some(warning) = report.warning() {
        paragraph(out, "", 0, &format!("*** {warning} ***"))?;
    }
    if report.interrupted {
        paragraph(out, "", 0, "*** interrupted: this is what was measured until then ***")?;
    }
    writeln!(out)?;
    remarks(report, MARGIN, out)?;
    if let Some(first) = report.results.first() {
        paragraph(out, "load", MARGIN, &load(report, first))?;
    }
    if let Some(way) = &report.route {
        paragraph(out, "fabric", MARGIN, &describe(way))?;
    }
    machine(out, "client", &report.client)?;
    match &report.server {
        Some(server) => machine(out, "server", server)?,
        None => paragraph(
            out,
            "server",
            MARGIN,
            "not told by this server; run \"kaeru-bench machine --json\" there and give its output with --server-machine",
        )?,
    }
    writeln!(out, "\nfull round trips, latency in µs")?;
    let head = ["RUNG", "OP", "SIZE", "QD", "p50", "p99", "p99.9", "max", "IOPS", "BYTES/S"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for result in &report.results {
        let latency = &result.all.latency_us;
        let times = [latency.p50, latency.p99, latency.p99_9, latency.max].map(micros_f64).to_vec();
        let which = vec![
            result.rung.to_string(),
            result.operation.to_string(),
            short(result.block_bytes),
            result.depth.to_string(),
        ];
        let speeds = vec![rate(result.all.iops), speed(result.all.bytes_per_second)];
        rows.push([which, times, speeds].concat());
    }
    columns(out, 2, &rows)?;
    let failed: u64 = report.results.iter().map(|result| result.all.errors).fold(0, u64::saturating_add);
    stages(report, out)?;
    if failed > 0 {
        writeln!(out, "{failed} operations failed")?;
    }
    troubles(report, out)?;
    out.flush()
}

fn machine(out: &mut dyn Write, end: &str, machine: &Machine) -> io::Result<()> {
    for (at, (name, text)) in machine.lines().into_iter().enumerate() {
        let margin = if at == 0 { end } else { "" };
        paragraph(out, margin, MARGIN, &format!("{name}: {text}"))?;
    }
    Ok(())
}
