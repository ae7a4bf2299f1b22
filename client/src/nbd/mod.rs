//! The NBD front end: an attached export as a program or the Linux kernel sees it.
//!
//! We are the *server* of NBD here: the kernel, `qemu`, `nbdinfo` or `fio` is the client on the other end of
//! a local socket. Reading order:
//!
//! 1. [`proto`]: the constants and layouts of the NBD specification, by section of its `doc/proto.md`;
//! 2. [`handshake`]: which export is meant and with which features, for clients in user space (the kernel's
//!    own socket starts after the handshake);
//! 3. [`transmission`]: requests in, replies out, and the one door at which each request is checked.
//!
//! All three are pure: bytes come in as arguments and go out as values. Sockets, clocks and threads belong to
//! the code that calls them:
//!
//! 4. [`lane`]: the loop between one connection's socket and the export;
//! 5. [`front`]: an export's lanes, lent to its connections;
//! 6. [`listen`]: connections of programs, over a Unix socket or a loopback port;
//! 7. [`kernel`]: connections of the kernel, as `/dev/nbdN` (Linux);
//! 8. [`stamps`]: when each request passed where, for who measures a lane.

pub mod front;
pub mod handshake;
#[cfg(target_os = "linux")]
pub mod kernel;
pub mod lane;
pub mod listen;
pub mod proto;
pub mod stamps;
pub mod transmission;
