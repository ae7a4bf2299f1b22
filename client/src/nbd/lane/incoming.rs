//! The client's stream, cut into headers and payload. Payload goes from the socket straight into the slot that it is
//! for; a small stage behind it takes the headers that follow, so that one receive takes many requests.

use std::io;
use std::os::fd::BorrowedFd;

use kaeru_common::fabric::buffer::{Slot, receive};

use crate::nbd::proto::REQUEST_BYTES;

/// Bytes received beyond what was asked for. Small, because payload that lands here has to be copied once more.
pub const EARLY_BYTES: usize = 18 * REQUEST_BYTES;

/// The receiving end of the client's stream.
#[derive(Debug)]
pub(super) struct Incoming {
    stage: [u8; EARLY_BYTES],
    start: usize,
    end: usize,
    /// Whether the last receive took all that there was.
    drained: bool,
    ended: bool,
}

impl Incoming {
    pub(super) fn new() -> Self {
        Self { stage: [0; EARLY_BYTES], start: 0, end: 0, drained: true, ended: false }
    }

    /// Takes bytes that were received earlier.
    ///
    /// # Panics
    /// Where they are more than [`EARLY_BYTES`]: whoever receives ahead receives no more than that.
    pub(super) fn preload(&mut self, early: &[u8]) {
        self.stage[..early.len()].copy_from_slice(early);
        (self.start, self.end) = (0, early.len());
    }

    /// Whether the client closed its end.
    pub(super) fn is_ended(&self) -> bool {
        self.ended
    }

    /// Says that the socket is readable.
    pub(super) fn wake(&mut self) {
        self.drained = false;
    }

    /// Whether there may be more to take now.
    pub(super) fn is_drained(&self) -> bool {
        self.drained
    }

    /// The next request header, once it is there.
    ///
    /// # Errors
    /// The socket's.
    pub(super) fn header(&mut self, socket: BorrowedFd<'_>) -> io::Result<Option<[u8; REQUEST_BYTES]>> {
        if self.staged() < REQUEST_BYTES && !self.drained {
            self.stage.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.staged());
            self.receive(socket, None)?;
        }
        let Some(header) = self.stage[self.start..self.end].first_chunk() else { return Ok(None) };
        let header = *header;
        self.start += REQUEST_BYTES;
        Ok(Some(header))
    }

    /// Puts payload into `slot`, from `filled` up to `wanted`. Returns how far it got.
    ///
    /// # Errors
    /// The socket's.
    pub(super) fn payload(
        &mut self,
        socket: BorrowedFd<'_>,
        slot: &mut Slot,
        mut filled: usize,
        wanted: usize,
    ) -> io::Result<usize> {
        let staged = self.staged().min(wanted - filled);
        slot.copy_from(filled, &self.stage[self.start..self.start + staged]);
        self.start += staged;
        filled += staged;
        if filled < wanted && !self.drained {
            (self.start, self.end) = (0, 0);
            let got = self.receive(socket, Some((slot, filled, wanted)))?;
            filled += got;
        }
        Ok(filled)
    }

    /// Drops up to `left` bytes of payload that nobody wants. Returns how many are left.
    ///
    /// # Errors
    /// The socket's.
    pub(super) fn discard(&mut self, socket: BorrowedFd<'_>, left: u64) -> io::Result<u64> {
        if self.staged() == 0 && !self.drained {
            (self.start, self.end) = (0, 0);
            self.receive(socket, None)?;
        }
        let dropped = (self.staged() as u64).min(left);
        self.start += dropped as usize;
        Ok(left - dropped)
    }

    fn staged(&self) -> usize {
        self.end - self.start
    }

    /// One receive: first into the slot, then onto the stage. Returns what went into the slot.
    fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        into: Option<(&mut Slot, usize, usize)>,
    ) -> io::Result<usize> {
        let rest = &mut self.stage[self.end..];
        let room = into.as_ref().map_or(0, |(_, filled, wanted)| wanted - filled);
        let offered = room + rest.len();
        let got = match into {
            Some((slot, filled, _)) => receive(socket, [slot.span_mut(filled, room)], rest),
            None => receive(socket, [], rest),
        };
        match got {
            Ok(0) => {
                (self.ended, self.drained) = (true, true);
                Ok(0)
            }
            Ok(got) => {
                self.drained = got < offered;
                self.end += got.saturating_sub(room);
                Ok(got.min(room))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.drained = true;
                Ok(0)
            }
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use kaeru_common::fabric::buffer::SlotPool;

    /// Whatever way the stream is cut, headers and payload come out whole and in order.
    #[test]
    fn any_cut_of_the_stream_gives_the_same_parts() {
        let pool = SlotPool::new(1, 4096).unwrap();
        let payload: Vec<u8> = (0..3000u32).map(|i| i as u8).collect();
        let mut stream = Vec::new();
        for cookie in 1..=3u8 {
            stream.extend_from_slice(&[cookie; REQUEST_BYTES]);
            stream.extend_from_slice(&payload);
            stream.extend_from_slice(&[cookie + 100; REQUEST_BYTES]);
        }
        for cut in [1, 27, 28, 29, 503, 504, 505, 1000, 4000, stream.len()] {
            let (mut theirs, ours) = UnixStream::pair().unwrap();
            let mut chunks = stream.chunks(cut);
            let mut incoming = Incoming::new();
            let mut more = |incoming: &mut Incoming| {
                theirs.write_all(chunks.next().unwrap()).unwrap();
                incoming.wake();
            };
            let header = |incoming: &mut Incoming, more: &mut dyn FnMut(&mut Incoming)| loop {
                match incoming.header(ours.as_fd()).unwrap() {
                    Some(header) => break header,
                    None => more(incoming),
                }
            };
            for cookie in 1..=3u8 {
                assert_eq!(header(&mut incoming, &mut more), [cookie; REQUEST_BYTES]);
                let mut slot = pool.take().unwrap();
                let mut filled = 0;
                while filled < payload.len() {
                    filled = incoming.payload(ours.as_fd(), &mut slot, filled, payload.len()).unwrap();
                    if filled < payload.len() && incoming.is_drained() {
                        more(&mut incoming);
                    }
                }
                let mut got = vec![0; payload.len()];
                slot.copy_to(0, &mut got);
                assert!(got == payload, "cut {cut}");
                assert_eq!(header(&mut incoming, &mut more), [cookie + 100; REQUEST_BYTES]);
            }
        }
    }
}
