//! What every NBD front end shares: how an export looks over NBD, and the lanes that serve its connections.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kaeru_common::fabric::FabricKind;
use kaeru_common::metrics::{LaneCounters, Totals};

use super::handshake::{BlockSizes, ExportInfo, Negotiated};
use super::lane::{Lane, LaneConfig, LaneEnd, Spin, Stop, longest_whole_read};
use super::proto::{MAX_REQUEST, TransmissionFlags};
use super::transmission::ExportLimits;
use crate::session::{AnyRemote, Session, SessionError};
use crate::with_remote;

/// How lanes are to run.
#[derive(Clone, Copy, Debug)]
pub struct LaneOptions {
    /// Spinning before sleeping; `None` leaves it to the fabric.
    pub spin: Option<Spin>,
    /// A server that owes answers and gives none for this long is given up.
    pub patience: Duration,
}

impl Default for LaneOptions {
    fn default() -> Self {
        Self { spin: None, patience: Duration::from_secs(30) }
    }
}

/// A lane that is ready to serve a connection.
struct Ready {
    remote: AnyRemote,
    counters: Arc<LaneCounters>,
}

impl Ready {
    /// Whether its link lives: it may have died while it was idle, and nobody looked.
    fn is_alive(&mut self) -> bool {
        with_remote!(&mut self.remote, remote => {
            remote.woken();
            // Nothing was asked for, so nothing is lost in here.
            remote.poll(&mut Vec::new());
            remote.down().is_none()
        })
    }
}

/// One attached export as NBD connections see it.
pub struct Front {
    session: Arc<Session>,
    name: String,
    options: LaneOptions,
    stop: Stop,
    /// Lanes that serve nobody at the moment.
    idle: Mutex<Vec<Ready>>,
    totals: Totals,
}

impl Front {
    /// A front of `session`, which attached the export `name`.
    pub fn new(session: Arc<Session>, name: &str, options: LaneOptions, stop: Stop) -> Arc<Self> {
        let (idle, totals) = (Mutex::default(), Totals::default());
        Arc::new(Self { session, name: name.to_owned(), options, stop, idle, totals })
    }

    /// The session behind it.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The handle that ends its lanes.
    pub fn stop(&self) -> &Stop {
        &self.stop
    }

    /// The transmission flags of the export.
    pub fn flags(&self) -> TransmissionFlags {
        use TransmissionFlags as F;
        let always =
            F::HAS_FLAGS.union(F::SEND_FLUSH).union(F::SEND_FUA).union(F::SEND_DF).union(F::CAN_MULTI_CONN);
        match self.session.granted().read_only {
            true => always.union(F::READ_ONLY),
            false => always.union(F::SEND_TRIM).union(F::SEND_WRITE_ZEROES),
        }
    }

    /// The export as a handshake offers it.
    pub fn export(&self) -> ExportInfo {
        let granted = self.session.granted();
        let volatile = if granted.volatile { ", volatile" } else { "" };
        ExportInfo {
            name: self.name.clone(),
            description: format!("{} of {}{volatile}", self.name, self.session.welcome().server),
            size: granted.size,
            flags: self.flags(),
            block: BlockSizes {
                min: granted.blocks.least,
                preferred: granted.blocks.preferred,
                max: MAX_REQUEST,
            },
        }
    }

    /// What the kernel's connections agreed on, which have no handshake.
    pub fn kernel_terms(&self, size: u64) -> LaneConfig {
        let limits = ExportLimits {
            size,
            flags: self.flags(),
            base_allocation: false,
            min_block: 1,
            max_request: MAX_REQUEST,
        };
        self.lane_config(limits, false)
    }

    /// What a client's handshake agreed on.
    pub fn terms(&self, negotiated: &Negotiated) -> LaneConfig {
        let limits = ExportLimits {
            size: self.session.granted().size,
            flags: negotiated.flags,
            base_allocation: negotiated.base_allocation,
            min_block: self.session.granted().blocks.least,
            max_request: MAX_REQUEST,
        };
        self.lane_config(limits, negotiated.structured)
    }

    fn lane_config(&self, limits: ExportLimits, structured: bool) -> LaneConfig {
        let hole = self.session.is_all_hole();
        // A card answers within microseconds, a TCP peer has to be scheduled first: spinning would only be in its way.
        let verbs = self.session.route().is_some_and(|route| route.fabric == FabricKind::Verbs);
        let budget = if verbs { Duration::from_micros(20) } else { Duration::ZERO };
        let spin = self.options.spin.unwrap_or(Spin::For(budget));
        LaneConfig { limits, structured, hole, spin, patience: self.options.patience }
    }

    /// Serves a connection in its transmission phase until it ends. `early` are bytes of it that were received already.
    ///
    /// # Errors
    /// Where there is no idle lane and no new one can be opened.
    pub fn serve(&self, socket: OwnedFd, early: &[u8], config: LaneConfig) -> Result<LaneEnd, SessionError> {
        let ready = self.lane()?;
        Ok(self.serve_on(ready, socket, early, config))
    }

    fn serve_on(&self, ready: Ready, socket: OwnedFd, early: &[u8], config: LaneConfig) -> LaneEnd {
        let Ready { remote, counters } = ready;
        let (stop, count) = (self.stop.clone(), counters.clone());
        let (remote, end): (AnyRemote, LaneEnd) = with_remote!(remote, remote => {
            let (remote, end) = Lane::new(remote, socket, config, stop, count).with_early(early).run();
            (remote.into(), end)
        });
        self.put_back(Ready { remote, counters });
        end
    }

    /// Opens `count` lanes for later connections.
    ///
    /// # Errors
    /// Where one cannot be opened; those that were stay.
    pub fn open_lanes(&self, count: usize) -> Result<(), SessionError> {
        for _ in 0..count {
            let ready = self.new_lane()?;
            self.put_back(ready);
        }
        Ok(())
    }

    /// Bytes of the longest read that every idle lane answers whole, so that its failure is one request's only.
    pub fn longest_whole_read(&self) -> u64 {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let longest =
            idle.iter().map(|ready| with_remote!(&ready.remote, remote => longest_whole_read(remote)));
        longest.min().unwrap_or(u64::MAX)
    }

    /// What all its lanes did so far, whether they serve or are idle.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    fn lane(&self) -> Result<Ready, SessionError> {
        let take = || self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        while let Some(mut ready) = take() {
            if ready.is_alive() {
                return Ok(ready);
            }
            self.close(ready);
        }
        self.new_lane()
    }

    fn new_lane(&self) -> Result<Ready, SessionError> {
        let remote = self.session.open_lane()?;
        Ok(Ready { remote, counters: self.totals.open() })
    }

    fn put_back(&self, ready: Ready) {
        if with_remote!(&ready.remote, remote => remote.down().is_some()) {
            return self.close(ready);
        }
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(ready);
    }

    fn close(&self, ready: Ready) {
        self.totals.close(&ready.counters);
    }
}
