//! Counters of one lane, written by its thread and read by anybody.

use std::sync::atomic::{AtomicU64, Ordering};

/// What a lane has done so far. One thread writes, so plain loads and stores suffice and cost nothing.
#[derive(Debug, Default)]
pub struct LaneCounters {
    reads: AtomicU64,
    writes: AtomicU64,
    others: AtomicU64,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    errors: AtomicU64,
    in_flight: AtomicU64,
}

/// A lane's counters at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneSnapshot {
    /// Reads that were answered.
    pub reads: u64,
    /// Writes that were answered.
    pub writes: u64,
    /// Other requests that were answered.
    pub others: u64,
    /// Bytes of answered reads.
    pub bytes_read: u64,
    /// Bytes of answered writes.
    pub bytes_written: u64,
    /// Requests that were answered with an error.
    pub errors: u64,
    /// Requests that are not yet answered.
    pub in_flight: u64,
}

impl LaneCounters {
    /// Counts an answered read.
    pub fn read(&self, bytes: u64) {
        add(&self.reads, 1);
        add(&self.bytes_read, bytes);
    }

    /// Counts an answered write.
    pub fn write(&self, bytes: u64) {
        add(&self.writes, 1);
        add(&self.bytes_written, bytes);
    }

    /// Counts any other answered request.
    pub fn other(&self) {
        add(&self.others, 1);
    }

    /// Counts a request that failed.
    pub fn error(&self) {
        add(&self.errors, 1);
    }

    /// Says how many requests are under way.
    pub fn set_in_flight(&self, requests: u64) {
        self.in_flight.store(requests, Ordering::Relaxed);
    }

    /// The counters now.
    pub fn snapshot(&self) -> LaneSnapshot {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        LaneSnapshot {
            reads: load(&self.reads),
            writes: load(&self.writes),
            others: load(&self.others),
            bytes_read: load(&self.bytes_read),
            bytes_written: load(&self.bytes_written),
            errors: load(&self.errors),
            in_flight: load(&self.in_flight),
        }
    }
}

impl std::ops::AddAssign for LaneSnapshot {
    fn add_assign(&mut self, other: Self) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.others += other.others;
        self.bytes_read += other.bytes_read;
        self.bytes_written += other.bytes_written;
        self.errors += other.errors;
        self.in_flight += other.in_flight;
    }
}

fn add(counter: &AtomicU64, amount: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
}
