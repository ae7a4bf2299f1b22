//! The timers of a session, as a table, and the back-off between two attempts to have one.

use std::time::{Duration, Instant};

/// What a session waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timer {
    /// The stream, or the peer's first message, is overdue.
    Handshake,
    /// An answer is overdue.
    Answer,
    /// A keep-alive is to be sent.
    KeepAlive,
    /// The peer has been silent for too long.
    Silence,
}

/// When each timer goes off, if it is set.
#[derive(Clone, Debug, Default)]
pub(super) struct Timers([Option<Instant>; 4]);

impl Timers {
    /// Sets a timer, or stops it with `None`.
    pub(super) fn set(&mut self, timer: Timer, at: impl Into<Option<Instant>>) {
        self.0[timer as usize] = at.into();
    }

    /// Stops all of them.
    pub(super) fn clear(&mut self) {
        self.0 = Default::default();
    }

    /// When the next one goes off.
    pub(super) fn next(&self) -> Option<Instant> {
        self.0.iter().flatten().min().copied()
    }

    /// Takes the timer that went off first, with the time that it was set to.
    pub(super) fn take_expired(&mut self, now: Instant) -> Option<(Timer, Instant)> {
        const ALL: [Timer; 4] = [Timer::Handshake, Timer::Answer, Timer::KeepAlive, Timer::Silence];
        let due = |timer: Timer| self.0[timer as usize].filter(|at| *at <= now).map(|at| (at, timer));
        let (at, timer) = ALL.into_iter().filter_map(due).min_by_key(|(at, _)| *at)?;
        self.set(timer, None);
        Some((timer, at))
    }
}

/// How long to wait before the next attempt: twice as long each time, up to a limit.
#[derive(Clone, Debug)]
pub struct Backoff {
    first: Duration,
    limit: Duration,
    next: Duration,
}

impl Backoff {
    /// Starts at `first` and never waits longer than `limit`.
    pub fn new(first: Duration, limit: Duration) -> Self {
        Self { first, limit, next: first.min(limit) }
    }

    /// The pause before the next attempt.
    pub fn pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = pause.saturating_mul(2).min(self.limit);
        pause
    }

    /// An attempt succeeded: the next pause is the first again.
    pub fn reset(&mut self) {
        self.next = self.first.min(self.limit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_go_off_in_their_order_and_once() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut timers = Timers::default();
        timers.set(Timer::Handshake, at(30));
        timers.set(Timer::Silence, at(10));
        timers.set(Timer::KeepAlive, at(20));
        assert_eq!(timers.next(), Some(at(10)));
        assert_eq!(timers.take_expired(at(9)), None);
        assert_eq!(timers.take_expired(at(25)), Some((Timer::Silence, at(10))));
        assert_eq!(timers.take_expired(at(25)), Some((Timer::KeepAlive, at(20))));
        assert_eq!(timers.take_expired(at(25)), None);
        timers.set(Timer::Handshake, None);
        assert_eq!(timers.next(), None);
    }

    #[test]
    fn the_back_off_doubles_to_its_limit_and_starts_again() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_millis(350));
        let pauses: Vec<_> = (0..4).map(|_| backoff.pause().as_millis()).collect();
        assert_eq!(pauses, [100, 200, 350, 350]);
        backoff.reset();
        assert_eq!(backoff.pause().as_millis(), 100);
    }
}
