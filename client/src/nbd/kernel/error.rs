//! What can go wrong with a kernel device: what was tried, what was found, what to do.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use super::holders::Holders;

/// The way that needs neither root nor the module.
macro_rules! rootless {
    () => {
        "without root, `kaeru nbd HOST/EXPORT --socket PATH` serves qemu, fio, nbdcopy and nbdfuse"
    };
}

/// Why a kernel device could not be bound, settled, read or released.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// The kernel has no NBD driver and it could not be loaded.
    #[error("this kernel has no nbd driver ({tried}); run `modprobe nbd` as root, or install the package with your kernel's modules; {}", rootless!())]
    NoModule {
        /// What was tried to get it.
        tried: String,
    },

    /// The caller is not privileged (`EPERM`).
    #[error("{what} needs CAP_SYS_ADMIN in the first user namespace; run it as root; {}", rootless!())]
    NotPermitted {
        /// What was tried.
        what: String,
    },

    /// The wanted device is in use (`EBUSY`), still after a second of trying.
    #[error("nbd{index} is {holders}; detach it, or leave the choice of the device to the kernel")]
    Busy {
        /// The device's number.
        index: u32,
        /// Who has it.
        holders: Box<Holders>,
    },

    /// The size is no multiple of the block size: the kernel would cut the rest off without a word.
    #[error(
        "a size of {size} bytes is no multiple of the block size {block_size}: {rest} bytes would be lost; \
             {whole} bytes fit, or use a smaller block size"
    )]
    Size {
        /// The size asked for, in bytes.
        size: u64,
        /// The block size asked for, in bytes.
        block_size: u32,
        /// The bytes beyond the last whole block.
        rest: u64,
        /// The size rounded down, in bytes.
        whole: u64,
    },

    /// The kernel cannot do with such a block size.
    #[error(
        "a block size of {block_size} bytes is not possible: the kernel takes powers of two from 512 to {page_size}"
    )]
    BlockSize {
        /// The block size asked for, in bytes.
        block_size: u32,
        /// This machine's page size, in bytes.
        page_size: usize,
    },

    /// A number of lanes that the kernel would refuse.
    #[error(
        "{lanes} lanes are not possible: 1 to {max} are, and more than one only where the export offers multi-conn"
    )]
    Lanes {
        /// The lanes asked for.
        lanes: usize,
        /// The most that are possible here.
        max: usize,
    },

    /// A time that the kernel would cut off (it counts ticks in 32 bits).
    #[error("a {what} of {} s is longer than the kernel can count; the most is {} s", given.as_secs(), most.as_secs())]
    Time {
        /// Which one.
        what: &'static str,
        /// The time asked for.
        given: Duration,
        /// The longest that is possible.
        most: Duration,
    },

    /// The kernel said no for another reason.
    #[error("the kernel refused to {what}: {source}; `dmesg | grep nbd` tells more")]
    Refused {
        /// What was tried.
        what: String,
        /// Its answer.
        source: io::Error,
    },

    /// The talk with the kernel itself failed.
    #[error("netlink failed while trying to {what}: {reason}")]
    Netlink {
        /// What was tried.
        what: String,
        /// What the netlink library said.
        reason: String,
    },

    /// A system call failed that has no reason to.
    #[error("could not {what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// The system's answer.
        source: io::Error,
    },

    /// There is no such device.
    #[error("there is no nbd{index}; `ls -d /sys/block/nbd*` lists those that exist")]
    NoDevice {
        /// The number asked for.
        index: u32,
    },

    /// The device never showed its size.
    #[error("nbd{index} should have {want} bytes, and after {} ms /sys/block/nbd{index}/size says {found}; \
             was it detached meanwhile?", waited.as_millis())]
    NotReady {
        /// The device's number.
        index: u32,
        /// Its size, in bytes.
        want: u64,
        /// What the kernel shows, in bytes.
        found: u64,
        /// How long it was given.
        waited: Duration,
    },

    /// The kernel has the device, `/dev` has not.
    #[error("{} did not appear within {} ms, though the kernel has it; is /dev a devtmpfs here, or udev running? \
             (a container has neither)", node.display(), waited.as_millis())]
    NoNode {
        /// The missing file.
        node: PathBuf,
        /// How long it was given.
        waited: Duration,
    },

    /// Somebody uses the device, and the caller wanted it detached only if nobody does.
    #[error(
        "nbd{index} is {holders}; unmount and close it first, or force the detach (what is not written yet is lost)"
    )]
    InUse {
        /// The device's number.
        index: u32,
        /// Who uses it.
        holders: Box<Holders>,
    },

    /// The disconnect did not return: the serving process lives but reads nothing from its sockets.
    #[error("nbd{index} does not let go (given {} ms): {server} serves it and does not read its sockets (stopped?); \
             continue or kill it, then detach again", waited.as_millis())]
    Stuck {
        /// The device's number.
        index: u32,
        /// The serving task.
        server: String,
        /// How long it was given.
        waited: Duration,
    },
}

impl KernelError {
    /// An [`Io`](Self::Io) for a step named by the caller.
    pub(super) fn io(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::Io { what: what.into(), source: source.into() }
    }
}
