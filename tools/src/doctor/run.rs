//! The program: read, examine, print.

use std::io::{self, Write};
use std::path::Path;

use kaeru_common::host::Host;

use super::args::Args;
use super::report::Paint;
use super::{Aside, Patient, Watched, examine, peer};

/// Examines what the user asked for. Returns the exit status.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`] where there is no such folder; another one where nothing can be printed.
pub fn run(args: &Args, out: &mut (impl Write + io::IsTerminal)) -> io::Result<u8> {
    let root = args.root.as_deref().unwrap_or(Path::new("/"));
    if !root.is_dir() {
        let text =
            format!("{} is no folder; --root takes one with a copy of a machine's files", root.display());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    let watched = args.watch.map(|time| {
        let earlier = Host::read(root).rdma;
        std::thread::sleep(time);
        Watched { time, earlier }
    });
    // What is examined is the machine as it is now; the first reading only tells what it was.
    let host = Host::read(root);
    let aside = Aside::ask(&host);
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
