//! Where a report goes: a form on standard output, and a page in a file.

use std::io::{self, Write};

use super::args::Output;
use super::files::Page;
use super::report::{Report, blog, csv, html, json, table};

/// Prints `report` as the user wants it.
///
/// # Errors
/// Where it cannot be printed, or the page not written.
pub fn print(report: &Report, output: &Output, page: Option<Page>, out: &mut dyn Write) -> io::Result<()> {
    // First: whoever reads our output may leave early, as `head` does. A page that cannot be written is no reason to keep
    // the figures back.
    let written = page.map_or(Ok(()), |page| page.write(&html::page(report)));
    match output {
        Output { json: true, .. } => json::print(report, out),
        Output { csv: true, .. } => csv::print(report, out),
        Output { paste: true, .. } => blog::print(report, out),
        _ => table::print(report, out),
    }?;
    written
}
