//! JSON for scripts, and back again for `compare`.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::{Report, SCHEMA};
use crate::bench::files;

/// Prints `report`.
///
/// # Errors
/// Where it cannot be printed.
pub fn print(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, report)?;
    writeln!(out)?;
    out.flush()
}

/// Why a file is no report.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It cannot be read.
    #[error("cannot read {}: {source}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// It is something else.
    #[error(
        "{} is no report of this kaeru-bench ({reason}); make one with: kaeru-bench latency HOST/EXPORT --json > FILE",
        .path.display()
    )]
    NoReport {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

/// Reads a report.
///
/// # Errors
/// [`ReadError`].
pub fn read(path: &Path) -> Result<Report, ReadError> {
    let bytes = files::read(path).map_err(|source| ReadError::Io { path: path.to_owned(), source })?;
    let no_report = |reason| ReadError::NoReport { path: path.to_owned(), reason };
    let value: serde_json::Value =
        serde_json::from_slice(&bytes).map_err(|error| no_report(error.to_string()))?;
    match value["schema"].as_str() {
        Some(SCHEMA) => serde_json::from_value(value).map_err(|error| no_report(error.to_string())),
        Some(other) => Err(no_report(format!("its schema is \"{other}\", not \"{SCHEMA}\""))),
        None => Err(no_report("it has no schema".into())),
    }
}
