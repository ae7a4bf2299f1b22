//! File exports: what only they promise. Everything is asked over NBD, and looked up in the file itself.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::thread;
use std::time::Duration;

use kaeru_client::remote::{Action, RemoteError};
use kaeru_client::session::{AttachOptions, FabricChoice, Session};
use kaeru_client::with_remote;
use kaeru_common::error::Status;
use kaeru_common::units::ByteRange;

use crate::harness::client::{Nbd, run_kaeru};
use crate::harness::nbd::*;
use crate::harness::process::eventually;
use crate::harness::random::{Random, pattern};
use crate::harness::server::{Keep, Server, disk_folder, run_kaerud};

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;
const PATIENCE: Duration = Duration::from_secs(20);

/// A server of the file `scratch` with these options, and what it makes go wrong.
fn faulty(size: u64, options: &str, faults: &[&str]) -> (Server, tempfile::TempDir) {
    let folder = disk_folder();
    let path = folder.path().join("export.img");
    let export = format!("scratch={},create={size}{options}", path.display());
    let mut flags = vec!["-v".to_owned(), "--file".to_owned(), export];
    for fault in faults {
        flags.extend(["--fault".to_owned(), format!("scratch={fault}")]);
    }
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    (Server::start(&flags), folder)
}

/// 16 writes in flight on each of four connections, a thousand times; every block has bytes of its own.
#[test]
fn sixty_four_writes_in_flight_on_four_lanes_land_where_they_belong() {
    const SIZE: u64 = 5 << 30;
    const ROUNDS: u64 = 1000;
    const EACH: u64 = 16;
    let server = Server::keeping("scratch", SIZE, Keep::DirectFile);
    let nbd = Nbd::unix(&server, "scratch");
    // Each connection writes blocks of its own, in no order, over the whole file and with the others' between them.
    let block = |connection: u64, number: u64| {
        let of_this = SIZE / BLOCK / 4;
        (number * 40_503 % of_this) * 4 + connection
    };
    let bytes = |block: u64| {
        let mut bytes = [0; BLOCK as usize];
        for (place, word) in bytes.chunks_exact_mut(8).enumerate() {
            let mixed = (block * 512 + place as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            word.copy_from_slice(&mixed.to_le_bytes());
        }
        bytes
    };
    thread::scope(|scope| {
        for connection in 0..4 {
            let mut raw = Raw::attach(&nbd);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    for place in 0..EACH {
                        let block = block(connection, round * EACH + place);
                        raw.request(CMD_WRITE, 0, block * BLOCK, BLOCK as u32);
                        raw.send(&bytes(block));
                    }
                    for _ in 0..EACH {
                        raw.reply(0).1.unwrap();
                    }
                }
                // And back, on the same connection.
                for number in 0..ROUNDS * EACH {
                    let block = block(connection, number);
                    assert!(raw.read(block * BLOCK, BLOCK as u32).unwrap() == bytes(block), "block {block}");
                }
            });
        }
    });
    // As somebody else reads it, and as the file has it; nothing was written besides.
    let mut raw = Raw::attach(&nbd);
    raw.ask(CMD_FLUSH, 0, 0, 0).unwrap();
    let file = fs::File::open(server.file()).unwrap();
    for number in (0..ROUNDS * EACH).step_by(97) {
        for connection in 0..4 {
            let block = block(connection, number);
            let mut found = [0; BLOCK as usize];
            file.read_exact_at(&mut found, block * BLOCK).unwrap();
            assert!(found == bytes(block), "block {block} in the file");
            assert!(raw.read(block * BLOCK, BLOCK as u32).unwrap() == bytes(block), "block {block}");
        }
    }
    let taken = file.metadata().unwrap().blocks() * 512;
    assert!(taken <= 4 * ROUNDS * EACH * BLOCK * 5 / 4, "{taken} bytes are taken");
}

#[test]
fn an_error_of_the_store_is_an_error_of_one_request() {
    let faults = ["read:error=EIO,range=1M-2M", "write:error=ENOSPC,range=3M-4M", "trim:error=EIO"];
    let (server, _folder) = faulty(8 * MIB, "", &faults);
    let nbd = Nbd::unix(&server, "scratch");
    let mut raw = Raw::attach(&nbd);
    let bytes = pattern(1, 64 << 10);
    for offset in [0, MIB, 2 * MIB] {
        raw.write(offset, &bytes).unwrap();
    }
    assert_eq!(raw.read(MIB + 4096, 4096), Err(EIO));
    // A long read of which one piece fails.
    assert_eq!(raw.read(0, 2 << 20), Err(EIO));
    assert_eq!(raw.write(3 * MIB, &bytes), Err(ENOSPC));
    assert_eq!(raw.write(3 * MIB - 4096, &bytes), Err(ENOSPC));
    assert_eq!(raw.ask(CMD_TRIM, 0, 0, 65536), Err(EIO));
    // The connection, the lane and the server live on.
    assert!(raw.read(0, 64 << 10).unwrap() == bytes && raw.read(2 * MIB, 64 << 10).unwrap() == bytes);
    raw.write(5 * MIB, &bytes).unwrap();
    assert_eq!(raw.ask(CMD_FLUSH, 0, 0, 0), Ok(vec![]));
    let mut other = Raw::attach(&nbd);
    assert!(other.read(5 * MIB, 64 << 10).unwrap() == bytes);
}

#[test]
fn a_flush_that_failed_stays_failed_on_every_lane() {
    let (server, _folder) = faulty(MIB, "", &["flush:error=EIO,once,after=1"]);
    let nbd = Nbd::unix(&server, "scratch");
    let (mut one, mut other) = (Raw::attach(&nbd), Raw::attach(&nbd));
    one.write(0, &[1; 4096]).unwrap();
    one.ask(CMD_FLUSH, 0, 0, 0).unwrap();
    assert_eq!(other.ask(CMD_FLUSH, 0, 0, 0), Err(EIO));
    // The kernel says it once; what it lost is lost all the same.
    assert_eq!(other.ask(CMD_FLUSH, 0, 0, 0), Err(EIO));
    assert_eq!(one.ask(CMD_FLUSH, 0, 0, 0), Err(EIO));
    let cookie = one.request(CMD_WRITE, FLAG_FUA, 0, 4096);
    one.send(&[2; 4096]);
    assert_eq!(one.reply(0), (cookie, Err(EIO)));
    // What promises nothing goes on.
    one.write(4096, &[3; 4096]).unwrap();
    assert_eq!(one.read(4096, 4096).unwrap(), [3; 4096]);
}

#[test]
fn every_flush_reaches_the_store_before_its_answer_whichever_lane_asks() {
    let (server, _folder) = faulty(MIB, "", &["flush:count,delay=60ms"]);
    let nbd = Nbd::unix(&server, "scratch");
    let mut lanes: Vec<Raw> = (0..3).map(|_| Raw::attach(&nbd)).collect();
    for number in 1..=6 {
        lanes[0].write(0, &[number as u8; 4096]).unwrap();
        let start = std::time::Instant::now();
        lanes[number % 3].ask(CMD_FLUSH, 0, 0, 0).unwrap();
        assert!(start.elapsed() >= Duration::from_millis(60), "answered before the store was done");
        eventually("the flush is logged", || {
            server.process.errors().contains(&format!("flush number {number}"))
        });
    }
}

#[test]
fn short_transfers_are_gone_on_with_and_seen_by_nobody() {
    for engine in ["uring", "file"] {
        let options = format!(",engine={engine}");
        let (server, folder) = faulty(4 * MIB, &options, &["read:short", "write:short"]);
        let nbd = Nbd::unix(&server, "scratch");
        let mut raw = Raw::attach(&nbd);
        let bytes = pattern(3, 300 << 10);
        raw.write(512, &bytes).unwrap();
        assert!(raw.read(512, 300 << 10).unwrap() == bytes, "{engine}");
        raw.ask(CMD_FLUSH, 0, 0, 0).unwrap();
        let file = fs::read(folder.path().join("export.img")).unwrap();
        assert!(file[512..512 + (300 << 10)] == bytes, "{engine}");
    }
}

#[test]
fn a_file_that_shrinks_fails_where_it_ends_and_nowhere_else() {
    for keep in [Keep::DirectFile, Keep::BufferedFile, Keep::PlainFile] {
        let server = Server::keeping("scratch", 4 * MIB, keep);
        let nbd = Nbd::unix(&server, "scratch");
        let mut raw = Raw::attach(&nbd);
        let bytes = pattern(4, 4 << 20);
        raw.write(0, &bytes).unwrap();
        raw.ask(CMD_FLUSH, 0, 0, 0).unwrap();
        fs::OpenOptions::new().write(true).open(server.file()).unwrap().set_len(2 * MIB).unwrap();
        assert_eq!(raw.read(2 * MIB, 4096), Err(EIO), "{keep:?}");
        assert_eq!(raw.read(2 * MIB - 4096, 8192), Err(EIO), "{keep:?}");
        assert!(raw.read(0, 2 << 20).unwrap() == bytes[..2 << 20], "{keep:?}");
    }
}

#[test]
fn a_read_only_file_is_exported_read_only_by_itself() {
    use std::os::unix::fs::PermissionsExt;
    let folder = disk_folder();
    let path = folder.path().join("fixed.img");
    fs::write(&path, pattern(5, 64 << 10)).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
    let server = Server::start(&["--file", &format!("fixed={},ro", path.display())]);
    let nbd = Nbd::unix(&server, "fixed");
    let mut raw = Raw::attach(&nbd);
    assert!(raw.read(0, 64 << 10).unwrap() == pattern(5, 64 << 10));
    assert_eq!(raw.write(0, &[0; 512]), Err(EPERM));
    let listed = run_kaeru(&["ls", &server.address.to_string()]).success();
    assert!(listed.contains("read-only"), "{listed}");
}

#[test]
fn sizes_that_are_no_whole_blocks_are_rounded_down_with_a_warning() {
    let folder = disk_folder();
    for (bytes, blocks) in [(513, 512), (4095, 3584), (241_059, 240_640), ((1 << 40) + 1, 1 << 40)] {
        let path = folder.path().join(format!("{bytes}.img"));
        fs::File::create(&path).unwrap().set_len(bytes).unwrap();
        let server = Server::start(&["--file", &format!("odd={}", path.display())]);
        assert!(server.process.errors().contains("no multiple of"), "{}", server.process.errors());
        let raw = Raw::attach(&Nbd::unix(&server, "odd"));
        assert_eq!(raw.size, blocks, "{bytes}");
    }
    for bytes in [1, 511] {
        let path = folder.path().join(format!("{bytes}.img"));
        fs::write(&path, vec![0; bytes]).unwrap();
        run_kaerud(&["--file", &format!("odd={}", path.display()), "--listen", "127.0.0.1:0"])
            .failure(1, &["odd", &bytes.to_string(), "512"]);
    }
}

#[test]
fn the_edges_of_huge_files_are_where_they_belong() {
    const TIB: u64 = 1 << 40;
    let server = Server::keeping("scratch", 10 * TIB, Keep::DirectFile);
    let nbd = Nbd::unix(&server, "scratch");
    let mut raw = Raw::attach(&nbd);
    assert_eq!(raw.size, 10 * TIB);
    let places = [0, (4 << 30) - 512, 4 << 30, 2 * TIB - 512, 2 * TIB, 2 * TIB + 512, 10 * TIB - 512];
    for (number, &offset) in (1u8..).zip(&places) {
        raw.write(offset, &[number; 512]).unwrap();
    }
    for (number, &offset) in (1u8..).zip(&places) {
        assert_eq!(raw.read(offset, 512).unwrap(), [number; 512], "at {offset}");
    }
    assert_eq!(raw.write(10 * TIB, &[0; 512]), Err(ENOSPC));
    // The longest trim that NBD knows, across 4 GiB and 2 TiB.
    raw.ask(CMD_TRIM, 0, 4 << 30, u32::MAX - 511).unwrap();
    raw.ask(CMD_TRIM, 0, 2 * TIB, u32::MAX - 511).unwrap();
    for (number, &offset) in (1u8..).zip(&places) {
        let trimmed = [4 << 30, 2 * TIB, 2 * TIB + 512].contains(&offset);
        let expected = if trimmed { [0; 512] } else { [number; 512] };
        assert_eq!(raw.read(offset, 512).unwrap(), expected, "at {offset}");
    }
}

/// Through the library, since a lane of NBD takes whole blocks only: the store takes any range.
#[test]
fn the_library_reaches_any_byte_and_hears_what_the_store_says() {
    let (server, folder) = faulty(MIB + 512, "", &["read:error=EIO,range=900K-901K"]);
    let options = AttachOptions { fabric: FabricChoice::Tcp, ..AttachOptions::default() };
    let session = Session::attach(&server.export("scratch").parse().unwrap(), options).unwrap();
    with_remote!(&mut session.open_lane().unwrap(), remote => {
        let size = remote.size();
        let mut model = vec![0; size as usize];
        let mut random = Random(8);
        for round in 0..300u64 {
            let longest = [20, 5000, 200_000][random.below(3) as usize];
            let length = 1 + random.below(longest);
            let offset = random.below(800 << 10).min(size - length);
            let range = ByteRange::new(offset, length).unwrap();
            let place = offset as usize..(offset + length) as usize;
            let durable = random.one_in(4);
            match random.below(8) {
                0 => {
                    remote.perform(Action::Trim { durable }, range, PATIENCE).unwrap();
                    model[place].fill(0);
                }
                1 => {
                    remote.perform(Action::Zero { no_hole: random.one_in(2), durable }, range, PATIENCE).unwrap();
                    model[place].fill(0);
                }
                2 => drop(remote.perform(Action::Flush, ByteRange::EMPTY, PATIENCE).unwrap()),
                3..=5 => {
                    let bytes = pattern(round, length as usize);
                    remote.write_at(offset, &bytes, PATIENCE).unwrap();
                    model[place].copy_from_slice(&bytes);
                }
                _ => {
                    let place = offset.min((900 << 10) - length) as usize;
                    let mut bytes = vec![1; length as usize];
                    remote.read_at(place as u64, &mut bytes, PATIENCE).unwrap();
                    assert!(bytes == model[place..place + length as usize], "round {round}");
                }
            }
        }
        let failed = remote.read_at(900 << 10, &mut [0; 100], PATIENCE).unwrap_err();
        assert!(matches!(failed, RemoteError::Store(Status::Io)), "{failed:?}");
        let beyond = ByteRange::new(size, 1).unwrap();
        let refused = remote.perform(Action::Trim { durable: false }, beyond, PATIENCE).unwrap_err();
        assert!(matches!(refused, RemoteError::Store(Status::OutOfRange)), "{refused:?}");
        remote.perform(Action::Flush, ByteRange::EMPTY, PATIENCE).unwrap();
        assert!(fs::read(folder.path().join("export.img")).unwrap() == model);
    });
}

#[test]
fn a_reader_s_lane_modifies_nothing() {
    let (server, folder) = faulty(MIB, "", &[]);
    let options = AttachOptions { fabric: FabricChoice::Tcp, read_only: true, ..AttachOptions::default() };
    let session = Session::attach(&server.export("scratch").parse().unwrap(), options).unwrap();
    with_remote!(&mut session.open_lane().unwrap(), remote => {
        let whole = ByteRange::new(0, MIB).unwrap();
        // The library asks for whatever it is told to; the server is what refuses.
        let written = remote.write_at(0, &[1; 4096], PATIENCE);
        assert!(matches!(written, Err(RemoteError::Store(Status::ReadOnly))), "{written:?}");
        for action in [Action::Trim { durable: false }, Action::Zero { no_hole: false, durable: true }] {
            let refused = remote.perform(action, whole, PATIENCE);
            assert!(matches!(refused, Err(RemoteError::Store(Status::ReadOnly))), "{refused:?}");
        }
        remote.read_at(0, &mut [1; 4096], PATIENCE).unwrap();
        assert_eq!(remote.perform(Action::Extents, whole, PATIENCE).unwrap().len(), 1);
    });
    assert!(fs::read(folder.path().join("export.img")).unwrap().iter().all(|&byte| byte == 0));
}

#[test]
fn a_limit_on_the_size_of_files_is_an_error_of_one_write() {
    let folder = disk_folder();
    let path = folder.path().join("limited.img");
    fs::File::create(&path).unwrap().set_len(4 * MIB).unwrap();
    let mut command = std::process::Command::new("bash");
    command.args(["-c", "ulimit -f 1024; exec \"$0\" \"$@\""]).arg(crate::harness::process::binary("kaerud"));
    let file = format!("scratch={},direct=off", path.display());
    let mut server = Server::started_by(command, &["--file", &file]);
    let nbd = Nbd::unix(&server, "scratch");
    let mut raw = Raw::attach(&nbd);
    raw.write(0, &[1; 4096]).unwrap();
    raw.write(3 * MIB, &[1; 4096]).unwrap_err();
    assert_eq!(raw.read(0, 4096).unwrap(), [1; 4096]);
    assert!(server.process.is_alive());
}
