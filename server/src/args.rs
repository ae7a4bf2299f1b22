//! The command line: what the user typed, then what it means.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Parser;
use kaeru_common::units::{ExportName, Size};
use kaeru_common::wire::PORT;

use crate::config::{
    Config, ConfigError, ExportConfig, FabricChoice, File, Listen, RESPONDER_DEPTH, StoreConfig,
};

/// Exports this machine's RAM over RDMA or TCP, for `kaeru` to attach on other machines.
#[derive(Debug, Parser)]
#[command(name = "kaerud", version, max_term_width = 100, after_help = AFTER_HELP)]
pub struct Args {
    /// Export SIZE bytes of memory as NAME; may be repeated
    #[arg(long, value_name = "NAME=SIZE")]
    pub ram: Vec<Sized>,
    /// Export SIZE bytes of nothing as NAME: reads give zeroes, writes are dropped; may be repeated
    #[arg(long, value_name = "NAME=SIZE")]
    pub null: Vec<Sized>,
    /// Let nobody write to the export NAME; may be repeated
    #[arg(long, value_name = "NAME")]
    pub read_only: Vec<ExportName>,
    /// Let several clients write to NAME at once, which only a cluster file system survives; may be repeated
    #[arg(long, value_name = "NAME")]
    pub shared: Vec<ExportName>,
    /// Listen here; the port is 17420 unless given [default: 127.0.0.1]
    #[arg(long, value_name = "ADDR[:PORT]")]
    pub listen: Option<Listen>,
    /// Listen beyond this machine although nobody has to authenticate
    #[arg(long)]
    pub insecure: bool,
    /// Offer these fabrics [default: auto]
    #[arg(long, value_name = "WHICH", value_enum)]
    pub fabric: Option<FabricChoice>,
    /// Do not lock RAM exports in memory; they are then offered over tcp only
    #[arg(long)]
    pub no_lock: bool,
    /// Answer at most this many reads of a lane at once [default: 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    pub responder_depth: Option<u8>,
    /// Read this TOML file first; flags add to it and override it
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Say more; twice for everything
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Print a completion script for this shell and exit
    #[arg(long, value_name = "SHELL", exclusive = true)]
    pub completions: Option<clap_complete::Shell>,
    /// Print the manual page and exit
    #[arg(long, exclusive = true)]
    pub man: bool,
}

const AFTER_HELP: &str = "\
Sizes are bytes or powers of 1024: 512M, 16G, 1.5T.

Example, between two machines on a network of your own:
  server$ kaerud --ram scratch=16G --listen 192.168.7.1 --insecure
  client$ sudo kaeru attach 192.168.7.1/scratch

The file of --config is TOML:
  listen = \"192.168.7.1\"
  insecure = true
  [[export]]
  name = \"scratch\"
  kind = \"ram\"
  size = \"16G\"
Its keys are listen, insecure, fabric, lock (false is --no-lock) and responder-depth;
in each [[export]]: name, kind (ram, null), size, read-only and shared.

Exit status: 0 after SIGINT or SIGTERM, 1 failure, 2 wrong usage.";

/// `NAME=SIZE`.
#[derive(Clone, Debug)]
pub struct Sized {
    name: ExportName,
    size: Size,
}

impl FromStr for Sized {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, size) = text.split_once('=').ok_or("write NAME=SIZE, such as scratch=16G")?;
        let name = name.parse().map_err(|error: kaeru_common::units::BadExportName| error.to_string())?;
        let size = size.parse().map_err(|error: kaeru_common::units::BadSize| error.to_string())?;
        Ok(Self { name, size })
    }
}

impl Args {
    /// What was meant: the file, with the flags on top.
    ///
    /// # Errors
    /// [`ConfigError`] says what does not fit.
    pub fn into_config(self) -> Result<Config, ConfigError> {
        let file = self.config.as_deref().map_or_else(|| Ok(File::default()), File::read)?;
        let listen =
            self.listen.or(file.listen).map_or(SocketAddr::from(([127, 0, 0, 1], PORT)), |listen| listen.0);
        let flagged = |list: Vec<Sized>, kind| {
            list.into_iter().map(move |Sized { name, size }| ExportConfig {
                name,
                kind,
                size: size.0,
                read_only: false,
                shared: false,
            })
        };
        let mut config = Config {
            listen,
            insecure: self.insecure || file.insecure,
            fabrics: self.fabric.or(file.fabric).unwrap_or_default(),
            lock: !self.no_lock && file.lock.unwrap_or(true),
            responder_depth: self.responder_depth.or(file.responder_depth).unwrap_or(RESPONDER_DEPTH).max(1),
            exports: file
                .exports
                .into_iter()
                .map(ExportConfig::from)
                .chain(flagged(self.ram, StoreConfig::Ram))
                .chain(flagged(self.null, StoreConfig::Null))
                .collect(),
        };
        for name in &self.read_only {
            config.on_export("--read-only", name, |export| export.read_only = true)?;
        }
        for name in &self.shared {
            config.on_export("--shared", name, |export| export.shared = true)?;
        }
        config.check()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn config(flags: &[&str]) -> Result<Config, String> {
        let args = Args::try_parse_from([&["kaerud"], flags].concat()).map_err(|error| error.to_string())?;
        args.into_config().map_err(|error| error.to_string())
    }

    #[test]
    fn the_flags_are_sound() {
        Args::command().debug_assert();
    }

    #[test]
    fn flags_mean_what_they_say() {
        let config =
            config(&["--ram", "a=1G", "--null", "b=4T", "--read-only", "a", "--fabric", "tcp"]).unwrap();
        assert_eq!(config.listen.to_string(), "127.0.0.1:17420");
        assert_eq!((config.exports[0].size, config.exports[0].read_only), (1 << 30, true));
        assert_eq!((config.exports[1].size, config.exports[1].kind), (4 << 40, StoreConfig::Null));
        assert_eq!((config.fabrics, config.lock, config.responder_depth), (FabricChoice::Tcp, true, 16));
        assert_eq!(config.ram(), 1 << 30);
    }

    #[test]
    fn a_file_has_the_same_keys_and_flags_override_it() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = "listen = \"10.0.0.1:99\"\ninsecure = true\nfabric = \"tcp\"\nlock = false\nresponder-depth = 4\n\
                    [[export]]\nname = \"x\"\nkind = \"ram\"\nsize = \"1M\"\nread-only = true\n";
        std::fs::write(file.path(), text).unwrap();
        let path = file.path().to_str().unwrap();
        let read = config(&["--config", path]).unwrap();
        assert_eq!(read.listen.to_string(), "10.0.0.1:99");
        assert_eq!((read.fabrics, read.lock, read.responder_depth), (FabricChoice::Tcp, false, 4));
        assert!(read.exports[0].read_only);
        let both = config(&["--config", path, "--listen", "[::1]", "--ram", "y=2M"]).unwrap();
        assert_eq!((both.listen.to_string().as_str(), both.exports.len()), ("[::1]:17420", 2));
    }

    #[test]
    fn what_does_not_fit_is_said() {
        let wrong = |flags: &[&str], part: &str| {
            let text = config(flags).unwrap_err();
            assert!(text.contains(part), "{text}");
        };
        wrong(&[], "nothing to export");
        wrong(&["--ram", "a=0"], "size 0");
        wrong(&["--ram", "a"], "NAME=SIZE");
        wrong(&["--ram", "a=1X"], "is no size");
        wrong(&["--ram", "a/b=1M"], "is no export name");
        wrong(&["--ram", "a=1M", "--ram", "a=2M"], "two exports are called a");
        wrong(&["--ram", "a=1M", "--read-only", "b"], "exported are: a");
        wrong(&["--ram", "a=1M", "--listen", "0.0.0.0"], "--insecure");
        wrong(&["--ram", "a=1M", "--listen", "nowhere"], "is no address");
        wrong(&["--ram", "a=1M", "--responder-depth", "0"], "0");
        wrong(&["--config", "/does/not/exist"], "cannot read /does/not/exist");
    }

    #[test]
    fn a_typing_error_in_the_file_is_found() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "lisen = \"10.0.0.1\"\n").unwrap();
        let text = config(&["--config", file.path().to_str().unwrap()]).unwrap_err();
        assert!(text.contains("lisen") && text.contains("line 1"), "{text}");
    }
}
