//! `kaerud`: parse, run, map the error to an exit code.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use clap::{CommandFactory, Parser};
use kaeru_common::{completions, manual};
use kaeru_server::Server;
use kaeru_server::args::Args;
use kaeru_server::config::Config;
use kaeru_server::status::Overview;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;

/// The signal for a file that would grow beyond the limit, of `signal(7)`: the same on all of Linux but MIPS.
const SIGXFSZ: i32 = 25;

/// Time between two words about what a server that stops waits for.
const PATIENCE: Duration = Duration::from_secs(3);

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(shell) = args.completions {
        return exit(
            completions::print(shell, Args::command(), &mut std::io::stdout()).map_err(Into::into),
            1,
        );
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
    let served = runtime.block_on(serve(config));
    // After a second signal something may be under way still, which is not to be waited for.
    runtime.shutdown_background();
    served
}

async fn serve(config: &Config) -> Result<(), Box<dyn std::error::Error>> {
    // A file beyond the limit of this process (ulimit -f) is an error of one write, and not the end of all exports.
    let _too_large = signal(SignalKind::from_raw(SIGXFSZ))?;
    let server = Server::bind(config).await?;
    let overview = server.overview();
    let mut signals = Signals::listen()?;
    let mut out = std::io::stdout();
    writeln!(out, "kaerud {} listening on {}", env!("CARGO_PKG_VERSION"), server.address())?;
    for line in server.report() {
        writeln!(out, "  {line}")?;
    }
    writeln!(out, "ready")?;
    out.flush()?;
    let stop = Notify::new();
    let told_twice = async {
        signals.told_to_stop(&overview).await;
        tracing::info!("stopping");
        stop.notify_one();
        tokio::select! {
            () = signals.told_to_stop(&overview) => {}
            () = say_what_is_waited_for(&overview) => {}
        }
    };
    tokio::select! {
        () = server.run(stop.notified()) => {}
        () = told_twice => {
            return Err("told a second time to stop: ended at once, with requests of clients under way".into());
        }
    }
    for line in overview.lines() {
        // Whoever read what we say may have gone first.
        let _ = writeln!(out, "{line}");
    }
    Ok(())
}

/// The signals that are listened to.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
    ask: Signal,
}

impl Signals {
    fn listen() -> std::io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            ask: signal(SignalKind::user_defined1())?,
        })
    }

    /// Resolves when one says to stop; tells those who ask meanwhile.
    async fn told_to_stop(&mut self, overview: &Overview) {
        loop {
            tokio::select! {
                _ = self.interrupt.recv() => return,
                _ = self.terminate.recv() => return,
                _ = self.ask.recv() => overview.log(),
            }
        }
    }
}

/// Says every few seconds, for ever, what a server that was told to stop still waits for.
async fn say_what_is_waited_for(overview: &Overview) {
    loop {
        tokio::time::sleep(PATIENCE).await;
        for line in overview.waited_for() {
            tracing::warn!(
                "waiting for {line}: its file or disk does not answer (see dmesg); another SIGTERM or SIGINT ends \
                 kaerud without waiting"
            );
        }
    }
}
