//! NBD over a Unix socket: what qemu, nbdfuse or fio get, without their own cost.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use kaeru_client::nbd::front::{Front, LaneOptions};
use kaeru_client::nbd::lane::{self, LaneConfig, Spin, Stop};
use kaeru_client::nbd::stamps::Stamps;
use kaeru_client::session::{AnyRemote, Session};
use kaeru_client::with_remote;
use kaeru_common::metrics::LaneCounters;

use super::{Dead, Done, Io, Lane, PATIENCE, Rung, RungError, RungName, Shape, spin_of};
use crate::bench::nbd_client::{Answered, NbdClient};
use crate::bench::stages::Stamp;

/// Lanes that this process serves itself, each as `kaeru nbd` and `kaeru attach` serve a connection.
pub struct OwnSocket {
    front: Arc<Front>,
    session: Arc<Session>,
    spin: Option<Spin>,
    stop: Stop,
}

impl OwnSocket {
    /// The rung on `session`, which attached `export`; without `spin`, lanes wait as those of `kaeru` do.
    ///
    /// # Errors
    /// Where the process has no descriptor left.
    pub fn new(session: Arc<Session>, export: &str, spin: Option<Spin>) -> Result<Self, RungError> {
        let stop = Stop::new()?;
        let options = LaneOptions { spin, patience: PATIENCE };
        let front = Front::new(session.clone(), export, options, stop.clone());
        Ok(Self { front, session, spin, stop })
    }
}

impl Rung for OwnSocket {
    fn name(&self) -> RungName {
        RungName::Socket
    }

    fn size(&self) -> u64 {
        self.session.granted().size
    }

    fn open(&mut self, shape: &Shape) -> Result<Box<dyn Lane>, RungError> {
        let remote = self.session.open_lane()?;
        let (ours, theirs) = UnixStream::pair()?;
        theirs.set_nonblocking(true)?;
        let size = self.size();
        let config = LaneConfig { spin: spin_of(self.spin, &self.session), ..self.front.kernel_terms(size) };
        let stamps = shape.stages.then(Arc::<Stamps>::default);
        let server = serve(remote, theirs.into(), config, self.stop.clone(), stamps.clone())?;
        let client = NbdClient::agreed(ours, size, shape.depth)?;
        Ok(Box::new(Connection::new(client, shape, stamps, Some(server))))
    }
}

/// A thread that serves one connection until its client leaves.
fn serve(
    remote: AnyRemote,
    socket: OwnedFd,
    config: LaneConfig,
    stop: Stop,
    stamps: Option<Arc<Stamps>>,
) -> io::Result<JoinHandle<()>> {
    let run = move || {
        with_remote!(remote, remote => {
            let lane = lane::Lane::new(remote, socket, config, stop, Arc::new(LaneCounters::default()));
            let lane = match stamps {
                Some(stamps) => lane.with_stamps(stamps),
                None => lane,
            };
            let (_, end) = lane.run();
            tracing::debug!("the lane ended: {end}");
        });
    };
    std::thread::Builder::new().name("lane".into()).spawn(run)
}

/// Somebody else's NBD server.
pub struct ExistingSocket {
    path: PathBuf,
    export: String,
    size: u64,
    read_only: bool,
}

impl ExistingSocket {
    /// Asks the server at `path` for `export`.
    ///
    /// # Errors
    /// [`RungError::Nbd`].
    pub fn new(path: &Path, export: &str) -> Result<Self, RungError> {
        let client = NbdClient::connect(path, export, PATIENCE, 1)?;
        let (size, read_only) = (client.size(), client.is_read_only());
        Ok(Self { path: path.to_owned(), export: export.to_owned(), size, read_only })
    }

    /// Whether it takes no writes.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }
}

impl Rung for ExistingSocket {
    fn name(&self) -> RungName {
        RungName::Socket
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn open(&mut self, shape: &Shape) -> Result<Box<dyn Lane>, RungError> {
        if shape.writes && self.read_only {
            return Err(RungError::ReadOnly(self.path.display().to_string()));
        }
        let client = NbdClient::connect(&self.path, &self.export, PATIENCE, shape.depth)?;
        Ok(Box::new(Connection::new(client, shape, None, None)))
    }
}

/// A client, and its server if that is our own.
struct Connection {
    client: Option<NbdClient>,
    answered: Vec<Answered>,
    stamps: Option<Arc<Stamps>>,
    server: Option<JoinHandle<()>>,
}

impl Connection {
    fn new(
        mut client: NbdClient,
        shape: &Shape,
        stamps: Option<Arc<Stamps>>,
        server: Option<JoinHandle<()>>,
    ) -> Self {
        if shape.writes {
            client.requests().reserve(shape.block as usize);
        }
        let answered = Vec::with_capacity(shape.depth as usize);
        Self { client: Some(client), answered, stamps, server }
    }

    fn client(&mut self) -> Result<&mut NbdClient, Dead> {
        self.client.as_mut().ok_or_else(|| Dead("the connection is closed".into()))
    }
}

impl Lane for Connection {
    fn submit(&mut self, io: Io) -> Result<(), Dead> {
        let Io { op, offset, length, tag } = io;
        self.client()?.requests().ask(op, offset, length, tag).map_err(|error| Dead(error.to_string()))
    }

    fn reap(&mut self, done: &mut Vec<Done>, until: Instant) -> Result<(), Dead> {
        let mut answered = std::mem::take(&mut self.answered);
        let result = self.client()?.requests().answers(&mut answered, until);
        let at = Instant::now();
        for Answered { tag, cookie, error } in answered.drain(..) {
            let failed = (error != 0).then(|| format!("the NBD server answered with error {error}"));
            let marks = self.stamps.as_ref().and_then(|stamps| stamps.of(cookie));
            let stamp = marks.map_or(Stamp::default(), |(taken, marks)| Stamp::of_lane(taken, marks));
            done.push(Done { tag, at, failed, stamp });
        }
        self.answered = answered;
        result.map_err(|error| Dead(error.to_string()))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // The client takes leave, and the lane ends by itself.
        self.client = None;
        if let Some(server) = self.server.take() {
            let _ = server.join();
        }
    }
}
