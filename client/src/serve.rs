//! `kaeru nbd`: an export served as NBD on a socket, in the foreground.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use kaeru_common::units::Size;
use tokio::sync::watch;

use crate::args::Nbd;
use crate::attachment::Attachment;
use crate::background::{Detached, Note, Presence};
use crate::nbd::front::Front;
use crate::nbd::lane::Stop;
use crate::nbd::listen::{Address, Connections, ListenError, NbdServer};
use crate::session::{Session, SessionError};
use crate::signals::{End, Signals};

/// How long requests that were taken may go on after we were asked to end.
const GRACE: Duration = Duration::from_secs(10);

/// How long clients that are just leaving may take.
const LEAVING: Duration = Duration::from_millis(500);

/// Why an export is not served, or not any more.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// No session.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// No socket.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The server went away.
    #[error("{0}; clients get I/O errors from now on, so this ends")]
    Lost(String),
    /// The system refused.
    #[error("cannot serve: {0}")]
    System(#[from] io::Error),
}

/// Attaches the export and serves it until a signal comes, `kaeru detach` asks, or the server is lost.
///
/// # Errors
/// [`ServeError`].
pub fn run(nbd: &Nbd, out: &mut impl Write) -> Result<(), ServeError> {
    let address = match (&nbd.socket, nbd.listen) {
        (Some(path), _) => Address::Unix(std::path::absolute(path)?),
        (None, Some(address)) => Address::Tcp(address),
        (None, None) => return Err(io::Error::other("neither --socket nor --listen").into()),
    };
    let session = Arc::new(Session::attach(&nbd.common.target, nbd.common.attach_options())?);
    let name = nbd.common.target.export.as_str();
    let front = Front::new(session.clone(), name, nbd.common.lane_options(), Stop::new()?);
    // One lane now, so that a fabric that cannot be had is an error here and not at the first client.
    front.open_lanes(1)?;
    let mut signals = Signals::catch()?;
    let mut server = NbdServer::start(front.clone(), &address)?;
    let (ask, asked) = watch::channel(false);
    let note = Note {
        pid: std::process::id(),
        target: nbd.common.target.to_string(),
        device: None,
        backend: None,
        listen: Some(server.address().to_string()),
    };
    let connections = server.connections().clone();
    let what = format!("{} at {}", note.target, server.address());
    let let_go = move |force: bool| leave(&what, &connections, force);
    let attachment = Attachment::new(front.clone(), note.clone(), ask, Box::new(let_go));
    let presence = Presence::announce(&format!("nbd-{}", note.pid), &note, Arc::new(attachment))?;
    announce(&session, &nbd.common.target.to_string(), &server, out)?;
    let end = signals.wait(session.health(), asked, false);
    drop(presence);
    server.stop(GRACE);
    session.end();
    match end {
        End::Closed(reason) => Err(ServeError::Lost(reason)),
        End::Signal | End::Asked => Ok(()),
    }
}

/// Whether `kaeru detach` may end this: not while somebody uses it, unless by force.
fn leave(what: &str, connections: &Connections, force: bool) -> Detached {
    let clients = |count: usize| format!("{count} NBD client{}", if count == 1 { " is" } else { "s are" });
    let unused = connections.end_within(LEAVING);
    let count = connections.count();
    match (unused, force) {
        (true, _) => Detached::Done(format!("{what} is not served any more")),
        (false, true) => {
            tracing::warn!("kaeru detach --force ends this: {} disconnected", clients(count));
            Detached::Done(format!("{what} is not served any more; {} disconnected", clients(count)))
        }
        (false, false) => {
            Detached::Refused(format!("{} connected; disconnect first, or --force", clients(count)))
        }
    }
}

fn announce(session: &Session, target: &str, server: &NbdServer, out: &mut impl Write) -> io::Result<()> {
    let granted = session.granted();
    let mode = if granted.read_only { "read-only" } else { "read-write" };
    writeln!(out, "{target}: {}, {mode}", Size(granted.size))?;
    if let Some(route) = session.route() {
        writeln!(out, "over {} to {} ({})", route.fabric, route.address, route.why)?;
    }
    writeln!(out, "serving {}", server.address())?;
    out.flush()
}
