//! Waiting for the end: a signal, the session's own end, or somebody's wish.

use std::io;

use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::session::Health;

/// Why a front end should end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// SIGINT or SIGTERM came.
    Signal,
    /// The session is over, for this reason.
    Closed(String),
    /// Somebody asked for it.
    Asked,
}

/// SIGINT and SIGTERM, caught from the moment on that this exists: whoever announces that it is ready has this before, or
/// a signal that follows the announcement kills it with its socket and notes left behind.
pub struct Signals {
    runtime: Runtime,
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// Catches them from now on.
    ///
    /// # Errors
    /// Where signals cannot be waited for.
    pub fn catch() -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (interrupt, terminate) = {
            let _inside = runtime.enter();
            (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
        };
        Ok(Self { runtime, interrupt, terminate })
    }

    /// Blocks until there is a reason to end. With `despite_loss`, the end of the session is none.
    pub fn wait(
        &mut self,
        mut health: watch::Receiver<Health>,
        mut asked: watch::Receiver<bool>,
        despite_loss: bool,
    ) -> End {
        let Self { runtime, interrupt, terminate } = self;
        runtime.block_on(async {
            let closed = async {
                match health.wait_for(|health| health.closed.is_some() && !despite_loss).await {
                    Ok(health) => End::Closed(health.closed.clone().unwrap_or_default()),
                    Err(_) => std::future::pending().await,
                }
            };
            let wish = async {
                if asked.wait_for(|&asked| asked).await.is_err() {
                    std::future::pending::<()>().await;
                }
            };
            tokio::select! {
                _ = interrupt.recv() => End::Signal,
                _ = terminate.recv() => End::Signal,
                end = closed => end,
                () = wish => End::Asked,
            }
        })
    }
}
