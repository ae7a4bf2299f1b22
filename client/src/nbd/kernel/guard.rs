//! The bound on what a killed client leaves behind.
//!
//! When the serving process dies, the kernel keeps the requests that were in flight until their timeout, which under
//! "wait for the server" is for ever. So the serving process starts a small child that holds the reading end of a pipe.
//! The pipe ends when the process does, however it dies; then the child detaches the device, and everything that waits
//! on it gets its error.

use std::io::{self, Read};
use std::time::Duration;

use super::detach::{Outcome, Urgency, disconnect};
use super::error::KernelError;
use super::sysfs::Tree;

/// There is nothing to write back without a server.
const WAIT: Duration = Duration::from_secs(10);

/// Waits until `alive` ends, then detaches the device if it is still the one that `backend` names.
///
/// Run it in a child process (spawned, not forked) that gets `alive` as its standard input, while the parent holds the
/// writing end and never writes. No other child may inherit the writing end (it is close-on-exec, as `std` makes it). A
/// service manager that kills both at once needs `kaeru detach` in its stop command. `None`: there was nothing to do, the device had been detached in order.
///
/// # Errors
/// As [`disconnect`].
pub fn guard(index: u32, backend: &str, alive: impl Read) -> Result<Option<Outcome>, KernelError> {
    wait_for_end(alive).map_err(|error| KernelError::io("watch the serving process", error))?;
    if !is_ours(&Tree::live(), index, backend) {
        return Ok(None);
    }
    tracing::warn!("nbd{index}: its server died; detaching it, so that nothing waits for ever");
    disconnect(index, Urgency::Now, WAIT).map(Some)
}

fn wait_for_end(mut alive: impl Read) -> io::Result<()> {
    io::copy(&mut alive, &mut io::sink()).map(|_| ())
}

fn is_ours(tree: &Tree, index: u32, backend: &str) -> bool {
    tree.status(index).is_ok_and(|status| status.is_bound() && status.backend.as_deref() == Some(backend))
}

#[cfg(test)]
mod tests {
    use super::super::holders::fixture::nbd0;
    use super::*;

    #[test]
    fn only_our_own_device_is_touched() {
        let tree = nbd0().tree();
        assert!(!is_ours(&tree, 0, "kaeru:ram:9"), "the fixture is gone with its owner");
        let fixture = nbd0();
        assert!(is_ours(&fixture.tree(), 0, "kaeru:ram:9"));
        assert!(!is_ours(&fixture.tree(), 0, "kaeru:ram:10"));
        assert!(!is_ours(&fixture.tree(), 1, "kaeru:ram:9"));
    }

    #[test]
    fn the_watch_ends_with_the_pipe() {
        let (reading, writing) = io::pipe().unwrap();
        let watch = std::thread::spawn(move || wait_for_end(reading));
        assert!(!watch.is_finished());
        drop(writing);
        watch.join().unwrap().unwrap();
    }
}
