//! Other people's NBD clients against `kaeru nbd`, on a Unix socket and on a port.

use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::harness::client::{Nbd, Place};
use crate::harness::nbd::{CMD_FLUSH, CMD_TRIM, Raw};
use crate::harness::process::{run, scratch, tool};
use crate::harness::random::pattern;
use crate::harness::server::{Keep, Server};
use crate::requires;

const MIB: usize = 1 << 20;

/// How an export is kept and served.
#[derive(Clone, Copy)]
struct Stage {
    keep: Keep,
    serve: fn(&Server, &str) -> Nbd,
}

impl Stage {
    /// A server of an export `scratch`.
    fn server(self, size: usize) -> Server {
        Server::keeping("scratch", size as u64, self.keep)
    }

    /// The export `name` of `server`.
    fn serve(self, server: &Server, name: &str) -> Nbd {
        (self.serve)(server, name)
    }
}

/// Each behaviour as a test on every stage.
macro_rules! on_stages {
    ($cases:tt; $($stage:ident: $keep:ident, $serve:ident;)*) => {
        $(on_stages!(@ $cases $stage $keep $serve);)*
    };
    (@ { $($case:ident),* $(,)? } $stage:ident $keep:ident $serve:ident) => {
        mod $stage {
            const STAGE: super::Stage = super::Stage { keep: super::Keep::$keep, serve: super::Nbd::$serve };
            $(#[test] fn $case() { super::$case(STAGE); })*
        }
    };
}

on_stages! {
    {
        nbdinfo_lists_the_export,
        nbdcopy_brings_a_file_there_and_back,
        nbdsh_finds_every_command_to_work,
        four_connections_of_nbdsh_see_one_another,
        qemu_img_converts_there_and_back,
        qemu_io_reads_what_it_wrote,
        fio_verifies_a_random_load,
        the_nbd_crate_reads_writes_and_seeks,
    };
    unix: Ram, unix;
    tcp: Ram, tcp;
    direct_file: DirectFile, unix;
    buffered_file: BufferedFile, unix;
    plain_file: PlainFile, unix;
}

on_stages! {
    {
        nbdinfo_tells_size_and_abilities,
        nbdinfo_maps_ram_as_data_and_null_as_a_hole,
    };
    ram_unix: Ram, unix;
    ram_tcp: Ram, tcp;
}

on_stages! {
    {
        nbdinfo_tells_blocks_and_holes_of_a_file,
        nbdcopy_and_qemu_img_skip_holes,
    };
    holes_direct: DirectFile, unix;
    holes_buffered: BufferedFile, unix;
    holes_plain: PlainFile, unix;
}

fn nbdinfo(nbd: &Nbd, flags: &[&str]) -> Result<Command, String> {
    let mut command = tool("nbdinfo", "libnbd-bin")?;
    command.args(flags).arg(nbd.uri());
    Ok(command)
}

fn nbdinfo_tells_size_and_abilities(stage: Stage) {
    let server = Server::start(&["--ram", "scratch=5000001", "--ram", "fixed=1M", "--read-only", "fixed"]);
    let nbd = stage.serve(&server, "scratch");
    assert_eq!(run(&mut requires!(nbdinfo(&nbd, &["--size"]))).success().trim(), "5000001");

    let described = |nbd: &Nbd| -> Result<Value, String> {
        let text = run(&mut nbdinfo(nbd, &["--json"])?).success();
        let json: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&json["protocol"], &json["TLS"]), (&"newstyle-fixed".into(), &false.into()));
        assert_eq!(json["structured"], true);
        Ok(json["exports"][0].clone())
    };
    let export = requires!(described(&nbd));
    assert_eq!((&export["export-name"], &export["export-size"]), (&"scratch".into(), &5_000_001.into()));
    assert_eq!(export["is_read_only"], false, "{export:#}");
    for ability in ["can_flush", "can_fua", "can_multi_conn", "can_trim", "can_zero", "can_df"] {
        assert_eq!(export[ability], true, "{ability} in {export:#}");
    }
    for inability in ["can_cache", "can_fast_zero", "is_rotational"] {
        assert_eq!(export[inability], false, "{inability} in {export:#}");
    }
    assert_eq!(
        (&export["block_size_minimum"], &export["block_size_preferred"], &export["block_size_maximum"]),
        (&1.into(), &4096.into(), &(32 * MIB).into())
    );
    assert_eq!(export["contexts"], serde_json::json!(["base:allocation"]));

    let fixed = requires!(described(&stage.serve(&server, "fixed")));
    assert_eq!((&fixed["is_read_only"], &fixed["export-size"]), (&true.into(), &MIB.into()));
    for inability in ["can_trim", "can_zero"] {
        assert_eq!(fixed[inability], false, "{inability} in {fixed:#}");
    }
}

fn nbdinfo_lists_the_export(stage: Stage) {
    let server = stage.server(MIB);
    let text =
        run(&mut requires!(nbdinfo(&stage.serve(&server, "scratch"), &["--list", "--json"]))).success();
    let json: Value = serde_json::from_str(&text).unwrap();
    let names: Vec<_> =
        json["exports"].as_array().unwrap().iter().map(|export| &export["export-name"]).collect();
    assert_eq!(names, ["scratch"]);
}

fn nbdinfo_maps_ram_as_data_and_null_as_a_hole(stage: Stage) {
    let server = Server::start(&["--ram", "ram=3M", "--null", "null=1T"]);
    let map = |name| -> Result<Vec<String>, String> {
        let text =
            run(&mut nbdinfo(&stage.serve(&server, name), &["--map=base:allocation", "--totals"])?).success();
        Ok(text.split_whitespace().map(str::to_owned).collect())
    };
    assert_eq!(requires!(map("ram")), ["3145728", "100.0%", "0", "data"]);
    assert_eq!(requires!(map("null")), ["1099511627776", "100.0%", "3", "hole,zero"]);
}

fn nbdcopy_brings_a_file_there_and_back(stage: Stage) {
    // Neither a multiple of a slot nor, where that may be, of a block.
    let size = 5 * MIB + if stage.keep == Keep::Ram { 4321 } else { 4096 + 512 };
    let server = stage.server(size);
    let nbd = stage.serve(&server, "scratch");
    let folder = scratch();
    let (there, back) = (folder.path().join("there"), folder.path().join("back"));
    fs::write(&there, pattern(1, size)).unwrap();
    let nbdcopy = |from: &str, to: &str| -> Result<(), String> {
        let mut command = tool("nbdcopy", "libnbd-bin")?;
        run(command.args(["--connections=4", "--requests=16", from, to])).success();
        Ok(())
    };
    requires!(nbdcopy(there.to_str().unwrap(), &nbd.uri()));
    requires!(nbdcopy(&nbd.uri(), back.to_str().unwrap()));
    assert_same(&there, &back);
}

#[track_caller]
fn assert_same(one: &Path, other: &Path) {
    let (one, other) = (fs::read(one).unwrap(), fs::read(other).unwrap());
    assert_eq!(one.len(), other.len(), "the lengths");
    assert_eq!(one.iter().zip(&other).position(|(a, b)| a != b), None, "the first byte that differs");
}

/// Runs a Python script in nbdsh, or says why there is none.
fn nbdsh(nbd: &Nbd, script: &str) -> Result<(), String> {
    let mut command = tool("nbdsh", "python3-libnbd")?;
    let mut probe = tool("python3", "python3-libnbd")?;
    if run(probe.args(["-c", "import nbd"])).code != Some(0) {
        return Err("the system's Python has no module nbd; install the package python3-libnbd".into());
    }
    // Errors are looked for with catch(): libnbd must not refuse what the server is to refuse.
    let prelude = "import errno\n\
                   def catch(act):\n\
                   \x20   try: act()\n\
                   \x20   except nbd.Error as error: return errno.errorcode[error.errnum]\n\
                   \x20   return None\n";
    let script = format!("uri = '{}'\n{prelude}{script}", nbd.uri());
    run(command.args(["-c", &script])).success();
    Ok(())
}

fn nbdsh_finds_every_command_to_work(stage: Stage) {
    let server = stage.server(4 * MIB);
    let script = r#"
h.add_meta_context("base:allocation")
h.connect_uri(uri)
assert h.get_structured_replies_negotiated()
assert h.get_size() == 4 << 20
block = h.get_block_size(nbd.SIZE_MINIMUM)
model = bytearray(4 << 20)
def put(data, at, flags=0):
    # What is not aligned is for exports of bytes.
    at, data = at // block * block, data[:len(data) // block * block]
    h.pwrite(data, at, flags)
    model[at:at + len(data)] = data
def clear(act, length, at, flags=0):
    length, at = length // block * block, at // block * block
    act(length, at, flags)
    model[at:at + length] = bytes(length)
put(b"odd" * 333, 4093)
put(b"\xa5" * 70001, 65535)
put(b"\x5a" * (1 << 20), (3 << 20) - 7, nbd.CMD_FLAG_FUA)
put(b"x" * block, (4 << 20) - block)
h.flush()
clear(h.zero, 9999, 70000)
clear(h.zero, 12345, 3 << 20, nbd.CMD_FLAG_NO_HOLE | nbd.CMD_FLAG_FUA)
assert h.pread(4 << 20, 0) == model
assert h.pread(block, (4 << 20) - block) == b"x" * block
chunks = []
def chunk(buf, offset, status, error):
    assert status == nbd.READ_DATA
    chunks.append((offset, bytes(buf)))
at = 511 // block * block
h.pread_structured(3 << 20, at, chunk)
assert b"".join(data for _, data in sorted(chunks)) == model[at:at + (3 << 20)]
chunks.clear()
h.pread_structured(65536 - block, 4096 + block, chunk, nbd.CMD_FLAG_DF)
assert chunks == [(4096 + block, bytes(model[4096 + block:4096 + 65536]))], "one chunk"
clear(h.trim, 4096, 1 << 20)
assert h.pread(4 << 20, 0) == model, "what was trimmed reads as zeroes"
extents = []
h.block_status(4 << 20, 0, lambda context, offset, entries, error: extents.extend(entries))
assert 0 < sum(extents[::2]) <= 4 << 20, extents
if block == 1:
    assert extents == [4 << 20, 0], extents
h.set_strict_mode(0)
assert catch(lambda: h.pread(2 * block, (4 << 20) - block)) == "EINVAL"
assert catch(lambda: h.pwrite(b"ab" * block, (4 << 20) - block)) == "ENOSPC"
assert catch(lambda: h.zero(2 * block, (4 << 20) - block)) == "ENOSPC"
assert catch(lambda: h.trim(2 * block, (4 << 20) - block)) == "EINVAL"
assert catch(lambda: h.cache(512, 0)) == "EINVAL"
if block > 1:
    for odd in [lambda: h.pread(1, 0), lambda: h.pread(512, 1), lambda: h.pwrite(b"x", 0), lambda: h.zero(513, 0)]:
        assert catch(odd) == "EINVAL"
assert h.pread(4 << 20, 0) == model, "the connection lives on"
h.shutdown()
"#;
    requires!(nbdsh(&stage.serve(&server, "scratch"), script));
}

fn four_connections_of_nbdsh_see_one_another(stage: Stage) {
    let server = stage.server(4 * MIB);
    let script = r#"
handles = []
for _ in range(4):
    handle = nbd.NBD()
    handle.connect_uri(uri)
    assert handle.can_multi_conn()
    handles.append(handle)
for round in range(64):
    writer, at, data = handles[round % 4], round * 54321 % (4 << 20) & ~511, bytes([round + 1]) * 512
    writer.pwrite(data, at)
    for reader in handles:
        assert reader.pread(512, at) == data, (round, at)
handles[0].flush()
for handle in handles:
    handle.shutdown()
"#;
    requires!(nbdsh(&stage.serve(&server, "scratch"), script));
}

fn qemu_img(arguments: &[&str]) -> Result<String, String> {
    Ok(run(tool("qemu-img", "qemu-utils")?.args(arguments)).success())
}

fn qemu_img_converts_there_and_back(stage: Stage) {
    const SIZE: usize = 8 * MIB;
    let server = stage.server(8 * MIB);
    let nbd = stage.serve(&server, "scratch");
    let info = requires!(qemu_img(&["info", "--output=json", &nbd.uri()]));
    let info: Value = serde_json::from_str(&info).unwrap();
    assert_eq!((&info["virtual-size"], &info["format"]), (&SIZE.into(), &"raw".into()));

    let folder = scratch();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (there, back) = (path("there"), path("back"));
    let mut bytes = pattern(2, SIZE);
    // Zeroes, which qemu writes with WRITE_ZEROES, at a place that held something else.
    Raw::attach(&nbd).write(0, &bytes).unwrap();
    bytes[MIB..3 * MIB].fill(0);
    fs::write(&there, bytes).unwrap();
    requires!(qemu_img(&["convert", "-n", "-f", "raw", "-O", "raw", &there, &nbd.uri()]));
    requires!(qemu_img(&["compare", "-f", "raw", "-F", "raw", &there, &nbd.uri()]));
    requires!(qemu_img(&["convert", "-f", "raw", "-O", "raw", &nbd.uri(), &back]));
    assert_same(Path::new(&there), Path::new(&back));
}

fn qemu_io_reads_what_it_wrote(stage: Stage) {
    let server = stage.server(8 * MIB);
    let nbd = stage.serve(&server, "scratch");
    let qemu_io = |commands: &[&str]| -> Result<String, String> {
        let mut command = tool("qemu-io", "qemu-utils")?;
        command.args(["-f", "raw"]);
        for text in commands {
            command.args(["-c", text]);
        }
        let said = run(command.arg(nbd.uri())).success();
        assert!(!said.contains("failed") && !said.contains("rror"), "{said}");
        Ok(said)
    };
    requires!(qemu_io(&[
        "write -P 0xa5 0 8M",
        "write -P 0x11 512 1k",
        "write -f -P 0x22 1M 2M",
        "aio_write -P 0x33 4M 1M",
        "aio_flush",
        "write -z 5M 64k",
        "write -z -u 6M 64k",
        "discard 7M 64k",
        "flush",
        "read -P 0xa5 0 512",
        "read -P 0x11 512 1k",
        "read -P 0xa5 1536 512",
        "read -P 0x22 1M 2M",
        "read -P 0x33 4M 1M",
        "read -P 0 5M 64k",
        "read -P 0xa5 5184k 64k",
        "read -P 0 6M 64k",
        "read -P 0xa5 7232k 64k",
    ]));
    // This is how a wrong pattern would look.
    let said =
        run(tool("qemu-io", "qemu-utils").unwrap().args(["-f", "raw", "-c", "read -P 1 0 512", &nbd.uri()]));
    assert!(said.out.contains("failed"), "{said:?}");
}

fn fio_verifies_a_random_load(stage: Stage) {
    let server = stage.server(16 * MIB);
    let nbd = stage.serve(&server, "scratch");
    let engine = |fio: &mut Command| match run(fio.arg("--enghelp=nbd")).code {
        Some(0) => Ok(()),
        _ => Err("this fio has no engine nbd; install the package fio of Debian".to_owned()),
    };
    requires!(engine(&mut requires!(tool("fio", "fio"))));
    let folder = scratch();
    let mut fio = requires!(tool("fio", "fio"));
    // It leaves files where it runs, and wants the engine before its options.
    fio.current_dir(folder.path())
        .args(["--name=load", "--ioengine=nbd"])
        .arg(format!("--uri={}", nbd.uri()));
    fio.args(["--rw=randrw", "--bsrange=512-64k", "--blockalign=512", "--iodepth=32", "--size=16m"]);
    fio.args(["--verify=crc32c", "--verify_fatal=1", "--verify_backlog=256", "--output-format=json"]);
    let said = run(&mut fio).success();
    // The engine says a word first.
    let report: Value = serde_json::from_str(&said[said.find('{').unwrap()..]).unwrap();
    let job = &report["jobs"][0];
    assert_eq!(job["error"], 0, "{job:#}");
    assert!(job["read"]["io_bytes"].as_u64() > Some(4 << 20), "{job:#}");
}

fn the_nbd_crate_reads_writes_and_seeks(stage: Stage) {
    let server = stage.server(MIB);
    let nbd = stage.serve(&server, "scratch");
    match &nbd.place {
        Place::Unix(path) => nbd_crate(UnixStream::connect(path).unwrap()),
        Place::Tcp(address) => nbd_crate(TcpStream::connect(address).unwrap()),
    }
}

/// It speaks EXPORT_NAME only, wants the zeroes behind the answer, and knows simple replies only.
fn nbd_crate(mut stream: impl Read + Write) {
    let export = nbd::client::handshake(&mut stream, b"scratch").unwrap();
    assert_eq!(
        (export.size, export.readonly, export.send_flush, export.send_trim),
        (1 << 20, false, true, true)
    );
    let mut client = nbd::client::NbdClient::new(&mut stream, &export);
    let bytes = pattern(3, 100 << 10);
    client.seek(SeekFrom::Start(12_288)).unwrap();
    client.write_all(&bytes).unwrap();
    client.flush().unwrap();
    client.seek(SeekFrom::End(-(1 << 20) + 12_288)).unwrap();
    let mut back = vec![0; bytes.len()];
    client.read_exact(&mut back).unwrap();
    assert_eq!(back, bytes);
}

#[test]
fn nbd_client_lists_the_export() {
    let server = Server::start(&["--ram", "scratch=1M"]);
    let nbd = Nbd::tcp(&server, "scratch");
    let Place::Tcp(address) = nbd.place else { panic!("it was to be a port") };
    let mut command = requires!(tool("nbd-client", "nbd-client"));
    let said = run(command.args(["-l", &address.ip().to_string(), &address.port().to_string()])).success();
    assert!(said.lines().any(|line| line.starts_with("scratch:")), "{said}");
}

fn nbdinfo_tells_blocks_and_holes_of_a_file(stage: Stage) {
    let server = stage.server(8 * MIB);
    let nbd = stage.serve(&server, "scratch");
    let text = run(&mut requires!(nbdinfo(&nbd, &["--json"]))).success();
    let json: Value = serde_json::from_str(&text).unwrap();
    let export = &json["exports"][0];
    assert_eq!(
        (&export["block_size_minimum"], &export["block_size_preferred"], &export["block_size_maximum"]),
        (&512.into(), &4096.into(), &(32 * MIB).into())
    );
    for ability in ["can_flush", "can_fua", "can_multi_conn", "can_trim", "can_zero", "can_df"] {
        assert_eq!(export[ability], true, "{ability} in {export:#}");
    }
    // More islands of data than one answer tells.
    let mut raw = Raw::attach(&nbd);
    for island in 0..16 {
        raw.write(island * 512 * 1024, &pattern(island, 64 << 10)).unwrap();
    }
    raw.ask(CMD_TRIM, 0, 15 * 512 * 1024, 64 << 10).unwrap();
    raw.ask(CMD_FLUSH, 0, 0, 0).unwrap();
    let map = run(&mut requires!(nbdinfo(&nbd, &["--map", "--json"]))).success();
    let map: Vec<Value> = serde_json::from_str(&map).unwrap();
    let mut at = 0;
    let mut data = Vec::new();
    for extent in &map {
        assert_eq!(extent["offset"].as_u64(), Some(at), "no gaps: {map:?}");
        at += extent["length"].as_u64().unwrap();
        if extent["type"] == 0 {
            data.push((extent["offset"].as_u64().unwrap(), extent["length"].as_u64().unwrap()));
        } else {
            assert_eq!(extent["type"], 3, "a hole reads as zeroes");
        }
    }
    assert_eq!(at, 8 * MIB as u64);
    let islands: Vec<(u64, u64)> = (0..15).map(|island| (island * 512 * 1024, 64 << 10)).collect();
    assert_eq!(data, islands);
}

fn nbdcopy_and_qemu_img_skip_holes(stage: Stage) {
    const SIZE: usize = 64 * MIB;
    let server = stage.server(SIZE);
    let nbd = stage.serve(&server, "scratch");
    let bytes = pattern(7, MIB);
    Raw::attach(&nbd).write(40 * MIB as u64, &bytes).unwrap();
    let folder = scratch();
    let copies = ["by-nbdcopy", "by-qemu-img"].map(|name| folder.path().join(name));
    let mut nbdcopy = requires!(tool("nbdcopy", "libnbd-bin"));
    run(nbdcopy.arg(nbd.uri()).arg(&copies[0])).success();
    requires!(qemu_img(&["convert", "-f", "raw", "-O", "raw", &nbd.uri(), copies[1].to_str().unwrap()]));
    for copy in copies {
        let metadata = fs::metadata(&copy).unwrap();
        assert_eq!(metadata.len(), SIZE as u64);
        assert!(metadata.blocks() * 512 <= 2 * MIB as u64, "{} is sparse: {metadata:?}", copy.display());
        let copied = fs::read(&copy).unwrap();
        assert!(copied[40 * MIB..41 * MIB] == bytes, "{}", copy.display());
        assert!(copied.iter().filter(|&&byte| byte != 0).count() <= MIB, "{}", copy.display());
    }
}
