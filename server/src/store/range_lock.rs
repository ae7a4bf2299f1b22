//! Keeps a read-modify-write of part of a block apart from every other write to that block, on all lanes of an export.
//!
//! Almost every write is of whole blocks. It counts itself in the words of its stretches, looks at one more word, and
//! goes ahead: nothing waits and nothing is shared but those words. A write of part of a block takes a ticket in a list
//! under a mutex, and goes ahead once no earlier ticket is in its way and nobody is counted in its stretches. While there
//! are tickets, writes of whole blocks go through the list too, and keep its order: so nobody starves.
//!
//! Both sides first say that they are there and then look for the other, with sequentially consistent operations: at
//! least one of the two sees the other.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kaeru_common::units::ByteRange;

/// Bytes of a stretch: writes of whole blocks are told apart no finer than this.
const STRETCH: u64 = 1 << 20;

/// Words that count them; a stretch has the word of its number modulo this.
const WORDS: u64 = 1024;

/// The locks of one export.
#[derive(Debug)]
pub(super) struct RangeLock {
    words: Box<[Word]>,
    /// Tickets, held and waiting.
    tickets: AtomicUsize,
    list: Mutex<List>,
}

/// Writes of whole blocks under way in some stretches; a cache line of its own, since each lane has its own places.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Word(AtomicU32);

#[derive(Debug, Default)]
struct List {
    next: u64,
    tickets: Vec<Ticket>,
}

#[derive(Debug)]
struct Ticket {
    number: u64,
    range: ByteRange,
    mode: Mode,
    held: bool,
    waker: Arc<OwnedFd>,
}

/// How a range is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Together with others of this kind: whole blocks are written.
    Shared,
    /// Alone: parts of blocks are read, changed and written.
    Exclusive,
}

/// A range that is held, or waited for. It must come back to [`RangeLock::release`].
#[derive(Debug)]
#[must_use = "a range that is never released blocks every later write to it"]
pub(super) struct Hold {
    range: ByteRange,
    /// Its ticket; none for a shared range that is held.
    ticket: Option<u64>,
}

impl Default for RangeLock {
    fn default() -> Self {
        Self {
            words: (0..WORDS).map(|_| Word::default()).collect(),
            tickets: AtomicUsize::new(0),
            list: Mutex::new(List { next: 0, tickets: Vec::with_capacity(64) }),
        }
    }
}

impl RangeLock {
    /// Asks for `range`, which is not empty. Returns the hold and whether it is held already; if not, `waker` becomes
    /// readable whenever it is worth while to [`Self::retry`].
    pub(super) fn acquire(&self, range: ByteRange, mode: Mode, waker: &Arc<OwnedFd>) -> (Hold, bool) {
        if mode == Mode::Shared {
            self.count(range);
            if self.tickets.load(SeqCst) == 0 {
                return (Hold { range, ticket: None }, true);
            }
            self.uncount(range);
        }
        self.tickets.fetch_add(1, SeqCst);
        let mut list = self.lock();
        let number = list.next;
        list.next += 1;
        list.tickets.push(Ticket { number, range, mode, held: false, waker: waker.clone() });
        let mut hold = Hold { range, ticket: Some(number) };
        let held = self.advance(&mut list, &mut hold);
        if mode == Mode::Shared {
            // It was counted for a moment, and somebody may have gone to sleep over that.
            list.wake();
        }
        (hold, held)
    }

    /// Tries again for a range that is waited for; whether it is held now.
    pub(super) fn retry(&self, hold: &mut Hold) -> bool {
        self.advance(&mut self.lock(), hold)
    }

    /// Gives a range back, or stops waiting for it.
    pub(super) fn release(&self, hold: Hold) {
        match hold.ticket {
            None => {
                self.uncount(hold.range);
                if self.tickets.load(SeqCst) > 0 {
                    self.lock().wake();
                }
            }
            Some(number) => {
                let mut list = self.lock();
                self.drop_ticket(&mut list, number);
                list.wake();
            }
        }
    }

    /// Lets a ticket be held if nothing is in its way. A shared one is then counted and needs its ticket no more.
    fn advance(&self, list: &mut List, hold: &mut Hold) -> bool {
        let Some(place) = list.tickets.iter().position(|ticket| Some(ticket.number) == hold.ticket) else {
            return true;
        };
        let ticket = &list.tickets[place];
        if list.tickets[..place].iter().any(|earlier| earlier.is_in_the_way_of(ticket)) {
            return false;
        }
        match ticket.mode {
            Mode::Shared => {
                self.count(ticket.range);
                let number = ticket.number;
                self.drop_ticket(list, number);
                hold.ticket = None;
            }
            Mode::Exclusive if self.words(ticket.range).any(|word| word.0.load(SeqCst) > 0) => return false,
            Mode::Exclusive => list.tickets[place].held = true,
        }
        true
    }

    fn drop_ticket(&self, list: &mut List, number: u64) {
        list.tickets.retain(|ticket| ticket.number != number);
        self.tickets.fetch_sub(1, SeqCst);
    }

    fn count(&self, range: ByteRange) {
        for word in self.words(range) {
            word.0.fetch_add(1, SeqCst);
        }
    }

    fn uncount(&self, range: ByteRange) {
        for word in self.words(range) {
            word.0.fetch_sub(1, SeqCst);
        }
    }

    /// The words of a range, each once.
    fn words(&self, range: ByteRange) -> impl Iterator<Item = &Word> {
        let (first, count) = stretches(range);
        (first..first + count).map(|stretch| &self.words[(stretch % WORDS) as usize])
    }

    fn lock(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl List {
    /// Tells all who wait to try again.
    fn wake(&self) {
        for ticket in self.tickets.iter().filter(|ticket| !ticket.held) {
            // It can only be full already, and then it is awake.
            let _ = rustix::io::write(&ticket.waker, &1u64.to_ne_bytes());
        }
    }
}

impl Ticket {
    /// Whether the later one must wait for this one.
    fn is_in_the_way_of(&self, later: &Self) -> bool {
        match (self.mode, later.mode) {
            (Mode::Shared, Mode::Shared) => false,
            (Mode::Exclusive, Mode::Exclusive) => overlap(self.range, later.range),
            // Who is counted is known by stretches only, so nobody may slip into those that somebody waits for.
            _ => share_a_word(self.range, later.range),
        }
    }
}

fn overlap(a: ByteRange, b: ByteRange) -> bool {
    a.offset() < b.end() && b.offset() < a.end()
}

fn share_a_word(a: ByteRange, b: ByteRange) -> bool {
    let ((a, a_count), (b, b_count)) = (stretches(a), stretches(b));
    (b + WORDS - a) % WORDS < a_count || (a + WORDS - b) % WORDS < b_count
}

/// The first stretch of a range, modulo the number of words, and how many there are: no more than words.
fn stretches(range: ByteRange) -> (u64, u64) {
    let (first, last) = (range.offset() / STRETCH, (range.end() - 1) / STRETCH);
    (first % WORDS, (last - first + 1).min(WORDS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
    use std::sync::atomic::AtomicU64;
    use std::thread;

    fn waker() -> Arc<OwnedFd> {
        Arc::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap())
    }

    fn range(offset: u64, length: u64) -> ByteRange {
        ByteRange::new(offset, length).unwrap()
    }

    fn woken(waker: &OwnedFd) -> bool {
        rustix::io::read(waker, &mut [0; 8]).is_ok()
    }

    #[test]
    fn whole_blocks_never_wait_for_one_another() {
        let (lock, waker) = (RangeLock::default(), waker());
        let holds: Vec<_> = (0..3).map(|_| lock.acquire(range(0, 4096), Mode::Shared, &waker)).collect();
        assert!(holds.iter().all(|(_, held)| *held));
        holds.into_iter().for_each(|(hold, _)| lock.release(hold));
    }

    #[test]
    fn part_of_a_block_waits_for_whole_ones_and_they_wait_for_it() {
        let (lock, waker) = (RangeLock::default(), waker());
        let (whole, _) = lock.acquire(range(0, 4096), Mode::Shared, &waker);
        let (mut part, held) = lock.acquire(range(0, 4096), Mode::Exclusive, &waker);
        assert!(!held && !lock.retry(&mut part));
        let (mut later, held) = lock.acquire(range(0, 4096), Mode::Shared, &waker);
        assert!(!held, "it would starve the part");
        let (elsewhere, held) = lock.acquire(range(STRETCH, 4096), Mode::Shared, &waker);
        assert!(held);
        lock.release(elsewhere);
        while woken(&waker) {}
        lock.release(whole);
        assert!(woken(&waker) && lock.retry(&mut part) && !lock.retry(&mut later));
        lock.release(part);
        assert!(woken(&waker) && lock.retry(&mut later));
        lock.release(later);
        assert_eq!(lock.tickets.load(SeqCst), 0);
        assert!(lock.words.iter().all(|word| word.0.load(SeqCst) == 0));
    }

    #[test]
    fn parts_of_different_blocks_go_together() {
        let (lock, waker) = (RangeLock::default(), waker());
        let (a, a_held) = lock.acquire(range(0, 4096), Mode::Exclusive, &waker);
        let (b, b_held) = lock.acquire(range(4096, 4096), Mode::Exclusive, &waker);
        let (mut c, c_held) = lock.acquire(range(0, 8192), Mode::Exclusive, &waker);
        assert!(a_held && b_held && !c_held);
        lock.release(a);
        assert!(!lock.retry(&mut c));
        lock.release(b);
        assert!(lock.retry(&mut c));
        lock.release(c);
    }

    #[test]
    fn a_range_of_all_words_meets_every_other() {
        let all = range(STRETCH / 2, WORDS * STRETCH * 3);
        for place in [0, 1, WORDS * STRETCH - 1, WORDS * STRETCH * 100 + 5] {
            assert!(share_a_word(all, range(place, 1)) && share_a_word(range(place, 1), all));
        }
        assert!(!share_a_word(range(0, STRETCH), range(STRETCH, STRETCH)));
        assert!(share_a_word(range(0, STRETCH + 1), range(STRETCH, STRETCH)));
        assert!(share_a_word(range((WORDS - 1) * STRETCH, 2 * STRETCH), range(0, 1)));
    }

    /// Threads count up a number that has no lock of its own, as parts; others check that it stands still.
    #[test]
    fn no_two_threads_are_inside_at_once_and_nobody_sleeps_for_ever() {
        let (lock, parts, wholes) = (RangeLock::default(), AtomicU64::new(0), AtomicU64::new(0));
        let work = |mode: Mode, seed: u64| {
            let waker = waker();
            for round in 0..3_000u64 {
                let place = range((seed + round) % 3 * STRETCH / 4, STRETCH);
                let (mut hold, mut held) = lock.acquire(place, mode, &waker);
                while !held {
                    let second = rustix::event::Timespec { tv_sec: 10, tv_nsec: 0 };
                    let mut fds = [PollFd::new(&*waker, PollFlags::IN)];
                    assert_eq!(poll(&mut fds, Some(&second)), Ok(1), "a wake-up was lost");
                    woken(&waker);
                    held = lock.retry(&mut hold);
                }
                // All places overlap.
                let (mine, others) =
                    if mode == Mode::Exclusive { (&parts, &wholes) } else { (&wholes, &parts) };
                let together = mine.fetch_add(1, SeqCst);
                assert!(mode == Mode::Shared || together == 0, "two parts at once");
                assert_eq!(others.load(SeqCst), 0);
                mine.fetch_sub(1, SeqCst);
                lock.release(hold);
            }
        };
        thread::scope(|scope| {
            for seed in 0..2 {
                scope.spawn(move || work(Mode::Exclusive, seed));
                scope.spawn(move || work(Mode::Shared, seed));
            }
        });
    }
}
