//! What a file or disk export is told.

use std::path::PathBuf;

use super::fault::Rule;

/// What a staged export is told.
#[derive(Clone, Debug, PartialEq)]
pub struct StagedOptions {
    /// Whether a file or a disk is wanted.
    pub target: Target,
    /// Where it is.
    pub path: PathBuf,
    /// Whether nobody shall write to it.
    pub read_only: bool,
    /// Bytes of a logical block: a power of two from 512 to 65,536.
    pub block: Option<u32>,
    /// Creates a file of this size if there is none.
    pub create: Option<u64>,
    /// Takes all the room of a created file at once.
    pub reserve: bool,
    /// Whether the page cache is used.
    pub direct: Direct,
    /// Who does the work.
    pub engine: EngineChoice,
    /// Whether it is used although somebody else does.
    pub force: bool,
    /// Faults to make on purpose.
    pub faults: Vec<Rule>,
}

impl StagedOptions {
    /// `path` as it is.
    pub fn new(target: Target, path: impl Into<PathBuf>) -> Self {
        Self {
            target,
            path: path.into(),
            read_only: false,
            block: None,
            create: None,
            reserve: false,
            direct: Direct::Auto,
            engine: EngineChoice::Auto,
            force: false,
            faults: Vec::new(),
        }
    }
}

/// What keeps the bytes of a staged export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A regular file.
    File,
    /// A block device.
    Disk,
}

/// Whether reads and writes go around the page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direct {
    /// Where the file system can.
    #[default]
    Auto,
    /// Around it or not at all.
    On,
    /// Through it.
    Off,
}

/// Who carries out what the lanes ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EngineChoice {
    /// io_uring where the kernel allows it.
    #[default]
    Auto,
    /// io_uring or nothing.
    Uring,
    /// Plain system calls.
    File,
}
