//! Where the programs' logs go: to standard error, at a level that flags or `KAERU_LOG` choose.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// The target of what somebody asked for, which is logged however little else is.
pub const ASKED: &str = "kaeru::asked";

/// Starts logging: warnings and what is [`ASKED`] for, with `-v` what happens, with `-vv` everything. `KAERU_LOG` overrides both and takes the
/// directives of `tracing_subscriber`, such as `kaeru_common=trace`.
pub fn start(verbosity: u8) {
    let level = match verbosity {
        0 => "warn,kaeru::asked=info",
        1 => "info",
        _ => "debug",
    };
    let filter = EnvFilter::try_from_env("KAERU_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    // A second start, as in tests, is none of a program's business.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .try_init();
}
