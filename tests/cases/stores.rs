//! Files and disks as `kaerud` exports them: what it lists, and what it refuses to start with.

use std::fs;

use crate::harness::client::run_kaeru;
use crate::harness::process::scratch;
use crate::harness::server::{Server, run_kaerud};

#[test]
fn a_file_is_created_exported_and_listed() {
    let folder = scratch();
    let path = folder.path().join("one,two.img");
    let flag = format!("disk={},create=10M", path.to_str().unwrap().replace(',', ",,"));
    let odd = folder.path().join("odd.img");
    fs::write(&odd, vec![1; 241_059]).unwrap();
    let odd = format!("odd={},ro,block=4096", odd.to_str().unwrap());
    let server = Server::start(&["--file", &flag, "--file", &odd]);
    let list = run_kaeru(&["ls", &server.address.to_string()]).success();
    let line = |name: &str| list.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
    for part in ["file", "10 MiB", "read-write"] {
        assert!(line("disk").contains(part), "{list}");
    }
    for part in ["file", &(241_059 / 4096 * 4096 / 1024).to_string(), "read-only"] {
        assert!(line("odd").contains(part), "{list}");
    }
    assert_eq!(fs::metadata(&path).unwrap().len(), 10 << 20);
    assert_eq!(fs::metadata(folder.path().join("odd.img")).unwrap().len(), 241_059);
}

#[test]
fn a_second_server_does_not_get_the_same_file() {
    let folder = scratch();
    let path = folder.path().join("disk.img");
    let flag = format!("disk={},create=1M", path.to_str().unwrap());
    let server = Server::start(&["--file", &flag]);
    run_kaerud(&["--listen", "127.0.0.1:0", "--file", &flag])
        .failure(1, &["export disk", "disk.img is in use", "kaerud", "--force"]);
    // A killed one leaves nothing behind that would be in the way.
    drop(server);
    Server::start(&["--file", &flag]);
}

#[test]
fn what_cannot_be_exported_is_said_before_anything_is_served() {
    let folder = scratch();
    let missing = format!("x={}", folder.path().join("missing").display());
    run_kaerud(&["--listen", "127.0.0.1:0", "--file", &missing])
        .failure(1, &["export x", "missing does not exist", "create=SIZE"]);
    let directory = format!("x={}", folder.path().display());
    run_kaerud(&["--listen", "127.0.0.1:0", "--disk", &directory])
        .failure(1, &["is a folder", "a block device", "--file"]);
    run_kaerud(&["--file", "x=y,z"]).failure(2, &["\"z\" is no option", "written twice"]);
    run_kaerud(&["--file", "x=y", "--fault", "x=read"]).failure(2, &["is no fault", "read:error=EIO"]);
}
