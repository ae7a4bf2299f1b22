//! A block device, or a file, of this machine, past the page cache: `/dev/nbd0` as fio measures it with `direct=1`, or a
//! local disk to compare with.
//!
//! One operation at a time goes by `pread` and `pwrite`, more of them through a `Ring`.

use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::io::{Errno, pread, pwrite};

use super::ring::Ring;
use super::{Dead, Done, Io, Lane, Rung, RungError, RungName, Shape};
use crate::bench::stages::Stamp;
use crate::bench::workload::{Op, pattern};

/// What memory and places have to be multiples of for direct I/O.
const ALIGN: u32 = 512;
/// Memory begins at multiples of this.
const PAGE: usize = 4096;
/// Bytes of a file that is made in a folder.
const MADE: u64 = 256 << 20;

/// A device or file.
pub struct DeviceRung {
    name: RungName,
    path: PathBuf,
    size: u64,
    /// A file of our own, that has no name any more.
    made: Option<File>,
}

impl DeviceRung {
    /// The device or file at `path`, as the rung `name`. In a folder a file is made, which is gone afterwards.
    ///
    /// # Errors
    /// [`RungError::Open`].
    pub fn new(name: RungName, path: &Path) -> Result<Self, RungError> {
        let failed = |source| RungError::Open { path: path.to_owned(), source };
        // Looked at first: to open a FIFO is to wait for somebody who writes.
        let kind = std::fs::metadata(path).map_err(failed)?.file_type();
        if kind.is_dir() && name == RungName::Disk {
            let file = make(path).map_err(failed)?;
            return Ok(Self { name, path: path.to_owned(), size: MADE, made: Some(file) });
        }
        if !kind.is_file() && !kind.is_block_device() {
            let what = match kind {
                kind if kind.is_dir() => "a folder",
                kind if kind.is_char_device() => "a character device",
                kind if kind.is_fifo() => "a FIFO",
                _ => "a socket",
            };
            let wanted = match name {
                RungName::Disk => "a disk, a file or a folder",
                _ => "a block device, such as /dev/nbd0",
            };
            return Err(RungError::WrongKind { path: path.to_owned(), what, rung: name, wanted });
        }
        let mut file = File::open(path).map_err(failed)?;
        let size = file.seek(SeekFrom::End(0)).map_err(failed)?;
        Ok(Self { name, path: path.to_owned(), size, made: None })
    }

    /// Whether writes to it harm nobody.
    pub fn is_ours(&self) -> bool {
        self.made.is_some()
    }

    fn file(&self, writes: bool) -> std::io::Result<File> {
        // A name that leads to it for as long as it is open.
        let own =
            self.made.as_ref().map(|file| format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file)));
        let path = own.as_ref().map_or(self.path.as_path(), Path::new);
        let mut flags = OFlags::DIRECT;
        // On a block device: refused while anything is mounted from it.
        let block = std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_block_device());
        flags.set(OFlags::EXCL, writes && block);
        OpenOptions::new().read(true).write(writes).custom_flags(flags.bits() as i32).open(path)
    }
}

/// A file without a name, full of what is no zeroes.
fn make(folder: &Path) -> std::io::Result<File> {
    use std::io::Write;
    let mut file = tempfile::tempfile_in(folder)?;
    let chunk = pattern(1 << 20);
    for _ in 0..MADE / chunk.len() as u64 {
        file.write_all(&chunk)?;
    }
    file.sync_all()?;
    Ok(file)
}

impl Rung for DeviceRung {
    fn name(&self) -> RungName {
        self.name
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn granule(&self) -> u32 {
        ALIGN
    }

    fn open(&mut self, shape: &Shape) -> Result<Box<dyn Lane>, RungError> {
        let file = self.file(shape.writes).map_err(|source| {
            if source.kind() == std::io::ErrorKind::ReadOnlyFilesystem || source.raw_os_error() == Some(30) {
                return RungError::ReadOnly(self.path.display().to_string());
            }
            RungError::Open { path: self.path.clone(), source }
        })?;
        if shape.depth > 1 {
            let ring = Ring::new(file, shape.depth, shape.block).map_err(RungError::Ring)?;
            return Ok(Box::new(Deep(ring)));
        }
        Ok(Box::new(Single { file, buffer: Aligned::new(shape.block as usize), done: None }))
    }
}

/// Memory that begins at a multiple of a page.
struct Aligned {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl Aligned {
    fn new(length: usize) -> Self {
        let bytes = pattern(length + PAGE);
        let start = bytes.as_ptr().align_offset(PAGE).min(PAGE);
        Self { bytes, start, length }
    }

    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.length]
    }
}

/// One operation at a time.
struct Single {
    file: File,
    buffer: Aligned,
    done: Option<Done>,
}

impl Lane for Single {
    fn prepare(&mut self) {
        let fresh = pattern(self.buffer.length);
        self.buffer.as_mut().copy_from_slice(&fresh);
    }

    fn submit(&mut self, io: Io) -> Result<(), Dead> {
        let buffer = self.buffer.as_mut();
        let moved = match io.op {
            Op::Read => pread(&self.file, &mut *buffer, io.offset),
            Op::Write => pwrite(&self.file, buffer, io.offset),
        };
        let at = Instant::now();
        let failed = failure(moved.map(|moved| moved as u32), io.length);
        self.done = Some(Done { tag: io.tag, at, failed, stamp: Stamp::default() });
        Ok(())
    }

    fn reap(&mut self, done: &mut Vec<Done>, _: Instant) -> Result<(), Dead> {
        done.extend(self.done.take());
        Ok(())
    }
}

/// Why an operation of `length` bytes failed, if it did.
fn failure(moved: Result<u32, Errno>, length: u32) -> Option<String> {
    match moved {
        Ok(moved) if moved == length => None,
        Ok(moved) => Some(format!("{moved} of {length} bytes were moved")),
        Err(error) => Some(std::io::Error::from(error).to_string()),
    }
}

/// Many operations at once.
struct Deep(Ring);

impl Lane for Deep {
    fn prepare(&mut self) {
        self.0.fill(&pattern(self.0.block() as usize));
    }

    fn submit(&mut self, io: Io) -> Result<(), Dead> {
        let taken = self.0.push(io.op == Op::Write, io.offset, io.tag);
        if taken { Ok(()) } else { Err(Dead("the ring took no operation".into())) }
    }

    fn reap(&mut self, done: &mut Vec<Done>, until: Instant) -> Result<(), Dead> {
        let mut next = self.0.reap();
        if next.is_none() {
            let left = until.saturating_duration_since(Instant::now()).max(Duration::from_micros(1));
            self.0.wait(left).map_err(|error| Dead(format!("the ring failed: {error}")))?;
            next = self.0.reap();
        }
        // One at a time, as fio does: its place is filled again before the next one is looked at, so that there are always
        // as many under way as were asked for.
        if let Some((tag, moved)) = next {
            let failed = failure(moved, self.0.block());
            done.push(Done { tag, at: Instant::now(), failed, stamp: Stamp::default() });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::rungs::PATIENCE;

    fn shape(depth: u32, writes: bool) -> Shape {
        Shape { depth, block: 4096, writes, stages: false }
    }

    /// Does all of them, up to `depth` at once.
    fn drive(lane: &mut dyn Lane, op: Op, depth: u32) -> usize {
        lane.prepare();
        let mut done = Vec::with_capacity(depth as usize);
        for tag in 0..depth {
            lane.submit(Io { op, offset: u64::from(tag) * 4096, length: 4096, tag }).unwrap();
        }
        let deadline = Instant::now() + PATIENCE;
        while done.len() < depth as usize && Instant::now() < deadline {
            lane.reap(&mut done, deadline).unwrap();
        }
        assert!(done.iter().all(|done| done.failed.is_none()), "{done:?}");
        done.len()
    }

    #[test]
    fn files_are_read_and_written_one_at_a_time_and_many_at_once() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, vec![7; 64 << 10]).unwrap();
        let mut rung = DeviceRung::new(RungName::Disk, &path).unwrap();
        assert_eq!((rung.size(), rung.is_ours()), (64 << 10, false));
        for depth in [1, 8] {
            let mut lane = match rung.open(&shape(depth, false)) {
                Err(error @ RungError::Ring(_)) => return eprintln_skip(&error),
                lane => lane.unwrap(),
            };
            assert_eq!(drive(&mut *lane, Op::Read, depth), depth as usize);
        }
        assert_eq!(std::fs::read(&path).unwrap(), vec![7; 64 << 10], "reads change nothing");
        for depth in [1, 8] {
            let mut lane = rung.open(&shape(depth, true)).unwrap();
            assert_eq!(drive(&mut *lane, Op::Write, depth), depth as usize);
            let bytes = std::fs::read(&path).unwrap();
            assert_eq!(bytes[..depth as usize * 4096], pattern(4096).repeat(depth as usize));
            assert!(bytes[depth as usize * 4096..].iter().all(|&byte| byte == 7));
        }
    }

    fn eprintln_skip(error: &RungError) {
        use std::io::Write;
        let _ = writeln!(std::io::stderr(), "SKIP: {error}");
    }

    #[test]
    fn what_is_no_device_is_not_opened() {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("fifo");
        mknodat(CWD, &fifo, FileType::Fifo, Mode::RWXU, 0).unwrap();
        for (name, path, part) in [
            (RungName::Device, fifo.as_path(), "a FIFO; --device takes a block device"),
            (RungName::Disk, &fifo, "a FIFO; --disk takes a disk, a file or a folder"),
            (RungName::Device, folder.path(), "a folder; --device"),
            (RungName::Disk, Path::new("/dev/zero"), "a character device; --disk"),
        ] {
            let error = DeviceRung::new(name, path).err().unwrap().to_string();
            assert!(error.contains(part), "{error}");
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing was made");
    }

    #[test]
    fn what_is_not_there_is_named() {
        let error = DeviceRung::new(RungName::Device, Path::new("/no/such")).err().unwrap().to_string();
        assert!(error.contains("/no/such"), "{error}");
    }
}
