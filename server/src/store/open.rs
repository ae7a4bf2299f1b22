//! Opens the file or disk of an export: what must be true of it, who else may use it, and how it can be reached.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kaeru_common::units::Size;
use rustix::fs::{
    FallocateFlags, FlockOperation, OFlags, SeekFrom, fallocate, flock, fstatvfs, ioctl_blksszget, seek,
};
use rustix::io::Errno;

use super::backing::Backing;
use super::direct::{self, Cannot};
use super::fault::Faults;
use super::in_use::{Holder, System};
use super::open_error::OpenError;
use super::options::{Direct, EngineChoice, StagedOptions, Target};
use super::range_lock::RangeLock;
use super::staged::{Kind, Staged};
use super::syncs::Syncs;
use super::uring;

/// How long somebody else who is known to be in the way is waited for.
const PATIENCE: Duration = Duration::from_secs(1);

/// The same for somebody who cannot be named, as a server that was killed: the kernel takes its rings apart, which keep
/// its files and disks open, after the process is gone and once what they had under way is done.
const LONG_PATIENCE: Duration = Duration::from_secs(5);

/// The logical block unless told otherwise.
const BLOCK: u32 = 512;

/// The largest logical block.
const MOST_BLOCK: u32 = 65_536;

impl Target {
    fn wanted(self) -> &'static str {
        match self {
            Self::File => "a regular file; --disk exports a block device, --file a file",
            Self::Disk => "a block device; --file exports a file, --disk a block device",
        }
    }
}

/// See [`Staged::open`].
pub(super) fn open(name: &str, options: &StagedOptions) -> Result<Staged, OpenError> {
    Opening { name, options, path: &options.path, system: System::default() }.run()
}

struct Opening<'a> {
    name: &'a str,
    options: &'a StagedOptions,
    path: &'a Path,
    system: System,
}

impl Opening<'_> {
    fn run(self) -> Result<Staged, OpenError> {
        let created = self.create()?;
        let opened = self.finish();
        if opened.is_err() && created {
            // It was empty a moment ago, and a leftover would be in the way of the next try.
            let _ = fs::remove_file(self.path);
        }
        opened
    }

    fn finish(&self) -> Result<Staged, OpenError> {
        self.look()?;
        let (file, read_only) = self.open_file()?;
        let metadata = file.metadata().map_err(|source| self.cannot_open(source))?;
        self.check_kind(&metadata)?;
        if !self.options.force {
            self.claim(&file, &metadata, read_only)?;
        }
        let file = OwnedFd::from(file);
        let sector = self.sector(&file)?;
        let block = self.block(sector)?;
        let size = self.size(&file, block)?;
        let engine = self.engine(&file)?;
        let align = self.align(&file, size, engine)?;
        let faults = (!self.options.faults.is_empty())
            .then(|| Arc::new(Faults::new(self.name, self.options.faults.clone())));
        let backing = Backing {
            file,
            target: self.options.target,
            path: self.path.to_owned(),
            size,
            block,
            align,
            sector,
            read_only,
            lock: RangeLock::default(),
            syncs: Syncs::default(),
            faults,
            learned: super::backing::Learned::default(),
        };
        Ok(Staged { backing: Arc::new(backing), engine })
    }

    /// Creates the file, if that is wanted and there is none; whether it did.
    fn create(&self) -> Result<bool, OpenError> {
        let Some(size) = self.options.create else { return Ok(false) };
        let failed = |source: io::Error| {
            let cure = match source.raw_os_error() {
                Some(libc::ENOSPC) => {
                    "; the file system has not so much room: choose a smaller size or leave reserve out"
                }
                Some(libc::EFBIG) => "; the file system has no files as large as that",
                Some(libc::ENOENT) => "; create its folder first",
                Some(libc::EOPNOTSUPP) => "; this file system cannot reserve room: leave reserve out",
                _ => "",
            };
            OpenError::Create { path: self.path.to_owned(), size: Size(size), source, cure }
        };
        let file = match File::options().read(true).write(true).create_new(true).mode(0o600).open(self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return self.check_created(size).map(|()| false);
            }
            Err(error) => return Err(failed(error)),
        };
        let sized = file.set_len(size).and_then(|()| match self.options.reserve {
            // Asked first, since to find it out would fill the file system for a while.
            true if has_less_room(&file, size) => Err(io::Error::from_raw_os_error(libc::ENOSPC)),
            true => Ok(fallocate(&file, FallocateFlags::empty(), 0, size)?),
            false => Ok(()),
        });
        if let Err(error) = sized {
            let _ = fs::remove_file(self.path);
            return Err(failed(error));
        }
        tracing::info!("created {} with {}", self.path.display(), Size(size));
        Ok(true)
    }

    /// A file that was created in an earlier life must have the size that is asked for now.
    fn check_created(&self, wanted: u64) -> Result<(), OpenError> {
        let metadata = fs::metadata(self.path).map_err(|source| self.cannot_open(source))?;
        let found = metadata.len();
        if found == wanted || !metadata.is_file() {
            return Ok(());
        }
        Err(OpenError::OtherSize { path: self.path.to_owned(), found: Size(found), wanted: Size(wanted) })
    }

    /// Looks before opening: to open a pipe or a tape does something.
    fn look(&self) -> Result<(), OpenError> {
        match fs::metadata(self.path) {
            Ok(metadata) => self.check_kind(&metadata),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(OpenError::Missing {
                path: self.path.to_owned(),
                cure: match self.options.target {
                    Target::File => ", or let it be created by create=SIZE, such as create=10G",
                    Target::Disk => "; lsblk lists them",
                },
            }),
            Err(error) => Err(self.cannot_open(error)),
        }
    }

    fn check_kind(&self, metadata: &Metadata) -> Result<(), OpenError> {
        let kind = metadata.file_type();
        let right = match self.options.target {
            Target::File => kind.is_file(),
            Target::Disk => kind.is_block_device(),
        };
        if right {
            return Ok(());
        }
        let found = match kind {
            kind if kind.is_file() => "a regular file",
            kind if kind.is_dir() => "a folder",
            kind if kind.is_block_device() => "a block device",
            kind if kind.is_char_device() => "a character device",
            kind if kind.is_fifo() => "a pipe",
            kind if kind.is_socket() => "a socket",
            _ => "something else",
        };
        let (path, wanted) = (self.path.to_owned(), self.options.target.wanted());
        Err(OpenError::Wrong { path, found, wanted })
    }

    /// The open file, and whether it can only be read.
    fn open_file(&self) -> Result<(File, bool), OpenError> {
        // A disk that the kernel itself holds is refused even where /proc and /sys do not tell who does.
        let exclusive = self.options.target == Target::Disk && !self.options.force;
        let flags = if exclusive { OFlags::EXCL } else { OFlags::empty() };
        let open = |write| {
            let mut options = File::options();
            options.read(true).write(write).custom_flags(flags.bits() as i32);
            patiently(
                || options.open(self.path),
                |error| (error.raw_os_error() == Some(libc::EBUSY)).then(|| self.disk_holder()),
            )
        };
        if !self.options.read_only && !self.is_marked_read_only() {
            match open(true) {
                Ok(file) => return Ok((file, false)),
                Err(error) if is_refused_write(&error) => {
                    tracing::info!(
                        "{} is exported read-only: it cannot be written to ({error})",
                        self.path.display()
                    );
                }
                Err(error) => return Err(self.cannot_open(error)),
            }
        }
        Ok((open(false).map_err(|source| self.cannot_open(source))?, true))
    }

    /// Whether its owner or its driver says that it is read-only, which would not stop root.
    fn is_marked_read_only(&self) -> bool {
        let Ok(metadata) = fs::metadata(self.path) else { return false };
        match self.options.target {
            Target::File => metadata.mode() & 0o222 == 0,
            Target::Disk => {
                let (major, minor) = (rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev()));
                fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/ro"))
                    .is_ok_and(|text| text.trim() == "1")
            }
        }
    }

    fn disk_holder(&self) -> Option<Holder> {
        fs::metadata(self.path).ok().and_then(|metadata| self.system.disk_holder(metadata.rdev()))
    }

    fn cannot_open(&self, source: io::Error) -> OpenError {
        let path = self.path.to_owned();
        match source.raw_os_error() {
            Some(libc::EBUSY) => {
                let holder = self.disk_holder().map_or_else(
                    || "another program or the kernel holds it (see lsblk and fuser)".to_owned(),
                    |holder| holder.to_string(),
                );
                OpenError::InUse { path, holder }
            }
            Some(libc::EACCES | libc::EPERM) => OpenError::Open {
                path,
                source,
                cure: "; run kaerud as a user who may read and write it (for a disk: root, or the group disk)",
            },
            _ => OpenError::Open { path, source, cure: "" },
        }
    }

    /// Makes sure that nobody else uses it, and that no second server does later.
    fn claim(&self, file: &File, metadata: &Metadata, read_only: bool) -> Result<(), OpenError> {
        let in_use =
            |holder: Holder| OpenError::InUse { path: self.path.to_owned(), holder: holder.to_string() };
        let holder = match self.options.target {
            Target::Disk => self.system.disk_holder(metadata.rdev()),
            // Others may read it, such as a loop device for a read-only mount.
            Target::File if read_only => None,
            Target::File => self.system.file_holder(metadata),
        };
        if let Some(holder) = holder {
            return Err(in_use(holder));
        }
        if self.options.target == Target::Disk {
            return Ok(());
        }
        let mode = match read_only {
            true => FlockOperation::NonBlockingLockShared,
            false => FlockOperation::NonBlockingLockExclusive,
        };
        let lock = patiently(
            || flock(file, mode),
            |errno| (*errno == Errno::WOULDBLOCK).then(|| self.system.lock_holder(metadata)),
        );
        match lock {
            Err(Errno::WOULDBLOCK) => {
                let holder = self.system.lock_holder(metadata);
                let unknown = || "another program has locked it".to_owned();
                let holder = holder.map_or_else(unknown, |holder| holder.to_string());
                Err(OpenError::InUse { path: self.path.to_owned(), holder })
            }
            // Some network file systems know no locks.
            _ => Ok(()),
        }
    }

    /// What may be cleared at once must be multiples of this.
    fn sector(&self, file: &OwnedFd) -> Result<u32, OpenError> {
        match self.options.target {
            Target::File => Ok(1),
            Target::Disk => ioctl_blksszget(file).map_err(|errno| self.cannot_open(errno.into())),
        }
    }

    fn block(&self, sector: u32) -> Result<u32, OpenError> {
        let least = BLOCK.max(sector);
        let block = self.options.block.unwrap_or(least);
        let failed = |reason| Err(OpenError::Block { path: self.path.to_owned(), block, reason });
        if !block.is_power_of_two() || !(BLOCK..=MOST_BLOCK).contains(&block) {
            return failed(format!("a power of two from {BLOCK} to {MOST_BLOCK} is possible"));
        }
        if block < least {
            return failed(format!("its sectors have {sector} bytes; use block={least}"));
        }
        Ok(block)
    }

    /// The size of the export: that of the file, rounded down to whole blocks.
    fn size(&self, file: &OwnedFd, block: u32) -> Result<u64, OpenError> {
        let found = seek(file, SeekFrom::End(0)).map_err(|errno| self.cannot_open(errno.into()))?;
        let rest = found % u64::from(block);
        if found == rest {
            return Err(OpenError::TooSmall { path: self.path.to_owned(), size: Size(found), block });
        }
        if rest > 0 {
            tracing::warn!(
                "{} has {found} bytes, which is no multiple of its block of {block}: {} bytes are exported, the last {rest} \
                 are not",
                self.path.display(),
                found - rest
            );
        }
        Ok(found - rest)
    }

    fn engine(&self, file: &OwnedFd) -> Result<Kind, OpenError> {
        if self.options.engine == EngineChoice::File {
            return Ok(Kind::File);
        }
        let Err(error) = uring::probe(file) else { return Ok(Kind::Uring) };
        let reason = match error.raw_os_error() {
            Some(libc::ENOSYS) => "this kernel has none".to_owned(),
            Some(libc::EPERM | libc::EACCES) => {
                format!("{error}: kernel.io_uring_disabled or a container forbids it")
            }
            _ => error.to_string(),
        };
        if self.options.engine == EngineChoice::Uring {
            return Err(OpenError::Uring { path: self.path.to_owned(), reason });
        }
        tracing::warn!("{} is reached by plain system calls, not io_uring: {reason}", self.path.display());
        Ok(Kind::File)
    }

    /// Turns direct I/O on where it is wanted and possible: what offsets and lengths must be multiples of, or 1.
    fn align(&self, file: &OwnedFd, size: u64, engine: Kind) -> Result<u32, OpenError> {
        let reason = match (self.options.direct, engine) {
            (Direct::Off, _) => return Ok(1),
            (_, Kind::File) => Cannot::Engine,
            _ if self.options.target == Target::File && direct::is_in_memory(file) => Cannot::InMemory,
            _ => match direct::turn_on(file, size) {
                Ok(align) => return Ok(align),
                Err(reason) => reason,
            },
        };
        if self.options.direct == Direct::On {
            return Err(OpenError::Direct { path: self.path.to_owned(), reason: reason.to_string() });
        }
        tracing::debug!("{} goes through the page cache: {reason}", self.path.display());
        Ok(1)
    }
}

/// Whether the file system of `file` has no room for `size` bytes.
fn has_less_room(file: &File, size: u64) -> bool {
    fstatvfs(file).is_ok_and(|system| system.f_bavail.saturating_mul(system.f_frsize) < size)
}

/// Tries for a while, as long as somebody else is in the way. `in_the_way` says of an error whether that is so, and who it
/// is as far as that is known.
fn patiently<T, E>(
    attempt: impl Fn() -> Result<T, E>,
    in_the_way: impl Fn(&E) -> Option<Option<Holder>>,
) -> Result<T, E> {
    let start = Instant::now();
    loop {
        let error = match attempt() {
            Ok(done) => return Ok(done),
            Err(error) => error,
        };
        let patience = match in_the_way(&error) {
            Some(Some(_)) => PATIENCE,
            Some(None) => LONG_PATIENCE,
            None => return Err(error),
        };
        if start.elapsed() >= patience {
            return Err(error);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Whether an error of opening for writing says that reading may still be possible.
fn is_refused_write(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM | libc::EROFS | libc::ETXTBSY))
}
