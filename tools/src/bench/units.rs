//! Numbers as people read them. Whoever prints one prints its unit beside it.

use std::time::Duration;

use kaeru_common::units::Size;

/// Microseconds: a tenth matters only where there are few of them, and more only below ten.
pub fn micros(time: Option<Duration>) -> String {
    micros_f64(time.map(|time| time.as_nanos() as f64 / 1e3))
}

/// As [`micros`].
pub fn micros_f64(micros: Option<f64>) -> String {
    match micros {
        None => "-".to_owned(),
        Some(micros) if micros.abs() < 9.995 => format!("{micros:.2}"),
        Some(micros) if micros.abs() < 9_999.95 => format!("{micros:.1}"),
        Some(micros) => format!("{micros:.0}"),
    }
}

/// Microseconds in a unit of which nobody has to count the digits, and that unit.
pub fn scaled(micros: f64) -> (String, &'static str) {
    match micros.abs() {
        size if size < 9_999.95 => (micros_f64(Some(micros)), "µs"),
        size if size < 9_999_950.0 => (micros_f64(Some(micros / 1e3)), "ms"),
        _ => (micros_f64(Some(micros / 1e6)), "s"),
    }
}

/// A number of operations a second, to three digits at least.
pub fn rate(rate: f64) -> String {
    match rate {
        rate if rate < 9.995 => format!("{rate:.2}"),
        rate if rate < 99.95 => format!("{rate:.1}"),
        rate if rate < 9_999_999.5 => format!("{rate:.0}"),
        rate => format!("{:.1}M", rate / 1e6),
    }
}

/// Bytes a second, in powers of ten as networks and disks are sold.
pub fn speed(bytes: f64) -> String {
    match bytes {
        bytes if bytes < 999.5 => format!("{bytes:.0} B/s"),
        bytes if bytes < 999_500.0 => format!("{:.1} kB/s", bytes / 1e3),
        bytes if bytes < 999_500_000.0 => format!("{:.1} MB/s", bytes / 1e6),
        bytes => format!("{:.2} GB/s", bytes / 1e9),
    }
}

/// The size of a block, as it is typed.
pub fn block(bytes: u32) -> String {
    Size(bytes.into()).to_string()
}

/// The size of a block without a space: `4K`, `1M`, `512`.
pub fn short(bytes: u32) -> String {
    match bytes {
        bytes if bytes >= 1 << 20 && bytes.is_multiple_of(1 << 20) => format!("{}M", bytes >> 20),
        bytes if bytes >= 1 << 10 && bytes.is_multiple_of(1 << 10) => format!("{}K", bytes >> 10),
        bytes => bytes.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_times_have_a_longer_unit() {
        for (micros, shown, unit) in [
            (54.07, "54.1", "µs"),
            (9_999.0, "9999.0", "µs"),
            (12_345.0, "12.3", "ms"),
            (2_151_678.0, "2151.7", "ms"),
            (3.6e9, "3600.0", "s"),
        ] {
            assert_eq!(scaled(micros), (shown.to_owned(), unit));
        }
    }

    #[test]
    fn figures_have_as_many_digits_as_they_are_worth() {
        for (found, wanted) in [
            (micros_f64(None), "-"),
            (micros_f64(Some(0.1234)), "0.12"),
            (micros_f64(Some(9.996)), "10.0"),
            (micros_f64(Some(9_999.97)), "10000"),
            (rate(1.5), "1.50"),
            (rate(123_456.4), "123456"),
            (rate(12_345_678.0), "12.3M"),
            (speed(96_600_000.0), "96.6 MB/s"),
            (speed(999_600_000.0), "1.00 GB/s"),
            (speed(12.0), "12 B/s"),
            (short(4096), "4K"),
            (short(1 << 20), "1M"),
            (short(4097), "4097"),
        ] {
            assert_eq!(found, wanted);
        }
    }
}
