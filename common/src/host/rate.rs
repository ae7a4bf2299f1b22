//! The rate of a link, as the kernel prints it: `56 Gb/sec (4X FDR)`.

use std::fmt;

/// How fast a link runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Rate {
    /// What was printed before `Gb/sec`: rounded, and with the line code still on.
    pub signal: f64,
    /// Lanes.
    pub lanes: u32,
    /// The word after the lanes: `FDR`; empty for SDR on most kernels.
    pub word: String,
}

/// Billions of bits of data a second for each lane, once the line code is taken off.
const SPEEDS: [(&str, f64); 10] = [
    ("", 2.0),
    ("SDR", 2.0),
    ("DDR", 4.0),
    ("QDR", 8.0),
    // 10.3125 × 64/66.
    ("FDR10", 10.0),
    // 14.0625 × 64/66.
    ("FDR", 14.0625 * 64.0 / 66.0),
    ("EDR", 25.0),
    ("HDR", 50.0),
    ("NDR", 100.0),
    ("XDR", 200.0),
];

impl Rate {
    /// What the kernel printed.
    pub fn parse(text: &str) -> Option<Self> {
        let (signal, rest) = text.split_once(" Gb/sec (")?;
        let inside = rest.strip_suffix(')')?;
        let (lanes, word) = inside.split_once("X")?;
        let signal: f64 = signal.trim().parse().ok()?;
        let lanes: u32 = lanes.parse().ok()?;
        let word = word.trim();
        let sound = (0.0..=10_000.0).contains(&signal) && (1..=16).contains(&lanes) && word.len() <= 8;
        sound.then(|| Self { signal, lanes, word: word.to_owned() })
    }

    /// Its word, with the one that kernels leave out.
    pub fn speed(&self) -> &str {
        if self.word.is_empty() { "SDR" } else { &self.word }
    }

    /// Gigabits of data a second on InfiniBand. `None` for a word that is new to us.
    pub fn infiniband_gigabits(&self) -> Option<f64> {
        let lane = SPEEDS.into_iter().find(|(word, _)| *word == self.word)?.1;
        Some(lane * f64::from(self.lanes))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}X {}", self.lanes, self.speed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_read_as_kernels_print_them() {
        for (text, gigabits) in [
            ("56 Gb/sec (4X FDR)", 54.545),
            ("40 Gb/sec (4X FDR10)", 40.0),
            ("40 Gb/sec (4X QDR)", 32.0),
            ("10 Gb/sec (4X)", 8.0),
            ("10 Gb/sec (4X SDR)", 8.0),
            ("2.5 Gb/sec (1X)", 2.0),
            ("2.5 Gb/sec (1X SDR)", 2.0),
            ("20 Gb/sec (4X DDR)", 16.0),
            ("100 Gb/sec (4X EDR)", 100.0),
        ] {
            let found = Rate::parse(text).and_then(|rate| rate.infiniband_gigabits()).unwrap();
            assert!((found - gigabits).abs() < 0.001, "{text}: {found}");
        }
        for text in [
            "",
            "56",
            "56 Gb/sec",
            "x Gb/sec (4X FDR)",
            "56 Gb/sec (X FDR)",
            "NaN Gb/sec (4X)",
            "1 Gb/sec (99X)",
        ] {
            assert_eq!(Rate::parse(text), None, "{text}");
        }
        assert_eq!(Rate::parse("56 Gb/sec (4X ABC)").unwrap().infiniband_gigabits(), None);
    }
}
