//! From "the kernel has bound it" to "it can be mounted".

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::attach::Device;
use super::blockdev;
use super::error::KernelError;
use super::poll::poll;
use super::sysfs::Tree;

/// How long a table that someone holds is asked for again; udev looks at new devices for a moment.
const TABLE_PATIENCE: Duration = Duration::from_secs(3);

/// udev listens here when it runs.
const UDEV: &str = "run/udev/control";

/// The files that programs open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nodes {
    /// `/dev/nbdN`.
    pub device: PathBuf,
    /// `/dev/nbdNp1` and so on.
    pub partitions: Vec<PathBuf>,
}

impl Device {
    /// Waits, at most `wait`, until the device is fit for use, and says where it is: its size shows, its queue is tuned,
    /// its partition table is read, its files exist, and udev has seen them.
    ///
    /// The lanes must be served meanwhile by other threads.
    ///
    /// # Errors
    /// The device was detached meanwhile; its table cannot be read (a lane answered with an error); `/dev` has no files
    /// for it.
    pub fn settle(&self, wait: Duration) -> Result<Nodes, KernelError> {
        let tree = Tree::live();
        let until = Instant::now() + wait;
        self.wait_for_size(&tree, until, wait)?;
        self.tune(&tree);
        let device = wait_for(&tree.node(&self.name()), until, wait)?;
        self.read_table(&device, until)?;
        let nodes = self.wait_for_nodes(&tree, until, wait)?;
        wait_for_udev(&tree, until);
        Ok(nodes)
    }

    fn name(&self) -> String {
        format!("nbd{}", self.index)
    }

    /// `pid` shows up before the size is set, so it is the size that counts.
    fn wait_for_size(&self, tree: &Tree, until: Instant, waited: Duration) -> Result<(), KernelError> {
        let ready = || (tree.size(self.index) == self.size).then_some(());
        poll(until, ready).ok_or_else(|| KernelError::NotReady {
            index: self.index,
            want: self.size,
            found: tree.size(self.index),
            waited,
        })
    }

    /// Values outlive a binding, so each is set each time. A device that cannot be tuned works all the same.
    fn tune(&self, tree: &Tree) {
        let most = tree.number(self.index, "queue/max_hw_sectors_kb").unwrap_or(u64::MAX);
        let values = [
            ("queue/max_sectors_kb", u64::from(self.max_sectors_kb).min(most)),
            ("queue/read_ahead_kb", u64::from(self.read_ahead_kb)),
        ];
        for (name, value) in values {
            if let Err(error) = fs::write(tree.block(self.index).join(name), value.to_string()) {
                tracing::warn!(device = self.name(), %error, "{name} stays as it is");
            }
        }
    }

    /// Drops what an older kernel may have cached of the number's last disk, then reads the table.
    ///
    /// A table that stays busy was read already: someone mounted a partition from it.
    fn read_table(&self, node: &Path, until: Instant) -> Result<(), KernelError> {
        let failed =
            |error| KernelError::io(format!("read the partition table of {}", node.display()), error);
        let device = blockdev::open(node).map_err(failed)?;
        blockdev::drop_cache(&device).map_err(failed)?;
        let until = until.min(Instant::now() + TABLE_PATIENCE);
        match poll(until, || read_unless_busy(&device)) {
            Some(result) => result.map(|_| ()).map_err(failed),
            None => {
                tracing::warn!(device = self.name(), "the partition table is in use, and was not read again");
                Ok(())
            }
        }
    }

    fn wait_for_nodes(&self, tree: &Tree, until: Instant, waited: Duration) -> Result<Nodes, KernelError> {
        let partitions = tree.partitions(self.index).into_iter();
        Ok(Nodes {
            device: wait_for(&tree.node(&self.name()), until, waited)?,
            partitions: partitions
                .map(|name| wait_for(&tree.node(&name), until, waited))
                .collect::<Result<_, _>>()?,
        })
    }
}

fn read_unless_busy(device: &File) -> Option<io::Result<bool>> {
    match blockdev::read_table(device) {
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => None,
        result => Some(result),
    }
}

fn wait_for(node: &Path, until: Instant, waited: Duration) -> Result<PathBuf, KernelError> {
    let exists = || node.exists().then(|| node.to_owned());
    poll(until, exists).ok_or_else(|| KernelError::NoNode { node: node.to_owned(), waited })
}

/// Lets udev finish its look at the new device (links in `/dev/disk`, `ID_FS_TYPE`), where there is one.
fn wait_for_udev(tree: &Tree, until: Instant) {
    if !tree.path(UDEV).exists() {
        return;
    }
    let seconds = until.saturating_duration_since(Instant::now()).as_secs().max(1);
    let run = Command::new("udevadm")
        .args(["settle", &format!("--timeout={seconds}")])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    match run {
        Ok(status) if status.success() => {}
        Ok(status) => tracing::warn!(%status, "udev is still busy after {seconds} s"),
        Err(error) => tracing::warn!(%error, "udev runs, but udevadm does not"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::holders::fixture::{Fixture, nbd0};
    use super::*;

    fn device(size: u64) -> Device {
        Device { index: 0, size, max_sectors_kb: 4096, read_ahead_kb: 1024 }
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(30)
    }

    fn read(fixture: &Fixture, name: &str) -> String {
        fs::read_to_string(fixture.path().join("sys/block/nbd0/queue").join(name)).unwrap()
    }

    #[test]
    fn a_wrong_size_is_told_with_both_numbers() {
        let fixture = nbd0();
        assert!(device(2 << 20).wait_for_size(&fixture.tree(), soon(), Duration::ZERO).is_ok());
        let error = device(4 << 20).wait_for_size(&fixture.tree(), soon(), Duration::ZERO).unwrap_err();
        assert!(matches!(error, KernelError::NotReady { want: 4_194_304, found: 2_097_152, .. }));
    }

    #[test]
    fn requests_grow_as_far_as_the_driver_allows() {
        let fixture = nbd0()
            .with("sys/block/nbd0/queue/max_hw_sectors_kb", "1280\n")
            .with("sys/block/nbd0/queue/max_sectors_kb", "128\n")
            .with("sys/block/nbd0/queue/read_ahead_kb", "128\n");
        device(2 << 20).tune(&fixture.tree());
        assert_eq!(read(&fixture, "max_sectors_kb"), "1280");
        assert_eq!(read(&fixture, "read_ahead_kb"), "1024");
    }

    #[test]
    fn a_missing_partition_node_is_named() {
        let fixture = nbd0().with("dev/nbd0", "").with("dev/nbd0p1", "").with("dev/nbd0p2", "");
        let error = device(2 << 20).wait_for_nodes(&fixture.tree(), soon(), Duration::ZERO).unwrap_err();
        assert!(error.to_string().contains("dev/nbd0p10"), "{error}");
        let fixture = fixture.with("dev/nbd0p10", "");
        let nodes = device(2 << 20).wait_for_nodes(&fixture.tree(), soon(), Duration::ZERO).unwrap();
        assert_eq!(nodes.partitions.len(), 3);
    }
}
