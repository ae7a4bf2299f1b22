//! Programs as real processes: started, waited for with bounded patience, killed when a test is over, quoted when it
//! fails.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// How long what must happen may take, on a machine that is busy with other tests.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// A program of this workspace, built by `cargo build` beside the tests.
pub(crate) fn binary(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own path");
    let profile = test.parent().and_then(|deps| deps.parent()).expect("tests lie in target/<profile>/deps");
    let path = profile.join(name);
    assert!(path.exists(), "{} is missing: run cargo build --workspace first, or tests/run", path.display());
    path
}

/// A folder for one test, removed behind it.
pub(crate) fn scratch() -> TempDir {
    tempfile::Builder::new().prefix("kaeru-test-").tempdir().expect("a scratch folder")
}

/// A process of ours. Dropping it kills it, and quotes it if the test is failing.
pub(crate) struct Process {
    name: String,
    child: Child,
    lines: Receiver<String>,
    said: String,
    errors: PathBuf,
    status: Option<ExitStatus>,
    _folder: TempDir,
}

impl Process {
    /// Starts a program; what it says on stderr goes to a log.
    pub(crate) fn start(name: &str, mut command: Command) -> Self {
        let folder = scratch();
        let errors = folder.path().join("stderr");
        let log = File::create(&errors).expect("a log");
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
        let stdout = child.stdout.take().expect("it is piped");
        let (say, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if say.send(line).is_err() {
                    return;
                }
            }
        });
        let name = name.to_owned();
        Self { name, child, lines, said: String::new(), errors, status: None, _folder: folder }
    }

    /// Waits for a line on stdout that `wanted` makes something of.
    pub(crate) fn wait_for_line<T>(&mut self, what: &str, wanted: impl Fn(&str) -> Option<T>) -> T {
        let deadline = Instant::now() + SOON;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    self.said += &line;
                    self.said.push('\n');
                    if let Some(found) = wanted(&line) {
                        return found;
                    }
                }
                Err(error) => panic!("{} never said {what}: {error}", self.name),
            }
        }
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it said on stdout, as far as it was waited for.
    pub(crate) fn said(&self) -> &str {
        &self.said
    }

    /// What it said on stderr so far.
    pub(crate) fn errors(&self) -> String {
        std::fs::read_to_string(&self.errors).unwrap_or_default()
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        assert!(self.status.is_none(), "{} has ended already", self.name);
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).expect("a process id");
        kill_process(pid, signal).expect("our own process takes signals");
    }

    /// Kills it, as a crash would, and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        self.signal(Signal::KILL);
        let status = self.ended_within(SOON).expect("nothing survives SIGKILL");
        assert_eq!(status.signal(), Some(Signal::KILL.as_raw()), "{} was killed", self.name);
    }

    /// Its exit status, if it ends within `patience`.
    pub(crate) fn ended_within(&mut self, patience: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + patience;
        while self.status.is_none() {
            self.status = self.child.try_wait().expect("our own child can be waited for");
            if self.status.is_none() && Instant::now() >= deadline {
                return None;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        self.status
    }

    /// Asks it to end with SIGTERM. Returns exit code and time that it took.
    pub(crate) fn terminate(&mut self) -> (Option<i32>, Duration) {
        let start = Instant::now();
        self.signal(Signal::TERM);
        let status = self.ended_within(SOON).unwrap_or_else(|| panic!("{} ignores SIGTERM", self.name));
        (status.code(), start.elapsed())
    }

    /// Whether it still runs.
    pub(crate) fn is_alive(&mut self) -> bool {
        self.ended_within(Duration::ZERO).is_none()
    }

    /// Its open descriptors.
    pub(crate) fn descriptors(&self) -> usize {
        self.count("fd")
    }

    /// Its threads.
    pub(crate) fn threads(&self) -> usize {
        self.count("task")
    }

    fn count(&self, what: &str) -> usize {
        std::fs::read_dir(format!("/proc/{}/{what}", self.pid())).expect("a live process").count()
    }

    /// CPU time that it has used, in clock ticks of a hundredth of a second.
    pub(crate) fn ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).expect("a live process");
        // The name in parentheses may hold spaces; utime and stime are the 12th and 13th field behind it.
        let (_, fields) = stat.rsplit_once(')').expect("a name");
        fields.split_whitespace().skip(11).take(2).map(|field| field.parse::<u64>().expect("a number")).sum()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.status.is_none() {
            // A failure means that it has just ended by itself.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        if std::thread::panicking() {
            self.said.extend(self.lines.try_iter().map(|line| line + "\n"));
            eprintln!("--- {} said ---\n{}{}", self.name, self.said, self.errors());
        }
    }
}

/// What a command came to.
#[derive(Debug)]
pub(crate) struct Outcome {
    command: String,
    /// Its exit code; `None` where a signal ended it.
    pub(crate) code: Option<i32>,
    /// What it said on stdout.
    pub(crate) out: String,
    /// What it said on stderr.
    pub(crate) err: String,
}

impl Outcome {
    /// Checks that it succeeded. Returns what it said on stdout.
    #[track_caller]
    pub(crate) fn success(self) -> String {
        assert_eq!(self.code, Some(0), "{}\nstdout: {}\nstderr: {}", self.command, self.out, self.err);
        self.out
    }

    /// Checks that it failed with `code` and said each of `parts` on stderr.
    #[track_caller]
    pub(crate) fn failure(self, code: i32, parts: &[&str]) -> String {
        let Self { command, out, err, .. } = &self;
        assert_eq!(self.code, Some(code), "{command}\nstdout: {out}\nstderr: {err}");
        for part in parts {
            assert!(err.contains(part), "{command} does not say {part:?} but: {err}");
        }
        self.err
    }
}

/// Runs a command to its end, which must come within `patience`.
#[track_caller]
pub(crate) fn run_within(patience: Duration, command: &mut Command) -> Outcome {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
    let out = drain(child.stdout.take().expect("it is piped"));
    let err = drain(child.stderr.take().expect("it is piped"));
    let deadline = Instant::now() + patience;
    let status = loop {
        match child.try_wait().expect("our own child can be waited for") {
            Some(status) => break status,
            None if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(2)),
            None => {
                let _ = child.kill();
                let _ = child.wait();
                let (out, err) = (out.join(), err.join());
                panic!("{command:?} did not end within {patience:?}\nstdout: {out:?}\nstderr: {err:?}");
            }
        }
    };
    let text = |reader: JoinHandle<String>| reader.join().expect("a reader");
    Outcome { command: format!("{command:?}"), code: status.code(), out: text(out), err: text(err) }
}

/// Runs a command to its end.
#[track_caller]
pub(crate) fn run(command: &mut Command) -> Outcome {
    run_within(Duration::from_secs(60), command)
}

fn drain(mut from: impl Read + Send + 'static) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // What was read before an error is all that there is to show.
        let _ = from.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// A program of the system, or which package to install.
pub(crate) fn tool(name: &str, package: &str) -> Result<Command, String> {
    // The system's folders first: nbdsh must not meet another Python than the one it was packaged for.
    let path = format!("/usr/bin:/usr/sbin:/bin:/sbin:{}", std::env::var("PATH").unwrap_or_default());
    let found = path.split(':').map(|folder| PathBuf::from(folder).join(name)).find(|path| path.exists());
    let mut command = Command::new(found.ok_or(format!("no {name} here; install the package {package}"))?);
    command.env("PATH", path);
    Ok(command)
}

/// Waits until `reached`, which must come soon.
#[track_caller]
pub(crate) fn eventually(what: &str, mut reached: impl FnMut() -> bool) {
    let deadline = Instant::now() + SOON;
    while !reached() {
        assert!(Instant::now() < deadline, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
