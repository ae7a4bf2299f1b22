//! What the cases stand on: fabrics in pairs, links that count what they are owed, an oracle, real processes, a raw NBD
//! client, and skipping aloud.

#![allow(dead_code, reason = "each test binary uses its part")]

pub(crate) mod bench;
pub(crate) mod client;
pub(crate) mod driven;
pub(crate) mod lane;
pub(crate) mod machine;
pub(crate) mod nbd;
pub(crate) mod oracle;
pub(crate) mod pair;
pub(crate) mod process;
pub(crate) mod random;
pub(crate) mod real;
pub(crate) mod requires;
pub(crate) mod rig;
pub(crate) mod server;
pub(crate) mod tcp;
#[cfg(feature = "verbs")]
pub(crate) mod verbs;
