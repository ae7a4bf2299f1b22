//! Direct I/O, around the page cache: whether a file can have it, and what it must be aligned to.

use std::fmt;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, OFlags, StatxFlags, fcntl_getfl, fcntl_setfl, fstatfs, statx};
use rustix::io::pread;

use super::work::BOUNCE;

/// The least that offsets are ever multiples of.
const LEAST_BLOCK: u32 = 512;

/// File systems that keep files in memory: direct I/O means nothing there (`linux/magic.h`).
const IN_MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58f6];

/// Why there is no direct I/O.
pub(super) enum Cannot {
    /// The engine has none.
    Engine,
    /// There is no disk behind the page cache.
    InMemory,
    /// The file system refuses.
    FileSystem,
    /// It wants more than slots are aligned to.
    Alignment(u32),
    /// The end of the file is no block.
    Size {
        /// Bytes of the file.
        size: u64,
        /// What it has to be a multiple of.
        align: u32,
    },
}

impl fmt::Display for Cannot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Engine => f.write_str("only io_uring does that here"),
            Self::InMemory => f.write_str("its file system is in memory"),
            Self::FileSystem => f.write_str("its file system does not allow it"),
            Self::Alignment(align) => write!(f, "it wants memory aligned to {align} bytes"),
            Self::Size { size, align } => {
                write!(f, "its {size} bytes are no multiple of {align}, as its file system wants it")
            }
        }
    }
}

/// Whether its file system keeps files in memory.
pub(super) fn is_in_memory(file: &OwnedFd) -> bool {
    fstatfs(file).is_ok_and(|system| IN_MEMORY.contains(&(system.f_type as u64)))
}

/// Turns direct I/O on and finds out the alignment that it needs.
pub(super) fn turn_on(file: &OwnedFd, size: u64) -> Result<u32, Cannot> {
    let told = told_alignment(file)?;
    let flags = fcntl_getfl(file).map_err(|_| Cannot::FileSystem)?;
    fcntl_setfl(file, flags | OFlags::DIRECT).map_err(|_| Cannot::FileSystem)?;
    let align = told.or_else(|| tried_alignment(file)).ok_or(Cannot::FileSystem).and_then(|align| match size
        .is_multiple_of(u64::from(align))
    {
        true => Ok(align),
        false => Err(Cannot::Size { size, align }),
    });
    if align.is_err() {
        fcntl_setfl(file, flags).map_err(|_| Cannot::FileSystem)?;
    }
    align
}

/// What the kernel says, which it does since 6.1.
fn told_alignment(file: &OwnedFd) -> Result<Option<u32>, Cannot> {
    let Ok(told) = statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) else { return Ok(None) };
    if told.stx_mask & StatxFlags::DIOALIGN.bits() == 0 {
        return Ok(None);
    }
    let (memory, offset) = (told.stx_dio_mem_align, told.stx_dio_offset_align);
    match (memory, offset) {
        (0, _) | (_, 0) => Err(Cannot::FileSystem),
        // Slots are aligned to pages, and pieces of them to the offset's alignment.
        _ if memory as usize > rustix::param::page_size() => Err(Cannot::Alignment(memory)),
        _ if !offset.max(memory).is_power_of_two() || offset.max(memory) > BOUNCE => {
            Err(Cannot::Alignment(offset))
        }
        _ => Ok(Some(offset.max(memory).max(LEAST_BLOCK))),
    }
}

/// The least alignment with which a read works. There is at least one block to read.
fn tried_alignment(file: &OwnedFd) -> Option<u32> {
    const PAGE: usize = 4096;
    let mut room = vec![0u8; 2 * PAGE];
    let start = room.as_ptr().align_offset(PAGE);
    [LEAST_BLOCK, PAGE as u32].into_iter().find(|&align| {
        room.get_mut(start..start + align as usize).is_some_and(|buffer| pread(file, buffer, 0).is_ok())
    })
}
