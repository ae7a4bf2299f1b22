//! Recorded machines: the files of another one, in a folder of their own.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::process::{run, scratch};

/// Where the recordings are.
pub(crate) fn recordings() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/doctor")
}

/// The machines that have an expected report.
pub(crate) const MACHINES: &[&str] = &[
    "bad-cable",
    "connectx-4",
    "connectx-5",
    "gen2-x4-slot",
    "half-loaded-driver",
    "healthy-fdr-pair",
    "memlock-64k",
    "no-card",
    "no-subnet-manager",
    "oem-firmware",
    "roce-40g",
    "soft-roce",
    "wrong-port-mode",
    "zero-guid",
];

/// The files of a recorded machine.
#[track_caller]
pub(crate) fn plant(name: &str) -> TempDir {
    let folder = scratch();
    run(Command::new(recordings().join("plant")).arg(name).arg(folder.path())).success();
    folder
}
