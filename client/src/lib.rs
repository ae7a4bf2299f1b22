//! Kaeru.
