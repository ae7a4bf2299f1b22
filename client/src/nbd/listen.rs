//! NBD on a Unix socket or a loopback port, for any client: qemu, nbdcopy, nbdfuse, fio. No root, no kernel module.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

use super::front::Front;
use super::handshake::{Exports, Handshake, Negotiated, Next};
use super::lane::{EARLY_BYTES, Stop};

/// How long a client may take for its handshake.
const HANDSHAKE: Duration = Duration::from_secs(30);
/// Connections at once, in handshake or served.
const CONNECTIONS: usize = 512;

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A Unix socket at this path.
    Unix(PathBuf),
    /// A TCP port of this machine.
    Tcp(SocketAddr),
}

/// Why nothing can be served there.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another program serves that socket.
    #[error("{} is served by another program; stop it, or pass another --socket", .0.display())]
    InUse(PathBuf),
    /// Something that is no socket has that name.
    #[error("{} exists and is no socket; it stays as it is: pass another --socket", .0.display())]
    NotASocket(PathBuf),
    /// Anybody could write to the export.
    #[error(
        "{0} is reachable from other machines, and NBD clients are not authenticated here; listen on 127.0.0.1"
    )]
    NotLoopback(SocketAddr),
    /// The system refused.
    #[error("cannot listen on {address}: {source}")]
    System {
        /// Where.
        address: String,
        /// Its error.
        source: io::Error,
    },
    /// The export cannot be offered over NBD.
    #[error(transparent)]
    Export(#[from] super::handshake::ExportError),
}

impl std::fmt::Display for Address {
    /// As an NBD URI without the export.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "nbd+unix:///?socket={}", path.display()),
            Self::Tcp(address) => write!(f, "nbd://{address}"),
        }
    }
}

/// A bound socket; removes its path when it is dropped.
enum Socket {
    Unix(UnixListener, PathBuf),
    Tcp(TcpListener),
}

impl Socket {
    fn bind(address: &Address) -> Result<Self, ListenError> {
        let system = |source| ListenError::System { address: address.to_string(), source };
        match address {
            Address::Unix(path) => {
                make_way(path)?;
                let listener = UnixListener::bind(path).map_err(system)?;
                listener.set_nonblocking(true).map_err(system)?;
                Ok(Self::Unix(listener, path.clone()))
            }
            Address::Tcp(wanted) if !wanted.ip().is_loopback() => Err(ListenError::NotLoopback(*wanted)),
            Address::Tcp(wanted) => {
                let listener = TcpListener::bind(wanted).map_err(system)?;
                listener.set_nonblocking(true).map_err(system)?;
                Ok(Self::Tcp(listener))
            }
        }
    }

    fn address(&self) -> io::Result<Address> {
        match self {
            Self::Unix(_, path) => Ok(Address::Unix(path.clone())),
            Self::Tcp(listener) => listener.local_addr().map(Address::Tcp),
        }
    }

    fn accept(&self) -> io::Result<Client> {
        match self {
            Self::Unix(listener, _) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(false)?;
                Ok(Client::Unix(stream))
            }
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(false)?;
                stream.set_nodelay(true)?;
                Ok(Client::Tcp(stream))
            }
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(listener, _) => listener.as_fd(),
            Self::Tcp(listener) => listener.as_fd(),
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Removes a socket that nobody serves any more, as a killed process leaves it.
fn make_way(path: &std::path::Path) -> Result<(), ListenError> {
    use std::os::unix::fs::FileTypeExt;

    let Ok(found) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !found.file_type().is_socket() {
        return Err(ListenError::NotASocket(path.to_owned()));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            let _ = std::fs::remove_file(path);
            Ok(())
        }
        _ => Err(ListenError::InUse(path.to_owned())),
    }
}

/// An export being served on a socket. Dropping it stops.
pub struct NbdServer {
    front: Arc<Front>,
    address: Address,
    accepting: Option<JoinHandle<()>>,
    connections: Connections,
}

/// How many clients are connected.
#[derive(Clone, Debug, Default)]
pub struct Connections(Arc<AtomicUsize>);

impl Connections {
    /// So many at this moment.
    pub fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Waits until there are none, up to `patience`. Whether that came about.
    pub fn end_within(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        while self.count() > 0 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.count() == 0
    }

    fn enter(&self) -> Connected {
        self.0.fetch_add(1, Ordering::Relaxed);
        Connected(self.clone())
    }
}

/// One of the connections, while it lives.
struct Connected(Connections);

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl NbdServer {
    /// Listens on `address` and serves every client that comes.
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn start(front: Arc<Front>, address: &Address) -> Result<Self, ListenError> {
        let exports = Exports::new(vec![front.export()])?;
        let socket = Socket::bind(address)?;
        let system = |source| ListenError::System { address: address.to_string(), source };
        let bound = socket.address().map_err(system)?;
        let connections = Connections::default();
        let (serve, count) = (front.clone(), connections.clone());
        let run = move || accept_all(&socket, &serve, &exports, &count);
        let accepting = std::thread::Builder::new().name("nbd-accept".into()).spawn(run).map_err(system)?;
        Ok(Self { front, address: bound, accepting: Some(accepting), connections })
    }

    /// Where it listens, with the port that the system chose.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The clients that are connected.
    pub fn connections(&self) -> &Connections {
        &self.connections
    }

    /// Takes no more clients, lets the lanes answer what they have taken, and returns when they have ended or after
    /// `patience`.
    pub fn stop(&mut self, patience: Duration) {
        self.front.stop().stop();
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
        self.connections.end_within(patience);
    }
}

impl Drop for NbdServer {
    fn drop(&mut self) {
        self.stop(Duration::ZERO);
    }
}

fn accept_all(socket: &Socket, front: &Arc<Front>, exports: &Exports, connections: &Connections) {
    while !front.stop().is_stopped() {
        match socket.accept() {
            Ok(client) => start_client(client, front, exports, connections),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let mut fds = [PollFd::new(socket, PollFlags::IN), PollFd::new(front.stop(), PollFlags::IN)];
                let _ = poll(&mut fds, None);
            }
            Err(error) => {
                tracing::warn!("could not accept an NBD client: {error}");
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }
}

fn start_client(client: Client, front: &Arc<Front>, exports: &Exports, connections: &Connections) {
    if connections.count() >= CONNECTIONS {
        return tracing::warn!("an NBD client is turned away: {CONNECTIONS} are connected already");
    }
    let (front, exports, connected) = (front.clone(), exports.clone(), connections.enter());
    let run = move || {
        serve_client(client, &front, exports);
        drop(connected);
    };
    if let Err(error) = std::thread::Builder::new().name("nbd-client".into()).spawn(run) {
        tracing::error!("no thread for an NBD client: {error}");
    }
}

fn serve_client(mut client: Client, front: &Front, exports: Exports) {
    let (negotiated, early) = match shake_hands(&mut client, exports, front.stop()) {
        Ok(Some(agreed)) => agreed,
        Ok(None) => return,
        Err(error) => return tracing::info!("an NBD client's handshake failed: {error}"),
    };
    match front.serve(client.into(), &early, front.terms(&negotiated)) {
        Ok(end) => tracing::debug!("an NBD client is done: {end}"),
        Err(error) => tracing::error!("an NBD client is turned away: {error}"),
    }
}

/// What a handshake came to, and the bytes of the next phase that came with it.
type Agreed = (Negotiated, Vec<u8>);

/// Negotiates with a client. Returns what was agreed and the bytes that came behind it; `None` where the client left, or
/// we are to stop.
fn shake_hands(
    client: &mut Client,
    exports: Exports,
    stop: &Stop,
) -> Result<Option<Agreed>, Box<dyn std::error::Error>> {
    let deadline = Instant::now() + HANDSHAKE;
    let mut handshake = Handshake::new(exports);
    // No larger than what a lane takes over.
    let mut buffer = [0; EARLY_BYTES];
    let mut pending = 0..0;
    loop {
        match handshake.poll() {
            Next::Send(bytes) => {
                client.set_patience(deadline)?;
                client.write_all(&bytes)?;
            }
            Next::Receive if pending.is_empty() => {
                // A client that says nothing must not hold up the end.
                if !client.wait(stop, deadline)? {
                    return Ok(None);
                }
                client.set_patience(deadline)?;
                match client.read(&mut buffer)? {
                    0 => return Ok(None),
                    got => pending = 0..got,
                }
            }
            Next::Receive => pending.start += handshake.receive(&buffer[pending.clone()]),
            Next::Go(negotiated) => return Ok(Some((negotiated, buffer[pending].to_vec()))),
            Next::Aborted => return Ok(None),
            Next::Failed(error) => return Err(error.into()),
        }
    }
}

/// A connected client.
enum Client {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Client {
    /// Bounds the next read and write by what is left until `deadline`.
    fn set_patience(&self, deadline: Instant) -> io::Result<()> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match self {
            Self::Unix(stream) => {
                stream.set_read_timeout(Some(left))?;
                stream.set_write_timeout(Some(left))
            }
            Self::Tcp(stream) => {
                stream.set_read_timeout(Some(left))?;
                stream.set_write_timeout(Some(left))
            }
        }
    }
}

impl Client {
    /// Waits until there is something to read; `false` where we are to stop.
    fn wait(&self, stop: &Stop, deadline: Instant) -> io::Result<bool> {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = left.try_into().map_err(io::Error::other)?;
        let mut fds = [PollFd::new(self, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(!stop.is_stopped()),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(stream) => stream.as_fd(),
            Self::Tcp(stream) => stream.as_fd(),
        }
    }
}

impl Read for Client {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.read(buffer),
            Self::Tcp(stream) => stream.read(buffer),
        }
    }
}

impl Write for Client {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.write(bytes),
            Self::Tcp(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl From<Client> for OwnedFd {
    fn from(client: Client) -> Self {
        match client {
            Client::Unix(stream) => stream.into(),
            Client::Tcp(stream) => stream.into(),
        }
    }
}
