//! What RDMA devices had to send again: their own counters, before and after.

use std::fs;
use std::path::Path;

/// Counters that mean "sent again" or "waited for in vain", as drivers of different cards name them.
const NAMES: [&str; 11] = [
    // Soft-RoCE.
    "completer_retry_err",
    "rcvd_rnr_err",
    "rcvd_seq_err",
    "retry_exceeded_err",
    // mlx5.
    "local_ack_timeout_err",
    "packet_seq_err",
    "rnr_nak_retry_err",
    "implied_nak_seq_err",
    // mlx4.
    "num_to",
    "sq_num_rnr",
    "sq_num_to",
];

/// The sum of the counters of `device`; `None` where it has none of them.
pub fn count(devices: &Path, device: &str) -> Option<u64> {
    let ports = fs::read_dir(devices.join(device).join("ports")).ok()?;
    let mut found = None;
    for port in ports.flatten() {
        for name in NAMES {
            let text = fs::read_to_string(port.path().join("hw_counters").join(name)).ok();
            if let Some(value) = text.and_then(|text| text.trim().parse::<u64>().ok()) {
                *found.get_or_insert(0u64) += value;
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_summed_and_a_device_without_any_says_nothing() {
        let sysfs = tempfile::tempdir().unwrap();
        let folder = sysfs.path().join("rxe0/ports/1/hw_counters");
        fs::create_dir_all(&folder).unwrap();
        fs::create_dir_all(sysfs.path().join("siw0/ports/1")).unwrap();
        fs::write(folder.join("completer_retry_err"), "3\n").unwrap();
        fs::write(folder.join("rcvd_rnr_err"), "4\n").unwrap();
        fs::write(folder.join("sent_pkts"), "1000\n").unwrap();
        assert_eq!(count(sysfs.path(), "rxe0"), Some(7));
        assert_eq!((count(sysfs.path(), "siw0"), count(sysfs.path(), "none")), (None, None));
    }
}
