//! Counts the allocations of a lane's thread while it serves a client.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use kaeru_client::nbd::lane::{Lane, LaneConfig, LaneEnd, Spin, Stop};
use kaeru_client::nbd::proto::TransmissionFlags;
use kaeru_client::nbd::transmission::ExportLimits;
use kaeru_client::session::{AttachOptions, FabricChoice, Session};
use kaeru_client::with_remote;
use kaeru_common::metrics::LaneCounters;

use crate::harness::nbd::{CMD_DISC, CMD_FLUSH, CMD_READ, CMD_TRIM, CMD_WRITE, request_bytes};
use crate::harness::server::Server;

/// The system's allocator with a count of what the watched thread asks of it.
struct Counting;

/// Allocations of the watched thread while the count is on.
static COUNT: AtomicU64 = AtomicU64::new(0);
/// Whether they are counted.
static COUNTED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Whether this thread is watched.
    static WATCHED: Cell<bool> = const { Cell::new(false) };
}

fn note() {
    // A thread that is being torn down has no locals any more, and is not watched.
    if COUNTED.load(Ordering::Relaxed) && WATCHED.try_with(Cell::get).unwrap_or(false) {
        COUNT.fetch_add(1, Ordering::Relaxed);
    }
}

#[expect(unsafe_code, reason = "an allocator cannot be written otherwise")]
// SAFETY: every call goes on to the system's allocator unchanged; counting neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note();
        // SAFETY: the caller keeps the contract of `alloc`, which is the same there.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note();
        // SAFETY: as for `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note();
        // SAFETY: `pointer` came from `System` with this layout, as everything that this allocator gave out.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as for `realloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const SIZE: u64 = 16 << 20;
const BLOCK: usize = 4096;
/// Requests in flight at once.
const DEPTH: u64 = 32;

fn config(structured: bool, spin: Spin) -> LaneConfig {
    use TransmissionFlags as F;
    let flags =
        F::HAS_FLAGS.union(F::SEND_FLUSH).union(F::SEND_FUA).union(F::SEND_TRIM).union(F::SEND_WRITE_ZEROES);
    let limits =
        ExportLimits { size: SIZE, flags, base_allocation: false, min_block: 1, max_request: 32 << 20 };
    LaneConfig { limits, structured, hole: false, spin, patience: Duration::from_secs(20) }
}

/// Sends `rounds` batches of writes, reads, a flush and a trim, and takes all of the answers. The buffers are the
/// caller's: this runs on a thread that is not watched, but a slow client would hide nothing and prove less.
fn load(client: &mut UnixStream, structured: bool, rounds: u64) {
    let read_reply = if structured { 20 + 8 + BLOCK } else { 16 + BLOCK };
    let mut requests = Vec::new();
    for number in 0..DEPTH {
        let offset = number * 7919 * 512 % (SIZE - BLOCK as u64);
        requests.extend(request_bytes(CMD_WRITE, 0, number, offset, BLOCK as u32));
        requests.extend([number as u8; BLOCK]);
        requests.extend(request_bytes(CMD_READ, 0, number, offset, BLOCK as u32));
    }
    requests.extend(request_bytes(CMD_FLUSH, 0, 0, 0, 0));
    requests.extend(request_bytes(CMD_TRIM, 0, 0, 4096, 100_000));
    let mut answers = vec![0; DEPTH as usize * (16 + read_reply) + 2 * 16];
    for _ in 0..rounds {
        client.write_all(&requests).unwrap();
        client.read_exact(&mut answers).unwrap();
    }
}

/// The allocations of a lane's thread for thousands of requests, once it has warmed up.
fn allocations(structured: bool, spin: Spin, slip: bool) -> u64 {
    let server = Server::start(&["--ram", &format!("scratch={SIZE}")]);
    let options = AttachOptions { fabric: FabricChoice::Tcp, ..AttachOptions::default() };
    let session = Session::attach(&server.export("scratch").parse().unwrap(), options).unwrap();
    let remote = session.open_lane().unwrap();
    let (mut client, served) = UnixStream::pair().unwrap();
    client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let counters = Arc::new(LaneCounters::default());
    let count = counters.clone();
    let lane = thread::spawn(move || {
        let stop = Stop::new().unwrap();
        with_remote!(remote, remote => {
            let lane = Lane::new(remote, served.into(), config(structured, spin), stop, count);
            WATCHED.set(true);
            let (remote, end) = lane.run();
            if slip {
                drop(std::hint::black_box(Box::new(1)));
            }
            WATCHED.set(false);
            drop(remote);
            end
        })
    });
    load(&mut client, structured, 50);
    COUNT.store(0, Ordering::Relaxed);
    COUNTED.store(true, Ordering::Relaxed);
    load(&mut client, structured, 200);
    if !slip {
        COUNTED.store(false, Ordering::Relaxed);
    }
    client.write_all(&request_bytes(CMD_DISC, 0, 0, 0, 0)).unwrap();
    assert!(matches!(lane.join().unwrap(), LaneEnd::Disconnected));
    COUNTED.store(false, Ordering::Relaxed);
    let snapshot = counters.snapshot();
    assert_eq!((snapshot.reads, snapshot.writes, snapshot.errors), (250 * DEPTH, 250 * DEPTH, 0));
    COUNT.load(Ordering::Relaxed)
}

/// One test, since the count is one for the process.
#[test]
fn a_lane_allocates_nothing_for_a_request() {
    let short = Spin::For(Duration::from_micros(20));
    for (structured, spin) in [(false, short), (true, short), (false, Spin::For(Duration::ZERO))] {
        assert_eq!(allocations(structured, spin, false), 0, "structured replies: {structured}, {spin:?}");
    }
    assert!(allocations(false, short, true) > 0, "a single allocation is noticed");
}
