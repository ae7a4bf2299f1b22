//! The places on the way to an export where it can be measured, one file each.

pub mod remote;
pub mod socket;

use std::time::Duration;

use super::workload::Op;

/// An operation that takes longer than this has failed, and its rung with it.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Why an operation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// Only this one; the next may succeed.
    #[error("{0}")]
    Failed(String),
    /// Nothing will succeed on this rung any more.
    #[error("{0}")]
    Fatal(String),
}

/// One place to measure.
pub trait Rung {
    /// What it is called in reports.
    fn name(&self) -> &'static str;

    /// Does one operation of [`super::workload::BLOCK`] bytes at `offset` and returns when it is complete.
    ///
    /// # Errors
    /// [`Failure`] says whether to go on.
    fn once(&mut self, op: Op, offset: u64) -> Result<(), Failure>;
}
