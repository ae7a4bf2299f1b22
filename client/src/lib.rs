//! Kaeru.

pub mod nbd;
