//! A lane allocates nothing for a request: neither over NBD nor below.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr, reason = "tests fail by panicking")]

mod harness;

mod cases {
    mod allocation;
}
