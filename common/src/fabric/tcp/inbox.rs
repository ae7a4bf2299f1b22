//! The incoming direction: a small stage for headers, and the payload that is on its way to its place.

use super::frame::HEADER;
use super::initiator::Operation;
use super::regions::{Regions, Target};
use super::responder::Posted;
use crate::fabric::buffer::SpanMut;

/// Bytes of the stage. Enough for several pages with their headers, so that one call takes many small transfers, at a short
/// copy each.
const STAGE: usize = 8 * (4096 + 2 * HEADER);

/// Bytes of it that are used while transfers are large: of those nearly all is to go straight to its place.
const STAGE_OF_LARGE: usize = 4096 + 4 * HEADER;

/// Bytes from which a transfer is large.
const LARGE: u32 = 16 << 10;

/// Where a payload goes.
#[derive(Debug)]
pub(super) enum Place {
    /// The peer writes to a region of ours.
    Region(Target),
    /// A message of the peer.
    Recv(Posted),
    /// The answer to a read of ours.
    Read(Operation),
}

/// A payload that has not all arrived. It owns its slot, so nothing else can complete it meanwhile.
#[derive(Debug)]
pub(super) struct Payload {
    pub(super) place: Place,
    pub(super) length: u32,
    arrived: usize,
}

impl Payload {
    pub(super) fn new(place: Place, length: u32) -> Self {
        Self { place, length, arrived: 0 }
    }

    pub(super) fn missing(&self) -> usize {
        self.length as usize - self.arrived
    }

    /// The place of the bytes that are missing.
    pub(super) fn span_mut<'a>(&'a mut self, regions: &'a Regions) -> SpanMut<'a> {
        let (at, missing) = (self.arrived, self.missing());
        match &mut self.place {
            Place::Region(target) => {
                let (memory, start) = regions.resolve(target);
                memory.span_mut(start + at, missing)
            }
            Place::Recv(posted) => posted.slot.span_mut(at, missing),
            Place::Read(operation) => operation.slot.span_mut(at, missing),
        }
    }

    fn copy_from(&mut self, regions: &Regions, bytes: &[u8]) {
        let at = self.arrived;
        match &mut self.place {
            Place::Region(target) => {
                let (memory, start) = regions.resolve(target);
                memory.copy_from(start + at, bytes);
            }
            Place::Recv(posted) => posted.slot.copy_from(at, bytes),
            Place::Read(operation) => operation.slot.copy_from(at, bytes),
        }
        self.arrived += bytes.len();
    }
}

#[derive(Debug)]
pub(super) struct Inbox {
    stage: Box<[u8; STAGE]>,
    /// The bytes of the stage that are not looked at yet. None are left while a payload is on its way.
    start: usize,
    end: usize,
    pub(super) payload: Option<Payload>,
    /// Whether the last transfer was large; the next one probably is what the last one was.
    large: bool,
}

impl Inbox {
    pub(super) fn new() -> Self {
        Self { stage: Box::new([0; STAGE]), start: 0, end: 0, payload: None, large: false }
    }

    /// The free part of the stage and the payload that goes ahead of it. Less than a header is moved to make room.
    pub(super) fn room(&mut self) -> (&mut [u8], Option<&mut Payload>) {
        self.stage.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        if let Some(payload) = &self.payload {
            self.large = payload.length >= LARGE;
        }
        let until = if self.large { STAGE_OF_LARGE.max(self.end + HEADER) } else { STAGE };
        (&mut self.stage[self.end..until], self.payload.as_mut())
    }

    /// `bytes` were received, first into the payload, then into the stage.
    pub(super) fn received(&mut self, bytes: usize) {
        let mut direct = 0;
        if let Some(payload) = &mut self.payload {
            direct = bytes.min(payload.missing());
            payload.arrived += direct;
        }
        self.end += bytes - direct;
    }

    /// The payload, if it is complete with what the stage has of it.
    pub(super) fn take_complete(&mut self, regions: &Regions) -> Option<Payload> {
        let payload = self.payload.as_mut()?;
        let here = payload.missing().min(self.end - self.start);
        if here > 0 {
            payload.copy_from(regions, &self.stage[self.start..self.start + here]);
            self.start += here;
        }
        if payload.missing() > 0 {
            return None;
        }
        // A message says nothing about the transfers around it.
        if !matches!(payload.place, Place::Recv(_)) {
            self.large = payload.length >= LARGE;
        }
        self.payload.take()
    }

    /// The next header, if all of it is there and no payload comes first.
    pub(super) fn take_header(&mut self) -> Option<[u8; HEADER]> {
        if self.payload.is_some() {
            return None;
        }
        let header = *self.stage[self.start..self.end].first_chunk()?;
        self.start += HEADER;
        Some(header)
    }
}
