//! What a measurement came to: a table for people, JSON for scripts.

use std::io::{self, Write};
use std::time::Duration;

use kaeru_client::nbd::lane::Spin;
use kaeru_common::units::Size;
use serde_json::{Value, json};

use super::args::{Plan, SocketChoice};
use super::route::Way;
use super::runner::Outcome;
use super::workload::BLOCK;

/// A terminal that nobody has widened.
const WIDTH: usize = 80;
/// The percentiles of a report, in thousandths.
const PERMILLES: [(&str, u16); 4] = [("p50", 500), ("p90", 900), ("p99", 990), ("p99.9", 999)];

/// All that is to be said.
#[derive(Clone, Debug)]
pub struct Report {
    /// What was measured, as the user named it.
    pub what: String,
    /// Its size in bytes, once known.
    pub size: Option<u64>,
    /// The way to the server, where one was taken.
    pub way: Option<Way>,
    /// The NBD server that was measured, if it was not our own.
    pub socket: Option<String>,
    /// How lanes of ours waited.
    pub spin: Spin,
    /// The measurements.
    pub outcomes: Vec<Outcome>,
    /// Why the rest could not be measured.
    pub problem: Option<String>,
    /// Whether the user ended it early.
    pub interrupted: bool,
}

impl Report {
    /// A report without measurements.
    pub fn new(plan: &Plan) -> Self {
        let socket = match &plan.socket {
            Some(SocketChoice::Existing(path)) => Some(path.display().to_string()),
            _ => None,
        };
        let target = plan.target.as_ref().map(ToString::to_string);
        Self {
            what: target.or_else(|| socket.clone()).unwrap_or_default(),
            size: None,
            way: None,
            socket,
            spin: plan.spin,
            outcomes: Vec::new(),
            problem: None,
            interrupted: false,
        }
    }

    /// Whether something was measured and nothing failed.
    pub fn is_clean(&self) -> bool {
        let counted = self.outcomes.iter().any(|outcome| outcome.samples.count() > 0);
        counted && self.problem.is_none() && self.outcomes.iter().all(|outcome| outcome.errors == 0)
    }

    /// Prints it for people, within 80 columns unless a name is longer than that.
    ///
    /// # Errors
    /// Where it cannot be printed.
    pub fn print_table(&self, out: &mut impl Write) -> io::Result<()> {
        let size = self.size.map_or_else(String::new, |size| format!(", {}", Size(size)));
        paragraph(out, "export", &format!("{}{size}", self.what))?;
        if let Some(way) = &self.way {
            paragraph(out, "fabric", &describe(way))?;
            if !way.software.is_empty() {
                let text = format!("SOFTWARE, not comparable with RDMA cards: {}", way.software.join("; "));
                paragraph(out, "", &text)?;
            }
        }
        if let Some(socket) = &self.socket {
            paragraph(out, "socket", socket)?;
        }
        let spin = match self.spin {
            _ if self.way.is_none() => String::new(),
            Spin::Always => ", spinning".to_owned(),
            Spin::For(time) => format!(", spinning {} µs before sleeping", time.as_micros()),
        };
        paragraph(out, "load", &format!("4 KiB at random places, one at a time{spin}"))?;
        writeln!(out, "\nfull round trips in µs")?;
        writeln!(
            out,
            "{:6} {:5} {:>7} {:>7} {:>7} {:>8} {:>9} {:>7} {:>8} {:>6}",
            "RUNG", "OP", "p50", "p90", "p99", "p99.9", "max", "mean", "IOPS", "ERRORS"
        )?;
        for outcome in &self.outcomes {
            print_row(outcome, out)?;
        }
        for outcome in &self.outcomes {
            if let Some(error) = &outcome.first_error {
                writeln!(out, "{} {}: {error}", outcome.rung, outcome.op)?;
            }
        }
        if let Some(problem) = &self.problem {
            writeln!(out, "the rest was not measured: {problem}")?;
        }
        if self.interrupted {
            writeln!(out, "interrupted: this is what was measured until then")?;
        }
        out.flush()
    }

    /// Prints it for scripts; times are in microseconds, and `null` where there were too few samples.
    ///
    /// # Errors
    /// Where it cannot be printed.
    pub fn print_json(&self, out: &mut impl Write) -> io::Result<()> {
        let way = self.way.as_ref().map(|way| {
            json!({
                "server": way.server,
                "fabric": way.fabric,
                "address": way.address.to_string(),
                "device": way.device,
                "server_device": way.server_device,
                "why": way.why,
                "software": way.software,
            })
        });
        let spin = match self.spin {
            Spin::Always => json!("always"),
            Spin::For(time) => json!(time.as_secs_f64() * 1e6),
        };
        let report = json!({
            "kaeru_bench": env!("CARGO_PKG_VERSION"),
            "measured": "latency",
            "export": self.what,
            "size": self.size,
            "route": way,
            "socket": self.socket,
            "block_size": BLOCK,
            "depth": 1,
            "spin_us": spin,
            "results": self.outcomes.iter().map(outcome_json).collect::<Vec<_>>(),
            "problem": self.problem,
            "interrupted": self.interrupted,
        });
        writeln!(out, "{report:#}")?;
        out.flush()
    }
}

fn describe(way: &Way) -> String {
    let Way { server, fabric, address, why, .. } = way;
    match (&way.device, &way.server_device) {
        (Some(ours), Some(theirs)) => format!("{fabric}, {ours} here to {theirs} of {server} ({address})"),
        (None, Some(theirs)) => format!("{fabric}, to {theirs} of {server} ({address})"),
        _ => format!("{fabric}, to {server} ({address}): {why}"),
    }
}

/// A word in the margin and a text beside it, wrapped.
fn paragraph(out: &mut impl Write, margin: &str, text: &str) -> io::Result<()> {
    let mut line = format!("{margin:8}");
    let mut is_empty = true;
    for word in text.split(' ') {
        if !is_empty && line.chars().count() + 1 + word.chars().count() > WIDTH {
            writeln!(out, "{line}")?;
            (line, is_empty) = (" ".repeat(8), true);
        }
        if !is_empty {
            line.push(' ');
        }
        line.push_str(word);
        is_empty = false;
    }
    writeln!(out, "{line}")
}

fn print_row(outcome: &Outcome, out: &mut impl Write) -> io::Result<()> {
    let samples = &outcome.samples;
    let [p50, p90, p99, p999] = PERMILLES.map(|(_, part)| cell(samples.permille(part)));
    let (max, mean) = (cell((samples.count() > 0).then(|| samples.max())), cell(samples.mean()));
    writeln!(
        out,
        "{:6} {:5} {p50:>7} {p90:>7} {p99:>7} {p999:>8} {max:>9} {mean:>7} {:>8.0} {:>6}",
        outcome.rung,
        outcome.op.to_string(),
        outcome.iops(),
        outcome.errors
    )
}

/// Microseconds; a tenth matters only where there are few of them.
fn cell(time: Option<Duration>) -> String {
    match time.map(micros) {
        None => "-".to_owned(),
        Some(micros) if micros < 10_000.0 => format!("{micros:.1}"),
        Some(micros) => format!("{micros:.0}"),
    }
}

fn micros(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}

fn outcome_json(outcome: &Outcome) -> Value {
    let samples = &outcome.samples;
    let percentiles: serde_json::Map<String, Value> = PERMILLES
        .iter()
        .map(|&(name, part)| (name.to_owned(), json!(samples.permille(part).map(micros))))
        .collect();
    json!({
        "rung": outcome.rung,
        "operation": outcome.op.to_string(),
        "count": samples.count(),
        "errors": outcome.errors,
        "first_error": outcome.first_error,
        "seconds": outcome.elapsed.as_secs_f64(),
        "iops": outcome.iops(),
        "latency_us": {
            "percentiles": percentiles,
            "max": (samples.count() > 0).then(|| micros(samples.max())),
            "mean": samples.mean().map(micros),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::samples::Samples;
    use crate::bench::workload::Op;

    fn report(latencies: &[Duration], errors: u64) -> Report {
        let mut samples = Samples::new().unwrap();
        latencies.iter().for_each(|&latency| samples.add(latency));
        let first_error = (errors > 0).then(|| "the lane is dead".to_owned());
        let elapsed = Duration::from_secs(2);
        let outcome = Outcome { rung: "remote", op: Op::Write, samples, errors, first_error, elapsed };
        Report {
            what: "10.0.0.1/scratch".into(),
            size: Some(1 << 28),
            way: Some(Way {
                server: "nas".into(),
                fabric: "tcp".into(),
                address: ([10, 0, 0, 1], 17420).into(),
                device: None,
                server_device: None,
                why: "not verbs: mlx4_0, rxe0 has no IP address here; nas offers no RDMA".into(),
                software: vec!["tcp does in software what a card does".into()],
            }),
            socket: None,
            spin: Spin::For(Duration::from_micros(20)),
            outcomes: vec![outcome],
            problem: None,
            interrupted: false,
        }
    }

    fn table(report: &Report) -> String {
        let mut out = Vec::new();
        report.print_table(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_table_fits_a_terminal_whatever_the_figures() {
        for micros in [3, 400, 9_999, 123_456, 9_999_999] {
            let text = table(&report(&vec![Duration::from_micros(micros); 2_000_000], 0));
            assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        }
    }

    #[test]
    fn the_table_says_what_was_measured_and_how() {
        let text = table(&report(&vec![Duration::from_nanos(12_340); 2000], 0));
        for part in ["256 MiB", "not verbs", "SOFTWARE", "µs", "12.3", "1000"] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
    }

    #[test]
    fn failures_are_shown_and_are_no_success() {
        let (good, bad) = (report(&[Duration::from_micros(1)], 0), report(&[], 7));
        assert!(good.is_clean() && !bad.is_clean());
        let text = table(&bad);
        assert!(text.contains("7\n") && text.contains("remote write: the lane is dead"), "{text}");
    }

    #[test]
    fn json_has_the_same_figures_and_null_for_what_is_not_known() {
        let mut out = Vec::new();
        report(&[Duration::from_nanos(12_340); 2], 0).print_json(&mut out).unwrap();
        let value: Value = serde_json::from_slice(&out).unwrap();
        let result = &value["results"][0];
        assert_eq!((result["count"].as_u64(), result["errors"].as_u64()), (Some(2), Some(0)));
        assert_eq!(result["latency_us"]["max"].as_f64(), Some(12.34));
        assert_eq!(result["latency_us"]["percentiles"]["p50"].as_f64(), Some(12.34));
        assert!(result["latency_us"]["percentiles"]["p99.9"].is_null());
        assert_eq!(value["route"]["fabric"], "tcp");
    }
}
