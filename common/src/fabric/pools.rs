//! The two pools of a link: slots for data, which the peer may be let at, and small ones for messages, which it may not.

use std::io;

use super::LinkConfig;
use super::buffer::{Slot, SlotPool};

/// A link's slots.
#[derive(Clone, Debug)]
pub(super) struct Pools {
    /// For data.
    pub(super) data: SlotPool,
    /// For messages.
    pub(super) messages: SlotPool,
}

impl Pools {
    /// The pools that `config` asks for.
    ///
    /// # Errors
    /// The kernel's, where it has no room for them.
    pub(super) fn new(config: &LinkConfig) -> io::Result<Self> {
        Ok(Self {
            data: SlotPool::new(config.slots, config.slot_size)?,
            messages: SlotPool::new(config.messages, config.message_size)?,
        })
    }

    /// Whether `slot` is one of either.
    pub(super) fn own(&self, slot: &Slot) -> bool {
        self.data.owns(slot) || self.messages.owns(slot)
    }

    /// Slots of both together.
    pub(super) fn slots(&self) -> u32 {
        self.data.slots().saturating_add(self.messages.slots())
    }
}
