//! Waiting for the kernel to show something, with an end.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// Between two looks. Short beside anything that a person waits for, long beside one look.
const STEP: Duration = Duration::from_millis(10);

/// Looks until `look` finds something, at least once, and gives up at `until`.
pub(super) fn poll<T>(until: Instant, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    loop {
        let found = look();
        if found.is_some() || Instant::now() >= until {
            return found;
        }
        sleep(STEP);
    }
}
