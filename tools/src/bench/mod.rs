//! `kaeru-bench`: how long one block takes, and where on its way the time goes.
//!
//! ```text
//!   args ──▶ Plan ──▶ latency ── for each rung and operation ──▶ runner ──▶ Samples ──▶ report
//!                        │                                          │
//!                        └── rungs: remote, socket ◀── one block ───┘
//! ```
//! A *rung* is one place to stand on the way from a program to the server's memory. The higher the rung, the more of
//! Kaeru lies below it, so the difference between two rungs is the cost of what lies between them:
//!
//! | rung | what is below it |
//! |---|---|
//! | `remote` | the client's library, the fabric, the server |
//! | `socket` | in addition NBD over a Unix socket, and the lane that serves it |
//!
//! Every figure is a full round trip as the caller sees it. To add a rung, implement [`rungs::Rung`].

pub mod args;
pub mod latency;
pub mod nbd_client;
pub mod report;
pub mod route;
pub mod rungs;
pub mod runner;
pub mod samples;
pub mod stop;
pub mod workload;
