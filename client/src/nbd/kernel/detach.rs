//! Letting a device go, from whichever process wants it to.
//!
//! Every step that can block (writing dirty data back, the disconnect itself) runs on a thread of its own and is given
//! a time, so the caller gets an answer even when the serving process is stopped or a request hangs.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use super::blockdev;
use super::error::KernelError;
use super::holders::Holders;
use super::module;
use super::netlink::{self, Failure};
use super::poll::poll;
use super::sysfs::{Status, Tree};

/// How long users that may go by themselves (udev, a closing program) are waited for once there are lasting ones.
const RELEASE_PATIENCE: Duration = Duration::from_millis(300);

/// What to do with a device that someone uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// Leave it and say who.
    WhenUnused,
    /// Detach it all the same. Dirty data is written back first, if its server lives, for half of the time given; what
    /// is not written by then is lost. All I/O ends with errors at once.
    Now,
}

/// How a detach ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was not attached.
    NotAttached,
    /// It is detached and can be bound again.
    Free {
        /// Whether all dirty data was written back before.
        synced: bool,
    },
    /// It is detached, and its number stays taken until these users have gone (`umount`, `swapoff`).
    Held {
        /// Whether all dirty data was written back before.
        synced: bool,
        /// Who still has it.
        holders: Holders,
    },
}

/// Detaches `/dev/nbdN`, in at most about `wait`: from any process with CAP_SYS_ADMIN, whether its server lives or not.
///
/// In the serving process, call this from a thread that serves no lane. While the lanes can serve, go on serving until it
/// returns: there may be dirty data to write, and the disconnect sends `NBD_CMD_DISC` down every socket. When they
/// cannot (the server is unreachable and they have stopped reading), close their sockets first: that frees the kernel.
///
/// # Errors
/// No such device; not root; in use, when the urgency is [`Urgency::WhenUnused`]; [`KernelError::Stuck`] when the server
/// lives but does not read its sockets. The disconnect then stays under way and ends when the server reads again or is
/// killed; until then a process that called this cannot be ended, not even by exiting.
pub fn disconnect(index: u32, urgency: Urgency, wait: Duration) -> Result<Outcome, KernelError> {
    let tree = Tree::live();
    let status = tree.status(index)?;
    if !status.is_bound() {
        return Ok(Outcome::NotAttached);
    }
    let start = Instant::now();
    let until = start + wait;
    if urgency == Urgency::WhenUnused {
        refuse_if_used(&tree, index)?;
    }
    if would_block(&tree, index) {
        return Err(stuck(&tree, index, start.elapsed()));
    }
    let synced = can_sync(&tree, &status) && sync(&tree, &status, start + wait / 2);
    send_disconnect(&tree, index, wait, until)?;
    let outcome = match wait_for_release(&tree, index, until) {
        None => {
            forget_partitions(&tree, index);
            Outcome::Free { synced }
        }
        Some(holders) => Outcome::Held { synced, holders },
    };
    tracing::info!(device = format!("nbd{index}"), ?outcome, "detached");
    Ok(outcome)
}

/// A user who is about to close it (udev, mkfs) is given a moment.
fn refuse_if_used(tree: &Tree, index: u32) -> Result<(), KernelError> {
    let unused = || {
        let holders = tree.holders(index);
        (holders.is_empty() || holders.lasting()).then_some(holders)
    };
    let holders = poll(Instant::now() + RELEASE_PATIENCE, unused).unwrap_or_else(|| tree.holders(index));
    if holders.is_empty() { Ok(()) } else { Err(KernelError::InUse { index, holders: Box::new(holders) }) }
}

/// Whether there is a server to take the dirty data.
fn can_sync(tree: &Tree, status: &Status) -> bool {
    status.server.as_ref().is_some_and(|task| task.comm.is_some() && !tree.stopped(task.tid))
}

/// Writes back what is dirty: each file system on the device, then the device. Says whether all went well in time.
fn sync(tree: &Tree, status: &Status, until: Instant) -> bool {
    let mounts: Vec<PathBuf> = status.mounts.iter().map(|mount| mount.point.clone()).collect();
    let node = tree.node(&format!("nbd{}", status.index));
    let done = bounded(until, move || write_back(&mounts, &node));
    match done {
        Some(Ok(())) => true,
        Some(Err(error)) => {
            tracing::warn!(%error, "nbd{}: not everything could be written back", status.index);
            false
        }
        None => {
            tracing::warn!("nbd{}: writing back takes too long; what is left is lost", status.index);
            false
        }
    }
}

fn write_back(mounts: &[PathBuf], node: &Path) -> io::Result<()> {
    for point in mounts {
        rustix::fs::syncfs(File::open(point)?)?;
    }
    blockdev::open(node)?.sync_all()
}

/// The kernel answers when the queue is empty and every socket is shut down.
fn send_disconnect(tree: &Tree, index: u32, waited: Duration, until: Instant) -> Result<(), KernelError> {
    let what = format!("detach nbd{index}");
    let family = module::family()?;
    match bounded(until, move || netlink::disconnect(family, index)) {
        Some(Ok(())) => Ok(()),
        Some(Err(Failure::Kernel(error))) if error.kind() == io::ErrorKind::PermissionDenied => {
            Err(KernelError::NotPermitted { what })
        }
        Some(Err(Failure::Kernel(source))) => Err(KernelError::Refused { what, source }),
        Some(Err(Failure::Talk(reason))) => Err(KernelError::Netlink { what, reason }),
        None => Err(stuck(tree, index, waited)),
    }
}

/// A stopped server with writes in flight may have a full socket, and a thread that then waits in the kernel to send the
/// disconnect, or to write back, cannot be ended, nor can its process. So neither is begun. (Reads are small, they never fill a socket.)
fn would_block(tree: &Tree, index: u32) -> bool {
    let stopped = tree.server(index).is_some_and(|task| tree.stopped(task.tid));
    stopped && tree.writes_in_flight(index) > 0
}

fn stuck(tree: &Tree, index: u32, waited: Duration) -> KernelError {
    let server = tree.server(index).map_or_else(|| "a process".into(), |task| task.to_string());
    KernelError::Stuck { index, server, waited }
}

/// Waits until the device is unbound; `Some` names those who keep it.
fn wait_for_release(tree: &Tree, index: u32, until: Instant) -> Option<Holders> {
    let released = || tree.server(index).is_none().then_some(());
    if poll(until.min(Instant::now() + RELEASE_PATIENCE), released).is_some() {
        return None;
    }
    let gone_or_lasting = || match tree.holders(index) {
        _ if tree.server(index).is_none() => Some(None),
        holders if holders.lasting() => Some(Some(holders)),
        _ => None,
    };
    poll(until, gone_or_lasting).unwrap_or_else(|| Some(tree.holders(index)))
}

/// Takes the partitions of the old disk away: the kernel leaves them until someone opens the device.
fn forget_partitions(tree: &Tree, index: u32) {
    if tree.partitions(index).is_empty() {
        return;
    }
    let node = tree.node(&format!("nbd{index}"));
    if let Err(error) = blockdev::open(&node).and_then(|device| blockdev::read_table(&device)) {
        tracing::debug!(%error, "nbd{index}: its old partitions stay until it is bound again");
    }
}

/// Runs `work` on a thread and waits for it until then. A thread that is late is left behind; it ends with its I/O.
fn bounded<T: Send + 'static>(until: Instant, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (send, receive) = mpsc::channel();
    thread::spawn(move || send.send(work()));
    receive.recv_timeout(until.saturating_duration_since(Instant::now())).ok()
}

#[cfg(test)]
mod tests {
    use super::super::holders::fixture::{mounted, nbd0};
    use super::*;

    #[test]
    fn work_that_hangs_is_left_behind() {
        let start = Instant::now();
        let until = start + Duration::from_millis(20);
        assert_eq!(bounded(until, || thread::sleep(Duration::from_secs(5))), None);
        assert!(start.elapsed() < Duration::from_secs(1));
        assert_eq!(bounded(Instant::now() + Duration::from_secs(5), || 3), Some(3));
    }

    #[test]
    fn a_disconnect_that_would_block_is_not_begun() {
        let stopped = nbd0().with("proc/77/stat", "77 (kaeru (x)) T 1 77");
        assert!(!would_block(&stopped.tree(), 0), "nothing is in flight");
        let reading = stopped.with("sys/block/nbd0/inflight", "       9        0\n");
        assert!(!would_block(&reading.tree(), 0));
        let writing = reading.with("sys/block/nbd0/inflight", "       0        3\n");
        assert!(would_block(&writing.tree(), 0));
        let error = stuck(&writing.tree(), 0, Duration::ZERO).to_string();
        assert!(error.contains("pid 77 (kaeru (x))"), "{error}");
        assert!(!would_block(&writing.with("proc/77/stat", "77 (kaeru (x)) S 1 77").tree(), 0));
    }

    #[test]
    fn nothing_is_written_back_without_a_running_server() {
        for (state, can) in [('S', true), ('D', true), ('T', false), ('Z', false)] {
            let fixture = nbd0().with("proc/77/stat", &format!("77 (kaeru) {state} 1 77"));
            let status = fixture.tree().status(0).unwrap();
            assert_eq!(can_sync(&fixture.tree(), &status), can, "{state}");
        }
    }

    #[test]
    fn a_mounted_device_is_refused_by_name() {
        let error = refuse_if_used(&mounted(nbd0()).tree(), 0).unwrap_err();
        assert!(error.to_string().contains("/mnt/a b"), "{error}");
        assert!(refuse_if_used(&nbd0().tree(), 0).is_ok());
    }

    #[test]
    fn a_lasting_user_ends_the_wait() {
        let start = Instant::now();
        let kept = wait_for_release(&mounted(nbd0()).tree(), 0, start + Duration::from_secs(5));
        assert_eq!(kept.unwrap().mounts.len(), 2);
        assert!(start.elapsed() < Duration::from_secs(2));
    }
}
