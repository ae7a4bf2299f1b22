//! From the client to the link: taking requests and payload from the socket, and posting their pieces while there is
//! room.

use std::os::fd::AsFd;
use std::time::Instant;

use kaeru_common::fabric::buffer::Slot;
use kaeru_common::fabric::{Link, Refused};
use kaeru_common::units::{ByteRange, Pieces};

use super::{ANSWERS, Expect, Lane, LaneEnd, ZERO_SLOTS};
use crate::inflight::{InFlight, RequestId};
use crate::nbd::proto::{CommandFlags, NbdError, REQUEST_BYTES};
use crate::nbd::transmission::{Command, ReplyHeader, Request, parse_request, validate};
use crate::remote::{Action, NotTaken};

impl<L: Link> Lane<L> {
    /// Takes requests and payload from the socket until it is drained or there is no room.
    pub(super) fn take_requests(&mut self) -> Result<bool, LaneEnd> {
        let mut any = false;
        while self.ending.is_none() && self.take_one()? {
            any = true;
        }
        if self.incoming.is_ended() && self.ending.is_none() {
            self.ending = Some(LaneEnd::Gone);
        }
        if self.stop.is_stopped() && self.ending.is_none() {
            self.ending = Some(LaneEnd::Stopped);
        }
        Ok(any)
    }

    /// Whether another request can be taken: it needs a place, and its answer must not pile up on a client that reads
    /// none.
    pub(super) fn has_room(&self) -> bool {
        !self.table.is_full() && self.outgoing.len() + self.deferred.len() < ANSWERS
    }

    /// Takes the next header, or the next stretch of payload. Returns whether it got on.
    fn take_one(&mut self) -> Result<bool, LaneEnd> {
        match std::mem::replace(&mut self.expect, Expect::Header) {
            Expect::Header => {
                if !self.has_room() {
                    return Ok(false);
                }
                if self.spare.is_none()
                    && self.incoming.wants_spare()
                    && self.remote.link().pool().available() > 1
                {
                    self.spare = self.remote.slot();
                }
                let Some(header) = self.incoming.header(self.socket.as_fd(), &mut self.spare)? else {
                    return Ok(false);
                };
                self.start(&header)?;
                Ok(true)
            }
            Expect::Payload { id, slot, filled, piece } => self.take_payload(id, slot, filled, piece),
            Expect::Discard { id, left } => {
                let now = self.incoming.discard(self.socket.as_fd(), left)?;
                if now > 0 {
                    self.expect = Expect::Discard { id, left: now };
                    return Ok(now < left);
                }
                self.posted(id);
                Ok(true)
            }
        }
    }

    fn take_payload(
        &mut self,
        id: RequestId,
        slot: Option<Slot>,
        filled: usize,
        piece: ByteRange,
    ) -> Result<bool, LaneEnd> {
        let Some(mut slot) = slot.or_else(|| self.remote.slot()) else {
            self.expect = Expect::Payload { id, slot: None, filled, piece };
            return Ok(false);
        };
        let wanted = piece.length() as usize;
        let now = self.incoming.payload(self.socket.as_fd(), &mut slot, filled, wanted)?;
        if now < wanted {
            self.expect = Expect::Payload { id, slot: Some(slot), filled: now, piece };
            return Ok(now > filled && !self.incoming.is_drained());
        }
        let Some(flight) = self.table.get(id) else { return Ok(true) };
        let durable = flight.request.flags.contains(CommandFlags::FUA);
        match self.remote.write(slot, piece, durable, id.tag()) {
            Ok(()) => {
                self.owe(id);
                self.next_payload(id);
            }
            Err(Refused::Full(slot)) => {
                self.expect = Expect::Payload { id, slot: Some(slot), filled: now, piece };
                return Ok(false);
            }
            Err(Refused::Dead(_)) => self.abandon_payload(id),
        }
        Ok(true)
    }

    /// Goes on to the next piece of a write's payload, or back to headers.
    fn next_payload(&mut self, id: RequestId) {
        let Some(flight) = self.table.get(id) else { return };
        match flight.left.next() {
            Some(piece) => {
                let (slot, filled) = self.incoming.claim(piece.length() as usize).unzip();
                self.expect = Expect::Payload { id, slot, filled: filled.unwrap_or(0), piece };
            }
            None => self.posted(id),
        }
    }

    /// Fails a write and skips the payload that is still to come.
    fn abandon_payload(&mut self, id: RequestId) {
        let Some(flight) = self.table.get(id) else { return };
        flight.fail(NbdError::Io);
        self.expect = Expect::Discard { id, left: flight.left.remaining() };
    }

    /// Begins one request. The answer to one that fails at the door comes after its payload.
    fn start(&mut self, header: &[u8; REQUEST_BYTES]) -> Result<(), LaneEnd> {
        let request = match parse_request(header) {
            Ok(request) => request,
            Err(malformed) => {
                let (cookie, error) = malformed.reply().ok_or(malformed)?;
                self.counters.error();
                self.answer(ReplyHeader::simple(cookie, Err(error)));
                return Ok(());
            }
        };
        tracing::trace!(?request, "request");
        match self.admit(&request) {
            Ok(range) => self.perform(request, range),
            Err(error) => {
                self.refuse(request, error);
                Ok(())
            }
        }
    }

    /// Checks a request at the door. Returns its range.
    fn admit(&self, request: &Request) -> Result<ByteRange, NbdError> {
        validate(request, &self.config.limits)?;
        let one_chunk = request.command == Command::Read && request.flags.contains(CommandFlags::DF);
        let range = ByteRange::new(request.offset, u64::from(request.length)).ok_or(NbdError::Inval)?;
        if one_chunk && self.remote.pieces(range).take(self.hold_limit + 1).count() > self.hold_limit {
            return Err(NbdError::Overflow);
        }
        Ok(range)
    }

    fn refuse(&mut self, request: Request, error: NbdError) {
        let mut flight = InFlight::new(request, self.remote.pieces(ByteRange::EMPTY));
        flight.fail(error);
        let Some(id) = self.table.insert(flight) else { return };
        match request.payload() {
            0 => self.posted(id),
            payload => self.expect = Expect::Discard { id, left: u64::from(payload) },
        }
    }

    fn perform(&mut self, request: Request, range: ByteRange) -> Result<(), LaneEnd> {
        if request.command == Command::Disconnect {
            self.ending = Some(LaneEnd::Disconnected);
            return Ok(());
        }
        let Some(id) = self.table.insert(InFlight::new(request, self.remote.pieces(range))) else {
            return Ok(());
        };
        match request.command {
            Command::Read => self.reading.push_back(id),
            Command::Write => self.next_payload(id),
            _ if self.remote.takes_commands() => self.commanding.push_back(id),
            Command::Trim | Command::WriteZeroes => self.zeroing.push_back(id),
            // Flush: every answered write is already where a flush would take it. Block status: known at once.
            _ => self.posted(id),
        }
        Ok(())
    }

    pub(super) fn owe(&mut self, id: RequestId) {
        if self.owed == 0 {
            self.last_progress = Instant::now();
        }
        self.owed += 1;
        if let Some(flight) = self.table.get(id) {
            flight.outstanding += 1;
            if self.stamps.is_some() {
                flight.marks.post();
            }
        }
    }

    /// Notes that all of a request was posted; answers it if that was all.
    fn posted(&mut self, id: RequestId) {
        if let Some(flight) = self.table.get(id) {
            flight.posted = true;
            if flight.is_over() {
                self.finish(id);
            }
        }
    }

    /// Posts pieces of reads and writes of zeroes while there is room.
    pub(super) fn post_pieces(&mut self) {
        while let Some(&id) = self.reading.front() {
            if !self.post_reads(id) {
                break;
            }
            self.reading.pop_front();
            self.posted(id);
        }
        while let Some(&id) = self.zeroing.front() {
            if !self.post_zeroes(id) {
                break;
            }
            self.zeroing.pop_front();
            self.posted(id);
        }
        while let Some(&id) = self.commanding.front() {
            if !self.post_command(id) {
                break;
            }
            self.commanding.pop_front();
            self.posted(id);
        }
    }

    /// Posts what moves no data. Returns whether it is posted or given up.
    fn post_command(&mut self, id: RequestId) -> bool {
        let Some(flight) = self.table.get(id) else { return true };
        let Request { command, flags, offset, length, .. } = flight.request;
        let durable = flags.contains(CommandFlags::FUA);
        let action = match command {
            Command::Flush => Action::Flush,
            Command::Trim => Action::Trim { durable },
            Command::WriteZeroes => Action::Zero { no_hole: flags.contains(CommandFlags::NO_HOLE), durable },
            _ => Action::Extents,
        };
        let range = ByteRange::new(offset, length.into()).unwrap_or(ByteRange::EMPTY);
        match self.remote.command(action, range, id.tag()) {
            Ok(()) => {
                self.owe(id);
                true
            }
            Err(NotTaken::Full) => false,
            Err(NotTaken::Dead) => self.give_up(id),
        }
    }

    /// Posts what is left of a read. Returns whether all of it is posted or given up.
    fn post_reads(&mut self, id: RequestId) -> bool {
        loop {
            let Some(flight) = self.table.get(id) else { return true };
            let rest = flight.left;
            let Some(piece) = flight.left.next() else { return true };
            let tag = flight.tag(id, piece);
            let Some(slot) = self.remote.slot() else { return self.put_back(id, rest) };
            match self.remote.read(slot, piece, tag) {
                Ok(()) => self.owe(id),
                Err(Refused::Full(_)) => return self.put_back(id, rest),
                Err(Refused::Dead(_)) => return self.give_up(id),
            }
        }
    }

    /// Posts zeroes from up to [`ZERO_SLOTS`] slots; the rest goes out as they come back.
    fn post_zeroes(&mut self, id: RequestId) -> bool {
        loop {
            let Some(flight) = self.table.get(id) else { return true };
            let (rest, outstanding) = (flight.left, flight.outstanding);
            let Some(piece) = flight.left.next() else { return true };
            if outstanding == ZERO_SLOTS {
                return self.put_back(id, rest);
            }
            let Some(mut slot) = self.remote.slot() else { return self.put_back(id, rest) };
            // As much as any later piece may need: the slot is used again for those.
            slot.fill(0, rest.remaining().min(u64::from(slot.size())) as usize, 0);
            match self.remote.write(slot, piece, false, id.tag()) {
                Ok(()) => self.owe(id),
                Err(Refused::Full(_)) => return self.put_back(id, rest),
                Err(Refused::Dead(_)) => return self.give_up(id),
            }
        }
    }

    pub(super) fn put_back(&mut self, id: RequestId, rest: Pieces) -> bool {
        if let Some(flight) = self.table.get(id) {
            flight.left = rest;
        }
        false
    }

    fn give_up(&mut self, id: RequestId) -> bool {
        if let Some(flight) = self.table.get(id) {
            flight.fail(NbdError::Io);
        }
        true
    }
}
