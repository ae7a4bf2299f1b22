//! The program: read, examine, print.

use std::io::{self, Write};
use std::path::Path;

use kaeru_common::host::Host;

use super::args::Args;
use super::counters::Watched;
use super::report::Paint;
use super::{Aside, Patient, examine, peer};

/// Examines what the user asked for. Returns the exit status.
///
/// # Errors
/// Where there is no such folder, or nothing can be printed.
pub fn run(args: &Args, out: &mut (impl Write + io::IsTerminal)) -> io::Result<u8> {
    let root = args.root.as_deref().unwrap_or(Path::new("/"));
    if !root.is_dir() {
        let text =
            format!("{} is no folder; --root takes one with a copy of a machine's files", root.display());
        return Err(io::Error::new(io::ErrorKind::NotFound, text));
    }
    let host = Host::read(root);
    let aside = Aside::ask(&host);
    let watched = args.watch.map(|time| {
        std::thread::sleep(time);
        Watched { time, later: Host::read(root).rdma }
    });
    let patient = Patient { host, aside, watched, export: args.export.map(|size| size.0) };
    let mut report = examine(&patient);
    if let Some(server) = &args.peer {
        report.add(peer::ask(server, &patient.host));
    }
    match args.json {
        true => report.print_json(out)?,
        false => report.print_text(Paint::for_terminal(out), args.verbose, out)?,
    }
    Ok(report.level.exit_status())
}
