//! `kaeru status` and `kaeru detach`.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use kaeru_common::units::Size;

use crate::args::{Detach, Status};
use crate::attach::detached;
use crate::background::{Detached, Holder, Note, Report, holders};
use crate::nbd::kernel::{self, KernelError, Urgency};
use crate::nbd::listen::Address;
use crate::session::{Listing, list_within};
use crate::target::{Server, Target};

/// How long a process may take to end after it has let go.
const END: Duration = Duration::from_secs(5);
/// How many attachments an error names.
const NAMED: usize = 5;
/// How long a server may take for each step of saying how its exports are.
const WORD: Duration = Duration::from_secs(2);

/// Why something could not be shown or detached.
#[derive(Debug, thiserror::Error)]
pub enum ManageError {
    /// Nothing has that name.
    #[error("{what} is not attached here; attached are: {known}")]
    Unknown {
        /// What was asked for.
        what: String,
        /// What there is.
        known: String,
    },
    /// It did not let go.
    #[error("{what} stays attached: {reason}")]
    Refused {
        /// What was asked for.
        what: String,
        /// Why not.
        reason: String,
    },
    /// Several things failed.
    #[error("{0}")]
    Several(String),
    /// The device could not be looked at.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The system refused.
    #[error("cannot do that: {0}")]
    System(#[from] io::Error),
}

/// Shows what is attached and how it is.
///
/// # Errors
/// Where the notes cannot be read or the output cannot be written.
pub fn status(status: &Status, out: &mut impl Write) -> Result<(), ManageError> {
    let mut reports: Vec<Report> = holders()?.iter().map(Holder::report).collect();
    // What killed processes left comes last, and hides nobody.
    reports.sort_by_key(|report| report.state == "dead");
    ask_servers(&mut reports);
    if status.json {
        serde_json::to_writer_pretty(&mut *out, &reports).map_err(io::Error::from)?;
        writeln!(out)?;
        return Ok(());
    }
    if reports.is_empty() {
        writeln!(out, "nothing is attached")?;
    }
    for report in &reports {
        show(report, out)?;
    }
    Ok(())
}

/// Asks the servers that answer what is wrong with the exports that are attached. That they may not tell is no failure:
/// what is known here is shown anyway.
fn ask_servers(reports: &mut [Report]) {
    let mut listings: Vec<(Server, Option<Listing>)> = Vec::new();
    for report in reports.iter_mut().filter(|report| report.state == "ok") {
        let Ok(target) = report.note.target.parse::<Target>() else { continue };
        let known = listings.iter().position(|(server, _)| *server == target.server);
        let index = known.unwrap_or_else(|| {
            let listing = list_within(&target.server, WORD);
            let listing = listing.inspect_err(|error| tracing::info!("no word about exports: {error}")).ok();
            listings.push((target.server.clone(), listing));
            listings.len() - 1
        });
        let Some(listing) = &listings[index].1 else { continue };
        let export = listing.exports.exports.iter().find(|export| export.name == target.export);
        report.trouble = export.map(|export| export.trouble.to_string()).filter(|text| !text.is_empty());
    }
}

fn show(report: &Report, out: &mut impl Write) -> io::Result<()> {
    let place = report.note.device.as_ref().or(report.note.listen.as_ref()).map_or("", String::as_str);
    writeln!(out, "{place}: {} is {}", report.note.target, report.state)?;
    if let Some(detail) = &report.detail {
        writeln!(out, "  {detail}")?;
    }
    if let (Some(size), Some(read_only)) = (report.size, report.read_only) {
        let mode = if read_only { "read-only" } else { "read-write" };
        writeln!(out, "  {}, {mode}, process {}", Size(size), report.note.pid)?;
    }
    if let (Some(fabric), Some(reason)) = (&report.fabric, &report.fabric_reason) {
        let plural = if report.lanes == 1 { "" } else { "s" };
        writeln!(out, "  {} lane{plural} over {fabric}, not encrypted: {reason}", report.lanes)?;
    }
    if let Some(trouble) = &report.trouble {
        writeln!(out, "  trouble at the server: {trouble}")?;
    }
    writeln!(out, "  {}", report.io.counts())?;
    writeln!(out, "  {}", report.io.times())
}

/// Detaches what was asked for, whether its process lives or not.
///
/// # Errors
/// What stays attached, and why.
pub fn detach(detach: &Detach, out: &mut impl Write) -> Result<(), ManageError> {
    let all = holders()?;
    if detach.all {
        if all.is_empty() {
            writeln!(out, "nothing is attached")?;
        }
        return each(all.iter(), |holder| detach_holder(holder, detach.force, out));
    }
    each(detach.what.iter(), |what| {
        let matches = |holder: &&Holder| is_called(&holder.note, what);
        // One export may be attached more than once, and a killed process may have left a note beside a live one.
        let holders: Vec<&Holder> = all.iter().filter(matches).collect();
        match holders.is_empty() {
            true => detach_orphan(what, detach.force, &all, out),
            false => each(holders.into_iter(), |holder| detach_holder(holder, detach.force, out)),
        }
    })
}

/// Whether `what` names this attachment: by its export, its device, or its socket, as `status` shows it or as a path.
fn is_called(note: &Note, what: &str) -> bool {
    let socket = || std::path::absolute(what).ok().map(|path| Address::Unix(path).to_string());
    note.target == what
        || note.device.as_deref() == Some(what)
        || note.listen.as_deref().is_some_and(|listen| listen == what || socket().as_deref() == Some(listen))
}

/// Does all of it, whatever fails on the way.
fn each<T>(
    items: impl Iterator<Item = T>,
    mut act: impl FnMut(T) -> Result<(), ManageError>,
) -> Result<(), ManageError> {
    let mut failures: Vec<ManageError> = items.filter_map(|item| act(item).err()).collect();
    match failures.len() {
        0 => Ok(()),
        1 => Err(failures.remove(0)),
        _ => {
            Err(ManageError::Several(failures.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")))
        }
    }
}

fn detach_holder(holder: &Holder, force: bool, out: &mut impl Write) -> Result<(), ManageError> {
    let what = holder.note.device.clone().unwrap_or_else(|| holder.note.target.clone());
    let Some(answer) = holder.detach(force)? else { return clean_up(holder, &what, out) };
    report(&what, answer, out)?;
    // So that whoever attaches next finds nothing of it.
    let deadline = Instant::now() + END;
    while Instant::now() < deadline && holders()?.iter().any(|other| other.note.pid == holder.note.pid) {
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Detaches what a killed process left attached.
fn clean_up(holder: &Holder, what: &str, out: &mut impl Write) -> Result<(), ManageError> {
    let index = holder.note.device.as_deref().and_then(kernel::index_of);
    // Since that process died the number may have gone to somebody else.
    let ours = |index: &u32| {
        let backend = kernel::status(*index).ok().and_then(|status| status.backend);
        backend.is_some() && backend == holder.note.backend
    };
    let answer = match index.filter(ours) {
        // Nobody serves it, so there is nothing that being careful could save.
        Some(index) => detached(index, Urgency::Now),
        None if index.is_some() => Detached::Done(format!("{what} was detached when its process was killed")),
        None => Detached::Done(format!("{what} was served by a process that is gone")),
    };
    report(what, answer, out)?;
    holder.forget();
    Ok(())
}

/// Detaches a device of ours that nobody left a note about.
fn detach_orphan(what: &str, force: bool, all: &[Holder], out: &mut impl Write) -> Result<(), ManageError> {
    let ours = |index: &u32| {
        kernel::status(*index)
            .is_ok_and(|status| status.backend.is_some_and(|backend| backend.starts_with("kaeru:")))
    };
    match kernel::index_of(what).filter(ours) {
        Some(index) => {
            report(what, detached(index, if force { Urgency::Now } else { Urgency::WhenUnused }), out)
        }
        None => {
            let known: Vec<String> = all
                .iter()
                .map(|holder| match holder.note.device.as_ref().or(holder.note.listen.as_ref()) {
                    Some(place) => format!("{} as {place}", holder.note.target),
                    None => holder.note.target.clone(),
                })
                .collect();
            let more = known.len().saturating_sub(NAMED);
            let known = match known.len() {
                0 => "nothing".to_owned(),
                1..=NAMED => known.join(", "),
                _ => format!("{} and {more} more, see \"kaeru status\"", known[..NAMED].join(", ")),
            };
            Err(ManageError::Unknown { what: what.to_owned(), known })
        }
    }
}

fn report(what: &str, answer: Detached, out: &mut impl Write) -> Result<(), ManageError> {
    match answer {
        Detached::Done(text) => Ok(writeln!(out, "{text}")?),
        Detached::Refused(reason) => Err(ManageError::Refused { what: what.to_owned(), reason }),
    }
}
