//! Where the time of single operations goes.

use std::time::{Duration, Instant};

use kaeru_client::nbd::stamps::Marks;
use kaeru_client::remote::Spent;
use serde::{Deserialize, Serialize};

use super::samples::Samples;

/// When one operation passed where; what is not known is not there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// The lane took it from its socket.
    pub taken: Option<Instant>,
    /// It went to the link.
    pub posted: Option<Instant>,
    /// It was seen to be complete.
    pub completed: Option<Instant>,
    /// What the server said.
    pub spent: Option<Spent>,
}

impl Stamp {
    /// What a lane noted.
    pub fn of_lane(taken: Instant, marks: Marks) -> Self {
        let Marks { posted, completed, spent } = marks;
        Self { taken: Some(taken), posted, completed, spent }
    }
}

/// A stretch of an operation's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// From the program's send until the lane has taken the request from its socket.
    SocketToLane,
    /// In the lane, until the request is with the link.
    InLane,
    /// With the link: network, cards, and on files and disks the server.
    PostToCompletion,
    /// Of that: on the server, from the request's arrival until the store had it.
    ServerQueue,
    /// Of that: in the server's store.
    Store,
    /// The rest of it: network and cards.
    Network,
    /// From the completion until the program has the answer.
    LaneToSocket,
}

impl Stage {
    /// In the order of the way.
    pub const ALL: [Self; 7] = [
        Self::SocketToLane,
        Self::InLane,
        Self::PostToCompletion,
        Self::ServerQueue,
        Self::Store,
        Self::Network,
        Self::LaneToSocket,
    ];

    /// For a table; what is part of the stage before is set in.
    pub const fn title(self) -> &'static str {
        match self {
            Self::SocketToLane => "socket → lane",
            Self::InLane => "in the lane",
            Self::PostToCompletion => "post → completion",
            Self::ServerQueue => "  server queue",
            Self::Store => "  store",
            Self::Network => "  network, the rest",
            Self::LaneToSocket => "lane → socket",
        }
    }

    /// As JSON and sheets have it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::SocketToLane => "socket-to-lane",
            Self::InLane => "in-lane",
            Self::PostToCompletion => "post-to-completion",
            Self::ServerQueue => "server-queue",
            Self::Store => "store",
            Self::Network => "network",
            Self::LaneToSocket => "lane-to-socket",
        }
    }

    /// How it is known.
    pub const fn source(self) -> &'static str {
        match self {
            Self::SocketToLane | Self::InLane | Self::PostToCompletion | Self::LaneToSocket => "measured",
            Self::ServerQueue | Self::Store => "told by the server",
            Self::Network => "derived, per operation",
        }
    }
}

/// The stages of many operations.
#[derive(Clone, Debug)]
pub struct Stages([Samples; Stage::ALL.len()]);

impl Stages {
    /// None yet.
    ///
    /// # Errors
    /// As [`Samples::new`].
    pub fn new() -> Result<Self, hdrhistogram::CreationError> {
        let mut all = Vec::with_capacity(Stage::ALL.len());
        for _ in Stage::ALL {
            all.push(Samples::new()?);
        }
        // There are exactly as many.
        all.try_into().map(Self).map_err(|_| hdrhistogram::CreationError::UsizeTypeTooSmall)
    }

    /// Adds an operation that the program sent at `began` and had back at `ended`.
    pub fn add(&mut self, began: Instant, stamp: &Stamp, ended: Instant) {
        let between = |from: Option<Instant>, to: Option<Instant>| Some(to?.saturating_duration_since(from?));
        let Stamp { taken, posted, completed, spent } = *stamp;
        let link = between(posted, completed);
        let has_lane = taken.is_some();
        let times: [Option<Duration>; Stage::ALL.len()] = [
            between(Some(began), taken),
            between(taken, posted),
            link,
            spent.map(|spent| spent.waited),
            spent.map(|spent| spent.stored),
            link.zip(spent).map(|(link, spent)| link.saturating_sub(spent.waited + spent.stored)),
            between(completed.filter(|_| has_lane), Some(ended)),
        ];
        for (samples, time) in self.0.iter_mut().zip(times) {
            if let Some(time) = time {
                samples.add(time);
            }
        }
    }

    /// Adds all of another's.
    pub fn merge(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(ours, theirs)| ours.merge(theirs));
    }

    /// Those that are known.
    pub fn known(&self) -> impl Iterator<Item = (Stage, &Samples)> {
        Stage::ALL.into_iter().zip(&self.0).filter(|(_, samples)| samples.count() > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stages_of_an_operation_are_its_whole_way() {
        let start = Instant::now();
        let at = |micros| Some(start + Duration::from_micros(micros));
        let spent = Spent { waited: Duration::from_micros(10), stored: Duration::from_micros(20) };
        let stamp = Stamp { taken: at(5), posted: at(7), completed: at(107), spent: Some(spent) };
        let mut stages = Stages::new().unwrap();
        stages.add(start, &stamp, start + Duration::from_micros(120));
        let micros: Vec<u64> =
            stages.known().map(|(_, samples)| samples.max().unwrap().as_micros() as u64).collect();
        assert_eq!(micros, [5, 2, 100, 10, 20, 70, 13]);
        assert_eq!(micros[0] + micros[1] + micros[2] + micros[6], 120);
        assert_eq!(micros[3] + micros[4] + micros[5], micros[2]);
    }

    #[test]
    fn words_are_those_of_the_json() {
        for stage in Stage::ALL {
            assert_eq!(serde_json::to_value(stage).unwrap(), stage.word());
        }
    }

    #[test]
    fn what_is_not_known_is_not_counted() {
        let now = Instant::now();
        let mut stages = Stages::new().unwrap();
        stages.add(now, &Stamp { posted: Some(now), completed: Some(now), ..Stamp::default() }, now);
        stages.add(now, &Stamp::default(), now);
        let known: Vec<Stage> = stages.known().map(|(stage, _)| stage).collect();
        assert_eq!(known, [Stage::PostToCompletion]);
    }
}
