//! `kaeru-doctor`: parse, run, map what was found to an exit code.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use kaeru_common::{completions, manual};
use kaeru_tools::doctor;
use kaeru_tools::doctor::args::Args;

/// Exit statuses of `sysexits.h`, because 1 and 2 say what was found.
const USAGE: u8 = 64;
const OUTPUT: u8 = 74;

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            let printed = error.print();
            return match (error.use_stderr(), printed) {
                (true, _) => ExitCode::from(USAGE),
                (false, Err(error)) if error.kind() != io::ErrorKind::BrokenPipe => ExitCode::from(OUTPUT),
                (false, _) => ExitCode::SUCCESS,
            };
        }
    };
    match run(&args) {
        Ok(code) => code,
        // Whoever reads our output has seen enough, as `head` does.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "kaeru-doctor: {error}");
            ExitCode::from(if error.kind() == io::ErrorKind::InvalidInput { USAGE } else { OUTPUT })
        }
    }
}

fn run(args: &Args) -> io::Result<ExitCode> {
    let mut out = io::stdout();
    if let Some(shell) = args.completions {
        completions::print(shell, Args::command(), &mut out)?;
    } else if args.man {
        manual::print(Args::command(), &mut out)?;
    } else {
        return Ok(ExitCode::from(doctor::run(args, &mut out)?));
    }
    Ok(ExitCode::SUCCESS)
}
