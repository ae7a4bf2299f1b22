//! The two ioctls of a block device, and the only unsafe code of this front end.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::io::Errno;
use rustix::ioctl::{self, NoArg, Opcode};

/// `BLKRRPART` of `linux/fs.h`: read the partition table again.
const READ_TABLE: Opcode = 0x125f;
/// `BLKFLSBUF`: write back and drop the page cache.
const DROP_CACHE: Opcode = 0x1261;

/// Reads the partition table again. `Ok(false)` when this device can have no partitions (`nbd max_part=0`).
///
/// # Errors
/// `EBUSY` while someone has it, or one of its partitions, for itself.
pub(super) fn read_table(device: &File) -> io::Result<bool> {
    match run::<READ_TABLE>(device) {
        Ok(()) => Ok(true),
        Err(Errno::INVAL) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Drops what the page cache holds of the device.
pub(super) fn drop_cache(device: &File) -> io::Result<()> {
    Ok(run::<DROP_CACHE>(device)?)
}

/// Opens a device node for reading.
pub(super) fn open(node: &Path) -> io::Result<File> {
    File::open(node)
}

#[expect(unsafe_code, reason = "rustix has no wrapper for these block-device ioctls")]
fn run<const OPCODE: Opcode>(device: &File) -> Result<(), Errno> {
    // SAFETY: BLKRRPART and BLKFLSBUF, the only opcodes that this module passes, take no argument and touch no memory of
    // this process; on a file that is no block device they fail with ENOTTY.
    unsafe { ioctl::ioctl(device, NoArg::<OPCODE>::new()) }
}
