//! The command line: what the user typed, and the plan that it means.

use std::path::PathBuf;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{ArgGroup, Args as ClapArgs, CommandFactory, Parser, Subcommand, ValueEnum};
use kaeru_client::args::parse_spin;
use kaeru_client::nbd::lane::Spin;
use kaeru_client::session::FabricChoice;
use kaeru_client::target::Target;

use super::runner::Limit;

/// Measures exports: how long one block takes, and where on its way the time goes.
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
    /// What to measure
    #[command(subcommand)]
    pub command: Option<Command>,
}

const AFTER_HELP: &str = "\
Examples:
  kaeru-bench latency 192.168.7.1/scratch                 4 KiB reads; changes nothing
  kaeru-bench latency 192.168.7.1/scratch --write --yes   writes too: DESTROYS what is on it
  kaeru-bench latency --socket /tmp/disk.sock             any NBD server, for comparison

Exit status: 0 success, 1 failure or failed operations, 2 wrong usage.";

/// What to measure.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// How long a 4 KiB block takes, one at a time
    Latency(Latency),
}

/// Where on the way to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RungChoice {
    /// The client's library: no NBD, no kernel device
    Remote,
    /// NBD over a Unix socket on top of it
    Socket,
    /// All of them, one after the other
    All,
}

/// `kaeru-bench latency`
#[derive(Debug, ClapArgs)]
#[command(
    group = ArgGroup::new("what").args(["target", "socket"]).multiple(true).required(true),
    after_help = LATENCY_HELP
)]
pub struct Latency {
    /// The export
    #[arg(value_name = "HOST/EXPORT")]
    pub target: Option<Target>,
    /// Which fabric to use
    #[arg(long, value_enum, default_value = "auto")]
    pub fabric: FabricChoice,
    /// Where to measure [default: all; socket without an export]
    #[arg(long, value_enum)]
    pub rung: Option<RungChoice>,
    /// Measure the NBD server on this Unix socket instead of one of our own
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Measure each kind of operation for this long [default: 3]
    #[arg(long, value_name = "N", conflicts_with = "count", value_parser = clap::value_parser!(u32).range(1..))]
    pub seconds: Option<u32>,
    /// Measure this many operations of each kind
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Spin this long before sleeping while an answer is due: 0, 20us, 1ms or always
    #[arg(long, value_name = "TIME", value_parser = parse_spin, default_value = "20us")]
    pub spin: Spin,
    /// Measure writes too, which OVERWRITES random blocks of the export; needs --yes
    #[arg(long)]
    pub write: bool,
    /// Agree that what is on the export is lost
    #[arg(long, requires = "write")]
    pub yes: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

const LATENCY_HELP: &str = "\
Rungs, from the bottom up; the difference between two is what lies between them:
  remote   the client's library, the fabric and the server
  socket   in addition NBD over a Unix socket, and the lane that serves it

Blocks are 4 KiB at random places, one at a time; times are full round trips.
A warm-up comes first and is not counted. Ctrl-C ends early and prints what
was measured so far.";

/// What is to be measured.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The export; always there for the remote rung.
    pub target: Option<Target>,
    /// Which fabric.
    pub fabric: FabricChoice,
    /// Whether the client's library is measured.
    pub remote: bool,
    /// Whether NBD is measured, and on which server.
    pub socket: Option<SocketChoice>,
    /// How much of each.
    pub limit: Limit,
    /// Spinning before sleeping.
    pub spin: Spin,
    /// Whether the export may be overwritten.
    pub write: bool,
}

/// Whose NBD server is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SocketChoice {
    /// One of our own, in this process.
    Own,
    /// The one on this socket.
    Existing(PathBuf),
}

impl Latency {
    /// What was meant.
    ///
    /// # Errors
    /// Where flags do not go together; exits with status 2.
    pub fn plan(&self) -> Result<Plan, clap::Error> {
        let wrong = |kind, text: String| Err(Args::command().error(kind, text));
        let rung = self.rung.unwrap_or(match self.target {
            Some(_) => RungChoice::All,
            None => RungChoice::Socket,
        });
        let (remote, socket) = (rung != RungChoice::Socket, rung != RungChoice::Remote);
        if remote && self.target.is_none() {
            let text = "the rung \"remote\" needs HOST/EXPORT; \"kaeru ls HOST\" lists the exports";
            return wrong(ErrorKind::MissingRequiredArgument, text.into());
        }
        if !socket && self.socket.is_some() {
            let text = "--socket is not measured with --rung remote; leave one of them out";
            return wrong(ErrorKind::ArgumentConflict, text.into());
        }
        if self.write && !self.yes {
            let what = match (&self.target, &self.socket) {
                (Some(target), _) => target.to_string(),
                (None, Some(path)) => format!("what {} serves", path.display()),
                (None, None) => "the export".into(),
            };
            let text = format!(
                "--write overwrites random blocks of {what}: files on it are destroyed; \
                 nothing was measured. Add --yes if all of it may be lost"
            );
            return wrong(ErrorKind::MissingRequiredArgument, text);
        }
        let own = self.socket.clone().map_or(SocketChoice::Own, SocketChoice::Existing);
        Ok(Plan {
            target: self.target.clone(),
            fabric: self.fabric,
            remote,
            socket: socket.then_some(own),
            limit: match self.count {
                Some(count) => Limit::Count(count),
                None => Limit::Time(Duration::from_secs(self.seconds.unwrap_or(3).into())),
            },
            spin: self.spin,
            write: self.write,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(flags: &[&str]) -> Result<Plan, String> {
        let args = Args::try_parse_from([&["kaeru-bench", "latency"], flags].concat())
            .map_err(|error| error.to_string())?;
        let Some(Command::Latency(latency)) = args.command else { return Err("another command".into()) };
        latency.plan().map_err(|error| {
            assert_eq!(error.exit_code(), 2);
            error.to_string()
        })
    }

    fn fails(flags: &[&str], part: &str) {
        let text = parse(flags).unwrap_err();
        assert!(text.contains(part), "{text}");
    }

    #[test]
    fn the_flags_are_sound() {
        Args::command().debug_assert();
    }

    #[test]
    fn without_flags_both_rungs_are_read_for_some_seconds() {
        let plan = parse(&["h/x"]).unwrap();
        assert!(plan.remote && !plan.write);
        assert_eq!(plan.socket, Some(SocketChoice::Own));
        assert_eq!(plan.limit, Limit::Time(Duration::from_secs(3)));
    }

    #[test]
    fn a_socket_alone_needs_no_export() {
        let plan = parse(&["--socket", "/s", "--count", "9"]).unwrap();
        assert!(!plan.remote);
        assert_eq!(plan.socket, Some(SocketChoice::Existing("/s".into())));
        assert_eq!(plan.limit, Limit::Count(9));
    }

    #[test]
    fn nothing_is_overwritten_without_yes() {
        fails(&["h/x", "--write"], "Add --yes");
        fails(&["--socket", "/s", "--write"], "what /s serves");
        fails(&["h/x", "--yes"], "--write");
        assert!(parse(&["h/x", "--write", "--yes"]).unwrap().write);
    }

    #[test]
    fn what_is_missing_or_contradicts_itself_is_said() {
        fails(&[], "required");
        fails(&["--socket", "/s", "--rung", "all"], "needs HOST/EXPORT");
        fails(&["h/x", "--socket", "/s", "--rung", "remote"], "leave one of them out");
        fails(&["h/x", "--seconds", "1", "--count", "1"], "cannot be used with");
        fails(&["h/x", "--count", "0"], "0");
    }
}
