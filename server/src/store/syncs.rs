//! One fdatasync at a time for all lanes of an export.
//!
//! All lanes share one open file, and to that the kernel reports lost writes once: of two that are under way together,
//! one fails and the other succeeds, although both promised the same bytes. So they take turns, and whoever has the
//! turn first looks at what the one before learned. Who waited while another one both began and ended needs none of his
//! own: that one covers all that was written before he came.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Syncs(Mutex<Queue>);

#[derive(Debug, Default)]
struct Queue {
    /// The number of the next turn.
    next: u64,
    /// In order of their numbers; the first one has the turn.
    turns: VecDeque<(u64, Arc<OwnedFd>)>,
    /// How many syncs have begun.
    begun: u64,
    /// The last of them that succeeded, by that count.
    succeeded: u64,
}

/// When somebody came to have his writes synced.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival(u64);

/// The turn, or a place in the queue for it. It must come back to [`Syncs::leave`].
#[derive(Debug)]
#[must_use = "a turn that is never given back blocks every later flush"]
pub(super) struct Turn(u64);

impl Syncs {
    /// Notes that what is written by now is to be synced.
    pub(super) fn arrive(&self) -> Arrival {
        Arrival(self.lock().begun)
    }

    /// Asks for the turn. If [`Self::has_come`] is not true of it yet, `waker` becomes readable when it is.
    pub(super) fn queue(&self, waker: &Arc<OwnedFd>) -> Turn {
        let mut queue = self.lock();
        let number = queue.next;
        queue.next += 1;
        queue.turns.push_back((number, waker.clone()));
        Turn(number)
    }

    /// Whether the turn has come.
    pub(super) fn has_come(&self, turn: &Turn) -> bool {
        self.lock().turns.front().is_some_and(|(number, _)| *number == turn.0)
    }

    /// For who has the turn: whether a sync that began after `arrival` has succeeded.
    pub(super) fn covers(&self, arrival: Arrival) -> bool {
        self.lock().succeeded > arrival.0
    }

    /// For who has the turn: a sync begins.
    pub(super) fn begin(&self) {
        self.lock().begun += 1;
    }

    /// For who has the turn: the sync that began has succeeded.
    pub(super) fn succeed(&self) {
        let mut queue = self.lock();
        queue.succeeded = queue.begun;
    }

    /// Gives the turn to the next one, or stops waiting for it. What was learned must be known to all by then.
    pub(super) fn leave(&self, turn: Turn) {
        let mut queue = self.lock();
        queue.turns.retain(|(number, _)| *number != turn.0);
        if let Some((_, waker)) = queue.turns.front() {
            // It is full only where it is readable anyway.
            let _ = rustix::io::write(&**waker, &1u64.to_ne_bytes());
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};

    fn waker() -> Arc<OwnedFd> {
        Arc::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap())
    }

    fn was_woken(waker: &OwnedFd) -> bool {
        rustix::io::read(waker, &mut [0; 8]).is_ok()
    }

    #[test]
    fn one_has_the_turn_and_the_next_is_woken_for_it() {
        let (syncs, wakers) = (Syncs::default(), [waker(), waker(), waker()]);
        let [first, second, third] = wakers.each_ref().map(|waker| syncs.queue(waker));
        assert_eq!([&first, &second, &third].map(|turn| syncs.has_come(turn)), [true, false, false]);
        // Somebody in the middle gives up, which is nothing to the others.
        syncs.leave(second);
        assert!(syncs.has_come(&first) && !syncs.has_come(&third));
        syncs.leave(first);
        assert!(syncs.has_come(&third));
        assert_eq!(wakers.each_ref().map(|waker| was_woken(waker)), [true, false, true]);
        syncs.leave(third);
    }

    #[test]
    fn only_a_sync_that_began_after_somebody_came_covers_him() {
        let syncs = Syncs::default();
        let early = syncs.arrive();
        assert!(!syncs.covers(early), "none has begun");
        syncs.begin();
        // That one is under way when the next one comes, and may have missed what he wrote.
        let late = syncs.arrive();
        syncs.succeed();
        assert!(syncs.covers(early) && !syncs.covers(late));
        syncs.begin();
        assert!(!syncs.covers(late), "it began, and that is all");
        // That one failed; the next succeeds.
        let latest = syncs.arrive();
        syncs.begin();
        syncs.succeed();
        assert!(syncs.covers(late) && syncs.covers(latest));
    }
}
