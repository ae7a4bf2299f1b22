//! A RAM export's bytes: shared memory, in huge pages where there are any, locked once.

use std::io;
use std::sync::Arc;

use kaeru_common::fabric::buffer::Memory;
use kaeru_common::units::Size;
use rustix::process::{Resource, getrlimit};

/// Memory that a peer's card reads and writes by itself.
#[derive(Debug)]
pub struct Ram {
    memory: Arc<Memory>,
    locked: bool,
}

/// Why there is no such RAM export.
#[derive(Debug, thiserror::Error)]
pub enum RamError {
    /// More than the machine has.
    #[error(
        "RAM exports of {need} in all do not fit: this machine has {} of memory available; export less",
        available.about()
    )]
    TooLarge {
        /// What all RAM exports together need.
        need: Size,
        /// What the kernel says is available.
        available: Size,
    },
    /// More than may be locked.
    #[error(
        "RAM exports of {need} in all cannot be locked in memory: the limit is {limit} (ulimit -l). Raise it with \
         \"{user} - memlock unlimited\" in /etc/security/limits.conf and a new login, or with \
         LimitMEMLOCK=infinity in the systemd unit; or pass --no-lock to serve over tcp only, from memory that may be swapped"
    )]
    MemoryLock {
        /// What all RAM exports together need.
        need: Size,
        /// What may be locked.
        limit: Size,
        /// Who is meant.
        user: String,
    },
    /// The kernel refused memory.
    #[error("the kernel gave no {size} of memory for {name}: {source}")]
    Kernel {
        /// The export.
        name: String,
        /// Its size.
        size: Size,
        /// The kernel's error.
        source: io::Error,
    },
}

/// What this machine allows.
#[derive(Clone, Copy, Debug)]
pub struct MemoryLimits {
    /// Bytes that can be had without swapping, if the kernel says.
    pub available: Option<u64>,
    /// Bytes that may be locked; `None` for no limit.
    pub lockable: Option<u64>,
}

impl MemoryLimits {
    /// Those of this process.
    pub fn current() -> Self {
        let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let limit = getrlimit(Resource::Memlock).current;
        Self { available: available(&meminfo), lockable: if may_lock_all(&status) { None } else { limit } }
    }

    /// Whether RAM exports of `need` bytes in all can be had and, if `lock`, be locked.
    ///
    /// # Errors
    /// [`RamError`] with need, limit, and how to raise it.
    pub fn check(&self, need: u64, lock: bool) -> Result<(), RamError> {
        let need_size = Size(need);
        if let Some(available) = self.available.filter(|&available| need > available) {
            return Err(RamError::TooLarge { need: need_size, available: Size(available) });
        }
        match self.lockable {
            Some(limit) if lock && need > limit => Err(RamError::MemoryLock {
                need: need_size,
                limit: Size(limit),
                user: std::env::var("USER").unwrap_or_else(|_| "USER".into()),
            }),
            _ => Ok(()),
        }
    }
}

/// `MemAvailable` plus free huge pages, which it does not count.
fn available(meminfo: &str) -> Option<u64> {
    let kib = |key: &str| -> Option<u64> {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(key))?;
        line.trim_start_matches(':').trim().trim_end_matches("kB").trim().parse().ok()
    };
    let huge = kib("HugePages_Free").unwrap_or(0).saturating_mul(kib("Hugepagesize").unwrap_or(0));
    kib("MemAvailable")?.checked_add(huge)?.checked_mul(1024)
}

/// Whether the process has `CAP_IPC_LOCK`, for which there is no limit.
fn may_lock_all(status: &str) -> bool {
    const CAP_IPC_LOCK: u32 = 14;
    let caps = status.lines().find_map(|line| line.strip_prefix("CapEff:")).map(str::trim);
    caps.and_then(|caps| u64::from_str_radix(caps, 16).ok()).is_some_and(|caps| caps >> CAP_IPC_LOCK & 1 == 1)
}

impl Ram {
    /// Memory of `size` bytes for the export `name`, zeroed, and locked if `lock`.
    ///
    /// # Errors
    /// [`RamError::Kernel`]; call [`MemoryLimits::check`] first for errors that say what to do.
    pub fn new(name: &str, size: u64, lock: bool) -> Result<Self, RamError> {
        let kernel = |source| RamError::Kernel { name: name.to_owned(), size: Size(size), source };
        let len = usize::try_from(size).map_err(|_| kernel(io::ErrorKind::OutOfMemory.into()))?;
        let memory = Memory::memfd(name, len).map_err(kernel)?;
        if lock {
            memory.lock().map_err(kernel)?;
        }
        Ok(Self { memory: Arc::new(memory), locked: lock })
    }

    /// Bytes of the export.
    pub fn size(&self) -> u64 {
        self.memory.len() as u64
    }

    /// The memory itself.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// A word for people about how the bytes are kept.
    pub fn description(&self) -> String {
        match (self.locked, self.memory.is_huge()) {
            (true, true) => "locked in huge pages".into(),
            (true, false) => "locked in memory".into(),
            (false, true) => "in huge pages".into(),
            (false, false) => "in memory that may be swapped".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limits_are_read_as_the_kernel_writes_them() {
        let meminfo = "MemTotal:       24000000 kB\nMemFree:        1 kB\nMemAvailable:   20000000 kB\n\
                       HugePages_Total:      10\nHugePages_Free:        4\nHugepagesize:       2048 kB\n";
        assert_eq!(available(meminfo), Some((20_000_000 + 4 * 2048) * 1024));
        assert_eq!(available(""), None);
        assert!(may_lock_all("Name:\tx\nCapEff:\t000001ffffffffff\n"));
        assert!(may_lock_all("CapEff:\t0000000000004000\n"));
        assert!(!may_lock_all("CapEff:\t0000000000000000\n"));
        assert!(!may_lock_all(""));
    }

    #[test]
    fn a_limit_that_is_too_low_is_named_with_the_need_and_the_way_out() {
        let limits = MemoryLimits { available: Some(1 << 30), lockable: Some(64 << 10) };
        assert!(limits.check(64 << 10, true).is_ok());
        assert!(limits.check(16 << 20, false).is_ok());
        let text = limits.check(16 << 20, true).unwrap_err().to_string();
        for part in ["16 MiB", "64 KiB", "limits.conf", "LimitMEMLOCK=infinity", "--no-lock"] {
            assert!(text.contains(part), "{part} in {text}");
        }
        let text = limits.check((1 << 30) + 1, true).unwrap_err().to_string();
        assert!(text.contains("1073741825 bytes") && text.contains("1.0 GiB"), "{text}");
    }

    #[test]
    fn memory_starts_as_zeroes() {
        let ram = Ram::new("test", 100_001, false).unwrap();
        let mut bytes = vec![1; 100_001];
        ram.memory().copy_to(0, &mut bytes);
        assert!(bytes.iter().all(|&byte| byte == 0));
        assert_eq!(ram.size(), 100_001);
    }
}
