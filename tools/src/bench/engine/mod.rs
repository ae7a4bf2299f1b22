//! Runs one measurement: a thread for each lane, warm-up first, then all of them together, watched from outside.
//!
//! ```text
//!   measure ──▶ thread a lane: warm up ── wait for all ── timed loop (`lane`) ──▶ Board
//!      └─ watches the Board: progress line, lanes that hang, Ctrl-C ──▶ Outcome
//! ```
//! What was measured lies on the board, which belongs to nobody's stack: a thread that hangs in a system call takes
//! nothing with it.

mod board;
mod lane;
mod progress;

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use self::board::Board;
use self::lane::{Worker, run};
use self::progress::Progress;
use kaeru_client::target::Server;

use super::cpu::Cpu;
use super::rungs::{Lane, PATIENCE};
use super::samples::Samples;
use super::stages::Stages;
use super::stop::Stop;
use super::workload::{Mix, Op, Pattern, Steps};

/// How often the lanes are looked at.
const TICK: Duration = Duration::from_millis(100);
/// A lane that shows no sign of life for this long beyond an operation's patience hangs.
const HUNG: Duration = Duration::from_secs(2);

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    /// For this long.
    Time(Duration),
    /// This many operations, of all lanes together.
    Count(u64),
}

/// What every lane is to do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Which operations.
    pub mix: Mix,
    /// Where.
    pub pattern: Pattern,
    /// Bytes of each.
    pub block: u32,
    /// Under way at once on each lane.
    pub depth: u32,
    /// Operations a second of all lanes together, begun on time whether earlier ones are over or not. What is due within
    /// the time counts, and is begun even where that is a little later.
    pub rate: Option<f64>,
    /// How much.
    pub limit: Limit,
    /// For how long beforehand, uncounted.
    pub warm_up: Duration,
    /// Whether to keep the stages of operations.
    pub stages: bool,
}

/// What came of one kind of operation in a measurement.
#[derive(Clone, Debug)]
pub struct Kind {
    /// Which.
    pub op: Op,
    /// The latencies of what succeeded. With a rate, from when each was due.
    pub samples: Samples,
    /// With a rate, from when each was begun: what hides the waiting.
    pub service: Option<Samples>,
    /// Where the time went.
    pub stages: Option<Stages>,
    /// How many operations failed.
    pub errors: u64,
    /// With a rate: how many were due and never begun. How long each had waited until then is among the latencies.
    pub missed: u64,
}

impl Kind {
    /// How many operations succeeded.
    pub fn count(&self) -> u64 {
        self.samples.count().saturating_sub(self.missed)
    }
}

/// What came of one measurement.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// By operation, those that there were.
    pub kinds: Vec<Kind>,
    /// Why the first failure failed.
    pub first_error: Option<String>,
    /// How long it took: from the first begin to the last end, or to the death of a lane. With a rate, the times at which
    /// its operations were due lie in it whole: n of them take n intervals, not one less.
    pub elapsed: Duration,
    /// Processor time of both ends.
    pub cpu: Cpu,
    /// Whether a lane is lost.
    pub is_broken: bool,
}

/// Measures `load` on `lanes`, of a thing of `size` bytes, which `server` has if it is one of ours. Gives back the lanes
/// that are fit for more.
///
/// # Errors
/// Where there is no thread or histogram, or no block fits.
pub fn measure(
    lanes: Vec<Box<dyn Lane>>,
    load: &Load,
    size: u64,
    server: Option<&Server>,
    title: &str,
    stop: &Stop,
) -> Result<(Outcome, Vec<Box<dyn Lane>>), EngineError> {
    let count = lanes.len() as u32;
    let board = Arc::new(Board::new(load, count)?);
    let (send, receive) = mpsc::channel();
    let mut workers = Vec::new();
    for (lane, number) in lanes.into_iter().zip(0u32..) {
        let steps = Steps::new(load.mix, load.pattern, load.block, size, number, count);
        let steps = steps.ok_or(EngineError::NoBlock)?;
        workers.push(Worker::new(lane, steps, *load, number, count, board.clone(), stop.clone()));
    }
    for worker in workers {
        let send = send.clone();
        let work = move || {
            let lane = run(worker);
            // Nobody listens to a lane that was given up.
            let _ = send.send(lane);
        };
        std::thread::Builder::new().name("bench lane".into()).spawn(work)?;
    }
    drop(send);
    let watch = Watch { board: &board, load, server, stop, receive, count };
    Ok(watch.run(title))
}

/// Why nothing could be measured.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// No thread.
    #[error("cannot start a thread for a lane: {0}")]
    Thread(#[from] std::io::Error),
    /// The constants of a histogram are wrong.
    #[error("cannot keep latencies: {0}")]
    Histogram(#[from] hdrhistogram::CreationError),
    /// Nothing to measure on.
    #[error("not a single block fits")]
    NoBlock,
}

struct Watch<'a> {
    board: &'a Arc<Board>,
    load: &'a Load,
    server: Option<&'a Server>,
    stop: &'a Stop,
    receive: Receiver<Option<Box<dyn Lane>>>,
    count: u32,
}

impl Watch<'_> {
    fn run(self, title: &str) -> (Outcome, Vec<Box<dyn Lane>>) {
        let (mut lanes, mut ended) = (Vec::new(), 0);
        let mut seen = (self.board.beats(), Instant::now());
        let (mut progress, mut cpu_before) = (Progress::new(title, self.load), None);
        while ended < self.count {
            if cpu_before.is_none() && self.board.is_warm() {
                cpu_before = Some(Cpu::now(self.server));
                self.board.go();
            }
            match self.receive.recv_timeout(if cpu_before.is_none() { TICK / 20 } else { TICK }) {
                Ok(lane) => {
                    ended += 1;
                    lanes.extend(lane);
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {}
            }
            progress.show(self.board);
            let beats = self.board.beats();
            if beats != seen.0 {
                seen = (beats, Instant::now());
            }
            let patience = if self.stop.is_asked() { HUNG } else { PATIENCE + HUNG };
            if seen.1.elapsed() >= patience {
                self.board.give_up(&format!("a lane hangs: nothing moved for {} s", patience.as_secs()));
                break;
            }
        }
        let cpu = cpu_before.map(|before| before.until(Cpu::now(self.server))).unwrap_or_default();
        let is_broken = lanes.len() < self.count as usize;
        progress.end();
        (self.board.outcome(cpu, is_broken), lanes)
    }
}

#[cfg(test)]
mod tests;
