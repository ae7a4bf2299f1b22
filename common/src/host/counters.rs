//! The counters of a port that tell of bad cables, and what two readings of one mean.

use super::fact::Fact;

/// What a counter counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterKind {
    /// Bits were lost between this port and the next one.
    Physical,
    /// Packets were dropped or refused: too much at once, or a wrong setting.
    Other,
    /// Traffic, in words of four bytes.
    Data,
}

/// The counters that are read: name, bits, kind. They stick at their greatest value.
pub const COUNTERS: [(&str, u32, CounterKind); 12] = [
    ("symbol_error", 16, CounterKind::Physical),
    ("link_error_recovery", 8, CounterKind::Physical),
    ("link_downed", 8, CounterKind::Physical),
    ("port_rcv_errors", 16, CounterKind::Physical),
    ("local_link_integrity_errors", 4, CounterKind::Physical),
    ("excessive_buffer_overrun_errors", 4, CounterKind::Physical),
    ("port_rcv_remote_physical_errors", 16, CounterKind::Physical),
    ("port_xmit_discards", 16, CounterKind::Other),
    ("port_rcv_constraint_errors", 8, CounterKind::Other),
    ("VL15_dropped", 16, CounterKind::Other),
    // 32 bits on hardware without the extended counters, else 64.
    ("port_xmit_data", 32, CounterKind::Data),
    ("port_rcv_data", 32, CounterKind::Data),
];

/// One counter of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counter {
    /// Its name.
    pub name: &'static str,
    /// Its width.
    pub bits: u32,
    /// What it counts.
    pub kind: CounterKind,
    /// What it said; `N/A (no PMA)` where the port counts nothing.
    pub fact: Fact,
}

/// By how much a counter grew between two readings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Growth {
    /// So much.
    Exactly(u64),
    /// So much or more: it stuck at its greatest value.
    AtLeast(u64),
    /// Somebody reset it meanwhile: so much since then, and nobody knows how much before.
    Reset(u64),
    /// It stuck at its greatest value before the first reading.
    Unknown,
}

impl Counter {
    /// What it counted.
    pub fn value(&self) -> Option<u64> {
        self.fact.parse()
    }

    /// The greatest value, where it stays.
    pub fn greatest(&self) -> u64 {
        (1 << self.bits) - 1
    }

    /// Whether it can count no further. A counter of traffic may be wider than it says, and then its value is beyond.
    pub fn is_stuck(&self) -> bool {
        match self.kind {
            CounterKind::Data => self.value() == Some(self.greatest()),
            _ => self.value().is_some_and(|value| value >= self.greatest()),
        }
    }

    /// By how much it grew until `later`.
    pub fn growth(&self, later: &Self) -> Option<Growth> {
        let (before, after) = (self.value()?, later.value()?);
        Some(match () {
            () if self.is_stuck() && later.is_stuck() => Growth::Unknown,
            () if after < before => Growth::Reset(after),
            () if later.is_stuck() => Growth::AtLeast(after - before),
            () => Growth::Exactly(after - before),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counter(name: &str, value: &str) -> Counter {
        let (name, bits, kind) = COUNTERS.into_iter().find(|(known, ..)| *known == name).unwrap();
        Counter { name, bits, kind, fact: Fact::told(name, value) }
    }

    #[test]
    fn growth_is_honest_about_counters_that_stick() {
        for (name, before, after, growth) in [
            ("symbol_error", "0", "12", Some(Growth::Exactly(12))),
            ("symbol_error", "65000", "65535", Some(Growth::AtLeast(535))),
            ("symbol_error", "65535", "65535", Some(Growth::Unknown)),
            ("symbol_error", "65535", "7", Some(Growth::Reset(7))),
            ("symbol_error", "5", "0", Some(Growth::Reset(0))),
            ("port_xmit_data", "4294967295", "0", Some(Growth::Reset(0))),
            ("local_link_integrity_errors", "15", "14", Some(Growth::Reset(14))),
            ("link_downed", "250", "255", Some(Growth::AtLeast(5))),
            ("local_link_integrity_errors", "14", "15", Some(Growth::AtLeast(1))),
            ("local_link_integrity_errors", "15", "15", Some(Growth::Unknown)),
            ("port_xmit_data", "4294967294", "4294967295", Some(Growth::AtLeast(1))),
            ("port_xmit_data", "4294967295", "4294967295", Some(Growth::Unknown)),
            ("port_xmit_data", "99999999999", "100000000000", Some(Growth::Exactly(1))),
            ("symbol_error", "N/A (no PMA)", "1", None),
            ("symbol_error", "-1", "99999999999999999999999", None),
        ] {
            assert_eq!(
                counter(name, before).growth(&counter(name, after)),
                growth,
                "{name} {before} {after}"
            );
        }
    }
}
