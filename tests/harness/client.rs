//! A real `kaeru nbd`, and `kaeru` commands that end by themselves.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::process::{Outcome, Process, binary, run, scratch};
use super::server::Server;

/// A running `kaeru nbd` with a folder of its own for its socket and its notes.
pub(crate) struct Nbd {
    /// Its process.
    pub(crate) process: Process,
    /// Where it serves.
    pub(crate) place: Place,
    /// The name of its export.
    pub(crate) export: String,
    folder: TempDir,
}

/// Where NBD is served.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// On a Unix socket.
    Unix(PathBuf),
    /// On a port.
    Tcp(SocketAddr),
}

impl Nbd {
    /// Serves an export on a Unix socket.
    pub(crate) fn unix(server: &Server, export: &str) -> Self {
        Self::unix_with(server, export, &[])
    }

    /// Serves an export on a Unix socket, with these flags.
    pub(crate) fn unix_with(server: &Server, export: &str, flags: &[&str]) -> Self {
        let folder = scratch();
        let socket = folder.path().join("nbd.sock");
        Self::start(server, export, &[&["--socket", socket.to_str().expect("UTF-8")], flags].concat(), folder)
    }

    /// Serves an export on a Unix socket at this path.
    pub(crate) fn unix_at(server: &Server, export: &str, path: &Path) -> Self {
        Self::start(server, export, &["--socket", path.to_str().expect("UTF-8")], scratch())
    }

    /// Serves an export on a free port.
    pub(crate) fn tcp(server: &Server, export: &str) -> Self {
        Self::start(server, export, &["--listen", "127.0.0.1:0"], scratch())
    }

    fn start(server: &Server, export: &str, flags: &[&str], folder: TempDir) -> Self {
        let mut command = kaeru(folder.path(), &["nbd", &server.export(export)]);
        command.args(flags);
        let mut process = Process::start("kaeru nbd", command);
        let place = process.wait_for_line("where it serves", |line| {
            let address = line.strip_prefix("serving nbd")?;
            match address.strip_prefix("+unix:///?socket=") {
                Some(path) => Some(Place::Unix(path.into())),
                None => address.strip_prefix("://")?.parse().ok().map(Place::Tcp),
            }
        });
        Self { process, place, export: export.to_owned(), folder }
    }

    /// Its URI, as NBD programs take it.
    pub(crate) fn uri(&self) -> String {
        match &self.place {
            Place::Unix(path) => format!("nbd+unix:///{}?socket={}", self.export, path.display()),
            Place::Tcp(address) => format!("nbd://{address}/{}", self.export),
        }
    }

    /// The path of its Unix socket.
    pub(crate) fn socket(&self) -> &Path {
        match &self.place {
            Place::Unix(path) => path,
            Place::Tcp(address) => panic!("{address} is no path"),
        }
    }

    /// The folder of its notes.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Runs `kaeru` on what is attached in its folder.
    #[track_caller]
    pub(crate) fn kaeru(&self, arguments: &[&str]) -> Outcome {
        run(&mut kaeru(self.folder(), arguments))
    }
}

/// `kaeru` with these arguments, and with `folder` for its notes.
pub(crate) fn kaeru(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(binary("kaeru"));
    command.args(arguments).env("KAERU_RUNTIME_DIR", folder).env_remove("KAERU_LOG");
    command
}

/// Runs a `kaeru` that attaches nothing for long.
#[track_caller]
pub(crate) fn run_kaeru(arguments: &[&str]) -> Outcome {
    run(&mut kaeru(scratch().path(), arguments))
}
