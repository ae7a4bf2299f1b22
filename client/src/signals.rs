//! Waiting for the end: a signal, the session's own end, or somebody's wish.

use std::io;

use tokio::signal::unix::{SignalKind, signal};
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

/// Blocks until there is a reason to end. With `despite_loss`, the end of the session is none.
///
/// # Errors
/// Where signals cannot be waited for.
pub fn wait(
    mut health: watch::Receiver<Health>,
    mut asked: watch::Receiver<bool>,
    despite_loss: bool,
) -> io::Result<End> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (mut interrupt, mut terminate) =
            (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
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
        Ok(tokio::select! {
            _ = interrupt.recv() => End::Signal,
            _ = terminate.recv() => End::Signal,
            end = closed => end,
            () = wish => End::Asked,
        })
    })
}
