//! System calls that no safe wrapper has: the discard of a block device, and reads and writes at an offset straight in
//! and out of a slot.

use std::os::fd::AsFd;

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
