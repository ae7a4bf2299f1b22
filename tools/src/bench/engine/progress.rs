//! The progress line: on standard error, and only where that is a terminal.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::board::Board;
use super::{Limit, Load};
use crate::bench::units::{micros, rate};

/// How often it changes.
const TICK: Duration = Duration::from_millis(200);

pub(super) struct Progress {
    line: ProgressBar,
    title: String,
    limit: Limit,
    drawn: Instant,
}

impl Progress {
    pub(super) fn new(title: &str, load: &Load) -> Self {
        let line = ProgressBar::new(1000).with_message(format!("{title}, warming up"));
        if let Ok(style) = ProgressStyle::with_template("{bar:20} {percent:>3} %  {wide_msg}") {
            line.set_style(style);
        }
        Self { line, title: title.to_owned(), limit: load.limit, drawn: Instant::now() }
    }

    pub(super) fn show(&mut self, board: &Board) {
        if self.line.is_hidden() || self.drawn.elapsed() < TICK {
            return;
        }
        self.drawn = Instant::now();
        let (count, begin, mean) = board.glance();
        let Some(begin) = begin else { return self.line.tick() };
        let elapsed = begin.elapsed();
        let (part, whole) = match self.limit {
            Limit::Time(whole) => (elapsed.as_nanos(), whole.as_nanos()),
            Limit::Count(whole) => (count.into(), whole.into()),
        };
        self.line.set_position((part * 1000).checked_div(whole).map_or(1000, |done| done.min(1000) as u64));
        let speed = rate(count as f64 / elapsed.as_secs_f64().max(1e-9));
        let mean = mean.map_or_else(String::new, |mean| format!(", mean {} µs", micros(Some(mean))));
        self.line.set_message(format!("{}: {speed} IOPS{mean}", self.title));
    }

    pub(super) fn end(self) {
        self.line.finish_and_clear();
    }
}
