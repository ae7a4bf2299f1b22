//! What both sides of Kaeru share: the words on the wire, the session logic, and the fabrics that move the bytes.
//!
//! Reading order: [`units`], [`wire`] (the protocol text), [`session`] (who says what when), [`fabric`] (the contract
//! that everything fast stands on), then one fabric: [`fabric::tcp`] is the easiest. Apart from all that, [`host`] reads
//! what this machine is.
//!
//! Invariants:
//! - `wire` and `session` are pure: bytes and time are arguments, effects are return values.
//! - `host` reads, and changes nothing.
//! - `fabric` knows no exports, sessions or messages: it moves bytes between slots and regions.
//! - Unsafe code has two homes here, `fabric::buffer` and `fabric::verbs`; everything else is denied it.

pub mod codec;
pub mod completions;
pub mod cpu;
pub mod error;
pub mod fabric;
pub mod host;
pub mod logging;
pub mod manual;
pub mod metrics;
pub mod plain;
pub mod session;
pub mod units;
pub mod wire;
