//! A comparison as a page: the plots of all reports laid over one another.

use std::fmt::Write;

use super::{ADVICE, Comparison, Verdicts, is_alike};
use crate::bench::report::Report;
use crate::bench::report::html::figure;
use crate::bench::report::html::parts::page_of;
use crate::bench::report::html::plots::{Named, distribution, percentiles};
use crate::bench::report::html::text::{escape, figure as number, table};
use crate::bench::units::{micros_f64, rate};

/// Plots of more loads than this are left out; their figures are not.
const MOST_PLOTS: usize = 8;

/// The page. Its numbers name places in the JSON of the comparison.
pub(super) fn page(comparison: &Comparison, reports: &[Report]) -> String {
    let names: Vec<&str> = comparison.files.iter().map(|file| file.name.as_str()).collect();
    let title = names.join(", ");
    let mut body = format!(
        "<header><p class=\"tool\">kaeru-bench compare</p><h1>{}</h1><p>All are compared with {}.</p></header>",
        escape(&title),
        escape(names.first().unwrap_or(&""))
    );
    for file in &comparison.files {
        for remark in &file.remarks {
            let _ = write!(body, "<p>{}, remark: {}</p>", escape(&file.name), escape(remark));
        }
    }
    for caution in &comparison.cautions {
        let _ = write!(body, "<p class=\"warn\" role=\"note\">{}</p>", escape(caution));
    }
    for (at, row) in comparison.rows.iter().enumerate() {
        let _ = write!(body, "<h2>{}</h2>", escape(&row.title));
        for verdict in &row.verdicts {
            let class = match verdict.outcome {
                Verdicts::Better => "verdict better",
                Verdicts::Worse => "verdict worse",
                Verdicts::Alike | Verdicts::Unknown => "verdict none",
            };
            let _ = write!(body, "<p class=\"{class}\">{}</p>", escape(&verdict.text));
        }
        if at < MOST_PLOTS {
            body.push_str(&plots(comparison, reports, at));
        }
        body.push_str(&figures(comparison, at));
    }
    for alone in &comparison.alone {
        let _ = write!(body, "<p class=\"none\">Not compared: {}</p>", escape(alone));
    }
    for text in comparison.trust().iter().map(String::as_str).chain([ADVICE]) {
        let _ = write!(body, "<p>{}</p>", escape(text));
    }
    page_of(&format!("Comparison of {title}"), &body, &escape(&warning(reports).unwrap_or_default()))
}

/// What must not be missed at any plot, once; all cautions stand at the top.
fn warning(reports: &[Report]) -> Option<String> {
    let mut warnings: Vec<String> = reports.iter().filter_map(Report::warning).collect();
    warnings.dedup();
    (!warnings.is_empty()).then(|| warnings.join("; "))
}

fn plots(comparison: &Comparison, reports: &[Report], at: usize) -> String {
    let Some(first) = reports
        .first()
        .and_then(|report| report.results.iter().find(|result| result.title() == comparison.rows[at].title))
    else {
        return String::new();
    };
    let named: Vec<Named<'_>> = reports
        .iter()
        .zip(&comparison.files)
        .enumerate()
        .filter_map(|(colour, (report, file))| {
            let result = report.results.iter().find(|result| is_alike(first, result))?;
            Some(Named { name: file.name.clone(), colour, result })
        })
        .collect();
    let what = format!("{} {}s", first.rung, first.operation);
    let plots = [
        distribution(&format!("distribution-{at}"), &what, &named),
        percentiles(&format!("percentiles-{at}"), &what, &named),
    ];
    let warning = warning(reports);
    let figures: String = plots.iter().flatten().map(|plot| figure(plot, warning.as_deref())).collect();
    format!("<div class=\"plots\">{figures}</div>")
}

fn figures(comparison: &Comparison, at: usize) -> String {
    let mut rows = Vec::new();
    for (file, entry) in comparison.rows[at].entries.iter().enumerate() {
        let Some(entry) = entry else { continue };
        let pointer = |field: &str| format!("/rows/{at}/entries/{file}/{field}");
        let range = |field: &str, spread: Option<(f64, f64)>, shown: fn(f64) -> String| match spread {
            None => number("", None, ""),
            Some((low, high)) => {
                let of =
                    |place, value| number(&pointer(&format!("{field}/{place}")), Some(value), &shown(value));
                format!("{} to {}", of(0, low), of(1, high))
            }
        };
        let us = |value| micros_f64(Some(value));
        rows.push(vec![
            format!("<span class=\"swatch k{}\"></span>{}", file % 8, escape(&comparison.files[file].name)),
            number(&pointer("runs"), Some(entry.runs as f64), &entry.runs.to_string()),
            number(&pointer("median_us"), entry.median_us, &micros_f64(entry.median_us)),
            range("median_spread_us", entry.median_spread_us, us),
            number(&pointer("p99_us"), entry.p99_us, &micros_f64(entry.p99_us)),
            number(&pointer("iops"), Some(entry.iops), &rate(entry.iops)),
            range("iops_spread", entry.iops_spread, rate),
            number(&pointer("errors"), Some(entry.errors as f64), &entry.errors.to_string()),
        ]);
    }
    let head = ["report", "runs", "median, µs", "of its runs", "p99, µs", "IOPS", "of its runs", "errors"];
    table(&comparison.rows[at].title, &head, 1, &rows)
}
