//! `kaeru attach`: an export as a disk of this machine.
//!
//! ```text
//!   kaeru attach ──spawns──▶ kaeru attach --serve ──spawns──▶ kaeru guard
//!        │                     session, lanes, /dev/nbdN         (detaches the device when the server process
//!        │◀── one line of JSON ── ready, or why not               is killed, so that nothing waits for ever)
//!     prints it, ends          serves until detached
//! ```
//! The serving process is spawned, not forked, and before anything of RDMA is touched: registered memory does not
//! survive a fork.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use kaeru_common::units::Size;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::args::Attach;
use crate::attachment::Attachment;
use crate::background::{Detached, Note, Presence, folder};
use crate::nbd::front::Front;
use crate::nbd::kernel::{self, Device, KernelError, Nodes, Outcome, Urgency};
use crate::nbd::lane::Stop;
use crate::session::{Session, SessionError};
use crate::signals::{End, Signals};

/// How long a new device may take until its partitions are there and udev has seen them.
const SETTLE: Duration = Duration::from_secs(30);
/// How long a detach may take, half of it for writing back what is dirty.
const DETACH: Duration = Duration::from_secs(40);
/// The kernel's least block size; disks from elsewhere have partitions in units of it.
const LEAST_BLOCK: u32 = 512;
/// More lanes than CPUs, or than this, gain nothing unless asked for.
const DEFAULT_LANES: usize = 4;

/// What came of an attach.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Attached {
    /// The device.
    pub device: String,
    /// Its partitions.
    pub partitions: Vec<String>,
    /// The export.
    pub target: String,
    /// Bytes of the device.
    pub size: u64,
    /// Whether writes are refused.
    pub read_only: bool,
    /// The fabric of its lanes.
    pub fabric: String,
    /// Why that one.
    pub fabric_reason: String,
    /// Its lanes.
    pub lanes: usize,
    /// What the user should know.
    pub warnings: Vec<String>,
}

/// What the serving process tells the one that waits for it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Word {
    Attached(Attached),
    Failed(String),
}

/// Why an export is not attached.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// No session or lane.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// No device.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// `--device` names none.
    #[error("\"{0}\" is no NBD device; write /dev/nbd0, or leave the choice to the kernel")]
    Device(String),
    /// Smaller than a block.
    #[error(
        "{target} has {size} bytes, less than the {block} of one block: \"kaeru nbd\" can serve it, a device cannot"
    )]
    TooSmall {
        /// The export.
        target: String,
        /// Its size.
        size: u64,
        /// The device's block size.
        block: u64,
    },
    /// The serving process failed.
    #[error("{0}")]
    Failed(String),
    /// The system refused.
    #[error("cannot attach: {0}")]
    System(#[from] io::Error),
}

/// Attaches as the flags say: in the background, or here.
///
/// # Errors
/// [`AttachError`].
pub fn run(attach: &Attach, out: &mut impl Write) -> Result<(), AttachError> {
    if attach.serve {
        return match serve(attach, |attached| say(&mut io::stdout(), &Word::Attached(attached.clone()))) {
            Ok(()) => Ok(()),
            Err(error) => Ok(say(&mut io::stdout(), &Word::Failed(error.to_string()))?),
        };
    }
    if attach.foreground {
        return serve(attach, |attached| print(attached, attach.json, &mut io::stdout()));
    }
    let attached = spawn()?;
    Ok(print(&attached, attach.json, out)?)
}

fn print(attached: &Attached, as_json: bool, out: &mut impl Write) -> io::Result<()> {
    if as_json {
        serde_json::to_writer_pretty(&mut *out, attached)?;
        writeln!(out)?;
        return out.flush();
    }
    for warning in &attached.warnings {
        writeln!(io::stderr(), "kaeru: warning: {warning}")?;
    }
    let mode = if attached.read_only { ", read-only" } else { "" };
    writeln!(out, "{}", attached.device)?;
    for partition in &attached.partitions {
        writeln!(out, "{partition}")?;
    }
    let (size, lanes) = (Size(attached.size), attached.lanes);
    let plural = if lanes == 1 { "" } else { "s" };
    let line = format!(
        "{} ({size}{mode}) over {}, {lanes} lane{plural}: {}",
        attached.target, attached.fabric, attached.fabric_reason
    );
    writeln!(io::stderr(), "{line}")?;
    out.flush()
}

fn say(out: &mut impl Write, word: &Word) -> io::Result<()> {
    serde_json::to_writer(&mut *out, word)?;
    writeln!(out)?;
    out.flush()
}

// ── The process that waits ─────────────────────────────────────────────────────────────────────────────────────────

/// Starts the serving process and waits for its word.
fn spawn() -> Result<Attached, AttachError> {
    let log_path = folder()?.join(format!("attach-{}.log", std::process::id()));
    let mut log = OpenOptions::new().create(true).truncate(true).read(true).write(true).open(&log_path)?;
    let mut child = Command::new(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .arg("--serve")
        .env("KAERU_LOG_FILE", &log_path)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log.try_clone()?)
        .process_group(0)
        .spawn()?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut line)?;
    }
    match serde_json::from_str(&line) {
        Ok(Word::Attached(attached)) => Ok(attached),
        Ok(Word::Failed(reason)) => {
            let _ = child.wait();
            let _ = std::fs::remove_file(&log_path);
            Err(AttachError::Failed(reason))
        }
        Err(_) => Err(AttachError::Failed(died(&mut child, &mut log))),
    }
}

/// What is known of a serving process that ended without a word.
fn died(child: &mut Child, log: &mut File) -> String {
    let status = child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
    let mut said = String::new();
    let _ = log.seek(SeekFrom::Start(0)).and_then(|_| log.read_to_string(&mut said));
    format!("the serving process ended ({status}) before the device was ready: {}", said.trim())
}

// ── The process that serves ────────────────────────────────────────────────────────────────────────────────────────

/// Attaches, calls `ready`, and serves until the device is detached or a signal comes.
fn serve(attach: &Attach, ready: impl FnOnce(&Attached) -> io::Result<()>) -> Result<(), AttachError> {
    let index = attach.device.as_deref().map(index_of).transpose()?;
    let target = attach.common.target.to_string();
    let session = Arc::new(Session::attach(&attach.common.target, attach.common.attach_options())?);
    let granted = session.granted();
    let block = granted.blocks.least.max(LEAST_BLOCK);
    let (size, warnings) = device_size(&target, granted.size, block.into())?;
    let lanes = attach.lanes.map_or_else(default_lanes, usize::from);
    let front = Front::new(
        session.clone(),
        attach.common.target.export.as_str(),
        attach.common.lane_options(),
        Stop::new()?,
    );
    front.open_lanes(lanes)?;

    let backend = format!("kaeru:{target}:{}", session.granted().session);
    let mut wanted = kernel::Attach {
        device: index,
        block_size: block,
        backend: backend.clone(),
        ..kernel::Attach::new(size, front.flags().bits())
    };
    // The kernel takes no chunks: a longer read that fails midway would cost it the socket.
    let whole = u32::try_from(front.longest_whole_read() / 1024).unwrap_or(u32::MAX);
    wanted.max_sectors_kb = wanted.max_sectors_kb.min(whole);
    let (device, sockets) = kernel::connect(&wanted, lanes)?;
    let bound = Bound::start(&front, device, sockets, size, &backend)?;
    let nodes = match bound.device.settle(SETTLE) {
        Ok(nodes) => nodes,
        Err(error) => {
            let _ = bound.let_go(Urgency::Now);
            return Err(error.into());
        }
    };

    let (ask, asked) = watch::channel(false);
    let name = format!("nbd{}", bound.device.index());
    let note = Note {
        pid: std::process::id(),
        target: target.clone(),
        device: Some(nodes.device.display().to_string()),
        backend: Some(backend),
        listen: None,
    };
    let index = bound.device.index();
    let let_go = move |force: bool| detached(index, if force { Urgency::Now } else { Urgency::WhenUnused });
    let attachment = Attachment::new(front.clone(), note.clone(), ask, Box::new(let_go));
    let presence = Presence::announce(&name, &note, Arc::new(attachment))?;
    keep_log(&name);
    let mut signals = Signals::catch()?;
    ready(&attached(&nodes, target, size, &front, warnings))?;
    // A lost server is no reason to end: the device answers with errors until somebody detaches it.
    let mut urgency = Urgency::WhenUnused;
    while signals.wait(session.health(), asked.clone(), true) == End::Signal {
        match bound.let_go(urgency) {
            Ok(_) => break,
            Err(error) if urgency == Urgency::WhenUnused => {
                tracing::warn!("{error}; a second signal detaches it all the same");
                urgency = Urgency::Now;
            }
            Err(error) => return Err(error.into()),
        }
    }
    bound.finish();
    drop(presence);
    session.end();
    forget_log(&name);
    Ok(())
}

fn index_of(device: &str) -> Result<u32, AttachError> {
    kernel::index_of(device).ok_or_else(|| AttachError::Device(device.to_owned()))
}

fn default_lanes() -> usize {
    std::thread::available_parallelism().map_or(1, |cpus| cpus.get().min(DEFAULT_LANES))
}

/// The device's size: whole blocks. What does not fit is said, never cut silently.
fn device_size(target: &str, size: u64, block: u64) -> Result<(u64, Vec<String>), AttachError> {
    let rest = size % block;
    match size - rest {
        0 => Err(AttachError::TooSmall { target: target.to_owned(), size, block }),
        whole if rest == 0 => Ok((whole, Vec::new())),
        whole => {
            let warning = format!(
                "{target} has {size} bytes, which is no multiple of {block}: the device ends after {whole} bytes, and the \
                 last {rest} cannot be reached through it"
            );
            Ok((whole, vec![warning]))
        }
    }
}

fn attached(nodes: &Nodes, target: String, size: u64, front: &Front, warnings: Vec<String>) -> Attached {
    let route = front.session().route();
    Attached {
        device: nodes.device.display().to_string(),
        partitions: nodes.partitions.iter().map(|path| path.display().to_string()).collect(),
        target,
        size,
        read_only: front.session().granted().read_only,
        fabric: route.as_ref().map_or_else(String::new, |route| route.fabric.to_string()),
        fabric_reason: route.map_or_else(String::new, |route| route.why),
        lanes: front.totals().lanes(),
        warnings,
    }
}

/// A bound device with its lanes and its guard.
struct Bound {
    device: Device,
    lanes: Vec<JoinHandle<()>>,
    guard: Option<(Child, ChildStdin)>,
}

impl Bound {
    /// Starts a lane on each socket, and the guard.
    fn start(
        front: &Arc<Front>,
        device: Device,
        sockets: Vec<std::os::unix::net::UnixStream>,
        size: u64,
        backend: &str,
    ) -> Result<Self, AttachError> {
        let mut bound = Self { device, lanes: Vec::new(), guard: None };
        for (number, socket) in sockets.into_iter().enumerate() {
            let (front, terms) = (front.clone(), front.kernel_terms(size));
            let run = move || match front.serve(socket.into(), &[], terms) {
                Ok(end) => tracing::info!("lane {number} ended: {end}"),
                Err(error) => tracing::error!("lane {number} has no way to the export: {error}"),
            };
            bound.lanes.push(std::thread::Builder::new().name(format!("lane-{number}")).spawn(run)?);
        }
        match start_guard(bound.device.index(), backend) {
            Ok(guard) => bound.guard = Some(guard),
            Err(error) => tracing::warn!("no guard: if this process is killed, detach by hand ({error})"),
        }
        Ok(bound)
    }

    fn let_go(&self, urgency: Urgency) -> Result<Outcome, KernelError> {
        kernel::disconnect(self.device.index(), urgency, DETACH)
    }

    /// Waits for the lanes, which the kernel has told to end, and dismisses the guard.
    fn finish(self) {
        for lane in self.lanes {
            let _ = lane.join();
        }
        if let Some((mut child, stdin)) = self.guard {
            drop(stdin);
            let _ = child.wait();
        }
    }
}

fn start_guard(index: u32, backend: &str) -> io::Result<(Child, ChildStdin)> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(["guard", &index.to_string(), backend])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .process_group(0)
        .spawn()?;
    let stdin = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
    Ok((child, stdin))
}

/// Detaches a device and says how it went.
pub fn detached(index: u32, urgency: Urgency) -> Detached {
    match kernel::disconnect(index, urgency, DETACH) {
        Ok(Outcome::NotAttached) | Err(KernelError::NoDevice { .. }) => {
            Detached::Done(format!("/dev/nbd{index} was not attached any more"))
        }
        Ok(Outcome::Free { synced: true }) => Detached::Done(format!("/dev/nbd{index} is detached")),
        Ok(Outcome::Free { synced: false }) => {
            Detached::Done(format!("/dev/nbd{index} is detached; not everything could be written before"))
        }
        Ok(Outcome::Held { synced, holders }) => {
            let lost = if synced { "" } else { "; not everything could be written before" };
            Detached::Done(format!(
                "/dev/nbd{index} is detached{lost}; its number is free once it is no longer {holders}"
            ))
        }
        Err(error) => Detached::Refused(error.to_string()),
    }
}

/// Gives the log its lasting name, so that it can be found by the device.
fn keep_log(name: &str) {
    if let (Some(log), Ok(folder)) = (log_path(), folder()) {
        let _ = std::fs::rename(log, folder.join(format!("{name}.log")));
    }
}

fn forget_log(name: &str) {
    if let (Some(_), Ok(folder)) = (log_path(), folder()) {
        let _ = std::fs::remove_file(folder.join(format!("{name}.log")));
    }
}

fn log_path() -> Option<PathBuf> {
    std::env::var_os("KAERU_LOG_FILE")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute() && path != Path::new("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_ends_at_its_last_whole_block_and_says_so() {
        assert_eq!(device_size("h/x", 512, 512).unwrap(), (512, vec![]));
        assert_eq!(device_size("h/x", 3 << 12, 4096).unwrap(), (3 << 12, vec![]));
        let (size, warnings) = device_size("h/x", 241_059, 512).unwrap();
        assert_eq!(size, 240_640);
        assert!(
            warnings[0].contains("241059") && warnings[0].contains("240640") && warnings[0].contains("419")
        );
        let error = device_size("h/x", 511, 512).unwrap_err().to_string();
        assert!(error.contains("511") && error.contains("kaeru nbd"), "{error}");
    }
}
