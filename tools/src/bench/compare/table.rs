//! A comparison for people, within 80 columns unless a name is longer than that.

use std::io::{self, Write};

use super::{ADVICE, Comparison, Verdicts};
use crate::bench::report::text::{columns, paragraph};
use crate::bench::units::{micros_f64, rate};

/// Prints `comparison`.
///
/// # Errors
/// Where it cannot be printed.
pub(super) fn print(comparison: &Comparison, out: &mut dyn Write) -> io::Result<()> {
    for file in &comparison.files {
        file.remarks
            .iter()
            .try_for_each(|remark| paragraph(out, "", 0, &format!("{}, remark: {remark}", file.name)))?;
    }
    for caution in &comparison.cautions {
        paragraph(out, "", 0, caution)?;
    }
    for row in &comparison.rows {
        writeln!(out, "\n{}", row.title)?;
        let head = ["", "median, µs", "of its runs", "p99, µs", "IOPS", "of its runs"];
        let mut lines = vec![head.map(str::to_owned).to_vec()];
        for (file, entry) in comparison.files.iter().zip(&row.entries) {
            let Some(entry) = entry else { continue };
            let range = |spread: Option<(f64, f64)>, shown: fn(f64) -> String| {
                spread.map_or("-".to_owned(), |(low, high)| format!("{} to {}", shown(low), shown(high)))
            };
            lines.push(vec![
                format!("  {}", file.name),
                micros_f64(entry.median_us),
                range(entry.median_spread_us, |value| micros_f64(Some(value))),
                micros_f64(entry.p99_us),
                rate(entry.iops),
                range(entry.iops_spread, rate),
            ]);
        }
        columns(out, 1, &lines)?;
        for verdict in &row.verdicts {
            let mark = match verdict.outcome {
                Verdicts::Better => "+",
                Verdicts::Worse => "-",
                Verdicts::Alike => "=",
                Verdicts::Unknown => "?",
            };
            paragraph(out, mark, 2, &verdict.text)?;
        }
    }
    if comparison.rows.is_empty() {
        writeln!(out, "the reports have no load in common")?;
    }
    comparison.alone.iter().try_for_each(|text| paragraph(out, "", 0, &format!("not compared: {text}")))?;
    writeln!(out)?;
    comparison.trust().map_or(Ok(()), |text| paragraph(out, "", 0, &text))?;
    paragraph(out, "", 0, ADVICE)?;
    out.flush()
}
