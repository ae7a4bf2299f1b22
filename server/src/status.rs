//! How exports are and what they did, in words. A list tells clients the same; see [`Export::info`].

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use kaeru_common::error::Status;
use kaeru_common::logging::ASKED;
use kaeru_common::units::about_time;
use kaeru_common::wire::activity::UNCOUNTED;
use kaeru_common::wire::io::Action;

use crate::Shared;
use crate::export::Export;

/// The exports of a server, whether it still runs or not.
#[derive(Clone)]
pub struct Overview(Arc<Shared>);

impl Overview {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self(shared)
    }

    /// A line for each export: what its lanes did so far, and what is wrong with it.
    pub fn lines(&self) -> Vec<String> {
        self.0.exports.values().map(|export| line(export)).collect()
    }

    /// A line for each export that has lanes still: what a server that stops waits for.
    pub fn waited_for(&self) -> Vec<String> {
        let lanes = |export: &Export| export.lanes.load(Ordering::Relaxed);
        let waiting = self.0.exports.values().filter(|export| lanes(export) > 0);
        let line = |export: &Arc<Export>| format!("export {} (lanes alive: {})", export.name, lanes(export));
        waiting.map(line).collect()
    }

    /// Logs these lines, at whatever level the log is.
    pub fn log(&self) {
        for line in self.lines() {
            tracing::info!(target: ASKED, "{line}");
        }
    }
}

fn line(export: &Export) -> String {
    let activity = export.activity().map_or_else(|| UNCOUNTED.to_owned(), |activity| activity.to_string());
    let trouble = export.trouble().map_or_else(String::new, |trouble| format!("; trouble: {trouble}"));
    format!("export {}: {activity}{trouble}", export.name)
}

/// The last request that a store could not do. Lanes note it, anybody reads it.
#[derive(Debug, Default)]
pub(crate) struct LastFailure(Mutex<Option<Failure>>);

#[derive(Clone, Copy, Debug)]
struct Failure {
    action: Action,
    status: Status,
    at: Instant,
}

impl LastFailure {
    /// Notes a request that failed at `at`, if the store is to blame and not who asked.
    pub(crate) fn note(&self, action: Action, status: Status, at: Instant) {
        if matches!(status, Status::Io | Status::NoSpace) {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Failure { action, status, at });
        }
    }

    /// What failed, how and when; `None` if nothing did.
    pub(crate) fn describe(&self, now: Instant) -> Option<String> {
        let Failure { action, status, at } = (*self.0.lock().unwrap_or_else(PoisonError::into_inner))?;
        let ago = about_time(now.saturating_duration_since(at));
        Some(format!("the last failure, {ago} ago: {} ({status})", name(action)))
    }
}

/// An action, for people.
const fn name(action: Action) -> &'static str {
    match action {
        Action::Read => "a read",
        Action::Write { .. } => "a write",
        Action::Flush => "a flush",
        Action::Trim { .. } => "a trim",
        Action::Zero { .. } => "a request for zeroes",
        Action::Extents => "a look for holes",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_last_failure_of_the_store_is_remembered_with_its_age() {
        let (failure, start) = (LastFailure::default(), Instant::now());
        failure.note(Action::Read, Status::OutOfRange, start);
        assert_eq!(failure.describe(start), None, "it is not the store's");
        failure.note(Action::Read, Status::Io, start);
        failure.note(Action::Write { durable: false }, Status::NoSpace, start);
        let text = failure.describe(start + Duration::from_secs(90)).unwrap();
        assert_eq!(text, "the last failure, 1.5 min ago: a write (the store is full)");
    }
}
