//! When nothing moves: spinning, then sleeping on everything at once; and ending, with every slot back.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kaeru_common::fabric::Link;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::{Expect, Incoming, Lane, LaneEnd};

/// How long a lane spins before it sleeps, while the link owes it a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spin {
    /// For this long; zero sleeps at once.
    For(Duration),
    /// Never sleep, whether anything is owed or not.
    Always,
}

/// How long a link that was closed may take to give back what it has.
const CLOSING: Duration = Duration::from_secs(5);
/// How long a spinning lane looks at nothing but its link.
const GLANCE: Duration = Duration::from_micros(20);

/// Ends lanes from another thread.
#[derive(Clone, Debug)]
pub struct Stop(Arc<StopState>);

#[derive(Debug)]
struct StopState {
    wanted: AtomicBool,
    wake: OwnedFd,
}

impl Stop {
    /// A handle that nothing has been asked of.
    ///
    /// # Errors
    /// Where the process has no descriptor left.
    pub fn new() -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self(Arc::new(StopState { wanted: AtomicBool::new(false), wake })))
    }

    /// Asks every lane that has this handle to end. It stays asked.
    pub fn stop(&self) {
        self.0.wanted.store(true, Ordering::Release);
        // The counter is never read back, so the descriptor stays readable for all lanes; it can only be full already.
        let _ = rustix::io::write(&self.0.wake, &1u64.to_ne_bytes());
    }

    /// Whether it was asked.
    pub fn is_stopped(&self) -> bool {
        self.0.wanted.load(Ordering::Acquire)
    }
}

impl AsFd for Stop {
    /// Readable once it was asked.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.wake.as_fd()
    }
}

impl<L: Link> Lane<L> {
    /// Why the lane is over, once nothing is left to do for the client.
    pub(super) fn finished(&mut self) -> Option<LaneEnd> {
        match &self.ending {
            Some(LaneEnd::Gone) => self.ending.take(),
            Some(_) if self.table_is_settled() && self.outgoing.is_empty() => self.ending.take(),
            _ => None,
        }
    }

    /// Whether no request is under way. A write whose payload will never come does not count.
    fn table_is_settled(&self) -> bool {
        let unfinished = usize::from(!matches!(self.expect, Expect::Header));
        self.owed == 0 && self.table.count() <= unfinished
    }

    /// Spins for the budget, then sleeps until something can be done.
    pub(super) fn rest(&mut self) -> io::Result<()> {
        let budget = match self.config.spin {
            Spin::Always => {
                self.incoming.wake();
                self.look = true;
                self.give_up_on_silence();
                return Ok(());
            }
            Spin::For(budget) => budget,
        };
        if self.owed > 0 && !budget.is_zero() && self.spin(budget)? {
            return Ok(());
        }
        // An idle link can only end, and that shows without arming.
        if self.is_waiting() && self.remote.arm() {
            self.look = true;
            self.give_up_on_silence();
            return Ok(());
        }
        let left = (self.owed > 0).then(|| self.patience_left());
        self.sleep(left)?;
        Ok(())
    }

    /// Whether something may go on only after the link moves: an answer is owed, or there was no room for a request. (What
    /// has no room may as well wait for a client that does not take its answers, so the server is not blamed for it.)
    fn is_waiting(&self) -> bool {
        let unposted = !self.reading.is_empty() || !self.zeroing.is_empty() || !self.commanding.is_empty();
        self.owed > 0 || unposted || self.is_stalled()
    }

    fn patience_left(&self) -> Duration {
        self.config.patience.saturating_sub(self.last_progress.elapsed())
    }

    /// Polls the link until something comes or the budget is used up, and glances at everything else from time to time.
    /// Whether there is something to do.
    fn spin(&mut self, budget: Duration) -> io::Result<bool> {
        let budget = budget.min(self.patience_left());
        let start = Instant::now();
        let mut glanced = start;
        loop {
            if self.remote.poll(&mut self.done) && !self.done.is_empty() {
                return Ok(true);
            }
            let now = Instant::now();
            if now - start >= budget {
                return Ok(false);
            }
            if now - glanced >= GLANCE {
                glanced = now;
                if self.sleep(Some(Duration::ZERO))? {
                    return Ok(true);
                }
            }
            std::hint::spin_loop();
        }
    }

    /// Sleeps until something can be done, or for that long. Whether something can.
    fn sleep(&mut self, timeout: Option<Duration>) -> io::Result<bool> {
        let mut wanted = PollFlags::empty();
        if self.ending.is_none() && !self.is_stalled() {
            wanted |= PollFlags::IN;
        }
        if !self.outgoing.is_empty() {
            wanted |= PollFlags::OUT;
        }
        let timeout = timeout
            .map(|time| Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) });
        let (socket, stop) = (self.socket.as_fd(), self.stop.as_fd());
        let mut fds = [
            PollFd::new(&socket, wanted),
            PollFd::from_borrowed_fd(self.remote.wait_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(stop, PollFlags::IN),
        ];
        // A stopped lane that still waits for the link must not be woken by the stop handle again and again.
        let watched = if self.ending.is_some() { 2 } else { 3 };
        match poll(&mut fds[..watched], timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let anything = fds[..watched].iter().any(|fd| !fd.revents().is_empty());
        let (happened, link) = (fds[0].revents(), fds[1].revents());
        if !link.is_empty() {
            self.remote.woken();
            self.look = true;
        }
        if happened.intersects(PollFlags::HUP | PollFlags::ERR) && !wanted.contains(PollFlags::IN) {
            // Nobody is left to answer, and the kernel reports it for ever.
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        if happened.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
            self.incoming.wake();
        }
        self.give_up_on_silence();
        Ok(anything)
    }

    /// Whether taking the next part of the stream has to wait for the link.
    pub(super) fn is_stalled(&self) -> bool {
        match &self.expect {
            Expect::Header => !self.has_room(),
            Expect::Payload { slot: None, .. } => self.remote.link().pool().available() == 0,
            Expect::Payload { slot: Some(_), filled, piece, .. } => *filled as u64 == piece.length(),
            Expect::Discard { .. } => false,
        }
    }

    /// Closes a link that owes something and has been silent for too long; its operations then fail.
    fn give_up_on_silence(&mut self) {
        if self.owed > 0
            && self.last_progress.elapsed() >= self.config.patience
            && self.remote.down().is_none()
        {
            tracing::error!(
                "the server has not answered for {:?}: the lane is closed, and its requests fail with EIO",
                self.config.patience
            );
            self.remote.close();
            self.look = true;
        }
    }

    /// The client cannot be served any more.
    pub(super) fn lose(&mut self, end: LaneEnd) -> LaneEnd {
        self.outgoing.clear();
        end
    }

    /// Waits until the link has given everything back. One that does not is closed, and one that does not even then is
    /// left to its own tearing down, which waits for the device.
    pub(super) fn settle(&mut self) {
        self.outgoing.clear();
        self.held.clear();
        self.spare = None;
        self.incoming = Incoming::new();
        self.expect = Expect::Header;
        let deadline = Instant::now() + self.config.patience;
        while self.owed > 0 && Instant::now() < deadline + CLOSING {
            self.remote.submit();
            self.remote.poll(&mut self.done);
            self.owed -= self.done.len() as u32;
            self.done.clear();
            if self.owed > 0 && Instant::now() >= deadline {
                self.remote.close();
            }
            if self.owed > 0 && !self.remote.arm() {
                let timeout = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
                let mut fds = [PollFd::from_borrowed_fd(self.remote.wait_fd(), PollFlags::IN)];
                let _ = poll(&mut fds, Some(&timeout));
                self.remote.woken();
            }
        }
        self.counters.set_in_flight(0);
    }
}
