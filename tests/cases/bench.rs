//! `kaeru-bench` as people and scripts use it: what it measures, what it refuses, what it leaves alone.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::harness::bench::{bench, report, result, run_bench};
use crate::harness::client::Nbd;
use crate::harness::nbd::Raw;
use crate::harness::process::{Process, scratch};
use crate::harness::server::Server;

/// Enough to be something, in no time.
const SHORT: &[&str] = &["--count", "300", "--warm-up", "0"];

fn args<'a>(first: &[&'a str], rest: &[&'a str]) -> Vec<&'a str> {
    [first, rest].concat()
}

#[test]
fn every_rung_is_measured_and_told_apart() {
    let server = Server::start(&["--ram", "scratch=16M"]);
    let target = server.export("scratch");
    let found = report(&args(&["latency", &target, "--write", "--yes", "--label", "my first try"], SHORT));
    assert_eq!(found["remarks"], serde_json::json!(["my first try"]));
    assert!(!found["labels"].to_string().contains("my first try"), "{found:#}");
    assert_eq!((&found["schema"], &found["preset"]), (&"kaeru-bench/1".into(), &"latency".into()));
    for rung in ["ram", "fabric", "remote", "socket"] {
        for operation in ["read", "write"] {
            let result = result(&found, rung, operation);
            assert_eq!((&result["all"]["count"], &result["all"]["errors"]), (&300.into(), &0.into()));
            assert_eq!(result["runs"].as_array().unwrap().len(), 3);
            let latency = &result["all"]["latency_us"];
            let us = |name: &str| latency[name].as_f64().unwrap();
            assert!(us("min") <= us("p50") && us("p50") <= us("p99") && us("p99") <= us("max"), "{latency}");
            assert!(latency["p99.99"].is_null(), "300 operations have no such percentile");
        }
    }
    let steps = found["steps"].as_array().unwrap();
    assert_eq!(steps.iter().filter(|step| step["operation"] == "read").count(), 3);
    let labels = found["labels"].to_string();
    assert!(labels.contains("loopback") && labels.contains("tcp"), "{labels}");
    assert_eq!(found["server"], found["client"], "on loopback, both ends are known");
}

#[test]
fn loads_go_through_at_any_depth_size_and_number_of_lanes() {
    let server = Server::start(&["--ram", "scratch=16M", "--null", "void=1G"]);
    for export in ["scratch", "void"] {
        let target = server.export(export);
        for flags in [
            &["--depth", "64", "--lanes", "3", "--block", "8"][..],
            &["--depth", "300", "--block", "1M", "--count", "600"],
            &["--op", "mixed", "--pattern", "sequential", "--depth", "16", "--write", "--yes", "--stages"],
        ] {
            let counted = flags.contains(&"--count");
            let short = if counted { &["--warm-up", "0"][..] } else { SHORT };
            let found = report(&[&["run", &target], flags, short].concat());
            let results = found["results"].as_array().unwrap();
            assert!(results.len() >= 4, "{found:#}");
            assert!(results.iter().all(|result| result["all"]["errors"] == 0), "{found:#}");
        }
    }
}

#[test]
fn a_file_export_has_no_fabric_rung_and_tells_of_its_store() {
    let folder = scratch();
    let flag = format!("disk={},create=16M", folder.path().join("disk.img").display());
    let server = Server::start(&["--file", &flag]);
    let target = server.export("disk");
    run_bench(&args(&["latency", &target, "--rung", "fabric"], SHORT))
        .failure(1, &["no rung \"fabric\"", "--rung remote"]);
    let found = report(&args(&["latency", &target, "--stages"], SHORT));
    assert!(found["results"].as_array().unwrap().iter().all(|result| result["rung"] != "fabric"));
    let stages = |rung| -> Vec<String> {
        let stages = result(&found, rung, "read")["stages"].as_array().unwrap();
        stages.iter().map(|stage| stage["stage"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(stages("remote"), ["post-to-completion", "server-queue", "store", "network"]);
    let socket = stages("socket");
    assert_eq!(
        (socket.len(), socket[0].as_str(), socket[6].as_str()),
        (7, "socket-to-lane", "lane-to-socket")
    );
}

#[test]
fn stages_add_up_to_the_whole() {
    let server = Server::start(&["--ram", "scratch=16M"]);
    let target = server.export("scratch");
    let found = report(&args(&["run", &target, "--rung", "socket", "--stages"], SHORT));
    let result = result(&found, "socket", "read");
    let parts: f64 = result["stages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|stage| stage["latency_us"]["mean"].as_f64().unwrap())
        .sum();
    let whole = result["all"]["latency_us"]["mean"].as_f64().unwrap();
    assert!((parts / whole - 1.0).abs() < 0.02, "{parts} µs of {whole} µs");
}

#[test]
fn injected_delays_come_out_as_the_distribution_that_they_have() {
    let folder = scratch();
    let flag = format!("disk={},create=16M", folder.path().join("disk.img").display());
    // An exponential distribution with a mean of 5 ms: its percentiles are known.
    let server = Server::start(&["--file", &flag, "--fault", "disk=read:delay=exp:5ms"]);
    let flags = [
        "run",
        &server.export("disk"),
        "--rung",
        "remote",
        "--depth",
        "16",
        "--count",
        "6000",
        "--repeat",
        "1",
    ];
    let found = report(&args(&flags, &["--stages", "--warm-up", "0"]));
    let result = result(&found, "remote", "read");
    // What the store took, as the server says, and what the whole took here: that may only be longer.
    let store = result["stages"].as_array().unwrap().iter().find(|stage| stage["stage"] == "store").unwrap();
    let store = store["latency_us"].clone();
    // Another distribution of the same mean misses one of the lower bounds; the upper ones leave room for a busy machine.
    for (name, part, most) in [("p50", 0.5, 2.0), ("p90", 0.9, 2.0), ("p99", 0.99, 2.5)] {
        let wanted = -5000.0 * f64::ln(1.0 - part);
        let of_store = store[name].as_f64().unwrap();
        let whole = result["all"]["latency_us"][name].as_f64().unwrap();
        assert!(
            (0.93..most).contains(&(of_store / wanted)),
            "{name}: {of_store} µs in the store, {wanted} asked for"
        );
        assert!(whole >= of_store * 0.99, "{name}: {whole} µs is less than the store's {of_store}");
    }
    let mean = store["mean"].as_f64().unwrap();
    assert!((0.95..2.0).contains(&(mean / 5000.0)), "mean {mean} µs, 5000 asked for");
}

#[test]
fn nothing_is_written_without_a_yes() {
    let server = Server::start(&["--ram", "scratch=1M", "--ram", "fixed=1M", "--read-only", "fixed"]);
    let target = server.export("scratch");
    run_bench(&["latency", &target, "--write"]).failure(2, &["--write", "destroyed", "--yes"]);
    run_bench(&["run", &target, "--op", "write"]).failure(2, &["--write"]);
    run_bench(&["latency", &server.export("fixed"), "--write", "--yes"])
        .failure(1, &["read-only", "without --write"]);
    let bytes: Vec<u8> = (0..1 << 20).map(|at| (at % 253) as u8).collect();
    let nbd = Nbd::unix(&server, "scratch");
    let mut raw = Raw::attach(&nbd);
    raw.write(0, &bytes).unwrap();
    let found = report(&args(&["latency", &target, "--stages"], SHORT));
    assert_eq!(result(&found, "socket", "read")["all"]["errors"], 0);
    assert!(raw.read(0, 1 << 20).unwrap() == bytes, "reading changes nothing");
}

#[test]
fn a_socket_of_somebody_else_is_measured_and_labelled() {
    let server = Server::start(&["--ram", "scratch=1M"]);
    let nbd = Nbd::unix(&server, "scratch");
    let mut command = bench(nbd.folder(), &["latency", "--json", "--socket", nbd.socket().to_str().unwrap()]);
    command.args(SHORT).args(["--depth", "8"]);
    let text = crate::harness::process::run(&mut command).success();
    let found: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(result(&found, "socket", "read")["all"]["count"], 300);
    assert_eq!((&found["target_bytes"], &found["route"]["fabric"]), (&(1 << 20).into(), &"tcp".into()));
    assert!(found["labels"].to_string().contains("loopback"), "{found:#}");
}

/// Against the kernel's count of the same process, which goes by hundredths of a second and includes the attaching.
#[test]
fn the_server_tells_the_processor_time_that_it_used() {
    let server = Server::start(&["--ram", "scratch=16M"]);
    let target = server.export("scratch");
    let before = server.process.ticks();
    let load =
        ["--rung", "ram,remote", "--depth", "16", "--count", "60000", "--repeat", "1", "--warm-up", "0"];
    let found = report(&args(&["run", &target], &load));
    let counted = (server.process.ticks() - before) as f64 / 100.0;
    let told = result(&found, "remote", "read")["all"]["server_cpu_seconds"].as_f64().unwrap();
    assert!(told > 0.02 && (counted - told).abs() < 0.05 + counted / 10.0, "{told} s of {counted} s");
    assert!(
        result(&found, "ram", "read")["all"]["server_cpu_seconds"].is_null(),
        "no server has a part in it"
    );
}

#[test]
fn a_disk_is_compared_with_in_a_file_of_its_own() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let found = report(&args(&["latency", "--disk", folder.path().to_str().unwrap(), "--write"], SHORT));
    assert_eq!(result(&found, "disk", "write")["all"]["errors"], 0);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing stays behind");
}

#[test]
fn wrong_usage_is_told_from_failure() {
    run_bench(&[]).failure(2, &["Usage"]);
    run_bench(&["latency"]).failure(2, &["HOST/EXPORT", "--socket", "--device", "--disk"]);
    run_bench(&["run", "h/x", "--reads", "70", "--write", "--yes"]).failure(2, &["--reads", "--op mixed"]);
    run_bench(&["latency", "h/x", "--depth", "0"]).failure(2, &["--depth"]);
    run_bench(&["latency", "h/x", "--rung", "sky"]).failure(2, &["sky"]);
    run_bench(&["compare", "one.json"]).failure(2, &["FILE"]);
    run_bench(&["latency", "127.0.0.1:1/x"]).failure(1, &["cannot reach", "kaerud"]);
    run_bench(&["latency", "--device", "/dev/no-such"]).failure(1, &["/dev/no-such"]);
    run_bench(&["latency", "--socket", "/no/such"]).failure(1, &["/no/such"]);
    for arguments in
        [&["--help"][..], &["--man"], &["--completions", "bash"], &["machine"], &["sweep", "--help"]]
    {
        assert!(!run_bench(arguments).success().is_empty());
    }
    let server = Server::start(&["--ram", "small=4097"]);
    run_bench(&["latency", &server.export("small"), "--block", "8K"])
        .failure(1, &["does not fit", "--block"]);
}

/// Starts a long measurement and gives its process once it has measured something.
fn long(server: &Server, more: &[&str]) -> (Process, tempfile::TempDir) {
    let folder = scratch();
    let flags = [
        "run",
        &server.export("scratch"),
        "--rung",
        "remote",
        "--seconds",
        "600",
        "--json",
        "--warm-up",
        "0",
    ];
    let process = Process::start("kaeru-bench", bench(folder.path(), &args(&flags, more)));
    std::thread::sleep(Duration::from_millis(1500));
    (process, folder)
}

/// What a process says when it is interrupted.
fn interrupted(process: &mut Process) -> Value {
    let start = Instant::now();
    process.signal(Signal::INT);
    let status = process.ended_within(Duration::from_secs(10)).expect("an interrupted measurement ends");
    assert_eq!(status.code(), Some(130));
    assert!(start.elapsed() < Duration::from_secs(8), "it took {:?}", start.elapsed());
    let mut text = String::new();
    process.wait_for_line("the end of its report", |line| (line == "}").then_some(()));
    text.push_str(process.said());
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn interrupted_it_prints_what_was_measured_so_far() {
    let server = Server::start(&["--ram", "scratch=1M"]);
    let (mut process, _folder) = long(&server, &["--lanes", "2"]);
    let found = interrupted(&mut process);
    assert_eq!(found["interrupted"], true);
    assert!(result(&found, "remote", "read")["all"]["count"].as_u64().unwrap() > 100);
}

#[test]
fn interrupted_while_the_server_says_nothing_it_prints_what_was_measured_so_far() {
    let server = Server::start(&["--ram", "scratch=1M"]);
    let (mut process, _folder) = long(&server, &[]);
    server.process.signal(Signal::STOP);
    std::thread::sleep(Duration::from_millis(300));
    let found = interrupted(&mut process);
    server.process.signal(Signal::CONT);
    assert!(result(&found, "remote", "read")["all"]["count"].as_u64().unwrap() > 100);
}

#[test]
fn a_server_that_goes_away_fails_the_run_and_keeps_what_there_is() {
    let mut server = Server::start(&["--ram", "scratch=1M"]);
    let (mut process, _folder) = long(&server, &[]);
    server.process.kill();
    let status = process.ended_within(Duration::from_secs(30)).expect("a dead server ends it");
    assert_eq!(status.code(), Some(1));
    process.wait_for_line("the end of its report", |line| (line == "}").then_some(()));
    let found: Value = serde_json::from_str(process.said()).unwrap();
    let result = result(&found, "remote", "read");
    assert!(result["all"]["count"].as_u64().unwrap() > 100 && result["all"]["errors"] == 1, "{found:#}");
    assert!(result["first_error"].as_str().unwrap().contains("the lane is dead"), "{found:#}");
}

#[test]
fn rungs_above_one_whose_lanes_died_are_not_begun_and_all_that_was_under_way_has_failed() {
    let mut server = Server::start(&["--ram", "scratch=1M"]);
    let (mut process, _folder) = long(&server, &["--rung", "socket", "--depth", "32"]);
    server.process.kill();
    let status = process.ended_within(Duration::from_secs(30)).expect("a dead server ends it");
    assert_eq!(status.code(), Some(1));
    process.wait_for_line("the end of its report", |line| (line == "}").then_some(()));
    let found: Value = serde_json::from_str(process.said()).unwrap();
    assert_eq!(found["results"].as_array().unwrap().len(), 1, "{found:#}");
    assert_eq!(result(&found, "remote", "read")["all"]["errors"], 32, "{found:#}");
    let problem = found["problem"].as_str().unwrap();
    assert!(problem.contains("\"remote\" lost 1 of 1 lanes: the lane is dead"), "{problem}");
}

#[test]
fn as_many_lanes_as_a_session_has_are_opened_on_every_rung() {
    let server = Server::start(&["--ram", "scratch=1M"]);
    let target = server.export("scratch");
    let flags = ["sweep", &target, "--rung", "fabric,remote,socket", "--sizes", "4K,8K", "--depths", "1"];
    let found = report(&args(&flags, &["--lanes", "16", "--count", "64", "--warm-up", "0"]));
    let results = found["results"].as_array().unwrap();
    assert!(results.len() == 6 && results.iter().all(|result| result["all"]["count"] == 64), "{found:#}");
    run_bench(&["latency", &target, "--lanes", "17"]).failure(2, &["--lanes 17", "at most 16", "--socket"]);
}

#[test]
fn exactly_as_many_operations_are_measured_as_were_asked_for() {
    let server = Server::start(&["--null", "void=1M"]);
    let target = server.export("void");
    for count in [1, 2, 10] {
        let flags = ["run", &target, "--rung", "remote", "--warm-up", "0", "--count", &count.to_string()];
        assert_eq!(result(&report(&flags), "remote", "read")["all"]["count"], count);
    }
}

#[test]
fn a_stall_at_the_end_is_not_hidden_and_a_missed_rate_is_told() {
    let folder = scratch();
    let flag = format!("disk={},create=1M", folder.path().join("disk.img").display());
    // The third operation of three hundred takes longer than all of them have.
    let server = Server::start(&["--file", &flag, "--fault", "disk=read:delay=700ms,after=2,once"]);
    let target = server.export("disk");
    let flags = ["run", &target, "--rung", "remote", "--repeat", "1", "--warm-up", "0"];
    let load = ["--rate", "1000", "--seconds", "0.3"];
    let found = report(&args(&flags, &load));
    let all = &result(&found, "remote", "read")["all"];
    assert_eq!((&all["count"], &all["missed"]), (&300.into(), &0.into()), "{all:#}");
    let median = all["latency_us"]["p50"].as_f64().unwrap();
    assert!(median > 400_000.0, "half of all waited for more than 400 ms, not {median} µs");
    assert!(result(&found, "remote", "read")["rate_missed"].as_f64().unwrap() < 500.0, "{found:#}");
    // One a second is one a second.
    let found = report(&args(&flags, &["--rate", "1", "--seconds", "2"]));
    let iops = result(&found, "remote", "read")["all"]["iops"].as_f64().unwrap();
    assert!((0.5..=1.0).contains(&iops), "{iops}");
    run_bench(&args(&flags, &["--rate", "1e-20"])).failure(2, &["from 0.0001 to 100000000"]);
    run_bench(&args(&flags, &["--rate", "1e9"])).failure(2, &["from 0.0001 to 100000000"]);
    run_bench(&args(&flags, &["--seconds", "1e-9"])).failure(2, &["from 0.001"]);
}

#[test]
fn differences_are_taken_only_between_ways_to_the_same_export() {
    let server = Server::start(&["--ram", "scratch=1M", "--ram", "other=1M"]);
    let nbd = Nbd::unix(&server, "scratch");
    let socket = nbd.socket().to_str().unwrap();
    let steps_and_apart = |folder: &std::path::Path, target: &str| {
        let flags = ["latency", target, "--socket", socket, "--json"];
        let text = crate::harness::process::run(bench(folder, &flags).args(SHORT)).success();
        let found: Value = serde_json::from_str(&text).unwrap();
        (found["steps"].as_array().unwrap().len(), found["apart"].clone())
    };
    let scratch_export = server.export("scratch");
    assert_eq!(steps_and_apart(nbd.folder(), &scratch_export), (3, serde_json::json!([])));
    // Nobody in this folder knows of it.
    let empty = scratch();
    assert_eq!(steps_and_apart(empty.path(), &scratch_export), (2, serde_json::json!(["socket"])));
}

#[test]
fn what_is_given_in_place_of_a_file_is_not_waited_for() {
    let folder = scratch();
    let fifo = folder.path().join("fifo");
    let made = std::process::Command::new("mkfifo").arg(&fifo).status().expect("coreutils");
    assert!(made.success());
    let (fifo, place) = (fifo.to_str().unwrap(), folder.path().to_str().unwrap());
    run_bench(&["latency", "--device", fifo]).failure(1, &["a FIFO", "a block device"]);
    run_bench(&["latency", "--device", place]).failure(1, &["a folder", "a block device"]);
    assert_eq!(std::fs::read_dir(place).unwrap().count(), 1, "nothing was made in it");
    let server = Server::start(&["--ram", "scratch=1M"]);
    run_bench(&args(&["latency", &server.export("scratch"), "--server-machine", fifo], SHORT))
        .failure(1, &["--server-machine", "nothing came from it", "kaeru-bench machine --json"]);
    run_bench(&["latency", &server.export("scratch"), "--html", &format!("{place}/no/page.html")])
        .failure(1, &["cannot write the page"]);
}

#[test]
fn a_closed_pipe_loses_neither_the_page_nor_the_failure() {
    let folder = scratch();
    let server = Server::start(&["--ram", "scratch=1M"]);
    let page = folder.path().join("page.html");
    let closed = |flags: &[&str]| {
        let mut command = bench(folder.path(), flags);
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        command.stdout(writer).stderr(std::process::Stdio::null()).status().unwrap().code()
    };
    let target = server.export("scratch");
    let flags = args(&["latency", &target, "--html", page.to_str().unwrap()], SHORT);
    assert_eq!(closed(&flags), Some(0));
    assert!(std::fs::read_to_string(&page).unwrap().contains("</html>"));
    let flag = format!("disk={},create=1M", folder.path().join("disk.img").display());
    let faulty = Server::start(&["--file", &flag, "--fault", "disk=read:error=EIO,every=2"]);
    assert_eq!(closed(&args(&["latency", &faulty.export("disk"), "--json"], SHORT)), Some(1));
    let report = folder.path().join("report.json");
    std::fs::write(&report, self::report(&args(&["latency", &target], SHORT)).to_string()).unwrap();
    let report = report.to_str().unwrap();
    assert_eq!(closed(&["compare", report, report, "--json", "--html", page.to_str().unwrap()]), Some(0));
    assert!(std::fs::read_to_string(&page).unwrap().contains("Comparison of"));
}

#[test]
fn odd_bytes_and_escapes_do_no_harm() {
    use std::os::unix::ffi::OsStrExt;
    let odd = std::ffi::OsStr::from_bytes(b"/no/\xff\xfe");
    let mut command = bench(scratch().path(), &["latency", "--disk"]);
    crate::harness::process::run(command.arg(odd)).failure(1, &["cannot open", "/no/"]);
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let place = folder.path().join(std::ffi::OsStr::from_bytes(b"\xff\xfe"));
    std::fs::write(&place, vec![7; 1 << 20]).unwrap();
    let mut command = bench(scratch().path(), &args(&["latency", "--json", "--disk"], &[]));
    let text = crate::harness::process::run(command.arg(&place).args(SHORT)).success();
    assert!(text.contains("\u{fffd}"), "{text}");
    for form in [&[][..], &["--paste"], &["--csv"], &["--json"]] {
        let flags = ["latency", "--rung", "ram", "--label", "a\u{1b}[2Jb\u{9b}31m"];
        let server = Server::start(&["--ram", "scratch=1M"]);
        let target = server.export("scratch");
        let text = run_bench(&[&flags, form, SHORT, &[target.as_str()]].concat()).success();
        assert!(!text.contains(['\u{1b}', '\u{9b}']) && text.contains('a'), "{text:?}");
    }
}

#[test]
fn an_nbd_server_that_says_nothing_is_named_so() {
    let folder = scratch();
    let path = folder.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let path = path.to_str().unwrap();
    run_bench(&["latency", "--socket", path]).failure(1, &["did not answer within 10 s"]);
    run_bench(&["latency", "--socket", path, "--stages"]).failure(2, &["--stages", "leave it out"]);
}

#[test]
fn a_rate_is_kept_and_late_operations_count_from_when_they_were_due() {
    let folder = scratch();
    let flag = format!("disk={},create=1M", folder.path().join("disk.img").display());
    let server = Server::start(&["--file", &flag, "--fault", "disk=read:delay=20ms,every=50"]);
    let flags = ["run", &server.export("disk"), "--rung", "remote", "--rate", "500", "--count", "500"];
    let found = report(&args(&flags, &["--repeat", "1", "--warm-up", "0"]));
    let result = result(&found, "remote", "read");
    let seconds = result["all"]["seconds"].as_f64().unwrap();
    assert!((0.95..2.0).contains(&seconds), "500 operations at 500 a second took {seconds} s");
    let (due, begun) = (&result["all"]["latency_us"]["p90"], &result["uncorrected_us"]["p90"]);
    assert!(due.as_f64() > begun.as_f64(), "{due} is not more than {begun}");
}

#[test]
fn reports_are_compared_by_the_spread_of_their_runs() {
    let folder = scratch();
    let flag = format!("disk={},create=1M", folder.path().join("disk.img").display());
    let slow = Server::start(&["--file", &flag, "--fault", "disk=read:delay=4ms"]);
    let fast = Server::start(&["--ram", "disk=1M"]);
    let mut files = Vec::new();
    for (server, name, flags) in [
        (&fast, "fast", &["--repeat", "3"][..]),
        (&slow, "slow", &["--repeat", "3"]),
        (&slow, "single", &["--repeat", "1"]),
    ] {
        let target = server.export("disk");
        let found = report(
            &[&["run", &target, "--rung", "remote", "--count", "60", "--warm-up", "0"], flags].concat(),
        );
        let path = folder.path().join(format!("{name}.json"));
        std::fs::write(&path, found.to_string()).unwrap();
        files.push(path.to_str().unwrap().to_owned());
    }
    let page = folder.path().join("page.html");
    let flags = ["compare", &files[0], &files[1], &files[2], "--html", page.to_str().unwrap()];
    let text = run_bench(&flags).success();
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "slow is slower than fast",
        "lie apart",
        "no verdict on single",
        "--repeat 3",
        "kinds of export differ: ram / file",
    ] {
        assert!(words.contains(part), "{part} is not in {text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    assert!(std::fs::read_to_string(&page).unwrap().contains("<svg"));
    std::fs::write(folder.path().join("odd.json"), "{\"schema\": \"other/1\"}").unwrap();
    let odd = folder.path().join("odd.json");
    run_bench(&["compare", &files[0], odd.to_str().unwrap()]).failure(1, &["odd.json", "other/1", "--json"]);
}
