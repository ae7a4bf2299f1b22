//! Processor time of both ends.

use std::ops::AddAssign;
use std::time::Duration;

use kaeru_client::session::list_within;
use kaeru_client::target::Server;
use kaeru_common::cpu;

/// How long a server may take to tell.
const PATIENCE: Duration = Duration::from_secs(1);

/// What both ends used, in the kernel and outside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cpu {
    /// This process.
    pub client: Duration,
    /// The server, by its own count, for all of its clients; `None` where it did not tell.
    pub server: Option<Duration>,
}

impl Cpu {
    /// What this process and `server` have used so far.
    pub fn now(server: Option<&Server>) -> Self {
        let listing = server.and_then(|server| list_within(server, PATIENCE).ok());
        // Asking costs this process something too.
        Self {
            client: cpu::process(),
            server: listing.map(|told| Duration::from_micros(told.exports.cpu_us)),
        }
    }

    /// What was used until `now`, if this is what was used before.
    pub fn until(self, now: Self) -> Self {
        // A server that began anew has used less.
        let server = now.server.zip(self.server).and_then(|(now, before)| now.checked_sub(before));
        Self { client: now.client.saturating_sub(self.client), server }
    }
}

impl AddAssign for Cpu {
    /// The sum is known where both parts are.
    fn add_assign(&mut self, other: Self) {
        self.client += other.client;
        self.server = self.server.zip(other.server).map(|(ours, theirs)| ours + theirs);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpu(client: u64, server: Option<u64>) -> Cpu {
        Cpu { client: Duration::from_secs(client), server: server.map(Duration::from_secs) }
    }

    #[test]
    fn the_server_s_part_is_known_only_where_it_told_each_time_and_did_not_begin_anew() {
        assert_eq!(cpu(1, Some(5)).until(cpu(4, Some(7))), cpu(3, Some(2)));
        for (before, after) in [(None, Some(7)), (Some(5), None), (Some(5), Some(4))] {
            assert_eq!(cpu(1, before).until(cpu(4, after)), cpu(3, None));
        }
        let mut sum = cpu(1, Some(2));
        sum += cpu(1, Some(3));
        assert_eq!(sum, cpu(2, Some(5)));
        sum += cpu(1, None);
        assert_eq!(sum, cpu(3, None));
    }
}
