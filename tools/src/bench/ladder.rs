//! Climbs the rungs that a plan names, one after the other, and measures every load on each.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use kaeru_client::nbd::lane::Spin;
use kaeru_client::session::{AttachOptions, Session, SessionError, describe, list_within};
use kaeru_client::target::{Server, Target};
use kaeru_common::error::Status;
use kaeru_common::fabric::FabricKind;
use kaeru_common::host::Host;

use super::engine::{EngineError, Load, measure};
use super::figures::{Gathered, Place};
use super::files;
use super::machine::Machine;
use super::plan::{Plan, Point};
use super::report::{Report, SCHEMA};
use super::retries;
use super::route::{Goal, Way};
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
    /// Lanes died while they were measured.
    #[error("the rung \"{rung}\" lost {lost} of {lanes} lanes: {reason}")]
    Broken {
        /// Where.
        rung: RungName,
        /// How many.
        lost: usize,
        /// Of how many.
        lanes: u32,
        /// What the first of them said.
        reason: String,
    },
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

/// How long a server may take to notice that lanes are gone, whose places new ones need.
const LEAVING: Duration = Duration::from_secs(2);
/// How long it may take to say what an export is kept in.
const TELLING: Duration = Duration::from_secs(1);

/// Measures what `plan` says. Asked to stop, it reports what it has.
///
/// # Errors
/// [`BenchError`]; a failed operation is none, the report counts it.
pub fn run(plan: &Plan, command: &str, stop: &Stop) -> Result<Report, BenchError> {
    let server = plan.server_machine.as_deref().map(read_machine).transpose()?;
    let mut ladder = Ladder { plan, stop, report: empty(plan, command, server), ways: Vec::new() };
    match ladder.climb() {
        // What was measured is worth more than the reason why the rest was not.
        Err(error) if !ladder.report.results.is_empty() => ladder.problem(&error),
        // Nor is it a failure that nothing was measured yet when the user had enough.
        Err(_) if stop.is_asked() => {}
        result => result?,
    }
    let Ladder { mut report, ways, .. } = ladder;
    report.interrupted = stop.is_asked();
    if report.results.is_empty() && !report.interrupted {
        report.problem.get_or_insert_with(|| "not one operation was begun; measure for longer".to_owned());
    }
    let goals: Vec<(RungName, Goal)> =
        ways.iter().map(|(rung, way, target)| (*rung, Goal::of(way, target))).collect();
    report.apart = apart(&plan.rungs, &goals);
    report.derive_steps();
    Ok(report)
}

fn read_machine(path: &Path) -> Result<Machine, BenchError> {
    let wrong = |reason: String| BenchError::ServerMachine { file: path.display().to_string(), reason };
    let bytes = files::read(path).map_err(|error| wrong(error.to_string()))?;
    serde_json::from_slice(&bytes).map_err(|error| wrong(error.to_string()))
}

/// The rungs that are not known to lead where the others lead, by what is known of each.
fn apart(rungs: &[RungName], goals: &[(RungName, Goal)]) -> Vec<RungName> {
    let on_the_way: Vec<RungName> = rungs.iter().copied().filter(|rung| rung.is_on_the_way()).collect();
    if on_the_way.len() < 2 {
        return Vec::new();
    }
    let base = goals.first().map(|(_, goal)| goal);
    let goal_of = |rung: &RungName| goals.iter().find(|(of, _)| of == rung).map(|(_, goal)| goal);
    let is_with = |rung: &RungName| goal_of(rung).zip(base).is_some_and(|(goal, base)| goal.is_same(base));
    on_the_way.into_iter().filter(|rung| !is_with(rung)).collect()
}

/// A report without measurements.
fn empty(plan: &Plan, command: &str, server: Option<Machine>) -> Report {
    let path = |path: &Option<std::path::PathBuf>| path.as_ref().map(|path| path.display().to_string());
    let target = plan.target.as_ref().map(ToString::to_string);
    let target =
        target.or_else(|| path(&plan.socket)).or_else(|| path(&plan.device)).or_else(|| path(&plan.disk));
    let began = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let mut labels = Vec::new();
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
        target_kind: None,
        labels,
        remarks: plan.labels.clone(),
        route: None,
        spin: match plan.spin {
            _ if !plan.needs_session() => String::new(),
            None => "lanes spin as those of kaeru do".into(),
            Some(Spin::Always) => "lanes always spin".into(),
            Some(Spin::For(time)) => format!("lanes spin {} µs before they sleep", time.as_micros()),
        },
        client: Machine::read(Path::new("/"), None),
        server,
        results: Vec::new(),
        steps: Vec::new(),
        apart: Vec::new(),
        problem: None,
        interrupted: false,
    }
}

struct Ladder<'a> {
    plan: &'a Plan,
    stop: &'a Stop,
    report: Report,
    /// The ways of rungs to exports of ours, as far as they are known.
    ways: Vec<(RungName, Way, Target)>,
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
            let result = self.rung(&mut disk);
            self.go_on(result)?;
        }
        if let Some((session, target)) = attached {
            let result = self.on_session(&session, target);
            self.go_on(result)?;
        }
        if let Some(socket) = &mut socket {
            let result = self.rung(socket);
            self.go_on(result)?;
        }
        if let Some(device) = &mut device {
            let result = self.rung(device);
            self.go_on(result)?;
        }
        Ok(())
    }

    /// Goes on where lanes died that nothing else stands on.
    fn go_on(&mut self, result: Result<(), BenchError>) -> Result<(), BenchError> {
        match result {
            Err(error @ BenchError::Broken { .. }) => {
                self.problem(&error);
                Ok(())
            }
            result => result,
        }
    }

    /// Notes why something was not measured.
    fn problem(&mut self, error: &BenchError) {
        let problem = match self.report.problem.take() {
            None => error.to_string(),
            Some(before) => format!("{before}; {error}"),
        };
        self.report.problem = Some(problem);
    }

    /// Somebody else's NBD server.
    fn socket(&mut self, path: &Path) -> Result<ExistingSocket, BenchError> {
        let export = self.plan.target.as_ref().map_or("", |target| target.export.as_str());
        let rung = ExistingSocket::new(path, export)?;
        self.check(&path.display().to_string(), rung.size(), 1)?;
        self.go_by(Way::of_socket(path), &[RungName::Socket]);
        self.report.target_bytes.get_or_insert(rung.size());
        if self.plan.writes() && rung.is_read_only() {
            return Err(RungError::ReadOnly(path.display().to_string()).into());
        }
        Ok(rung)
    }

    /// A block device that is measured.
    fn device(&mut self, path: &Path) -> Result<DeviceRung, BenchError> {
        let rung = self.block_device(RungName::Device, path)?;
        self.go_by(Way::of_device(path), &[RungName::Device]);
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
        let mut rungs = vec![RungName::Fabric, RungName::Remote];
        if plan.socket.is_none() {
            rungs.push(RungName::Socket);
        }
        self.go_by(Way::of(&session).map(|way| (way, target.clone())), &rungs);
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

    /// Notes the way of some rungs to a server, both ends, and what they mean for the figures.
    fn go_by(&mut self, way: Option<(Way, Target)>, rungs: &[RungName]) {
        let Some((way, target)) = way else { return };
        let server = target.server.clone();
        if self.report.target_kind.is_none() {
            // A server that does not tell is no reason not to measure it.
            let listing = list_within(&server, TELLING).ok();
            let export = listing.and_then(|told| {
                let mut exports = told.exports.exports.iter();
                exports.find(|export| export.name == target.export).map(|export| export.kind.to_string())
            });
            self.report.target_kind = export;
        }
        self.ways.extend(rungs.iter().map(|rung| (*rung, way.clone(), target.clone())));
        // A session of our own comes first, and what is beside it may lead elsewhere.
        if self.report.route.is_none() {
            self.report.client = Machine::read(Path::new("/"), way.device.as_deref());
        }
        let theirs = way.server_device.as_deref();
        if self.report.server.is_none() {
            self.report.server = match way.is_loopback {
                true => Some(Machine::read(Path::new("/"), theirs)),
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
        self.report.route.get_or_insert(way);
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
            if self.stop.is_asked() {
                return Ok(());
            }
            lanes.push(self.open(rung, &shape)?);
        }
        for &mix in &plan.mixes {
            lanes = self.runs(rung, point, mix, lanes)?;
        }
        Ok(())
    }

    /// Opens a lane. The server may not have noticed yet that those of the rung before are gone.
    fn open(&self, rung: &mut dyn Rung, shape: &Shape) -> Result<Box<dyn Lane>, RungError> {
        let deadline = Instant::now() + LEAVING;
        loop {
            match rung.open(shape) {
                Err(RungError::Session(SessionError::Refused { refusal, .. }))
                    if refusal.status == Status::NoResources
                        && Instant::now() < deadline
                        && !self.stop.is_asked() =>
                {
                    std::thread::sleep(Duration::from_millis(20));
                }
                result => return result,
            }
        }
    }

    /// All runs of one load. Gives back the lanes, all of them unless the user had enough.
    ///
    /// # Errors
    /// [`BenchError::Broken`] where lanes died; what they measured is kept.
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
        let server = self.way_of(rung.name()).map(|(_, server)| server.clone());
        let (mut warm_up, mut broken) = (plan.warm_up, None);
        for limit in (0..plan.repeat).filter_map(|run| plan.limit_of(run)) {
            if self.stop.is_asked() || broken.is_some() {
                break;
            }
            let load = Load {
                mix,
                pattern: plan.pattern,
                block,
                depth,
                rate: plan.rate,
                limit,
                warm_up,
                stages: plan.stages,
            };
            let before = self.retries(rung.name());
            let (outcome, left) = measure(lanes, &load, rung.size(), server.as_ref(), &title, self.stop)?;
            lanes = left;
            // It is warm by now.
            warm_up = Duration::ZERO;
            if outcome.is_broken && !self.stop.is_asked() {
                broken = Some(BenchError::Broken {
                    rung: rung.name(),
                    lost: plan.lanes as usize - lanes.len(),
                    lanes: plan.lanes,
                    reason: outcome.first_error.clone().unwrap_or_else(|| "it gave no reason".to_owned()),
                });
            }
            let seen = outcome.kinds.iter().any(|kind| kind.samples.count() + kind.errors > 0);
            if seen {
                let retries = self.retries(rung.name()).zip(before);
                gathered.add(outcome, retries.map(|(now, before)| now.saturating_sub(before)));
            }
        }
        self.report.results.extend(gathered.measured());
        broken.map_or(Ok(lanes), Err)
    }

    /// The way of a rung, and the server at its end, if that is one of ours.
    fn way_of(&self, rung: RungName) -> Option<(&Way, &Server)> {
        self.ways.iter().find(|(name, ..)| *name == rung).map(|(_, way, target)| (way, &target.server))
    }

    /// What was sent again so far on the way to the server.
    fn retries(&self, rung: RungName) -> Option<u64> {
        let (way, _) = self.way_of(rung)?;
        match &way.device {
            Some(device) => retries::of_device(Path::new("/"), device),
            None if way.fabric == FabricKind::Tcp.to_string() => retries::of_tcp(Path::new("/")),
            None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::args::Args;
    use crate::bench::rungs::{Dead, Done, Io};
    use crate::bench::stages::Stamp;
    use clap::Parser;

    /// Opens lanes that live for so many operations.
    struct Frail {
        life: u32,
        opened: u32,
        /// Asked as soon as a lane is open.
        stop: Option<Stop>,
    }

    struct FrailLane(u32, Option<u32>);

    impl Lane for FrailLane {
        fn submit(&mut self, io: Io) -> Result<(), Dead> {
            self.0 = self.0.checked_sub(1).ok_or(Dead("gone".into()))?;
            self.1 = Some(io.tag);
            Ok(())
        }

        fn reap(&mut self, done: &mut Vec<Done>, _: Instant) -> Result<(), Dead> {
            let stamp = Stamp::default();
            done.extend(self.1.take().map(|tag| Done { tag, at: Instant::now(), failed: None, stamp }));
            Ok(())
        }
    }

    impl Rung for Frail {
        fn name(&self) -> RungName {
            RungName::Remote
        }

        fn size(&self) -> u64 {
            1 << 20
        }

        fn open(&mut self, _: &Shape) -> Result<Box<dyn Lane>, RungError> {
            self.opened += 1;
            self.stop.iter().for_each(Stop::ask);
            Ok(Box::new(FrailLane(self.life, None)))
        }
    }

    fn plan(flags: &[&str]) -> Plan {
        let args =
            Args::try_parse_from([&["kaeru-bench", "sweep", "h/x", "--sizes", "4K,8K"], flags].concat());
        Plan::of(&args.unwrap().command.unwrap()).unwrap().unwrap()
    }

    fn ladder<'a>(plan: &'a Plan, stop: &'a Stop) -> Ladder<'a> {
        Ladder { plan, stop, report: empty(plan, "", None), ways: Vec::new() }
    }

    #[test]
    fn nothing_is_opened_any_more_where_lanes_have_died() {
        let flags = ["--depths", "1", "--lanes", "2", "--count", "100", "--warm-up", "0", "--repeat", "3"];
        let (plan, stop) = (plan(&flags), Stop::default());
        let mut ladder = ladder(&plan, &stop);
        let mut rung = Frail { life: 10, opened: 0, stop: None };
        let error = ladder.rung(&mut rung).unwrap_err();
        assert_eq!(rung.opened, 2, "the second size is not begun");
        let [result] = &ladder.report.results[..] else { panic!("{:?}", ladder.report.results) };
        assert_eq!((result.all.count, result.all.errors, result.runs.len()), (20, 2, 1));
        ladder.go_on(Err(error)).unwrap();
        assert_eq!(ladder.report.problem.as_deref(), Some("the rung \"remote\" lost 2 of 2 lanes: gone"));
    }

    #[test]
    fn nothing_is_opened_any_more_when_the_user_has_had_enough() {
        let (plan, stop) = (plan(&["--lanes", "16"]), Stop::default());
        let mut rung = Frail { life: 10, opened: 0, stop: Some(stop.clone()) };
        ladder(&plan, &stop).rung(&mut rung).unwrap();
        assert_eq!(rung.opened, 1);
    }

    #[test]
    fn rungs_are_apart_unless_they_are_known_to_lead_to_one_export() {
        use RungName::{Device, Remote, Socket};
        let goal = |rung, export: &str| {
            let target: Target = format!("127.0.0.1:9/{export}").parse().unwrap();
            let way = crate::bench::report::sample::report().route.unwrap();
            (rung, Goal::of(&way, &target))
        };
        let all = [RungName::Ram, Remote, Socket, Device];
        assert_eq!(apart(&all, &[goal(Remote, "x"), goal(Socket, "x")]), [Device]);
        assert_eq!(apart(&all, &[goal(Remote, "x"), goal(Socket, "y"), goal(Device, "x")]), [Socket]);
        assert_eq!(apart(&[Socket, Device], &[]), [Socket, Device]);
        assert!(apart(&[RungName::Ram, Socket], &[]).is_empty(), "one alone is compared with nothing");
    }
}
