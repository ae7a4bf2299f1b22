//! `kaeru-doctor`: what is wrong with the RDMA of this machine, and what to do.
//!
//! ```text
//!   Host (facts) ─┐
//!   Aside ────────┼──▶ Patient ──▶ checks: one function each ──▶ Findings ──▶ Report ──▶ text, JSON, exit status
//!   earlier Host ─┘                                              Ceilings
//!   peer's facts ─┘
//! ```
//! A check takes facts and returns a [`Finding`]: what was read where, what it means, what to do. Checks read and change
//! nothing themselves, so every one can be tested on a folder with a copy of another machine's files. They lie in a
//! module for each subject; to add one, write the function and name it in that module's `all`.

pub mod args;
mod aside;
mod ceilings;
pub mod finding;
pub mod report;
mod run;

mod access;
mod cards;
mod counters;
mod firmware;
mod limits;
mod link;
mod nbd;
mod network;
mod pcie;
mod peer;
mod power;
mod watch;

use kaeru_common::host::{Host, Port, RdmaDevice};

pub use self::aside::{Aside, Packets};
pub use self::run::run;
pub use self::watch::Watched;

use self::finding::{Finding, Section};
use self::report::Report;

/// All that the checks look at.
#[derive(Debug)]
pub struct Patient {
    /// The machine.
    pub host: Host,
    /// What programs and libraries said.
    pub aside: Aside,
    /// The machine some time earlier.
    pub watched: Option<Watched>,
    /// Bytes of RAM that are to be exported.
    pub export: Option<u64>,
}

impl Patient {
    /// Every port, with its device.
    fn ports(&self) -> impl Iterator<Item = (&RdmaDevice, &Port)> {
        self.host.rdma.iter().flat_map(|device| device.ports.iter().map(move |port| (device, port)))
    }
}

/// What RDMA takes, and what is useful around it. The README has the same lines.
const PACKAGES: &str = "sudo apt install rdma-core ibverbs-providers infiniband-diags";

/// All modules for cards of this driver.
fn load_modules(driver: &str) -> String {
    format!("sudo modprobe -a {driver} ib_umad ib_ipoib rdma_ucm")
}

/// What to do about a module that the running kernel does not have.
const MORE_MODULES: (&str, &str) = (
    "Some kernels of Ubuntu have it in another package; elsewhere it takes another kernel:",
    "sudo apt install linux-modules-extra-$(uname -r)",
);

/// What a port is called in a report.
fn name_of(device: &RdmaDevice, port: &Port) -> String {
    format!("{} port {}", device.name, port.number)
}

/// Runs every check.
pub fn examine(patient: &Patient) -> Report {
    let sections: [(Section, Vec<Finding>); 7] = [
        (Section::Cards, [cards::all(patient), access::all(patient), firmware::all(patient)].concat()),
        (Section::Slot, pcie::all(patient)),
        (Section::Link, link::all(patient)),
        (Section::Cable, [watch::all(patient), counters::all(patient)].concat()),
        (Section::Network, network::all(patient)),
        (Section::System, [limits::all(patient), power::all(patient), nbd::all(patient)].concat()),
        (Section::Ceilings, ceilings::all(patient)),
    ];
    let findings = sections
        .into_iter()
        .flat_map(|(section, findings)| findings.into_iter().map(move |finding| finding.in_section(section)))
        .map(|finding| finding.with_packages(&patient.host.software))
        .collect();
    Report::new(&patient.host, findings, ceilings::measure(patient))
}
