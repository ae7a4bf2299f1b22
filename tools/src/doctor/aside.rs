//! What is not in a file: the version of mstflint, and what libibverbs sees and says. Only on the running machine.

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use kaeru_common::host::{Fact, Host, Port, RdmaDevice};

/// How long mstflint may take to tell its version.
const PATIENCE: Duration = Duration::from_secs(3);
/// Bytes of its answer that are looked at.
const ANSWER: u64 = 4096;
/// Where distributions put it; `sbin` is not on everybody's path.
const FOLDERS: [&str; 4] = ["/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"];

/// How many bytes the packets of a port have at most: as its link is, and as it could. Only libibverbs tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packets {
    /// The RDMA device.
    pub device: String,
    /// The port.
    pub port: u32,
    /// As the link is.
    pub active: u32,
    /// As the port could.
    pub greatest: u32,
}

/// What programs and libraries said.
#[derive(Clone, Debug, Default)]
pub struct Aside {
    /// The answer of `mstflint -v`.
    pub mstflint: Fact,
    /// The RDMA devices that libibverbs has a driver for; `None` where it was not asked.
    pub library: Option<Vec<String>>,
    /// The packets of those ports that could be asked.
    pub packets: Vec<Packets>,
}

impl Aside {
    /// Asks around, if the machine is the running one.
    pub fn ask(host: &Host) -> Self {
        if !host.is_live() {
            return Self { mstflint: host.software.mstflint.clone(), ..Self::default() };
        }
        // To ask the library loads modules of the kernel where they are missing, and that is no doctor's to do.
        let is_loaded = host.rdma.iter().any(|device| device.verbs.is_some());
        let mut aside = Self { mstflint: mstflint(), ..Self::default() };
        if is_loaded {
            aside.ask_library(host);
        }
        aside
    }

    /// Asks for what it has a driver for, and opens what this user may open.
    #[cfg(feature = "verbs")]
    fn ask_library(&mut self, host: &Host) {
        use kaeru_common::fabric::verbs;

        self.library = Some(verbs::names());
        for device in host.rdma.iter().filter(|device| device.verbs_file == Some(true)) {
            for port in &device.ports {
                let asked =
                    u8::try_from(port.number).ok().and_then(|port| verbs::packets(&device.name, port));
                self.packets.extend(asked.map(|verbs::Packets { active, greatest }| Packets {
                    device: device.name.clone(),
                    port: port.number,
                    active,
                    greatest,
                }));
            }
        }
    }

    #[cfg(not(feature = "verbs"))]
    fn ask_library(&mut self, _host: &Host) {}

    /// What the library said of a port.
    pub(super) fn packets_of(&self, device: &RdmaDevice, port: &Port) -> Option<&Packets> {
        self.packets.iter().find(|packets| packets.device == device.name && packets.port == port.number)
    }
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
