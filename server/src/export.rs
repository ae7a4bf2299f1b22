//! Named exports, the gates to them, and the lease that lets one client write.

use std::collections::BTreeMap;
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
        let mut lease = self.export.lease();
        if lease.as_ref().is_some_and(|lease| lease.holder == self.session) {
            *lease = None;
        }
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

    /// Gives the right to write to a session. With `steal`, the old holder's lanes are torn down first, which blocks
    /// until they are: a late write of theirs cannot land.
    ///
    /// # Errors
    /// A refusal that names the holder and since when.
    pub(crate) fn start_writing(
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
        loop {
            let mut lease = self.lease();
            let Some(held) = lease.clone() else {
                *lease = Some(Lease {
                    holder: session,
                    client: client.clone(),
                    since: Instant::now(),
                    lanes: lanes.clone(),
                });
                return Ok(Some(Writing { export: self.clone(), session }));
            };
            drop(lease);
            if !steal {
                return Err(Refusal::busy(
                    held.client.as_str(),
                    held.since.elapsed().max(Duration::from_secs(1)),
                ));
            }
            tracing::warn!("{client} takes the right to write to {} from {}", self.name, held.client);
            held.lanes.fence();
            let mut lease = self.lease();
            if lease.as_ref().is_some_and(|lease| lease.holder == held.holder) {
                *lease = None;
            }
        }
    }

    fn lease(&self) -> std::sync::MutexGuard<'_, Option<Lease>> {
        self.lease.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All exports of a server, by name.
pub type Exports = BTreeMap<ExportName, Arc<Export>>;
