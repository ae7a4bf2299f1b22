//! A kernel in a mood: system calls of `kaerud` that fail, or answer oddly, as some kernel does some day. strace makes
//! them do that.

use std::fs;
use std::process::Command;

use crate::harness::client::{Nbd, run_kaeru};
use crate::harness::nbd::Raw;
use crate::harness::process::{binary, run, scratch, tool};
use crate::harness::server::Server;
use crate::requires;

/// `strace` that injects this fault into the calls of what it starts, which is our child, not its.
fn strace(call: &str, fault: &str) -> Result<Command, String> {
    let begin = || -> Result<Command, String> {
        let mut command = tool("strace", "strace")?;
        command.args(["-D", "-f", "-qq", "-o", "/dev/null"]);
        Ok(command)
    };
    // Not everywhere may a process look into another one.
    match run(begin()?.arg("true")).code {
        Some(0) => {}
        _ => return Err("strace may not trace here".into()),
    }
    let mut command = begin()?;
    command.args(["-e", &format!("trace={call}"), "-e", &format!("inject={call}:{fault}")]);
    command.arg(binary("kaerud"));
    Ok(command)
}

fn start(command: Command, options: &str) -> (Server, tempfile::TempDir) {
    let folder = scratch();
    let path = folder.path().join("disk.img");
    fs::write(&path, [b'k'; 1 << 20]).unwrap();
    let server = Server::started_by(command, &["--file", &format!("disk={}{options}", path.display())]);
    (server, folder)
}

/// `EAGAIN`: the kernel has no memory for a request (io_uring_enter(2)). Nothing would ever wake a lane that slept then.
#[test]
fn requests_that_the_ring_does_not_take_at_once_are_answered_all_the_same() {
    let command = requires!(strace("io_uring_enter", "error=EAGAIN:when=1..40"));
    let (server, _folder) = start(command, "");
    let nbd = Nbd::unix(&server, "disk");
    let mut client = Raw::attach(&nbd);
    client.write(512, &[b'w'; 512]).unwrap();
    assert_eq!(client.read(0, 1024).unwrap(), [[b'k'; 512], [b'w'; 512]].concat());
    assert!(server.process.errors().contains("trying again"), "{}", server.process.errors());
}

/// Linux 5.9 and 5.10 say 0 of what is not in the page cache (preadv2(2), BUGS), which elsewhere is the end of the file.
#[test]
fn a_cached_read_of_nothing_is_not_the_end_of_the_file() {
    let command = requires!(strace("preadv2", "retval=0:when=1..3"));
    let (server, _folder) = start(command, ",direct=off");
    let nbd = Nbd::unix(&server, "disk");
    let mut client = Raw::attach(&nbd);
    for _ in 0..4 {
        assert_eq!(client.read(4096, 512).unwrap(), [b'k'; 512]);
    }
    let list = run_kaeru(&["ls", &server.address.to_string()]).success();
    assert!(!list.contains("shorter"), "{list}");
}
