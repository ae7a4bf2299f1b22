//! The requests that a front end has taken and not yet answered.
//!
//! A request lives here from the moment it is taken until its one answer. Its slots do not: they are in the link, and
//! come back with the request's [`RequestId`], and their place in it, as their tag.

use std::time::Instant;

use kaeru_common::units::{ByteRange, Pieces};

use crate::nbd::proto::NbdError;
use crate::nbd::stamps::Marks;
use crate::nbd::transmission::Request;
use crate::remote::Extents;

/// Names a request while it is in flight; the tag of its operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestId(u32);

impl RequestId {
    /// As the tag of an operation on the request as a whole.
    pub fn tag(self) -> u64 {
        u64::from(self.0)
    }

    /// As the tag of an operation on the piece that begins `at` bytes into the request, which is below 4 GiB.
    pub fn tag_at(self, at: u64) -> u64 {
        debug_assert!(at <= u64::from(u32::MAX), "a request has less than 4 GiB");
        u64::from(self.0) | at << 32
    }

    /// From the tag of an answer: the request, and where in it the piece begins.
    pub fn from_tag(tag: u64) -> (Self, u32) {
        (Self(tag as u32), (tag >> 32) as u32)
    }
}

/// A request under way.
#[derive(Debug)]
pub struct InFlight {
    /// What the client asked for.
    pub request: Request,
    /// When it was taken.
    pub since: Instant,
    /// The pieces that are not posted yet (for a write: whose payload has not been received yet).
    pub left: Pieces,
    /// Pieces that the link has.
    pub outstanding: u32,
    /// The first thing that went wrong.
    pub error: Option<NbdError>,
    /// Whether all pieces were posted, or given up after an error.
    pub posted: bool,
    /// Whether it is answered bit by bit, because it is too long to be held back whole.
    pub streaming: bool,
    /// Bytes of such an answer that were sent already.
    pub sent: u64,
    /// Pieces of a read that are held back.
    pub held: usize,
    /// What a question for extents found.
    pub extents: Extents,
    /// When it passed where, if anybody wants to know.
    pub marks: Marks,
}

impl InFlight {
    /// A request that was just taken, to be done in these pieces.
    pub fn new(request: Request, pieces: Pieces) -> Self {
        Self {
            request,
            since: Instant::now(),
            left: pieces,
            outstanding: 0,
            error: None,
            posted: false,
            streaming: false,
            sent: 0,
            held: 0,
            extents: Extents::default(),
            marks: Marks::default(),
        }
    }

    /// The tag of the operation on `piece`, for the request `id`.
    pub fn tag(&self, id: RequestId, piece: ByteRange) -> u64 {
        id.tag_at(piece.offset().saturating_sub(self.request.offset))
    }

    /// Whether nothing is left but to answer it.
    pub fn is_over(&self) -> bool {
        self.posted && self.outstanding == 0
    }

    /// Notes that it failed; the first failure counts.
    pub fn fail(&mut self, error: NbdError) {
        self.error.get_or_insert(error);
    }
}

/// A fixed table of requests.
#[derive(Debug)]
pub struct Table {
    entries: Vec<Option<InFlight>>,
    free: Vec<u32>,
}

impl Table {
    /// Room for `limit` requests.
    pub fn new(limit: u32) -> Self {
        Self { entries: (0..limit).map(|_| None).collect(), free: (0..limit).rev().collect() }
    }

    /// How many requests there are.
    pub fn count(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Whether there is no room for another.
    pub fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// Takes a request in; `None` when the table is full.
    pub fn insert(&mut self, request: InFlight) -> Option<RequestId> {
        let index = self.free.pop()?;
        self.entries[index as usize] = Some(request);
        Some(RequestId(index))
    }

    /// The request of this name.
    pub fn get(&mut self, id: RequestId) -> Option<&mut InFlight> {
        self.entries.get_mut(id.0 as usize)?.as_mut()
    }

    /// Takes the request out, to be answered.
    pub fn remove(&mut self, id: RequestId) -> Option<InFlight> {
        let request = self.entries.get_mut(id.0 as usize)?.take()?;
        self.free.push(id.0);
        Some(request)
    }
}
