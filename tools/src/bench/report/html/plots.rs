//! The plots of results: how latencies are distributed, their percentiles, and what a sweep found.

use super::svg::{Axis, Kind, Plot, Series};
use crate::bench::figures::Measured;
use crate::bench::units::short;

/// A result under the name and in the colour that it has in plots.
#[derive(Clone, Debug)]
pub struct Named<'a> {
    /// Its name.
    pub name: String,
    /// Its colour.
    pub colour: usize,
    /// The result.
    pub result: &'a Measured,
}

/// How latencies are distributed; `None` where there are none. The few longest lie beyond the right edge: on a scale that
/// holds them, all others would be one line.
pub fn distribution(id: &str, what: &str, all: &[Named<'_>]) -> Option<Plot> {
    let edge = |named: &Named<'_>| named.result.all.latency_us.p99.or(named.result.all.latency_us.max);
    let edge = all.iter().filter_map(edge).reduce(f64::max)?;
    let series: Vec<Series> = all.iter().filter_map(steps).map(|series| series.up_to(edge * 1.2)).collect();
    let points = series.iter().flat_map(|series| series.points.iter().copied());
    let most = points.clone().map(|point| point.1).reduce(f64::max)?;
    Some(Plot {
        id: id.to_owned(),
        title: format!("How latencies of {what} are distributed"),
        description: format!(
            "The share of operations at each latency, for {}. The numbers are in the table below.",
            names(all)
        ),
        x: Axis::log("latency, µs; the longest 1 % may lie beyond", points.map(|point| point.0)),
        y: Axis::linear("operations, % in each step", most),
        kind: Kind::Steps,
        series,
    })
}

/// Steps of equal width; those without operations are at zero.
fn steps(named: &Named<'_>) -> Option<Series> {
    let count: u64 = named.result.distribution.iter().map(|bucket| bucket.count).fold(0, u64::saturating_add);
    // 24 steps a decade, as they were counted.
    let begin = |end: f64| end / 10f64.powf(1.0 / 24.0);
    let mut points: Vec<(f64, f64)> = Vec::new();
    for bucket in &named.result.distribution {
        let start = begin(bucket.up_to_us);
        match points.last() {
            None => points.push((start, 0.0)),
            Some((end, _)) if start > end * 1.02 => points.push((start, 0.0)),
            Some(_) => {}
        }
        points.push((bucket.up_to_us, 100.0 * bucket.count as f64 / count as f64));
    }
    (count > 0).then(|| Series { name: named.name.clone(), colour: named.colour, points })
}

/// Which latency how many operations did not exceed; `None` where there are none.
pub fn percentiles(id: &str, what: &str, all: &[Named<'_>]) -> Option<Plot> {
    let most = all.iter().map(|named| named.result.all.count).max().filter(|count| *count > 0)?;
    let series: Vec<Series> = all
        .iter()
        .map(|named| Series {
            name: named.name.clone(),
            colour: named.colour,
            // The longest of n operations is the one that only one in n exceeds or equals.
            points: named
                .result
                .curve
                .iter()
                .map(|point| {
                    (point.percentile.min(100.0 - 100.0 / named.result.all.count.max(2) as f64), point.us)
                })
                .collect(),
        })
        .collect();
    let values = series.iter().flat_map(|series| series.points.iter().map(|point| point.1));
    Some(Plot {
        id: id.to_owned(),
        title: format!("Percentiles of {what}"),
        description: format!(
            "The latency that each share of operations did not exceed, for {}. The numbers are in the table above.",
            names(all)
        ),
        x: Axis::percentiles("percentile", most),
        y: Axis::log("latency, µs", values.collect::<Vec<_>>().into_iter()),
        kind: Kind::Line,
        series,
    })
}

fn names(all: &[Named<'_>]) -> String {
    all.iter().map(|named| named.name.as_str()).collect::<Vec<_>>().join(", ")
}

/// A figure of a sweep, over depths where there are several, else over sizes. One line for each of the rest.
pub fn sweep(
    id: &str,
    title: &str,
    label: &str,
    results: &[&Measured],
    figure: impl Fn(&Measured) -> Option<f64>,
) -> Option<Plot> {
    let sorted = |mut all: Vec<u32>| {
        all.sort_unstable();
        all.dedup();
        all
    };
    let depths = sorted(results.iter().map(|result| result.depth).collect());
    let sizes = sorted(results.iter().map(|result| result.block_bytes).collect());
    let over_depths = depths.len() > 1;
    let lines = if over_depths { &sizes } else { &depths };
    let mut series = Vec::new();
    let rungs: Vec<_> = sorted_rungs(results);
    for rung in &rungs {
        for line in lines {
            let along = |result: &&&Measured| {
                let other = if over_depths { result.block_bytes } else { result.depth };
                result.rung == *rung && other == *line
            };
            let mut points: Vec<(f64, f64)> = results
                .iter()
                .filter(along)
                .filter_map(|result| {
                    let x = if over_depths { result.depth } else { result.block_bytes };
                    Some((f64::from(x), figure(result)?))
                })
                .collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            let what = if over_depths { short(*line) } else { format!("depth {line}") };
            let name = if rungs.len() > 1 { format!("{rung} {what}") } else { what };
            if !points.is_empty() {
                series.push(Series { name, colour: series.len(), points });
            }
        }
    }
    let values: Vec<f64> =
        series.iter().flat_map(|series| series.points.iter().map(|point| point.1)).collect();
    if values.is_empty() {
        return None;
    }
    let x = match over_depths {
        true => {
            Axis::steps("depth", depths.iter().map(|depth| (f64::from(*depth), depth.to_string())).collect())
        }
        false => Axis::steps(
            "size of a block",
            sizes.iter().map(|size| (f64::from(*size), short(*size))).collect(),
        ),
    };
    Some(Plot {
        id: id.to_owned(),
        title: title.to_owned(),
        description: format!(
            "{label} over {}, a line for each {}. The numbers are in the table.",
            if over_depths { "depths" } else { "sizes" },
            if over_depths { "size" } else { "depth" }
        ),
        x,
        y: Axis::log(label, values.into_iter()),
        kind: Kind::Marks,
        series,
    })
}

fn sorted_rungs(results: &[&Measured]) -> Vec<crate::bench::rungs::RungName> {
    let mut rungs: Vec<_> = results.iter().map(|result| result.rung).collect();
    rungs.sort_unstable();
    rungs.dedup();
    rungs
}
