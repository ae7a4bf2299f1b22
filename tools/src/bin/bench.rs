//! `kaeru-bench`: parse, run, map the error to an exit code.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use kaeru_tools::bench::args::{Args, Command};
use kaeru_tools::bench::latency;
use kaeru_tools::bench::stop::Stop;

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
        clap_complete::generate(shell, &mut Args::command(), "kaeru-bench", &mut out);
    } else if args.man {
        clap_mangen::Man::new(Args::command()).render(&mut out)?;
    } else if let Some(Command::Latency(wanted)) = args.command {
        let plan = wanted.plan().unwrap_or_else(|error| error.exit());
        let report = latency::run(&plan, &Stop::on_signals()?)?;
        if wanted.json { report.print_json(&mut out) } else { report.print_table(&mut out) }?;
        return Ok(if report.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    Ok(ExitCode::SUCCESS)
}

fn is_broken_pipe(error: &(dyn std::error::Error + 'static)) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
