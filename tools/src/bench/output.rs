//! Where a report goes: a form on standard output, and a page in a file.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use super::args::Output;
use super::report::{Report, blog, csv, html, json, table};

/// Prints `report` as the user wants it.
///
/// # Errors
/// Where it cannot be printed, or the page not written.
pub fn print(report: &Report, output: &Output, out: &mut dyn Write) -> io::Result<()> {
    match output {
        Output { json: true, .. } => json::print(report, out)?,
        Output { csv: true, .. } => csv::print(report, out)?,
        Output { paste: true, .. } => blog::print(report, out)?,
        _ => table::print(report, out)?,
    }
    match &output.html {
        Some(path) => write_page(path, &html::page(report)),
        None => Ok(()),
    }
}

/// Writes a page.
///
/// # Errors
/// Says which file.
pub fn write_page(path: &Path, page: &str) -> io::Result<()> {
    let write = || -> io::Result<()> {
        let mut file = BufWriter::new(File::create(path)?);
        file.write_all(page.as_bytes())?;
        file.flush()
    };
    write().map_err(|error| {
        io::Error::new(error.kind(), format!("cannot write the page {}: {error}", path.display()))
    })
}
