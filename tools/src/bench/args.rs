//! The command line: what the user typed. What it means is [`super::plan`]'s.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Arg, Args as ClapArgs, Parser, Subcommand, ValueEnum};
use kaeru_client::args::{parse_spin, parse_time};
use kaeru_client::nbd::lane::Spin;
use kaeru_client::nbd::proto::MAX_REQUEST;
use kaeru_client::session::FabricChoice;
use kaeru_client::target::Target;
use kaeru_common::units::Size;

use super::nbd_client::MAX_DEPTH;
use super::rungs::RungName;
use super::workload::Pattern;

/// Measures exports: how long a block takes, how many go through, and where on the way the time goes.
#[derive(Debug, Parser)]
#[command(
    name = "kaeru-bench",
    version,
    max_term_width = 100,
    after_help = AFTER_HELP,
    arg_required_else_help = true,
    args_conflicts_with_subcommands = true
)]
pub struct Args {
    /// Say more; twice for everything
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    pub verbose: u8,
    /// Print a completion script for this shell and exit
    #[arg(long, value_name = "SHELL", exclusive = true)]
    pub completions: Option<clap_complete::Shell>,
    /// Print the manual page and exit
    #[arg(long, exclusive = true)]
    pub man: bool,
    /// What to do
    #[command(subcommand)]
    pub command: Option<Command>,
}

const AFTER_HELP: &str = "\
Examples:
  kaeru-bench latency 192.168.7.1/scratch                 4 KiB reads; changes nothing
  kaeru-bench latency 192.168.7.1/scratch --write --yes   writes too: DESTROYS what is on it
  kaeru-bench latency --socket /tmp/disk.sock             any NBD server, to compare with
  kaeru-bench latency --device /dev/nbd0                  what fio measures on it
  kaeru-bench sweep 192.168.7.1/scratch --html sweep.html
  kaeru-bench compare before.json after.json

Exit status: 0 success, 1 failure or failed operations, 2 wrong usage, 130 interrupted.";

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// How long a 4 KiB block takes, one at a time
    #[command(after_help = MEASURE_HELP, mut_args(|arg| with_default(arg, EVERY, "1", "4K")))]
    Latency(Measure),
    /// How many bytes go through: 128 KiB blocks in order, 16 at once
    #[command(after_help = MEASURE_HELP, mut_args(|arg| with_default(arg, EVERY, "16", "128K")))]
    Bandwidth(Measure),
    /// How many operations go through: 4 KiB blocks at random places, 32 at once
    #[command(after_help = MEASURE_HELP, mut_args(|arg| with_default(arg, EVERY, "32", "4K")))]
    Iops(Measure),
    /// Latency and throughput for every size at every depth
    #[command(
        after_help = MEASURE_HELP,
        mut_args(|arg| with_default(arg, "remote, and what --socket, --device and --disk name", "see --depths", "see --sizes"))
    )]
    Sweep(Sweep),
    /// A load of your own
    #[command(
        after_help = MEASURE_HELP,
        mut_args(|arg| with_default(arg, EVERY, "1", "4K")),
        mut_arg("write", |arg| arg.help("Allow writes (see --op), which OVERWRITE blocks all over the export"))
    )]
    Run(Run),
    /// Tell whether reports (made with --json) differ by more than their runs differ among themselves
    Compare(Compare),
    /// Say what this machine is: card, firmware, link, PCIe, kernel, governor
    Machine(Machine),
}

/// Where all but a sweep measure.
const EVERY: &str = "every one that there is";

/// Says in the help of a subcommand what its flags mean by themselves.
fn with_default(arg: Arg, rung: &str, depth: &str, block: &str) -> Arg {
    let default = match arg.get_id().as_str() {
        "rung" => rung,
        "depth" => depth,
        "block" => block,
        _ => return arg,
    };
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    arg.help(format!("{help} [default: {default}]"))
}

const MEASURE_HELP: &str = "\
Rungs, from the bottom up; the difference between two is what lies between them:
  ram      a copy from this machine's own memory, to compare with
  disk     a disk, file or folder of this machine, to compare with (--disk)
  fabric   one-sided operations on the link alone, as ib_read_lat; RAM exports only
  remote   the client's library, the fabric and the server
  socket   in addition NBD over a Unix socket, and the lane that serves it
  device   a block device of the kernel, such as /dev/nbd0, as fio (--device)

Times are full round trips. A warm-up comes first and is not counted. Ctrl-C
ends early and prints what was measured so far.

Nothing is written without --write, which OVERWRITES blocks all over the
export, and a yes: typed when asked, or --yes.";

/// What is common to all measurements.
#[derive(Debug, ClapArgs)]
pub struct Measure {
    /// The export
    #[arg(value_name = "HOST/EXPORT")]
    pub target: Option<Target>,
    /// Which fabric to use
    #[arg(long, value_enum, default_value = "auto")]
    pub fabric: FabricChoice,
    /// Where to measure, several with commas
    #[arg(long, value_enum, value_delimiter = ',', value_name = "RUNG", hide_possible_values = true)]
    pub rung: Vec<RungName>,
    /// Measure the NBD server on this Unix socket instead of a lane of our own
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Measure this block device, such as /dev/nbd0
    #[arg(long, value_name = "PATH")]
    pub device: Option<PathBuf>,
    /// Measure this disk, file or folder of this machine, to compare with; in a folder a file is made for the while
    #[arg(long, value_name = "PATH")]
    pub disk: Option<PathBuf>,
    /// Operations under way at once on each lane
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_DEPTH)))]
    pub depth: Option<u32>,
    /// Bytes of one operation
    #[arg(long, value_name = "SIZE", value_parser = parse_block)]
    pub block: Option<u32>,
    /// Lanes, each with a thread and a connection of its own; up to 16, or to 256 on a --socket, --device or --disk
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub lanes: u32,
    /// Begin this many operations a second, on time whether earlier ones are over or not
    #[arg(long, value_name = "PER-SECOND", value_parser = parse_rate)]
    pub rate: Option<f64>,
    /// Measure each figure for this many seconds, all runs together [default: 3; sweep: 1]
    #[arg(long, aliases = ["runtime", "time", "duration"], value_name = "N", conflicts_with = "count", value_parser = parse_seconds)]
    pub seconds: Option<f64>,
    /// Measure this many operations for each figure, all runs together
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Runs for each figure, from which its spread is known [default: 3; sweep: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub repeat: Option<u32>,
    /// How long to warm up
    #[arg(long, value_name = "TIME", value_parser = parse_warm_up, default_value = "500ms")]
    pub warm_up: Duration,
    /// Stamp every operation: when it passed where
    #[arg(long)]
    pub stages: bool,
    /// Spin this long before sleeping while an answer is due: 0, 20us, 1ms or always [default: as kaeru does]
    #[arg(long, value_name = "TIME", value_parser = parse_spin)]
    pub spin: Option<Spin>,
    /// Measure writes too, which OVERWRITES blocks all over the export
    #[arg(long)]
    pub write: bool,
    /// Agree that what is on the export is lost
    #[arg(long, requires = "write")]
    pub yes: bool,
    /// Carry this remark in every form of output
    #[arg(long, value_name = "TEXT")]
    pub label: Vec<String>,
    /// What "kaeru-bench machine --json" printed on the server; tells more of it than the server does
    #[arg(long, value_name = "FILE")]
    pub server_machine: Option<PathBuf>,
    /// How to print, and where else
    #[command(flatten)]
    pub output: Output,
}

/// How to print.
#[derive(Clone, Debug, Default, ClapArgs)]
pub struct Output {
    /// Print JSON
    #[arg(long, group = "form")]
    pub json: bool,
    /// Print comma-separated values
    #[arg(long, group = "form")]
    pub csv: bool,
    /// Print a block to paste into a blog or an issue
    #[arg(long, group = "form")]
    pub paste: bool,
    /// Also write one self-contained page with plots
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

impl Output {
    /// Whether what is printed has no room for words about what went wrong.
    pub fn is_for_programs(&self) -> bool {
        self.json || self.csv
    }
}

/// `kaeru-bench sweep`
#[derive(Debug, ClapArgs)]
pub struct Sweep {
    /// Sizes of blocks
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',', value_parser = parse_block,
        default_value = "4K,16K,64K,256K", conflicts_with = "block")]
    pub sizes: Vec<u32>,
    /// Depths
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,4,16",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_DEPTH)), conflicts_with = "depth")]
    pub depths: Vec<u32>,
    /// The rest
    #[command(flatten)]
    pub measure: Measure,
}

/// Which operations `run` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RunOp {
    /// Reads
    Read,
    /// Writes; needs --write
    Write,
    /// Both at once, see --reads; needs --write
    Mixed,
}

/// `kaeru-bench run`
#[derive(Debug, ClapArgs)]
pub struct Run {
    /// Which operations
    #[arg(long, value_enum, default_value = "read")]
    pub op: RunOp,
    /// Reads in a hundred operations of --op mixed [default: 70]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(1..=99))]
    pub reads: Option<u8>,
    /// In which order blocks are taken
    #[arg(long, value_enum, default_value = "random")]
    pub pattern: Pattern,
    /// The rest
    #[command(flatten)]
    pub measure: Measure,
}

/// `kaeru-bench compare`
#[derive(Debug, ClapArgs)]
pub struct Compare {
    /// Reports that --json printed; all others are compared with the first
    #[arg(value_name = "FILE", required = true, num_args = 2..)]
    pub files: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Also write one self-contained page with plots laid over one another
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// `kaeru-bench machine`
#[derive(Debug, ClapArgs)]
pub struct Machine {
    /// Print JSON, for --server-machine
    #[arg(long)]
    pub json: bool,
}

/// The size of a block: `8`, `4K`, `1M`.
fn parse_block(text: &str) -> Result<u32, String> {
    let size: Size = text.parse().map_err(|error: kaeru_common::units::BadSize| error.to_string())?;
    u32::try_from(size.0)
        .ok()
        .filter(|bytes| (1..=MAX_REQUEST).contains(bytes))
        .ok_or_else(|| format!("a block has 1 byte to {}", Size(MAX_REQUEST.into())))
}

/// Seconds, or a time with its unit: `3`, `0.5`, `3s`, `500ms`.
fn parse_seconds(text: &str) -> Result<f64, String> {
    let text = match parse_time(text) {
        Ok(time) => time.as_secs_f64().to_string(),
        Err(_) => text.to_owned(),
    };
    // Less is over before it has begun; a year is enough.
    within(&text, 0.001, 31_536_000.0, "it has to be from 0.001 (1 ms) to 31536000 (a year)")
}

/// Operations a second.
fn parse_rate(text: &str) -> Result<f64, String> {
    // Nobody waits longer than an hour for the second one, and no clock tells more apart.
    within(text, 0.0001, 1e8, "it has to be from 0.0001 to 100000000 operations a second")
}

fn within(text: &str, least: f64, most: f64, bounds: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| format!("\"{text}\" is no number"))?;
    if (least..=most).contains(&number) { Ok(number) } else { Err(bounds.to_owned()) }
}

/// A warm-up, which nobody wants longer than a measurement.
fn parse_warm_up(text: &str) -> Result<Duration, String> {
    const MOST: Duration = Duration::from_secs(24 * 3600);
    parse_time(text).and_then(|time| match time <= MOST {
        true => Ok(time),
        false => Err("it has to be a day or less".to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_flags_are_sound() {
        Args::command().debug_assert();
    }

    #[test]
    fn the_help_of_each_subcommand_has_its_own_defaults() {
        let help = |name: &str| {
            let mut all = Args::command();
            let text = all.find_subcommand_mut(name).unwrap().render_long_help().to_string();
            text.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        for (name, rung, depth, block) in [
            ("latency", "every one", "1", "4K"),
            ("bandwidth", "every one", "16", "128K"),
            ("iops", "every one", "32", "4K"),
            ("run", "every one", "1", "4K"),
            ("sweep", "remote", "see --depths", "see --sizes"),
        ] {
            let text = help(name);
            for part in [
                format!("several with commas [default: {rung}"),
                format!("at once on each lane [default: {depth}]"),
                format!("Bytes of one operation [default: {block}]"),
            ] {
                assert!(text.contains(&part), "{part} is not in {text}");
            }
        }
        assert!(
            help("run").contains("Allow writes (see --op)") && !help("run").contains("Measure writes too")
        );
        assert!(help("latency").contains("Measure writes too"));
    }

    #[test]
    fn blocks_have_bounds() {
        assert_eq!(
            (parse_block("8"), parse_block("4K"), parse_block("32M")),
            (Ok(8), Ok(4096), Ok(32 << 20))
        );
        for text in ["0", "33M", "-1", "x"] {
            assert!(parse_block(text).is_err(), "{text}");
        }
    }

    #[test]
    fn numbers_have_bounds_that_are_said() {
        for text in ["0", "-1", "inf", "NaN", "x", "1e-9", "1e300", "1e-20"] {
            let (rate, seconds) = (parse_rate(text).unwrap_err(), parse_seconds(text).unwrap_err());
            assert!(text == "x" || rate.contains("from 0.0001 to 100000000"), "{text}: {rate}");
            assert!(text == "x" || seconds.contains("from 0.001 (1 ms)"), "{text}: {seconds}");
        }
        assert!(parse_rate("1e9").unwrap_err().contains("to 100000000"));
        assert_eq!((parse_rate("0.5"), parse_rate("1e8")), (Ok(0.5), Ok(1e8)));
        assert!(parse_warm_up("99999999999999999s").is_err() && parse_warm_up("1s").is_ok());
    }

    #[test]
    fn seconds_need_no_unit_and_may_have_one() {
        for (text, seconds) in [("3", 3.0), ("0.5", 0.5), ("3s", 3.0), ("500ms", 0.5), ("2min", 120.0)] {
            assert_eq!(parse_seconds(text), Ok(seconds), "{text}");
        }
        assert!(parse_seconds("0s").is_err());
    }
}
