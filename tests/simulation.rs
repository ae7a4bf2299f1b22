//! Many seeds on the simulated fabric. A failure prints its seed: `KAERU_SEED=n cargo test --test simulation`.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr, reason = "tests fail by panicking")]

mod harness;

mod cases {
    mod faults;
    mod simulation;
    mod staged_walks;
}
