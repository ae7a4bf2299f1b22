use super::*;
use crate::bench::report::sample::{around, measured, report};
use crate::bench::report::text::WIDTH;
use crate::bench::rungs::RungName;
use crate::bench::workload::Op;

/// A report of one load whose runs have these medians, about.
fn of(middles: &[u64], errors: u64) -> Report {
    let mut report = report();
    let runs: Vec<Vec<u64>> = middles.iter().map(|&middle| around(middle, 1000)).collect();
    let runs: Vec<&[u64]> = runs.iter().map(Vec::as_slice).collect();
    report.results = vec![measured(RungName::Remote, Op::Read, (4096, 1), &runs, errors)];
    report
}

fn outcomes(first: &Report, second: &Report) -> (Verdicts, Verdicts, String) {
    let found = compare(&["a".into(), "b".into()], &[first.clone(), second.clone()]);
    let [latency, throughput] = &found.rows[0].verdicts[..] else { panic!("{found:?}") };
    assert_eq!((latency.of, throughput.of), ("latency", "throughput"));
    (latency.outcome, throughput.outcome, latency.text.clone())
}

#[test]
fn runs_that_lie_apart_give_a_verdict_in_words() {
    let (slow, fast) = (of(&[12_000, 12_100, 12_300], 0), of(&[10_000, 10_300, 10_200], 0));
    let (latency, throughput, text) = outcomes(&slow, &fast);
    assert_eq!((latency, throughput), (Verdicts::Better, Verdicts::Better));
    for part in ["b is faster than a", "µs", "%", "by chance once in 10"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    assert_eq!(outcomes(&fast, &slow).0, Verdicts::Worse);
}

#[test]
fn runs_that_overlap_give_none() {
    let (first, second) = (of(&[12_000, 12_400, 13_000], 0), of(&[12_300, 11_000, 11_500], 0));
    let (latency, _, text) = outcomes(&first, &second);
    assert_eq!(latency, Verdicts::Alike);
    assert!(text.contains("no difference") && text.contains("spread"), "{text}");
}

#[test]
fn one_run_or_failures_give_none() {
    let (several, single) = (of(&[12_000, 12_100], 0), of(&[2_000], 0));
    let (latency, _, text) = outcomes(&several, &single);
    assert_eq!(latency, Verdicts::Unknown);
    assert!(text.contains("--repeat"), "{text}");
    let (latency, _, text) = outcomes(&several, &of(&[2_000, 2_100], 3));
    assert_eq!(latency, Verdicts::Unknown);
    assert!(text.contains("failed"), "{text}");
}

#[test]
fn chance_is_that_of_drawing_one_side_first() {
    assert!(chance((3, 3)).ends_with("once in 10"));
    assert!(chance((5, 5)).ends_with("once in 126"));
    // Counted: of all ways to choose three of six places, two are all the lowest or all the highest.
    let choices: Vec<u32> = (0u32..64).filter(|places| places.count_ones() == 3).collect();
    let apart = choices.iter().filter(|places| [0b111, 0b11_1000].contains(*places)).count();
    assert_eq!(choices.len() as f64 / apart as f64, odds((3, 3)));
}

#[test]
fn it_is_said_how_many_comparisons_were_made_and_how_many_chance_would_decide() {
    let (one, other) = (of(&[12_000, 12_100, 12_300], 0), of(&[10_000, 10_300, 10_200], 0));
    let found = compare(&["a".into(), "b".into(), "c".into()], &[one.clone(), other.clone(), one.clone()]);
    assert_eq!((found.comparisons, (found.by_chance * 10.0).round()), (4, 4.0));
    let mut out = Vec::new();
    table::print(&found, &mut out).unwrap();
    let text = String::from_utf8(out).unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
    for part in
        ["4 comparisons were made", "a difference in 0.4 of them", "with --repeat 5 it finds one in 126"]
    {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    assert!(html::page(&found, &[one.clone(), other, one]).contains("4 comparisons were made"));
    let single = of(&[12_000], 0);
    assert_eq!(compare(&["a".into(), "b".into()], &[single.clone(), single]).trust(), None);
}

#[test]
fn remarks_are_carried_along() {
    let (mut first, second) = (of(&[12_000, 12_100], 0), of(&[12_000, 12_100], 0));
    first.remarks = vec!["the old cable".into()];
    let found = compare(&["a".into(), "b".into()], &[first.clone(), second.clone()]);
    let mut out = Vec::new();
    table::print(&found, &mut out).unwrap();
    assert!(String::from_utf8(out).unwrap().contains("a, remark: the old cable"));
    assert!(html::page(&found, &[first, second]).contains("a, remark: the old cable"));
}

#[test]
fn loads_that_only_one_has_are_named() {
    let (mut first, second) = (of(&[12_000, 12_100], 0), of(&[12_000, 12_100], 0));
    first.results[0].depth = 2;
    let found = compare(&["a".into(), "b".into()], &[first, second]);
    assert!(found.rows.is_empty() && found.alone.len() == 2, "{found:?}");
}

#[test]
fn what_is_not_alike_beside_the_figures_is_said() {
    let (mut first, second) = (of(&[12_000, 12_100], 0), of(&[12_000, 12_100], 0));
    (first.labels, first.client.kernel) = (Vec::new(), None);
    let found = compare(&["a".into(), "b".into()], &[first, second]);
    let text = found.cautions.join("; ");
    assert!(text.contains("b: NOT COMPARABLE") && text.contains("kernels differ"), "{text}");
}

#[test]
fn every_circumstance_that_differs_is_said_and_none_that_does_not() {
    let report = of(&[12_000, 12_100], 0);
    let cautions = |second: &Report| {
        compare(&["a".into(), "b".into()], &[report.clone(), second.clone()]).cautions.join("; ")
    };
    assert!(!cautions(&report).contains("differ"), "{}", cautions(&report));
    type Change = fn(&mut Report);
    let changes: [(Change, &str); 12] = [
        (|report| report.target = "h/y".into(), "exports differ: 10.9.0.1/scratch / h/y"),
        (|report| report.target_kind = Some("null".into()), "kinds of export differ: ram / null"),
        (|report| report.target_bytes = Some(1 << 20), "sizes of the exports differ: 64 MiB / 1 MiB"),
        (|report| report.route.as_mut().unwrap().fabric = "tcp".into(), "fabrics differ: verbs / tcp"),
        (|report| report.version = "9".into(), "versions of kaeru-bench differ"),
        (|report| report.spin = "lanes always spin".into(), "how lanes waited differ"),
        (|report| report.client.host = Some("other".into()), "the clients differ: desk / other"),
        (|report| report.client.processors = 1, "clients' processors differ"),
        (|report| report.client.governor = "powersave".into(), "governors differ"),
        (|report| report.client.cards[0].firmware = Some("2.42".into()), "clients' cards differ"),
        (|report| report.server = Some(report.client.clone()), "the servers' kernels differ: unknown / 6.1"),
        (|report| report.problem = Some("it went".into()), "b is not whole: it went"),
    ];
    for (change, part) in changes {
        let mut second = report.clone();
        change(&mut second);
        let text = cautions(&second);
        assert!(text.contains(part), "{part} is not in {text}");
    }
}

#[test]
fn reports_with_one_run_are_told_how_to_get_a_verdict() {
    let sweep = crate::bench::report::sample::sweep();
    let found = compare(&["a".into(), "b".into()], &[sweep.clone(), sweep]);
    let text = found.cautions.join("; ");
    assert!(text.contains("a has loads with one run only") && text.contains("--repeat 3"), "{text}");
}

/// Whoever made a report may have put anything in it.
#[test]
fn numbers_from_files_may_be_as_large_as_they_like() {
    let mut report = of(&[12_000, 12_100], 0);
    let result = &mut report.results[0];
    for figures in result.runs.iter_mut().chain([&mut result.all]) {
        (figures.count, figures.errors, figures.missed) = (u64::MAX, u64::MAX, u64::MAX);
        (figures.retries, figures.iops) = (Some(u64::MAX), f64::MAX);
        figures.latency_us.p50 = Some(-f64::MAX);
    }
    result.distribution.iter_mut().for_each(|bucket| bucket.count = u64::MAX);
    result.curve.iter_mut().for_each(|point| point.us = f64::MAX);
    result.rate = Some(5e-324);
    result.rate_missed = Some(0.0);
    (report.target_bytes, report.began_unix_seconds) = (Some(u64::MAX), u64::MAX);
    let reports = [report.clone(), report.clone()];
    let found = compare(&["a".into(), "b".into()], &reports);
    table::print(&found, &mut Vec::new()).unwrap();
    for page in [html::page(&found, &reports), crate::bench::report::html::page(&report)] {
        assert!(!page.contains("NaN\"") && page.contains("<svg"), "{page}");
    }
    report.derive_steps();
    for print in [
        crate::bench::report::table::print,
        crate::bench::report::blog::print,
        crate::bench::report::csv::print,
    ] {
        print(&report, &mut Vec::new()).unwrap();
    }
}

#[test]
fn a_comparison_of_three_fits_a_terminal_and_its_page_has_its_numbers() {
    let reports =
        [of(&[12_000, 12_100, 12_300], 0), of(&[10_000, 10_300], 0), of(&[12_111, 99_000, 8_000], 0)];
    let names: Vec<String> = ["before", "after", "after-with-a-longer-name"].map(str::to_owned).to_vec();
    let found = compare(&names, &reports);
    let mut out = Vec::new();
    table::print(&found, &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
    let (page, json) = (html::page(&found, &reports), serde_json::to_value(&found).unwrap());
    let mut count = 0;
    for part in page.split("<data value=\"").skip(1) {
        let (value, rest) = part.split_once("\" data-at=\"").unwrap();
        let (pointer, _) = rest.split_once("\">").unwrap();
        assert_eq!(
            json.pointer(pointer).and_then(serde_json::Value::as_f64),
            value.parse().ok(),
            "{pointer}"
        );
        count += 1;
    }
    assert_eq!(count, 3 * 9);
    assert_eq!(page.matches("<svg viewBox=\"0 0 480").count(), 2);
}

#[test]
fn files_of_the_same_name_keep_their_folders() {
    assert_eq!(names(&["x/a.json", "y/a.json", "b.json"]), ["x/a.json", "y/a.json", "b"]);
}
