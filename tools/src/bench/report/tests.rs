use std::collections::BTreeSet;

use serde_json::Value;

use super::sample::{around, measured, report, sweep, with_stages};
use super::text::WIDTH;
use super::*;
use crate::bench::units;

fn printed(print: fn(&Report, &mut dyn std::io::Write) -> std::io::Result<()>, report: &Report) -> String {
    let mut out = Vec::new();
    print(report, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn json_of(report: &Report) -> Value {
    serde_json::from_str(&printed(json::print, report)).unwrap()
}

/// Everything that is worth showing.
fn all() -> Vec<Report> {
    let mut broken = report();
    broken.results = vec![measured(RungName::Remote, Op::Read, (4096, 1), &[&[]], 7)];
    (broken.problem, broken.interrupted) = (Some("the export is gone".into()), true);
    let mut extreme = report();
    extreme.results = vec![
        measured(RungName::Socket, Op::Write, (8, 1), &[&[1], &[3_600_000_000_000]], 999_999),
        measured(RungName::Fabric, Op::Write, (32 << 20, 1024), &[&[999_999_999; 20_000]], 0),
    ];
    vec![report(), sweep(), with_stages(), broken, extreme, late()]
}

#[test]
fn tables_and_blocks_fit_a_terminal_whatever_the_figures() {
    for report in all() {
        for text in [printed(table::print, &report), printed(blog::print, &report)] {
            let wide: Vec<&str> = text.lines().filter(|line| line.chars().count() > WIDTH).collect();
            assert!(wide.is_empty(), "{wide:#?}");
        }
    }
}

/// In the order table, paste, CSV, JSON, page.
fn every_form(report: &Report) -> [String; 5] {
    [
        printed(table::print, report),
        printed(blog::print, report),
        printed(csv::print, report),
        printed(json::print, report),
        html::page(report),
    ]
}

#[test]
fn what_keeps_figures_from_being_those_of_cards_is_in_every_form_of_output() {
    for report in all() {
        for form in every_form(&report) {
            let words = form.split_whitespace().collect::<Vec<_>>().join(" ");
            for label in
                ["software RDMA: no card is behind rxe0", "loopback: client and server are one machine"]
            {
                assert!(words.contains(label), "{label} is not in {form}");
            }
        }
    }
}

#[test]
fn an_interruption_is_in_every_form_of_output() {
    let mut report = report();
    report.interrupted = true;
    for form in every_form(&report) {
        assert!(form.to_lowercase().contains("interrupted"), "{form}");
    }
}

#[test]
fn units_are_printed_and_every_percentile_is_there() {
    let text = printed(table::print, &report());
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "µs",
        "p50",
        "p90",
        "p99",
        "p99.9",
        "p99.99",
        "max",
        "mean",
        "dev",
        "IOPS",
        "BYTES/S",
        "MB/s",
        "RETRIES",
        "SERVER",
        "by its own count",
        "half",
        "ib_write_lat",
        "fabric",
        "derived",
        "socket - remote",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
}

#[test]
fn stages_say_what_is_measured_and_what_is_derived() {
    let text = printed(table::print, &with_stages());
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "socket → lane",
        "post → completion",
        "server queue",
        "store",
        "lane → socket",
        "measured",
        "told by the server",
        "derived",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
}

#[test]
fn the_block_to_paste_tells_of_both_ends() {
    let mut report = report();
    report.server = Some(report.client.clone());
    let text = printed(blog::print, &report);
    for part in [
        "client",
        "server",
        "kernel: 6.1",
        "governor: performance",
        "card: rxe0",
        "firmware:",
        "link:",
        "PCIe:",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
}

#[test]
fn a_report_survives_json() {
    for report in all() {
        let back: Report = serde_json::from_value(json_of(&report)).unwrap();
        assert_eq!(json_of(&back), json_of(&report));
    }
}

/// The fields of a value, with `[]` for what is in lists.
fn fields(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            map.iter().for_each(|(name, value)| fields(value, &format!("{path}.{name}"), found))
        }
        Value::Array(list) => list.iter().for_each(|value| fields(value, &format!("{path}[]"), found)),
        _ => {
            found.insert(path.trim_start_matches('.').to_owned());
        }
    }
}

#[test]
fn the_fields_of_the_json_are_those_that_are_documented() {
    let documented = include_str!("../REPORT.md");
    let mut found = BTreeSet::new();
    for mut report in all() {
        report.server = Some(report.client.clone());
        fields(&json_of(&report), "", &mut found);
    }
    // Whole figures and latencies are documented once.
    let shorten = |path: &String| {
        let mut path = path.replace("results[].", "");
        for (long, short) in
            [("runs[].", "figures."), ("all.", "figures."), ("server.", "machine."), ("client.", "machine.")]
        {
            if let Some(rest) = path.strip_prefix(long) {
                path = format!("{short}{rest}");
            }
        }
        match path.rsplit_once("_us.") {
            Some((_, name)) => format!("latency.{name}"),
            None => path,
        }
    };
    for path in found.iter().map(shorten) {
        assert!(documented.contains(&format!("`{path}`")), "`{path}` is not in REPORT.md");
    }
}

#[test]
fn csv_has_a_row_for_each_result_and_run_and_as_many_cells_as_heads() {
    let text = printed(csv::print, &report());
    let heads = csv::HEAD.split(',').count();
    assert_eq!(text.lines().count(), 1 + 8 * (1 + 3));
    let staged = printed(csv::print, &with_stages());
    assert_eq!(staged.lines().count(), 1 + 8 * (1 + 3) + 7, "and one for each stage");
    for line in text.lines().chain(staged.lines()) {
        let outside: String = line.split('"').step_by(2).collect();
        assert_eq!(outside.split(',').count(), heads, "{line}");
    }
}

#[test]
fn stages_are_in_every_form_of_output() {
    let report = with_stages();
    for form in [
        printed(table::print, &report),
        printed(blog::print, &report),
        printed(csv::print, &report).replace("-to-", " → ").replace("server-", "server "),
        printed(json::print, &report).replace("-to-", " → ").replace("server-", "server "),
        html::page(&report),
    ] {
        for stage in ["socket → lane", "post → completion", "server queue", "store"] {
            assert!(form.contains(stage), "{stage} is not in {form}");
        }
    }
}

#[test]
fn what_the_user_remarks_is_in_every_form_and_is_no_reason_not_to_compare() {
    let mut report = report();
    (report.labels, report.remarks) = (Vec::new(), vec!["my first try".into()]);
    assert_eq!(report.warning(), None);
    for (form, part) in [
        (printed(table::print, &report), "\nremark   my first try\n"),
        (printed(blog::print, &report), "\nremark    my first try\n"),
        (printed(csv::print, &report), ",\"\",\"my first try\"\n"),
        (html::page(&report), "<p>Remark: my first try</p>"),
    ] {
        assert!(form.contains(part) && !form.contains("NOT COMPARABLE"), "{part} is not in {form}");
    }
    assert_eq!(json_of(&report)["remarks"], serde_json::json!(["my first try"]));
}

#[test]
fn tables_explain_what_is_in_them_and_nothing_else() {
    let legend = |report: &Report| {
        let text = printed(table::print, report);
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let full = legend(&report());
    for part in
        ["dev: the standard deviation", "RETRIES: what was sent again, by the count of the RDMA device"]
    {
        assert!(full.contains(part), "{part} is not in {full}");
    }
    assert!(!full.contains("mixed:"), "{full}");
    let mut other = report();
    other.results.retain(|result| result.rung != RungName::Ram);
    assert!(!legend(&other).contains("too few"), "everything is known");
    other.results[0].mixed_reads_percent = Some(70);
    other.results[1].all.latency_us.p99_99 = None;
    other.route.as_mut().unwrap().fabric = "tcp".into();
    let text = legend(&other);
    for part in
        ["this machine's kernel, on all of its TCP", "- too few operations", "of reads and writes together"]
    {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    let text = legend(&sweep());
    assert!(!text.contains("dev:") && text.contains("- too few operations or runs"), "{text}");
}

#[test]
fn the_page_leaves_out_what_nobody_knows_and_says_first_what_must_not_be_missed() {
    let mut report = report();
    let has =
        |report: &Report, name: &str| html::page(report).contains(&format!("<th scope=\"col\">{name}</th>"));
    assert!(has(&report, "p99.99") && !has(&report, "missed") && !has(&report, "depth"));
    report.results.iter_mut().for_each(|result| result.all.latency_us.p99_99 = None);
    report.results.iter_mut().for_each(|result| result.half_round_trip_us = None);
    assert!(!has(&report, "p99.99"));
    assert!(html::page(&sweep()).contains(">depth</th>") && has(&late(), "missed"));
    let page = html::page(&late());
    assert!(page.find("606 were done").unwrap() < page.find("<ul class=\"keys\">").unwrap());
    assert_eq!(page.matches("606 were done").count(), report.results.len());
}

/// A load of which more was due than could be done.
fn late() -> Report {
    let mut report = report();
    report.remarks = vec!["my first try".into()];
    for result in &mut report.results {
        (result.rate, result.rate_missed, result.all.missed) = (Some(1000.0), Some(606.0), 394);
    }
    report
}

#[test]
fn a_rate_that_was_not_kept_is_in_every_form_of_output() {
    let report = late();
    for form in every_form(&report) {
        assert!(form.contains("394"), "{form}");
    }
    for form in [printed(table::print, &report), printed(blog::print, &report), html::page(&report)] {
        let words = form.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains("1000 operations a second were asked for and 606 were done"), "{form}");
    }
}

#[test]
fn where_no_lane_is_ours_none_is_said_to_spin() {
    let mut report = report();
    assert!(printed(table::print, &report).contains("spin"));
    report.spin.clear();
    for form in [printed(table::print, &report), printed(blog::print, &report), html::page(&report)] {
        assert!(!form.contains("lanes spin"), "{form}");
    }
}

/// The data elements of a page: pointer, value, text.
fn data_of(page: &str) -> Vec<(String, f64, String)> {
    let mut found = Vec::new();
    for part in page.split("<data value=\"").skip(1) {
        let (value, rest) = part.split_once("\" data-at=\"").unwrap();
        let (pointer, rest) = rest.split_once("\">").unwrap();
        let (text, _) = rest.split_once("</data>").unwrap();
        found.push((pointer.to_owned(), value.parse().unwrap(), text.to_owned()));
    }
    found
}

#[test]
fn every_number_of_the_page_is_that_of_the_json_rounded() {
    for report in all() {
        let (page, json) = (html::page(&report), json_of(&report));
        let data = data_of(&page);
        assert!(data.len() > 10);
        for (pointer, value, text) in data {
            let exact = json.pointer(&pointer).and_then(Value::as_f64);
            assert_eq!(exact, Some(value), "{pointer}");
            let shown = match pointer.rsplit('/').next().unwrap() {
                "iops" => units::rate(value),
                "bytes_per_second" => units::speed(value),
                "target_bytes" => kaeru_common::units::Size(value as u64).to_string(),
                "client_cpu_percent" | "server_cpu_percent" => format!("{value:.0} %"),
                "us" => format!("{value:+.2}"),
                "count" | "errors" | "missed" | "retries" => value.to_string(),
                _ => units::micros_f64(Some(value)),
            };
            let is_scaled = pointer.ends_with("/p50") || pointer.ends_with("/p99");
            assert!(text == shown || (is_scaled && text == units::scaled(value).0), "{pointer}: {text}");
        }
    }
}

#[test]
fn the_page_holds_every_figure_and_needs_nobody() {
    let (report, page) = (report(), html::page(&report()));
    let pointers: BTreeSet<String> = data_of(&page).into_iter().map(|(pointer, ..)| pointer).collect();
    for at in 0..report.results.len() {
        for name in ["p50", "p90", "p99", "p99.9", "p99.99", "max", "mean", "deviation"] {
            assert!(pointers.contains(&format!("/results/{at}/all/latency_us/{name}")), "{at} {name}");
        }
    }
    for word in ["<script", "http:", "https:", "@import", "url(", "javascript:", "onload"] {
        assert!(!page.contains(word), "{word} is in the page");
    }
    assert_eq!(page.matches("<svg viewBox=\"0 0 480").count(), 4, "two plots for reads and writes each");
    assert_eq!(page.matches("role=\"img\"").count(), page.matches("<desc").count());
    assert!(page.contains("prefers-color-scheme: dark") && page.contains("@media print"));
}

#[test]
fn a_name_cannot_become_markup() {
    let mut report = report();
    report.target = "<script>alert(1)</script>".into();
    report.command = "\"><img src=x>".into();
    let page = html::page(&report);
    assert!(!page.contains("<script") && !page.contains("<img"), "{page}");
}

#[test]
fn steps_are_the_differences_of_medians_and_add_up() {
    let report = report();
    let reads: Vec<&Step> = report.steps.iter().filter(|step| step.operation == Op::Read).collect();
    let rungs: Vec<RungName> = reads.iter().map(|step| step.to).collect();
    assert_eq!(rungs, [RungName::Fabric, RungName::Remote, RungName::Socket]);
    let total: f64 = reads.iter().map(|step| step.us).sum();
    let top = report.results[6].all.latency_us.p50.unwrap();
    assert!((total - top).abs() < 0.01, "{total} is not {top}");
    assert!(sweep().steps.is_empty(), "one rung alone has no steps");
}

#[test]
fn the_lowest_step_says_all_that_is_in_it_and_no_step_crosses_to_what_is_apart() {
    let without = |gone: &[RungName], apart: &[RungName]| {
        let mut report = report();
        report.results.retain(|result| !gone.contains(&result.rung));
        report.apart = apart.to_vec();
        report.derive_steps();
        report
    };
    let words = |report: &Report| -> Vec<String> {
        report.steps.iter().take(3).map(|step| report.adds(step)).collect()
    };
    assert_eq!(words(&report())[..2], ["the link: cards, cable, memory", "the client's library"]);
    let file = without(&[RungName::Fabric], &[]);
    assert_eq!(
        words(&file)[..2],
        ["network, server and store; the client's library", "NBD on a Unix socket, and its lane"]
    );
    let skipped = without(&[RungName::Remote], &[]);
    assert_eq!(words(&skipped)[1], "the client's library; NBD on a Unix socket, and its lane");
    let apart = without(&[], &[RungName::Socket]);
    assert!(apart.steps.iter().all(|step| step.to != RungName::Socket) && !apart.steps.is_empty());
    let unknown = without(&[RungName::Fabric], &[RungName::Remote, RungName::Socket]);
    assert!(unknown.steps.is_empty());
    for report in [apart, unknown] {
        for form in [printed(table::print, &report), html::page(&report)] {
            assert!(form.contains("not known to lead to"), "{form}");
        }
    }
}

#[test]
fn a_difference_that_chance_may_have_made_is_called_nothing_and_no_other_is() {
    let with = |fabric: &[u64], remote: &[u64]| {
        let mut report = report();
        report.results = [(RungName::Fabric, fabric), (RungName::Remote, remote)]
            .map(|(rung, middles)| {
                let runs: Vec<Vec<u64>> = middles.iter().map(|&middle| around(middle, 1000)).collect();
                let runs: Vec<&[u64]> = runs.iter().map(Vec::as_slice).collect();
                measured(rung, Op::Read, (4096, 1), &runs, 0)
            })
            .to_vec();
        report.route.as_mut().unwrap().fabric = "tcp".into();
        report.derive_steps();
        let words = |text: String| text.split_whitespace().collect::<Vec<_>>().join(" ");
        (
            report.steps[1].us,
            report.steps[1].is_within_spread,
            words(printed(table::print, &report)),
            html::page(&report),
        )
    };
    let (us, within, table, page) = with(&[40_000, 50_000, 45_000], &[38_000, 43_000, 42_000]);
    assert!(us < 0.0 && within);
    assert!(
        table.contains(&format!(
            "remote - fabric ≈ 0 less than the spread of the runs ({us:+.2}): the client"
        )),
        "{table}"
    );
    assert!(page.contains("≈ 0") && page.contains("No bar: not every rung"), "{page}");
    assert!(table.contains("the network and both kernels") && !table.contains("cable"), "{table}");
    let (us, within, table, page) = with(&[40_000, 41_000, 40_500], &[33_000, 33_500, 34_000]);
    assert!(us < 0.0 && !within && !page.contains("≈ 0"));
    assert!(table.contains("less than nothing") && !table.contains("≈ 0"), "{table}");
    let (us, within, _, page) = with(&[40_000, 41_000, 40_500], &[53_000, 53_500, 54_000]);
    assert!(us > 0.0 && !within && !page.contains("No bar"));
    assert!(!with(&[40_000], &[41_000]).1, "one run has no spread");
}

#[test]
fn no_form_of_output_carries_what_a_terminal_would_obey() {
    let evil = "x\u{1b}[2J\u{9b}31m\u{7f}\r\u{8}\u{202e}y";
    let mut report = report();
    report.labels.push(evil.into());
    report.remarks.push(evil.into());
    (report.target, report.command, report.version) = (evil.into(), evil.into(), evil.into());
    report.problem = Some(evil.into());
    report.results[0].first_error = Some(evil.into());
    let machine = &mut report.client;
    (machine.host, machine.kernel, machine.governor) = (Some(evil.into()), Some(evil.into()), evil.into());
    machine.cards[0].what = evil.into();
    report.server = Some(machine.clone());
    let way = report.route.as_mut().unwrap();
    (way.server, way.why, way.device) = (evil.into(), evil.into(), None);
    for print in [table::print, blog::print, csv::print, json::print] {
        let mut out = text::Plain(Vec::new());
        print(&report, &mut out).unwrap();
        let text = String::from_utf8(out.0).unwrap();
        assert!(!text.contains(text::is_obeyed) && text.contains('x'), "{text:?}");
    }
    assert!(!html::page(&report).contains(text::is_obeyed));
}

#[test]
fn failures_are_shown_and_are_no_success() {
    let broken = all().remove(3);
    assert!(report().is_clean() && !broken.is_clean());
    for form in [printed(table::print, &broken), html::page(&broken)] {
        assert!(form.contains("the peer closed the link") && form.contains("the export is gone"), "{form}");
    }
}

#[test]
fn half_a_round_trip_is_shown_where_perftest_has_one_and_nowhere_else() {
    let of = |rung, op| measured(rung, op, (8, 1), &[&around(2000, 1000)], 0).half_round_trip_us;
    let half = of(RungName::Fabric, Op::Write).unwrap();
    let whole = measured(RungName::Fabric, Op::Write, (8, 1), &[&around(2000, 1000)], 0).all.latency_us;
    assert_eq!(half.p50, whole.p50.map(|us| us / 2.0));
    for (rung, op) in
        [(RungName::Fabric, Op::Read), (RungName::Remote, Op::Write), (RungName::Device, Op::Write)]
    {
        assert!(of(rung, op).is_none());
    }
}
