//! NBD over a Unix socket: what qemu, nbdfuse or fio get, without their own cost.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kaeru_client::nbd::front::{Front, LaneOptions};
use kaeru_client::nbd::lane::{Spin, Stop};
use kaeru_client::nbd::listen::{Address, ListenError, NbdServer};
use kaeru_client::session::{Session, SessionError};

use super::{Failure, PATIENCE, Rung};
use crate::bench::nbd_client::{NbdClient, NbdError};
use crate::bench::workload::{BLOCK, Op, pattern};

/// How long our own server may take to end.
const GRACE: Duration = Duration::from_secs(1);

/// Why the rung cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Our own server did not start.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// It has no lane.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// It cannot be talked to.
    #[error(transparent)]
    Client(#[from] NbdError),
    /// The system refused.
    #[error("cannot set up an NBD server to measure: {0}")]
    System(#[from] io::Error),
}

/// A client, and its server if that is our own.
pub struct Socket {
    client: NbdClient,
    buffer: Vec<u8>,
    server: Option<NbdServer>,
}

impl Socket {
    /// Serves `session` in this process, as `kaeru nbd` does, and connects to it.
    ///
    /// # Errors
    /// [`SocketError`].
    pub fn own(session: &Arc<Session>, export: &str, spin: Spin) -> Result<Self, SocketError> {
        let options = LaneOptions { spin: Some(spin), patience: PATIENCE };
        let front = Front::new(session.clone(), export, options, Stop::new()?);
        front.open_lanes(1)?;
        let folder = tempfile::Builder::new().prefix("kaeru-bench-").tempdir()?;
        let path = folder.path().join("socket");
        let server = NbdServer::start(front, &Address::Unix(path.clone()))?;
        // Once we are connected nobody needs the path any more, and nothing is left behind however we end.
        let client = NbdClient::connect(&path, export, PATIENCE)?;
        Ok(Self { client, buffer: pattern(), server: Some(server) })
    }

    /// Connects to an NBD server.
    ///
    /// # Errors
    /// [`SocketError`].
    pub fn existing(path: &Path, export: &str) -> Result<Self, SocketError> {
        let client = NbdClient::connect(path, export, PATIENCE)?;
        Ok(Self { client, buffer: pattern(), server: None })
    }

    /// Bytes of the export.
    pub fn size(&self) -> u64 {
        self.client.size()
    }

    /// Whether the server takes no writes.
    pub fn is_read_only(&self) -> bool {
        self.client.is_read_only()
    }
}

impl Rung for Socket {
    fn name(&self) -> &'static str {
        "socket"
    }

    fn once(&mut self, op: Op, offset: u64) -> Result<(), Failure> {
        debug_assert_eq!(self.buffer.len(), BLOCK as usize);
        match op {
            Op::Read => self.client.read(offset, &mut self.buffer),
            Op::Write => self.client.write(offset, &self.buffer),
        }
        .map_err(|error| match error {
            NbdError::Refused(_) => Failure::Failed(error.to_string()),
            other => Failure::Fatal(other.to_string()),
        })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.client.disconnect();
        if let Some(server) = &mut self.server {
            server.stop(GRACE);
        }
    }
}
