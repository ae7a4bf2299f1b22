//! The one answer of each request. A read is answered whole once all of its data is there; one that is too long for
//! that is answered bit by bit, and what else is to be said meanwhile waits.

use kaeru_common::fabric::Link;

use super::{Lane, LaneEnd};
use crate::inflight::{InFlight, RequestId};
use crate::nbd::handshake::BASE_ALLOCATION_ID;
use crate::nbd::proto::{NbdError, STATE_HOLE, STATE_ZERO};
use crate::nbd::transmission::{Command, Extent, ReplyHeader, Request};

impl<L: Link> Lane<L> {
    /// Begins, or goes on with, the answer of a read that is too long to be held back whole.
    pub(super) fn stream_long_read(&mut self, id: RequestId) {
        let too_long = self.held.len() >= self.hold_limit;
        let Some(flight) = self.table.get(id) else { return };
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

    /// Sends what is held of a read that is answered bit by bit; with structured replies each piece is a chunk.
    fn send_pieces(&mut self, id: RequestId) {
        for _ in 0..self.held.len() {
            let Some((flight, held)) = self.table.get(id).zip(self.held.pop_front()) else { return };
            if held.id != id {
                self.held.push_back(held);
                continue;
            }
            if self.config.structured {
                let at = flight.request.offset + flight.sent;
                self.outgoing.header(ReplyHeader::offset_data(flight.request.cookie, at, held.length, false));
            }
            flight.sent += u64::from(held.length);
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
        let Some(InFlight { request, error, streaming, .. }) = self.table.remove(id) else { return };
        self.count(&request, error);
        if error.is_some() {
            self.held.retain(|held| held.id != id);
        }
        match (request.command, error) {
            (Command::Read, None) if !streaming => match self.streaming {
                None => self.send_whole(id, &request),
                // Reads complete in order, so a whole one cannot overtake one that is on its way.
                Some(_) => self.ending = Some(LaneEnd::BrokenReply),
            },
            _ => self.close_answer(&request, error, streaming),
        }
        if streaming {
            self.streaming = None;
            while let Some(header) = self.deferred.pop_front() {
                self.outgoing.header(header);
            }
        }
    }

    /// The header that ends an answer, or is all of it.
    fn close_answer(&mut self, request: &Request, error: Option<NbdError>, streaming: bool) {
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
            None if request.command == Command::BlockStatus => {
                let status = if self.config.hole { STATE_HOLE | STATE_ZERO } else { 0 };
                let extent = Extent { length: request.length, status };
                ReplyHeader::block_status(cookie, BASE_ALLOCATION_ID, extent, &[])
            }
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

    fn count(&self, request: &Request, error: Option<NbdError>) {
        let length = u64::from(request.length);
        match (error, request.command) {
            (Some(_), _) => self.counters.error(),
            (None, Command::Read) => self.counters.read(length),
            (None, Command::Write) => self.counters.write(length),
            (None, _) => self.counters.other(),
        }
    }
}
