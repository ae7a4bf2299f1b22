//! An opened file or disk, from which every lane gets an engine.

use std::io;
use std::sync::Arc;

use kaeru_common::fabric::buffer::SlotPool;

use super::backing::Backing;
use super::engine::Engine;
use super::fault::{Faults, FaultyEngine};
use super::file::FileEngine;
use super::open;
use super::open_error::OpenError;
use super::options::{StagedOptions, Target};
use super::uring::UringEngine;

/// See the module.
#[derive(Debug)]
pub struct Staged {
    pub(super) backing: Arc<Backing>,
    pub(super) engine: Kind,
}

/// Who carries out what lanes ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    File,
    Uring,
}

/// What a store can do; ask before you use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Writes, trims and zeroes.
    pub write: bool,
    /// A flush, a durable write: what was answered survives a loss of power.
    pub durable: bool,
    /// Trims. Where the file system cannot, they are taken and do nothing.
    pub trim: bool,
    /// Zeroes, with and without keeping the room.
    pub zero: bool,
    /// Tells data from holes.
    pub extents: bool,
}

impl Staged {
    /// Opens what `options` name for the export `name`, creates it if they say so, and makes sure that nobody else uses
    /// it.
    ///
    /// # Errors
    /// [`OpenError`] says what was found and what to do.
    pub fn open(name: &str, options: &StagedOptions) -> Result<Self, OpenError> {
        open::open(name, options)
    }

    /// A lane's engine, for jobs whose slots are of `pool`. Its memory is registered with the kernel as one buffer,
    /// where the kernel allows it, and kept for as long as the kernel may use it.
    ///
    /// # Errors
    /// Where the kernel has no ring or descriptor left.
    pub fn engine(&self, pool: &SlotPool) -> io::Result<Engine> {
        let backing = self.backing.clone();
        let engine = match self.engine {
            Kind::File => Engine::File(FileEngine::new(backing, pool)?),
            Kind::Uring => Engine::Uring(Box::new(UringEngine::new(backing, pool)?)),
        };
        Ok(match &self.backing.faults {
            Some(faults) => {
                let faulty = FaultyEngine::new(engine, faults.clone(), self.backing.clone(), pool)?;
                Engine::Faulty(Box::new(faulty))
            }
            None => engine,
        })
    }

    /// Bytes of the export: a multiple of [`Self::block`].
    pub fn size(&self) -> u64 {
        self.backing.size
    }

    /// Bytes of a logical block. Any byte range may be asked for; whole blocks are fast.
    pub fn block(&self) -> u32 {
        self.backing.block
    }

    /// Whether it cannot be written to.
    pub fn read_only(&self) -> bool {
        self.backing.read_only
    }

    /// Whether it is a file or a disk.
    pub fn target(&self) -> Target {
        self.backing.target
    }

    /// What it can do.
    pub fn capabilities(&self) -> Capabilities {
        let write = !self.read_only();
        let extents = self.target() == Target::File;
        Capabilities { write, durable: write, trim: write, zero: write, extents }
    }

    /// The faults that it makes on purpose, if it was told to.
    pub fn faults(&self) -> Option<&Arc<Faults>> {
        self.backing.faults.as_ref()
    }

    /// See [`super::Store::trouble`].
    pub fn trouble(&self) -> Option<String> {
        self.backing.trouble()
    }

    /// A word for people about where the bytes are and how they are reached.
    pub fn description(&self) -> String {
        let engine = match self.engine {
            Kind::File => "file",
            Kind::Uring => "uring",
        };
        let way = if self.backing.is_direct() { "direct" } else { "buffered" };
        let faults = if self.backing.faults.is_some() { ", with faults on purpose" } else { "" };
        format!("{} ({engine}, {way}{faults})", self.backing.path.display())
    }
}
