//! The timed loop of one lane: keep as many operations under way as wanted, and note when each was over.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::board::Board;
use super::{Limit, Load};
use crate::bench::rungs::{Dead, Done, Io, Lane, PATIENCE};
use crate::bench::stop::Stop;
use crate::bench::workload::{Op, Steps};

/// As many failures in a row say all that there is to say.
const FAILURES: u64 = 100;
/// How long a lane waits before it looks whether it is to stop.
const NAP: Duration = Duration::from_millis(100);
/// A sleep may end as late as this; so it has to end as early.
const EARLY: Duration = Duration::from_micros(200);
/// How often what is under way is searched for something that takes too long.
const SEARCH: Duration = Duration::from_secs(1);
/// With a rate: how long after the end what was due before it is still begun. A stall at the end is waited out, so that
/// whom it held up counts with the whole delay; a load that never keeps up is not caught up with.
const GRACE: Duration = Duration::from_secs(2);
/// Latencies are noted for so many of the operations that were never begun, each standing for as many others.
const MISSED: u64 = 10_000;

/// An operation under way.
#[derive(Clone, Copy, Debug)]
struct Flight {
    op: Op,
    due: Instant,
    began: Instant,
}

/// When the operations of one lane are due, in seconds: lanes take turns.
#[derive(Clone, Copy, Debug)]
struct Schedule {
    first: f64,
    interval: f64,
}

/// One lane and what it is to do.
pub(super) struct Worker {
    lane: Box<dyn Lane>,
    steps: Steps,
    load: Load,
    number: u32,
    board: Arc<Board>,
    stop: Stop,
    /// With a rate, when this lane's operations are due.
    schedule: Option<Schedule>,
    limit: Limit,
    /// When the measurement began, and how many operations of it were begun.
    start: Instant,
    begun: u64,
    flights: Box<[Option<Flight>]>,
    free: Vec<u32>,
    done: Vec<Done>,
    in_a_row: u64,
}

impl Worker {
    pub(super) fn new(
        lane: Box<dyn Lane>,
        steps: Steps,
        load: Load,
        number: u32,
        lanes: u32,
        board: Arc<Board>,
        stop: Stop,
    ) -> Self {
        let schedule = load
            .rate
            .map(|rate| Schedule { first: f64::from(number) / rate, interval: f64::from(lanes) / rate });
        let limit = match load.limit {
            Limit::Count(count) => {
                let (lanes, number) = (u64::from(lanes), u64::from(number));
                Limit::Count(count / lanes + u64::from(number < count % lanes))
            }
            time => time,
        };
        Self {
            lane,
            steps,
            load,
            number,
            board,
            stop,
            schedule,
            limit,
            start: Instant::now(),
            begun: 0,
            flights: vec![None; load.depth as usize].into(),
            free: (0..load.depth).rev().collect(),
            done: Vec::with_capacity(load.depth as usize),
            in_a_row: 0,
        }
    }

    fn is_stopped(&self) -> bool {
        self.stop.is_asked() || self.board.is_over() || self.in_a_row >= FAILURES
    }

    fn begin(&mut self, due: Option<Instant>) -> Result<(), Dead> {
        let Some(tag) = self.free.pop() else { return Ok(()) };
        let (op, offset) = self.steps.next_step();
        let began = Instant::now();
        self.flights[tag as usize] = Some(Flight { op, due: due.unwrap_or(began), began });
        self.board.begins(self.number, op);
        self.lane.submit(Io { op, offset, length: self.load.block, tag })
    }

    /// Takes what is over, waiting for it until `until`; counted ones go to the board.
    fn reap(&mut self, until: Instant, is_counted: bool) -> Result<u64, Dead> {
        self.lane.reap(&mut self.done, until)?;
        if self.done.is_empty() {
            return Ok(0);
        }
        let count = self.done.len() as u64;
        let mut sheet = is_counted.then(|| self.board.sheet(self.number));
        for done in self.done.drain(..) {
            let Some(flight) = self.flights.get_mut(done.tag as usize).and_then(Option::take) else {
                continue;
            };
            self.free.push(done.tag);
            self.board.ends(self.number, flight.op);
            self.in_a_row = if done.failed.is_some() { self.in_a_row + 1 } else { 0 };
            if let Some(sheet) = &mut sheet {
                sheet.note(flight.op, flight.due, flight.began, done);
            }
        }
        Ok(count)
    }

    fn in_flight(&self) -> bool {
        self.free.len() < self.flights.len()
    }

    /// Fails where something has been under way for too long.
    fn search(&self, now: Instant) -> Result<(), Dead> {
        let late = |flight: &&Flight| now.saturating_duration_since(flight.began) >= PATIENCE;
        match self.flights.iter().flatten().find(late) {
            None => Ok(()),
            Some(flight) => {
                Err(Dead(format!("a {} was not answered within {} s", flight.op, PATIENCE.as_secs())))
            }
        }
    }

    /// Operations that are not counted. What fails here and does not end the lane fails again later.
    fn warm_up(&mut self) -> Result<(), Dead> {
        let start = Instant::now();
        loop {
            let over = start.elapsed() >= self.load.warm_up || self.is_stopped();
            if over && self.may_leave() {
                self.in_a_row = 0;
                return Ok(());
            }
            while !over && !self.free.is_empty() {
                self.begin(None)?;
            }
            self.reap(Instant::now() + NAP, false)?;
            self.board.beat();
            self.search(Instant::now())?;
        }
    }

    /// Whether nothing is under way, or nobody waits for it any more.
    fn may_leave(&self) -> bool {
        !self.in_flight() || self.stop.is_asked() || self.board.is_over()
    }

    /// When this lane's operation of that number is due, from zero; `None` where there is no rate, or in no lifetime.
    fn due(&self, number: u64) -> Option<Instant> {
        let Schedule { first, interval } = self.schedule?;
        let after = Duration::try_from_secs_f64(first + interval * number as f64).ok()?;
        self.start.checked_add(after)
    }

    /// Whether the operation of that number belongs to the measurement, `last` being what time it is.
    fn belongs(&self, number: u64, last: Instant) -> bool {
        match (self.limit, self.schedule) {
            (Limit::Count(count), _) => number < count,
            (Limit::Time(time), None) => last - self.start < time,
            (Limit::Time(time), Some(_)) => {
                let is_due = |due: Instant| due - self.start < time;
                last - self.start < time + GRACE && self.due(number).is_some_and(is_due)
            }
        }
    }

    fn measure(&mut self) -> Result<(), Dead> {
        let start = Instant::now();
        self.start = start;
        let (mut searched, mut last) = (start, start);
        self.board.sheet(self.number).begin = Some(start);
        loop {
            // The time of the last look at the clock is near enough here.
            let over = !self.belongs(self.begun, last) && self.is_whole(last);
            let stopped = self.is_stopped();
            if (over || stopped) && self.may_leave() {
                self.close(stopped);
                return Ok(());
            }
            let mut until = last + NAP;
            if let (Limit::Time(time), Some(_)) = (self.limit, self.schedule)
                && last - start < time
            {
                until = until.min(start + time);
            }
            while !stopped && !self.free.is_empty() && self.belongs(self.begun, last) {
                let due = match self.schedule {
                    None => None,
                    Some(_) => match self.due(self.begun) {
                        Some(due) if due > Instant::now() => {
                            until = until.min(due - EARLY.min(due - start));
                            break;
                        }
                        // In no lifetime.
                        None => break,
                        due => due,
                    },
                };
                self.begun += 1;
                self.begin(due)?;
            }
            if !self.in_flight() {
                // Nothing is due yet. The last bit is spun away: a sleep ends late.
                last = Instant::now();
                match until.saturating_duration_since(last).min(NAP) {
                    Duration::ZERO => std::hint::spin_loop(),
                    time => std::thread::sleep(time),
                }
                self.board.beat();
                continue;
            }
            let count = self.reap(until, true)?;
            self.board.beat();
            last = Instant::now();
            if count == 0 || last - searched >= SEARCH {
                searched = last;
                self.search(last)?;
            }
        }
    }

    /// Whether the time that was asked for has passed, where one was.
    fn is_whole(&self, last: Instant) -> bool {
        match self.limit {
            Limit::Count(_) => true,
            Limit::Time(time) => last - self.start >= time,
        }
    }

    /// Notes what there is to say at the end. One that came `early` is the end of the time, too.
    fn close(&self, early: bool) {
        let now = Instant::now();
        let mut sheet = self.board.sheet(self.number);
        if self.in_a_row >= FAILURES {
            sheet.give_up(FAILURES);
        }
        // What held a lane up when the user had enough of it has no latency yet, but a least one.
        let held_up = self.flights.iter().flatten().filter(|flight| now - flight.began >= NAP);
        for flight in held_up.filter(|_| early) {
            sheet.miss(flight.op, 1, now - flight.due);
        }
        let end = match self.limit {
            _ if early => Some(now),
            Limit::Time(time) => self.schedule.map(|_| self.start + time),
            Limit::Count(_) => self.whole(),
        };
        if let Some(end) = end {
            sheet.last_until(end);
        }
        let due = self.count_due(if early { now } else { now.max(end.unwrap_or(now)) });
        let missed = due.saturating_sub(self.begun);
        let step = missed.div_ceil(MISSED).max(1);
        let mut steps = self.steps.clone();
        let mut number = self.begun;
        while number < due {
            let count = step.min(due - number);
            let waited = self.due(number).map_or(Duration::ZERO, |due| now.saturating_duration_since(due));
            sheet.miss(steps.next_step().0, count, waited);
            number += count;
        }
        if missed > 0 {
            sheet.last_until(now);
        }
    }

    /// When so many operations as were asked for of all lanes are over at the rate that was asked for.
    fn whole(&self) -> Option<Instant> {
        match (self.load.limit, self.load.rate) {
            (Limit::Count(count), Some(rate)) => {
                self.start.checked_add(Duration::try_from_secs_f64(count as f64 / rate).ok()?)
            }
            _ => None,
        }
    }

    /// How many operations of this lane were due before `end`, in the measurement; none without a rate.
    fn count_due(&self, end: Instant) -> u64 {
        let Some(Schedule { first, interval }) = self.schedule else { return 0 };
        let (most, time) = match self.limit {
            Limit::Count(count) => (count, end - self.start),
            Limit::Time(time) => (u64::MAX, time.min(end - self.start)),
        };
        let is_due = |number| self.due(number).is_some_and(|due| due - self.start < time);
        // What a fraction is rounded to is not one more.
        let mut due = (((time.as_secs_f64() - first) / interval).ceil().max(0.0) as u64).min(most);
        while due > self.begun && !is_due(due - 1) {
            due -= 1;
        }
        due
    }
}

/// Does it all. Gives the lane back if it is fit for more.
pub(super) fn run(mut worker: Worker) -> Option<Box<dyn Lane>> {
    worker.lane.prepare();
    let warm = worker.warm_up();
    worker.lane.prepare();
    worker.board.is_one_warm();
    let result = warm.and_then(|()| {
        let stop = worker.stop.clone();
        worker.board.wait_for_go(|| stop.is_asked());
        worker.measure()
    });
    let idle = !worker.in_flight();
    match result {
        Ok(()) => idle.then_some(worker.lane),
        Err(Dead(reason)) => {
            worker.board.fail(worker.number, &reason);
            // Those under way have failed; those that waited for them are not forgotten.
            worker.flights.fill(None);
            worker.close(true);
            None
        }
    }
}
