//! The one answer of each request. A read is answered whole once all of its data is there; one that is too long for
//! that is answered bit by bit, and what else is to be said meanwhile waits.

use kaeru_common::fabric::Link;

use super::{Held, Lane, LaneEnd};
use crate::inflight::{InFlight, RequestId};
use crate::nbd::handshake::BASE_ALLOCATION_ID;
use crate::nbd::proto::{CommandFlags, STATE_HOLE, STATE_ZERO};
use crate::nbd::transmission::{Command, Extent, ReplyHeader, Request};
use crate::remote::REPLY_EXTENTS;

impl<L: Link> Lane<L> {
    /// Begins, or goes on with, the answer of a read that is too long to be held back whole.
    pub(super) fn stream_long_read(&mut self, id: RequestId) {
        let Some(flight) = self.table.get(id) else { return };
        let too_long = flight.held >= self.hold_limit;
        if self.streaming.is_none() && too_long && !flight.is_over() {
            flight.streaming = true;
            self.streaming = Some(id);
            if !self.config.structured {
                self.outgoing.header(ReplyHeader::simple(flight.request.cookie, Ok(())));
            }
        }
        if self.streaming == Some(id) {
            self.send_pieces(id);
        }
    }

    /// Sends what is held of a read that is answered bit by bit. With structured replies each piece is a chunk, and
    /// goes out as it comes; a simple reply has one order only.
    fn send_pieces(&mut self, id: RequestId) {
        let structured = self.config.structured;
        while let Some(flight) = self.table.get(id) {
            let (request, next) = (flight.request, flight.sent);
            let is_next = |held: &Held| held.id == id && (structured || u64::from(held.at) == next);
            let Some(held) = self.held.iter().position(is_next).and_then(|place| self.held.remove(place))
            else {
                return;
            };
            flight.sent += u64::from(held.length);
            if structured {
                let at = request.offset + u64::from(held.at);
                self.outgoing.header(ReplyHeader::offset_data(request.cookie, at, held.length, false));
            }
            self.outgoing.data(held.slot, held.length);
        }
    }

    /// Sends a whole read: one header and all of its data.
    fn send_whole(&mut self, id: RequestId, request: &Request) {
        self.outgoing.header(match self.config.structured {
            true => ReplyHeader::offset_data(request.cookie, request.offset, request.length, true),
            false => ReplyHeader::simple(request.cookie, Ok(())),
        });
        for _ in 0..self.held.len() {
            match self.held.pop_front() {
                Some(held) if held.id == id => self.outgoing.data(held.slot, held.length),
                Some(held) => self.held.push_back(held),
                None => return,
            }
        }
    }

    /// Gives a request its one answer.
    pub(super) fn finish(&mut self, id: RequestId) {
        let Some(flight) = self.table.get(id) else { return };
        let whole = flight.request.command == Command::Read && flight.error.is_none() && !flight.streaming;
        if whole && self.streaming.is_some() {
            // Its data has to wait for that of the read which is on its way, and its name with it.
            self.parked.push_back(id);
            return;
        }
        let Some(flight) = self.table.remove(id) else { return };
        let InFlight { request, error, streaming, .. } = flight;
        self.count(&flight);
        if let Some(stamps) = &self.stamps {
            stamps.note(request.cookie, flight.since, &flight.marks);
        }
        if error.is_some() {
            self.held.retain(|held| held.id != id);
        }
        match (request.command, error) {
            (Command::Read, None) if !streaming => self.send_whole(id, &request),
            _ => self.close_answer(&flight),
        }
        if streaming {
            self.streaming = None;
            while let Some(header) = self.deferred.pop_front() {
                self.outgoing.header(header);
            }
            while let Some(parked) = self.parked.pop_front() {
                self.finish(parked);
            }
        }
    }

    /// The header that ends an answer, or is all of it.
    fn close_answer(&mut self, flight: &InFlight) {
        let InFlight { request, error, streaming, .. } = *flight;
        let cookie = request.cookie;
        let chunked =
            self.config.structured && matches!(request.command, Command::Read | Command::BlockStatus);
        let header = match error {
            Some(error) if chunked => ReplyHeader::error(cookie, error, ""),
            Some(_) if streaming => {
                self.ending = Some(LaneEnd::BrokenReply);
                return;
            }
            Some(error) => ReplyHeader::simple(cookie, Err(error)),
            None if request.command == Command::BlockStatus => self.block_status(flight),
            None if streaming && chunked => ReplyHeader::done(cookie),
            None if streaming => return,
            None => ReplyHeader::simple(cookie, Ok(())),
        };
        if streaming { self.outgoing.header(header) } else { self.answer(header) }
    }

    /// Sends a header, after the read that is being answered bit by bit, if there is one.
    pub(super) fn answer(&mut self, header: ReplyHeader) {
        if self.streaming.is_some() { self.deferred.push_back(header) } else { self.outgoing.header(header) }
    }

    /// The extents of a request, never beyond it: those that the store found, or one for all.
    fn block_status(&self, flight: &InFlight) -> ReplyHeader {
        let InFlight { request, extents, .. } = flight;
        let status_of = |hole| if hole { STATE_HOLE | STATE_ZERO } else { 0 };
        let all = Extent { length: request.length, status: status_of(self.config.hole) };
        let wanted = if request.flags.contains(CommandFlags::REQ_ONE) { 1 } else { REPLY_EXTENTS };
        let mut listed = [all; REPLY_EXTENTS];
        let (mut count, mut left) = (0, request.length);
        for found in extents.iter().take(wanted) {
            let length = found.length.min(left);
            if length > 0 {
                listed[count] = Extent { length, status: status_of(found.hole) };
                count += 1;
                left -= length;
            }
        }
        ReplyHeader::block_status(request.cookie, BASE_ALLOCATION_ID, listed[0], &listed[1..count.max(1)])
    }

    fn count(&self, flight: &InFlight) {
        let InFlight { request, error, .. } = flight;
        let length = u64::from(request.length);
        self.counters.answered(flight.since.elapsed());
        match (error, request.command) {
            (Some(_), _) => self.counters.error(),
            (None, Command::Read) => self.counters.read(length),
            (None, Command::Write) => self.counters.write(length),
            (None, _) => self.counters.other(),
        }
    }
}
