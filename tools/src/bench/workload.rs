//! What is asked of an export: which operations, and where.

use std::fmt;

use serde::{Deserialize, Serialize};

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// A read.
    Read,
    /// A write.
    Write,
}

impl Op {
    /// Both, in the order of their places in arrays.
    pub const ALL: [Self; 2] = [Self::Read, Self::Write];

    /// Its place in arrays.
    pub const fn index(self) -> usize {
        match self {
            Self::Read => 0,
            Self::Write => 1,
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Read => "read",
            Self::Write => "write",
        })
    }
}

/// Which operations follow one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mix {
    /// Only these.
    Only(Op),
    /// This many reads in a hundred operations, the rest writes; neither all nor none.
    Reads(u8),
}

impl Mix {
    /// Whether it changes the export.
    pub fn writes(self) -> bool {
        self != Self::Only(Op::Read)
    }

    /// The operations in it.
    pub fn ops(self) -> &'static [Op] {
        match self {
            Self::Only(Op::Read) => &[Op::Read],
            Self::Only(Op::Write) => &[Op::Write],
            Self::Reads(_) => &Op::ALL,
        }
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Only(op) => op.fmt(f),
            Self::Reads(reads) => write!(f, "mixed, {reads} % reads"),
        }
    }
}

/// In which order blocks are taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    /// Anywhere, the same places in every run.
    #[default]
    Random,
    /// One after the other, each lane in a stretch of its own.
    Sequential,
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Random => "random",
            Self::Sequential => "sequential",
        })
    }
}

/// One lane's operations, without end.
#[derive(Clone, Debug)]
pub struct Steps {
    mix: Mix,
    pattern: Pattern,
    block: u64,
    /// Blocks of this lane's stretch, and the first of them.
    blocks: u64,
    first: u64,
    next: u64,
    state: u64,
}

impl Steps {
    /// The operations of lane `lane` of `lanes` on `size` bytes; `None` where not one block fits.
    pub fn new(mix: Mix, pattern: Pattern, block: u32, size: u64, lane: u32, lanes: u32) -> Option<Self> {
        let (block, lanes) = (u64::from(block), u64::from(lanes.max(1)));
        let all = size.checked_div(block)?;
        if all == 0 {
            return None;
        }
        let lane = u64::from(lane);
        // Where there are fewer blocks than lanes, they share.
        let (first, blocks) = match pattern {
            Pattern::Random => (0, all),
            Pattern::Sequential if all < lanes => (0, all),
            Pattern::Sequential => (all / lanes * lane, all / lanes),
        };
        Some(Self {
            mix,
            pattern,
            block,
            blocks,
            first,
            next: 0,
            state: lane.wrapping_mul(0x5851_f42d_4c95_7f2d),
        })
    }

    /// The next operation and its offset.
    pub fn next_step(&mut self) -> (Op, u64) {
        let mix = self.mix;
        let op = match mix {
            Mix::Only(op) => op,
            Mix::Reads(reads) if self.below(100) < u64::from(reads) => Op::Read,
            Mix::Reads(_) => Op::Write,
        };
        let block = match self.pattern {
            Pattern::Random => self.below(self.blocks),
            Pattern::Sequential => {
                let block = self.next;
                self.next = if block + 1 == self.blocks { 0 } else { block + 1 };
                block
            }
        };
        (op, (self.first + block) * self.block)
    }

    /// A number below `bound`, each as likely as any other.
    fn below(&mut self, bound: u64) -> u64 {
        // SplitMix64; the product's upper half spreads evenly.
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        ((u128::from(mixed) * u128::from(bound)) >> 64) as u64
    }
}

/// What writes put on an export: no zeroes, which a store might drop.
pub fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at % 251) as u8 + 1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn steps(pattern: Pattern, size: u64, lane: u32, lanes: u32) -> Steps {
        Steps::new(Mix::Only(Op::Read), pattern, 4096, size, lane, lanes).unwrap()
    }

    #[test]
    fn blocks_are_whole_and_all_of_them_are_met() {
        for pattern in [Pattern::Random, Pattern::Sequential] {
            for (size, blocks) in [(4096, 1), (8191, 1), (100 * 4096 + 1, 100)] {
                let mut steps = steps(pattern, size, 0, 1);
                let seen: HashSet<u64> = (0..10_000).map(|_| steps.next_step().1).collect();
                assert_eq!(seen.len(), blocks);
                assert!(seen.iter().all(|offset| offset % 4096 == 0 && offset + 4096 <= size));
            }
        }
        assert!(Steps::new(Mix::Only(Op::Read), Pattern::Random, 4096, 4095, 0, 1).is_none());
        assert!(steps(Pattern::Random, u64::MAX, 0, 1).next_step().1 <= u64::MAX - 4096);
    }

    #[test]
    fn in_order_means_in_order_and_lanes_have_stretches_of_their_own() {
        let mut first = steps(Pattern::Sequential, 8 * 4096, 0, 2);
        let mut second = steps(Pattern::Sequential, 8 * 4096, 1, 2);
        let blocks = |steps: &mut Steps| -> Vec<u64> { (0..5).map(|_| steps.next_step().1 / 4096).collect() };
        assert_eq!(blocks(&mut first), [0, 1, 2, 3, 0]);
        assert_eq!(blocks(&mut second), [4, 5, 6, 7, 4]);
        assert_eq!(steps(Pattern::Sequential, 4096, 3, 4).next_step().1, 0);
    }

    #[test]
    fn lanes_go_to_different_places_at_random() {
        let mut lanes: Vec<Steps> = (0..2).map(|lane| steps(Pattern::Random, 1 << 40, lane, 2)).collect();
        assert_ne!(lanes[0].next_step(), lanes[1].next_step());
    }

    #[test]
    fn a_mix_has_the_share_of_reads_that_was_asked_for() {
        let mut steps = Steps::new(Mix::Reads(70), Pattern::Random, 4096, 1 << 30, 0, 1).unwrap();
        let reads = (0..100_000).filter(|_| steps.next_step().0 == Op::Read).count();
        assert!((69_000..71_000).contains(&reads), "{reads}");
        assert!(Mix::Reads(70).writes() && !Mix::Only(Op::Read).writes());
    }
}
