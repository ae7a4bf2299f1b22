//! The client's side of a session.
//!
//! ```text
//!  Connecting ──connected──▶ Hello ──Welcome──▶ Ready ◀──Exports, Refused── Listing
//!                                               │  │ ──────list──────────────▶   (and likewise Describing)
//!                                             attach└◀─Refused─┐
//!                                               ▼              │
//!                            Attached ◀──Granted── Attaching ──┘
//!                         open_lane │
//!                                detach
//!                                   ▼
//!                               Detaching ──Detached──▶ Closed
//!  any state ──fault, Goodbye, lost stream, overdue answer, close──▶ Closed
//! ```
//!
//! Answers come in the order of the requests. An overdue answer ends the session, except the one to a lane: a stopped
//! server goes on serving the lanes that it has, so that one is reported, and the request stays open. For the same
//! reason silence is reported and ends nothing.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::BytesMut;

use super::channel::Channel;
use super::framer::Framer;
use super::timer::{Timer, Timers};
use super::{CloseReason, Misuse};
use crate::error::PeerFault;
use crate::fabric::FabricKind;
use crate::wire::control::{
    Attach, Empty, Exports, Hello, HostFacts, Identity, LaneTicket, Name, OpenLane, Refusal, Welcome,
};
use crate::wire::grant::Granted;
use crate::wire::version::VersionRange;
use crate::wire::{MAX_LANES, Message};

/// Keep-alive intervals of silence after which it is reported.
const SILENT_INTERVALS: u32 = 3;

/// Who a client is and how long it waits.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Its name, for people.
    pub client: Name,
    /// Its identity, for programs.
    pub identity: Identity,
    /// The versions that it speaks.
    pub versions: VersionRange,
    /// How long it waits.
    pub patience: Patience,
}

/// How long a client waits for what it asked for.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// For the stream.
    pub connect: Duration,
    /// For the answer to hello.
    pub hello: Duration,
    /// For a list, or a description of the server's machine.
    pub list: Duration,
    /// For a grant, before which the server may have to fence an older session.
    pub attach: Duration,
    /// For a lane's token.
    pub lane: Duration,
    /// For the answer to detach.
    pub detach: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            connect: seconds(5),
            hello: seconds(5),
            list: seconds(10),
            attach: seconds(30),
            lane: seconds(10),
            detach: seconds(5),
        }
    }
}

/// Where a client's session stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Waits for the stream.
    Connecting,
    /// Waits for the answer to hello.
    Hello,
    /// Nothing is asked for.
    Ready,
    /// Waits for the list of exports.
    Listing,
    /// Waits for the description of the server's machine.
    Describing,
    /// Waits for a grant.
    Attaching,
    /// Has an export.
    Attached,
    /// Waits for the server to take the export back.
    Detaching,
    /// Over.
    Closed,
}

impl State {
    const fn name(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Hello => "waiting for the welcome",
            Self::Ready => "ready",
            Self::Listing => "listing",
            Self::Describing => "waiting for a description",
            Self::Attaching => "attaching",
            Self::Attached => "attached",
            Self::Detaching => "detaching",
            Self::Closed => "closed",
        }
    }
}

/// A request that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// To be let in.
    Hello,
    /// For the exports.
    List,
    /// For a description of the server's machine.
    Describe,
    /// For an export.
    Attach,
    /// For a lane on this path.
    Lane(OpenLane),
    /// To give the export back.
    Detach,
}

impl Ask {
    const fn name(self) -> &'static str {
        match self {
            Self::Hello => "Hello",
            Self::List => "List",
            Self::Describe => "Describe",
            Self::Attach => "Attach",
            Self::Lane(_) => "OpenLane",
            Self::Detach => "Detach",
        }
    }
}

/// What a client's session tells its driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The server let us in; [`Client::list`], [`Client::describe`] and [`Client::attach`] may be called.
    Welcomed(Welcome),
    /// The exports.
    Listed(Exports),
    /// What the server's machine is.
    Described(HostFacts),
    /// The export is ours; [`Client::open_lane`] and [`Client::detach`] may be called.
    Attached(Granted),
    /// A lane may connect; tokens come in the order in which they were asked for.
    Lane(OpenLane, LaneTicket),
    /// A list, a description, an attach or a lane was refused; the session goes on.
    Refused(Ask, Refusal),
    /// The token of a lane is overdue after this long; it may still come.
    LaneLate(OpenLane, Duration),
    /// Nothing was heard for this long. Lanes may well work; the session goes on.
    PeerSilent(Duration),
    /// The server is heard again, after this long.
    PeerBack(Duration),
    /// The session is over. The last event.
    Closed(CloseReason),
}

/// A request that has no answer yet.
#[derive(Debug)]
struct Open {
    ask: Ask,
    since: Instant,
    /// When to complain; `None` once that was done.
    deadline: Option<Instant>,
}

/// A client's session.
#[derive(Debug)]
pub struct Client {
    config: ClientConfig,
    state: State,
    channel: Channel,
    timers: Timers,
    open: VecDeque<Open>,
    events: VecDeque<Event>,
    /// When the server was last heard; the start before that.
    heard: Instant,
    /// Whether its silence was reported.
    silent: bool,
    /// Between two keep-alives, once the server said so.
    keep_alive: Duration,
    /// The fabrics of the granted paths.
    paths: Vec<FabricKind>,
}

impl Client {
    /// A session whose stream is being connected.
    pub fn new(now: Instant, config: ClientConfig) -> Self {
        let mut timers = Timers::default();
        timers.set(Timer::Handshake, now + config.patience.connect);
        Self {
            config,
            state: State::Connecting,
            channel: Channel::new(Framer::of_answers()),
            timers,
            open: VecDeque::new(),
            events: VecDeque::new(),
            heard: now,
            silent: false,
            keep_alive: Duration::ZERO,
            paths: Vec::new(),
        }
    }

    /// Where it stands.
    pub const fn state(&self) -> State {
        self.state
    }

    /// How long nothing has been heard from the server.
    pub fn silent_for(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.heard)
    }

    /// Asks for the exports.
    ///
    /// # Errors
    /// [`Misuse`] unless [`State::Ready`].
    pub fn list(&mut self, now: Instant) -> Result<(), Misuse> {
        self.require(State::Ready)?;
        self.state = State::Listing;
        self.ask(now, Ask::List, self.config.patience.list, Message::List(Empty));
        Ok(())
    }

    /// Asks what the server's machine is.
    ///
    /// # Errors
    /// [`Misuse`] unless [`State::Ready`].
    pub fn describe(&mut self, now: Instant) -> Result<(), Misuse> {
        self.require(State::Ready)?;
        self.state = State::Describing;
        self.ask(now, Ask::Describe, self.config.patience.list, Message::Describe(Empty));
        Ok(())
    }

    /// Asks for an export.
    ///
    /// # Errors
    /// [`Misuse`] unless [`State::Ready`].
    pub fn attach(&mut self, now: Instant, attach: Attach) -> Result<(), Misuse> {
        self.require(State::Ready)?;
        self.state = State::Attaching;
        self.ask(now, Ask::Attach, self.config.patience.attach, Message::Attach(attach));
        Ok(())
    }

    /// Asks for the token of one more lane on a path of the grant, from 0.
    ///
    /// # Errors
    /// [`Misuse`] unless [`State::Attached`], where there is no such path, or where [`MAX_LANES`] are being asked for.
    pub fn open_lane(&mut self, now: Instant, path: u8) -> Result<(), Misuse> {
        self.require(State::Attached)?;
        let fabric = *self.paths.get(usize::from(path)).ok_or(Misuse::NoSuchPath(path))?;
        if self.open.len() >= MAX_LANES {
            return Err(Misuse::TooMany);
        }
        let lane = OpenLane { path, fabric };
        self.ask(now, Ask::Lane(lane), self.config.patience.lane, Message::OpenLane(lane));
        Ok(())
    }

    /// Gives the export back. The lanes should be closed first.
    ///
    /// # Errors
    /// [`Misuse`] unless [`State::Attached`].
    pub fn detach(&mut self, now: Instant) -> Result<(), Misuse> {
        self.require(State::Attached)?;
        self.state = State::Detaching;
        self.ask(now, Ask::Detach, self.config.patience.detach, Message::Detach(Empty));
        Ok(())
    }

    /// Ends the session at once, in any state.
    pub fn close(&mut self) {
        self.end(CloseReason::ClosedHere);
    }

    /// The stream is there.
    pub fn handle_connected(&mut self, now: Instant) {
        if self.state != State::Connecting {
            return;
        }
        self.timers.set(Timer::Handshake, None);
        self.state = State::Hello;
        let ClientConfig { client, identity, versions, patience } = self.config.clone();
        self.ask(now, Ask::Hello, patience.hello, Message::Hello(Hello { versions, identity, client }));
    }

    /// Bytes came.
    pub fn handle_bytes(&mut self, now: Instant, mut bytes: &[u8]) {
        while self.state != State::Closed {
            match self.channel.framer.next(&mut bytes) {
                Ok(Some(message)) => self.handle_message(now, message),
                Ok(None) => return,
                Err(fault) => self.end(fault.into()),
            }
        }
    }

    /// The stream broke or ended, or did not come about; `cause` is for people.
    pub fn handle_disconnected(&mut self, cause: &str) {
        self.end(match self.channel.framer.at_boundary() {
            true => CloseReason::Disconnected(cause.to_owned()),
            false => PeerFault::Cut.into(),
        });
    }

    /// Time passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some((timer, due)) = self.timers.take_expired(now) {
            match timer {
                Timer::Handshake => {
                    let after = self.config.patience.connect;
                    self.end(CloseReason::TimedOut { what: "the attempt to connect", after });
                }
                Timer::Answer => self.complain(now),
                Timer::KeepAlive => {
                    self.channel.send_keep_alive();
                    self.timers.set(Timer::KeepAlive, super::next_beat(due, self.keep_alive, now));
                }
                Timer::Silence => {
                    self.silent = true;
                    self.events.push_back(Event::PeerSilent(self.silent_for(now)));
                }
            }
        }
    }

    /// When to call [`Self::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// What happened, in order.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Appends what is to be sent to `out`; whether there was anything.
    pub fn poll_transmit(&mut self, out: &mut BytesMut) -> bool {
        self.channel.drain(out)
    }

    fn require(&self, state: State) -> Result<(), Misuse> {
        if self.state == state { Ok(()) } else { Err(Misuse::NotNow { state: self.state.name() }) }
    }

    fn ask(&mut self, now: Instant, ask: Ask, patience: Duration, message: Message) {
        self.channel.send(message);
        self.open.push_back(Open { ask, since: now, deadline: Some(now + patience) });
        self.watch_answers();
    }

    fn watch_answers(&mut self) {
        self.timers.set(Timer::Answer, self.open.iter().filter_map(|open| open.deadline).min());
    }

    /// An answer is overdue.
    fn complain(&mut self, now: Instant) {
        for open in self.open.iter_mut().filter(|open| open.deadline.is_some_and(|at| at <= now)) {
            let after = now.saturating_duration_since(open.since);
            let Ask::Lane(lane) = open.ask else {
                let what = open.ask.name();
                return self.end(CloseReason::TimedOut { what, after });
            };
            open.deadline = None;
            self.events.push_back(Event::LaneLate(lane, after));
        }
        self.watch_answers();
    }

    fn handle_message(&mut self, now: Instant, message: Message) {
        self.hear(now);
        match message {
            Message::Goodbye(reason) => self.end(CloseReason::Goodbye(reason)),
            Message::KeepAlive(pulse) if self.is_welcomed() => self.channel.acknowledge(pulse),
            Message::KeepAliveAck(pulse) if self.channel.was_sent(pulse) => {}
            answer => self.handle_answer(now, answer),
        }
    }

    fn handle_answer(&mut self, now: Instant, answer: Message) {
        let ask = self.open.pop_front().map(|open| open.ask);
        self.watch_answers();
        match (ask, answer) {
            (Some(Ask::Hello), Message::Welcome(welcome)) if self.speaks(&welcome) => {
                self.enter(now, welcome)
            }
            (Some(Ask::List), Message::Exports(exports)) => {
                self.state = State::Ready;
                self.events.push_back(Event::Listed(exports));
            }
            (Some(Ask::Describe), Message::Described(facts)) => {
                self.state = State::Ready;
                self.events.push_back(Event::Described(facts));
            }
            (Some(Ask::Attach), Message::Granted(granted)) => {
                self.state = State::Attached;
                self.paths = granted.grant.paths().iter().map(|path| path.fabric).collect();
                self.events.push_back(Event::Attached(granted));
            }
            (Some(Ask::Lane(lane)), Message::LaneToken(ticket)) => {
                self.events.push_back(Event::Lane(lane, ticket))
            }
            (Some(Ask::Detach), Message::Detached(_)) => self.end(CloseReason::Detached),
            (Some(ask), Message::Refused(refusal)) => self.be_refused(ask, refusal),
            (_, answer) => {
                let fault = PeerFault::Unexpected { message: answer.name(), state: self.state.name() };
                self.end(fault.into());
            }
        }
    }

    fn be_refused(&mut self, ask: Ask, refusal: Refusal) {
        match ask {
            Ask::Hello | Ask::Detach => return self.end(CloseReason::Refused(refusal)),
            Ask::List | Ask::Describe | Ask::Attach => self.state = State::Ready,
            Ask::Lane(_) => {}
        }
        self.events.push_back(Event::Refused(ask, refusal));
    }

    fn speaks(&self, welcome: &Welcome) -> bool {
        self.config.versions.contains(welcome.version)
    }

    const fn is_welcomed(&self) -> bool {
        !matches!(self.state, State::Connecting | State::Hello)
    }

    fn enter(&mut self, now: Instant, welcome: Welcome) {
        self.state = State::Ready;
        self.keep_alive = welcome.keep_alive();
        self.timers.set(Timer::KeepAlive, now + self.keep_alive);
        self.timers.set(Timer::Silence, now + self.keep_alive * SILENT_INTERVALS);
        self.events.push_back(Event::Welcomed(welcome));
    }

    fn hear(&mut self, now: Instant) {
        if std::mem::take(&mut self.silent) {
            self.events.push_back(Event::PeerBack(self.silent_for(now)));
        }
        self.heard = now;
        if self.is_welcomed() {
            self.timers.set(Timer::Silence, now + self.keep_alive * SILENT_INTERVALS);
        }
    }

    fn end(&mut self, reason: CloseReason) {
        if self.state != State::Closed {
            self.state = State::Closed;
            self.timers.clear();
            self.open.clear();
            self.events.push_back(Event::Closed(reason));
        }
    }
}
