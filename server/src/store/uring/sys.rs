//! System calls that no safe wrapper has: the discard of a block device, and reads and writes straight in and out of
//! memory that is never lent as a slice.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use kaeru_common::fabric::buffer::Slot;
use kaeru_common::units::ByteRange;
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Setter, ioctl, opcode};

/// `BLKDISCARD` of `linux/fs.h`.
const BLKDISCARD: Opcode = opcode::none(0x12, 119);

/// Tells a block device that it need not keep the bytes of `range`, which are whole sectors.
///
/// # Errors
/// The device's; `EOPNOTSUPP` where it knows no such thing.
pub(in super::super) fn discard(file: impl AsFd, range: ByteRange) -> Result<(), Errno> {
    // SAFETY: needed since no crate of ours wraps BLKDISCARD. It reads two u64, offset and length, through its pointer
    // and writes nothing, which is what `Setter` hands over. On any other file it fails with ENOTTY.
    unsafe { ioctl(file, Setter::<BLKDISCARD, [u64; 2]>::new([range.offset(), range.length()])) }
}

/// Reads the start of `range` into `slot` from `at`, as far as the page cache has it: `EAGAIN` where it has nothing.
///
/// # Errors
/// The file's; `EOPNOTSUPP` where its file system cannot say what is cached.
pub(super) fn read_cached(file: &OwnedFd, slot: &mut Slot, at: u32, range: ByteRange) -> Result<u32, Errno> {
    let iovec = iovec(slot, at, range)?;
    // SAFETY: needed to read straight into a slot. The vector is one checked stretch of it, which nobody else has.
    let bytes = unsafe {
        libc::preadv2(file.as_raw_fd(), &raw const iovec, 1, range.offset() as i64, libc::RWF_NOWAIT)
    };
    told(bytes)
}

/// Writes `range` from `slot`, from `at`, to the page cache.
///
/// # Errors
/// The file's.
pub(super) fn write_cached(file: &OwnedFd, slot: &mut Slot, at: u32, range: ByteRange) -> Result<u32, Errno> {
    let iovec = iovec(slot, at, range)?;
    // SAFETY: as in `read_cached`; the kernel only reads the slot.
    let bytes = unsafe { libc::pwritev2(file.as_raw_fd(), &raw const iovec, 1, range.offset() as i64, 0) };
    told(bytes)
}

/// The stretch of a slot that `range` goes to or comes from, which must have room.
fn iovec(slot: &mut Slot, at: u32, range: ByteRange) -> Result<libc::iovec, Errno> {
    let room = u64::from(slot.size().saturating_sub(at));
    if range.length() > room {
        return Err(Errno::FAULT);
    }
    let iov_base = (slot.address() + u64::from(at)) as *mut libc::c_void;
    Ok(libc::iovec { iov_base, iov_len: range.length() as usize })
}

fn told(bytes: isize) -> Result<u32, Errno> {
    u32::try_from(bytes).map_err(|_| Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
}
