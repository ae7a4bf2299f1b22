//! What is asked of an export: which operation, and where.

use std::fmt;

/// Bytes of one operation.
pub const BLOCK: u32 = 4096;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Reads.
    Read,
    /// Writes.
    Write,
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
        })
    }
}

/// Where the blocks lie: anywhere, the same places in every run.
#[derive(Clone, Debug)]
pub struct Offsets {
    blocks: u64,
    state: u64,
}

impl Offsets {
    /// Offsets of whole blocks in an export of `size` bytes; `None` where not one fits.
    pub fn new(size: u64) -> Option<Self> {
        let blocks = size / u64::from(BLOCK);
        (blocks > 0).then_some(Self { blocks, state: 0 })
    }

    /// The next one.
    pub fn next_offset(&mut self) -> u64 {
        // SplitMix64; the product's upper half spreads evenly over the blocks.
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        let block = (u128::from(mixed) * u128::from(self.blocks)) >> 64;
        block as u64 * u64::from(BLOCK)
    }
}

/// What writes put on an export: no zeroes, which a store might drop.
pub fn pattern() -> Vec<u8> {
    (0..BLOCK).map(|at| (at % 251) as u8 + 1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn blocks_are_whole_and_all_of_them_are_met() {
        for (size, blocks) in [(4096, 1), (8191, 1), (100 * 4096 + 1, 100)] {
            let mut offsets = Offsets::new(size).unwrap();
            let seen: HashSet<u64> = (0..10_000).map(|_| offsets.next_offset()).collect();
            assert_eq!(seen.len(), blocks);
            assert!(seen.iter().all(|offset| offset % 4096 == 0 && offset + 4096 <= size));
        }
        assert!(Offsets::new(4095).is_none());
        assert!(Offsets::new(u64::MAX).unwrap().next_offset() <= u64::MAX - 4096);
    }
}
