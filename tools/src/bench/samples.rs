//! Latencies, kept in a histogram: any number of them in bounded memory, each to three significant digits.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Latencies above this are kept as this in the histogram; maximum and mean are exact at any length.
const LONGEST: Duration = Duration::from_secs(3600);
/// Buckets of a distribution in one decade.
const PER_DECADE: f64 = 24.0;

/// What one measurement saw.
#[derive(Clone, Debug)]
pub struct Samples {
    histogram: Histogram<u64>,
    min: Duration,
    max: Duration,
    sum: u128,
    /// Of the squares of nanoseconds.
    squares: f64,
}

impl Samples {
    /// None yet.
    ///
    /// # Errors
    /// Never in practice: the bounds are constants.
    pub fn new() -> Result<Self, hdrhistogram::CreationError> {
        let histogram = Histogram::new_with_bounds(1, LONGEST.as_nanos() as u64, 3)?;
        Ok(Self { histogram, min: Duration::MAX, max: Duration::ZERO, sum: 0, squares: 0.0 })
    }

    /// Adds one; allocates nothing.
    pub fn add(&mut self, latency: Duration) {
        self.add_many(latency, 1);
    }

    /// Adds `count` of the same; allocates nothing.
    pub fn add_many(&mut self, latency: Duration, count: u64) {
        let nanos = latency.as_nanos();
        self.histogram.saturating_record_n(nanos.clamp(1, LONGEST.as_nanos()) as u64, count);
        self.min = self.min.min(latency);
        self.max = self.max.max(latency);
        self.sum += nanos * u128::from(count);
        self.squares += (nanos as f64) * (nanos as f64) * count as f64;
    }

    /// Adds all of another's.
    pub fn merge(&mut self, other: &Self) {
        // The bounds are the same, so there is always room.
        let _ = self.histogram.add(&other.histogram);
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
        self.sum += other.sum;
        self.squares += other.squares;
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// The shortest; `None` if there is nothing.
    pub fn min(&self) -> Option<Duration> {
        (self.count() > 0).then_some(self.min)
    }

    /// The longest; `None` if there is nothing.
    pub fn max(&self) -> Option<Duration> {
        (self.count() > 0).then_some(self.max)
    }

    /// The mean; `None` if there is nothing.
    pub fn mean(&self) -> Option<Duration> {
        let nanos = self.sum.checked_div(u128::from(self.count()))?;
        u64::try_from(nanos).ok().map(Duration::from_nanos)
    }

    /// The standard deviation; `None` if there is nothing.
    pub fn deviation(&self) -> Option<Duration> {
        let count = self.count() as f64;
        let mean = self.sum as f64 / count;
        let variance = self.squares / count - mean * mean;
        (count > 0.0).then(|| Duration::from_nanos(variance.max(0.0).sqrt().round() as u64))
    }

    /// The latency that `part` of `whole` samples did not exceed: the nearest-rank percentile, 0.1 % too long at
    /// most. `None` where there are too few samples for it to be more than another name for the longest one.
    pub fn part(&self, part: u32, whole: u32) -> Option<Duration> {
        let (count, part, whole) = (u128::from(self.count()), u128::from(part), u128::from(whole));
        if count * whole.checked_sub(part)? < whole {
            return None;
        }
        // Half a sample below the rank: the histogram rounds up, and a product of fractions must not round past it.
        let rank = (count * part).div_ceil(whole);
        let quantile = (rank as f64 - 0.5) / count as f64;
        let nanos = self.histogram.value_at_quantile(quantile.max(0.0));
        Some(Duration::from_nanos(nanos).clamp(self.min, self.max))
    }

    /// The samples in buckets that are equally wide on a logarithmic scale: the upper end of each that is not empty, in
    /// nanoseconds, and how many are in it.
    pub fn distribution(&self) -> Vec<(f64, u64)> {
        let mut buckets: Vec<(f64, u64)> = Vec::new();
        for value in self.histogram.iter_recorded() {
            let step = ((value.value_iterated_to() as f64).log10() * PER_DECADE).ceil();
            let end = 10f64.powf(step / PER_DECADE);
            match buckets.last_mut() {
                Some((last, count)) if *last == end => *count += value.count_at_value(),
                _ => buckets.push((end, value.count_at_value())),
            }
        }
        buckets
    }

    /// A curve of percentiles (0 to 100) and latencies, denser towards the longest, which is its last point.
    pub fn curve(&self) -> Vec<(f64, Duration)> {
        let mut points: Vec<(f64, Duration)> = Vec::new();
        for value in self.histogram.iter_quantiles(4) {
            let at = Duration::from_nanos(value.value_iterated_to()).clamp(self.min, self.max);
            let percentile = value.quantile_iterated_to().min(1.0) * 100.0;
            // Of a run of equal latencies, its two ends are enough.
            if let [.., before, last] = points[..]
                && before.1 == at
                && last.1 == at
            {
                points.pop();
            }
            points.push((percentile, at));
        }
        points
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn samples(nanos: &[u64]) -> Samples {
        let mut samples = Samples::new().unwrap();
        nanos.iter().for_each(|&nanos| samples.add(Duration::from_nanos(nanos)));
        samples
    }

    /// Slow and obvious: sort them all and take the one at the rank.
    fn oracle(nanos: &[u64], part: usize, whole: usize) -> u64 {
        let mut sorted = nanos.to_vec();
        sorted.sort_unstable();
        let rank = (1..=sorted.len()).find(|rank| rank * whole >= sorted.len() * part).unwrap();
        sorted[rank - 1]
    }

    /// From nanoseconds to minutes, each magnitude as likely as any other, as real latencies with outliers are.
    fn any_latency() -> impl Strategy<Value = u64> {
        (0u32..38, any::<u64>()).prop_map(|(bits, random)| (1 << bits) + random % (1 << bits))
    }

    proptest! {
        #[test]
        fn percentiles_are_those_of_the_sorted_samples(
            nanos in prop::collection::vec(any_latency(), 10_000..11_000),
            part in prop::sample::select(vec![5000u32, 9000, 9900, 9990, 9999]),
        ) {
            let (found, exact) = (samples(&nanos).part(part, 10_000).unwrap().as_nanos() as u64,
                oracle(&nanos, part as usize, 10_000));
            prop_assert!(found >= exact && found - exact <= exact / 1000, "{found} is not {exact}");
        }

        #[test]
        fn all_but_percentiles_is_exact_and_parts_are_as_good_as_the_whole(
            nanos in prop::collection::vec(any_latency(), 2..100),
            cut in 0usize..100,
        ) {
            let (first, second) = nanos.split_at(cut % nanos.len());
            let (mut merged, whole) = (samples(first), samples(&nanos));
            merged.merge(&samples(second));
            for samples in [&merged, &whole] {
                prop_assert_eq!(samples.count(), nanos.len() as u64);
                prop_assert_eq!(samples.max().unwrap().as_nanos() as u64, *nanos.iter().max().unwrap());
                prop_assert_eq!(samples.min().unwrap().as_nanos() as u64, *nanos.iter().min().unwrap());
                let mean = nanos.iter().sum::<u64>() / nanos.len() as u64;
                prop_assert_eq!(samples.mean().unwrap().as_nanos() as u64, mean);
                let mean = nanos.iter().map(|&nanos| nanos as f64).sum::<f64>() / nanos.len() as f64;
                let squares: f64 = nanos.iter().map(|&nanos| (nanos as f64 - mean).powi(2)).sum();
                let exact = (squares / nanos.len() as f64).sqrt();
                let found = samples.deviation().unwrap().as_nanos() as f64;
                prop_assert!((found - exact).abs() <= 1.0 + mean * 1e-6, "{found} is not {exact}");
            }
            prop_assert_eq!(merged.part(1, 2), whole.part(1, 2));
        }

        #[test]
        fn a_distribution_and_a_curve_lose_nobody(nanos in prop::collection::vec(any_latency(), 1..500)) {
            let samples = samples(&nanos);
            let buckets = samples.distribution();
            prop_assert_eq!(buckets.iter().map(|(_, count)| count).sum::<u64>(), nanos.len() as u64);
            prop_assert!(buckets.is_sorted_by(|a, b| a.0 < b.0));
            let curve = samples.curve();
            prop_assert!(curve.is_sorted());
            prop_assert_eq!(curve.last().copied(), Some((100.0, samples.max().unwrap())));
        }
    }

    #[test]
    fn a_percentile_needs_enough_samples() {
        assert_eq!(samples(&[]).part(1, 2), None);
        assert_eq!((samples(&[]).mean(), samples(&[]).deviation(), samples(&[]).max()), (None, None, None));
        assert_eq!(samples(&[7]).part(1, 2), None);
        assert_eq!(samples(&[7, 9]).part(1, 2), Some(Duration::from_nanos(7)));
        assert_eq!(samples(&vec![5; 9999]).part(9999, 10_000), None);
        assert_eq!(samples(&vec![5; 10_000]).part(9999, 10_000), Some(Duration::from_nanos(5)));
    }

    #[test]
    fn hours_do_not_get_lost() {
        let samples = samples(&[0, 10_000_000_000_000]);
        assert_eq!((samples.count(), samples.max()), (2, Some(Duration::from_secs(10_000))));
    }
}
