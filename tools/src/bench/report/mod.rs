//! What a measurement came to. Every form of output shows this one value: [`json`] as it is, [`table`] for terminals,
//! [`csv`] for sheets, [`blog`] to paste, [`html`] as a page.

pub mod blog;
pub mod csv;
pub mod html;
pub mod json;
pub mod table;
pub mod text;

use kaeru_common::fabric::FabricKind;
use serde::{Deserialize, Serialize};

use super::figures::Measured;
use super::machine::Machine;
use super::route::Way;
use super::rungs::RungName;
use super::workload::Op;

/// What files of this kind call themselves. The number grows when a field changes its meaning or goes away.
pub const SCHEMA: &str = "kaeru-bench/1";

/// All that is to be said.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: String,
    /// The version of kaeru-bench.
    pub version: String,
    /// What the user typed.
    pub command: String,
    /// Which measurement: `latency`, `bandwidth`, `iops`, `sweep` or `run`.
    pub preset: String,
    /// When it began, in seconds since 1970, UTC.
    pub began_unix_seconds: u64,
    /// What was measured, as the user named it.
    pub target: String,
    /// Bytes of it, once known.
    pub target_bytes: Option<u64>,
    /// What keeps them, by the server's word: `ram`, `file`, `disk` or `null`.
    #[serde(default)]
    pub target_kind: Option<String>,
    /// What keeps the figures from being those of two cards and a cable. Whoever shows a figure shows these.
    pub labels: Vec<String>,
    /// What the user wants to have said beside the figures.
    #[serde(default)]
    pub remarks: Vec<String>,
    /// The way to the server, where one was taken.
    pub route: Option<Way>,
    /// How lanes of ours waited, in words; empty where there were none.
    pub spin: String,
    /// The machine that measured.
    pub client: Machine,
    /// The other end, where it is known.
    pub server: Option<Machine>,
    /// The measurements, rung by rung from the bottom up.
    pub results: Vec<Measured>,
    /// What each rung adds to the one below it. Derived: differences of medians.
    pub steps: Vec<Step>,
    /// Rungs that have no part in the steps: nothing says that they lead to the same export as the others.
    #[serde(default)]
    pub apart: Vec<RungName>,
    /// Why the rest could not be measured.
    pub problem: Option<String>,
    /// Whether the user ended it early.
    pub interrupted: bool,
}

/// What a rung adds to the one below it, at the same load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// The operation.
    pub operation: Op,
    /// The rung below; absent for the lowest.
    pub from: Option<RungName>,
    /// The rung.
    pub to: RungName,
    /// The difference of the medians in microseconds. Below zero is noise, or a rung that waits in another way.
    pub us: f64,
    /// Whether the medians of the runs of both rungs overlap: then the difference may be chance.
    #[serde(default)]
    pub is_within_spread: bool,
}

impl Report {
    /// Whether something was measured and nothing failed.
    pub fn is_clean(&self) -> bool {
        let counted = self.results.iter().any(|result| result.all.count > 0);
        counted && self.problem.is_none() && self.results.iter().all(|result| result.all.errors == 0)
    }

    /// Works out what each rung adds, where one operation at a time was measured on several that are not [`Self::apart`].
    pub fn derive_steps(&mut self) {
        self.steps.clear();
        let apart = &self.apart;
        for op in Op::ALL {
            let mut below: Option<&Measured> = None;
            let alike = self.results.iter().filter(|result| {
                let single = result.depth == 1 && result.lanes == 1 && result.rate.is_none();
                single && result.operation == op && result.mixed_reads_percent.is_none()
            });
            let Some(block) = alike.clone().map(|result| result.block_bytes).next() else { continue };
            let ladder = alike.filter(|result| {
                result.block_bytes == block && result.rung.is_on_the_way() && !apart.contains(&result.rung)
            });
            let first = self.steps.len();
            for result in ladder {
                let Some(median) = result.all.latency_us.p50 else { continue };
                let us = ((median - below.and_then(|below| below.all.latency_us.p50).unwrap_or(0.0)) * 1e3)
                    .round()
                    / 1e3;
                let spreads = below.and_then(|below| below.median_spread_us).zip(result.median_spread_us);
                self.steps.push(Step {
                    operation: op,
                    from: below.map(|below| below.rung),
                    to: result.rung,
                    us,
                    is_within_spread: spreads
                        .is_some_and(|(below, above)| below.0 <= above.1 && above.0 <= below.1),
                });
                below = Some(result);
            }
            if self.steps.len() == first + 1 {
                // One rung alone has no difference to any.
                self.steps.pop();
            }
        }
    }

    /// Whether blocks went over tcp.
    pub fn is_tcp(&self) -> bool {
        self.route.as_ref().is_some_and(|way| way.fabric == FabricKind::Tcp.to_string())
    }

    /// What a step is, in words.
    pub fn adds(&self, step: &Step) -> String {
        let adds = step.to.adds(step.from, self.is_tcp());
        match step.from {
            Some(below) if step.us < 0.0 && !step.is_within_spread => {
                format!(
                    "{adds}: less than nothing, so something else was not alike when \"{below}\" was measured"
                )
            }
            _ => adds,
        }
    }

    /// Whether results differ in more than rung and operation, as those of a sweep do.
    pub fn is_sweep(&self) -> bool {
        let mut loads = self.results.iter().map(|result| (result.block_bytes, result.depth));
        let first = loads.next();
        loads.any(|load| Some(load) != first)
    }

    /// Whether any operation was begun on time rather than when there was room.
    pub fn has_rate(&self) -> bool {
        self.results.iter().any(|result| result.rate.is_some())
    }

    /// The sentence that stands wherever figures stand, if they are not those of two cards and a cable.
    pub fn warning(&self) -> Option<String> {
        (!self.labels.is_empty())
            .then(|| format!("NOT COMPARABLE with RDMA cards: {}", self.labels.join("; ")))
    }
}

#[cfg(test)]
pub mod sample;
#[cfg(test)]
mod tests;
