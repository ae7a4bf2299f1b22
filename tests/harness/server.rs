//! A real `kaerud` on a free port.

use std::net::SocketAddr;
use std::process::Command;

use super::process::{Outcome, Process, binary, run};

/// A running server.
pub(crate) struct Server {
    /// Its process.
    pub(crate) process: Process,
    /// Where it listens.
    pub(crate) address: SocketAddr,
}

impl Server {
    /// Starts a server with these flags on loopback and waits until it is ready. Its exports are not locked in memory,
    /// so that users with small limits can run the tests.
    pub(crate) fn start(flags: &[&str]) -> Self {
        Self::start_at("127.0.0.1:0", flags)
    }

    /// As [`Self::start`], at this address.
    pub(crate) fn start_at(listen: &str, flags: &[&str]) -> Self {
        let mut command = kaerud(flags);
        command.args(["--listen", listen, "--no-lock"]);
        let mut process = Process::start("kaerud", command);
        let address = process.wait_for_line("where it listens", |line| {
            line.split_once("listening on ").and_then(|(_, address)| address.trim().parse().ok())
        });
        process.wait_for_line("ready", |line| (line == "ready").then_some(()));
        Self { process, address }
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
