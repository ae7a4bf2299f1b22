//! `/dev/nbdN`: binding it, settling it, looking at it, letting it go (Linux).
//!
//! A device is made of socket pairs. The kernel keeps one end of each, a lane serves the other with plain NBD
//! requests and simple replies; there is no handshake. [`connect`] hands the ends over by generic netlink.
//!
//! The order to call things in:
//!
//! 1. [`connect`] binds the device and returns our ends. Programs can see the device from this moment on, and udev
//!    opens it at once, so
//! 2. start the lanes on our ends, then
//! 3. [`Device::settle`], from a thread that serves no lane: it reads the partition table *through* the lanes.
//! 4. [`disconnect`], from any process, or from a thread of the serving one that serves no lane.
//!
//! # What the kernel does (`drivers/block/nbd.c`, 5.14 to 6.12; tried on 6.1)
//!
//! - **The sockets are the device's life.** Nothing else ties the device to our process: when every socket is closed
//!   (we were killed) the device stays, with its `pid` file, until someone disconnects it.
//! - **A request timeout kills the socket, not the request.** When a request is older than [`Attach::timeout`] the
//!   kernel shuts its socket down and sends the request again on another one; the last socket down means I/O errors.
//!   With N sockets a request that nobody answers fails after N timeouts. So a deadline for requests belongs to our
//!   side of the socket, and the kernel's timeout has to be longer than any that we use.
//! - **No timeout is not "no timeout".** With the attribute left out, one socket means for ever; two or more mean what the
//!   last user of that number had set, and 30 s (the block layer's default) if nobody did. [`NEVER`] says never.
//! - **What was in flight when we were killed waits for its timeout**, whatever `dead_conn_timeout` says; that one
//!   covers requests that come later. Only a disconnect ends both at once: hence `guard`.
//! - **A server that does not read blocks the disconnect.** The kernel takes a socket's lock to send a write and holds it
//!   while the socket is full; the disconnect wants that lock, and no signal reaches it. Closing our end frees both.
//! - **`pid` is a thread.** `/sys/block/nbdN/pid` is the id of the thread that called [`connect`]; call it from one that
//!   lives as long as the device (the main thread), or the device looks orphaned.
//! - **An open device cannot be bound again.** A disconnected device whose old file system is still mounted answers
//!   I/O errors and keeps its number until the last user has gone.
//! - **Sockets beyond the number of CPUs are spares**: the block layer has at most one queue for each CPU.
//!
//! # Client flags: none
//!
//! `NBD_CFLAG_DISCONNECT_ON_CLOSE` would take the device away when mkfs, blkid or udev closes it.
//! `NBD_CFLAG_DESTROY_ON_DISCONNECT` would delete `/dev/nbd0` to `/dev/nbd15`, which `modprobe nbd` made and which
//! `qemu-nbd -c /dev/nbd0` and others expect to find; and for a while after each disconnect the number could be neither
//! bound nor found ("device at index 0 is going down"). What it is good for, that nothing of an old disk is left under
//! a used number, we do ourselves: the kernel drops the page cache on disconnect (5.15 and later), [`disconnect`] drops
//! the partitions, and [`Device::settle`] flushes the cache, reads the table again and sets every queue value it
//! depends on.

mod attach;
mod blockdev;
mod detach;
mod error;
mod guard;
mod holders;
mod module;
mod netlink;
mod poll;
mod settle;
mod sysfs;

pub use attach::{Attach, Device, MAX_LANES, NEVER, connect};
pub use detach::{Outcome, Urgency, disconnect};
pub use error::KernelError;
pub use guard::guard;
pub use holders::{Holders, Mount, Opener};
pub use settle::Nodes;
pub use sysfs::{Status, Task, Tree, index_of, list, status};
