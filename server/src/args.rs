//! The command line: what the user typed, then what it means.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Parser;
use kaeru_common::units::{ExportName, Size};
use kaeru_common::wire::PORT;

use crate::config::{
    Config, ConfigError, ExportConfig, FabricChoice, File, Listen, RESPONDER_DEPTH, StoreConfig,
};
use crate::store::fault::Rule;
use crate::store::{Direct, EngineChoice, StagedOptions, Target};

/// Exports this machine's RAM, files and disks over RDMA or TCP, for `kaeru` to attach on other machines.
#[derive(Debug, Parser)]
#[command(name = "kaerud", version, max_term_width = 100, after_help = AFTER_HELP)]
pub struct Args {
    /// Export SIZE bytes of memory as NAME; may be repeated
    #[arg(long, value_name = "NAME=SIZE")]
    pub ram: Vec<Sized>,
    /// Export SIZE bytes of nothing as NAME: reads give zeroes, writes are dropped; may be repeated
    #[arg(long, value_name = "NAME=SIZE")]
    pub null: Vec<Sized>,
    /// Export the file PATH as NAME; may be repeated. OPTIONs are below
    #[arg(long, value_name = "NAME=PATH[,OPTION…]")]
    pub file: Vec<Placed>,
    /// Export the disk or partition DEV as NAME; may be repeated. OPTIONs are below
    #[arg(long, value_name = "NAME=DEV[,OPTION…]")]
    pub disk: Vec<Placed>,
    /// Export NAME although its file or disk is mounted or in use, which can destroy its content; may be repeated
    #[arg(long, value_name = "NAME")]
    pub force: Vec<ExportName>,
    /// Make faults on the file or disk of NAME, to rehearse; may be repeated. FAULTs are below
    #[arg(long, value_name = "NAME=FAULT")]
    pub fault: Vec<Faulted>,
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

OPTIONs of --file and --disk, after commas:
  ro                    nobody may write; a read-only file or disk is so by itself
  create=SIZE           create the file if there is none (--file only); it takes no room yet
  reserve               with create: take all of the room now
  block=BYTES           the logical block, 512 (or the disk's own) unless given; 4096 is the usual other
  direct=auto|on|off    go around the page cache: where possible, or always or not start, or never
  engine=auto|uring|file
                        io_uring where the kernel allows it, or only that, or plain system calls
  force                 as --force
A comma in PATH is written twice: --file a=/srv/one,,two.img is the file /srv/one,two.img.
A relative PATH counts from the working directory, or from the folder of the file of --config.

A FAULT is WHICH:WHAT[,WHAT…]. WHICH is read, write, flush, trim, zero or all. WHAT is
  error=EIO             fail (or ENOSPC, EROFS, EOPNOTSUPP); a failed flush stays failed
  delay=5ms             answer later (or exp:2ms, uniform:1ms..3ms; seed=N repeats them)
  hang                  with delay=TIME: the store hangs, so that the lane cannot end sooner
  short                 have the kernel move less than it was asked for, and go on
  count                 log each with its number
  every=N, after=N, once, range=1M-2M
                        only every Nth, not the first N, only one, only there

The file of --config is TOML:
  listen = \"192.168.7.1\"
  insecure = true
  [[export]]
  name = \"scratch\"
  kind = \"ram\"
  size = \"16G\"
Its keys are listen, insecure, fabric, lock (false is --no-lock) and responder-depth;
in each [[export]]: name, kind (ram, null, file, disk), read-only and shared;
size for ram and null; path, create, reserve, block, direct, engine, force and
fault for file and disk, as in the OPTIONs and FAULTs above.

SIGUSR1 makes it log what each export did and how it is; the same is said at the end.

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

/// `NAME=PATH[,OPTION…]`.
#[derive(Clone, Debug)]
pub struct Placed {
    name: ExportName,
    /// Its target is not known here; see [`Placed::into_export`].
    options: StagedOptions,
}

impl FromStr for Placed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, place) =
            text.split_once('=').ok_or("write NAME=PATH, such as scratch=/srv/scratch.img")?;
        let name = name.parse().map_err(|error: kaeru_common::units::BadExportName| error.to_string())?;
        let mut parts = split_commas(place).into_iter();
        let path = parts.next().filter(|path| !path.is_empty()).ok_or("there is no path after the name")?;
        let mut options = StagedOptions::new(Target::File, path);
        for part in parts {
            set_option(&mut options, &part)?;
        }
        Ok(Self { name, options })
    }
}

/// The parts between single commas; a doubled comma stands for one that is part of the text.
fn split_commas(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        if character == ',' && characters.next_if_eq(&',').is_none() {
            parts.push(String::new());
        } else if let Some(part) = parts.last_mut() {
            part.push(character);
        }
    }
    parts
}

fn set_option(options: &mut StagedOptions, text: &str) -> Result<(), String> {
    let (key, value) = match text.split_once('=') {
        Some((key, value)) => (key, Some(value)),
        None => (text, None),
    };
    let size = |text: &str| text.parse::<Size>().map_err(|error| error.to_string());
    match (key, value) {
        ("ro" | "read-only", None) => options.read_only = true,
        ("reserve", None) => options.reserve = true,
        ("force", None) => options.force = true,
        ("create", Some(text)) => options.create = Some(size(text)?.0),
        ("block", Some(text)) => {
            let block = size(text)?.0;
            options.block =
                Some(u32::try_from(block).map_err(|_| format!("a block of {block} bytes is too large"))?);
        }
        ("direct", Some("auto")) => options.direct = Direct::Auto,
        ("direct", Some("on")) => options.direct = Direct::On,
        ("direct", Some("off")) => options.direct = Direct::Off,
        ("engine", Some("auto")) => options.engine = EngineChoice::Auto,
        ("engine", Some("uring")) => options.engine = EngineChoice::Uring,
        ("engine", Some("file")) => options.engine = EngineChoice::File,
        _ => {
            return Err(format!(
                "\"{text}\" is no option: there are ro, create=SIZE, reserve, block=BYTES, direct=auto|on|off, \
                 engine=auto|uring|file and force; a comma that is part of the path is written twice"
            ));
        }
    }
    Ok(())
}

impl Placed {
    fn into_export(self, target: Target) -> ExportConfig {
        let Self { name, options } = self;
        let read_only = options.read_only;
        let store = StoreConfig::Staged(StagedOptions { target, ..options });
        ExportConfig { name, store, read_only, shared: false }
    }
}

/// `NAME=FAULT`.
#[derive(Clone, Debug)]
pub struct Faulted {
    name: ExportName,
    rule: Rule,
}

impl FromStr for Faulted {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, rule) =
            text.split_once('=').ok_or("write NAME=FAULT, such as scratch=read:error=EIO,every=100")?;
        let name = name.parse().map_err(|error: kaeru_common::units::BadExportName| error.to_string())?;
        let rule = rule.parse().map_err(|error: crate::store::fault::BadRule| error.to_string())?;
        Ok(Self { name, rule })
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
        let folder = self.config.as_deref().and_then(Path::parent).unwrap_or(Path::new(""));
        let filed = file.exports.into_iter().map(|export| export.into_config(folder));
        let sized = |list: Vec<Sized>, store: fn(u64) -> StoreConfig| {
            list.into_iter().map(move |Sized { name, size }| ExportConfig {
                name,
                store: store(size.0),
                read_only: false,
                shared: false,
            })
        };
        let placed =
            |list: Vec<Placed>, target| list.into_iter().map(move |placed| placed.into_export(target));
        let flagged = sized(self.ram, StoreConfig::Ram)
            .chain(sized(self.null, StoreConfig::Null))
            .chain(placed(self.file, Target::File))
            .chain(placed(self.disk, Target::Disk));
        let mut config = Config {
            listen,
            insecure: self.insecure || file.insecure,
            fabrics: self.fabric.or(file.fabric).unwrap_or_default(),
            lock: !self.no_lock && file.lock.unwrap_or(true),
            responder_depth: self.responder_depth.or(file.responder_depth).unwrap_or(RESPONDER_DEPTH).max(1),
            exports: filed.chain(flagged.map(Ok)).collect::<Result<_, _>>()?,
        };
        for name in &self.read_only {
            config.on_export("--read-only", name, |export| {
                export.read_only = true;
                if let StoreConfig::Staged(options) = &mut export.store {
                    options.read_only = true;
                }
                Ok(())
            })?;
        }
        for name in &self.shared {
            config.on_export("--shared", name, |export| {
                export.shared = true;
                Ok(())
            })?;
        }
        for name in &self.force {
            config.on_export("--force", name, |export| {
                export.staged_mut("force")?.force = true;
                Ok(())
            })?;
        }
        for Faulted { name, rule } in self.fault {
            config.on_export("--fault", &name, |export| {
                export.staged_mut("fault")?.faults.push(rule);
                Ok(())
            })?;
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
        assert_eq!(
            (&config.exports[0].store, config.exports[0].read_only),
            (&StoreConfig::Ram(1 << 30), true)
        );
        assert_eq!(config.exports[1].store, StoreConfig::Null(4 << 40));
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

    fn staged(config: &Config, number: usize) -> &StagedOptions {
        match &config.exports[number].store {
            StoreConfig::Staged(options) => options,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn files_and_disks_have_options_after_commas() {
        let flags = [
            "--file",
            "a=one,,two.img,create=10G,reserve,block=4096,direct=off,engine=file",
            "--disk",
            "b=/dev/sdb,ro,direct=on,engine=uring",
            "--file",
            "c=x=y",
            "--force",
            "b",
            "--read-only",
            "c",
            "--fault",
            "a=read:error=EIO,every=100",
            "--fault",
            "a=flush:count",
        ];
        let config = config(&flags).unwrap();
        let a = staged(&config, 0);
        assert_eq!((a.target, a.path.to_str()), (Target::File, Some("one,two.img")));
        assert_eq!((a.create, a.reserve, a.block), (Some(10 << 30), true, Some(4096)));
        assert_eq!(
            (a.direct, a.engine, a.force, a.faults.len()),
            (Direct::Off, EngineChoice::File, false, 2)
        );
        let c = staged(&config, 1);
        assert_eq!((c.path.to_str(), c.read_only, config.exports[1].read_only), (Some("x=y"), true, true));
        let b = staged(&config, 2);
        assert_eq!(
            (b.target, b.path.to_str(), b.read_only, b.force),
            (Target::Disk, Some("/dev/sdb"), true, true)
        );
        assert_eq!(
            (b.direct, b.engine, config.exports[2].read_only),
            (Direct::On, EngineChoice::Uring, true)
        );
    }

    #[test]
    fn commas_divide_unless_they_are_doubled() {
        assert_eq!(split_commas("a,b"), ["a", "b"]);
        assert_eq!(split_commas("a,,b"), ["a,b"]);
        assert_eq!(split_commas("a,,,b"), ["a,", "b"]);
        assert_eq!(split_commas(""), [""]);
    }

    #[test]
    fn a_file_of_the_configuration_is_sought_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kaerud.toml");
        let text = "[[export]]\nname = \"x\"\nkind = \"file\"\npath = \"x.img\"\ncreate = \"1G\"\nblock = 4096\n\
                    direct = \"on\"\nengine = \"uring\"\nforce = true\nfault = [\"read:short\", \"flush:count\"]\n\
                    [[export]]\nname = \"y\"\nkind = \"disk\"\npath = \"/dev/sdb\"\nread-only = true\n\
                    fault = \"read:delay=5ms\"\n";
        std::fs::write(&path, text).unwrap();
        let config = config(&["--config", path.to_str().unwrap()]).unwrap();
        let (x, y) = (staged(&config, 0), staged(&config, 1));
        assert_eq!(x.path, folder.path().join("x.img"));
        assert_eq!((x.create, x.block, x.direct), (Some(1 << 30), Some(4096), Direct::On));
        assert_eq!((x.engine, x.force, x.faults.len()), (EngineChoice::Uring, true, 2));
        assert_eq!((y.path.to_str(), y.read_only, y.faults.len()), (Some("/dev/sdb"), true, 1));
        for (text, part) in [
            ("kind = \"file\"", "needs a path"),
            ("kind = \"ram\"", "needs a size"),
            ("kind = \"ram\"\nsize = \"1M\"\npath = \"x\"", "has no path"),
            ("kind = \"file\"\npath = \"x\"\nsize = \"1M\"", "has no size"),
            ("kind = \"disk\"\npath = \"x\"\ncreate = \"1M\"", "not created"),
            ("kind = \"file\"\npath = \"x\"\nfault = \"read\"", "is no fault"),
            ("kind = \"file\"\npath = \"x\"\nengine = \"uringg\"", "unknown variant"),
        ] {
            std::fs::write(&path, format!("[[export]]\nname = \"x\"\n{text}\n")).unwrap();
            let error = super::tests::config(&["--config", path.to_str().unwrap()]).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
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
        wrong(&["--file", "a"], "NAME=PATH");
        wrong(&["--file", "a="], "no path");
        wrong(&["--file", "a=x,y"], "\"y\" is no option");
        wrong(&["--file", "a=x,create=0"], "size 0");
        wrong(&["--file", "a=x,create=1X"], "is no size");
        wrong(&["--file", "a=x,reserve"], "add create=SIZE");
        wrong(&["--file", "a=x,direct=on,engine=file"], "page cache");
        wrong(&["--file", "a=x,direct=yes"], "direct=auto|on|off");
        wrong(&["--disk", "a=/dev/sdb,create=1G"], "a disk is not created");
        wrong(&["--ram", "a=1M", "--force", "a"], "has no force");
        wrong(&["--ram", "a=1M", "--fault", "a=read:short"], "has no fault");
        wrong(&["--file", "a=x", "--fault", "a=read:shrt"], "is no fault");
        wrong(&["--file", "a=x", "--fault", "b=read:short"], "exported are: a");
    }

    #[test]
    fn a_typing_error_in_the_file_is_found() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "lisen = \"10.0.0.1\"\n").unwrap();
        let text = config(&["--config", file.path().to_str().unwrap()]).unwrap_err();
        assert!(text.contains("lisen") && text.contains("line 1"), "{text}");
    }
}
