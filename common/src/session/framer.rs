//! Cuts a received stream into messages.

use bytes::BytesMut;

use crate::error::PeerFault;
use crate::wire::{CONTROL_PREAMBLE, HEADER_BYTES, MAX_ANSWER_BYTES, MAX_REQUEST_BYTES, Message};

/// What the next bytes of the stream are.
#[derive(Clone, Copy, Debug)]
enum Part {
    Preamble,
    Header,
    Body { kind: u16, length: usize },
}

/// Takes the bytes of a control stream and gives messages. It holds one unfinished part at most, so a peer can make it
/// keep no more than the limit of its direction, and that only by sending as much.
#[derive(Debug)]
pub struct Framer {
    part: Part,
    held: BytesMut,
    limit: usize,
}

impl Framer {
    /// For what a client sends, from the preamble on.
    pub fn of_requests() -> Self {
        Self { part: Part::Preamble, held: BytesMut::new(), limit: MAX_REQUEST_BYTES }
    }

    /// For what a server sends, from the preamble on.
    pub fn of_answers() -> Self {
        Self { part: Part::Preamble, held: BytesMut::new(), limit: MAX_ANSWER_BYTES }
    }

    /// Takes bytes from the front of `input` until a message is whole, or `input` is empty (`None`).
    ///
    /// # Errors
    /// The stream is broken and stays so.
    pub fn next(&mut self, input: &mut &[u8]) -> Result<Option<Message>, PeerFault> {
        loop {
            let missing = self.wanted() - self.held.len();
            let (taken, rest) = input.split_at(missing.min(input.len()));
            self.held.extend_from_slice(taken);
            *input = rest;
            if taken.len() < missing {
                return self.check_preamble().map(|()| None);
            }
            if let Some(message) = self.finish_part()? {
                return Ok(Some(message));
            }
        }
    }

    /// Whether the stream may end here: between two messages.
    pub fn at_boundary(&self) -> bool {
        matches!(self.part, Part::Preamble | Part::Header) && self.held.is_empty()
    }

    /// Bytes of the part that comes.
    const fn wanted(&self) -> usize {
        match self.part {
            Part::Preamble => CONTROL_PREAMBLE.len(),
            Part::Header => HEADER_BYTES,
            Part::Body { length, .. } => length,
        }
    }

    /// A stranger is recognised by its first wrong byte, not only when it has sent eight.
    fn check_preamble(&self) -> Result<(), PeerFault> {
        match self.part {
            Part::Preamble if !CONTROL_PREAMBLE.starts_with(&self.held) => Err(PeerFault::NotKaeru),
            _ => Ok(()),
        }
    }

    /// The held part is whole.
    fn finish_part(&mut self) -> Result<Option<Message>, PeerFault> {
        let message = match self.part {
            Part::Preamble => {
                self.check_preamble()?;
                self.part = Part::Header;
                None
            }
            Part::Header => {
                self.part = self.header()?;
                None
            }
            Part::Body { kind, .. } => {
                self.part = Part::Header;
                Some(Message::decode(kind, &self.held)?)
            }
        };
        self.held.clear();
        Ok(message)
    }

    fn header(&self) -> Result<Part, PeerFault> {
        let [a, b, c, d, e, f] = self.held[..] else { return Err(PeerFault::Cut) };
        let length = usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX);
        if length > self.limit {
            return Err(PeerFault::FrameTooLong { length, limit: self.limit });
        }
        Ok(Part::Body { kind: u16::from_be_bytes([e, f]), length })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::control::Pulse;
    use proptest::prelude::*;

    fn stream(count: u32) -> BytesMut {
        let mut bytes = BytesMut::from(&CONTROL_PREAMBLE[..]);
        (1..=count).for_each(|sequence| Message::KeepAlive(Pulse { sequence }).encode(&mut bytes));
        bytes
    }

    #[test]
    fn messages_come_out_however_the_stream_is_cut() {
        let bytes = stream(5);
        for piece in 1..bytes.len() {
            let mut framer = Framer::of_requests();
            let mut seen = Vec::new();
            for mut input in bytes.chunks(piece) {
                while let Some(message) = framer.next(&mut input).unwrap() {
                    seen.push(message);
                }
            }
            let expected: Vec<_> = (1..=5).map(|sequence| Message::KeepAlive(Pulse { sequence })).collect();
            assert_eq!(seen, expected, "in pieces of {piece}");
            assert!(framer.at_boundary());
        }
    }

    #[test]
    fn a_stranger_and_an_overlong_frame_are_refused_at_once() {
        for stranger in [&b"G"[..], b"GET / HTTP/1.1", b"KAERULNK", b"\x16\x03\x01"] {
            assert_eq!(Framer::of_requests().next(&mut &stranger[..]), Err(PeerFault::NotKaeru));
        }
        let mut framer = Framer::of_requests();
        let mut bytes = BytesMut::from(&CONTROL_PREAMBLE[..]);
        bytes.extend_from_slice(&[0, 0, 4, 1, 0, 1]);
        assert_eq!(framer.next(&mut &bytes[..]), Err(PeerFault::FrameTooLong { length: 1025, limit: 1024 }));
    }

    proptest! {
        #[test]
        fn garbage_never_panics_and_is_not_hoarded(bytes in proptest::collection::vec(any::<u8>(), 0..4096)) {
            let mut framer = Framer::of_requests();
            prop_assert!(framer.next(&mut &CONTROL_PREAMBLE[..]).is_ok());
            let mut input = &bytes[..];
            while let Ok(Some(_)) = framer.next(&mut input) {}
            prop_assert!(framer.held.len() <= MAX_REQUEST_BYTES.max(HEADER_BYTES));
        }
    }
}
