//! The command line: what the user typed.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as ClapArgs, Parser, Subcommand};
use kaeru_common::fabric::LinkConfig;

use crate::nbd::front::LaneOptions;
use crate::nbd::lane::Spin;
use crate::session::{AttachOptions, FabricChoice};
use crate::target::{Server, Target};

/// Attaches the exports of a kaerud: as a disk of this machine, or as NBD for any program.
#[derive(Debug, Parser)]
#[command(name = "kaeru", version, max_term_width = 100, after_help = AFTER_HELP)]
pub struct Args {
    /// Say more; twice for everything
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    pub verbose: u8,
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

const AFTER_HELP: &str = "\
A server is HOST, HOST:PORT or [IPV6]:PORT; an export is SERVER/NAME.

Examples:
  kaeru ls 192.168.7.1                                    what does it export?
  sudo kaeru attach 192.168.7.1/scratch                   use it as /dev/nbdN
  kaeru nbd 192.168.7.1/scratch --socket /tmp/scratch     serve it to qemu, nbdcopy, fio …
  sudo kaeru detach --all

KAERU_RUNTIME_DIR names the folder in which status and detach find what is attached [default: /run/kaeru for root,
$XDG_RUNTIME_DIR/kaeru for others].

Exit status: 0 success, 1 failure, 2 wrong usage.";

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List the exports of a server
    Ls(Ls),
    /// Attach an export as /dev/nbdN; needs root
    Attach(Attach),
    /// Detach devices that were attached
    Detach(Detach),
    /// Show what is attached and how it is
    Status(Status),
    /// Serve an export as NBD on a socket, in the foreground
    Nbd(Nbd),
    /// Measure; the same as kaeru-bench
    #[command(disable_help_flag = true)]
    Bench(Passed),
    /// Say what is wrong with the RDMA of this machine; the same as kaeru-doctor
    #[command(disable_help_flag = true)]
    Doctor(Passed),
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page
    Man,
    /// Detach a device when the process that serves it is gone
    #[command(hide = true)]
    Guard {
        /// The N of /dev/nbdN
        index: u32,
        /// What the device is known by
        backend: String,
    },
}

/// Arguments for another program.
#[derive(Debug, ClapArgs)]
pub struct Passed {
    /// Passed on
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub arguments: Vec<std::ffi::OsString>,
}

/// `kaeru ls`
#[derive(Debug, ClapArgs)]
pub struct Ls {
    /// The server
    #[arg(value_name = "SERVER")]
    pub server: Server,
    /// Show what each export did, and how fast
    #[arg(long)]
    pub activity: bool,
    /// Print JSON, with everything in it
    #[arg(long)]
    pub json: bool,
}

/// How to attach, for every front end.
#[derive(Debug, ClapArgs)]
pub struct Common {
    /// The export
    #[arg(value_name = "SERVER/EXPORT")]
    pub target: Target,
    /// Only read
    #[arg(long)]
    pub read_only: bool,
    /// Take the right to write from the client that has it
    #[arg(long)]
    pub steal: bool,
    /// Which fabric lanes use
    #[arg(long, value_enum, default_value = "auto")]
    pub fabric: FabricChoice,
    /// Spin this long before sleeping while an answer is due: 0, 20us, 1ms or always [default: 20us over verbs, 0 over tcp]
    #[arg(long, value_name = "TIME", value_parser = parse_spin)]
    pub spin: Option<Spin>,
    /// Fail requests that the server has not answered for this long
    #[arg(long, value_name = "TIME", value_parser = parse_time, default_value = "30s")]
    pub timeout: Duration,
}

impl Common {
    /// How to attach.
    pub fn attach_options(&self) -> AttachOptions {
        AttachOptions {
            read_only: self.read_only,
            steal: self.steal,
            fabric: self.fabric,
            link: LinkConfig::default(),
        }
    }

    /// How to run lanes.
    pub fn lane_options(&self) -> LaneOptions {
        LaneOptions { spin: self.spin, patience: self.timeout }
    }
}

/// `kaeru attach`
#[derive(Debug, ClapArgs)]
pub struct Attach {
    /// What and how
    #[command(flatten)]
    pub common: Common,
    /// The device to use; otherwise a free one is taken
    #[arg(long, value_name = "/dev/nbdN")]
    pub device: Option<String>,
    /// Lanes, each with a queue of its own [default: one for each CPU, at most 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=16))]
    pub lanes: Option<u8>,
    /// Stay in the foreground until interrupted
    #[arg(long)]
    pub foreground: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Be the background process of another attach
    #[arg(long, hide = true)]
    pub serve: bool,
}

/// `kaeru detach`
#[derive(Debug, ClapArgs)]
pub struct Detach {
    /// A device, a socket of "kaeru nbd", or the export that is attached; may be repeated
    #[arg(
        value_name = "/dev/nbdN|SOCKET|SERVER/EXPORT",
        required_unless_present = "all",
        conflicts_with = "all"
    )]
    pub what: Vec<String>,
    /// Detach everything
    #[arg(long)]
    pub all: bool,
    /// Detach although it is in use; what is not written yet is lost
    #[arg(long)]
    pub force: bool,
}

/// `kaeru status`
#[derive(Debug, ClapArgs)]
pub struct Status {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `kaeru nbd`
#[derive(Debug, ClapArgs)]
#[group(id = "where", required = true, multiple = false, args = ["socket", "listen"])]
pub struct Nbd {
    /// What and how
    #[command(flatten)]
    pub common: Common,
    /// Serve on a Unix socket at this path
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Serve on this loopback address and port; port 0 takes a free one
    #[arg(long, value_name = "ADDR:PORT")]
    pub listen: Option<SocketAddr>,
}

/// How long to spin: a time as people write it, or `always`.
///
/// # Errors
/// Where the text is neither.
pub fn parse_spin(text: &str) -> Result<Spin, String> {
    if text == "always" { Ok(Spin::Always) } else { parse_time(text).map(Spin::For) }
}

/// The longest time, for which kernels stand too: times are computed with, and more is the same as for ever.
const LONGEST: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// A time as people write it: `0`, `20us`, `5ms`, `30s`, `2min`.
pub fn parse_time(text: &str) -> Result<Duration, String> {
    let wrong = || format!("\"{text}\" is no time; write a whole number with us, ms, s or min, such as 30s");
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let time = match unit {
        "us" | "µs" => Duration::from_micros(number),
        "ms" => Duration::from_millis(number),
        "s" => Duration::from_secs(number),
        "min" => Duration::from_secs(number.saturating_mul(60)),
        "" if number == 0 => Duration::ZERO,
        _ => return Err(wrong()),
    };
    if time > LONGEST {
        return Err(format!("\"{text}\" is longer than 30 days (43200min), which is the most"));
    }
    Ok(time)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn fails(flags: &[&str]) -> String {
        Args::try_parse_from([&["kaeru"], flags].concat()).unwrap_err().to_string()
    }

    #[test]
    fn the_flags_are_sound() {
        Args::command().debug_assert();
    }

    #[test]
    fn times_read_as_people_write_them() {
        assert_eq!(parse_time("20us"), Ok(Duration::from_micros(20)));
        assert_eq!(parse_time("5ms"), Ok(Duration::from_millis(5)));
        assert_eq!(parse_time("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(parse_time("2min"), Ok(Duration::from_secs(120)));
        assert_eq!(parse_time("0"), Ok(Duration::ZERO));
        for text in ["", "5", "s", "5h", "-1s", "1.5s", "99999999999999999999s"] {
            assert!(parse_time(text).is_err(), "{text}");
        }
        assert_eq!(parse_time("43200min"), Ok(LONGEST));
        for text in ["2592001s", "18446744073709551615s", "18446744073709551615min"] {
            assert!(parse_time(text).unwrap_err().contains("30 days"), "{text}");
        }
        assert_eq!(parse_spin("always"), Ok(Spin::Always));
    }

    #[test]
    fn what_is_missing_or_contradicts_itself_is_said() {
        assert!(fails(&["nbd", "h/x"]).contains("--socket"));
        assert!(
            fails(&["nbd", "h/x", "--socket", "a", "--listen", "127.0.0.1:1"])
                .contains("cannot be used with")
        );
        assert!(fails(&["detach"]).contains("required"));
        assert!(fails(&["detach", "--all", "/dev/nbd0"]).contains("cannot be used with"));
        assert!(fails(&["attach", "h"]).contains("HOST/EXPORT"));
        assert!(fails(&["attach", "h/x", "--lanes", "17"]).contains("17"));
    }
}
