//! Finds the holes of a file: SEEK_DATA and SEEK_HOLE, put together to extents.

use std::os::fd::AsFd;

use kaeru_common::error::Status;
use kaeru_common::units::ByteRange;
use rustix::fs::{SeekFrom, fstat, seek};
use rustix::io::Errno;

use super::engine::Extent;

/// Adds the extents of `range`, which is not empty, to `out`: at least one, at most `limit`, no two neighbours alike.
///
/// # Errors
/// [`Status::Io`] where the file ends before the range does, or cannot be asked.
pub(super) fn find(
    file: impl AsFd,
    range: ByteRange,
    limit: usize,
    out: &mut Vec<Extent>,
) -> Result<(), Status> {
    let size = fstat(&file).map_err(|_| Status::Io)?.st_size;
    if u64::try_from(size).is_ok_and(|size| size < range.end()) {
        return Err(Status::Io);
    }
    let most = out.len() + limit.max(1);
    let mut at = range.offset();
    while at < range.end() && out.len() < most {
        let data = next(&file, SeekFrom::Data(at), range.end())?;
        if data > at {
            out.push(Extent { length: data - at, allocated: false });
        }
        at = data;
        if at < range.end() && out.len() < most {
            // At least a byte, since a hole may be punched between the two questions.
            let hole = next(&file, SeekFrom::Hole(at), range.end())?.max(at + 1);
            out.push(Extent { length: hole - at, allocated: true });
            at = hole;
        }
    }
    Ok(())
}

/// The next data or hole, or `end` if it is not before that.
fn next(file: impl AsFd, from: SeekFrom, end: u64) -> Result<u64, Status> {
    match seek(file, from) {
        Ok(found) => Ok(found.min(end)),
        Err(Errno::NXIO) => Ok(end),
        // A file system that knows no holes: all is data.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => match from {
            SeekFrom::Data(at) => Ok(at),
            _ => Ok(end),
        },
        Err(_) => Err(Status::Io),
    }
}
