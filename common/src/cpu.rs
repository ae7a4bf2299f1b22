//! Processor time.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// What this process has used so far, on all processors, in the kernel and outside.
pub fn process() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.max(0) as u64, time.tv_nsec.clamp(0, 999_999_999) as u32)
}

#[cfg(test)]
mod tests {
    #[test]
    fn work_uses_time() {
        let before = super::process();
        while super::process() - before < std::time::Duration::from_millis(1) {
            std::hint::spin_loop();
        }
    }
}
