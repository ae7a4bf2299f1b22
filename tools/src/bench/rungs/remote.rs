//! The client's library, used as a lane uses it.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use kaeru_client::nbd::lane::Spin;
use kaeru_client::remote::{Answer, Remote};
use kaeru_client::session::Session;
use kaeru_client::with_remote;
use kaeru_common::fabric::buffer::Slot;
use kaeru_common::fabric::{Link, LinkDown, Refused};
use kaeru_common::units::{ByteRange, Pieces};

use super::pieces::{Back, Pieced, Way};
use super::{Lane, Rung, RungError, RungName, Shape, spin_of};
use crate::bench::workload::Op;

/// The client's library on a session.
pub struct RemoteRung {
    session: Arc<Session>,
    spin: Option<Spin>,
}

impl RemoteRung {
    /// The rung on `session`; without `spin`, lanes wait as those of `kaeru` do.
    pub fn new(session: Arc<Session>, spin: Option<Spin>) -> Self {
        Self { session, spin }
    }
}

impl Rung for RemoteRung {
    fn name(&self) -> RungName {
        RungName::Remote
    }

    fn size(&self) -> u64 {
        self.session.granted().size
    }

    fn open(&mut self, shape: &Shape) -> Result<Box<dyn Lane>, RungError> {
        let remote = self.session.open_lane()?;
        let spin = spin_of(self.spin, &self.session);
        Ok(with_remote!(remote, remote => {
            let way = Library { remote, answers: Vec::with_capacity(64) };
            Box::new(Pieced::new(way, shape, spin))
        }))
    }
}

struct Library<L> {
    remote: Remote<L>,
    answers: Vec<Answer>,
}

impl<L: Link> Way for Library<L> {
    fn slot(&self) -> Option<Slot> {
        self.remote.slot()
    }

    fn pieces(&self, range: ByteRange) -> Pieces {
        self.remote.pieces(range)
    }

    fn post(&mut self, op: Op, slot: Slot, piece: ByteRange, tag: u64) -> Result<(), Refused> {
        match op {
            Op::Read => self.remote.read(slot, piece, tag),
            Op::Write => self.remote.write(slot, piece, false, tag),
        }
    }

    fn submit(&mut self) {
        self.remote.submit();
    }

    fn poll(&mut self, back: &mut Vec<Back>) {
        self.remote.poll(&mut self.answers);
        back.extend(self.answers.drain(..).map(|answer| {
            // Its slot goes back to the pool.
            let Answer { tag, result, spent, .. } = answer;
            Back { tag, result, spent }
        }));
    }

    fn arm(&mut self) -> bool {
        self.remote.arm()
    }

    fn woken(&mut self) {
        self.remote.woken();
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        self.remote.wait_fd()
    }

    fn down(&self) -> Option<&LinkDown> {
        self.remote.down()
    }
}
