//! The client: it attaches a server's export and shows it to programs and to the kernel.
//!
//! Reading order: [`remote`] (an export as byte ranges), [`nbd`] (what programs and the kernel see of it).

mod inflight;
pub mod nbd;
pub mod remote;
