//! A file of a test's own, the ways to reach it, and a lane that waits as a real one does.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kaeru_common::error::Status;
use kaeru_common::fabric::buffer::SlotPool;
use kaeru_common::units::ByteRange;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tempfile::TempDir;

use super::super::{
    Action, Direct, Done, Engine, EngineChoice, Job, OpenError, Staged, StagedOptions, Target,
};

/// How a file is reached in a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Way {
    pub(super) engine: EngineChoice,
    /// For direct I/O: what everything must be aligned to. More than the disk wants is always right.
    pub(super) align: Option<u32>,
    /// Whether every transfer is made short.
    pub(super) short: bool,
}

pub(super) const FILE: Way = Way { engine: EngineChoice::File, align: None, short: false };
pub(super) const BUFFERED: Way = Way { engine: EngineChoice::Uring, align: None, short: false };
pub(super) const DIRECT: Way = Way { engine: EngineChoice::Uring, align: Some(512), short: false };
pub(super) const DIRECT_4K: Way = Way { engine: EngineChoice::Uring, align: Some(4096), short: false };

/// All of them.
pub(super) const WAYS: [Way; 7] = [
    FILE,
    BUFFERED,
    DIRECT,
    DIRECT_4K,
    Way { short: true, ..FILE },
    Way { short: true, ..BUFFERED },
    Way { short: true, ..DIRECT_4K },
];

/// A folder on a real file system: that of the build.
pub(super) fn folder() -> TempDir {
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target");
    fs::create_dir_all(&target).unwrap();
    tempfile::tempdir_in(target).unwrap()
}

/// A folder in memory, if there is one.
pub(super) fn folder_in_memory() -> Option<TempDir> {
    tempfile::tempdir_in("/dev/shm").ok()
}

/// Says that a part of a test cannot run here.
pub(super) fn skip(test: &str, reason: &str) {
    use std::io::Write;
    let line = format!("SKIP {test}: {reason}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
    if let Some(path) = std::env::var_os("KAERU_SKIPPED") {
        File::options().append(true).create(true).open(path).unwrap().write_all(line.as_bytes()).unwrap();
    }
}

/// A file of this size in `folder`.
pub(super) fn sized(folder: &TempDir, name: &str, size: u64) -> PathBuf {
    let path = folder.path().join(name);
    File::create(&path).unwrap().set_len(size).unwrap();
    path
}

/// What a way means for a file.
pub(super) fn options(path: &Path, way: Way) -> StagedOptions {
    let mut options = StagedOptions::new(Target::File, path);
    options.engine = way.engine;
    options.direct = if way.align.is_some() { Direct::On } else { Direct::Off };
    if way.short {
        options.faults = ["read:short", "write:short"].map(|rule| rule.parse().unwrap()).into();
    }
    options
}

/// A file reached in a way; `None`, and a word about it, where this machine lacks io_uring or direct I/O.
pub(super) fn open(path: &Path, way: Way) -> Option<Staged> {
    match Staged::open("test", &options(path, way)) {
        Ok(mut staged) => {
            if let Some(align) = way.align {
                // More than the file system wants is always right.
                let backing = Arc::get_mut(&mut staged.backing).unwrap();
                backing.align = backing.align.max(align);
            }
            Some(staged)
        }
        Err(error @ (OpenError::Uring { .. } | OpenError::Direct { .. })) => {
            skip("stores", &error.to_string());
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// One lane: an engine and its slots.
pub(super) struct Lane {
    pub(super) engine: Engine,
    pub(super) pool: SlotPool,
    done: Vec<Done>,
}

/// What is done to a range, with the bytes of a write.
pub(super) type Task<'a> = (Action, ByteRange, &'a [u8]);

impl Lane {
    pub(super) fn new(staged: &Staged) -> Self {
        Self::with_slots(staged, 8, 128 << 10)
    }

    pub(super) fn with_slots(staged: &Staged, slots: u32, size: u32) -> Self {
        let pool = SlotPool::new(slots, size).unwrap();
        let engine = staged.engine(&pool).unwrap();
        Self { engine, pool, done: Vec::with_capacity(3) }
    }

    /// Submits all tasks at once, and waits for all. The bytes are those that were read.
    pub(super) fn all(&mut self, tasks: &[Task<'_>]) -> Vec<Result<Vec<u8>, Status>> {
        for (tag, &(action, range, bytes)) in tasks.iter().enumerate() {
            let slot = matches!(action, Action::Read | Action::Write { .. }).then(|| {
                let mut slot = self.pool.take().unwrap();
                slot.fill(0, slot.size() as usize, 0xee);
                slot.copy_from(0, bytes);
                slot
            });
            self.engine.submit(Job { tag: tag as u32, action, range, slot }).unwrap();
        }
        self.engine.kick();
        let mut results: Vec<_> = tasks.iter().map(|_| None).collect();
        while results.iter().any(Option::is_none) {
            for done in self.wait() {
                let range = tasks[done.tag as usize].1;
                let bytes = done.result.map(|length| {
                    let mut bytes = vec![0; length as usize];
                    if let Some(slot) = &done.slot {
                        assert_eq!(u64::from(length), range.length());
                        slot.copy_to(0, &mut bytes);
                    }
                    bytes
                });
                assert!(results[done.tag as usize].replace(bytes).is_none(), "answered twice");
            }
        }
        assert_eq!(self.engine.in_flight(), 0);
        results.into_iter().flatten().collect()
    }

    /// Polls until there is something, asleep in between.
    pub(super) fn wait(&mut self) -> Vec<Done> {
        loop {
            let anything = self.engine.poll(&mut self.done);
            if !self.done.is_empty() {
                assert!(self.done.len() <= 3);
                return self.done.drain(..).collect();
            }
            if !anything {
                self.sleep();
            }
        }
    }

    fn sleep(&self) {
        let patience = Timespec::try_from(Duration::from_secs(20)).unwrap();
        let mut fds = [PollFd::from_borrowed_fd(self.engine.wait_fd(), PollFlags::IN)];
        match poll(&mut fds, Some(&patience)) {
            Ok(0) => panic!("a wake-up was lost"),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("{error}"),
        }
    }

    pub(super) fn one(&mut self, action: Action, range: ByteRange, bytes: &[u8]) -> Result<Vec<u8>, Status> {
        self.all(&[(action, range, bytes)]).pop().unwrap()
    }

    pub(super) fn read(&mut self, offset: u64, length: usize) -> Result<Vec<u8>, Status> {
        self.one(Action::Read, range(offset, length as u64), &[])
    }

    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Status> {
        let range = range(offset, bytes.len() as u64);
        self.one(Action::Write { durable: false }, range, bytes).map(drop)
    }

    pub(super) fn flush(&mut self) -> Result<(), Status> {
        self.one(Action::Flush, ByteRange::EMPTY, &[]).map(drop)
    }
}

pub(super) fn range(offset: u64, length: u64) -> ByteRange {
    ByteRange::new(offset, length).unwrap()
}

/// Bytes that say where they are.
pub(super) fn pattern(offset: u64, length: usize) -> Vec<u8> {
    (offset..offset + length as u64).map(|at| (at % 251) as u8 | 1).collect()
}

/// What is in the file, past all engines.
pub(super) fn content(path: &Path, offset: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    File::open(path).unwrap().read_exact_at(&mut bytes, offset).unwrap();
    bytes
}

/// A small generator, so that a failure can be repeated by its seed.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % limit.max(1)
    }
}
