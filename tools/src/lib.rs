//! The tools beside server and client: what a user measures and diagnoses with.
//!
//! [`mod@bench`] is `kaeru-bench`, [`doctor`] is `kaeru-doctor`. The tools stand on the client's library and reach an export in the ways that programs
//! do; they know nothing of the server's inside.

pub mod bench;
pub mod doctor;
