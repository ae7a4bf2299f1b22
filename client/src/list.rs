//! `kaeru ls`: the exports of a server.

use std::io::{self, Write};

use kaeru_common::units::Size;
use serde_json::json;

use crate::session::{Listing, SessionError, list};
use crate::target::Server;

/// Prints the exports of `server`, as a table or as JSON.
///
/// # Errors
/// Where the server does not answer, or the output cannot be written.
pub fn run(server: &Server, as_json: bool, out: &mut impl Write) -> Result<(), ListError> {
    let listing = list(server)?;
    if as_json { print_json(&listing, out) } else { print_table(&listing, out) }.map_err(ListError::Print)
}

/// Why there is no list.
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    /// No answer.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// No output.
    #[error("cannot print the list: {0}")]
    Print(#[source] io::Error),
}

fn print_table(listing: &Listing, out: &mut impl Write) -> io::Result<()> {
    let rows: Vec<[String; 5]> =
        std::iter::once(["NAME", "KIND", "SIZE", "MODE", "WRITER"].map(str::to_owned))
            .chain(listing.exports.exports.iter().map(|export| {
                [
                    export.name.to_string(),
                    export.kind.to_string(),
                    Size(export.size).to_string(),
                    if export.read_only { "read-only" } else { "read-write" }.to_owned(),
                    export.writer.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string),
                ]
            }))
            .collect();
    let widths: Vec<usize> =
        (0..5).map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)).collect();
    for row in &rows {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}")).collect();
        writeln!(out, "{}", cells.join("  ").trim_end())?;
    }
    Ok(())
}

fn print_json(listing: &Listing, out: &mut impl Write) -> io::Result<()> {
    let exports: Vec<_> = listing
        .exports
        .exports
        .iter()
        .map(|export| {
            json!({
                "name": export.name.as_str(),
                "kind": export.kind.to_string(),
                "size": export.size,
                "read_only": export.read_only,
                "volatile": export.volatile,
                "block_size": { "least": export.blocks.least, "preferred": export.blocks.preferred },
                "description": export.description.as_str(),
                "writer": export.writer.as_ref().map(|name| name.as_str()),
            })
        })
        .collect();
    let fabrics: Vec<_> = listing
        .welcome
        .fabrics
        .iter()
        .map(|offer| {
            json!({
                "fabric": offer.fabric.to_string(),
                "address": offer.address.to_string(),
                "device": offer.device.as_str(),
            })
        })
        .collect();
    let server = json!({ "server": listing.welcome.server.as_str(), "fabrics": fabrics, "exports": exports });
    writeln!(out, "{server:#}")
}
