//! Newtypes for what travels between modules, so that a session cannot be passed as an epoch, and byte-range
//! arithmetic that cannot wrap.
//!
//! Sizes and offsets are bytes in `u64` everywhere; sectors and blocks exist only at the edges that need them.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A half-open range of bytes of an export: `offset..offset + length`, which never wraps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ByteRange {
    offset: u64,
    length: u64,
}

impl ByteRange {
    /// No bytes at all.
    pub const EMPTY: Self = Self { offset: 0, length: 0 };

    /// The range, or `None` where its end does not fit a `u64`.
    pub const fn new(offset: u64, length: u64) -> Option<Self> {
        match offset.checked_add(length) {
            Some(_) => Some(Self { offset, length }),
            None => None,
        }
    }

    /// First byte.
    pub const fn offset(self) -> u64 {
        self.offset
    }

    /// Number of bytes.
    pub const fn length(self) -> u64 {
        self.length
    }

    /// One past the last byte.
    pub const fn end(self) -> u64 {
        self.offset + self.length
    }

    /// Whether the whole range lies in the first `size` bytes.
    pub const fn fits(self, size: u64) -> bool {
        self.end() <= size
    }

    /// The pieces of this range, in order, none longer than `piece` and none crossing a multiple of `boundary`.
    ///
    /// `piece` and `boundary` are at least one byte (zero counts as one). An empty range has no pieces.
    pub fn pieces(self, piece: u64, boundary: u64) -> Pieces {
        Pieces { rest: self, piece: piece.max(1), boundary: boundary.max(1) }
    }
}

/// Iterator of [`ByteRange::pieces`].
#[derive(Clone, Copy, Debug)]
pub struct Pieces {
    rest: ByteRange,
    piece: u64,
    boundary: u64,
}

impl Pieces {
    /// Bytes of the pieces that are still to come.
    pub fn remaining(&self) -> u64 {
        self.rest.length
    }
}

impl Iterator for Pieces {
    type Item = ByteRange;

    fn next(&mut self) -> Option<ByteRange> {
        let ByteRange { offset, length } = self.rest;
        if length == 0 {
            return None;
        }
        let to_boundary = self.boundary - offset % self.boundary;
        let length_now = length.min(self.piece).min(to_boundary);
        self.rest = ByteRange { offset: offset + length_now, length: length - length_now };
        Some(ByteRange { offset, length: length_now })
    }
}

/// A number of bytes as a person types it: `4096`, `64K`, `16G`, `1.5T`; powers of 1024, with an optional `iB` or `B`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Size(pub u64);

/// Why a [`Size`] could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{text}\" is no size: {reason}; write bytes or a power of 1024, such as 512, 64K, 16G or 1.5T")]
pub struct BadSize {
    text: String,
    reason: &'static str,
}

impl FromStr for Size {
    type Err = BadSize;

    fn from_str(text: &str) -> Result<Self, BadSize> {
        let bad = |reason| BadSize { text: text.to_owned(), reason };
        let trimmed = text.trim();
        let digits = trimmed.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(digits);
        let unit = unit.trim().to_ascii_uppercase();
        let shift = match unit.strip_suffix("IB").or(unit.strip_suffix('B')).unwrap_or(&unit) {
            "" if unit == "IB" => return Err(bad("its unit is unknown")),
            "" => 0,
            "K" => 10,
            "M" => 20,
            "G" => 30,
            "T" => 40,
            "P" => 50,
            "E" => 60,
            _ => return Err(bad("its unit is unknown")),
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() || number.ends_with('.') {
            return Err(bad("it does not start with a number"));
        }
        let whole: u128 = whole.parse().map_err(|_| bad("its number does not fit"))?;
        let mut bytes =
            whole.checked_shl(shift).filter(|b| b >> shift == whole).ok_or_else(|| bad("it is too large"))?;
        if !fraction.is_empty() {
            bytes += fraction_bytes(fraction, shift)
                .ok_or_else(|| bad("its fraction is no whole number of bytes"))?;
        }
        u64::try_from(bytes).map(Size).map_err(|_| bad("it is too large"))
    }
}

/// `0.fraction × 2^shift`, when that is a whole number.
fn fraction_bytes(fraction: &str, shift: u32) -> Option<u128> {
    let scale = 10u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let scaled = fraction.parse::<u128>().ok()?.checked_mul(1u128 << shift)?;
    (scaled % scale == 0).then_some(scaled / scale)
}

impl Size {
    /// About this much, for a person: the largest unit that leaves something before the point, and one decimal.
    pub fn about(self) -> String {
        const UNITS: [(&str, u32); 6] =
            [("EiB", 60), ("PiB", 50), ("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
        match UNITS.into_iter().find(|(_, shift)| self.0 >> shift > 0) {
            Some((unit, shift)) => format!("{:.1} {unit}", self.0 as f64 / (1u64 << shift) as f64),
            None => format!("{} bytes", self.0),
        }
    }
}

impl fmt::Display for Size {
    /// The largest binary unit that is exact or has one decimal at most: `16 GiB`, `1.5 TiB`, `241059 bytes`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(&str, u32); 6] =
            [("EiB", 60), ("PiB", 50), ("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
        for (unit, shift) in UNITS {
            let (whole, rest) = (self.0 >> shift, self.0 & ((1 << shift) - 1));
            let tenths = u128::from(rest) * 10;
            if whole > 0 && tenths.is_multiple_of(1 << shift) {
                return match tenths >> shift {
                    0 => write!(f, "{whole} {unit}"),
                    tenth => write!(f, "{whole}.{tenth} {unit}"),
                };
            }
        }
        write!(f, "{} bytes", self.0)
    }
}

/// About this long, for a person: the largest unit that leaves something before the point, and one decimal above
/// nanoseconds.
pub fn about_time(time: Duration) -> String {
    const UNITS: [(&str, u128); 6] = [
        ("d", 86_400_000_000_000),
        ("h", 3_600_000_000_000),
        ("min", 60_000_000_000),
        ("s", 1_000_000_000),
        ("ms", 1_000_000),
        ("µs", 1_000),
    ];
    let nanos = time.as_nanos();
    match UNITS.into_iter().find(|(_, unit)| nanos >= *unit) {
        Some((unit, length)) => format!("{:.1} {unit}", nanos as f64 / length as f64),
        None => format!("{nanos} ns"),
    }
}

/// The name of an export: 1 to 255 bytes of UTF-8 without control characters or `/`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExportName(String);

/// Why a text is no [`ExportName`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{text}\" is no export name: {reason}; use 1 to {max} bytes of text without \"/\" or control characters", max = ExportName::MAX_BYTES)]
pub struct BadExportName {
    text: String,
    reason: &'static str,
}

impl ExportName {
    /// The longest name, in bytes.
    pub const MAX_BYTES: usize = 255;

    /// The text of the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ExportName {
    type Err = BadExportName;

    fn from_str(text: &str) -> Result<Self, BadExportName> {
        let reason = if text.is_empty() {
            "it is empty"
        } else if text.len() > Self::MAX_BYTES {
            "it is too long"
        } else if text.contains('/') || text.contains(char::is_control) {
            "it has a character that no name may have"
        } else {
            return Ok(Self(text.to_owned()));
        };
        Err(BadExportName { text: text.chars().take(64).collect(), reason })
    }
}

impl fmt::Display for ExportName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Names one session of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub u64);

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Counts a session's reconnects; everything from an older epoch is dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Epoch(pub u32);

/// Names one life of a store's content; a RAM export that lost its bytes has a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BootId(pub [u8; 16]);

impl fmt::Display for BootId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A one-time secret that a client presents where its lane connects.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct LaneToken(pub [u8; 16]);

impl fmt::Debug for LaneToken {
    /// A token opens a lane, so it is not printed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LaneToken(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_size_reads_as_people_write_it() {
        for (text, bytes) in [
            ("0", 0),
            ("512", 512),
            ("64K", 65_536),
            ("64k", 65_536),
            ("16M", 16 << 20),
            ("16MiB", 16 << 20),
            ("16 GB", 16 << 30),
            ("1.5T", 3 << 39),
            ("0.5K", 512),
            ("8E", 8 << 60),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
        for text in [
            "",
            "K",
            "-1",
            "1X",
            "1.",
            ".5K",
            "16E",
            "18446744073709551616",
            "0.3K",
            "1 2",
            "IB",
            "1iB",
            "99999999999999999999999999999999999999999",
        ] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_size_prints_exactly() {
        for (bytes, text) in [
            (0, "0 bytes"),
            (241_059, "241059 bytes"),
            (1 << 40, "1 TiB"),
            ((1 << 40) + 1, "1099511627777 bytes"),
            (3 << 39, "1.5 TiB"),
            (1536, "1.5 KiB"),
            (16 << 30, "16 GiB"),
        ] {
            assert_eq!(Size(bytes).to_string(), text);
        }
    }

    #[test]
    fn a_size_says_about_how_much_it_is() {
        for (bytes, text) in
            [(0, "0 bytes"), (1023, "1023 bytes"), (1 << 30, "1.0 GiB"), (24_313_655_296, "22.6 GiB")]
        {
            assert_eq!(Size(bytes).about(), text);
        }
    }

    #[test]
    fn a_time_says_about_how_long_it_is() {
        for (nanos, text) in [
            (0, "0 ns"),
            (999, "999 ns"),
            (12_345, "12.3 µs"),
            (1_000_000, "1.0 ms"),
            (90_000_000_000, "1.5 min"),
            (2 * 86_400_000_000_000, "2.0 d"),
        ] {
            assert_eq!(about_time(Duration::from_nanos(nanos)), text);
        }
    }

    #[test]
    fn an_export_name_has_its_limits() {
        assert!("scratch".parse::<ExportName>().is_ok());
        assert!("かえる".parse::<ExportName>().is_ok());
        assert!("x".repeat(255).parse::<ExportName>().is_ok());
        for bad in ["", "a/b", "a\nb", &"x".repeat(256)] {
            assert!(bad.parse::<ExportName>().is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn pieces_cover_the_range_once_and_in_order(
            offset in any::<u64>(), length in 0u64..100_000, piece in 0u64..9_000, boundary in 0u64..9_000,
        ) {
            let Some(range) = ByteRange::new(offset, length) else { return Ok(()) };
            // Bounded so that one-byte pieces do not make the case slow.
            let (piece, boundary) = (piece.max(7), boundary.max(7));
            let mut next = offset;
            for part in range.pieces(piece, boundary) {
                prop_assert_eq!(part.offset(), next);
                prop_assert!(part.length() >= 1 && part.length() <= piece);
                prop_assert_eq!(part.offset() / boundary, (part.end() - 1) / boundary);
                next = part.end();
            }
            prop_assert_eq!(next, range.end());
        }

        #[test]
        fn a_range_never_wraps(offset in any::<u64>(), length in any::<u64>(), size in any::<u64>()) {
            let wide = u128::from(offset) + u128::from(length);
            match ByteRange::new(offset, length) {
                None => prop_assert!(wide > u128::from(u64::MAX)),
                Some(range) => prop_assert_eq!(range.fits(size), wide <= u128::from(size)),
            }
        }

        #[test]
        fn a_size_survives_print_and_parse(bytes in any::<u64>()) {
            let text = Size(bytes).to_string().replace(" bytes", "");
            prop_assert_eq!(text.parse(), Ok(Size(bytes)));
        }
    }
}
