//! `kaeru-bench`: parse, run, map what came of it to an exit code.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use kaeru_common::manual;
use kaeru_tools::bench::args::{Args, Command};
use kaeru_tools::bench::machine::Machine;
use kaeru_tools::bench::plan::Plan;
use kaeru_tools::bench::stop::{INTERRUPTED, Stop};
use kaeru_tools::bench::{compare, consent, ladder, output};

fn main() -> ExitCode {
    let args = Args::parse();
    kaeru_common::logging::start(args.verbose);
    match run(args) {
        Ok(code) => code,
        // Whoever reads our output has seen enough, as `head` does.
        Err(error) if is_broken_pipe(&*error) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "kaeru-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> Result<ExitCode, Box<dyn std::error::Error>> {
    let mut out = io::stdout();
    if let Some(shell) = args.completions {
        // In memory first: it panics where its reader goes away.
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut Args::command(), "kaeru-bench", &mut script);
        out.write_all(&script)?;
    } else if args.man {
        manual::print(Args::command(), &mut out)?;
    }
    let Some(command) = args.command else { return Ok(ExitCode::SUCCESS) };
    match &command {
        Command::Compare(wanted) => compare::run(wanted, &mut out)?,
        Command::Machine(wanted) => Machine::read(Path::new("/"), None).print(wanted.json, &mut out)?,
        _ => {}
    }
    let Some(plan) = Plan::of(&command).unwrap_or_else(|error| error.exit()) else {
        return Ok(ExitCode::SUCCESS);
    };
    consent::obtain(&plan).unwrap_or_else(|error| error.exit());
    let typed: Vec<String> = std::env::args().skip(1).collect();
    let command = format!("kaeru-bench {}", typed.join(" "));
    let report = ladder::run(&plan, &command, &Stop::on_signals()?)?;
    output::print(&report, &plan.output, &mut out)?;
    if let Some(problem) = report.problem.as_ref().filter(|_| plan.output.is_for_programs()) {
        writeln!(io::stderr(), "kaeru-bench: the rest was not measured: {problem}")?;
    }
    Ok(match (report.interrupted, report.is_clean()) {
        (true, _) => ExitCode::from(INTERRUPTED),
        (false, true) => ExitCode::SUCCESS,
        (false, false) => ExitCode::FAILURE,
    })
}

fn is_broken_pipe(error: &(dyn std::error::Error + 'static)) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
