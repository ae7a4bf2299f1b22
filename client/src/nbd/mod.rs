//! The NBD front end.

#[cfg(target_os = "linux")]
pub mod kernel;
