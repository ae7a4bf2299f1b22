//! One self-contained page: plots, tables, the machines at both ends. No script, no request to anywhere; light and dark,
//! narrow and wide, and on paper.
//!
//! Every number in it names the place in the report that it comes from, as a JSON pointer in `data-at`, and carries the
//! exact value beside the rounded one that is shown.

pub mod parts;
pub mod plots;
pub mod svg;
pub mod text;

use self::parts::{ends, head, keys, ladder, page_of, results, stages};
use self::plots::{Named, distribution, percentiles, sweep};
use self::svg::Plot;
use self::text::escape;
use super::Report;
use crate::bench::figures::Measured;
use crate::bench::workload::Op;

/// More results than this in one plot are a thicket.
const MOST_IN_A_PLOT: usize = 8;

/// The page.
pub fn page(report: &Report) -> String {
    let mut body = head(report);
    body.push_str(&keys(report));
    body.push_str(&ladder(report));
    body.push_str(&match report.is_sweep() {
        true => sweep_plots(report),
        false => latency_plots(report),
    });
    body.push_str(&results(report));
    body.push_str(&stages(report));
    body.push_str(&ends(report));
    page_of(&format!("{} of {}", report.preset, report.target), &body, &parts::footer(report))
}

/// A plot in its frame. What keeps it from being about cards stands under it.
pub fn figure(plot: &Plot, warning: Option<&str>) -> String {
    let warning = warning.map_or_else(String::new, |warning| {
        format!("<figcaption><span class=\"label\">{}</span></figcaption>", escape(warning))
    });
    format!("<figure><h3>{}</h3>{}{}{warning}</figure>", escape(&plot.title), plot.legend(), plot.svg())
}

fn latency_plots(report: &Report) -> String {
    let warning = report.warning();
    let mut out = String::new();
    for op in Op::ALL {
        let of_op = report.results.iter().filter(|result| result.operation == op && result.all.count > 0);
        let named: Vec<Named<'_>> = of_op
            .take(MOST_IN_A_PLOT)
            .map(|result| Named { name: result.rung.to_string(), colour: result.rung as usize, result })
            .collect();
        // What is only compared with lies far to the left and is one line.
        let on_the_way: Vec<Named<'_>> =
            named.iter().filter(|named| named.result.rung.is_on_the_way()).cloned().collect();
        let shown = if on_the_way.is_empty() { &named } else { &on_the_way };
        let plots = [
            distribution(&format!("distribution-{op}"), &format!("{op}s"), shown),
            percentiles(&format!("percentiles-{op}"), &format!("{op}s"), &named),
        ];
        out.extend(plots.iter().flatten().map(|plot| figure(plot, warning.as_deref())));
    }
    if out.is_empty() { out } else { format!("<h2>Latency</h2><div class=\"plots\">{out}</div>") }
}

/// What a plot shows of a result.
type FigureOf = fn(&Measured) -> Option<f64>;

fn sweep_plots(report: &Report) -> String {
    let warning = report.warning();
    let mut out = String::new();
    for op in Op::ALL {
        let of_op: Vec<&Measured> = report.results.iter().filter(|result| result.operation == op).collect();
        let wanted: [(&str, &str, &str, FigureOf); 4] = [
            ("bytes", "Bytes a second", "MB/s", |result| Some(result.all.bytes_per_second / 1e6)),
            ("iops", "Operations a second", "IOPS", |result| Some(result.all.iops)),
            ("p50", "Median latency", "µs", |result| result.all.latency_us.p50),
            ("p99", "Latency that 99 % do not exceed", "µs", |result| result.all.latency_us.p99),
        ];
        for (name, title, unit, figure_of) in wanted {
            let plot =
                sweep(&format!("sweep-{name}-{op}"), &format!("{title}, {op}s"), unit, &of_op, figure_of);
            out.extend(plot.iter().map(|plot| figure(plot, warning.as_deref())));
        }
    }
    if out.is_empty() { out } else { format!("<h2>Sweep</h2><div class=\"plots\">{out}</div>") }
}
