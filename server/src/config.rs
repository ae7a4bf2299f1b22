//! The configuration: one TOML file, every key also a flag. What is here is checked; what the user typed is in `args`.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use kaeru_common::units::{ExportName, Size};
use kaeru_common::wire::{MAX_EXPORTS, PORT};
use serde::Deserialize;

/// Everything that a server is told.
#[derive(Clone, Debug, PartialEq, Eq)]
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportConfig {
    /// Its name.
    pub name: ExportName,
    /// What keeps its bytes.
    pub kind: StoreConfig,
    /// Its size in bytes, not zero.
    pub size: u64,
    /// Whether nobody may write.
    pub read_only: bool,
    /// Whether several clients may write at once.
    pub shared: bool,
}

/// What an export's store is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StoreConfig {
    /// Memory.
    Ram,
    /// Nothing.
    Null,
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
    #[error("there is nothing to export: add --ram NAME=SIZE, or [[export]] to the file of --config")]
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
    pub kind: StoreConfig,
    /// Its size, such as `"16G"`.
    #[serde(deserialize_with = "from_text")]
    pub size: Size,
    /// See [`ExportConfig::read_only`].
    #[serde(default)]
    pub read_only: bool,
    /// See [`ExportConfig::shared`].
    #[serde(default)]
    pub shared: bool,
}

impl From<FileExport> for ExportConfig {
    fn from(file: FileExport) -> Self {
        Self {
            name: file.name,
            kind: file.kind,
            size: file.size.0,
            read_only: file.read_only,
            shared: file.shared,
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
            if export.size == 0 {
                return Err(ConfigError::Empty(export.name.clone()));
            }
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
    /// [`ConfigError::Unknown`].
    pub fn on_export(
        &mut self,
        flag: &'static str,
        name: &ExportName,
        set: impl FnOnce(&mut ExportConfig),
    ) -> Result<(), ConfigError> {
        match self.exports.iter_mut().find(|export| &export.name == name) {
            Some(export) => {
                set(export);
                Ok(())
            }
            None => {
                let known: Vec<&str> = self.exports.iter().map(|export| export.name.as_str()).collect();
                Err(ConfigError::Unknown { flag, name: name.clone(), known: known.join(", ") })
            }
        }
    }

    /// Bytes of all RAM exports.
    pub fn ram(&self) -> u64 {
        let ram = self.exports.iter().filter(|export| export.kind == StoreConfig::Ram);
        ram.fold(0, |sum, export| sum.saturating_add(export.size))
    }
}
