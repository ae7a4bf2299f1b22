//! Named exports, the gates to them, and the lease that lets one client write.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use kaeru_common::error::Status;
use kaeru_common::fabric::tcp::Tcp;
#[cfg(feature = "verbs")]
use kaeru_common::fabric::verbs::Verbs;
use kaeru_common::metrics::Totals;
use kaeru_common::units::{BootId, ExportName, SessionId};
use kaeru_common::wire::activity::Activity;
use kaeru_common::wire::control::{BlockSizes, ExportInfo, ExportKind, Name, Refusal};

use crate::config::ExportConfig;
use crate::gate::Gate;
use crate::lane::Lanes;
use crate::status::LastFailure;
use crate::store::{Store, Target};

/// Bytes that a transfer should have to be fast, as told to programs.
const PREFERRED_BLOCK: u32 = 4096;

/// How long the lanes of a writer whose right is taken may take to end. What a dead network or card takes is less; a disk
/// that does not answer takes as long as it likes.
const FENCING: Duration = Duration::from_secs(5);

/// One export.
pub struct Export {
    /// Its name.
    pub name: ExportName,
    /// What keeps its bytes.
    pub store: Arc<Store>,
    /// Whether nobody may write.
    pub read_only: bool,
    /// Whether several clients may write at once, as cluster file systems do.
    pub shared: bool,
    /// This life of its content.
    pub boot_id: BootId,
    /// The way over tcp, if it is offered.
    pub tcp: Option<Gate<Tcp>>,
    /// The ways over RDMA, one for each device that is offered.
    #[cfg(feature = "verbs")]
    pub verbs: Vec<Gate<Verbs>>,
    /// What its lanes did; those that the server itself serves.
    pub totals: Totals,
    /// The last request that its store could not do.
    pub(crate) failure: LastFailure,
    /// Its lanes that are alive, of all sessions.
    pub(crate) lanes: AtomicUsize,
    lease: Mutex<Option<Lease>>,
}

/// The right to write, while a session has it.
#[derive(Clone)]
struct Lease {
    holder: SessionId,
    client: Name,
    since: Instant,
    lanes: Arc<Lanes>,
}

/// Gives the right to write back when the session ends.
pub(crate) struct Writing {
    export: Arc<Export>,
    session: SessionId,
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.export.end_lease(self.session);
    }
}

impl Export {
    /// An export of `store` with no gate yet.
    pub fn new(config: &ExportConfig, store: Store) -> std::io::Result<Self> {
        let mut boot_id = [0; 16];
        getrandom::fill(&mut boot_id).map_err(|error| std::io::Error::other(error.to_string()))?;
        Ok(Self {
            name: config.name.clone(),
            read_only: config.read_only || store.read_only(),
            store: Arc::new(store),
            shared: config.shared,
            boot_id: BootId(boot_id),
            tcp: None,
            #[cfg(feature = "verbs")]
            verbs: Vec::new(),
            totals: Totals::default(),
            failure: LastFailure::default(),
            lanes: AtomicUsize::new(0),
            lease: Mutex::new(None),
        })
    }

    /// Its block sizes. Any byte of memory may be asked for, and of a file or disk too, but programs are told its block.
    pub fn blocks(&self) -> BlockSizes {
        let least = self.store.block();
        BlockSizes { least, preferred: PREFERRED_BLOCK.max(least) }
    }

    /// What a list calls its store.
    pub fn kind(&self) -> ExportKind {
        match *self.store {
            Store::Ram(_) => ExportKind::Ram,
            Store::Null(_) => ExportKind::Null,
            Store::Staged(ref staged) => match staged.target() {
                Target::File => ExportKind::File,
                Target::Disk => ExportKind::Disk,
            },
        }
    }

    /// As a list shows it.
    pub fn info(&self) -> ExportInfo {
        ExportInfo {
            name: self.name.clone(),
            kind: self.kind(),
            size: self.store.size(),
            read_only: self.read_only,
            blocks: self.blocks(),
            volatile: self.store.volatile(),
            description: Name::clipped(&self.store.description()),
            writer: self.lease().as_ref().map(|lease| lease.client.clone()),
            activity: self.activity(),
            trouble: Name::clipped(&self.trouble().unwrap_or_default()),
        }
    }

    /// What its lanes did so far; `None` where clients reach its memory by themselves.
    pub fn activity(&self) -> Option<Activity> {
        match *self.store {
            Store::Ram(_) | Store::Null(_) => None,
            Store::Staged(_) => Some(Activity::of(&self.totals, Instant::now())),
        }
    }

    /// What is wrong with it, for people.
    pub fn trouble(&self) -> Option<String> {
        let failure = self.failure.describe(Instant::now());
        let troubles: Vec<String> = self.store.trouble().into_iter().chain(failure).collect();
        (!troubles.is_empty()).then(|| troubles.join("; "))
    }

    /// Gives the right to write to a session. With `steal`, the old holder's lanes are torn down first: a late write of
    /// theirs cannot land.
    ///
    /// # Errors
    /// A refusal that names the holder and since when, or says that its lanes do not end.
    pub(crate) async fn start_writing(
        self: &Arc<Self>,
        session: SessionId,
        client: &Name,
        lanes: &Arc<Lanes>,
        steal: bool,
    ) -> Result<Option<Writing>, Refusal> {
        if self.read_only {
            return Err(Refusal::new(Status::ReadOnly, "attach it with --read-only"));
        }
        if self.shared {
            return Ok(None);
        }
        let wanted =
            Lease { holder: session, client: client.clone(), since: Instant::now(), lanes: lanes.clone() };
        let deadline = tokio::time::Instant::now() + FENCING;
        while let Err(held) = self.take_lease(&wanted) {
            if !steal {
                return Err(Refusal::busy(
                    held.client.as_str(),
                    held.since.elapsed().max(Duration::from_secs(1)),
                ));
            }
            tracing::warn!("{client} ends the session of {} to write to {} itself", held.client, self.name);
            if tokio::time::timeout_at(deadline, held.lanes.fence()).await.is_err() {
                return Err(self.not_fenced(&held));
            }
            self.end_lease(held.holder);
        }
        Ok(Some(Writing { export: self.clone(), session }))
    }

    /// Takes the right to write, or says who has it.
    fn take_lease(&self, wanted: &Lease) -> Result<(), Lease> {
        let mut lease = self.lease();
        match &*lease {
            Some(held) => Err(held.clone()),
            None => {
                *lease = Some(wanted.clone());
                Ok(())
            }
        }
    }

    /// Takes the right to write from a session whose lanes have ended, if it still has it.
    fn end_lease(&self, session: SessionId) {
        let mut lease = self.lease();
        if lease.as_ref().is_some_and(|lease| lease.holder == session) {
            *lease = None;
        }
    }

    fn not_fenced(&self, held: &Lease) -> Refusal {
        let text = format!(
            "{} was told to stop, but its last requests have not ended for {} s, and until they have nobody else may \
             write: the server's file or disk does not answer. Look at the server's kernel log (dmesg), and try again",
            held.client,
            FENCING.as_secs()
        );
        Refusal::new(Status::Busy, &text)
    }

    fn lease(&self) -> std::sync::MutexGuard<'_, Option<Lease>> {
        self.lease.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All exports of a server, by name.
pub type Exports = BTreeMap<ExportName, Arc<Export>>;
