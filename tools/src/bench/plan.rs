//! What the command line means.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::CommandFactory;
use clap::error::ErrorKind;
use kaeru_client::nbd::lane::Spin;
use kaeru_client::session::FabricChoice;
use kaeru_client::target::Target;
use kaeru_common::wire::MAX_LANES;

use super::args::{Args, Command, Measure, Output, Run, RunOp, Sweep};
use super::engine::Limit;
use super::rungs::RungName;
use super::workload::{Mix, Op, Pattern};

/// What is to be measured.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The subcommand.
    pub preset: &'static str,
    /// The export; there for every rung on a session of our own.
    pub target: Option<Target>,
    /// Which fabric.
    pub fabric: FabricChoice,
    /// Where, from the bottom up.
    pub rungs: Vec<RungName>,
    /// Somebody else's NBD server, if that is what `socket` means.
    pub socket: Option<PathBuf>,
    /// The rung `device`.
    pub device: Option<PathBuf>,
    /// The rung `disk`.
    pub disk: Option<PathBuf>,
    /// Which operations follow one another; each of them is measured for itself.
    pub mixes: Vec<Mix>,
    /// In which order blocks are taken.
    pub pattern: Pattern,
    /// Block sizes and depths.
    pub points: Vec<Point>,
    /// Lanes.
    pub lanes: u32,
    /// Operations a second.
    pub rate: Option<f64>,
    /// How much all runs of a load measure together; see [`Self::limit_of`].
    pub limit: Limit,
    /// Runs of each.
    pub repeat: u32,
    /// How long the first one warms up.
    pub warm_up: Duration,
    /// Whether operations are stamped.
    pub stages: bool,
    /// Spinning before sleeping; `None` as `kaeru` does.
    pub spin: Option<Spin>,
    /// What would be overwritten; `None` if nothing.
    pub overwrites: Option<String>,
    /// Whether the user agreed to that beforehand.
    pub agreed: bool,
    /// Remarks of the user's.
    pub labels: Vec<String>,
    /// A file that tells of the server's machine.
    pub server_machine: Option<PathBuf>,
    /// How to print.
    pub output: Output,
    /// What the user should know beforehand.
    pub remarks: Vec<String>,
}

/// One load of a sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// Bytes of one operation.
    pub block: u32,
    /// Operations under way at once on each lane.
    pub depth: u32,
}

/// What a subcommand means where nothing else is said.
struct Preset {
    name: &'static str,
    pattern: Pattern,
    points: Vec<Point>,
    seconds: f64,
    repeat: u32,
    /// Where to measure on a session of our own.
    rungs: &'static [RungName],
}

impl Plan {
    /// What a measuring command means; `None` for the others.
    ///
    /// # Errors
    /// Where flags do not go together; exits with status 2.
    pub fn of(command: &Command) -> Result<Option<Self>, clap::Error> {
        const LADDER: &[RungName] = &[RungName::Ram, RungName::Fabric, RungName::Remote, RungName::Socket];
        let preset = |name, pattern, block, depth| Preset {
            name,
            pattern,
            points: vec![Point { block, depth }],
            seconds: 3.0,
            repeat: 3,
            rungs: LADDER,
        };
        let plan = match command {
            Command::Latency(measure) => {
                Self::build(measure, preset("latency", Pattern::Random, 4 << 10, 1), None)
            }
            Command::Bandwidth(measure) => {
                Self::build(measure, preset("bandwidth", Pattern::Sequential, 128 << 10, 16), None)
            }
            Command::Iops(measure) => {
                Self::build(measure, preset("iops", Pattern::Random, 4 << 10, 32), None)
            }
            Command::Sweep(Sweep { sizes, depths, measure }) => {
                let sizes = measure.block.map_or(sizes.clone(), |block| vec![block]);
                let depths = measure.depth.map_or(depths.clone(), |depth| vec![depth]);
                let point = |&block: &u32| depths.iter().map(move |&depth| Point { block, depth });
                let points = sizes.iter().flat_map(point).collect();
                let rungs = &[RungName::Remote];
                let pattern = Pattern::Random;
                Self::build(
                    measure,
                    Preset { name: "sweep", pattern, points, seconds: 1.0, repeat: 1, rungs },
                    None,
                )
            }
            Command::Run(Run { op, reads, pattern, measure }) => {
                let mix = match op {
                    RunOp::Read | RunOp::Write if reads.is_some() => {
                        return wrong(
                            ErrorKind::ArgumentConflict,
                            "--reads is about a mixed load; add --op mixed, or leave it out",
                        );
                    }
                    RunOp::Read if measure.write => {
                        return wrong(
                            ErrorKind::ArgumentConflict,
                            "--write, but --op read writes nothing; add --op write or --op mixed, or leave it out",
                        );
                    }
                    RunOp::Read => Mix::Only(Op::Read),
                    RunOp::Write => Mix::Only(Op::Write),
                    RunOp::Mixed => Mix::Reads(reads.unwrap_or(70)),
                };
                Self::build(measure, preset("run", *pattern, 4 << 10, 1), Some(mix))
            }
            Command::Compare(_) | Command::Machine(_) => return Ok(None),
        };
        plan.map(Some)
    }

    fn build(measure: &Measure, preset: Preset, mix: Option<Mix>) -> Result<Self, clap::Error> {
        let rungs = rungs(measure, &preset)?;
        let remarks = lanes_of_ours(measure, &rungs)?;
        let mixes = match mix {
            Some(mix) if mix.writes() && !measure.write => {
                return wrong(
                    ErrorKind::MissingRequiredArgument,
                    "writes overwrite what is on the export; add --write if all of it may be lost",
                );
            }
            Some(mix) => vec![mix],
            None if measure.write => Op::ALL.map(Mix::Only).to_vec(),
            None => vec![Mix::Only(Op::Read)],
        };
        let repeat = measure.repeat.unwrap_or(preset.repeat);
        let limit = match measure.count {
            Some(count) => Limit::Count(count),
            None => Limit::Time(Duration::from_secs_f64(measure.seconds.unwrap_or(preset.seconds))),
        };
        let Point { block, depth } = preset.points[0];
        let points = match preset.points.len() {
            1 => vec![Point { block: measure.block.unwrap_or(block), depth: measure.depth.unwrap_or(depth) }],
            _ => preset.points,
        };
        Ok(Self {
            preset: preset.name,
            overwrites: measure.write.then(|| overwrites(measure, &rungs)).flatten(),
            target: measure.target.clone(),
            fabric: measure.fabric,
            rungs,
            socket: measure.socket.clone(),
            device: measure.device.clone(),
            disk: measure.disk.clone(),
            mixes,
            pattern: preset.pattern,
            points,
            lanes: measure.lanes,
            rate: measure.rate,
            limit,
            repeat,
            warm_up: measure.warm_up,
            stages: measure.stages,
            spin: measure.spin,
            agreed: measure.yes,
            labels: measure.label.clone(),
            server_machine: measure.server_machine.clone(),
            output: measure.output.clone(),
            remarks,
        })
    }

    /// How much a run measures; `None` where the ones before it have done everything.
    pub fn limit_of(&self, run: u32) -> Option<Limit> {
        match self.limit {
            Limit::Count(count) => {
                let (run, repeat) = (u64::from(run), u64::from(self.repeat));
                let part = count / repeat + u64::from(run < count % repeat);
                (part > 0).then_some(Limit::Count(part))
            }
            Limit::Time(time) => Some(Limit::Time(time / self.repeat)),
        }
    }

    /// Whether any operation changes bytes.
    pub fn writes(&self) -> bool {
        self.mixes.iter().any(|mix| mix.writes())
    }

    /// Whether a rung is to be measured.
    pub fn wants(&self, rung: RungName) -> bool {
        self.rungs.contains(&rung)
    }

    /// Whether a session of our own is needed.
    pub fn needs_session(&self) -> bool {
        is_ours(&self.rungs, self.socket.as_deref())
    }
}

/// Whether any of `rungs` stands on a session of our own.
fn is_ours(rungs: &[RungName], socket: Option<&Path>) -> bool {
    let has = |rung| rungs.contains(&rung);
    has(RungName::Fabric) || has(RungName::Remote) || (has(RungName::Socket) && socket.is_none())
}

/// Checks the flags that are about lanes which this process has itself. Gives what they leave out.
fn lanes_of_ours(measure: &Measure, rungs: &[RungName]) -> Result<Vec<String>, clap::Error> {
    let ours = is_ours(rungs, measure.socket.as_deref());
    if ours && measure.lanes as usize > MAX_LANES {
        let text = format!(
            "--lanes {}: a session has at most {MAX_LANES}, and \"fabric\", \"remote\" and \"socket\" stand on one; use --lanes \
             {MAX_LANES}, or measure only a --socket, --device or --disk",
            measure.lanes
        );
        return wrong(ErrorKind::ValueValidation, &text);
    }
    for (given, flag) in [
        (measure.stages, "--stages"),
        (measure.spin.is_some(), "--spin"),
        (measure.fabric != FabricChoice::Auto, "--fabric"),
    ] {
        if given && !ours {
            let text = format!(
                "{flag} is about lanes of this process, and none is measured here; leave it out, or name HOST/EXPORT and no \
                 --socket"
            );
            return wrong(ErrorKind::ArgumentConflict, &text);
        }
    }
    let foreign = measure.socket.iter().chain(&measure.device).filter(|_| measure.stages);
    Ok(foreign.map(|path| format!("no --stages for {}: another process serves it", path.display())).collect())
}

fn wrong<T>(kind: ErrorKind, text: &str) -> Result<T, clap::Error> {
    Err(Args::command().error(kind, text))
}

/// Where to measure: what was asked for, else all that there is.
fn rungs(measure: &Measure, preset: &Preset) -> Result<Vec<RungName>, clap::Error> {
    let Measure { target, socket, device, disk, rung, .. } = measure;
    if target.is_none() && socket.is_none() && device.is_none() && disk.is_none() {
        return wrong(
            ErrorKind::MissingRequiredArgument,
            "say what to measure: HOST/EXPORT (\"kaeru ls HOST\" lists the exports), --socket PATH, --device PATH or \
             --disk PATH",
        );
    }
    let mut wanted = rung.clone();
    if wanted.is_empty() {
        if target.is_some() {
            wanted.extend(preset.rungs);
        }
        wanted.extend(socket.as_ref().map(|_| RungName::Socket));
        wanted.extend(device.as_ref().map(|_| RungName::Device));
        wanted.extend(disk.as_ref().map(|_| RungName::Disk));
    }
    wanted.sort_unstable();
    wanted.dedup();
    for rung in &wanted {
        let missing = match rung {
            RungName::Fabric | RungName::Remote if target.is_none() => {
                "HOST/EXPORT; \"kaeru ls HOST\" lists the exports"
            }
            RungName::Socket if target.is_none() && socket.is_none() => "HOST/EXPORT or --socket PATH",
            RungName::Device if device.is_none() => "--device PATH, such as /dev/nbd0",
            RungName::Disk if disk.is_none() => "--disk PATH",
            _ => continue,
        };
        return wrong(ErrorKind::MissingRequiredArgument, &format!("the rung \"{rung}\" needs {missing}"));
    }
    for (given, rung, flag) in [
        (socket.is_some(), RungName::Socket, "--socket"),
        (device.is_some(), RungName::Device, "--device"),
        (disk.is_some(), RungName::Disk, "--disk"),
    ] {
        if given && !wanted.contains(&rung) {
            let text =
                format!("{flag} is not measured without \"{rung}\" among --rung; leave one of them out");
            return wrong(ErrorKind::ArgumentConflict, &text);
        }
    }
    Ok(wanted)
}

/// What writes would destroy; `None` where they harm nobody.
fn overwrites(measure: &Measure, rungs: &[RungName]) -> Option<String> {
    let has = |rung| rungs.contains(&rung);
    let mut all = Vec::new();
    if is_ours(rungs, measure.socket.as_deref()) {
        all.extend(measure.target.as_ref().map(ToString::to_string));
    }
    if has(RungName::Socket) {
        all.extend(measure.socket.as_ref().map(|path| format!("what {} serves", path.display())));
    }
    all.extend(measure.device.as_ref().map(|path| path.display().to_string()));
    all.extend(measure.disk.as_ref().filter(|path| !path.is_dir()).map(|path| path.display().to_string()));
    (!all.is_empty()).then(|| all.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn parse(command: &str, flags: &[&str]) -> Result<Plan, String> {
        let args = Args::try_parse_from([&["kaeru-bench", command], flags].concat())
            .map_err(|error| error.to_string())?;
        let plan = Plan::of(&args.command.unwrap()).map_err(|error| {
            assert_eq!(error.exit_code(), 2);
            error.to_string()
        })?;
        Ok(plan.unwrap())
    }

    fn fails(flags: &[&str], part: &str) {
        let text = parse("latency", flags).unwrap_err();
        assert!(text.contains(part), "{text}");
    }

    #[test]
    fn without_flags_all_rungs_are_read_for_some_seconds_in_three_runs() {
        let plan = parse("latency", &["h/x"]).unwrap();
        assert_eq!(plan.rungs, [RungName::Ram, RungName::Fabric, RungName::Remote, RungName::Socket]);
        assert_eq!((plan.limit, plan.repeat), (Limit::Time(Duration::from_secs(3)), 3));
        assert_eq!(plan.limit_of(2), Some(Limit::Time(Duration::from_secs(1))));
        assert_eq!(plan.mixes, [Mix::Only(Op::Read)]);
        assert_eq!(plan.points, [Point { block: 4096, depth: 1 }]);
        assert!(plan.needs_session() && !plan.writes() && plan.overwrites.is_none());
    }

    #[test]
    fn presets_differ_in_their_loads() {
        let point = |command| parse(command, &["h/x"]).unwrap().points[0];
        assert_eq!(point("bandwidth"), Point { block: 128 << 10, depth: 16 });
        assert_eq!(point("iops"), Point { block: 4096, depth: 32 });
        let sweep = parse("sweep", &["h/x", "--sizes", "8,4K", "--depths", "1,2,3"]).unwrap();
        assert_eq!((sweep.points.len(), sweep.points[5]), (6, Point { block: 4096, depth: 3 }));
        assert_eq!((sweep.repeat, sweep.rungs), (1, vec![RungName::Remote]));
        let run = parse("run", &["h/x", "--block", "1M", "--depth", "7", "--count", "10"]).unwrap();
        assert_eq!((run.points[0], run.limit), (Point { block: 1 << 20, depth: 7 }, Limit::Count(10)));
    }

    #[test]
    fn exactly_as_many_operations_are_measured_as_were_asked_for() {
        for (count, repeat) in [(1u64, 3u32), (2, 3), (10, 3), (300, 3), (7, 1), (u64::MAX, 100)] {
            let flags = ["h/x", "--count", &count.to_string(), "--repeat", &repeat.to_string()];
            let plan = parse("latency", &flags).unwrap();
            let parts: Vec<u64> = (0..repeat)
                .filter_map(|run| plan.limit_of(run))
                .map(|limit| match limit {
                    Limit::Count(part) => part,
                    Limit::Time(_) => unreachable!("a number was asked for"),
                })
                .collect();
            assert_eq!(parts.iter().sum::<u64>(), count, "{parts:?}");
            assert!(!parts.contains(&0) && parts[0] - parts[parts.len() - 1] <= 1, "{parts:?}");
        }
    }

    #[test]
    fn a_session_has_only_so_many_lanes_and_others_may_have_more() {
        assert_eq!(parse("latency", &["h/x", "--lanes", "16"]).unwrap().lanes, 16);
        fails(&["h/x", "--lanes", "17"], "at most 16");
        fails(&["h/x", "--lanes", "257", "--rung", "ram"], "256");
        for flags in
            [&["--socket", "/s"][..], &["--device", "/d"], &["--disk", "/d"], &["h/x", "--rung", "ram"]]
        {
            assert_eq!(parse("latency", &[flags, &["--lanes", "256"]].concat()).unwrap().lanes, 256);
        }
    }

    #[test]
    fn flags_about_lanes_of_ours_need_one() {
        for flags in [&["--stages"][..], &["--spin", "0"], &["--fabric", "tcp"]] {
            fails(&[&["--socket", "/s"], flags].concat(), flags[0]);
            fails(
                &[&["h/x", "--socket", "/s", "--device", "/d", "--rung", "socket,device"], flags].concat(),
                flags[0],
            );
            assert!(parse("latency", &[&["h/x"], flags].concat()).unwrap().remarks.is_empty());
        }
        let both = parse("latency", &["h/x", "--socket", "/s", "--stages"]).unwrap();
        assert!(both.remarks[0].contains("/s") && both.remarks.len() == 1, "{:?}", both.remarks);
    }

    #[test]
    fn sockets_and_devices_alone_need_no_export() {
        let plan = parse("latency", &["--socket", "/s", "--device", "/dev/nbd0"]).unwrap();
        assert_eq!(plan.rungs, [RungName::Socket, RungName::Device]);
        assert!(!plan.needs_session());
    }

    #[test]
    fn what_would_be_overwritten_is_named() {
        let of = |flags: &[&str]| parse("latency", flags).unwrap().overwrites;
        assert_eq!(of(&["h/x", "--write", "--yes"]).as_deref(), Some("h/x"));
        assert_eq!(of(&["h/x", "--socket", "/s", "--write"]).as_deref(), Some("h/x, what /s serves"));
        assert_eq!(of(&["--disk", "/", "--write"]), None, "a file that is made harms nobody");
        assert_eq!(of(&["h/x"]), None);
        fails(&["h/x", "--yes"], "--write");
        assert!(parse("run", &["h/x", "--op", "mixed"]).unwrap_err().contains("--write"));
        let mixed = parse("run", &["h/x", "--op", "mixed", "--reads", "30", "--write"]).unwrap();
        assert_eq!((mixed.mixes, mixed.agreed), (vec![Mix::Reads(30)], false));
        assert_eq!(parse("run", &["h/x", "--op", "mixed", "--write"]).unwrap().mixes, [Mix::Reads(70)]);
    }

    #[test]
    fn a_load_that_would_not_be_what_its_flags_say_is_refused() {
        let refused = |flags: &[&str]| parse("run", &[&["h/x"], flags].concat()).unwrap_err();
        for flags in [
            &["--reads", "70", "--write", "--yes"][..],
            &["--reads", "70"],
            &["--op", "write", "--reads", "1"],
        ] {
            assert!(refused(flags).contains("add --op mixed"), "{flags:?}");
        }
        for flags in [&["--write", "--yes"][..], &["--op", "read", "--write"]] {
            assert!(refused(flags).contains("--op read writes nothing"), "{flags:?}");
        }
    }

    #[test]
    fn what_is_missing_or_contradicts_itself_is_said() {
        for part in ["HOST/EXPORT", "--socket", "--device", "--disk"] {
            fails(&[], part);
            fails(&["--rung", "ram"], part);
        }
        fails(&["--socket", "/s", "--rung", "remote"], "needs HOST/EXPORT");
        fails(&["h/x", "--rung", "device"], "needs --device");
        fails(&["h/x", "--socket", "/s", "--rung", "remote"], "leave one of them out");
        fails(&["h/x", "--seconds", "1", "--count", "1"], "cannot be used with");
        fails(&["h/x", "--count", "0"], "0");
        fails(&["h/x", "--json", "--csv"], "cannot be used with");
        fails(&["h/x", "--rung", "sky"], "sky");
    }
}
