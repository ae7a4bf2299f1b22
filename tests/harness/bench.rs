//! `kaeru-bench` commands, and the reports that they print.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::process::{Outcome, binary, run, scratch};

/// `kaeru-bench` with these arguments, and with a folder of notes that nobody else uses.
pub(crate) fn bench(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(binary("kaeru-bench"));
    command.args(arguments).env("KAERU_RUNTIME_DIR", folder).env_remove("KAERU_LOG");
    command
}

/// Runs `kaeru-bench`.
#[track_caller]
pub(crate) fn run_bench(arguments: &[&str]) -> Outcome {
    run(&mut bench(scratch().path(), arguments))
}

/// Runs `kaeru-bench … --json`, which must succeed, and gives its report.
#[track_caller]
pub(crate) fn report(arguments: &[&str]) -> Value {
    let text = run_bench(&[arguments, &["--json"]].concat()).success();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// The result of a rung and operation.
#[track_caller]
pub(crate) fn result<'a>(report: &'a Value, rung: &str, operation: &str) -> &'a Value {
    let results = report["results"].as_array().expect("results");
    let found = results.iter().find(|result| result["rung"] == rung && result["operation"] == operation);
    found.unwrap_or_else(|| panic!("no {rung} {operation} in {report:#}"))
}
