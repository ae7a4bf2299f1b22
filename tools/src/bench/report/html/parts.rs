//! The parts of a page beside its plots.

use std::fmt::Write;

use kaeru_common::units::Size;

use super::text::{NONE, escape, figure, table};
use crate::bench::figures::Measured;
use crate::bench::machine::Machine;
use crate::bench::report::table::{WITHIN, apart, describe, load};
use crate::bench::report::{Report, Step};
use crate::bench::units::{micros_f64, rate, scaled, short, speed};
use crate::bench::workload::Op;

const STYLE: &str = include_str!("style.css");

/// A whole page.
pub fn page_of(title: &str, body: &str, footer: &str) -> String {
    let title = escape(title);
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">\
         <link rel=\"icon\" href=\"data:,\"><title>{title}</title><style>\n{STYLE}</style></head>\n\
         <body><main>{body}<footer>{footer}</footer></main></body></html>\n"
    )
}

/// What was measured, and what it must not be taken for.
pub fn head(report: &Report) -> String {
    let size = match report.target_bytes {
        Some(bytes) => format!(", {}", figure("/target_bytes", Some(bytes as f64), &Size(bytes).to_string())),
        None => String::new(),
    };
    let when = utc(report.began_unix_seconds);
    let mut out = format!(
        "<header><p class=\"tool\">kaeru-bench {}</p><h1>{} of {}</h1><p>{when}{size}</p>",
        escape(&report.version),
        escape(&capital(&report.preset)),
        escape(&report.target)
    );
    if let Some(first) = report.results.first() {
        let _ = write!(out, "<p>{}</p>", escape(&capital(&load(report, first))));
    }
    if let Some(way) = &report.route {
        let way = describe(way);
        let way = way.strip_prefix("tcp").map_or_else(|| capital(&way), |rest| format!("TCP{rest}"));
        let _ = write!(out, "<p>{}</p>", escape(&way));
    }
    for remark in &report.remarks {
        let _ = write!(out, "<p>Remark: {}</p>", escape(remark));
    }
    out.push_str("</header>");
    for warning in [
        report.warning(),
        report.interrupted.then(|| "Interrupted: this is what was measured until then.".into()),
        report.problem.as_ref().map(|problem| format!("The rest was not measured: {problem}")),
    ]
    .into_iter()
    .flatten()
    {
        let _ = write!(out, "<p class=\"warn\" role=\"note\">{}</p>", escape(&warning));
    }
    out.push_str(&errors(report));
    out
}

/// The figures to look at first.
pub fn keys(report: &Report) -> String {
    if report.is_sweep() {
        return String::new();
    }
    let mut out = String::from("<ul class=\"keys\">");
    let mut any = false;
    for (at, result) in report.results.iter().enumerate().filter(|(_, result)| result.rung.is_on_the_way()) {
        let latency = &result.all.latency_us;
        let what = format!("{} {}", result.rung, result.operation);
        let pointer = |field: &str| format!("/results/{at}/all/{field}");
        let us = |name: &str, value: Option<f64>| {
            let (shown, unit) = value.map_or_else(|| (String::new(), "µs"), scaled);
            (figure(&pointer(&format!("latency_us/{name}")), value, &shown), unit)
        };
        let ((p50, p50_unit), (p99, p99_unit)) = (us("p50", latency.p50), us("p99", latency.p99));
        let iops = figure(&pointer("iops"), Some(result.all.iops), &rate(result.all.iops));
        let bytes = result.all.bytes_per_second;
        let bytes = figure(&pointer("bytes_per_second"), Some(bytes), &speed(bytes));
        let (big, unit, more) = match report.preset.as_str() {
            "bandwidth" => (bytes, "", format!("{iops} IOPS, median {p50} {p50_unit}")),
            "iops" => (iops, "IOPS", format!("median {p50} {p50_unit}, p99 {p99} {p99_unit}")),
            _ => (p50, p50_unit, format!("p99 {p99} {p99_unit}, {iops} IOPS")),
        };
        any = true;
        let _ = write!(
            out,
            "<li><span class=\"what\"><span class=\"swatch k{}\"></span>{}</span><span class=\"big\">{big} <span class=\"unit\">{unit}</span></span>\
             <span class=\"more\">{more}</span></li>",
            result.rung as usize,
            escape(&what)
        );
    }
    out.push_str("</ul>");
    if any { out } else { String::new() }
}

/// Where the microseconds go.
pub fn ladder(report: &Report) -> String {
    let mut out = String::new();
    for op in Op::ALL {
        let steps: Vec<(usize, &Step)> =
            report.steps.iter().enumerate().filter(|(_, step)| step.operation == op).collect();
        if steps.is_empty() {
            continue;
        }
        let _ = write!(out, "<figure><h3>One {op}</h3>");
        // A rung that came out faster than the one below it has no part in a whole.
        if steps.iter().all(|(_, step)| step.us > 0.0) {
            let total: f64 = steps.iter().map(|(_, step)| step.us).sum();
            out.push_str("<div class=\"bar\" aria-hidden=\"true\">");
            for (_, step) in &steps {
                let share = 100.0 * step.us / total;
                let _ =
                    write!(out, "<span class=\"b{}\" style=\"width:{share:.2}%\"></span>", step.to as usize);
            }
            out.push_str("</div>");
        } else {
            out.push_str("<p class=\"none\">No bar: not every rung took longer than the one below it, so these are no parts of a whole.</p>");
        }
        let rows: Vec<Vec<String>> = steps
            .iter()
            .map(|(at, step)| {
                let what =
                    step.from.map_or_else(|| step.to.to_string(), |from| format!("{} − {from}", step.to));
                let us = figure(&format!("/steps/{at}/us"), Some(step.us), &format!("{:+.2}", step.us));
                let adds = escape(&report.adds(step));
                let (us, adds) = match step.is_within_spread {
                    true => ("≈ 0".to_owned(), format!("{WITHIN} ({us}): {adds}")),
                    false => (us, adds),
                };
                let what = format!("<span class=\"swatch k{}\"></span>{what}", step.to as usize);
                vec![what, us, format!("<span class=\"meaning\">{adds}</span>")]
            })
            .collect();
        out.push_str(
            &table("Derived: differences of medians", &["rung", "µs", "what it is"], 1, &rows)
                .replace("<td><span class=\"meaning\">", "<td class=\"text\"><span class=\"meaning\">"),
        );
        out.push_str("</figure>");
    }
    let apart =
        apart(report).map_or_else(String::new, |text| format!("<p class=\"none\">{}</p>", escape(&text)));
    match out.is_empty() {
        true => apart,
        false => format!("<h2>Where the time goes</h2><div class=\"ladder\">{out}</div>{apart}"),
    }
}

/// The heads of the cells that say which result a row is about.
const WHICH: [&str; 4] = ["rung", "operation", "block", "depth"];

/// How many of them do: where there is no sweep, all rows have the same block and depth, which stand in the head.
fn names(report: &Report) -> usize {
    if report.is_sweep() { 4 } else { 2 }
}

/// The cells that say which result a row is about.
fn which(result: &Measured, names: usize) -> Vec<String> {
    let lanes = if result.lanes > 1 { format!(" × {}", result.lanes) } else { String::new() };
    let mix = result.mixed_reads_percent.map_or_else(String::new, |reads| format!(" ({reads} % reads)"));
    let all = [
        result.rung.to_string(),
        format!("{}{mix}", result.operation),
        short(result.block_bytes),
        format!("{}{lanes}", result.depth),
    ];
    all[..names].to_vec()
}

/// All figures in two tables.
pub fn results(report: &Report) -> String {
    let (mut times, mut rest, names) = (Vec::new(), Vec::new(), names(report));
    for (at, result) in report.results.iter().enumerate() {
        let all = &result.all;
        let us = |under: &str, name: &str, value| {
            let name = if name == "dev" { "deviation" } else { name };
            figure(&format!("/results/{at}/{under}/{name}"), value, &micros_f64(value))
        };
        let row = |under: &str, latency: &crate::bench::figures::Latency| -> Vec<String> {
            latency.columns().into_iter().map(|(name, value)| us(under, name, value)).collect()
        };
        times.push([which(result, names), row("all/latency_us", &all.latency_us)].concat());
        if let Some(half) = &result.half_round_trip_us {
            let mut name = which(result, names);
            name[1].push_str(", half round trip");
            times.push([name, row("half_round_trip_us", half)].concat());
        }
        if let Some(begun) = &result.uncorrected_us {
            let mut name = which(result, names);
            name[1].push_str(", from when begun");
            times.push([name, row("uncorrected_us", begun)].concat());
        }
        let number = |field: &str, value: Option<f64>, shown: &str| {
            figure(&format!("/results/{at}/all/{field}"), value, shown)
        };
        let count = |field: &str, value: u64| number(field, Some(value as f64), &value.to_string());
        let spread = match result.median_spread_us {
            None => NONE.to_owned(),
            Some((low, high)) => {
                let of = |place, value| {
                    let pointer = format!("/results/{at}/median_spread_us/{place}");
                    figure(&pointer, Some(value), &micros_f64(Some(value)))
                };
                format!("{} to {}", of(0, low), of(1, high))
            }
        };
        let percent = |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:.0} %"));
        let retries = all.retries.map_or_else(String::new, |retries| retries.to_string());
        rest.push(
            [
                which(result, names),
                vec![
                    number("iops", Some(all.iops), &rate(all.iops)),
                    number("bytes_per_second", Some(all.bytes_per_second), &speed(all.bytes_per_second)),
                    number("client_cpu_percent", all.client_cpu_percent, &percent(all.client_cpu_percent)),
                    number("server_cpu_percent", all.server_cpu_percent, &percent(all.server_cpu_percent)),
                    count("count", all.count),
                    count("errors", all.errors),
                    number("missed", result.rate.map(|_| all.missed as f64), &all.missed.to_string()),
                    number("retries", all.retries.map(|retries| retries as f64), &retries),
                    spread,
                ],
            ]
            .concat(),
        );
    }
    if times.is_empty() {
        return String::new();
    }
    let caption = |what: &str| match report.warning() {
        Some(warning) => format!("{what}. {warning}"),
        None => what.to_owned(),
    };
    let server = match report.results.iter().any(|result| result.all.server_cpu_seconds.is_some()) {
        true => "of the server by its own count, for all of its clients",
        false => "of the server: not told",
    };
    let place = &WHICH[..names];
    let head = ["p50", "p90", "p99", "p99.9", "p99.99", "max", "mean", "deviation"];
    let times =
        table(&caption("Latency in µs, full round trips"), &[place, &head[..]].concat(), names, &times);
    let head = [
        "IOPS",
        "bytes/s",
        "client CPU",
        "server CPU",
        "operations",
        "errors",
        "missed",
        "retries",
        "median of runs, µs",
    ];
    let what = format!(
        "Throughput; processor time in per cent of one processor, of kaeru-bench and {server}; and the lowest and the highest \
         median of the runs"
    );
    let rest = table(&caption(&what), &[place, &head[..]].concat(), names, &rest);
    format!("<h2>Figures</h2>{times}{rest}{}", buckets(report))
}

/// Rates that were not kept, and why operations failed.
fn errors(report: &Report) -> String {
    let of = |result: &Measured| {
        let error = result.first_error.as_ref().map(|error| format!("{}: {error}", result.title()));
        result.rate_remark().into_iter().chain(error)
    };
    let all: Vec<String> = report.results.iter().flat_map(of).map(|text| escape(&text)).collect();
    if all.is_empty() {
        String::new()
    } else {
        format!("<p class=\"warn\" role=\"note\">{}</p>", all.join("<br>"))
    }
}

/// The numbers behind the distributions.
fn buckets(report: &Report) -> String {
    if report.is_sweep() {
        return String::new();
    }
    let mut out = String::new();
    for (at, result) in report.results.iter().enumerate().filter(|(_, result)| result.all.count > 0) {
        let rows: Vec<Vec<String>> = result
            .distribution
            .iter()
            .enumerate()
            .map(|(place, bucket)| {
                let pointer = format!("/results/{at}/distribution/{place}");
                vec![
                    figure(
                        &format!("{pointer}/up_to_us"),
                        Some(bucket.up_to_us),
                        &micros_f64(Some(bucket.up_to_us)),
                    ),
                    figure(&format!("{pointer}/count"), Some(bucket.count as f64), &bucket.count.to_string()),
                ]
            })
            .collect();
        let title = format!("{} {}: the numbers behind its distribution", result.rung, result.operation);
        let table = table(&title, &["up to, µs", "operations"], 0, &rows);
        let _ = write!(out, "<details><summary>{}</summary>{table}</details>", escape(&title));
    }
    out
}

/// Where the time of single operations went.
pub fn stages(report: &Report) -> String {
    let (mut rows, names) = (Vec::new(), names(report));
    for (at, result) in report.results.iter().enumerate() {
        for (place, stage) in result.stages.iter().enumerate() {
            let us = |name: &str, value| {
                figure(&format!("/results/{at}/stages/{place}/latency_us/{name}"), value, &micros_f64(value))
            };
            let latency = &stage.latency_us;
            let stage = vec![
                stage.stage.title().replace("  ", "&emsp;"),
                us("p50", latency.p50),
                us("p99", latency.p99),
                us("max", latency.max),
                us("mean", latency.mean),
                escape(&stage.source),
            ];
            rows.push([which(result, names), stage].concat());
        }
    }
    if rows.is_empty() {
        return String::new();
    }
    let head = [&WHICH[..names], &["stage", "p50", "p99", "max", "mean", "known"]].concat();
    format!(
        "<h2>Stages</h2>{}",
        table("Where the time of each operation went, in µs", &head, names + 1, &rows)
    )
}

/// The machines at both ends.
pub fn ends(report: &Report) -> String {
    let mut out = String::from("<h2>Both ends</h2><div class=\"ends\">");
    out.push_str(&end("Client", Some(&report.client)));
    out.push_str(&end("Server", report.server.as_ref()));
    out.push_str("</div>");
    out
}

fn end(name: &str, machine: Option<&Machine>) -> String {
    let lines = machine.map(Machine::lines).unwrap_or_default();
    let mut out = format!("<div><h3>{name}</h3>");
    if lines.is_empty() {
        out.push_str("<p>Not told by this server.</p>");
    }
    out.push_str("<dl>");
    for (name, text) in lines {
        let _ = write!(out, "<dt>{name}</dt><dd>{}</dd>", escape(&text));
    }
    out.push_str("</dl></div>");
    out
}

/// What ends the page.
pub fn footer(report: &Report) -> String {
    let warning = report.warning().map_or_else(String::new, |warning| format!("<br>{}", escape(&warning)));
    format!("<code>{}</code>{warning}", escape(&report.command))
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// A moment as people write it.
pub fn utc(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Days since the first of March of the year 0, in years of 400 that repeat exactly.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month) = (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let year = era * 400 + year + u64::from(month <= 2);
    format!("{year}-{month:02}-{day:02} {:02}:{:02} UTC", rest / 3600, rest / 60 % 60)
}

#[cfg(test)]
mod tests {
    use super::utc;

    #[test]
    fn moments_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_827_696, "2000-02-29 12:34 UTC"),
            (1_767_225_599, "2025-12-31 23:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00 UTC"),
        ] {
            assert_eq!(utc(seconds), text);
        }
    }
}
