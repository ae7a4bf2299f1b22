//! Memory that a card, a kernel or a peer may touch: page-aligned [`Memory`], pools of [`Slot`]s, and socket calls
//! that move bytes straight in and out of them.
//!
//! None of it is ever lent as a slice, since a peer may change granted memory at any moment: bytes are copied in and
//! out, or handed to the kernel as a [`Span`]. A slot *moves* into the link that uses it and comes back in the
//! completion, so the compiler forbids touching what the card owns; dropping one gives it back to its pool, so it
//! cannot be lost either.

#![expect(
    unsafe_code,
    reason = "the home of raw memory: mappings, slots, and the vectored socket calls on them"
)]

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mlock, mmap, mmap_anonymous, munmap};

/// The size of a huge page of this architecture, in bytes.
pub const HUGE_PAGE: u64 = 2 << 20;

/// The size of a cache line, in bytes: slots for small messages share none.
const CACHE_LINE: usize = 64;

/// A page-aligned mapping, unmapped on drop.
///
/// Whoever registers it with a card or lends it to a peer keeps an [`Arc`] of it for as long as that may last.
#[derive(Debug)]
pub struct Memory {
    base: NonNull<u8>,
    len: usize,
    mapped: usize,
    huge: bool,
    file: Option<OwnedFd>,
}

// SAFETY: needed so that lanes on other threads can use one mapping. `Memory` hands out no references to its bytes:
// all access copies through raw pointers inside this module or happens in the kernel or on the card.
unsafe impl Send for Memory {}
// SAFETY: as above; concurrent copies of the same bytes may tear, which is what a disk does too, but no Rust
// reference ever observes them.
unsafe impl Sync for Memory {}

/// The longest name of a memory file, in bytes: `NAME_MAX` less the kernel's `memfd:`.
const MEMFD_NAME: usize = 255 - 6;

impl Memory {
    /// Private zeroed memory of `len` bytes (at least one), for slot pools.
    ///
    /// # Errors
    /// The kernel's, where it has no room for the mapping.
    pub fn anonymous(len: usize) -> io::Result<Self> {
        let mapped = round_up(len.max(1), rustix::param::page_size())?;
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: needed to get page-aligned memory that can be locked and registered. A new anonymous mapping at an
        // address of the kernel's choice aliases nothing.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), mapped, prot, flags) }?;
        Self::owning(base.cast(), len, mapped, false, None)
    }

    /// Shared zeroed memory of `len` bytes behind a memfd called `name`, in huge pages where the machine has enough
    /// free ones reserved, otherwise in ordinary pages that the kernel is asked to merge.
    ///
    /// # Errors
    /// The kernel's, where it has no room for the file or its mapping.
    pub fn memfd(name: &str, len: usize) -> io::Result<Self> {
        if let Ok(huge) = Self::memfd_in(name, len, Some(MemfdFlags::HUGE_2MB)) {
            return Ok(huge);
        }
        let memory = Self::memfd_in(name, len, None)?;
        // SAFETY: advice about our own whole mapping; it changes no byte. A kernel that knows no huge pages for
        // shared memory refuses, and nothing is lost.
        let _ = unsafe { madvise(memory.base.as_ptr().cast(), memory.mapped, Advice::LinuxHugepage) };
        Ok(memory)
    }

    fn memfd_in(name: &str, len: usize, huge: Option<MemfdFlags>) -> io::Result<Self> {
        let page = huge.map_or_else(rustix::param::page_size, |_| HUGE_PAGE as usize);
        let mapped = round_up(len.max(1), page)?;
        let pages = huge.map_or(MemfdFlags::empty(), |size| MemfdFlags::HUGETLB | size);
        // It is for people who look into /proc, and the kernel takes no longer one.
        let clipped =
            (0..=name.len().min(MEMFD_NAME)).rev().find(|&end| name.is_char_boundary(end)).unwrap_or(0);
        let file = memfd_create(&name[..clipped], pages | MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&file, mapped as u64)?;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: needed to give a RAM export an address. The file is new and ours, and the kernel picks the place.
        // For huge pages the mapping reserves them, so a later touch cannot fail with SIGBUS.
        let base = unsafe { mmap(std::ptr::null_mut(), mapped, prot, MapFlags::SHARED, &file, 0) }?;
        Self::owning(base.cast(), len, mapped, huge.is_some(), Some(file))
    }

    fn owning(
        base: *mut u8,
        len: usize,
        mapped: usize,
        huge: bool,
        file: Option<OwnedFd>,
    ) -> io::Result<Self> {
        let base = NonNull::new(base).ok_or(io::ErrorKind::OutOfMemory)?;
        let memory = Self { base, len, mapped, huge, file };
        // SAFETY: advice about our own whole mapping. A child must not share pages that a card writes to: they would
        // be copied on write under the card's feet.
        unsafe { madvise(base.as_ptr().cast(), mapped, Advice::LinuxDontFork) }?;
        Ok(memory)
    }

    /// Touches and locks every page. Bytes count against `RLIMIT_MEMLOCK` unless the process may lock without limit.
    ///
    /// # Errors
    /// `ENOMEM` or `EPERM` where the limit is too low; the mapping is unchanged then.
    pub fn lock(&self) -> io::Result<()> {
        // SAFETY: locks our own mapping; no byte changes.
        Ok(unsafe { mlock(self.base.as_ptr().cast(), self.mapped) }?)
    }

    /// Number of usable bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Never true: a mapping has at least a page; here because `len` is.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of mapped bytes: [`Self::len`] rounded up to whole pages.
    pub const fn mapped(&self) -> usize {
        self.mapped
    }

    /// Whether it sits in reserved huge pages.
    pub const fn is_huge(&self) -> bool {
        self.huge
    }

    /// The file behind shared memory.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    /// Where the mapping starts, as a number for a card's address tables.
    pub fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// Copies `bytes` to `at`.
    ///
    /// # Panics
    /// Where the bytes do not fit: callers check ranges at the door, so this is a bug of ours.
    pub fn copy_from(&self, at: usize, bytes: &[u8]) {
        self.check(at, bytes.len());
        // SAFETY: the range was checked against the mapping just above. The source is a live slice outside of it,
        // since nobody can have a slice of this memory.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.as_ptr().add(at), bytes.len()) }
    }

    /// Copies from `at` into `bytes`.
    ///
    /// # Panics
    /// As [`Self::copy_from`].
    pub fn copy_to(&self, at: usize, bytes: &mut [u8]) {
        self.check(at, bytes.len());
        // SAFETY: as in `copy_from`, the other way round.
        unsafe { std::ptr::copy_nonoverlapping(self.base.as_ptr().add(at), bytes.as_mut_ptr(), bytes.len()) }
    }

    /// Sets `len` bytes from `at` to `byte`.
    ///
    /// # Panics
    /// As [`Self::copy_from`].
    pub fn fill(&self, at: usize, len: usize, byte: u8) {
        self.check(at, len);
        // SAFETY: the range was checked just above; no reference to it can exist.
        unsafe { std::ptr::write_bytes(self.base.as_ptr().add(at), byte, len) }
    }

    /// Bytes for the kernel to read from or write to.
    ///
    /// # Panics
    /// As [`Self::copy_from`].
    pub fn span(&self, at: usize, len: usize) -> Span<'_> {
        self.check(at, len);
        // SAFETY: the range was checked just above, so the pointer stays inside the mapping.
        let base = unsafe { self.base.as_ptr().add(at) };
        Span { iovec: libc::iovec { iov_base: base.cast(), iov_len: len }, memory: PhantomData }
    }

    fn check(&self, at: usize, len: usize) {
        assert!(
            at.checked_add(len).is_some_and(|end| end <= self.len),
            "{len} bytes at {at} of {}",
            self.len
        );
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: our own mapping, and every user holds an `Arc` of `self`, so nobody is left. The kernel cannot
        // refuse to unmap a range that it mapped.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.mapped) };
    }
}

fn round_up(len: usize, page: usize) -> io::Result<usize> {
    len.checked_next_multiple_of(page).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

/// Equal buffers over one [`Memory`], handed out as [`Slot`]s. Taking and giving back is one atomic operation.
#[derive(Debug, Clone)]
pub struct SlotPool(Arc<Pool>);

#[derive(Debug)]
struct Pool {
    memory: Arc<Memory>,
    slot_size: u32,
    slots: u32,
    /// One bit a slot, set while it is free.
    free: Box<[AtomicU64]>,
}

impl SlotPool {
    /// A pool of `slots` slots of `slot_size` bytes each; both at least one. The size is rounded up to whole cache
    /// lines, and from a page on to whole pages.
    ///
    /// # Errors
    /// The kernel's, where it has no room for the mapping.
    pub fn new(slots: u32, slot_size: u32) -> io::Result<Self> {
        let slots = slots.max(1);
        let page = rustix::param::page_size();
        let whole = if slot_size as usize > page / 2 { page } else { CACHE_LINE };
        let slot_size = round_up(slot_size.max(1) as usize, whole)?;
        let slot_size = u32::try_from(slot_size).map_err(|_| io::ErrorKind::InvalidInput)?;
        let memory = Memory::anonymous(
            (slot_size as usize).checked_mul(slots as usize).ok_or(io::ErrorKind::OutOfMemory)?,
        )?;
        let word = |index: u32| {
            AtomicU64::new(if slots - index * 64 >= 64 { u64::MAX } else { (1 << (slots - index * 64)) - 1 })
        };
        Ok(Self(Arc::new(Pool {
            memory: Arc::new(memory),
            slot_size,
            slots,
            free: (0..slots.div_ceil(64)).map(word).collect(),
        })))
    }

    /// A free slot, or `None` while all are in use.
    pub fn take(&self) -> Option<Slot> {
        for (word, free) in self.0.free.iter().enumerate() {
            let mut bits = free.load(Ordering::Relaxed);
            while bits != 0 {
                let lowest = bits & bits.wrapping_neg();
                match free.compare_exchange_weak(bits, bits & !lowest, Ordering::Acquire, Ordering::Relaxed) {
                    Ok(_) => {
                        let index = word as u32 * 64 + lowest.trailing_zeros();
                        return Some(Slot { pool: self.0.clone(), index });
                    }
                    Err(now) => bits = now,
                }
            }
        }
        None
    }

    /// Number of slots that are free at this moment.
    pub fn available(&self) -> u32 {
        self.0.free.iter().map(|word| word.load(Ordering::Relaxed).count_ones()).sum()
    }

    /// Number of slots.
    pub fn slots(&self) -> u32 {
        self.0.slots
    }

    /// Size of each slot in bytes.
    pub fn slot_size(&self) -> u32 {
        self.0.slot_size
    }

    /// The memory under all slots, to be registered once.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.0.memory
    }

    /// Whether `slot` is one of this pool's.
    pub fn owns(&self, slot: &Slot) -> bool {
        Arc::ptr_eq(&self.0, &slot.pool)
    }
}

/// One buffer of a [`SlotPool`], owned by whoever holds it; dropping it gives it back. There is never a second one of it:
///
/// ```compile_fail,E0599
/// # use kaeru_common::fabric::buffer::Slot;
/// fn keep(slot: Slot) -> (Slot, Slot) {
///     (slot.clone(), slot)
/// }
/// ```
#[derive(Debug)]
#[must_use = "a slot that is dropped is free for the next request"]
pub struct Slot {
    pool: Arc<Pool>,
    index: u32,
}

impl Slot {
    /// Its number in the pool.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Its size in bytes.
    pub fn size(&self) -> u32 {
        self.pool.slot_size
    }

    /// Its address, for a card.
    pub fn address(&self) -> u64 {
        self.pool.memory.address() + self.start() as u64
    }

    /// Copies `bytes` to `at`.
    ///
    /// # Panics
    /// Where the bytes do not fit the slot, which is a bug of ours.
    pub fn copy_from(&mut self, at: usize, bytes: &[u8]) {
        self.check(at, bytes.len());
        self.pool.memory.copy_from(self.start() + at, bytes);
    }

    /// Copies from `at` into `bytes`.
    ///
    /// # Panics
    /// As [`Self::copy_from`].
    pub fn copy_to(&self, at: usize, bytes: &mut [u8]) {
        self.check(at, bytes.len());
        self.pool.memory.copy_to(self.start() + at, bytes);
    }

    /// Sets `len` bytes from `at` to `byte`.
    ///
    /// # Panics
    /// As [`Self::copy_from`].
    pub fn fill(&mut self, at: usize, len: usize, byte: u8) {
        self.check(at, len);
        self.pool.memory.fill(self.start() + at, len, byte);
    }

    /// Bytes for the kernel to read from or write to.
    ///
    /// # Panics
    /// As [`Self::copy_from`].
    pub fn span(&self, at: usize, len: usize) -> Span<'_> {
        self.check(at, len);
        self.pool.memory.span(self.start() + at, len)
    }

    fn start(&self) -> usize {
        self.index as usize * self.pool.slot_size as usize
    }

    fn check(&self, at: usize, len: usize) {
        let size = self.pool.slot_size as usize;
        assert!(
            at.checked_add(len).is_some_and(|end| end <= size),
            "{len} bytes at {at} of a slot of {size}"
        );
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.pool.free[self.index as usize / 64].fetch_or(1 << (self.index % 64), Ordering::Release);
    }
}

/// A stretch of bytes for one vectored socket call: part of a [`Memory`] or [`Slot`], or a plain slice.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Span<'a> {
    iovec: libc::iovec,
    memory: PhantomData<&'a ()>,
}

impl<'a> Span<'a> {
    /// A span of no bytes.
    pub const EMPTY: Span<'static> =
        Span { iovec: libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }, memory: PhantomData };

    /// Plain bytes to send. (To receive into plain bytes, see [`receive`].)
    pub fn of(bytes: &'a [u8]) -> Self {
        Self {
            iovec: libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() },
            memory: PhantomData,
        }
    }

    /// The span without its first `skip` bytes (without all, where there are fewer).
    #[must_use]
    pub fn after(self, skip: usize) -> Self {
        let skip = skip.min(self.iovec.iov_len);
        let iov_base = self.iovec.iov_base.cast::<u8>().wrapping_add(skip).cast();
        Self { iovec: libc::iovec { iov_base, iov_len: self.iovec.iov_len - skip }, ..self }
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.iovec.iov_len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.iovec.iov_len == 0
    }
}

/// Receives what a stream socket has, without waiting: first into `spans`, then into `rest`.
///
/// The spans must be of memory or slots. Returns the number of bytes, 0 at the end of the stream.
///
/// # Errors
/// `WouldBlock` where nothing has arrived; otherwise the socket's.
pub fn receive<const N: usize>(
    socket: BorrowedFd<'_>,
    spans: [SpanMut<'_>; N],
    rest: &mut [u8],
) -> io::Result<usize> {
    const { assert!(N < MAX_RECEIVE) };
    let mut iovecs = [Span::EMPTY.iovec; MAX_RECEIVE];
    for (iovec, span) in iovecs.iter_mut().zip(&spans) {
        *iovec = span.0.iovec;
    }
    iovecs[N] = libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() };
    let mut message = message_of(&mut iovecs[..=N]);
    // SAFETY: needed to receive straight into memory that no slice may name. Every iovec is either a checked range of
    // a live mapping or slot (borrowed by its span for this call) or the exclusive slice `rest`.
    retry(|| unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) })
}

/// As [`receive`], with plain bytes in front: first into `head`, then into `span`, then into `rest`.
///
/// # Errors
/// As [`receive`].
pub fn receive_behind(
    socket: BorrowedFd<'_>,
    head: &mut [u8],
    span: SpanMut<'_>,
    rest: &mut [u8],
) -> io::Result<usize> {
    let mut iovecs = [
        libc::iovec { iov_base: head.as_mut_ptr().cast(), iov_len: head.len() },
        span.0.iovec,
        libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() },
    ];
    let mut message = message_of(&mut iovecs);
    // SAFETY: as in `receive`: two exclusive slices, and a checked range that its span borrows for this call.
    retry(|| unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) })
}

/// Sends the spans in order on a stream socket, without waiting. Returns how many bytes were taken.
///
/// At most [`MAX_SPANS`] spans are looked at.
///
/// # Errors
/// `WouldBlock` where the socket has no room; otherwise the socket's (a closed peer is `BrokenPipe`, never a signal).
pub fn transmit(socket: BorrowedFd<'_>, spans: &[Span<'_>]) -> io::Result<usize> {
    let spans = &spans[..spans.len().min(MAX_SPANS)];
    let mut message: libc::msghdr = message_of(&mut []);
    message.msg_iov = spans.as_ptr().cast_mut().cast();
    message.msg_iovlen = spans.len() as _;
    // SAFETY: needed to send straight from memory that no slice may name. `Span` is a transparent iovec of live
    // memory borrowed for this call; sendmsg only reads the array and what it points to.
    retry(|| unsafe {
        libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
    })
}

/// The most stretches that [`receive`] fills, `rest` included: few, since every call sets the array up.
const MAX_RECEIVE: usize = 4;

/// The most spans that [`transmit`] moves with one call.
pub const MAX_SPANS: usize = 128;

/// A [`Span`] that may be written to: of a slot that the caller owns, or of granted memory.
pub struct SpanMut<'a>(Span<'a>);

impl Slot {
    /// Bytes for the kernel to write to.
    ///
    /// # Panics
    /// As [`Self::copy_from`].
    pub fn span_mut(&mut self, at: usize, len: usize) -> SpanMut<'_> {
        SpanMut(self.span(at, len))
    }
}

impl Memory {
    /// Bytes for the kernel to write to, on behalf of a peer that was granted them.
    ///
    /// # Panics
    /// As [`Self::copy_from`].
    pub fn span_mut(&self, at: usize, len: usize) -> SpanMut<'_> {
        SpanMut(self.span(at, len))
    }
}

fn message_of(iovecs: &mut [libc::iovec]) -> libc::msghdr {
    // SAFETY: msghdr is a plain C structure for which all zeroes means "no name, no control data".
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = iovecs.as_mut_ptr();
    message.msg_iovlen = iovecs.len() as _;
    message
}

fn retry(mut call: impl FnMut() -> libc::ssize_t) -> io::Result<usize> {
    loop {
        match usize::try_from(call()) {
            Ok(bytes) => return Ok(bytes),
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_pool_hands_out_each_slot_once_and_takes_it_back() {
        let pool = SlotPool::new(130, 4096).unwrap();
        let slots: Vec<Slot> = std::iter::from_fn(|| pool.take()).collect();
        let mut indices: Vec<u32> = slots.iter().map(Slot::index).collect();
        indices.sort_unstable();
        assert_eq!(indices, (0..130).collect::<Vec<_>>());
        assert_eq!(pool.available(), 0);
        drop(slots);
        assert_eq!(pool.available(), 130);
    }

    #[test]
    fn slots_do_not_overlap() {
        let pool = SlotPool::new(3, 100).unwrap();
        let mut slots: Vec<Slot> = std::iter::from_fn(|| pool.take()).collect();
        for (value, slot) in (1u8..).zip(&mut slots) {
            slot.fill(0, slot.size() as usize, value);
        }
        for (value, slot) in (1u8..).zip(&slots) {
            let mut bytes = vec![0; slot.size() as usize];
            slot.copy_to(0, &mut bytes);
            assert!(bytes.iter().all(|&byte| byte == value));
        }
    }

    #[test]
    #[should_panic(expected = "1 bytes at 4096 of a slot of 4096")]
    fn a_slot_refuses_to_be_overrun() {
        let pool = SlotPool::new(2, 4096).unwrap();
        pool.take().unwrap().copy_from(4096, &[1]);
    }

    #[test]
    fn memory_is_shared_through_its_file() {
        let memory = Memory::memfd("test", 10_000).unwrap();
        memory.copy_from(9_990, b"0123456789");
        let mut file = File::from(memory.file().unwrap().try_clone_to_owned().unwrap());
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).unwrap();
        assert_eq!(&bytes[9_990..10_000], b"0123456789");
    }

    #[test]
    fn bytes_go_straight_into_a_slot_and_the_rest_behind_it() {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let pool = SlotPool::new(1, 4096).unwrap();
        let mut slot = pool.take().unwrap();
        ours.write_all(b"0123456789").unwrap();
        let mut rest = [0; 16];
        let got = receive(theirs.as_fd(), [slot.span_mut(10, 4)], &mut rest).unwrap();
        assert_eq!(got, 10);
        assert_eq!(&rest[..6], b"456789");
        let sent = transmit(theirs.as_fd(), &[Span::of(b"<"), slot.span(10, 4), Span::of(b">")]).unwrap();
        assert_eq!(sent, 6);
        let mut back = [0; 6];
        ours.read_exact(&mut back).unwrap();
        assert_eq!(&back, b"<0123>");
    }

    #[test]
    fn an_empty_socket_would_block_and_a_closed_one_ends() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut rest = [0; 4];
        assert_eq!(receive(theirs.as_fd(), [], &mut rest).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(ours);
        assert_eq!(receive(theirs.as_fd(), [], &mut rest).unwrap(), 0);
        assert_eq!(
            transmit(theirs.as_fd(), &[Span::of(b"x")]).unwrap_err().kind(),
            io::ErrorKind::BrokenPipe
        );
    }
}
