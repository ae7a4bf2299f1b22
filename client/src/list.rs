//! `kaeru ls`: the exports of a server.

use std::io::{self, Write};

use kaeru_common::units::{Size, about_time};
use kaeru_common::wire::activity::{Activity, LatencySummary, UNCOUNTED};
use kaeru_common::wire::control::ExportInfo;
use serde_json::{Value, json};

use crate::args::Ls;
use crate::session::{Listing, SessionError, list};
use crate::table;

/// Prints the exports of a server, as a table or as JSON.
///
/// # Errors
/// Where the server does not answer, or the output cannot be written.
pub fn run(ls: &Ls, out: &mut impl Write) -> Result<(), ListError> {
    let listing = list(&ls.server)?;
    let exports = &listing.exports.exports;
    let printed = match (ls.json, ls.activity) {
        (true, _) => print_json(&listing, out),
        (false, true) => print_activity(exports, out),
        (false, false) => print_table(exports, out),
    };
    printed.map_err(ListError::Print)
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

fn print_table(exports: &[ExportInfo], out: &mut impl Write) -> io::Result<()> {
    let head = ["NAME", "KIND", "SIZE", "MODE", "WRITER"].map(str::to_owned).to_vec();
    let rows = exports.iter().map(|export| {
        vec![
            export.name.to_string(),
            export.kind.to_string(),
            Size(export.size).to_string(),
            if export.read_only { "read-only" } else { "read-write" }.to_owned(),
            export.writer.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string),
        ]
    });
    table::print(&std::iter::once(head).chain(rows).collect::<Vec<_>>(), 5, out)?;
    print_troubles(exports, out)
}

/// What each export did in one table, and how fast in another: both fit a terminal.
fn print_activity(exports: &[ExportInfo], out: &mut impl Write) -> io::Result<()> {
    let head = ["NAME", "READS", "READ", "WRITES", "WRITTEN", "OTHERS", "ERRORS", "IN FLIGHT"];
    let counts = exports.iter().map(|export| match &export.activity {
        Some(activity) => counts_row(export, activity),
        None => vec![export.name.to_string(), UNCOUNTED.to_owned()],
    });
    let counts: Vec<_> = std::iter::once(head.map(str::to_owned).to_vec()).chain(counts).collect();
    table::print(&counts, 1, out)?;
    let head =
        ["NAME", "LANES", "LAST ANSWER", "P50", "P90", "P99", "P99.9", "MAX"].map(str::to_owned).to_vec();
    let times = exports.iter().filter_map(|export| Some(times_row(export, export.activity.as_ref()?)));
    let times: Vec<_> = std::iter::once(head).chain(times).collect();
    if times.len() > 1 {
        writeln!(out)?;
        table::print(&times, 1, out)?;
    }
    print_troubles(exports, out)
}

fn counts_row(export: &ExportInfo, activity: &Activity) -> Vec<String> {
    let Activity { reads, writes, others, bytes_read, bytes_written, errors, in_flight, .. } = activity;
    vec![
        export.name.to_string(),
        reads.to_string(),
        Size(*bytes_read).about(),
        writes.to_string(),
        Size(*bytes_written).about(),
        others.to_string(),
        errors.to_string(),
        in_flight.to_string(),
    ]
}

fn times_row(export: &ExportInfo, activity: &Activity) -> Vec<String> {
    let none = || "-".to_owned();
    let last = activity.last_answer().map_or_else(none, |last| format!("{} ago", about_time(last)));
    let figures = activity.latency.as_ref().map(LatencySummary::figures);
    let figures =
        figures.map_or_else(|| std::array::from_fn(|_| none()), |named| named.map(|(_, time)| time));
    [export.name.to_string(), activity.lanes.to_string(), last].into_iter().chain(figures).collect()
}

fn print_troubles(exports: &[ExportInfo], out: &mut impl Write) -> io::Result<()> {
    for export in exports.iter().filter(|export| !export.trouble.as_str().is_empty()) {
        writeln!(out, "trouble with {}: {}", export.name, export.trouble)?;
    }
    Ok(())
}

fn print_json(listing: &Listing, out: &mut impl Write) -> io::Result<()> {
    let exports: Vec<_> = listing.exports.exports.iter().map(export_json).collect();
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

fn export_json(export: &ExportInfo) -> Value {
    json!({
        "name": export.name.as_str(),
        "kind": export.kind.to_string(),
        "size": export.size,
        "read_only": export.read_only,
        "volatile": export.volatile,
        "block_size": { "least": export.blocks.least, "preferred": export.blocks.preferred },
        "description": export.description.as_str(),
        "writer": export.writer.as_ref().map(|name| name.as_str()),
        "activity": export.activity,
        "trouble": Some(export.trouble.as_str()).filter(|text| !text.is_empty()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use kaeru_common::wire::control::{BlockSizes, ExportKind};

    fn export(name: &str, activity: Option<Activity>, trouble: &str) -> ExportInfo {
        ExportInfo {
            name: name.parse().unwrap(),
            kind: ExportKind::File,
            size: 4096,
            read_only: false,
            blocks: BlockSizes { least: 512, preferred: 4096 },
            volatile: false,
            description: "".into(),
            writer: None,
            activity,
            trouble: trouble.into(),
        }
    }

    fn busy() -> Activity {
        let latency = LatencySummary {
            p50_ns: 12_345,
            p90_ns: 20_000,
            p99_ns: 30_000,
            p999_ns: 1 << 20,
            max_ns: 1 << 31,
        };
        Activity {
            lanes: 4,
            reads: 1_234_567,
            writes: 1_234_567,
            others: 1234,
            bytes_read: 1023 << 30,
            bytes_written: 1023 << 30,
            errors: 12,
            in_flight: 64,
            last_answer_ms: Some(59_900),
            latency: Some(latency),
        }
    }

    #[test]
    fn activity_fits_a_terminal_and_says_what_is_not_counted() {
        let exports = [
            export("datasets", Some(busy()), "it is broken"),
            export("idle", Some(Activity::default()), ""),
            export("ram", None, ""),
        ];
        let mut out = Vec::new();
        print_activity(&exports, &mut out).unwrap();
        let out = String::from_utf8(out).unwrap();
        assert!(out.lines().all(|line| line.chars().count() <= 80), "{out}");
        let expected = "\
NAME        READS        READ   WRITES     WRITTEN  OTHERS  ERRORS  IN FLIGHT
datasets  1234567  1023.0 GiB  1234567  1023.0 GiB    1234      12         64
idle            0     0 bytes        0     0 bytes       0       0          0
ram       not counted here: clients reach its memory by themselves

NAME      LANES  LAST ANSWER      P50      P90      P99   P99.9    MAX
datasets      4   59.9 s ago  12.3 µs  20.0 µs  30.0 µs  1.0 ms  2.1 s
idle          0            -        -        -        -       -      -
trouble with datasets: it is broken
";
        assert_eq!(out, expected);
    }

    #[test]
    fn json_tells_no_activity_from_none_that_is_counted() {
        let [ram, idle] = [export("ram", None, ""), export("idle", Some(Activity::default()), "broken")];
        let (ram, idle) = (export_json(&ram), export_json(&idle));
        assert_eq!((&ram["activity"], &ram["trouble"]), (&Value::Null, &Value::Null));
        assert_eq!((&idle["activity"]["reads"], &idle["activity"]["latency"]), (&json!(0), &Value::Null));
        assert_eq!(idle["trouble"], "broken");
    }
}
