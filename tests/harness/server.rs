//! A real `kaerud` on a free port.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

use super::process::{Outcome, Process, binary, run};

/// What an export keeps its bytes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keep {
    /// Memory.
    Ram,
    /// A file that is read and written past the page cache, by a ring.
    DirectFile,
    /// A file in the page cache, by a ring.
    BufferedFile,
    /// A file in the page cache, by plain system calls.
    PlainFile,
}

/// A running server.
pub(crate) struct Server {
    /// Its process.
    pub(crate) process: Process,
    /// Where it listens.
    pub(crate) address: SocketAddr,
    /// Where its files are.
    folder: Option<TempDir>,
}

impl Server {
    /// Starts a server with these flags on loopback and waits until it is ready. Its exports are not locked in memory,
    /// so that users with small limits can run the tests.
    pub(crate) fn start(flags: &[&str]) -> Self {
        Self::start_at("127.0.0.1:0", flags)
    }

    /// As [`Self::start`], at this address.
    pub(crate) fn start_at(listen: &str, flags: &[&str]) -> Self {
        Self::launch(kaerud(flags), listen)
    }

    /// As [`Self::start`], by a command that takes the flags and becomes the server.
    pub(crate) fn started_by(mut command: Command, flags: &[&str]) -> Self {
        command.args(flags).env_remove("KAERU_LOG");
        Self::launch(command, "127.0.0.1:0")
    }

    fn launch(mut command: Command, listen: &str) -> Self {
        command.args(["--listen", listen, "--no-lock"]);
        let mut process = Process::start("kaerud", command);
        let address = process.wait_for_line("where it listens", |line| {
            line.split_once("listening on ").and_then(|(_, address)| address.trim().parse().ok())
        });
        process.wait_for_line("ready", |line| (line == "ready").then_some(()));
        Self { process, address, folder: None }
    }

    /// Starts a server of one export of `size` bytes that is kept so.
    pub(crate) fn keeping(name: &str, size: u64, keep: Keep) -> Self {
        let options = match keep {
            Keep::Ram => return Self::start(&["--ram", &format!("{name}={size}")]),
            // Where the file system allows it, else buffered.
            Keep::DirectFile => "direct=auto,engine=uring",
            Keep::BufferedFile => "direct=off,engine=uring",
            Keep::PlainFile => "direct=off,engine=file",
        };
        let folder = disk_folder();
        let file = folder.path().join("export.img");
        let server = Self::start(&["--file", &format!("{name}={},create={size},{options}", file.display())]);
        Self { folder: Some(folder), ..server }
    }

    /// The file of the export, where it has one.
    pub(crate) fn file(&self) -> PathBuf {
        self.folder.as_ref().expect("an export in a file").path().join("export.img")
    }

    /// An export of it, as `kaeru` names it.
    pub(crate) fn export(&self, name: &str) -> String {
        format!("{}/{name}", self.address)
    }
}

/// `kaerud` with these flags.
pub(crate) fn kaerud(flags: &[&str]) -> Command {
    let mut command = Command::new(binary("kaerud"));
    command.args(flags).env_remove("KAERU_LOG");
    command
}

/// Runs a `kaerud` that is expected to end by itself.
#[track_caller]
pub(crate) fn run_kaerud(flags: &[&str]) -> Outcome {
    run(&mut kaerud(flags))
}

/// A folder on a real disk, as far as there is one: the system's own may be in memory.
pub(crate) fn disk_folder() -> TempDir {
    let near = binary("kaerud").parent().expect("a folder").to_owned();
    TempDir::new_in(near).expect("a folder beside the programs")
}
