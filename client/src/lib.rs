//! The client: it attaches a server's export and shows it to programs and to the kernel.
//!
//! Reading order: [`target`] (how an export is named), [`session`] (attaching it), [`remote`] (an export as byte
//! ranges), [`nbd`] (what programs and the kernel see of it), [`serve`] and [`mod@attach`] (the two commands that put
//! these together), [`background`] and [`manage`] (how `status` and `detach` find what runs).

pub mod args;
pub mod attach;
pub mod attachment;
pub mod background;
pub mod inflight;
pub mod list;
pub mod manage;
pub mod nbd;
pub mod remote;
pub mod serve;
pub mod session;
pub mod signals;
mod table;
pub mod target;
