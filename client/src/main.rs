//! `kaeru`: parse, run, map the error to an exit code.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use kaeru_client::args::{Args, Command, Passed};
use kaeru_client::nbd::kernel;
use kaeru_client::{attach, list, manage, serve};
use kaeru_common::{completions, manual};

fn main() -> ExitCode {
    let args = Args::parse();
    kaeru_common::logging::start(args.verbose);
    match run(args) {
        Ok(code) => code,
        // Whoever reads our output has seen enough, as `head` does.
        Err(error) if is_broken_pipe(&*error) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "kaeru: {error}");
            ExitCode::FAILURE
        }
    }
}

fn is_broken_pipe(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
            return true;
        }
        cause = error.source();
    }
    false
}

fn run(args: Args) -> Result<ExitCode, Box<dyn std::error::Error>> {
    let mut out = io::stdout();
    match args.command {
        Command::Ls(ls) => list::run(&ls, &mut out)?,
        Command::Nbd(nbd) => serve::run(&nbd, &mut out)?,
        Command::Bench(passed) => return hand_over("kaeru-bench", &passed),
        Command::Doctor(passed) => return hand_over("kaeru-doctor", &passed),
        Command::Completions { shell } => completions::print(shell, Args::command(), &mut out)?,
        Command::Man => manual::print(Args::command(), &mut out)?,
        Command::Attach(wanted) => attach::run(&wanted, &mut out)?,
        Command::Detach(wanted) => manage::detach(&wanted, &mut out)?,
        Command::Status(wanted) => manage::status(&wanted, &mut out)?,
        Command::Guard { index, backend } => {
            kernel::guard(index, &backend, io::stdin())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs a program of the family that lies beside this one, or on the path.
fn hand_over(program: &str, passed: &Passed) -> Result<ExitCode, Box<dyn std::error::Error>> {
    let beside =
        std::env::current_exe().ok().map(|path| path.with_file_name(program)).filter(|path| path.exists());
    let status = std::process::Command::new(beside.unwrap_or_else(|| program.into()))
        .args(&passed.arguments)
        .status()
        .map_err(|error| format!("cannot run {program}: {error}; it belongs beside kaeru"))?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}
