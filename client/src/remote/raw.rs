//! The link of a lane without the library on top, for who measures the fabric alone.

use kaeru_common::fabric::{Link, Op, RemoteRange};
use kaeru_common::units::{ByteRange, Pieces};

use super::direct::Layout;
use super::{Remote, Way};

/// A link, and where the bytes of a RAM export lie behind it.
#[derive(Debug)]
pub struct Raw<L> {
    /// The link.
    pub link: L,
    layout: Layout,
    window: u64,
    piece: u64,
}

impl<L: Link> Remote<L> {
    /// Takes the link out. `None` where the server has a hand in every operation, as it has on files and disks.
    pub fn into_raw(self) -> Option<Raw<L>> {
        let Self { link, way, window, piece, .. } = self;
        match way {
            Way::Direct(layout) => Some(Raw { link, layout, window, piece }),
            Way::Staged(_) => None,
        }
    }
}

impl<L: Link> Raw<L> {
    /// As [`Remote::pieces`].
    pub fn pieces(&self, range: ByteRange) -> Pieces {
        range.pieces(self.piece, self.window)
    }

    /// Where one piece lies in the server's memory.
    pub fn place(&self, op: Op, piece: ByteRange) -> Option<RemoteRange> {
        self.layout.place(op, piece, self.window)
    }
}
