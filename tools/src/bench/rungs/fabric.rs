//! The link alone: one-sided READs and WRITEs of the server's memory, comparable with `ib_read_lat`.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use kaeru_client::nbd::lane::Spin;
use kaeru_client::remote::{Failure, Raw};
use kaeru_client::session::Session;
use kaeru_client::with_remote;
use kaeru_common::fabric::buffer::Slot;
use kaeru_common::fabric::{self, Completion, Link, LinkDown, Refused};
use kaeru_common::units::{ByteRange, Pieces};

use super::pieces::{Back, Pieced, Way};
use super::{Lane, Rung, RungError, RungName, Shape, spin_of};
use crate::bench::workload::Op;

/// The links of a session.
pub struct FabricRung {
    session: Arc<Session>,
    spin: Option<Spin>,
    what: String,
}

impl FabricRung {
    /// The rung on `session`, which attached `what`; without `spin`, lanes wait as those of `kaeru` do.
    pub fn new(session: Arc<Session>, what: &str, spin: Option<Spin>) -> Self {
        Self { session, spin, what: what.to_owned() }
    }
}

impl Rung for FabricRung {
    fn name(&self) -> RungName {
        RungName::Fabric
    }

    fn size(&self) -> u64 {
        self.session.granted().size
    }

    fn open(&mut self, shape: &Shape) -> Result<Box<dyn Lane>, RungError> {
        let remote = self.session.open_lane()?;
        let spin = spin_of(self.spin, &self.session);
        with_remote!(remote, remote => {
            let raw = remote.into_raw().ok_or_else(|| RungError::NoFabric(self.what.clone()))?;
            let way = Bare { raw, completions: Vec::with_capacity(64) };
            Ok(Box::new(Pieced::new(way, shape, spin)))
        })
    }
}

struct Bare<L> {
    raw: Raw<L>,
    completions: Vec<Completion>,
}

impl<L: Link> Way for Bare<L> {
    fn slot(&self) -> Option<Slot> {
        self.raw.link.pool().take()
    }

    fn pieces(&self, range: ByteRange) -> Pieces {
        self.raw.pieces(range)
    }

    fn post(&mut self, op: Op, slot: Slot, piece: ByteRange, tag: u64) -> Result<(), Refused> {
        let kind = match op {
            Op::Read => fabric::Op::Read,
            Op::Write => fabric::Op::Write,
        };
        match (self.raw.place(kind, piece), op) {
            (Some(place), Op::Read) => self.raw.link.read(slot, place, tag),
            (Some(place), Op::Write) => self.raw.link.write(slot, place, tag),
            (None, _) => Err(Refused::Dead(slot)),
        }
    }

    fn submit(&mut self) {
        self.raw.link.submit();
    }

    fn poll(&mut self, back: &mut Vec<Back>) {
        self.raw.link.poll(&mut self.completions);
        back.extend(self.completions.drain(..).map(|completion| {
            // Its slot goes back to the pool.
            let Completion { tag, result, .. } = completion;
            Back { tag, result: result.map_err(Failure::Link), spent: None }
        }));
    }

    fn arm(&mut self) -> bool {
        self.raw.link.arm()
    }

    fn woken(&mut self) {
        self.raw.link.woken();
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        self.raw.link.wait_fd()
    }

    fn down(&self) -> Option<&LinkDown> {
        self.raw.link.down()
    }
}
