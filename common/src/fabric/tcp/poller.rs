//! The one descriptor that a link sleeps on: readable when its socket is, or when a blocked socket has room again.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

/// An epoll instance that watches one socket, level-triggered: it needs no call until the interest changes.
#[derive(Debug)]
pub(super) struct Poller {
    epoll: OwnedFd,
    /// Whether room to send is being waited for, besides bytes to receive.
    for_room: bool,
}

impl Poller {
    /// Watches `socket` for bytes.
    pub(super) fn new(socket: BorrowedFd<'_>) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, socket, EventData::new_u64(0), EventFlags::IN)?;
        Ok(Self { epoll, for_room: false })
    }

    /// Watches for room to send as well, or no longer. A system call only where that is a change.
    pub(super) fn watch_room(&mut self, socket: BorrowedFd<'_>, for_room: bool) -> io::Result<()> {
        if self.for_room != for_room {
            let room = if for_room { EventFlags::OUT } else { EventFlags::empty() };
            epoll::modify(&self.epoll, socket, EventData::new_u64(0), EventFlags::IN | room)?;
            self.for_room = for_room;
        }
        Ok(())
    }

    /// Watches nothing any more: a dead socket is always readable, and would wake its sleeper for ever.
    pub(super) fn forget(&mut self, socket: BorrowedFd<'_>) {
        // It fails where it was forgotten before.
        let _ = epoll::delete(&self.epoll, socket);
    }
}

impl AsFd for Poller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
