//! `kaeru-bench latency`: every wanted rung, reads and then writes, one block at a time.

use std::io;
use std::path::Path;
use std::sync::Arc;

use kaeru_client::session::{AttachOptions, Session, SessionError};
use kaeru_client::target::Target;

use super::args::{Plan, SocketChoice};
use super::report::Report;
use super::route::Way;
use super::rungs::socket::{Socket, SocketError};
use super::rungs::{Rung, remote};
use super::runner::measure;
use super::stop::Stop;
use super::workload::{BLOCK, Offsets, Op};

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The export cannot be attached.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The socket cannot be used.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// Not a single block.
    #[error("{what} has {size} bytes; a block of {BLOCK} bytes does not fit")]
    TooSmall {
        /// The export.
        what: String,
        /// Its size.
        size: u64,
    },
    /// Writes were wanted.
    #[error("{0} is read-only; measure it without --write")]
    ReadOnly(String),
    /// The system refused.
    #[error("cannot measure: {0}")]
    System(#[from] io::Error),
    /// The constants of a histogram are wrong.
    #[error("cannot keep latencies: {0}")]
    Histogram(#[from] hdrhistogram::CreationError),
}

/// Measures what `plan` says. Asked to stop, it reports what it has.
///
/// # Errors
/// [`BenchError`]; a failed operation is none, the report counts it.
pub fn run(plan: &Plan, stop: &Stop) -> Result<Report, BenchError> {
    let mut bench = Bench { plan, stop, report: Report::new(plan) };
    match bench.run() {
        // What was measured is worth more than the reason why the rest was not.
        Err(error) if !bench.report.outcomes.is_empty() => bench.report.problem = Some(error.to_string()),
        result => result?,
    }
    bench.report.interrupted = stop.is_asked();
    Ok(bench.report)
}

struct Bench<'a> {
    plan: &'a Plan,
    stop: &'a Stop,
    report: Report,
}

impl Bench<'_> {
    fn run(&mut self) -> Result<(), BenchError> {
        // A session that is not needed would take the right to write from the one that serves an existing socket.
        let needs_session = self.plan.remote || self.plan.socket == Some(SocketChoice::Own);
        match &self.plan.target {
            Some(target) if needs_session => self.attached(target)?,
            _ => {}
        }
        match &self.plan.socket {
            Some(SocketChoice::Existing(path)) if !self.stop.is_asked() => self.existing(path),
            _ => Ok(()),
        }
    }

    /// The rung on somebody else's NBD server.
    fn existing(&mut self, path: &Path) -> Result<(), BenchError> {
        let export = self.plan.target.as_ref().map_or("", |target| target.export.as_str());
        let mut socket = Socket::existing(path, export)?;
        let (what, size) = (path.display().to_string(), socket.size());
        if self.plan.write && socket.is_read_only() {
            return Err(BenchError::ReadOnly(what));
        }
        self.report.size.get_or_insert(size);
        self.climb(&mut socket, &what, size)
    }

    /// The rungs that stand on a session of our own.
    fn attached(&mut self, target: &Target) -> Result<(), BenchError> {
        let options = AttachOptions {
            read_only: !self.plan.write,
            fabric: self.plan.fabric,
            ..AttachOptions::default()
        };
        let session = Arc::new(Session::attach(target, options)?);
        let (what, size) = (target.to_string(), session.granted().size);
        if self.plan.write && session.granted().read_only {
            return Err(BenchError::ReadOnly(what));
        }
        self.report.size = Some(size);
        if self.plan.remote && !self.stop.is_asked() {
            let mut rung = remote::rung(session.open_lane()?, self.plan.spin);
            self.report.way = Way::of(&session);
            self.climb(&mut *rung, &what, size)?;
        }
        if self.plan.socket == Some(SocketChoice::Own) && !self.stop.is_asked() {
            let mut socket = Socket::own(&session, target.export.as_str(), self.plan.spin)?;
            self.report.way = Way::of(&session);
            self.climb(&mut socket, &what, size)?;
        }
        session.end();
        Ok(())
    }

    /// Measures one rung.
    fn climb(&mut self, rung: &mut dyn Rung, what: &str, size: u64) -> Result<(), BenchError> {
        let too_small = || BenchError::TooSmall { what: what.to_owned(), size };
        let mut offsets = Offsets::new(size).ok_or_else(too_small)?;
        let operations: &[Op] = if self.plan.write { &[Op::Read, Op::Write] } else { &[Op::Read] };
        for &op in operations {
            if self.stop.is_asked() {
                break;
            }
            self.report.outcomes.push(measure(rung, op, &mut offsets, self.plan.limit, self.stop)?);
        }
        Ok(())
    }
}
