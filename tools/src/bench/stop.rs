//! Ctrl-C: the first one ends the measurement in good order, the second one the program at once.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::signal::unix::{SignalKind, signal};

/// What a shell reports for a program that SIGINT ended.
pub const INTERRUPTED: u8 = 130;

/// Whether the user has had enough.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// A handle that SIGINT and SIGTERM set.
    ///
    /// # Errors
    /// Where the system gives no thread or signal handler.
    pub fn on_signals() -> io::Result<Self> {
        let stop = Self::default();
        let asked = stop.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let guard = runtime.enter();
        let (mut interrupt, mut terminate) =
            (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        drop(guard);
        let watch = move || {
            runtime.block_on(async {
                loop {
                    tokio::select! {
                        _ = interrupt.recv() => {}
                        _ = terminate.recv() => {}
                    }
                    if asked.is_asked() {
                        std::process::exit(INTERRUPTED.into());
                    }
                    asked.ask();
                }
            });
        };
        std::thread::Builder::new().name("signals".into()).spawn(watch)?;
        Ok(stop)
    }

    /// Asks for the end. It stays asked.
    pub fn ask(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it was asked.
    pub fn is_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
