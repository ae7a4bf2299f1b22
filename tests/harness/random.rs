//! Seeded numbers and bytes.

use std::ops::Range;

/// A splitmix64 generator.
#[derive(Clone, Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^= value >> 31;
        ((u128::from(value) * u128::from(bound)) >> 64) as u64
    }

    /// Whether one of `many` equal chances came.
    pub(crate) fn one_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }

    /// That many bytes.
    pub(crate) fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.below(256) as u8).collect()
    }
}

/// Bytes that tell their place and their origin apart.
pub(crate) fn pattern(origin: u64, length: usize) -> Vec<u8> {
    Random(origin.wrapping_mul(0x1234_5678_9abc_def1)).bytes(length)
}

/// Runs `body` with every seed of `seeds`, or with `KAERU_SEED` alone, and says which one failed.
pub(crate) fn with_seeds(seeds: Range<u64>, body: impl Fn(u64)) {
    let seeds = match std::env::var("KAERU_SEED").ok().and_then(|text| text.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None => seeds,
    };
    for seed in seeds {
        let blame = Blame(seed);
        body(seed);
        std::mem::forget(blame);
    }
}

/// Prints its seed if it is dropped, which only a panic does.
struct Blame(u64);

impl Drop for Blame {
    fn drop(&mut self) {
        eprintln!("failed with KAERU_SEED={}", self.0);
    }
}
