//! Who else uses a disk or a file: mounts, swap, device mapper and RAID, loop devices, and other programs' locks. Read
//! from /proc and /sys, so that the refusal can name the holder.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{major, minor};

/// Where the kernel tells about itself; elsewhere in tests.
#[derive(Clone, Debug)]
pub(super) struct System {
    pub(super) proc: PathBuf,
    pub(super) sys: PathBuf,
}

impl Default for System {
    fn default() -> Self {
        Self { proc: "/proc".into(), sys: "/sys".into() }
    }
}

/// Somebody who uses something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Holder(String);

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A block device: its number and the kernel's name for it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Device {
    number: (u32, u32),
    name: String,
}

impl System {
    /// Who uses the disk with this device number, or one of its partitions.
    pub(super) fn disk_holder(&self, number: u64) -> Option<Holder> {
        let devices = self.with_partitions((major(number), minor(number)));
        let mounts = self.read_proc("self/mountinfo");
        let swaps = self.read_proc("swaps");
        devices.iter().find_map(|device| {
            mount_of(device, &mounts, device_number)
                .map(|place| Holder(format!("/dev/{} is mounted on {place}", device.name)))
                .or_else(|| {
                    let swap = swap_areas(&swaps).any(|area| device_number(&area) == Some(device.number));
                    swap.then(|| Holder(format!("/dev/{} is used as swap", device.name)))
                })
                .or_else(|| self.upper_device(device))
        })
    }

    /// Who uses the file with this metadata in a way that takes no lock: as swap, or behind a loop device.
    pub(super) fn file_holder(&self, file: &fs::Metadata) -> Option<Holder> {
        let same = |path: &str| {
            fs::metadata(path).is_ok_and(|other| (other.dev(), other.ino()) == (file.dev(), file.ino()))
        };
        if let Some(area) = swap_areas(&self.read_proc("swaps")).find(|area| same(area)) {
            return Some(Holder(format!("{area} is used as swap")));
        }
        let block = fs::read_dir(self.sys.join("block")).ok()?;
        block.flatten().find_map(|entry| {
            let backing = fs::read_to_string(entry.path().join("loop/backing_file")).ok()?;
            same(backing.trim_end_matches('\n'))
                .then(|| Holder(format!("/dev/{} is a loop device on it", entry.file_name().display())))
        })
    }

    /// Who has a lock on the file with this metadata.
    pub(super) fn lock_holder(&self, file: &fs::Metadata) -> Option<Holder> {
        let process = lock_owner(&self.read_proc("locks"), file.dev(), file.ino())?;
        if process == std::process::id() {
            return Some(Holder("another export of this server uses it".into()));
        }
        let name = self.read_proc(&format!("{process}/comm"));
        let name = if name.is_empty() { "?" } else { name.trim_end() };
        Some(Holder(format!("process {process} ({name}) has locked it")))
    }

    /// A device and its partitions.
    fn with_partitions(&self, number: (u32, u32)) -> Vec<Device> {
        let folder = self.folder(number);
        let name = fs::canonicalize(&folder)
            .ok()
            .and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()))
            .unwrap_or_else(|| format!("block/{}:{}", number.0, number.1));
        let mut devices = vec![Device { number, name }];
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            if !entry.path().join("partition").exists() {
                continue;
            }
            let number = fs::read_to_string(entry.path().join("dev")).unwrap_or_default();
            if let Some(number) = parse_number(number.trim()) {
                devices.push(Device { number, name: entry.file_name().to_string_lossy().into_owned() });
            }
        }
        devices.sort_by(|a, b| a.name.cmp(&b.name));
        devices
    }

    /// The device that is built on this one: device mapper, LVM, RAID.
    fn upper_device(&self, device: &Device) -> Option<Holder> {
        let holder = fs::read_dir(self.folder(device.number).join("holders")).ok()?.flatten().next()?;
        let upper = holder.file_name().to_string_lossy().into_owned();
        let name = fs::read_to_string(holder.path().join("dm/name")).unwrap_or_default();
        let name = if name.is_empty() { String::new() } else { format!(" ({})", name.trim_end()) };
        Some(Holder(format!("/dev/{} is part of /dev/{upper}{name}", device.name)))
    }

    fn folder(&self, (major, minor): (u32, u32)) -> PathBuf {
        self.sys.join(format!("dev/block/{major}:{minor}"))
    }

    fn read_proc(&self, name: &str) -> String {
        fs::read(self.proc.join(name))
            .map_or_else(|_| String::new(), |text| String::from_utf8_lossy(&text).into())
    }
}

/// Where a device is mounted. btrfs mounts have a number of their own, so the source counts too.
fn mount_of(
    device: &Device,
    mountinfo: &str,
    number_of: impl Fn(&str) -> Option<(u32, u32)>,
) -> Option<String> {
    mountinfo.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(2);
        let (number, place) = (parse_number(left.next()?)?, left.nth(1)?);
        let source = unescape(right.split(' ').nth(1)?);
        let by_source = || source.starts_with("/dev/") && number_of(&source) == Some(device.number);
        (number == device.number || by_source()).then(|| unescape(place))
    })
}

/// The files and devices that are swapped to.
fn swap_areas(swaps: &str) -> impl Iterator<Item = String> {
    swaps.lines().skip(1).filter_map(|line| line.split_whitespace().next().map(unescape))
}

/// The process that has an flock on a file.
fn lock_owner(locks: &str, device: u64, inode: u64) -> Option<u32> {
    let wanted = format!("{:02x}:{:02x}:{inode}", major(device), minor(device));
    locks.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        // "1: FLOCK ADVISORY WRITE 1234 08:01:5678 0 EOF"; who waits for it has an arrow.
        match fields[..] {
            [_, "FLOCK", _, _, process, file, ..] if file == wanted => process.parse().ok(),
            _ => None,
        }
    })
}

fn device_number(path: &str) -> Option<(u32, u32)> {
    let number = fs::metadata(Path::new(path)).ok()?.rdev();
    (number != 0).then(|| (major(number), minor(number)))
}

fn parse_number(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// The kernel writes a space as `\040`, and so on.
fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let code = match (first, tail) {
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..]) => {
                Some((a - b'0') * 64 + (b - b'0') * 8 + (c - b'0'))
            }
            _ => None,
        };
        bytes.push(code.unwrap_or(*first));
        rest = if code.is_some() { &tail[3..] } else { tail };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
28 27 8:17 / /mnt/my\\040disk rw,relatime shared:1 master:2 - xfs /dev/sdb1 rw
29 27 0:45 /@home /home rw,relatime shared:3 - btrfs /dev/sdc3 rw,subvol=/@home
";

    fn device(name: &str, number: (u32, u32)) -> Device {
        Device { number, name: name.into() }
    }

    #[test]
    fn a_mount_is_found_by_number_or_by_source() {
        let sources = |path: &str| (path == "/dev/sdc3").then_some((8, 35));
        assert_eq!(mount_of(&device("vda", (254, 0)), MOUNTS, sources).as_deref(), Some("/"));
        assert_eq!(mount_of(&device("sdb1", (8, 17)), MOUNTS, sources).as_deref(), Some("/mnt/my disk"));
        assert_eq!(mount_of(&device("sdc3", (8, 35)), MOUNTS, sources).as_deref(), Some("/home"));
        assert_eq!(mount_of(&device("sdb", (8, 16)), MOUNTS, sources), None);
        assert_eq!(mount_of(&device("sdb", (8, 16)), "nonsense\n\n1 2 -", sources), None);
    }

    #[test]
    fn swap_areas_are_listed() {
        let swaps = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n\
                     /dev/sda2                               partition\t8388604\t\t0\t\t-2\n\
                     /swap\\040file                           file\t\t2097148\t\t0\t\t-3\n";
        assert_eq!(swap_areas(swaps).collect::<Vec<_>>(), ["/dev/sda2", "/swap file"]);
        assert_eq!(swap_areas("").count(), 0);
    }

    #[test]
    fn the_owner_of_a_lock_is_found() {
        let locks = "1: POSIX  ADVISORY  WRITE 77 08:01:5678 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 1234 08:01:5678 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 99 08:01:5678 0 EOF\n\
                     3: FLOCK  ADVISORY  READ  55 08:01:56789 0 EOF\n";
        let device = rustix::fs::makedev(8, 1);
        assert_eq!(lock_owner(locks, device, 5678), Some(1234));
        assert_eq!(lock_owner(locks, device, 1), None);
    }

    /// A disk with two partitions, of which the second is part of a volume.
    fn fixture() -> (tempfile::TempDir, System) {
        let root = tempfile::tempdir().unwrap();
        let system = System { proc: root.path().join("proc"), sys: root.path().join("sys") };
        let disk = system.sys.join("devices/pci/block/sdb");
        for (part, number) in [("sdb1", "8:17"), ("sdb2", "8:18")] {
            let folder = disk.join(part);
            fs::create_dir_all(folder.join("holders")).unwrap();
            fs::write(folder.join("partition"), "1\n").unwrap();
            fs::write(folder.join("dev"), format!("{number}\n")).unwrap();
        }
        fs::create_dir_all(disk.join("holders")).unwrap();
        fs::create_dir_all(disk.join("queue")).unwrap();
        fs::create_dir_all(disk.join("sdb2/holders/dm-0/dm")).unwrap();
        fs::write(disk.join("sdb2/holders/dm-0/dm/name"), "vg-scratch\n").unwrap();
        let numbers = system.sys.join("dev/block");
        fs::create_dir_all(&numbers).unwrap();
        for (number, place) in
            [("8:16", disk.clone()), ("8:17", disk.join("sdb1")), ("8:18", disk.join("sdb2"))]
        {
            std::os::unix::fs::symlink(place, numbers.join(number)).unwrap();
        }
        fs::create_dir_all(system.proc.join("self")).unwrap();
        (root, system)
    }

    fn holder(system: &System, minor: u32) -> Option<String> {
        system.disk_holder(rustix::fs::makedev(8, minor)).map(|holder| holder.to_string())
    }

    #[test]
    fn a_disk_is_in_use_when_one_of_its_partitions_is() {
        let (_root, system) = fixture();
        let volume = Some("/dev/sdb2 is part of /dev/dm-0 (vg-scratch)".to_owned());
        assert_eq!(holder(&system, 16), volume);
        assert_eq!(holder(&system, 18), volume);
        assert_eq!(holder(&system, 17), None);
        fs::write(system.proc.join("self/mountinfo"), MOUNTS).unwrap();
        assert_eq!(holder(&system, 17).as_deref(), Some("/dev/sdb1 is mounted on /mnt/my disk"));
        assert_eq!(holder(&system, 16).as_deref(), Some("/dev/sdb1 is mounted on /mnt/my disk"));
        assert_eq!(holder(&system, 99), None);
    }
}
