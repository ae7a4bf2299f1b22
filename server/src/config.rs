//! The configuration: one TOML file, every key also a flag. What is here is checked; what the user typed is in `args`.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use kaeru_common::units::{ExportName, Size};
use kaeru_common::wire::{MAX_EXPORTS, PORT};
use serde::Deserialize;

use crate::store::fault::Rule;
use crate::store::{Direct, EngineChoice, StagedOptions, Target};

/// Everything that a server is told.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Where it listens, for the control stream and both kinds of lanes.
    pub listen: SocketAddr,
    /// Whether it may listen beyond loopback without authentication.
    pub insecure: bool,
    /// Which fabrics it offers.
    pub fabrics: FabricChoice,
    /// Whether RAM exports are locked in memory.
    pub lock: bool,
    /// Reads that one lane answers at once.
    pub responder_depth: u8,
    /// What it exports; at least one.
    pub exports: Vec<ExportConfig>,
}

/// One export.
#[derive(Clone, Debug, PartialEq)]
pub struct ExportConfig {
    /// Its name.
    pub name: ExportName,
    /// What keeps its bytes.
    pub store: StoreConfig,
    /// Whether nobody may write.
    pub read_only: bool,
    /// Whether several clients may write at once.
    pub shared: bool,
}

/// What an export's store is made of.
#[derive(Clone, Debug, PartialEq)]
pub enum StoreConfig {
    /// Memory: so many bytes, not zero.
    Ram(u64),
    /// Nothing, with so many bytes, not zero.
    Null(u64),
    /// A file or disk.
    Staged(StagedOptions),
}

/// Which fabrics are wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum FabricChoice {
    /// Every one that this machine has.
    #[default]
    Auto,
    /// RDMA or nothing.
    Verbs,
    /// TCP only.
    Tcp,
}

/// Reads that one lane answers at once, unless told otherwise: what a ConnectX-3 can.
pub const RESPONDER_DEPTH: u8 = 16;

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file is no valid configuration.
    #[error("{} is not a valid configuration: {source}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// What is wrong and where.
        source: Box<toml::de::Error>,
    },
    /// Nothing to export.
    #[error(
        "there is nothing to export: add --ram NAME=SIZE, --file NAME=PATH or --disk NAME=DEV, or [[export]] to the \
         file of --config"
    )]
    NoExports,
    /// A name stands twice.
    #[error("two exports are called {0}: give each a name of its own")]
    Duplicate(ExportName),
    /// More than a list holds.
    #[error("{0} exports are more than a server may have ({MAX_EXPORTS})")]
    TooMany(usize),
    /// Size zero.
    #[error("export {0} has size 0: give it at least one byte")]
    Empty(ExportName),
    /// A flag names an export that is not there.
    #[error("{flag} names {name}, which is not exported; exported are: {known}")]
    Unknown {
        /// The flag.
        flag: &'static str,
        /// The name.
        name: ExportName,
        /// The names that there are.
        known: String,
    },
    /// A key that the kind of export has no use for.
    #[error("export {name} is {kind}, which has no {key}: leave it out")]
    Misplaced {
        /// The export.
        name: ExportName,
        /// Its kind.
        kind: &'static str,
        /// The key.
        key: &'static str,
    },
    /// A key without which the kind of export makes no sense.
    #[error("export {name} is {kind}, which needs a {key}: {cure}")]
    Lacking {
        /// The export.
        name: ExportName,
        /// Its kind.
        kind: &'static str,
        /// The key.
        key: &'static str,
        /// What to write.
        cure: &'static str,
    },
    /// Two keys that do not go together.
    #[error("export {name}: {reason}")]
    Contradiction {
        /// The export.
        name: ExportName,
        /// What does not fit, and what to do.
        reason: &'static str,
    },
    /// A fault that is none.
    #[error("export {name}: {source}")]
    Fault {
        /// The export.
        name: ExportName,
        /// What is wrong with it.
        source: crate::store::fault::BadRule,
    },
    /// Listening to strangers.
    #[error(
        "{0} is reachable from other machines, and pairing does not exist yet: anybody there could read and write the \
         exports. If that network is yours alone, pass --insecure; otherwise listen on 127.0.0.1"
    )]
    Insecure(SocketAddr),
}

/// The file as it is written.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct File {
    /// See [`Config::listen`].
    pub listen: Option<Listen>,
    /// See [`Config::insecure`].
    #[serde(default)]
    pub insecure: bool,
    /// See [`Config::fabrics`].
    pub fabric: Option<FabricChoice>,
    /// See [`Config::lock`].
    pub lock: Option<bool>,
    /// See [`Config::responder_depth`].
    pub responder_depth: Option<u8>,
    /// See [`Config::exports`].
    #[serde(default, rename = "export")]
    pub exports: Vec<FileExport>,
}

/// An export as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct FileExport {
    /// Its name.
    #[serde(deserialize_with = "from_text")]
    pub name: ExportName,
    /// Its kind.
    pub kind: Kind,
    /// The size of memory, such as `"16G"`.
    #[serde(default, deserialize_with = "from_some_text")]
    pub size: Option<Size>,
    /// The file or disk; a relative path counts from the folder of the configuration.
    pub path: Option<PathBuf>,
    /// See [`StagedOptions::block`].
    pub block: Option<u32>,
    /// See [`StagedOptions::create`].
    #[serde(default, deserialize_with = "from_some_text")]
    pub create: Option<Size>,
    /// See [`StagedOptions::reserve`].
    #[serde(default)]
    pub reserve: bool,
    /// See [`StagedOptions::direct`].
    pub direct: Option<DirectKey>,
    /// See [`StagedOptions::engine`].
    pub engine: Option<EngineKey>,
    /// See [`StagedOptions::force`].
    #[serde(default)]
    pub force: bool,
    /// See [`StagedOptions::faults`]: one or more.
    #[serde(default)]
    pub fault: OneOrMore,
    /// See [`ExportConfig::read_only`].
    #[serde(default)]
    pub read_only: bool,
    /// See [`ExportConfig::shared`].
    #[serde(default)]
    pub shared: bool,
}

/// The kind of an export as it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Memory.
    Ram,
    /// Nothing.
    Null,
    /// A file.
    File,
    /// A disk.
    Disk,
}

/// [`Direct`] as it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DirectKey {
    /// See [`Direct::Auto`].
    Auto,
    /// See [`Direct::On`].
    On,
    /// See [`Direct::Off`].
    Off,
}

/// [`EngineChoice`] as it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineKey {
    /// See [`EngineChoice::Auto`].
    Auto,
    /// See [`EngineChoice::Uring`].
    Uring,
    /// See [`EngineChoice::File`].
    File,
}

/// A text or a list of them.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(untagged)]
pub enum OneOrMore {
    /// None.
    #[default]
    None,
    /// One.
    One(String),
    /// Any number.
    More(Vec<String>),
}

impl OneOrMore {
    fn as_slice(&self) -> &[String] {
        match self {
            Self::None => &[],
            Self::One(text) => std::slice::from_ref(text),
            Self::More(texts) => texts,
        }
    }
}

impl From<DirectKey> for Direct {
    fn from(key: DirectKey) -> Self {
        match key {
            DirectKey::Auto => Self::Auto,
            DirectKey::On => Self::On,
            DirectKey::Off => Self::Off,
        }
    }
}

impl From<EngineKey> for EngineChoice {
    fn from(key: EngineKey) -> Self {
        match key {
            EngineKey::Auto => Self::Auto,
            EngineKey::Uring => Self::Uring,
            EngineKey::File => Self::File,
        }
    }
}

impl FileExport {
    /// What is meant, where relative paths count from `folder`.
    ///
    /// # Errors
    /// The first key that does not fit the kind.
    pub fn into_config(self, folder: &Path) -> Result<ExportConfig, ConfigError> {
        let store = match self.kind {
            Kind::Ram => StoreConfig::Ram(self.memory("ram")?),
            Kind::Null => StoreConfig::Null(self.memory("null")?),
            Kind::File => StoreConfig::Staged(self.staged(Target::File, "file", folder)?),
            Kind::Disk => StoreConfig::Staged(self.staged(Target::Disk, "disk", folder)?),
        };
        Ok(ExportConfig { name: self.name, store, read_only: self.read_only, shared: self.shared })
    }

    fn memory(&self, kind: &'static str) -> Result<u64, ConfigError> {
        let misplaced = [
            ("path", self.path.is_some()),
            ("block", self.block.is_some()),
            ("create", self.create.is_some()),
            ("reserve", self.reserve),
            ("direct", self.direct.is_some()),
            ("engine", self.engine.is_some()),
            ("force", self.force),
            ("fault", !self.fault.as_slice().is_empty()),
        ];
        self.none_of(kind, &misplaced)?;
        let lacking = || ConfigError::Lacking {
            name: self.name.clone(),
            kind,
            key: "size",
            cure: "write size = \"16G\"",
        };
        self.size.map(|size| size.0).ok_or_else(lacking)
    }

    fn staged(
        &self,
        target: Target,
        kind: &'static str,
        folder: &Path,
    ) -> Result<StagedOptions, ConfigError> {
        self.none_of(kind, &[("size", self.size.is_some())])?;
        let lacking = || ConfigError::Lacking {
            name: self.name.clone(),
            kind,
            key: "path",
            cure: "write path = \"/srv/disk.img\" or path = \"/dev/sdb\"",
        };
        let path = folder.join(self.path.as_ref().ok_or_else(lacking)?);
        let rule = |text: &String| {
            text.parse().map_err(|source| ConfigError::Fault { name: self.name.clone(), source })
        };
        Ok(StagedOptions {
            target,
            path,
            read_only: self.read_only,
            block: self.block,
            create: self.create.map(|size| size.0),
            reserve: self.reserve,
            direct: self.direct.map_or_else(Direct::default, Into::into),
            engine: self.engine.map_or_else(EngineChoice::default, Into::into),
            force: self.force,
            faults: self.fault.as_slice().iter().map(rule).collect::<Result<Vec<Rule>, _>>()?,
        })
    }

    fn none_of(&self, kind: &'static str, keys: &[(&'static str, bool)]) -> Result<(), ConfigError> {
        match keys.iter().find(|(_, given)| *given) {
            Some(&(key, _)) => Err(ConfigError::Misplaced { name: self.name.clone(), kind, key }),
            None => Ok(()),
        }
    }
}

/// An address with or without a port: `192.168.1.2`, `[::1]:4000`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listen(pub SocketAddr);

impl std::str::FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bare = text.trim_start_matches('[').trim_end_matches(']');
        text.parse().or_else(|_| bare.parse().map(|ip| SocketAddr::new(ip, PORT))).map(Self).map_err(|_| {
            format!("\"{text}\" is no address; write 192.168.1.2, 192.168.1.2:{PORT}, [::1] or 0.0.0.0")
        })
    }
}

impl<'de> Deserialize<'de> for Listen {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer)
    }
}

fn from_text<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: std::str::FromStr<Err: std::fmt::Display>,
{
    String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
}

fn from_some_text<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: std::str::FromStr<Err: std::fmt::Display>,
{
    from_text(deserializer).map(Some)
}

impl File {
    /// Reads a file.
    ///
    /// # Errors
    /// [`ConfigError::Read`] and [`ConfigError::Parse`], the latter with line and column.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        toml::from_str(&text)
            .map_err(|source| ConfigError::Parse { path: path.to_owned(), source: Box::new(source) })
    }
}

impl Config {
    /// Checks what cannot be checked field by field.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(self) -> Result<Self, ConfigError> {
        let mut names = BTreeSet::new();
        for export in &self.exports {
            if !names.insert(&export.name) {
                return Err(ConfigError::Duplicate(export.name.clone()));
            }
            export.check()?;
        }
        match self.exports.len() {
            0 => return Err(ConfigError::NoExports),
            count if count > MAX_EXPORTS => return Err(ConfigError::TooMany(count)),
            _ => {}
        }
        if !self.insecure && !self.listen.ip().is_loopback() {
            return Err(ConfigError::Insecure(self.listen));
        }
        Ok(self)
    }

    /// Sets something on the export of this name, which a flag asks for.
    ///
    /// # Errors
    /// [`ConfigError::Unknown`], or what `set` says.
    pub fn on_export(
        &mut self,
        flag: &'static str,
        name: &ExportName,
        set: impl FnOnce(&mut ExportConfig) -> Result<(), ConfigError>,
    ) -> Result<(), ConfigError> {
        match self.exports.iter_mut().find(|export| &export.name == name) {
            Some(export) => set(export),
            None => {
                let known: Vec<&str> = self.exports.iter().map(|export| export.name.as_str()).collect();
                Err(ConfigError::Unknown { flag, name: name.clone(), known: known.join(", ") })
            }
        }
    }

    /// Bytes of all RAM exports.
    pub fn ram(&self) -> u64 {
        self.exports.iter().fold(0, |sum, export| match export.store {
            StoreConfig::Ram(size) => sum.saturating_add(size),
            _ => sum,
        })
    }
}

impl ExportConfig {
    fn check(&self) -> Result<(), ConfigError> {
        let contradiction = |reason| Err(ConfigError::Contradiction { name: self.name.clone(), reason });
        match &self.store {
            StoreConfig::Ram(0) | StoreConfig::Null(0) => Err(ConfigError::Empty(self.name.clone())),
            StoreConfig::Ram(_) | StoreConfig::Null(_) => Ok(()),
            StoreConfig::Staged(StagedOptions { create: Some(0), .. }) => {
                Err(ConfigError::Empty(self.name.clone()))
            }
            StoreConfig::Staged(options) if options.reserve && options.create.is_none() => {
                contradiction("reserve is for a file that is created: add create=SIZE, or leave reserve out")
            }
            StoreConfig::Staged(options) if options.create.is_some() && options.target == Target::Disk => {
                contradiction("a disk is not created: leave create out, or use --file for a file")
            }
            StoreConfig::Staged(options)
                if options.direct == Direct::On && options.engine == EngineChoice::File =>
            {
                contradiction("engine=file goes through the page cache: leave direct=on or engine=file out")
            }
            StoreConfig::Staged(_) => Ok(()),
        }
    }

    /// The options of its file or disk.
    ///
    /// # Errors
    /// [`ConfigError::Misplaced`] where it is neither.
    pub fn staged_mut(&mut self, key: &'static str) -> Result<&mut StagedOptions, ConfigError> {
        let kind = match &mut self.store {
            StoreConfig::Staged(options) => return Ok(options),
            StoreConfig::Ram(_) => "ram",
            StoreConfig::Null(_) => "null",
        };
        Err(ConfigError::Misplaced { name: self.name.clone(), kind, key })
    }
}
