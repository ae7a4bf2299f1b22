//! What `status`, `ls` and `kaerud` say of work: exact counts, times that make sense, and what is wrong.

use std::fs::OpenOptions;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::client::{Nbd, run_kaeru};
use crate::harness::nbd::{CMD_FLUSH, CMD_WRITE, Raw};
use crate::harness::process::{eventually, scratch};
use crate::harness::server::{Server, run_kaerud};

/// The one attachment of a `kaeru nbd`.
#[track_caller]
fn status(nbd: &Nbd) -> Value {
    let text = nbd.kaeru(&["status", "--json"]).success();
    let reports: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(reports.as_array().unwrap().len(), 1, "{reports:#}");
    reports[0].clone()
}

/// An export as `ls --json` shows it.
#[track_caller]
fn listed(server: &Server, name: &str) -> Value {
    let text = run_kaeru(&["ls", "--json", &server.address.to_string()]).success();
    let listing: Value = serde_json::from_str(&text).unwrap();
    let exports = listing["exports"].as_array().unwrap();
    exports.iter().find(|export| export["name"] == name).unwrap_or_else(|| panic!("{listing:#}")).clone()
}

/// Checks the times of an activity. Returns it without them.
#[track_caller]
fn without_times(activity: &Value) -> Value {
    let mut counts = activity.clone();
    let fields = counts.as_object_mut().unwrap_or_else(|| panic!("no activity: {activity:#}"));
    let last = fields.remove("last_answer_ms").and_then(|last| last.as_u64());
    assert!(last.is_some_and(|last| last < 60_000), "{activity:#}");
    let latency = fields.remove("latency").unwrap();
    let times =
        ["p50_ns", "p90_ns", "p99_ns", "p999_ns", "max_ns"].map(|name| latency[name].as_u64().unwrap());
    assert!(times[0] > 0 && times.is_sorted() && times[4] < 60_000_000_000, "{activity:#}");
    counts
}

#[test]
fn status_counts_every_request_and_every_byte() {
    let server = Server::start(&["--ram", "scratch=64M"]);
    let nbd = Nbd::unix_with(&server, "scratch", &["--fabric", "tcp"]);
    let idle = status(&nbd);
    assert_eq!((&idle["io"]["latency"], &idle["io"]["last_answer_ms"]), (&Value::Null, &Value::Null));
    assert!(nbd.kaeru(&["status"]).success().contains("no answer yet"));
    let mut raw = Raw::attach(&nbd);
    let (mut written, mut read) = (0, 0);
    for number in 0..23u32 {
        let length = 1 + number * 9973;
        raw.write(u64::from(number) << 20, &vec![1; length as usize]).unwrap();
        written += length;
    }
    for number in 0..41u32 {
        raw.read(u64::from(number), 512 * (number + 1)).unwrap();
        read += 512 * (number + 1);
    }
    raw.ask(CMD_FLUSH, 0, 0, 0).unwrap();
    raw.read(64 << 20, 1).unwrap_err();
    let report = status(&nbd);
    let expected = json!({
        "lanes": 1, "reads": 41, "writes": 23, "others": 1, "bytes_read": read, "bytes_written": written,
        "errors": 1, "in_flight": 0
    });
    assert_eq!(without_times(&report["io"]), expected);
    assert_eq!((&report["state"], &report["trouble"]), (&"ok".into(), &Value::Null));
    let text = nbd.kaeru(&["status"]).success();
    for part in
        ["41 reads (", "23 writes (", "1 others, 1 errors, 0 in flight", "last answer ", "p99.9 ", "max "]
    {
        assert!(text.contains(part), "{part} in {text}");
    }
    // The counts survive the lane's client.
    drop(raw);
    Raw::attach(&nbd).read(0, 512).unwrap();
    assert_eq!(status(&nbd)["io"]["reads"], 42);
}

#[test]
fn a_request_without_an_answer_is_in_flight_while_time_passes() {
    let server = Server::start(&["--ram", "scratch=1M"]);
    let nbd = Nbd::unix_with(&server, "scratch", &["--fabric", "tcp"]);
    let mut raw = Raw::attach(&nbd);
    raw.read(0, 512).unwrap();
    server.process.signal(Signal::STOP);
    let cookie = raw.request(CMD_WRITE, 0, 0, 512);
    raw.send(&[9; 512]);
    eventually("the write is in flight", || status(&nbd)["io"]["in_flight"] == 1);
    eventually("the last answer is some time ago", || {
        status(&nbd)["io"]["last_answer_ms"].as_u64().is_some_and(|ago| ago > 1000)
    });
    server.process.signal(Signal::CONT);
    assert_eq!(raw.reply(0), (cookie, Ok(vec![])));
    let report = status(&nbd);
    assert_eq!((&report["io"]["in_flight"], &report["io"]["writes"]), (&0.into(), &1.into()));
    let longest = report["io"]["latency"]["max_ns"].as_u64().unwrap();
    assert!(longest > 500_000_000, "the write waited, but took {longest} ns");
}

#[test]
fn what_the_server_does_not_see_is_not_told_as_nothing() {
    let server = Server::start(&["--ram", "scratch=1M", "--null", "void=1M"]);
    let nbd = Nbd::unix(&server, "scratch");
    Raw::attach(&nbd).read(0, 512).unwrap();
    for name in ["scratch", "void"] {
        let export = listed(&server, name);
        assert_eq!((&export["activity"], &export["trouble"]), (&Value::Null, &Value::Null), "{export:#}");
    }
    let table = run_kaeru(&["ls", "--activity", &server.address.to_string()]).success();
    assert_eq!(table.matches("not counted here").count(), 2, "{table}");
}

#[test]
fn kaerud_tells_on_sigusr1_and_at_its_end() {
    let mut server = Server::start(&["--ram", "scratch=1M", "--null", "void=1M"]);
    server.process.signal(Signal::USR1);
    for name in ["scratch", "void"] {
        let line = format!("export {name}: not counted here");
        eventually("kaerud says it", || server.process.errors().contains(&line));
    }
    assert_eq!(server.process.terminate().0, Some(0), "the signal has no other effect");
    for name in ["scratch", "void"] {
        let line = format!("export {name}: not counted here");
        server.process.wait_for_line(&line, |said| said.starts_with(&line).then_some(()));
    }
    for page in ["--help", "--man"] {
        let said = run_kaerud(&[page]).success();
        assert!(said.contains("SIGUSR1"), "{page}: {said}");
    }
}

#[test]
fn a_server_counts_what_it_does_to_a_file() {
    let folder = scratch();
    let path = folder.path().join("data.img");
    let mut server = Server::start(&["--file", &format!("data={},create=16M", path.display())]);
    let nbd = Nbd::unix(&server, "data");
    let mut raw = Raw::attach(&nbd);
    for number in 0..9 {
        raw.write(number * 65_536, &[3; 8192]).unwrap();
    }
    for number in 0..4 {
        raw.read(number * 65_536, 4096).unwrap();
    }
    raw.ask(CMD_FLUSH, 0, 0, 0).unwrap();
    let expected = json!({
        "lanes": 1, "reads": 4, "writes": 9, "others": 1, "bytes_read": 4 * 4096, "bytes_written": 9 * 8192,
        "errors": 0, "in_flight": 0
    });
    assert_eq!(without_times(&listed(&server, "data")["activity"]), expected);
    assert_eq!(without_times(&status(&nbd)["io"]), expected, "both sides count the same");
    let table = run_kaeru(&["ls", "--activity", &server.address.to_string()]).success();
    assert!(
        table.contains("16.0 KiB") && table.contains("72.0 KiB") && table.contains("LAST ANSWER"),
        "{table}"
    );
    let line =
        "1 lane, 4 reads (16.0 KiB), 9 writes (72.0 KiB), 1 others, 0 errors, 0 in flight; last answer ";
    server.process.signal(Signal::USR1);
    eventually("kaerud says it", || server.process.errors().contains(line));
    drop((raw, nbd));
    server.process.terminate();
    server.process.wait_for_line("what it did", |said| said.contains("4 reads (16.0 KiB)").then_some(()));
}

#[test]
fn a_file_that_failed_filled_up_or_shrank_is_told() {
    let folder = scratch();
    let place = |name: &str| folder.path().join(name);
    let file = |name: &str| format!("{name}={},create=4M", place(name).display());
    let server = Server::start(&[
        "--file",
        &file("full"),
        "--fault",
        "full=write:error=ENOSPC,once",
        "--file",
        &file("unsafe"),
        "--fault",
        "unsafe=flush:error=EIO,once",
        "--file",
        &file("short"),
    ]);
    let troubles = |name: &str, parts: &[&str]| {
        let trouble = listed(&server, name)["trouble"].as_str().unwrap_or_default().to_owned();
        assert!(parts.iter().all(|part| trouble.contains(part)), "{parts:?} in {trouble:?}");
        let table = run_kaeru(&["ls", &server.address.to_string()]).success();
        assert!(table.contains(&format!("trouble with {name}: ")), "{table}");
    };
    let full = Nbd::unix(&server, "full");
    let mut raw = Raw::attach(&full);
    assert_eq!(listed(&server, "full")["trouble"], Value::Null);
    raw.write(0, &[1; 4096]).unwrap_err();
    troubles("full", &["a write (the store is full)"]);
    assert_eq!(listed(&server, "full")["activity"]["errors"], 1);

    let broken = Nbd::unix(&server, "unsafe");
    let mut raw = Raw::attach(&broken);
    raw.write(0, &[1; 4096]).unwrap();
    for _ in 0..2 {
        raw.ask(CMD_FLUSH, 0, 0, 0).unwrap_err();
    }
    troubles("unsafe", &["flushes fail until kaerud is started anew", "a flush ("]);
    // It stays reported, whatever succeeds meanwhile; also where the export is attached.
    raw.write(0, &[1; 4096]).unwrap();
    troubles("unsafe", &["flushes fail"]);
    let said = status(&broken)["trouble"].as_str().unwrap_or_default().to_owned();
    assert!(said.contains("flushes fail"), "{said:?}");
    let text = broken.kaeru(&["status"]).success();
    assert!(text.contains("trouble at the server: ") && text.contains("flushes fail"), "{text}");

    let short = Nbd::unix(&server, "short");
    let mut raw = Raw::attach(&short);
    OpenOptions::new().write(true).open(place("short")).unwrap().set_len(1 << 20).unwrap();
    raw.read(2 << 20, 4096).unwrap_err();
    troubles("short", &["shorter than its export"]);
}
