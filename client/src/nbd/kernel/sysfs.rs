//! What `/sys` and `/proc` say of the devices.
//!
//! All paths hang off a [`Tree`], so that tests look at a tree of their own.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::error::KernelError;
use super::holders::{self, Holders, Mount};

/// `/sys/block/*/size` counts these, whatever the block size.
const SECTOR: u64 = 512;

/// A root directory with `sys`, `proc` and `dev` below it.
#[derive(Clone, Debug)]
pub struct Tree {
    root: PathBuf,
}

/// A thread that bound a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// Its id; for a process' main thread, the process id.
    pub tid: u32,
    /// Its name; `None` when it is no more.
    pub comm: Option<String>,
}

impl std::fmt::Display for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "pid {} ({})", self.tid, self.comm.as_deref().unwrap_or("gone"))
    }
}

/// One device as the kernel shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The N of `/dev/nbdN`.
    pub index: u32,
    /// Bytes; 0 when it is not bound.
    pub size: u64,
    /// Whether it refuses writes.
    pub read_only: bool,
    /// The thread that bound it; `None` when it is not bound. With netlink the thread may be gone and the device not.
    pub server: Option<Task>,
    /// What its owner named it by ([`Attach::backend`](super::Attach)); `None` when it has no name.
    pub backend: Option<String>,
    /// Its partitions' names (`nbd0p1`).
    pub partitions: Vec<String>,
    /// Where it and its partitions are mounted, as far as this mount namespace shows.
    pub mounts: Vec<Mount>,
}

impl Status {
    /// Whether it is bound.
    #[must_use]
    pub fn is_bound(&self) -> bool {
        self.server.is_some()
    }

    /// Whether it is bound and whoever bound it is gone: an orphan to [`disconnect`](super::disconnect).
    #[must_use]
    pub fn is_orphan(&self) -> bool {
        self.server.as_ref().is_some_and(|task| task.comm.is_none())
    }
}

/// One device of this machine.
///
/// # Errors
/// [`KernelError::NoDevice`] if it does not exist.
pub fn status(index: u32) -> Result<Status, KernelError> {
    Tree::live().status(index)
}

/// All bound devices of this machine, by number. Empty without the driver.
///
/// # Errors
/// `/sys/block` cannot be read.
pub fn list() -> Result<Vec<Status>, KernelError> {
    Tree::live().list()
}

/// The number in `/dev/nbd3`, `nbd3` or `nbd3p1`; `None` for anything else.
#[must_use]
pub fn index_of(device: &str) -> Option<u32> {
    let rest = device.strip_prefix("/dev/").unwrap_or(device).strip_prefix("nbd")?;
    let (number, partition) = rest.split_once('p').unwrap_or((rest, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if digits(number) && digits(partition) { number.parse().ok() } else { None }
}

impl Tree {
    /// This machine's.
    #[must_use]
    pub fn live() -> Self {
        Self::under("/")
    }

    /// One below `root`.
    pub fn under(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// As [`status`](fn@status).
    ///
    /// # Errors
    /// [`KernelError::NoDevice`] if it does not exist.
    pub fn status(&self, index: u32) -> Result<Status, KernelError> {
        if !self.block(index).is_dir() {
            return Err(KernelError::NoDevice { index });
        }
        Ok(Status {
            index,
            size: self.size(index),
            read_only: self.attribute(index, "ro").is_some_and(|ro| ro == "1"),
            server: self.server(index),
            backend: self.attribute(index, "backend").filter(|name| !name.is_empty()),
            partitions: self.partitions(index),
            mounts: holders::mounts(self, index),
        })
    }

    /// As [`list`](fn@list).
    ///
    /// # Errors
    /// `sys/block` cannot be read.
    pub fn list(&self) -> Result<Vec<Status>, KernelError> {
        let path = self.path("sys/block");
        let names =
            names(&path).map_err(|error| KernelError::io(format!("list {}", path.display()), error))?;
        let mut indices: Vec<u32> =
            names.iter().filter(|name| !name.contains('p')).filter_map(|name| index_of(name)).collect();
        indices.sort_unstable();
        // A device can go while we look.
        Ok(indices.into_iter().filter_map(|index| self.status(index).ok()).filter(Status::is_bound).collect())
    }

    /// Who uses a device or one of its partitions.
    #[must_use]
    pub fn holders(&self, index: u32) -> Holders {
        holders::find(self, index)
    }

    pub(super) fn path(&self, below: &str) -> PathBuf {
        self.root.join(below)
    }

    pub(super) fn block(&self, index: u32) -> PathBuf {
        self.path(&format!("sys/block/nbd{index}"))
    }

    pub(super) fn node(&self, name: &str) -> PathBuf {
        self.path("dev").join(name)
    }

    /// Bytes.
    pub(super) fn size(&self, index: u32) -> u64 {
        self.number(index, "size").unwrap_or(0).saturating_mul(SECTOR)
    }

    /// The thread that bound the device, if it is bound.
    pub(super) fn server(&self, index: u32) -> Option<Task> {
        let tid = self.number(index, "pid")?.try_into().ok()?;
        Some(Task { tid, comm: self.living(tid) })
    }

    pub(super) fn partitions(&self, index: u32) -> Vec<String> {
        let prefix = format!("nbd{index}p");
        let mut partitions = names(&self.block(index)).unwrap_or_default();
        partitions.retain(|name| name.starts_with(&prefix));
        partitions.sort_by_key(|name| (name.len(), name.clone()));
        partitions
    }

    /// A device's attribute without its newline.
    pub(super) fn attribute(&self, index: u32, name: &str) -> Option<String> {
        Some(fs::read_to_string(self.block(index).join(name)).ok()?.trim_end().to_owned())
    }

    pub(super) fn number(&self, index: u32, name: &str) -> Option<u64> {
        self.attribute(index, name)?.parse().ok()
    }

    /// The name of a thread that lives; a killed one whose parent has not noticed does not.
    pub(super) fn living(&self, tid: u32) -> Option<String> {
        let (comm, state) = self.task(tid)?;
        (!matches!(state, 'Z' | 'X' | 'x')).then_some(comm)
    }

    /// Whether a thread was stopped (SIGSTOP, a debugger).
    pub(super) fn stopped(&self, tid: u32) -> bool {
        matches!(self.task(tid), Some((_, 'T' | 't')))
    }

    /// Writes that the kernel has sent, or tries to send, and that are not answered.
    pub(super) fn writes_in_flight(&self, index: u32) -> u64 {
        let counts = self.attribute(index, "inflight").unwrap_or_default();
        counts.split_whitespace().nth(1).and_then(|writes| writes.parse().ok()).unwrap_or(0)
    }

    /// A thread's name and state. The name may hold anything, brackets too.
    fn task(&self, tid: u32) -> Option<(String, char)> {
        let stat = fs::read_to_string(self.path(&format!("proc/{tid}/stat"))).ok()?;
        let (_, rest) = stat.split_once('(')?;
        let (comm, rest) = rest.rsplit_once(')')?;
        Some((comm.to_owned(), rest.trim_start().chars().next()?))
    }
}

/// The names in a directory that are text.
pub(super) fn names(directory: &Path) -> io::Result<Vec<String>> {
    let entries = fs::read_dir(directory)?;
    Ok(entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::super::holders::fixture::{Fixture, mounted, nbd0};
    use super::*;

    #[test]
    fn a_bound_device_shows_everything() {
        let fixture = mounted(nbd0());
        let status = fixture.tree().status(0).unwrap();
        assert_eq!(status.size, 2 << 20);
        assert_eq!(status.server, Some(Task { tid: 77, comm: Some("kaeru (x)".into()) }));
        assert_eq!(status.backend.as_deref(), Some("kaeru:ram:9"));
        assert_eq!(status.partitions, ["nbd0p1", "nbd0p2", "nbd0p10"]);
        assert!(!status.read_only && !status.is_orphan());
        assert_eq!(status.mounts.len(), 2);
    }

    #[test]
    fn a_dead_server_leaves_an_orphan() {
        let fixture = nbd0().with("proc/77/stat", "77 (kaeru (x)) Z 1 77");
        let status = fixture.tree().status(0).unwrap();
        assert!(status.is_bound() && status.is_orphan());
        assert_eq!(status.server.unwrap().to_string(), "pid 77 (gone)");
    }

    #[test]
    fn only_bound_devices_are_listed_in_order() {
        let fixture = nbd0()
            .with("sys/block/nbd10/size", "8\n")
            .with("sys/block/nbd10/pid", "5\n")
            .with("sys/block/nbd2/size", "0\n")
            .with("sys/block/sda/pid", "5\n");
        let indices: Vec<u32> = fixture.tree().list().unwrap().iter().map(|status| status.index).collect();
        assert_eq!(indices, [0, 10]);
    }

    #[test]
    fn no_such_device_is_said_so() {
        assert!(matches!(Fixture::new().tree().status(3), Err(KernelError::NoDevice { index: 3 })));
    }

    #[test]
    fn device_names_are_understood() {
        for (name, index) in [("/dev/nbd3", 3), ("nbd12", 12), ("nbd0p1", 0), ("/dev/nbd7p15", 7)] {
            assert_eq!(index_of(name), Some(index), "{name}");
        }
        for name in ["", "nbd", "nbdx", "/dev/sda", "nbd1p", "nbd1x", "nbd99999999999", "nbd-1", "nbd+1"] {
            assert_eq!(index_of(name), None, "{name}");
        }
    }
}
