//! What both roles do alike: frames in, messages out, keep-alives in both directions.

use std::collections::VecDeque;

use bytes::BytesMut;

use super::framer::Framer;
use crate::wire::control::Pulse;
use crate::wire::{CONTROL_PREAMBLE, Message};

/// One side of the stream. It holds a bounded number of messages even where the peer reads nothing: answers are bounded
/// by the requests in flight, and of keep-alives and their answers only the newest is kept.
#[derive(Debug)]
pub(super) struct Channel {
    pub(super) framer: Framer,
    preamble_due: bool,
    outbox: VecDeque<Message>,
    keep_alive_due: bool,
    ack_due: Option<u32>,
    /// The number of the newest keep-alive of ours.
    sequence: u32,
}

impl Channel {
    pub(super) fn new(framer: Framer) -> Self {
        Self {
            framer,
            preamble_due: true,
            outbox: VecDeque::new(),
            keep_alive_due: false,
            ack_due: None,
            sequence: 0,
        }
    }

    /// Queues a message.
    pub(super) fn send(&mut self, message: Message) {
        self.outbox.push_back(message);
    }

    /// Messages that have not left, keep-alives aside.
    pub(super) fn queued(&self) -> usize {
        self.outbox.len()
    }

    /// Queues a keep-alive, unless the last one has not left yet.
    pub(super) fn send_keep_alive(&mut self) {
        if !self.keep_alive_due {
            self.keep_alive_due = true;
            self.sequence = self.sequence.wrapping_add(1);
        }
    }

    /// Queues the answer to a keep-alive; it stands for the answers before it that have not left.
    pub(super) fn acknowledge(&mut self, pulse: Pulse) {
        self.ack_due = Some(pulse.sequence);
    }

    /// Whether an answer is one to a keep-alive that we sent.
    pub(super) const fn was_sent(&self, pulse: Pulse) -> bool {
        pulse.sequence >= 1 && pulse.sequence <= self.sequence
    }

    /// Appends to `out` all that is to be sent; whether there was anything.
    pub(super) fn drain(&mut self, out: &mut BytesMut) -> bool {
        let before = out.len();
        if !self.has_output() {
            return false;
        }
        if std::mem::take(&mut self.preamble_due) {
            out.extend_from_slice(&CONTROL_PREAMBLE);
        }
        self.outbox.drain(..).for_each(|message| message.encode(out));
        if let Some(sequence) = self.ack_due.take() {
            Message::KeepAliveAck(Pulse { sequence }).encode(out);
        }
        if std::mem::take(&mut self.keep_alive_due) {
            Message::KeepAlive(Pulse { sequence: self.sequence }).encode(out);
        }
        out.len() > before
    }

    fn has_output(&self) -> bool {
        !self.outbox.is_empty() || self.ack_due.is_some() || self.keep_alive_due
    }
}
