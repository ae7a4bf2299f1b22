//! `kaeru-bench`: how long a block takes, how many go through, and where on the way the time goes.
//!
//! ```text
//!   args ──▶ plan ──▶ ladder ── for each rung, load and run ──▶ engine ──▶ samples ──▶ figures ──▶ report
//!                        │                                         │                                 └▶ compare
//!                        └── rungs: ram, disk, fabric, remote, socket, device ◀── operations
//! ```
//! A *rung* is one place to stand on the way from a program to the server's memory. The higher the rung, the more of
//! Kaeru lies below it, so the difference between two rungs is the cost of what lies between them:
//!
//! | rung | what is measured |
//! |---|---|
//! | `ram`, `disk` | this machine's own memory and disk, to compare with |
//! | `fabric` | one-sided operations on the link alone, comparable with `ib_read_lat` |
//! | `remote` | the client's library, the fabric, the server |
//! | `socket` | in addition NBD over a Unix socket, and the lane that serves it |
//! | `device` | `/dev/nbdN`, comparable with fio |
//!
//! Every figure is a full round trip as the caller sees it; every form of output shows the same [`report::Report`]. To
//! add a rung, implement [`rungs::Rung`] and [`rungs::Lane`].

pub mod args;
pub mod compare;
pub mod consent;
pub mod cpu;
pub mod engine;
pub mod figures;
pub mod files;
pub mod ladder;
pub mod machine;
pub mod nbd_client;
pub mod output;
pub mod plan;
pub mod report;
pub mod retries;
pub mod route;
pub mod rungs;
pub mod samples;
pub mod stages;
pub mod stop;
pub mod units;
pub mod workload;
