//! Binding a device: what is asked for, the checks, the sockets.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::net::sockopt;

use super::error::KernelError;
use super::module;
use super::netlink::{self, Connect, Failure};
use super::sysfs::Tree;

/// The most lanes of one device.
pub const MAX_LANES: usize = 64;

/// A request timeout that never comes, in effect: 30 days. (The kernel has no way to say never for more than one lane,
/// and cannot count to more than 49 days.)
pub const NEVER: Duration = Duration::from_secs(30 * 24 * 3600);

/// What each socket may hold in flight, in bytes, each way: a whole request of the largest usual size.
const SOCKET_BUFFER: usize = 4 << 20;

/// How long a device in use is asked for again; udev opens new ones for a moment.
const BUSY_PATIENCE: Duration = Duration::from_secs(1);
const BUSY_STEP: Duration = Duration::from_millis(20);

/// `NBD_FLAG_CAN_MULTI_CONN`.
const FLAG_CAN_MULTI_CONN: u16 = 1 << 8;

/// Ticks are counted in 32 bits, at up to 1000 a second.
const LONGEST: Duration = Duration::from_secs(u32::MAX as u64 / 1000);

const SMALLEST_BLOCK: u32 = 512;

/// What a device should be.
#[derive(Clone, Debug)]
pub struct Attach {
    /// The number N of `/dev/nbdN`; `None` takes a free one.
    pub device: Option<u32>,
    /// Bytes, a multiple of `block_size`.
    pub size: u64,
    /// Bytes: a power of two from 512 to the page size. Programs see it as the logical *and* physical block size; 512
    /// suits disks that were partitioned elsewhere.
    pub block_size: u32,
    /// NBD transmission flags (`NBD_FLAG_*`). Without `SEND_FLUSH` the kernel never sends a flush; without
    /// `CAN_MULTI_CONN` there can be one lane only.
    pub flags: u16,
    /// How old a request may get before the kernel shuts its socket down. Longer than any deadline of our own;
    /// [`NEVER`] where I/O is to wait for the server. Zero leaves it unset, and then it depends on the number of lanes
    /// (see the [module](super)). Rounded up to seconds.
    pub timeout: Duration,
    /// How long a *new* request waits, after the last socket died, before it fails. Zero (leave it unset) fails at once,
    /// which is right as long as nothing brings a device's sockets back. Rounded up to seconds.
    pub dead_conn_timeout: Duration,
    /// Says whose the device is, in `/sys/block/nbdN/backend`: export and session. Empty: not sent. Kernels older than
    /// 5.14 ignore it.
    pub backend: String,
    /// The largest request, in KiB, as far as the driver allows (32 MiB); the driver's default is 128.
    pub max_sectors_kb: u32,
    /// How far sequential reads run ahead, in KiB; the kernel's default is 128. Every page fault on a mapped file reads
    /// as much, so this wants to be smaller than a streaming reader would like.
    pub read_ahead_kb: u32,
}

impl Attach {
    /// A device of `size` bytes with 512-byte blocks, no timeout, requests of up to 4 MiB and 1 MiB of read-ahead.
    #[must_use]
    pub fn new(size: u64, flags: u16) -> Self {
        Self {
            device: None,
            size,
            block_size: SMALLEST_BLOCK,
            flags,
            timeout: NEVER,
            dead_conn_timeout: Duration::ZERO,
            backend: String::new(),
            max_sectors_kb: 4096,
            read_ahead_kb: 1024,
        }
    }

    /// Refuses what the kernel would refuse without a reason, or accept and get wrong.
    fn check(&self, lanes: usize) -> Result<(), KernelError> {
        let page_size = rustix::param::page_size();
        let block_size = self.block_size;
        if !block_size.is_power_of_two() || block_size < SMALLEST_BLOCK || block_size as usize > page_size {
            return Err(KernelError::BlockSize { block_size, page_size });
        }
        let rest = self.size % u64::from(block_size);
        if rest != 0 {
            return Err(KernelError::Size { size: self.size, block_size, rest, whole: self.size - rest });
        }
        let max = if self.flags & FLAG_CAN_MULTI_CONN == 0 { 1 } else { MAX_LANES };
        if lanes == 0 || lanes > max {
            return Err(KernelError::Lanes { lanes, max });
        }
        check_time("request timeout", self.timeout)?;
        check_time("dead-connection timeout", self.dead_conn_timeout)
    }
}

fn check_time(what: &'static str, given: Duration) -> Result<(), KernelError> {
    if given > LONGEST { Err(KernelError::Time { what, given, most: LONGEST }) } else { Ok(()) }
}

/// Whole seconds, rounded up so that half a second does not become zero; zero is unset.
fn seconds(time: Duration) -> Option<u64> {
    let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
    (seconds > 0).then_some(seconds)
}

/// A bound device. Dropping this does not let it go: that is [`disconnect`](super::disconnect).
#[derive(Debug)]
pub struct Device {
    pub(super) index: u32,
    pub(super) size: u64,
    pub(super) max_sectors_kb: u32,
    pub(super) read_ahead_kb: u32,
}

impl Device {
    /// The N of `/dev/nbdN`.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// `/dev/nbdN`.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        Tree::live().node(&format!("nbd{}", self.index))
    }
}

/// Binds a device to `lanes` new sockets and returns our ends, non-blocking, in the order of the kernel's queues.
///
/// Loads the driver if it can. Serve the sockets, then call [`Device::settle`].
///
/// # Errors
/// What `attach` asks for is impossible; the driver is missing; the caller is not root; the device is in use (asked for
/// again for a second).
pub fn connect(attach: &Attach, lanes: usize) -> Result<(Device, Vec<UnixStream>), KernelError> {
    attach.check(lanes)?;
    let family = module::family()?;
    let (ours, kernels) = socket_pairs(lanes).map_err(|error| KernelError::io("make socket pairs", error))?;
    // The kernel takes references of its own; `kernels` is closed when this returns.
    let fds: Vec<RawFd> = kernels.iter().map(AsRawFd::as_raw_fd).collect();
    let request = Connect {
        index: attach.device,
        size: attach.size,
        block_size: attach.block_size.into(),
        flags: attach.flags.into(),
        timeout: seconds(attach.timeout),
        dead_conn_timeout: seconds(attach.dead_conn_timeout),
        backend: &attach.backend,
        sockets: &fds,
    };
    let index =
        patiently(|| netlink::connect(family, &request)).map_err(|failure| explain(attach, failure))?;
    tracing::info!(device = format!("nbd{index}"), lanes, size = attach.size, "bound");
    let device = Device {
        index,
        size: attach.size,
        max_sectors_kb: attach.max_sectors_kb,
        read_ahead_kb: attach.read_ahead_kb,
    };
    Ok((device, ours))
}

/// Asks again for a while when the device is in use.
fn patiently(mut ask: impl FnMut() -> Result<u32, Failure>) -> Result<u32, Failure> {
    let until = Instant::now() + BUSY_PATIENCE;
    loop {
        match ask() {
            Err(Failure::Kernel(error))
                if error.kind() == io::ErrorKind::ResourceBusy && Instant::now() < until =>
            {
                std::thread::sleep(BUSY_STEP);
            }
            answer => return answer,
        }
    }
}

fn explain(attach: &Attach, failure: Failure) -> KernelError {
    let name = attach.device.map_or_else(|| "a free /dev/nbdN".into(), |index| format!("/dev/nbd{index}"));
    let what = format!("bind {name}");
    match failure {
        Failure::Talk(reason) => KernelError::Netlink { what, reason },
        Failure::Kernel(error) => match (error.kind(), attach.device) {
            (io::ErrorKind::PermissionDenied, _) => KernelError::NotPermitted { what },
            (io::ErrorKind::ResourceBusy, Some(index)) => {
                KernelError::Busy { index, holders: Box::new(Tree::live().holders(index)) }
            }
            _ => KernelError::Refused { what, source: error },
        },
    }
}

/// Our ends, and the kernel's.
fn socket_pairs(lanes: usize) -> io::Result<(Vec<UnixStream>, Vec<UnixStream>)> {
    let pairs = (0..lanes).map(|_| {
        let (ours, kernels) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        widen(&ours)?;
        widen(&kernels)?;
        Ok((ours, kernels))
    });
    pairs.collect::<io::Result<Vec<_>>>().map(|pairs| pairs.into_iter().unzip())
}

/// Gives a socket room to send. Beyond `wmem_max` this takes CAP_NET_ADMIN; what there is without it works too.
fn widen(socket: &UnixStream) -> io::Result<()> {
    if sockopt::set_socket_send_buffer_size_force(socket, SOCKET_BUFFER).is_err() {
        sockopt::set_socket_send_buffer_size(socket, SOCKET_BUFFER)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn a_size_that_is_no_multiple_is_refused_with_the_numbers() {
        let error = Attach::new(241_059, 0).check(1).unwrap_err().to_string();
        for number in ["241059", "512", "419", "240640"] {
            assert!(error.contains(number), "{error}");
        }
        assert!(Attach::new((2 << 40) + 512, 0).check(1).is_ok());
    }

    #[test]
    fn impossible_block_sizes_are_refused() {
        for block_size in [0, 1, 256, 513, 1 << 20] {
            let attach = Attach { block_size, ..Attach::new(1 << 30, 0) };
            assert!(matches!(attach.check(1), Err(KernelError::BlockSize { .. })), "{block_size}");
        }
    }

    #[test]
    fn more_than_one_lane_needs_multi_conn() {
        assert!(matches!(Attach::new(0, 0).check(2), Err(KernelError::Lanes { lanes: 2, max: 1 })));
        assert!(matches!(Attach::new(0, 0).check(0), Err(KernelError::Lanes { lanes: 0, .. })));
        assert!(Attach::new(0, FLAG_CAN_MULTI_CONN).check(4).is_ok());
    }

    #[test]
    fn times_never_round_to_unset_nor_overflow() {
        assert_eq!(seconds(Duration::ZERO), None);
        assert_eq!(seconds(Duration::from_millis(1)), Some(1));
        assert_eq!(seconds(Duration::from_millis(1001)), Some(2));
        assert_eq!(seconds(NEVER), Some(2_592_000));
        let attach = Attach { timeout: Duration::from_secs(50 * 24 * 3600), ..Attach::new(0, 0) };
        assert!(matches!(attach.check(1), Err(KernelError::Time { .. })));
    }

    #[test]
    fn a_pair_is_connected_and_ours_does_not_block() {
        let (mut ours, mut kernels) = socket_pairs(2).unwrap();
        kernels[1].write_all(b"ping").unwrap();
        let mut got = [0; 4];
        ours[1].read_exact(&mut got).unwrap();
        assert_eq!(&got, b"ping");
        assert_eq!(ours[0].read(&mut got).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn only_a_busy_device_is_asked_for_again() {
        let mut asked = 0;
        let got = patiently(|| {
            asked += 1;
            if asked < 3 { Err(Failure::Kernel(io::ErrorKind::ResourceBusy.into())) } else { Ok(5) }
        });
        assert_eq!((got.unwrap(), asked), (5, 3));
        assert!(patiently(|| Err(Failure::Kernel(io::ErrorKind::PermissionDenied.into()))).is_err());
    }
}
