//! `kaerud`: parse, run, map the error to an exit code.

use std::io::Write;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use kaeru_server::Server;
use kaeru_server::args::Args;
use kaeru_server::config::Config;
use tokio::signal::unix::{SignalKind, signal};

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(shell) = args.completions {
        clap_complete::generate(shell, &mut Args::command(), "kaerud", &mut std::io::stdout());
        return ExitCode::SUCCESS;
    }
    if args.man {
        return exit(
            clap_mangen::Man::new(Args::command()).render(&mut std::io::stdout()).map_err(Into::into),
            1,
        );
    }
    kaeru_common::logging::start(args.verbose);
    match args.into_config() {
        Ok(config) => exit(serve(&config), 1),
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

#[tokio::main]
async fn serve(config: &Config) -> Result<(), Box<dyn std::error::Error>> {
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
