//! The command line: what the user typed.

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use kaeru_client::args::parse_time;
use kaeru_client::target::Server;
use kaeru_common::units::Size;

/// The longest time between two readings of the counters.
const LONGEST_WATCH: Duration = Duration::from_secs(3600);

/// Looks at the RDMA of this machine and says what is wrong, why, and what to do.
#[derive(Debug, Parser)]
#[command(name = "kaeru-doctor", version, max_term_width = 100, after_help = AFTER_HELP)]
pub struct Args {
    /// List what is as it should be, too
    #[arg(short, long)]
    pub verbose: bool,
    /// Read everything twice with this time between, and show what errors were added and what went away: 10s, 2min
    #[arg(long, value_name = "TIME", value_parser = parse_watch)]
    pub watch: Option<Duration>,
    /// Say whether a RAM export of this size fits, such as 16G
    #[arg(long, value_name = "SIZE")]
    pub export: Option<Size>,
    /// Ask the kaerud on another machine what that one is, and compare both ends
    #[arg(long, value_name = "HOST[:PORT]")]
    pub peer: Option<Server>,
    /// Read another machine's files, copied to this folder, instead of this machine's
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Print a completion script for this shell and exit
    #[arg(long, value_name = "SHELL", exclusive = true)]
    pub completions: Option<clap_complete::Shell>,
    /// Print the manual page and exit
    #[arg(long, exclusive = true)]
    pub man: bool,
}

const AFTER_HELP: &str = "\
It reads files below /sys, /proc, /dev, /etc and /lib/modules, asks libibverbs,
and changes nothing. It does not need root; what root could read in addition is
said at the end.

Examples:
  kaeru-doctor                       this machine
  kaeru-doctor --watch 10s           while data flows: are bits lost on the cable?
  kaeru-doctor --export 16G          would a RAM export of 16 GiB fit?
  kaeru-doctor --peer 192.168.7.1    do both ends go together?

The words of a report, the worst first: FAIL (it does not work); WARN (it works,
but not as it could); note (nothing has to be done); ok (only counted without
-v). The last lines repeat every FAIL and WARN in short. Colours are for terminals only, and
NO_COLOR switches them off.

Exit status: 0 ok or notes, 1 warnings, 2 failures; 64 wrong usage; 74 nothing
can be printed.";

fn parse_watch(text: &str) -> Result<Duration, String> {
    let time = parse_time(text)?;
    match time {
        time if time.is_zero() => Err("between two readings there must be some time".to_owned()),
        time if time > LONGEST_WATCH => Err("an hour is the most".to_owned()),
        time => Ok(time),
    }
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
    fn a_watch_has_a_length() {
        assert_eq!(parse_watch("10s"), Ok(Duration::from_secs(10)));
        for text in ["0", "61min", "10", "x"] {
            assert!(parse_watch(text).is_err(), "{text}");
        }
    }
}
