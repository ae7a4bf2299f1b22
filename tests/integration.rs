//! Behaviour on whatever the machine has: loopback, a kernel, a card. What it lacks is skipped with a reason.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr, reason = "tests fail by panicking")]

mod harness;

mod cases {
    mod activity;
    mod bench;
    mod cli;
    mod conformance;
    mod control;
    mod doctor;
    mod errors;
    mod files;
    mod handshake;
    mod hang;
    mod idle;
    mod interop;
    mod lanes;
    mod layering;
    mod life;
    mod limits;
    mod moods;
    mod oracle;
    mod page;
    mod parallel;
    mod staged;
    mod stores;
}
