//! Where the bytes of a RAM export lie: windows of the server's memory, read and written by one-sided operations alone.

use std::sync::Arc;

use kaeru_common::fabric::{Op, RegionInfo, RemoteRange};
use kaeru_common::units::ByteRange;

/// Where an export's bytes lie in the server's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Consecutive windows over the export, all of equal length but the last.
    Direct(Arc<[RegionInfo]>),
    /// Nowhere: every read takes zeroes from `source`, every write goes to `sink`, and neither is kept.
    Null {
        /// Zeroes.
        source: RegionInfo,
        /// Where writes end.
        sink: RegionInfo,
    },
}

/// Why a granted layout cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the server granted regions that do not cover the export: {0}; its version may not fit this client")]
pub struct BadLayout(pub(super) &'static str);

impl Layout {
    /// Checks that the layout covers `size` bytes and gives the length that no piece may cross a multiple of.
    ///
    /// # Errors
    /// Where it does not: a server's grant is input like any other.
    pub(super) fn check(&self, size: u64) -> Result<(u64, u64), BadLayout> {
        match self {
            Self::Null { source, sink } => match source.length.min(sink.length) {
                0 => Err(BadLayout("an empty region")),
                longest => Ok((u64::MAX, longest)),
            },
            Self::Direct(regions) => {
                let (first, last) = regions.first().zip(regions.last()).ok_or(BadLayout("no region"))?;
                let equal = regions[..regions.len() - 1].iter().all(|region| region.length == first.length);
                let whole = first.length.checked_mul(regions.len() as u64 - 1);
                match whole.and_then(|whole| whole.checked_add(last.length)) {
                    Some(total)
                        if equal && total >= size && first.length > 0 && last.length <= first.length =>
                    {
                        Ok((first.length, first.length))
                    }
                    _ => Err(BadLayout("windows that are unequal or too short")),
                }
            }
        }
    }

    /// Where `piece`, which crosses no window, lies for an operation of this kind.
    pub(super) fn place(&self, op: Op, piece: ByteRange, window: u64) -> Option<RemoteRange> {
        let length = u32::try_from(piece.length()).ok()?;
        match self {
            Self::Direct(regions) => {
                let region = regions.get(usize::try_from(piece.offset() / window).ok()?)?;
                region.range(piece.offset() % window, length)
            }
            Self::Null { source, .. } if op == Op::Read => source.range(0, length),
            Self::Null { sink, .. } => sink.range(0, length),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(address: u64, length: u64) -> RegionInfo {
        RegionInfo { address, key: 7, length }
    }

    #[test]
    fn windows_have_to_be_equal_and_to_cover_the_export() {
        let direct =
            |lengths: &[u64]| Layout::Direct(lengths.iter().map(|&length| region(0, length)).collect());
        assert_eq!(direct(&[100]).check(100), Ok((100, 100)));
        assert_eq!(direct(&[64, 64, 10]).check(138), Ok((64, 64)));
        assert!(direct(&[64, 64, 10]).check(139).is_err());
        assert!(direct(&[64, 63, 64]).check(1).is_err());
        assert!(direct(&[64, 65]).check(1).is_err());
        assert!(direct(&[]).check(0).is_err());
        assert!(direct(&[0]).check(0).is_err());
        assert!(direct(&[u64::MAX, u64::MAX, 1]).check(1).is_err());
    }

    #[test]
    fn a_piece_is_placed_in_its_window() {
        let layout = Layout::Direct([region(1000, 64), region(5000, 64), region(9000, 10)].into());
        let place = |offset, length| layout.place(Op::Write, ByteRange::new(offset, length).unwrap(), 64);
        assert_eq!(place(0, 64), Some(RemoteRange { address: 1000, key: 7, length: 64 }));
        assert_eq!(place(70, 8), Some(RemoteRange { address: 5006, key: 7, length: 8 }));
        assert_eq!(place(137, 1), Some(RemoteRange { address: 9009, key: 7, length: 1 }));
        assert_eq!(place(137, 2), None);
        assert_eq!(place(192, 1), None);
    }

    #[test]
    fn nothing_reads_from_the_source_and_writes_to_the_sink() {
        let layout = Layout::Null { source: region(1000, 64), sink: region(2000, 64) };
        let piece = ByteRange::new(1 << 50, 64).unwrap();
        assert_eq!(layout.check(u64::MAX), Ok((u64::MAX, 64)));
        assert_eq!(layout.place(Op::Read, piece, u64::MAX).map(|range| range.address), Some(1000));
        assert_eq!(layout.place(Op::Write, piece, u64::MAX).map(|range| range.address), Some(2000));
    }
}
