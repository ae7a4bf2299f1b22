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
