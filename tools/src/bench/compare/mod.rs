//! `kaeru-bench compare`: do reports differ by more than their runs differ among themselves?
//!
//! There is a verdict only where the runs of one report all lie on one side of all runs of the other. Runs that overlap
//! may differ by chance; one run has no spread at all.

mod html;
mod table;

use std::io::Write;
use std::path::Path;

use kaeru_common::units::Size;
use serde::Serialize;

use super::args::Compare;
use super::figures::{Figures, Measured, spread};
use super::files::Page;
use super::machine::Machine;
use super::report::Report;
use super::report::json::{ReadError, read};
use super::units::{micros_f64, rate};

/// What no figure can tell.
pub const ADVICE: &str = "A verdict says that reports differ, not why: other load, heat and clocks count as well. Measure in \
    turn, A B A B, and with --repeat 5.";

/// What JSON of this kind calls itself.
pub const SCHEMA: &str = "kaeru-bench-compare/1";

/// Reports side by side.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// The reports; all others are compared with the first.
    pub files: Vec<Compared>,
    /// The loads that the first and at least one other have.
    pub rows: Vec<Row>,
    /// The loads that could not be compared.
    pub alone: Vec<String>,
    /// What keeps the reports from being compared like with like.
    pub cautions: Vec<String>,
    /// Verdicts that runs could give: as many comparisons were made.
    pub comparisons: usize,
    /// So many of them would find a difference, on average, if there were none.
    pub by_chance: f64,
}

impl Comparison {
    /// How far verdicts can be trusted; `None` where there is none.
    pub fn trust(&self) -> Option<String> {
        (self.comparisons > 0).then(|| {
            let Self { comparisons, by_chance, .. } = self;
            format!(
                "{comparisons} comparisons were made, and chance alone would find a difference in {by_chance:.1} of them where \
                 there is none; with --repeat 5 it finds one in {:.0}",
                odds((5, 5))
            )
        })
    }
}

/// A report.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// What to call it.
    pub name: String,
    /// What was measured.
    pub target: String,
    /// Its labels.
    pub labels: Vec<String>,
    /// What its user wants to have said.
    pub remarks: Vec<String>,
}

/// A load at a place.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// In words.
    pub title: String,
    /// In the order of the files; absent where one did not measure it.
    pub entries: Vec<Option<Entry>>,
    /// How the others differ from the first.
    pub verdicts: Vec<Verdict>,
}

/// What one report found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Entry {
    /// Runs.
    pub runs: usize,
    /// The median latency.
    pub median_us: Option<f64>,
    /// The lowest and the highest median of the runs.
    pub median_spread_us: Option<(f64, f64)>,
    /// 99 % took no longer.
    pub p99_us: Option<f64>,
    /// Operations a second.
    pub iops: f64,
    /// The lowest and the highest of the runs.
    pub iops_spread: Option<(f64, f64)>,
    /// Operations that failed.
    pub errors: u64,
}

/// How a file differs from the first.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// The place of the file.
    pub file: usize,
    /// `latency` or `throughput`.
    pub of: &'static str,
    /// What is so.
    pub outcome: Verdicts,
    /// By how many per cent it is above the first.
    pub percent: Option<f64>,
    /// In a sentence.
    pub text: String,
}

/// What can be so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdicts {
    /// All of its runs are better than all of the first's.
    Better,
    /// All of its runs are worse than all of the first's.
    Worse,
    /// The runs overlap.
    Alike,
    /// There is no spread to judge by, or operations failed.
    Unknown,
}

/// Reads the files, prints how they differ, and writes the page where one is wanted.
///
/// # Errors
/// Where a file is no report, or something cannot be written.
pub fn run(wanted: &Compare, out: &mut dyn Write) -> Result<(), Box<dyn std::error::Error>> {
    let reports = wanted.files.iter().map(|path| read(path)).collect::<Result<Vec<Report>, ReadError>>()?;
    let comparison = compare(&names(&wanted.files), &reports);
    // First: whoever reads our output may leave early, as `head` does.
    if let Some(path) = &wanted.html {
        Page::create(path)?.write(&html::page(&comparison, &reports))?;
    }
    if wanted.json {
        serde_json::to_writer_pretty(&mut *out, &comparison).map_err(std::io::Error::from)?;
        writeln!(out)?;
    } else {
        table::print(&comparison, out)?;
    }
    Ok(())
}

/// The names of files without what they have in common.
fn names(files: &[impl AsRef<Path>]) -> Vec<String> {
    let stem = |path: &Path| path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    let stems: Vec<String> = files.iter().map(|path| stem(path.as_ref())).collect();
    let is_twin = |name: &String| stems.iter().filter(|other| *other == name).count() > 1;
    let whole = |path: &Path| path.display().to_string();
    files
        .iter()
        .zip(&stems)
        .map(|(path, stem)| if is_twin(stem) { whole(path.as_ref()) } else { stem.clone() })
        .collect()
}

/// Whether two results are of the same load at the same place.
pub(super) fn is_alike(a: &Measured, b: &Measured) -> bool {
    let load = |result: &Measured| {
        let Measured {
            rung, operation, mixed_reads_percent, pattern, block_bytes, depth, lanes, rate, ..
        } = *result;
        (rung, operation, mixed_reads_percent, pattern, block_bytes, depth, lanes, rate.map(f64::to_bits))
    };
    load(a) == load(b)
}

/// Compares.
pub fn compare(names: &[String], reports: &[Report]) -> Comparison {
    let files = names.iter().zip(reports).map(|(name, report)| Compared {
        name: name.clone(),
        target: report.target.clone(),
        labels: report.labels.clone(),
        remarks: report.remarks.clone(),
    });
    let (mut rows, mut alone) = (Vec::new(), Vec::new());
    let (first, others) = match reports.split_first() {
        Some(split) => split,
        None => {
            return Comparison {
                schema: SCHEMA,
                files: Vec::new(),
                rows,
                alone,
                cautions: Vec::new(),
                comparisons: 0,
                by_chance: 0.0,
            };
        }
    };
    for result in &first.results {
        let found =
            |report: &Report| report.results.iter().find(|other| is_alike(result, other)).map(Entry::of);
        let entries: Vec<Option<Entry>> =
            std::iter::once(Some(Entry::of(result))).chain(others.iter().map(found)).collect();
        if entries.iter().flatten().count() < 2 {
            alone.push(format!("{}: only in {}", result.title(), names[0]));
            continue;
        }
        let verdicts = verdicts(names, &entries);
        rows.push(Row { title: result.title(), entries, verdicts });
    }
    for (report, name) in others.iter().zip(&names[1..]) {
        let is_new = |result: &&Measured| !first.results.iter().any(|other| is_alike(result, other));
        alone.extend(
            report
                .results
                .iter()
                .filter(is_new)
                .map(|result| format!("{}: not in {}, only in {name}", result.title(), names[0])),
        );
    }
    let (mut comparisons, mut by_chance) = (0, 0.0);
    for row in &rows {
        for verdict in row.verdicts.iter().filter(|verdict| verdict.outcome != Verdicts::Unknown) {
            let runs = |file: usize| row.entries[file].as_ref().map_or(0, |entry| entry.runs);
            comparisons += 1;
            by_chance += 1.0 / odds((runs(0), runs(verdict.file)));
        }
    }
    let cautions = cautions(names, reports);
    Comparison { schema: SCHEMA, files: files.collect(), rows, alone, cautions, comparisons, by_chance }
}

/// What a difference in figures may come from instead of what was changed on purpose.
type Circumstance = (&'static str, fn(&Report) -> Option<String>);

const CIRCUMSTANCES: [Circumstance; 15] = [
    ("the exports", |report| Some(report.target.clone())),
    ("the kinds of export", |report| report.target_kind.clone()),
    ("the sizes of the exports", |report| report.target_bytes.map(|bytes| Size(bytes).to_string())),
    ("the fabrics", |report| report.route.as_ref().map(|way| way.fabric.clone())),
    ("versions of kaeru-bench", |report| Some(report.version.clone())),
    ("how lanes waited", |report| Some(report.spin.clone())),
    ("the clients", |report| report.client.host.clone()),
    ("the clients' processors", |report| processors(&report.client)),
    ("the clients' kernels", |report| report.client.kernel.clone()),
    ("the clients' governors", |report| Some(report.client.governor.clone())),
    ("the clients' cards", |report| Some(cards(&report.client))),
    ("the servers", |report| report.server.as_ref()?.host.clone()),
    ("the servers' processors", |report| processors(report.server.as_ref()?)),
    ("the servers' kernels", |report| report.server.as_ref()?.kernel.clone()),
    ("the servers' cards", |report| Some(cards(report.server.as_ref()?))),
];

fn processors(machine: &Machine) -> Option<String> {
    Some(format!("{} × {}", machine.processors, machine.processor.as_ref()?))
}

/// All that is known of the cards, but for what only tells their places.
fn cards(machine: &Machine) -> String {
    let known = machine.cards.iter().map(|card| {
        let (firmware, pcie) = (card.firmware.as_deref().unwrap_or("unknown"), card.pcie.as_deref());
        let pcie = pcie.and_then(|pcie| pcie.split(" at ").next()).unwrap_or("unknown");
        format!("{}, firmware {firmware}, PCIe {pcie}, {}", card.what, card.links.join(", "))
    });
    let known: Vec<String> = known.collect();
    if known.is_empty() { "none".to_owned() } else { known.join("; ") }
}

fn cautions(names: &[String], reports: &[Report]) -> Vec<String> {
    let mut cautions = Vec::new();
    for (report, name) in reports.iter().zip(names) {
        if let Some(warning) = report.warning() {
            cautions.push(format!("{name}: {warning}"));
        }
        if report.interrupted {
            cautions.push(format!("{name} was interrupted"));
        }
        if let Some(problem) = &report.problem {
            cautions.push(format!("{name} is not whole: {problem}"));
        }
        cautions.extend(
            report.results.iter().filter_map(Measured::rate_remark).map(|text| format!("{name}: {text}")),
        );
        if report.results.iter().any(|result| result.runs.len() < 2) {
            cautions.push(format!(
                "{name} has loads with one run only, as sweeps have by themselves: there is no verdict on them; measure again \
                 with --repeat 3"
            ));
        }
    }
    for (what, of) in CIRCUMSTANCES {
        let mut found: Vec<String> = Vec::new();
        for value in reports.iter().map(|report| of(report).unwrap_or_else(|| "unknown".to_owned())) {
            if !found.contains(&value) {
                found.push(value);
            }
        }
        if found.len() > 1 {
            cautions.push(format!("{what} differ: {}", found.join(" / ")));
        }
    }
    cautions
}

impl Entry {
    fn of(result: &Measured) -> Self {
        Self {
            runs: result.runs.len(),
            median_us: result.all.latency_us.p50,
            median_spread_us: result.median_spread_us,
            p99_us: result.all.latency_us.p99,
            iops: result.all.iops,
            iops_spread: spread(&result.runs, |run: &Figures| Some(run.iops)),
            errors: result.all.errors,
        }
    }
}

fn verdicts(names: &[String], entries: &[Option<Entry>]) -> Vec<Verdict> {
    let Some(Some(first)) = entries.first() else { return Vec::new() };
    let mut verdicts = Vec::new();
    for (file, entry) in entries.iter().enumerate().skip(1) {
        let Some(entry) = entry else { continue };
        let pair = Pair { names: (&names[0], &names[file]), runs: (first.runs, entry.runs), file };
        let broken = first.errors > 0 || entry.errors > 0;
        let medians = first.median_us.zip(entry.median_us);
        let spreads = first.median_spread_us.zip(entry.median_spread_us);
        verdicts.extend(medians.map(|medians| pair.verdict("latency", medians, spreads, broken)));
        let spreads = first.iops_spread.zip(entry.iops_spread);
        verdicts.push(pair.verdict("throughput", (first.iops, entry.iops), spreads, broken));
    }
    verdicts
}

struct Pair<'a> {
    names: (&'a str, &'a str),
    runs: (usize, usize),
    file: usize,
}

impl Pair<'_> {
    fn verdict(
        &self,
        of: &'static str,
        (before, after): (f64, f64),
        spreads: Option<((f64, f64), (f64, f64))>,
        broken: bool,
    ) -> Verdict {
        let less_is_better = of == "latency";
        let percent = (before > 0.0).then(|| ((after / before - 1.0) * 1000.0).round() / 10.0);
        let outcome = match spreads {
            _ if broken => Verdicts::Unknown,
            None => Verdicts::Unknown,
            Some(((_, high), (low, _))) if low > high => {
                if less_is_better {
                    Verdicts::Worse
                } else {
                    Verdicts::Better
                }
            }
            Some(((low, _), (_, high))) if high < low => {
                if less_is_better {
                    Verdicts::Better
                } else {
                    Verdicts::Worse
                }
            }
            Some(_) => Verdicts::Alike,
        };
        let shown = |value: f64| match less_is_better {
            true => format!("{} µs", micros_f64(Some(value))),
            false => format!("{} IOPS", rate(value)),
        };
        let (first, second) = self.names;
        let by = percent.map_or_else(String::new, |percent| format!(" ({percent:+.1} %)"));
        let values = format!("{} instead of {}{by}", shown(after), shown(before));
        let word = match (of, outcome) {
            ("latency", Verdicts::Better) => "is faster than",
            ("latency", _) => "is slower than",
            (_, Verdicts::Better) => "does more than",
            _ => "does less than",
        };
        let text = match outcome {
            Verdicts::Better | Verdicts::Worse => {
                format!("{second} {word} {first}: {values}; {}", chance(self.runs))
            }
            Verdicts::Alike => {
                format!(
                    "no difference between {first} and {second} beyond the spread of their runs: {values}"
                )
            }
            Verdicts::Unknown if broken => format!("no verdict on {second}: operations failed; {values}"),
            Verdicts::Unknown => {
                format!("no verdict on {second}: one run has no spread, measure with --repeat 3; {values}")
            }
        };
        Verdict { file: self.file, of, outcome, percent, text }
    }
}

/// In how many times runs that are alike lie apart once by chance, all of one below all of the other or above: of all
/// (a + b)! / (a! b!) ways to choose which of them are the first's, two do that.
fn odds((a, b): (usize, usize)) -> f64 {
    let ways: f64 = (1..=a).map(|at| (b + at) as f64 / at as f64).product();
    (ways / 2.0).max(1.0)
}

fn chance((a, b): (usize, usize)) -> String {
    format!("all {a} and {b} runs lie apart, by chance once in {:.0}", odds((a, b)))
}

#[cfg(test)]
mod tests;
