//! Replies on their way to the client: one vectored send answers many requests, and the data of a read goes out from
//! the slot that it was read into.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;

use kaeru_common::fabric::buffer::{MAX_SPANS, Slot, Span, transmit};

use crate::nbd::transmission::ReplyHeader;

/// One part of the stream to the client.
#[derive(Debug)]
enum Part {
    Header(ReplyHeader),
    Data(Slot, u32),
}

impl Part {
    fn span(&self) -> Span<'_> {
        match self {
            Self::Header(header) => Span::of(header.as_bytes()),
            Self::Data(slot, length) => slot.span(0, *length as usize),
        }
    }
}

/// The stream to the client that the socket has not taken yet.
#[derive(Debug)]
pub(super) struct Outgoing {
    parts: VecDeque<Part>,
    /// Bytes of the first part that were sent.
    sent: usize,
}

impl Outgoing {
    /// Room for `parts` parts, allocated once.
    pub(super) fn new(parts: usize) -> Self {
        Self { parts: VecDeque::with_capacity(parts), sent: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Parts that wait.
    pub(super) fn len(&self) -> usize {
        self.parts.len()
    }

    pub(super) fn header(&mut self, header: ReplyHeader) {
        debug_assert!(self.parts.len() < self.parts.capacity(), "the stream to the client is bounded");
        self.parts.push_back(Part::Header(header));
    }

    pub(super) fn data(&mut self, slot: Slot, length: u32) {
        debug_assert!(self.parts.len() < self.parts.capacity(), "the stream to the client is bounded");
        self.parts.push_back(Part::Data(slot, length));
    }

    /// Forgets everything: the client is gone.
    pub(super) fn clear(&mut self) {
        self.parts.clear();
        self.sent = 0;
    }

    /// Sends what the socket takes. Slots whose data is sent are free again.
    ///
    /// # Errors
    /// The socket's, other than that it is full.
    pub(super) fn send(&mut self, socket: BorrowedFd<'_>) -> io::Result<()> {
        while !self.parts.is_empty() {
            match self.send_once(socket) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn send_once(&mut self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let mut spans = [Span::EMPTY; MAX_SPANS];
        let count = self.parts.len().min(MAX_SPANS);
        for (span, part) in spans.iter_mut().zip(&self.parts) {
            *span = part.span();
        }
        spans[0] = spans[0].after(self.sent);
        let mut taken = transmit(socket, &spans[..count])?;
        while let Some(part) = self.parts.front() {
            let left = part.span().len() - self.sent;
            if taken < left {
                self.sent += taken;
                break;
            }
            taken -= left;
            self.sent = 0;
            self.parts.pop_front();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use kaeru_common::fabric::buffer::SlotPool;

    #[test]
    fn a_stream_survives_a_socket_that_takes_little_at_a_time() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        rustix::net::sockopt::set_socket_send_buffer_size(&ours, 4096).unwrap();
        let pool = SlotPool::new(8, 64 << 10).unwrap();
        let mut outgoing = Outgoing::new(16);
        let mut expected = Vec::new();
        for cookie in 0..8u64 {
            let header = ReplyHeader::simple(cookie, Ok(()));
            expected.extend_from_slice(header.as_bytes());
            outgoing.header(header);
            let mut slot = pool.take().unwrap();
            slot.fill(0, 60_000, cookie as u8 + 1);
            expected.extend(std::iter::repeat_n(cookie as u8 + 1, 60_000));
            outgoing.data(slot, 60_000);
        }
        let mut got = vec![0; expected.len()];
        let mut at = 0;
        while at < got.len() {
            outgoing.send(ours.as_fd()).unwrap();
            let end = got.len().min(at + 1777);
            at += theirs.read(&mut got[at..end]).unwrap();
        }
        assert!(got == expected);
        assert!(outgoing.is_empty());
        assert_eq!(pool.available(), 8);
    }
}
