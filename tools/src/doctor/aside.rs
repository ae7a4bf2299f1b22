//! What is not in a file: the version of mstflint, and what libibverbs sees. Only on the running machine.

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use kaeru_common::host::{Fact, Host};

/// How long mstflint may take to tell its version.
const PATIENCE: Duration = Duration::from_secs(3);
/// Bytes of its answer that are looked at.
const ANSWER: u64 = 4096;
/// Where distributions put it; `sbin` is not on everybody's path.
const FOLDERS: [&str; 4] = ["/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"];

/// What programs and libraries said.
#[derive(Clone, Debug)]
pub struct Aside {
    /// The answer of `mstflint -v`.
    pub mstflint: Fact,
    /// The RDMA devices that libibverbs has a driver for; `None` where it was not asked.
    pub library: Option<Vec<String>>,
}

impl Aside {
    /// Asks around, if the machine is the running one.
    pub fn ask(host: &Host) -> Self {
        if !host.is_live() {
            return Self { mstflint: host.software.mstflint.clone(), library: None };
        }
        // To ask the library loads modules of the kernel where they are missing, and that is no doctor's to do.
        let is_loaded = host.rdma.iter().any(|device| device.verbs.is_some());
        Self { mstflint: mstflint(), library: if is_loaded { library() } else { None } }
    }
}

#[cfg(feature = "verbs")]
fn library() -> Option<Vec<String>> {
    Some(kaeru_common::fabric::verbs::names())
}

#[cfg(not(feature = "verbs"))]
fn library() -> Option<Vec<String>> {
    None
}

/// Its version option looks at no card.
fn mstflint() -> Fact {
    let path = FOLDERS.into_iter().map(|folder| format!("{folder}/mstflint"));
    let Some(path) = path.into_iter().find(|path| std::path::Path::new(path).exists()) else {
        return Fact::missing("mstflint -v");
    };
    let said = said_by(Command::new(path).arg("-v")).unwrap_or_default();
    let line: String = said.lines().next().unwrap_or_default().chars().filter(|c| !c.is_control()).collect();
    Fact::told("mstflint -v", line.trim())
}

/// What a program says within its time.
fn said_by(command: &mut Command) -> Option<String> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
    let deadline = Instant::now() + PATIENCE;
    while child.try_wait().ok()?.is_none() {
        if Instant::now() > deadline {
            let _ = child.kill();
            let _ = child.wait();
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut said = Vec::new();
    child.stdout.take()?.take(ANSWER).read_to_end(&mut said).ok()?;
    Some(String::from_utf8_lossy(&said).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_does_not_end_is_not_waited_for() {
        let start = Instant::now();
        assert_eq!(said_by(Command::new("sleep").arg("60")), None);
        assert!(start.elapsed() < PATIENCE * 4);
        assert_eq!(said_by(Command::new("echo").arg("4.21")), Some("4.21\n".into()));
        assert_eq!(said_by(&mut Command::new("/no/such/program")), None);
    }
}
