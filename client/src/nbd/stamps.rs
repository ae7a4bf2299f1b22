//! When each request of a lane passed where: a hook for who measures a lane that it serves in its own process.
//!
//! The lane writes and the other end of its socket reads, each about one request at a time, so there is no lock. A lane
//! without stamps pays for one branch at each place.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::remote::Spent;

/// More requests than a lane ever has under way.
const PLACES: usize = 1024;

/// The way of one request through a lane. It was taken from the socket before all of this.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// When its first piece went to the link.
    pub posted: Option<Instant>,
    /// When its last piece was seen to be complete.
    pub completed: Option<Instant>,
    /// What the server said; of several pieces, the one that spent most time there.
    pub spent: Option<Spent>,
}

impl Marks {
    /// A piece went to the link.
    pub(crate) fn post(&mut self) {
        self.posted.get_or_insert_with(Instant::now);
    }

    /// A piece came back.
    pub(crate) fn complete(&mut self, spent: Option<Spent>) {
        self.completed = Some(Instant::now());
        let total = |spent: Option<Spent>| spent.map(|spent| spent.waited + spent.stored);
        if total(spent) > total(self.spent) {
            self.spent = spent;
        }
    }
}

/// The marks of the requests that were answered last, by their cookies.
#[derive(Debug)]
pub struct Stamps {
    start: Instant,
    places: Box<[Place]>,
}

#[derive(Debug, Default)]
struct Place {
    /// Nanoseconds since the start; 0 for none.
    taken: AtomicU64,
    posted: AtomicU64,
    completed: AtomicU64,
    waited: AtomicU64,
    stored: AtomicU64,
    /// Whether the server said anything.
    told: AtomicU64,
    /// Whose they are, plus one; written last.
    cookie: AtomicU64,
}

impl Default for Stamps {
    fn default() -> Self {
        Self { start: Instant::now(), places: (0..PLACES).map(|_| Place::default()).collect() }
    }
}

impl Stamps {
    /// Notes a request that is about to be answered.
    pub(crate) fn note(&self, cookie: u64, taken: Instant, marks: &Marks) {
        let place = self.place(cookie);
        let since = |at: Instant| (at.saturating_duration_since(self.start).as_nanos() as u64).max(1);
        let nanos =
            |time: fn(Spent) -> Duration| marks.spent.map_or(0, |spent| time(spent).as_nanos() as u64);
        for (word, value) in [
            (&place.taken, since(taken)),
            (&place.posted, marks.posted.map_or(0, since)),
            (&place.completed, marks.completed.map_or(0, since)),
            (&place.waited, nanos(|spent| spent.waited)),
            (&place.stored, nanos(|spent| spent.stored)),
            (&place.told, marks.spent.is_some().into()),
        ] {
            word.store(value, Ordering::Relaxed);
        }
        place.cookie.store(cookie.wrapping_add(1), Ordering::Release);
    }

    /// When the request was taken, and its marks; to be asked once its answer is there, before another is sent with a
    /// cookie that is alike.
    pub fn of(&self, cookie: u64) -> Option<(Instant, Marks)> {
        let place = self.place(cookie);
        if place.cookie.load(Ordering::Acquire) != cookie.wrapping_add(1) {
            return None;
        }
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let at = |word: &AtomicU64| match load(word) {
            0 => None,
            nanos => Some(self.start + Duration::from_nanos(nanos)),
        };
        let time = |word: &AtomicU64| Duration::from_nanos(load(word));
        let spent = Spent { waited: time(&place.waited), stored: time(&place.stored) };
        let spent = (load(&place.told) != 0).then_some(spent);
        Some((at(&place.taken)?, Marks { posted: at(&place.posted), completed: at(&place.completed), spent }))
    }

    fn place(&self, cookie: u64) -> &Place {
        &self.places[cookie as usize % PLACES]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_noted_is_read_under_its_own_cookie_only() {
        let stamps = Stamps::default();
        let now = Instant::now() + Duration::from_micros(5);
        let later = now + Duration::from_micros(7);
        let spent = Some(Spent { waited: Duration::from_nanos(3), stored: Duration::ZERO });
        let marks = Marks { posted: Some(now), completed: Some(later), spent };
        stamps.note(1500, now, &marks);
        assert_eq!(stamps.of(1500), Some((now, marks)));
        assert_eq!((stamps.of(1500 % PLACES as u64), stamps.of(7)), (None, None));
        stamps.note(1500 % PLACES as u64, later, &Marks::default());
        assert_eq!(stamps.of(1500 % PLACES as u64), Some((later, Marks::default())));
        assert_eq!(stamps.of(1500), None);
    }

    #[test]
    fn the_first_post_and_the_slowest_piece_count() {
        let mut marks = Marks::default();
        marks.post();
        let first = marks.posted;
        marks.post();
        assert_eq!(marks.posted, first);
        let slow = Spent { waited: Duration::from_nanos(1), stored: Duration::from_nanos(9) };
        marks.complete(Some(slow));
        marks.complete(Some(Spent { stored: Duration::ZERO, ..slow }));
        marks.complete(None);
        assert_eq!(marks.spent, Some(slow));
    }
}
