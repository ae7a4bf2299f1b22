//! `kaeru-bench`: parse, run, map what came of it to an exit code.

use std::fmt::Display;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use kaeru_common::{completions, manual};
use kaeru_tools::bench::args::{Args, Command};
use kaeru_tools::bench::files::Page;
use kaeru_tools::bench::machine::Machine;
use kaeru_tools::bench::plan::Plan;
use kaeru_tools::bench::report::text::Plain;
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
            say(error);
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> Result<ExitCode, Box<dyn std::error::Error>> {
    let mut out = io::stdout();
    if let Some(shell) = args.completions {
        completions::print(shell, Args::command(), &mut out)?;
    } else if args.man {
        manual::print(Args::command(), &mut out)?;
    }
    let mut out = Plain(out);
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
    let page = plan.output.html.as_deref().map(Page::create).transpose()?;
    for remark in &plan.remarks {
        say(remark);
    }
    let report = ladder::run(&plan, &typed(), &Stop::on_signals()?)?;
    match output::print(&report, &plan.output, page, &mut out) {
        // That nobody reads it to its end does not make a success of it.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        printed => printed?,
    }
    if let Some(problem) = report.problem.as_ref().filter(|_| plan.output.is_for_programs()) {
        say(format_args!("the rest was not measured: {problem}"));
    }
    Ok(match (report.interrupted, report.is_clean()) {
        (true, _) => ExitCode::from(INTERRUPTED),
        (false, true) => ExitCode::SUCCESS,
        (false, false) => ExitCode::FAILURE,
    })
}

/// Says something beside the output. That nobody hears it changes nothing.
fn say(what: impl Display) {
    let _ = writeln!(Plain(io::stderr()), "kaeru-bench: {what}");
}

/// The command line, as far as it is text.
fn typed() -> String {
    let arguments = std::env::args_os().skip(1).map(|argument| argument.to_string_lossy().into_owned());
    [vec!["kaeru-bench".to_owned()], arguments.collect()].concat().join(" ")
}

fn is_broken_pipe(error: &(dyn std::error::Error + 'static)) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
