//! Latencies, kept in a histogram: any number of them in bounded memory, each to three significant digits.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Latencies above this are kept as this in the histogram; maximum and mean are exact at any length.
const LONGEST: Duration = Duration::from_secs(3600);

/// What one measurement saw.
#[derive(Clone, Debug)]
pub struct Samples {
    histogram: Histogram<u64>,
    max: Duration,
    sum: Duration,
}

impl Samples {
    /// None yet.
    ///
    /// # Errors
    /// Never in practice: the bounds are constants.
    pub fn new() -> Result<Self, hdrhistogram::CreationError> {
        let histogram = Histogram::new_with_bounds(1, LONGEST.as_nanos() as u64, 3)?;
        Ok(Self { histogram, max: Duration::ZERO, sum: Duration::ZERO })
    }

    /// Adds one; allocates nothing.
    pub fn add(&mut self, latency: Duration) {
        self.histogram.saturating_record(latency.as_nanos().clamp(1, LONGEST.as_nanos()) as u64);
        self.max = self.max.max(latency);
        self.sum += latency;
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// The longest; zero if there is none.
    pub fn max(&self) -> Duration {
        self.max
    }

    /// The mean; `None` if there is nothing.
    pub fn mean(&self) -> Option<Duration> {
        let nanos = self.sum.as_nanos().checked_div(u128::from(self.count()))?;
        u64::try_from(nanos).ok().map(Duration::from_nanos)
    }

    /// The latency that `thousandths` of 1,000 samples did not exceed: the nearest-rank percentile, 0.1 % too long at
    /// most. `None` where there are too few samples for it to be more than another name for the longest one.
    pub fn permille(&self, thousandths: u16) -> Option<Duration> {
        let (count, part) = (u128::from(self.count()), u128::from(thousandths));
        if count * (1000 - part) < 1000 {
            return None;
        }
        // Half a sample below the rank: the histogram rounds up, and a product of fractions must not round past it.
        let rank = (count * part).div_ceil(1000);
        let quantile = (rank as f64 - 0.5) / count as f64;
        let nanos = self.histogram.value_at_quantile(quantile.max(0.0));
        Some(Duration::from_nanos(nanos).min(self.max))
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
    fn oracle(nanos: &[u64], thousandths: usize) -> u64 {
        let mut sorted = nanos.to_vec();
        sorted.sort_unstable();
        let rank = (1..=sorted.len()).find(|rank| rank * 1000 >= sorted.len() * thousandths).unwrap();
        sorted[rank - 1]
    }

    /// From nanoseconds to minutes, each magnitude as likely as any other, as real latencies with outliers are.
    fn any_latency() -> impl Strategy<Value = u64> {
        (0u32..38, any::<u64>()).prop_map(|(bits, random)| (1 << bits) + random % (1 << bits))
    }

    proptest! {
        #[test]
        fn percentiles_are_those_of_the_sorted_samples(
            nanos in prop::collection::vec(any_latency(), 1000..3000),
            thousandths in prop::sample::select(vec![500u16, 900, 990, 999]),
        ) {
            let (found, exact) = (samples(&nanos).permille(thousandths).unwrap().as_nanos() as u64,
                oracle(&nanos, thousandths.into()));
            prop_assert!(found >= exact && found - exact <= exact / 1000, "{found} is not {exact}");
        }

        #[test]
        fn maximum_mean_and_count_are_exact(nanos in prop::collection::vec(any_latency(), 1..100)) {
            let samples = samples(&nanos);
            prop_assert_eq!(samples.count(), nanos.len() as u64);
            prop_assert_eq!(samples.max().as_nanos() as u64, *nanos.iter().max().unwrap());
            prop_assert_eq!(samples.mean().unwrap().as_nanos() as u64, nanos.iter().sum::<u64>() / nanos.len() as u64);
        }
    }

    #[test]
    fn a_percentile_needs_enough_samples() {
        assert_eq!(samples(&[]).permille(500), None);
        assert_eq!(samples(&[]).mean(), None);
        assert_eq!(samples(&[7]).permille(500), None);
        assert_eq!(samples(&[7, 9]).permille(500), Some(Duration::from_nanos(7)));
        assert_eq!(samples(&vec![5; 999]).permille(999), None);
        assert_eq!(samples(&vec![5; 1000]).permille(999), Some(Duration::from_nanos(5)));
    }

    #[test]
    fn hours_do_not_get_lost() {
        let samples = samples(&[0, 10_000_000_000_000]);
        assert_eq!((samples.count(), samples.max()), (2, Duration::from_secs(10_000)));
    }
}
