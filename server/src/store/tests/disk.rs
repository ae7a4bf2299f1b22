//! Real block devices and full file systems, where this machine and this user can have them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use kaeru_common::error::Status;
use tempfile::TempDir;

use super::super::{Action, Direct, EngineChoice, Extent, OpenError, Staged, StagedOptions, Target};
use super::rig::{Lane, content, folder, pattern, range, sized, skip};

/// Runs a command; what it says, or why it cannot be done here.
fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output =
        Command::new(program).args(arguments).output().map_err(|error| format!("{program}: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        false => Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}

/// One test at a time: to start a program on another thread keeps our files open for a moment longer.
static ALONE: Mutex<()> = Mutex::new(());

/// A loop device on a file, gone with this.
struct Loop(PathBuf, #[expect(dead_code, reason = "it is held")] MutexGuard<'static, ()>);

impl Loop {
    fn new(file: &Path, sector: u32) -> Result<Self, String> {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let sector = format!("--sector-size={sector}");
        run("losetup", &["--find", "--show", &sector, file.to_str().unwrap()])
            .map(|path| Self(path.into(), alone))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let path = self.0.to_str().unwrap();
        // That outlives the file behind it.
        let _ = run("blockdev", &["--setrw", path]);
        let _ = run("losetup", &["--detach", path]);
    }
}

/// A mounted file system, gone with this.
struct Mount(TempDir);

impl Mount {
    fn new(arguments: &[&str]) -> Result<Self, String> {
        let place = tempfile::tempdir().unwrap();
        run("mount", &[arguments, &[place.path().to_str().unwrap()]].concat())?;
        Ok(Self(place))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = run("umount", &[self.0.path().to_str().unwrap()]);
    }
}

macro_rules! requires {
    ($test:literal, $what:expr) => {
        match $what {
            Ok(value) => value,
            Err(reason) => return skip($test, &reason),
        }
    };
}

fn disk(path: &Path, engine: EngineChoice, direct: Direct) -> StagedOptions {
    StagedOptions { engine, direct, ..StagedOptions::new(Target::Disk, path) }
}

const WAYS: [(EngineChoice, Direct); 3] = [
    (EngineChoice::File, Direct::Off),
    (EngineChoice::Uring, Direct::Off),
    (EngineChoice::Uring, Direct::On),
];

fn open(options: &StagedOptions) -> Option<Staged> {
    match Staged::open("test", options) {
        Err(error @ (OpenError::Uring { .. } | OpenError::Direct { .. })) => {
            skip("disk", &error.to_string());
            None
        }
        opened => Some(opened.unwrap()),
    }
}

#[test]
fn a_disk_is_cleared_exactly_whatever_its_sector() {
    const SIZE: usize = 64 << 10;
    let folder = folder();
    for sector in [512, 4096] {
        let image = sized(&folder, "image", SIZE as u64);
        let device = requires!("a_disk_is_cleared_exactly", Loop::new(&image, sector));
        for (engine, direct) in WAYS {
            let Some(staged) = open(&disk(&device.0, engine, direct)) else { continue };
            assert_eq!((staged.size(), staged.block()), (SIZE as u64, sector));
            let mut lane = Lane::new(&staged);
            for (offset, length) in
                [(8192, 16_384), (512, 512), (4095, 2), (5000, 3000), (100, 50_000), (0, SIZE as u64)]
            {
                for action in [
                    Action::Trim { durable: true },
                    Action::Zero { no_hole: false, durable: false },
                    Action::Zero { no_hole: true, durable: true },
                ] {
                    let before = pattern(0, SIZE);
                    lane.write(0, &before).unwrap();
                    lane.one(action, range(offset, length), &[]).unwrap();
                    let found = lane.read(0, SIZE).unwrap();
                    let (start, end) = (offset as usize, (offset + length) as usize);
                    assert!(found[..start] == before[..start] && found[end..] == before[end..]);
                    let (least, most) = match action {
                        // A sector that is trimmed in part keeps its bytes.
                        Action::Trim { .. } => {
                            let sector = sector as usize;
                            (start.next_multiple_of(sector), end / sector * sector)
                        }
                        _ => (start, end),
                    };
                    let inside = &found[least.min(most)..most];
                    assert!(
                        inside.iter().all(|&byte| byte == 0),
                        "{engine:?} {direct:?}, sector {sector}: {action:?} of {length} at {offset}"
                    );
                }
            }
            lane.write(777, &pattern(777, 9000)).unwrap();
            lane.flush().unwrap();
            assert_eq!(lane.read(777, 9000).unwrap(), pattern(777, 9000));
            let mut extents = Vec::new();
            lane.engine.extents(range(0, 4096), 8, &mut extents).unwrap();
            assert_eq!(extents, [Extent { length: 4096, allocated: true }]);
        }
        assert_eq!(content(&device.0, 777, 9000), pattern(777, 9000));
    }
}

#[test]
fn a_disk_in_use_is_refused_with_its_holder_unless_forced() {
    let folder = folder();
    let image = sized(&folder, "image", 16 << 20);
    let device = requires!("a_disk_in_use", Loop::new(&image, 512));
    let path = device.0.to_str().unwrap();
    let mut options = disk(&device.0, EngineChoice::Auto, Direct::Auto);
    let refused = |options: &StagedOptions, part: &str| {
        let text = Staged::open("test", options).unwrap_err().to_string();
        assert!(text.contains(part) && text.contains("--force"), "{text}");
    };
    // The file behind a loop device is not free either.
    refused(&StagedOptions::new(Target::File, &image), &format!("{path} is a loop device on it"));
    let first = Staged::open("test", &options).unwrap();
    refused(&options, "in use");
    drop(first);
    requires!("a_disk_in_use", run("mkfs.ext4", &["-q", path]));
    let mount = requires!("a_disk_in_use", Mount::new(&[path]));
    refused(&options, &format!("{path} is mounted on {}", mount.0.path().display()));
    options.force = true;
    drop(Staged::open("test", &options).unwrap());
    drop(mount);
    options.force = false;
    Staged::open("test", &options).unwrap();
}

#[test]
fn a_disk_that_is_set_read_only_is_exported_so() {
    let folder = folder();
    let image = sized(&folder, "image", 1 << 20);
    let device = requires!("a_disk_that_is_set_read_only", Loop::new(&image, 512));
    requires!("a_disk_that_is_set_read_only", run("blockdev", &["--setro", device.0.to_str().unwrap()]));
    let staged = Staged::open("test", &disk(&device.0, EngineChoice::Auto, Direct::Auto)).unwrap();
    assert!(staged.read_only());
    assert_eq!(Lane::new(&staged).write(0, b"x"), Err(Status::ReadOnly));
}

#[test]
fn a_full_file_system_fails_the_write_that_does_not_fit() {
    let mount = requires!("a_full_file_system", Mount::new(&["-t", "tmpfs", "-o", "size=1M", "none"]));
    let path = sized(&mount.0, "disk", 4 << 20);
    for (engine, direct) in &WAYS[..2] {
        let options =
            StagedOptions { engine: *engine, direct: *direct, ..StagedOptions::new(Target::File, &path) };
        let Some(staged) = open(&options) else { continue };
        let mut lane = Lane::new(&staged);
        let results: Vec<_> = (0..32).map(|part| lane.write(part << 17, &[1; 1 << 17])).collect();
        assert!(results[0].is_ok() && results.contains(&Err(Status::NoSpace)), "{results:?}");
        assert!(results.iter().all(|result| matches!(result, Ok(()) | Err(Status::NoSpace))));
        assert_eq!(lane.read(0, 4096).unwrap(), [1; 4096]);
        lane.flush().unwrap();
        lane.one(Action::Trim { durable: false }, range(0, 4 << 20), &[]).unwrap();
        lane.write(3 << 20, &[2; 4096]).unwrap();
    }

    assert_eq!(fs::metadata(&path).unwrap().len(), 4 << 20);
}
