//! What is refused, and how it is said; what is created; what is read-only.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use kaeru_common::error::Status;

use super::super::{Action, Direct, EngineChoice, Staged, StagedOptions, Target};
use super::rig::{BUFFERED, DIRECT, Lane, folder, open, range, sized};

fn file(path: &Path) -> StagedOptions {
    StagedOptions::new(Target::File, path)
}

#[track_caller]
fn refused(options: &StagedOptions, parts: &[&str]) {
    let text = Staged::open("test", options).unwrap_err().to_string();
    for part in parts.iter().chain([&options.path.to_str().unwrap()]) {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[test]
fn something_else_than_was_named_is_refused_by_what_it_is() {
    let folder = folder();
    let path = folder.path().join("x");
    refused(&file(&path), &["does not exist", "create=SIZE"]);
    refused(&StagedOptions::new(Target::Disk, &path), &["does not exist", "lsblk"]);
    refused(&file(folder.path()), &["is a folder", "regular file"]);
    refused(&StagedOptions::new(Target::Disk, folder.path()), &["is a folder", "block device"]);
    refused(&file(Path::new("/dev/null")), &["character device"]);
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RWXU).unwrap();
    refused(&file(&path), &["is a pipe"]);
    let image = sized(&folder, "image", 4096);
    refused(&StagedOptions::new(Target::Disk, &image), &["is a regular file", "--file"]);
}

#[test]
fn less_than_a_block_is_refused() {
    let folder = folder();
    for size in [0, 1, 511] {
        refused(&file(&sized(&folder, "x", size)), &["less than one block of 512"]);
    }
    let mut options = file(&sized(&folder, "x", 4095));
    options.block = Some(4096);
    refused(&options, &["less than one block of 4096"]);
    for block in [0, 1, 511, 513, 1 << 17] {
        options.block = Some(block);
        refused(&options, &["power of two from 512"]);
    }
    options.path = sized(&folder, "x", 10_000);
    options.block = Some(4096);
    let staged = Staged::open("test", &options).unwrap();
    assert_eq!((staged.size(), staged.block()), (8192, 4096));
}

#[test]
fn a_file_is_created_only_when_asked_for_and_never_changed() {
    let folder = folder();
    let path = folder.path().join("x");
    let mut options = file(&path);
    options.create = Some(1 << 20);
    drop(Staged::open("test", &options).unwrap());
    assert_eq!(fs::metadata(&path).unwrap().len(), 1 << 20);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    fs::write(&path, vec![7; 1 << 20]).unwrap();
    drop(Staged::open("test", &options).unwrap());
    assert!(fs::read(&path).unwrap().iter().all(|&byte| byte == 7), "it is used as it is");
    options.create = Some(2 << 20);
    refused(&options, &["exists", "1 MiB", "2 MiB"]);
    fs::remove_file(&path).unwrap();
    options.create = Some(100);
    refused(&options, &["less than one block"]);
    assert!(!path.exists(), "nothing is left behind");
    (options.create, options.reserve) = (Some(1 << 20), true);
    drop(Staged::open("test", &options).unwrap());
    use std::os::unix::fs::MetadataExt;
    assert!(fs::metadata(&path).unwrap().blocks() >= 2048);
    options.path = folder.path().join("no/such/folder");
    refused(&options, &["cannot create", "folder first"]);
    options.path = folder.path().join("huge");
    options.create = Some(1 << 43);
    refused(&options, &["cannot create", "8 TiB", "room"]);
    assert!(!options.path.exists());
}

#[test]
fn what_cannot_be_written_is_read_only_by_itself() {
    let folder = folder();
    let path = sized(&folder, "x", 1 << 20);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
    let staged = Staged::open("test", &file(&path)).unwrap();
    assert!(staged.read_only() && !staged.capabilities().write);
    let mut lane = Lane::new(&staged);
    assert_eq!(lane.write(0, b"x"), Err(Status::ReadOnly));
    assert_eq!(lane.one(Action::Trim { durable: false }, range(0, 1), &[]), Err(Status::ReadOnly));
    assert_eq!(lane.read(0, 1).unwrap(), [0]);
    lane.flush().unwrap();
}

#[test]
fn a_file_has_one_writer_or_many_readers() {
    let folder = folder();
    let path = sized(&folder, "x", 1 << 20);
    let mut reading = file(&path);
    reading.read_only = true;
    let writer = Staged::open("test", &file(&path)).unwrap();
    refused(&file(&path), &["in use", "another export of this server", "--force"]);
    refused(&reading, &["in use"]);
    let mut forced = file(&path);
    forced.force = true;
    drop(Staged::open("test", &forced).unwrap());
    drop(writer);
    let readers = [&reading, &reading].map(|options| Staged::open("test", options).unwrap());
    refused(&file(&path), &["in use"]);
    drop(readers);
    Staged::open("test", &file(&path)).unwrap();
}

#[test]
fn a_locked_file_names_who_has_locked_it() {
    let folder = folder();
    let path = sized(&folder, "x", 1 << 20);
    let mut holder = match std::process::Command::new("flock")
        .args([path.to_str().unwrap(), "sh", "-c", "echo locked; read x"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
    {
        Ok(holder) => holder,
        Err(_) => return super::rig::skip("a_locked_file_names_who_has_locked_it", "there is no flock"),
    };
    std::io::Read::read_exact(holder.stdout.as_mut().unwrap(), &mut [0; 7]).unwrap();
    refused(&file(&path), &["in use", "process", "has locked it"]);
    drop(holder.stdin.take());
    holder.wait().unwrap();
    Staged::open("test", &file(&path)).unwrap();
}

#[test]
fn a_link_is_followed() {
    let folder = folder();
    let path = sized(&folder, "x", 1 << 20);
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    assert_eq!(Staged::open("test", &file(&link)).unwrap().size(), 1 << 20);
}

#[test]
fn direct_io_is_used_where_it_can_be_and_its_lack_is_explained() {
    let folder = folder();
    let path = sized(&folder, "x", 1 << 20);
    let Some(direct) = open(&path, DIRECT) else { return };
    assert!(direct.description().contains("(uring, direct"), "{}", direct.description());
    drop(direct);
    let Some(buffered) = open(&path, BUFFERED) else { return };
    assert!(buffered.description().contains("(uring, buffered"), "{}", buffered.description());
    drop(buffered);
    let mut options = file(&path);
    options.engine = EngineChoice::File;
    assert!(Staged::open("test", &options).unwrap().description().contains("(file, buffered"));
    options.direct = Direct::On;
    refused(&options, &["around the page cache", "only io_uring"]);
    if let Some(memory) = super::rig::folder_in_memory() {
        let path = sized(&memory, "x", 1 << 20);
        assert!(Staged::open("test", &file(&path)).unwrap().description().contains("buffered"));
        let mut options = file(&path);
        options.direct = Direct::On;
        refused(&options, &["in memory", "direct=auto"]);
    }
}
