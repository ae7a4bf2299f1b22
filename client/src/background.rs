//! How `status` and `detach` find the processes that hold attachments: each leaves a note and listens on a socket in
//! one folder, `/run/kaeru` for root and a folder of the user's own otherwise; `KAERU_RUNTIME_DIR` names another one.
//!
//! A process that was killed leaves both behind; the note then says what there is to clean up.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kaeru_common::wire::activity::Activity;
use serde::{Deserialize, Serialize};

/// How long an exchange on such a socket may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a process may take to detach.
const DETACH_PATIENCE: Duration = Duration::from_secs(60);
/// The longest answer, in bytes.
const MAX_ANSWER: u64 = 64 << 10;
/// The longest request line, in bytes.
const MAX_LINE: u64 = 4096;

/// What a process notes about itself when it starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// Its process id.
    pub pid: u32,
    /// The export.
    pub target: String,
    /// The kernel device it serves, if any.
    pub device: Option<String>,
    /// What the kernel knows that device by, so that nobody else's is taken for it.
    #[serde(default)]
    pub backend: Option<String>,
    /// Where it serves NBD otherwise.
    pub listen: Option<String>,
}

/// What a process answers to `status`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// What it noted.
    #[serde(flatten)]
    pub note: Note,
    /// `ok`, `silent` (the server says nothing; lanes may work), `lost` (requests fail), or `dead` (the process is gone).
    pub state: String,
    /// More about the state.
    pub detail: Option<String>,
    /// What the server says is wrong with the export; the process itself does not know.
    #[serde(default)]
    pub trouble: Option<String>,
    /// What the server calls itself.
    pub server: Option<String>,
    /// The session's number.
    pub session: Option<String>,
    /// Bytes of the export.
    pub size: Option<u64>,
    /// Whether writes are refused.
    pub read_only: Option<bool>,
    /// The fabric that lanes use.
    pub fabric: Option<String>,
    /// Why that one.
    pub fabric_reason: Option<String>,
    /// Lanes that are open.
    pub lanes: usize,
    /// Requests answered, bytes moved, and how long that took.
    #[serde(default)]
    pub io: Activity,
}

/// What a process is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "ask")]
pub enum Ask {
    /// How it is.
    Status,
    /// To let go and end.
    Detach {
        /// Although it is in use.
        force: bool,
    },
}

/// What a process answers to `detach`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Detached {
    /// It let go; what is worth knowing.
    Done(String),
    /// It did not, and why.
    Refused(String),
}

/// What answers for a process.
pub trait Answer: Send + Sync + 'static {
    /// How it is.
    fn report(&self) -> Report;
    /// Lets go, or says why not. The process ends after the answer was sent.
    fn detach(&self, force: bool) -> Detached;
    /// The answer to `detach` was sent.
    fn farewell(&self);
}

/// Names the folder of notes and sockets, where neither `/run/kaeru` nor `XDG_RUNTIME_DIR` will do. Only what was
/// attached with the same value is shown and detached.
pub const FOLDER_VARIABLE: &str = "KAERU_RUNTIME_DIR";

/// The folder of notes and sockets; made if need be, for its owner only.
///
/// # Errors
/// Where it cannot be made, or belongs to somebody else.
pub fn folder() -> io::Result<PathBuf> {
    let uid = rustix::process::getuid();
    // An empty variable is as good as none.
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let path = match (variable(FOLDER_VARIABLE), uid.is_root(), variable("XDG_RUNTIME_DIR")) {
        (Some(path), _, _) => path,
        (None, true, _) => PathBuf::from("/run/kaeru"),
        (None, false, Some(runtime)) => runtime.join("kaeru"),
        (None, false, None) => std::env::temp_dir().join(format!("kaeru-{}", uid.as_raw())),
    };
    match std::fs::DirBuilder::new().mode(0o700).create(&path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let found = std::fs::symlink_metadata(&path)?;
    if !found.is_dir() || found.uid() != uid.as_raw() || found.mode() & 0o022 != 0 {
        let reason = "is not a folder that only this user may write to";
        return Err(io::Error::other(format!("{} {reason}", path.display())));
    }
    Ok(path)
}

/// A process's note and socket; both are removed when this is dropped.
pub struct Presence {
    note: PathBuf,
    socket: PathBuf,
}

impl Presence {
    /// Leaves `note` under `name` and answers on a socket from a thread of its own.
    ///
    /// # Errors
    /// Where the folder cannot be written to.
    pub fn announce(name: &str, note: &Note, answer: Arc<impl Answer>) -> io::Result<Self> {
        let folder = folder()?;
        let presence =
            Self { note: folder.join(format!("{name}.json")), socket: folder.join(format!("{name}.sock")) };
        forget_before(note)?;
        let _ = std::fs::remove_file(&presence.socket);
        let listener = UnixListener::bind(&presence.socket)?;
        let draft = folder.join(format!("{name}.new"));
        std::fs::write(&draft, serde_json::to_vec(note)?)?;
        std::fs::rename(&draft, &presence.note)?;
        let run = move || {
            for stream in listener.incoming().flatten() {
                if let Err(error) = reply(stream, &*answer) {
                    tracing::debug!("an exchange on the control socket failed: {error}");
                }
            }
        };
        std::thread::Builder::new().name("status".into()).spawn(run)?;
        Ok(presence)
    }
}

/// Removes what killed processes left that served where this one serves now.
fn forget_before(note: &Note) -> io::Result<()> {
    let same = |holder: &Holder| note.listen.is_some() && holder.note.listen == note.listen;
    holders()?.iter().filter(|holder| same(holder)).for_each(Holder::forget);
    Ok(())
}

impl Drop for Presence {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.note);
        let _ = std::fs::remove_file(&self.socket);
    }
}

fn reply(mut stream: UnixStream, answer: &impl Answer) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    BufReader::new(io::Read::take(&stream, MAX_LINE)).read_line(&mut line)?;
    match serde_json::from_str(&line)? {
        Ask::Status => stream.write_all(&serde_json::to_vec(&answer.report())?),
        Ask::Detach { force } => {
            let detached = answer.detach(force);
            let sent = stream.write_all(&serde_json::to_vec(&detached)?);
            if matches!(detached, Detached::Done(_)) {
                answer.farewell();
            }
            sent
        }
    }
}

/// A process that holds, or held, an attachment.
#[derive(Clone, Debug)]
pub struct Holder {
    /// Its name in the folder.
    pub name: String,
    /// What it noted.
    pub note: Note,
    folder: PathBuf,
}

/// Every process that left a note, in the order of their names.
///
/// # Errors
/// Where the folder cannot be read.
pub fn holders() -> io::Result<Vec<Holder>> {
    let folder = folder()?;
    let mut holders = Vec::new();
    for entry in std::fs::read_dir(&folder)?.flatten() {
        let path = entry.path();
        let Some(name) = path.file_stem().and_then(|stem| stem.to_str()) else { continue };
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        // A note that vanishes or is damaged is nobody's any more.
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        let note = is_file.then(|| std::fs::read(&path).ok()).flatten();
        let note = note.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        holders.extend(note.map(|note| Holder { name: name.to_owned(), note, folder: folder.clone() }));
    }
    holders.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(holders)
}

impl Holder {
    /// How it is; a process that does not answer is reported as dead.
    pub fn report(&self) -> Report {
        self.ask(Ask::Status, PATIENCE).and_then(|bytes| Ok(serde_json::from_slice(&bytes)?)).unwrap_or_else(
            |error| {
                let gone = error.kind() == io::ErrorKind::ConnectionRefused
                    || error.kind() == io::ErrorKind::NotFound;
                let detail = match gone {
                    true => {
                        let what = self.note.device.as_ref().unwrap_or(&self.note.target);
                        format!(
                            "process {} is gone; \"kaeru detach {what}\" cleans up after it",
                            self.note.pid
                        )
                    }
                    false => format!("process {} does not answer: {error}", self.note.pid),
                };
                Report {
                    note: self.note.clone(),
                    state: if gone { "dead" } else { "stuck" }.into(),
                    detail: Some(detail),
                    trouble: None,
                    server: None,
                    session: None,
                    size: None,
                    read_only: None,
                    fabric: None,
                    fabric_reason: None,
                    lanes: 0,
                    io: Activity::default(),
                }
            },
        )
    }

    /// Asks it to let go and end. `None`: it is gone already.
    ///
    /// # Errors
    /// Where it does not answer.
    pub fn detach(&self, force: bool) -> io::Result<Option<Detached>> {
        match self.ask(Ask::Detach { force }, DETACH_PATIENCE) {
            Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
            Err(error)
                if matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Removes what a dead process left here.
    pub fn forget(&self) {
        for ending in ["json", "sock", "log"] {
            let _ = std::fs::remove_file(self.folder.join(format!("{}.{ending}", self.name)));
        }
    }

    fn ask(&self, ask: Ask, patience: Duration) -> io::Result<Vec<u8>> {
        let mut stream = UnixStream::connect(self.folder.join(format!("{}.sock", self.name)))?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut line = serde_json::to_vec(&ask)?;
        line.push(b'\n');
        stream.write_all(&line)?;
        let mut answer = Vec::new();
        io::Read::read_to_end(&mut io::Read::take(stream, MAX_ANSWER), &mut answer)?;
        match answer.is_empty() {
            true => Err(io::ErrorKind::UnexpectedEof.into()),
            false => Ok(answer),
        }
    }
}
