//! Climbs the rungs that a plan names, one after the other, and measures every load on each.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kaeru_client::nbd::lane::Spin;
use kaeru_client::session::{AttachOptions, Session, describe};
use kaeru_client::target::{Server, Target};
use kaeru_common::fabric::FabricKind;
use kaeru_common::host::Host;

use super::engine::{EngineError, Load, measure};
use super::figures::{Gathered, Place};
use super::machine::Machine;
use super::plan::{Plan, Point};
use super::report::{Report, SCHEMA};
use super::retries;
use super::route::Way;
use super::rungs::device::DeviceRung;
use super::rungs::fabric::FabricRung;
use super::rungs::ram::RamRung;
use super::rungs::remote::RemoteRung;
use super::rungs::socket::{ExistingSocket, OwnSocket};
use super::rungs::{Lane, Rung, RungError, RungName, Shape};
use super::stop::Stop;
use super::workload::Mix;

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// A rung cannot be reached.
    #[error(transparent)]
    Rung(#[from] RungError),
    /// A measurement did not start.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The file about the server's machine is of no use.
    #[error(
        "cannot use {file} for --server-machine: {reason}; make it with: kaeru-bench machine --json > FILE"
    )]
    ServerMachine {
        /// The file.
        file: String,
        /// What is wrong.
        reason: String,
    },
}

/// Measures what `plan` says. Asked to stop, it reports what it has.
///
/// # Errors
/// [`BenchError`]; a failed operation is none, the report counts it.
pub fn run(plan: &Plan, command: &str, stop: &Stop) -> Result<Report, BenchError> {
    let server = plan.server_machine.as_deref().map(read_machine).transpose()?;
    let mut ladder = Ladder { plan, stop, report: empty(plan, command, server), reached: None };
    match ladder.climb() {
        // What was measured is worth more than the reason why the rest was not.
        Err(error) if !ladder.report.results.is_empty() => ladder.report.problem = Some(error.to_string()),
        // Nor is it a failure that nothing was measured yet when the user had enough.
        Err(_) if stop.is_asked() => {}
        result => result?,
    }
    let mut report = ladder.report;
    report.interrupted = stop.is_asked();
    report.derive_steps();
    Ok(report)
}

fn read_machine(path: &Path) -> Result<Machine, BenchError> {
    let wrong = |reason: String| BenchError::ServerMachine { file: path.display().to_string(), reason };
    let bytes = std::fs::read(path).map_err(|error: io::Error| wrong(error.to_string()))?;
    serde_json::from_slice(&bytes).map_err(|error| wrong(error.to_string()))
}

/// A report without measurements.
fn empty(plan: &Plan, command: &str, server: Option<Machine>) -> Report {
    let path = |path: &Option<std::path::PathBuf>| path.as_ref().map(|path| path.display().to_string());
    let target = plan.target.as_ref().map(ToString::to_string);
    let target =
        target.or_else(|| path(&plan.socket)).or_else(|| path(&plan.device)).or_else(|| path(&plan.disk));
    let began = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let mut labels: Vec<String> = plan.labels.iter().map(|label| format!("label: {label}")).collect();
    if cfg!(windows) && std::env::var_os("WINEPREFIX").or_else(|| std::env::var_os("WINELOADER")).is_some() {
        labels.push("Wine: Windows is imitated".into());
    }
    Report {
        schema: SCHEMA.into(),
        version: env!("CARGO_PKG_VERSION").into(),
        command: command.to_owned(),
        preset: plan.preset.into(),
        began_unix_seconds: began,
        target: target.unwrap_or_default(),
        target_bytes: None,
        labels,
        route: None,
        spin: match plan.spin {
            None => "lanes spin as those of kaeru do".into(),
            Some(Spin::Always) => "lanes always spin".into(),
            Some(Spin::For(time)) => format!("lanes spin {} µs before they sleep", time.as_micros()),
        },
        client: Machine::read(Path::new("/"), None),
        server,
        results: Vec::new(),
        steps: Vec::new(),
        problem: None,
        interrupted: false,
    }
}

struct Ladder<'a> {
    plan: &'a Plan,
    stop: &'a Stop,
    report: Report,
    /// The server that the way leads to.
    reached: Option<Server>,
}

impl Ladder<'_> {
    fn climb(&mut self) -> Result<(), BenchError> {
        let plan = self.plan;
        // All that can be refused is asked for before anything is measured.
        // A session that is not needed would take the right to write from the one that serves a socket or device.
        let attached = match &plan.target {
            Some(target) if plan.needs_session() => Some((self.attach(target)?, target)),
            _ => None,
        };
        let mut socket = plan.socket.as_deref().map(|path| self.socket(path)).transpose()?;
        let mut device = plan.device.as_deref().map(|path| self.device(path)).transpose()?;
        let disk = plan.disk.as_deref().map(|path| self.block_device(RungName::Disk, path)).transpose()?;
        if plan.wants(RungName::Ram) {
            self.rung(&mut RamRung)?;
        }
        if let Some(mut disk) = disk {
            self.rung(&mut disk)?;
        }
        if let Some((session, target)) = attached {
            self.on_session(&session, target)?;
        }
        if let Some(socket) = &mut socket {
            self.rung(socket)?;
        }
        if let Some(device) = &mut device {
            self.rung(device)?;
        }
        Ok(())
    }

    /// Somebody else's NBD server.
    fn socket(&mut self, path: &Path) -> Result<ExistingSocket, BenchError> {
        let export = self.plan.target.as_ref().map_or("", |target| target.export.as_str());
        let rung = ExistingSocket::new(path, export)?;
        self.check(&path.display().to_string(), rung.size(), 1)?;
        self.go_by(Way::of_socket(path));
        self.report.target_bytes.get_or_insert(rung.size());
        if self.plan.writes() && rung.is_read_only() {
            return Err(RungError::ReadOnly(path.display().to_string()).into());
        }
        Ok(rung)
    }

    /// A block device that is measured.
    fn device(&mut self, path: &Path) -> Result<DeviceRung, BenchError> {
        let rung = self.block_device(RungName::Device, path)?;
        self.go_by(Way::of_device(path));
        self.report.target_bytes.get_or_insert(rung.size());
        Ok(rung)
    }

    fn block_device(&self, name: RungName, path: &Path) -> Result<DeviceRung, BenchError> {
        let rung = DeviceRung::new(name, path)?;
        self.check(&path.display().to_string(), rung.size(), rung.granule())?;
        Ok(rung)
    }

    /// Whether every block fits, and is a multiple of what it has to be.
    fn check(&self, what: &str, size: u64, granule: u32) -> Result<(), RungError> {
        for &Point { block, .. } in &self.plan.points {
            if u64::from(block) > size {
                return Err(RungError::TooSmall { what: what.to_owned(), size, block });
            }
            if block % granule != 0 {
                return Err(RungError::Granule { what: what.to_owned(), granule, block });
            }
        }
        Ok(())
    }

    /// A session of our own.
    fn attach(&mut self, target: &Target) -> Result<Arc<Session>, BenchError> {
        let plan = self.plan;
        let options =
            AttachOptions { read_only: !plan.writes(), fabric: plan.fabric, ..AttachOptions::default() };
        let session = Arc::new(Session::attach(target, options).map_err(RungError::from)?);
        let size = session.granted().size;
        self.report.target_bytes = Some(size);
        self.check(&target.to_string(), size, 1)?;
        if plan.writes() && session.granted().read_only {
            return Err(RungError::ReadOnly(target.to_string()).into());
        }
        // The first lane chooses the way; it is not kept.
        drop(session.open_lane().map_err(RungError::from)?);
        self.go_by(Way::of(&session).map(|way| (way, target.server.clone())));
        Ok(session)
    }

    /// The rungs that stand on a session of our own.
    fn on_session(&mut self, session: &Arc<Session>, target: &Target) -> Result<(), BenchError> {
        let (plan, what) = (self.plan, target.to_string());
        if plan.wants(RungName::Fabric) {
            let result = self.rung(&mut FabricRung::new(session.clone(), &what, plan.spin));
            match result {
                // What was not asked for by name is left out where it does not exist.
                Err(BenchError::Rung(RungError::NoFabric(_))) if plan.rungs.len() > 1 => {}
                result => result?,
            }
        }
        if plan.wants(RungName::Remote) {
            self.rung(&mut RemoteRung::new(session.clone(), plan.spin))?;
        }
        if plan.wants(RungName::Socket) && plan.socket.is_none() {
            let mut rung = OwnSocket::new(session.clone(), target.export.as_str(), plan.spin)?;
            self.rung(&mut rung)?;
        }
        session.end();
        Ok(())
    }

    /// Notes the way to a server, both ends, and what they mean for the figures.
    fn go_by(&mut self, way: Option<(Way, Server)>) {
        let Some((way, server)) = way else { return };
        self.reached = Some(server.clone());
        self.report.client = Machine::read(Path::new("/"), way.device.as_deref());
        let theirs = way.server_device.as_deref();
        if self.report.server.is_none() {
            self.report.server = match way.is_loopback {
                true => Some(Machine::read(Path::new("/"), theirs)),
                // A server that does not tell is no reason not to measure it.
                false => describe(&server).ok().map(|told| Machine::of(&Host::told(&told.facts), theirs)),
            };
        }
        let soft = self.report.server.iter().flat_map(|server| &server.cards).filter(|card| {
            let is_used = way.server_device.as_ref() == Some(&card.device);
            is_used && card.is_software && !way.is_loopback
        });
        let soft =
            soft.map(|card| format!("software RDMA: no card is behind {} of {}", card.device, way.server));
        let soft: Vec<String> = soft.collect();
        for label in way.labels.iter().cloned().chain(soft) {
            if !self.report.labels.contains(&label) {
                self.report.labels.push(label);
            }
        }
        self.report.route = Some(way);
    }

    /// Measures every load on one rung.
    fn rung(&mut self, rung: &mut dyn Rung) -> Result<(), BenchError> {
        for &point in &self.plan.points {
            if self.stop.is_asked() {
                return Ok(());
            }
            self.point(rung, point)?;
        }
        Ok(())
    }

    fn point(&mut self, rung: &mut dyn Rung, point: Point) -> Result<(), BenchError> {
        let Point { block, depth } = point;
        let plan = self.plan;
        let shape = Shape { depth, block, writes: plan.writes(), stages: plan.stages };
        let mut lanes = Vec::new();
        for _ in 0..plan.lanes {
            lanes.push(rung.open(&shape)?);
        }
        for &mix in &plan.mixes {
            lanes = self.runs(rung, point, mix, lanes)?;
            if lanes.len() < plan.lanes as usize {
                // Nothing more will come of this rung.
                break;
            }
        }
        Ok(())
    }

    /// All runs of one load.
    fn runs(
        &mut self,
        rung: &dyn Rung,
        point: Point,
        mix: Mix,
        mut lanes: Vec<Box<dyn Lane>>,
    ) -> Result<Vec<Box<dyn Lane>>, BenchError> {
        let (plan, Point { block, depth }) = (self.plan, point);
        let mut gathered = Gathered::new(Place {
            rung: rung.name(),
            mixed_reads_percent: match mix {
                Mix::Only(_) => None,
                Mix::Reads(reads) => Some(reads),
            },
            pattern: plan.pattern,
            block,
            depth,
            lanes: plan.lanes,
            rate: plan.rate,
        });
        let title = format!("{} {mix}, {}, depth {depth}", rung.name(), super::units::block(block));
        let server = self.reached.clone().filter(|_| rung.name().is_on_the_way());
        let mut warm_up = plan.warm_up;
        for _ in 0..plan.repeat {
            if self.stop.is_asked() || lanes.len() < plan.lanes as usize {
                break;
            }
            let load = Load {
                mix,
                pattern: plan.pattern,
                block,
                depth,
                rate: plan.rate,
                limit: plan.limit,
                warm_up,
                stages: plan.stages,
            };
            let before = self.retries(rung.name());
            let (outcome, left) = measure(lanes, &load, rung.size(), server.as_ref(), &title, self.stop)?;
            lanes = left;
            // It is warm by now.
            warm_up = Duration::ZERO;
            let seen = outcome.kinds.iter().any(|kind| kind.samples.count() + kind.errors > 0);
            if seen {
                let retries = self.retries(rung.name()).zip(before);
                gathered.add(outcome, retries.map(|(now, before)| now.saturating_sub(before)));
            }
        }
        self.report.results.extend(gathered.measured());
        Ok(lanes)
    }

    /// What was sent again so far on the way to the server.
    fn retries(&self, rung: RungName) -> Option<u64> {
        let way = self.report.route.as_ref().filter(|_| rung.is_on_the_way())?;
        match &way.device {
            Some(device) => retries::of_device(Path::new("/"), device),
            None if way.fabric == FabricKind::Tcp.to_string() => retries::of_tcp(Path::new("/")),
            None => None,
        }
    }
}
