//! The client's stream, cut into headers and payload. Payload goes from the socket straight into the slot that it is
//! for; a small stage behind it takes the headers that follow, so that one receive takes many requests.

use std::io;
use std::os::fd::BorrowedFd;

use kaeru_common::fabric::buffer::{Slot, receive, receive_behind};

use crate::nbd::proto::REQUEST_BYTES;

/// Bytes received beyond what was asked for. Small, because payload that lands here has to be copied once more.
pub const EARLY_BYTES: usize = 18 * REQUEST_BYTES;
/// The longest payload that is received together with its header.
const AHEAD: usize = 16 << 10;
const STAGE: usize = REQUEST_BYTES + AHEAD + EARLY_BYTES;

/// The receiving end of the client's stream.
#[derive(Debug)]
pub(super) struct Incoming {
    stage: Box<[u8; STAGE]>,
    start: usize,
    end: usize,
    /// Whether the last receive took all that there was.
    drained: bool,
    ended: bool,
    /// Payload that the next write probably has, as the last one had; 0 before the first.
    guess: usize,
    /// What was received straight into a slot on that guess, before its header was looked at: the stream goes on there
    /// behind the header, and on the stage behind `guess` bytes.
    ahead: Option<Ahead>,
}

#[derive(Debug)]
struct Ahead {
    slot: Slot,
    bytes: usize,
    guess: usize,
}

impl Incoming {
    pub(super) fn new() -> Self {
        let stage = Box::new([0; STAGE]);
        Self { stage, start: 0, end: 0, drained: true, ended: false, guess: 0, ahead: None }
    }

    /// Takes bytes that were received earlier.
    ///
    /// # Panics
    /// Where they are more than [`EARLY_BYTES`]: whoever receives ahead receives no more than that.
    pub(super) fn preload(&mut self, early: &[u8]) {
        assert!(early.len() <= EARLY_BYTES, "{} bytes were received ahead", early.len());
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

    /// Whether a spare slot for [`Self::header`] could save a receive.
    pub(super) fn wants_spare(&self) -> bool {
        self.guess > 0 && self.start == self.end && !self.drained
    }

    /// The next request header, once it is there. With a `spare` slot, the payload that probably follows is received
    /// into it by the same call; [`Self::claim`] it if the guess was right.
    ///
    /// # Errors
    /// The socket's.
    pub(super) fn header(
        &mut self,
        socket: BorrowedFd<'_>,
        spare: &mut Option<Slot>,
    ) -> io::Result<Option<[u8; REQUEST_BYTES]>> {
        self.flatten();
        if self.wants_spare()
            && let Some(slot) = spare.take()
        {
            return self.receive_ahead(socket, slot, spare);
        }
        if self.staged() < REQUEST_BYTES && !self.drained {
            self.stage.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.staged());
            self.receive(socket, None)?;
        }
        Ok(self.take_header())
    }

    fn take_header(&mut self) -> Option<[u8; REQUEST_BYTES]> {
        let header = *self.stage[self.start..self.end].first_chunk()?;
        self.start += REQUEST_BYTES;
        Some(header)
    }

    /// The slot with the payload of the write whose header was just returned, and how much of it is there; `None` where
    /// it is still to be received. `length` is what goes into the first slot.
    pub(super) fn claim(&mut self, length: usize) -> Option<(Slot, usize)> {
        if length <= AHEAD {
            self.guess = length;
        }
        self.ahead.take_if(|ahead| ahead.guess == length).map(|ahead| (ahead.slot, ahead.bytes))
    }

    /// Where the guess was wrong, puts what went into the slot back into its place in the stream.
    fn flatten(&mut self) {
        if let Some(Ahead { slot, bytes, .. }) = self.ahead.take() {
            // The place was left free behind the header, see `receive_ahead`.
            let end = self.start;
            self.start -= bytes;
            slot.copy_to(0, &mut self.stage[self.start..end]);
        }
    }

    /// One receive: a header, the payload that it probably has, and some of what follows. On the stage, the payload's
    /// place behind the header is left free.
    fn receive_ahead(
        &mut self,
        socket: BorrowedFd<'_>,
        mut slot: Slot,
        spare: &mut Option<Slot>,
    ) -> io::Result<Option<[u8; REQUEST_BYTES]>> {
        let guess = self.guess.min(slot.size() as usize);
        let (head, behind) = self.stage.split_at_mut(REQUEST_BYTES);
        let rest = &mut behind[guess..guess + EARLY_BYTES];
        let offered = REQUEST_BYTES + guess + rest.len();
        let got = receive_behind(socket, head, slot.span_mut(0, guess), rest);
        let got = self.note(got, offered)?;
        (self.start, self.end) = (0, got.min(REQUEST_BYTES));
        let header = self.take_header();
        let bytes = got.saturating_sub(REQUEST_BYTES).min(guess);
        if bytes == 0 {
            *spare = Some(slot);
        } else {
            self.ahead = Some(Ahead { slot, bytes, guess });
            (self.start, self.end) = (REQUEST_BYTES + bytes, got);
        }
        Ok(header)
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
        self.flatten();
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
        self.flatten();
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
        let rest = &mut self.stage[self.end..EARLY_BYTES];
        let room = into.as_ref().map_or(0, |(_, filled, wanted)| wanted - filled);
        let offered = room + rest.len();
        let got = match into {
            Some((slot, filled, _)) => receive(socket, [slot.span_mut(filled, room)], rest),
            None => receive(socket, [], rest),
        };
        let got = self.note(got, offered)?;
        self.end += got.saturating_sub(room);
        Ok(got.min(room))
    }

    /// Notes what a receive of up to `offered` bytes says about the stream. Returns how many came.
    fn note(&mut self, got: io::Result<usize>, offered: usize) -> io::Result<usize> {
        match got {
            Ok(got) => {
                self.ended |= got == 0;
                self.drained = got < offered;
                Ok(got)
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

    /// A socket whose other end writes a stream in pieces of `cut` bytes, and what receives it.
    struct Cut<'a> {
        theirs: UnixStream,
        ours: UnixStream,
        chunks: std::slice::Chunks<'a, u8>,
        incoming: Incoming,
        spare: Option<Slot>,
        pool: SlotPool,
    }

    impl<'a> Cut<'a> {
        fn new(stream: &'a [u8], cut: usize) -> Self {
            let (theirs, ours) = UnixStream::pair().unwrap();
            let pool = SlotPool::new(2, 4096).unwrap();
            Self { theirs, ours, chunks: stream.chunks(cut), incoming: Incoming::new(), spare: None, pool }
        }

        fn more(&mut self) {
            if self.incoming.is_drained() {
                self.theirs.write_all(self.chunks.next().unwrap()).unwrap();
                self.incoming.wake();
            }
        }

        fn header(&mut self) -> [u8; REQUEST_BYTES] {
            loop {
                self.spare = self.spare.take().or_else(|| self.pool.take());
                match self.incoming.header(self.ours.as_fd(), &mut self.spare).unwrap() {
                    Some(header) => return header,
                    None => self.more(),
                }
            }
        }

        /// Also says whether the payload had been received with its header.
        fn payload(&mut self, length: usize) -> (Vec<u8>, bool) {
            let claimed = self.incoming.claim(length);
            let ahead = claimed.is_some();
            let (mut slot, mut filled) = claimed.unwrap_or_else(|| (self.pool.take().unwrap(), 0));
            loop {
                filled = self.incoming.payload(self.ours.as_fd(), &mut slot, filled, length).unwrap();
                if filled == length {
                    break;
                }
                self.more();
            }
            let mut bytes = vec![0; length];
            slot.copy_to(0, &mut bytes);
            (bytes, ahead)
        }
    }

    /// Whatever way the stream is cut, and whether payload is guessed right or wrong, headers and payload come out whole
    /// and in order.
    #[test]
    fn any_cut_of_the_stream_gives_the_same_parts() {
        // 0 is a request without payload.
        let lengths = [3000, 3000, 0, 100, 100, 100, 4096, 0, 0, 0, 4096, 1, 1, 2, 3000];
        let payload = |number: usize| (0..lengths[number]).map(move |at| (number * 31 + at) as u8);
        let mut stream = Vec::new();
        for (number, &length) in lengths.iter().enumerate() {
            stream.extend_from_slice(&[number as u8; REQUEST_BYTES]);
            stream.extend(payload(number).take(length));
        }
        for cut in (1..120).chain([503, 504, 505, 1000, 3027, 3028, 3029, 4000, stream.len()]) {
            let mut client = Cut::new(&stream, cut);
            let mut ahead = 0;
            for (number, &length) in lengths.iter().enumerate() {
                assert_eq!(client.header(), [number as u8; REQUEST_BYTES], "cut {cut}");
                if length > 0 {
                    let (bytes, was_ahead) = client.payload(length);
                    assert!(bytes.into_iter().eq(payload(number)), "payload {number} with cut {cut}");
                    ahead += usize::from(was_ahead);
                }
            }
            assert!(client.incoming.staged() == 0 && client.incoming.ahead.is_none());
            // The second request comes alone, and as the first one was.
            if cut == REQUEST_BYTES + 3000 {
                assert!(ahead >= 1, "no payload was received with its header");
            }
        }
    }
}
