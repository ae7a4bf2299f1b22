//! `kaerud`: parse, run, map the error to an exit code.

use std::io::Write;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use kaeru_common::manual;
use kaeru_server::Server;
use kaeru_server::args::Args;
use kaeru_server::config::Config;
use tokio::signal::unix::{SignalKind, signal};

/// The signal for a file that would grow beyond the limit, of `signal(7)`: the same on all of Linux but MIPS.
const SIGXFSZ: i32 = 25;

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(shell) = args.completions {
        // In memory first: it panics where its reader goes away.
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut Args::command(), "kaerud", &mut script);
        return exit(std::io::stdout().write_all(&script).map_err(Into::into), 1);
    }
    if args.man {
        return exit(manual::print(Args::command(), &mut std::io::stdout()).map_err(Into::into), 1);
    }
    kaeru_common::logging::start(args.verbose);
    match args.into_config() {
        Ok(config) => exit(run(&config), 1),
        Err(error) => exit(Err(error.into()), 2),
    }
}

fn exit(result: Result<(), Box<dyn std::error::Error>>, code: u8) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "kaerud: {error}");
            ExitCode::from(code)
        }
    }
}

fn run(config: &Config) -> Result<(), Box<dyn std::error::Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(|error| {
        format!("cannot start: {error}; if the limit of open files is the cause (ulimit -n), raise it")
    })?;
    runtime.block_on(serve(config))
}

async fn serve(config: &Config) -> Result<(), Box<dyn std::error::Error>> {
    // A file beyond the limit of this process (ulimit -f) is an error of one write, and not the end of all exports.
    let _too_large = signal(SignalKind::from_raw(SIGXFSZ))?;
    let server = Server::bind(config).await?;
    let overview = server.overview();
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let mut ask = signal(SignalKind::user_defined1())?;
    let mut out = std::io::stdout();
    writeln!(out, "kaerud {} listening on {}", env!("CARGO_PKG_VERSION"), server.address())?;
    for line in server.report() {
        writeln!(out, "  {line}")?;
    }
    writeln!(out, "ready")?;
    out.flush()?;
    let stop = async {
        loop {
            tokio::select! {
                _ = interrupt.recv() => break,
                _ = terminate.recv() => break,
                _ = ask.recv() => overview.log(),
            }
        }
        tracing::info!("stopping");
    };
    server.run(stop).await;
    for line in overview.lines() {
        // Whoever read what we say may have gone first.
        let _ = writeln!(out, "{line}");
    }
    Ok(())
}
