//! What had to be sent again: the counters of RDMA devices, and of the kernel's TCP.

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
    // mlx4: timeouts, sequence errors and receivers that were not ready, as the side that sends sees them.
    "sq_num_to",
    "sq_num_oos",
    "sq_num_rnr",
];

/// The sum of the counters of the RDMA device `device`, below `root`; `None` where it has none of them.
///
/// ConnectX-3 counts for the whole device and may count for each port besides; others count for each port only.
pub fn of_device(root: &Path, device: &str) -> Option<u64> {
    let device = root.join("sys/class/infiniband").join(device);
    sum(&device.join("hw_counters")).or_else(|| {
        let ports = fs::read_dir(device.join("ports")).ok()?;
        ports.flatten().filter_map(|port| sum(&port.path().join("hw_counters"))).reduce(u64::saturating_add)
    })
}

fn sum(counters: &Path) -> Option<u64> {
    let read = |name| fs::read_to_string(counters.join(name)).ok()?.trim().parse::<u64>().ok();
    NAMES.into_iter().filter_map(read).reduce(u64::saturating_add)
}

/// Segments that TCP sent again, on all connections of this machine; `None` where the kernel does not tell.
///
/// In `/proc/net/snmp`, a line of names precedes each line of values.
pub fn of_tcp(root: &Path) -> Option<u64> {
    let text = fs::read_to_string(root.join("proc/net/snmp")).ok()?;
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp: "));
    let (names, values) = (lines.next()?, lines.next()?);
    let at = names.split(' ').position(|name| name == "RetransSegs")?;
    values.split(' ').nth(at)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plant(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn counters_of_ports_are_summed_and_others_left_alone() {
        let root = plant(&[
            ("sys/class/infiniband/rxe0/ports/1/hw_counters/completer_retry_err", "3\n"),
            ("sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts", "1000\n"),
            ("sys/class/infiniband/rxe0/ports/2/hw_counters/rcvd_seq_err", "4\n"),
            ("sys/class/infiniband/mlx5_0/ports/1/hw_counters/out_of_buffer", "7\n"),
        ]);
        assert_eq!(of_device(root.path(), "rxe0"), Some(7));
        assert_eq!(of_device(root.path(), "mlx5_0"), None, "it counts, but nothing of this kind");
        assert_eq!(of_device(root.path(), "absent"), None);
    }

    /// As the kernel's driver names and places them (drivers/infiniband/hw/mlx4/main.c, `diag_basic` and `diag_ext`).
    #[test]
    fn a_card_that_counts_for_the_device_and_for_each_port_is_not_counted_twice() {
        let root = plant(&[
            ("sys/class/infiniband/mlx4_0/hw_counters/sq_num_to", "2\n"),
            ("sys/class/infiniband/mlx4_0/hw_counters/sq_num_oos", "1\n"),
            ("sys/class/infiniband/mlx4_0/hw_counters/rq_num_oos", "90\n"),
            ("sys/class/infiniband/mlx4_0/ports/1/hw_counters/sq_num_to", "2\n"),
        ]);
        assert_eq!(of_device(root.path(), "mlx4_0"), Some(3));
    }

    #[test]
    fn segments_are_found_by_their_name() {
        let snmp = "Ip: Forwarding RetransSegs\nIp: 1 77\nTcp: RtoMin InSegs OutSegs RetransSegs InErrs\nTcp: 200 5 6 42 0\n";
        assert_eq!(of_tcp(plant(&[("proc/net/snmp", snmp)]).path()), Some(42));
        for damaged in ["", "Tcp: RetransSegs\n", "Tcp: InSegs\nTcp: 1\n", "Tcp: RetransSegs\nTcp: many\n"] {
            assert_eq!(of_tcp(plant(&[("proc/net/snmp", damaged)]).path()), None, "{damaged}");
        }
        assert!(of_tcp(Path::new("/")).is_some(), "this machine's kernel counts");
    }
}
