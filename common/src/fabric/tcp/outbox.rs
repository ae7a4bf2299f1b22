//! The outgoing direction: a short queue of frames that the socket has not taken entirely.
//!
//! Frames are staged only as fast as the socket takes them, so that an ACK never waits behind more than
//! [`FRAMES`] others and says what is true when it is staged.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;

use super::frame::{Frame, HEADER};
use super::initiator::Initiator;
use super::regions::{Regions, Target};
use crate::fabric::buffer::{MAX_SPANS, Span, transmit};

/// The most frames that are staged; each is at most two spans of one call.
const FRAMES: usize = 64;
const _: () = assert!(FRAMES * 2 <= MAX_SPANS);

/// Where the payload of a frame is sent from.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source {
    /// It has none.
    Nothing,
    /// The slot of our write or send of this number.
    Placement { seq: u64, length: u32 },
    /// A region of ours that the peer reads.
    Region(Target),
}

impl Source {
    fn length(&self) -> usize {
        match self {
            Self::Nothing => 0,
            Self::Placement { length, .. } => *length as usize,
            Self::Region(target) => target.length as usize,
        }
    }
}

#[derive(Debug)]
struct Staged {
    header: [u8; HEADER],
    source: Source,
}

impl Staged {
    fn length(&self) -> usize {
        HEADER + self.source.length()
    }
}

/// What one call moved.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Moved {
    /// Bytes that the socket took.
    pub(super) bytes: usize,
    /// Placements that it has entirely now.
    pub(super) placements: u64,
    /// Answers to reads that it has entirely now.
    pub(super) answers: u64,
}

#[derive(Debug)]
pub(super) struct Outbox {
    frames: VecDeque<Staged>,
    /// Bytes of the first frame that the socket has taken.
    taken: usize,
    /// Whether the socket took less than there was.
    blocked: bool,
}

impl Outbox {
    pub(super) fn new() -> Self {
        Self { frames: VecDeque::with_capacity(FRAMES), taken: 0, blocked: false }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Whether the socket has to make room before anything else can be sent.
    pub(super) fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// How many frames there is room for.
    pub(super) fn room(&self) -> usize {
        FRAMES - self.frames.len()
    }

    /// Stages a frame; there must be room.
    pub(super) fn push(&mut self, (frame, source): (Frame, Source)) {
        debug_assert!(self.room() > 0);
        self.frames.push_back(Staged { header: frame.encode(), source });
    }

    /// Forgets every frame that has not begun to leave.
    pub(super) fn keep_begun(&mut self) {
        self.frames.truncate(usize::from(self.taken > 0));
    }

    /// Hands as much as it takes to the socket, in one call.
    pub(super) fn transmit(
        &mut self,
        socket: BorrowedFd<'_>,
        initiator: &Initiator,
        regions: &Regions,
    ) -> io::Result<Moved> {
        let mut spans = [Span::EMPTY; MAX_SPANS];
        let (mut count, mut total, mut skip) = (0, 0, self.taken);
        for frame in &self.frames {
            if skip < HEADER {
                spans[count] = Span::of(&frame.header[skip..]);
                count += 1;
            }
            let from = skip.saturating_sub(HEADER);
            let left = frame.source.length() - from;
            if left > 0 {
                spans[count] = match &frame.source {
                    Source::Nothing => Span::EMPTY,
                    Source::Placement { seq, .. } => initiator.slot(*seq).span(from, left),
                    Source::Region(target) => {
                        let (memory, start) = regions.resolve(target);
                        memory.span(start + from, left)
                    }
                };
                count += 1;
            }
            total += frame.length() - skip;
            skip = 0;
        }
        let bytes = match transmit(socket, &spans[..count]) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            Err(error) => return Err(error),
        };
        self.blocked = bytes < total;
        Ok(self.advance(bytes))
    }

    /// Drops the frames that `bytes` more bytes complete.
    fn advance(&mut self, bytes: usize) -> Moved {
        let mut moved = Moved { bytes, ..Moved::default() };
        self.taken += bytes;
        while let Some(first) = self.frames.front() {
            if self.taken < first.length() {
                break;
            }
            self.taken -= first.length();
            match first.source {
                Source::Nothing => {}
                Source::Placement { .. } => moved.placements += 1,
                Source::Region(_) => moved.answers += 1,
            }
            self.frames.pop_front();
        }
        moved
    }
}
