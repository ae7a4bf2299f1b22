//! Who uses a device: mounts, swap, devices stacked on it, open files.

use std::collections::HashSet;
use std::fmt;
use std::fs;
use std::path::PathBuf;

use super::sysfs::{Task, Tree, names};

/// A mounted file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// What is mounted (`/dev/nbd0p1`).
    pub source: String,
    /// Where.
    pub point: PathBuf,
}

/// A process that has a device open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opener {
    /// Its id and name.
    pub task: Task,
    /// What it has open (`/dev/nbd0`).
    pub node: String,
}

/// Everyone who uses a device or one of its partitions, as far as this process can see: mounts of this mount namespace,
/// open files of processes that it may look into (all of them, as root).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holders {
    /// The thread that bound it; no user by itself.
    pub server: Option<Task>,
    /// File systems.
    pub mounts: Vec<Mount>,
    /// Swap areas (`/dev/nbd0`).
    pub swaps: Vec<String>,
    /// Devices made from it (`dm-0`, `md0`).
    pub stacked: Vec<String>,
    /// Open files.
    pub openers: Vec<Opener>,
}

impl Holders {
    /// Whether nobody uses it. Whoever bound it does not count.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.openers.is_empty() && !self.lasting()
    }

    /// Whether it is used by something that does not end by itself, as an open file of udev does.
    pub(super) fn lasting(&self) -> bool {
        !(self.mounts.is_empty() && self.swaps.is_empty() && self.stacked.is_empty())
    }
}

impl fmt::Display for Holders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts: Vec<String> = self.server.iter().map(|task| format!("bound by {task}")).collect();
        parts.extend(self.mounts.iter().map(|mount| format!("mounted on {}", mount.point.display())));
        parts.extend(self.swaps.iter().map(|swap| format!("used for swap ({swap})")));
        parts.extend(self.stacked.iter().map(|name| format!("part of {name}")));
        parts.extend(self.openers.iter().map(|opener| format!("held by {}", opener.task)));
        if parts.is_empty() {
            parts.push("held by someone this process cannot see".into());
        }
        f.write_str(&parts.join(", "))
    }
}

/// A device and its partitions, under their names and numbers.
struct Names {
    nodes: HashSet<String>,
    numbers: HashSet<String>,
}

impl Names {
    fn of(tree: &Tree, index: u32) -> Self {
        let partitions = tree.partitions(index);
        let numbers = std::iter::once("dev".to_owned())
            .chain(partitions.iter().map(|name| format!("{name}/dev")))
            .filter_map(|file| tree.attribute(index, &file));
        let nodes = std::iter::once(format!("/dev/nbd{index}"))
            .chain(partitions.iter().map(|name| format!("/dev/{name}")));
        Self { numbers: numbers.collect(), nodes: nodes.collect() }
    }

    fn mounted(&self, mount: &Mount, number: &str) -> bool {
        self.nodes.contains(&mount.source) || self.numbers.contains(number)
    }
}

/// Everyone who uses device `index`.
pub(super) fn find(tree: &Tree, index: u32) -> Holders {
    let names = Names::of(tree, index);
    Holders {
        server: tree.server(index),
        mounts: mounts(tree, index),
        swaps: swaps(tree, &names),
        stacked: stacked(tree, index),
        openers: openers(tree, &names),
    }
}

/// The file systems on device `index`, oldest mount first.
pub(super) fn mounts(tree: &Tree, index: u32) -> Vec<Mount> {
    let names = Names::of(tree, index);
    let table = fs::read_to_string(tree.path("proc/self/mountinfo")).unwrap_or_default();
    let rows = table.lines().filter_map(mount_row);
    rows.filter(|(mount, number)| names.mounted(mount, number)).map(|(mount, _)| mount).collect()
}

/// One row of `mountinfo`: the mount, and the number of its device. (btrfs shows a number of its own, hence both.)
fn mount_row(row: &str) -> Option<(Mount, String)> {
    let (left, right) = row.split_once(" - ")?;
    let mut left = left.split(' ');
    let number = left.nth(2)?;
    let point = unescape(left.nth(1)?);
    let source = unescape(right.split(' ').nth(1)?);
    Some((Mount { source, point: point.into() }, number.to_owned()))
}

/// Undoes the octal of `/proc`: a space is `\040`.
fn unescape(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        match octal(rest) {
            Some(byte) => {
                out.push(byte);
                rest = &rest[4..];
            }
            None => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn octal(text: &[u8]) -> Option<u8> {
    let [b'\\', digits @ ..] = text else { return None };
    let digits = std::str::from_utf8(digits.get(..3)?).ok()?;
    u8::from_str_radix(digits, 8).ok()
}

fn swaps(tree: &Tree, names: &Names) -> Vec<String> {
    let table = fs::read_to_string(tree.path("proc/swaps")).unwrap_or_default();
    let files = table.lines().skip(1).filter_map(|row| row.split_whitespace().next());
    files.map(unescape).filter(|file| names.nodes.contains(file)).collect()
}

fn stacked(tree: &Tree, index: u32) -> Vec<String> {
    let whole = std::iter::once(tree.block(index));
    let parts = tree.partitions(index).into_iter().map(|name| tree.block(index).join(name));
    whole.chain(parts).flat_map(|path| names(&path.join("holders")).unwrap_or_default()).collect()
}

/// Looks through every process' open files, by name only: nothing here can block on the device.
fn openers(tree: &Tree, names: &Names) -> Vec<Opener> {
    let processes = self::names(&tree.path("proc")).unwrap_or_default();
    let mut openers: Vec<Opener> =
        processes.iter().filter_map(|pid| opener(tree, names, pid.parse().ok()?)).collect();
    openers.sort_by_key(|opener| opener.task.tid);
    openers
}

fn opener(tree: &Tree, names: &Names, pid: u32) -> Option<Opener> {
    let files = fs::read_dir(tree.path(&format!("proc/{pid}/fd"))).ok()?;
    let targets = files.filter_map(|file| fs::read_link(file.ok()?.path()).ok());
    let node = targets
        .filter_map(|to| to.into_os_string().into_string().ok())
        .find(|to| names.nodes.contains(to))?;
    Some(Opener { task: Task { tid: pid, comm: tree.living(pid) }, node })
}

#[cfg(test)]
pub(super) mod fixture {
    use std::path::Path;

    use super::*;

    /// A made-up machine.
    pub(crate) struct Fixture(tempfile::TempDir);

    impl Fixture {
        pub(crate) fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        pub(crate) fn tree(&self) -> Tree {
            Tree::under(self.0.path())
        }

        pub(crate) fn path(&self) -> &Path {
            self.0.path()
        }

        pub(crate) fn with(self, path: &str, text: &str) -> Self {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
            self
        }

        pub(crate) fn link(self, path: &str, to: &str) -> Self {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::os::unix::fs::symlink(to, path).unwrap();
            self
        }
    }

    /// A bound nbd0 of 2 MiB with three partitions.
    pub(crate) fn nbd0() -> Fixture {
        Fixture::new()
            .with("sys/block/nbd0/size", "4096\n")
            .with("sys/block/nbd0/dev", "43:0\n")
            .with("sys/block/nbd0/ro", "0\n")
            .with("sys/block/nbd0/pid", "77\n")
            .with("sys/block/nbd0/backend", "kaeru:ram:9\n")
            .with("sys/block/nbd0/nbd0p1/dev", "43:1\n")
            .with("sys/block/nbd0/nbd0p2/dev", "43:2\n")
            .with("sys/block/nbd0/nbd0p10/dev", "43:10\n")
            .with("proc/77/stat", "77 (kaeru (x)) S 1 77")
    }

    /// With p1 mounted, p2 mounted under another name, and a neighbour mounted too.
    pub(crate) fn mounted(fixture: Fixture) -> Fixture {
        fixture.with(
            "proc/self/mountinfo",
            "22 1 0:20 / /proc rw - proc proc rw\n\
             30 1 43:1 / /mnt/a\\040b rw,relatime shared:7 - ext4 /dev/nbd0p1 rw\n\
             31 1 0:44 / /mnt/btrfs rw - btrfs /dev/nbd0p2 rw\n\
             32 1 43:16 / /mnt/other rw - ext4 /dev/nbd1 rw\n",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::fixture::{mounted, nbd0};
    use super::*;

    #[test]
    fn nobody_is_nobody() {
        let holders = nbd0().tree().holders(0);
        assert!(holders.is_empty());
        assert_eq!(holders.server.unwrap().tid, 77);
        assert!(Holders::default().to_string().contains("cannot see"));
    }

    #[test]
    fn every_kind_of_user_is_found() {
        let fixture = mounted(nbd0())
            .with("proc/swaps", "Filename Type Size\n/dev/nbd0p10 partition 9\n/dev/nbd1 partition 9\n")
            .with("sys/block/nbd0/nbd0p2/holders/dm-3", "")
            .link("proc/9/fd/0", "/dev/null")
            .link("proc/9/fd/4", "/dev/nbd0")
            .with("proc/9/stat", "9 (sleep) S 1")
            .link("proc/10/fd/4", "/dev/nbd01");
        let holders = fixture.tree().holders(0);
        assert_eq!(
            holders.to_string(),
            "bound by pid 77 (kaeru (x)), mounted on /mnt/a b, mounted on /mnt/btrfs, \
             used for swap (/dev/nbd0p10), part of dm-3, held by pid 9 (sleep)"
        );
        assert!(!holders.is_empty());
    }

    #[test]
    fn escapes_are_undone_and_bad_ones_kept() {
        assert_eq!(unescape(r"a\040b\011\134"), "a b\t\\");
        assert_eq!(unescape(r"\04"), r"\04");
        assert_eq!(unescape(r"\999é"), r"\999é");
    }
}
