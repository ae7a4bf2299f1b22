//! The server's side of a session.
//!
//! ```text
//!  Greeting ──Hello──▶ Ready ──grant──▶ Attached ──detached──▶ Closed
//!                      List, Describe,  OpenLane, Detach
//!                      Attach
//!  any state ──fault, lost stream, silence beyond the lease, goodbye──▶ Closed
//! ```
//!
//! Requests are decided by the session's owner, one at a time and in order: each is an event that ends in `Wanted`, and
//! the next is not shown before that one is answered. Meanwhile up to [`MAX_PIPELINE`] wait. A request that does not fit
//! the state is refused without the owner; a message that no client may send ends the session.
//!
//! `Closed` says that the control stream is over, not what becomes of the lanes: the owner fences them, at once or when
//! the lease has run out without a resumption.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::BytesMut;

use super::channel::Channel;
use super::framer::Framer;
use super::timer::{Timer, Timers};
use super::{CloseReason, Misuse};
use crate::error::{PeerFault, Status};
use crate::fabric::FabricKind;
use crate::wire::control::{
    Attach, Empty, Exports, Hello, HostFacts, LaneTicket, OpenLane, Refusal, Welcome,
};
use crate::wire::grant::Granted;
use crate::wire::version::VersionRange;
use crate::wire::{MAX_PIPELINE, Message};

/// What a server says of itself and how long it waits.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// The versions that it speaks.
    pub versions: VersionRange,
    /// What it answers to hello; the version is filled in.
    pub welcome: Welcome,
    /// How long a client may take from connecting to a complete hello.
    pub handshake: Duration,
}

impl ServerConfig {
    /// Time for a complete hello, unless told otherwise.
    pub const HANDSHAKE: Duration = Duration::from_secs(5);
    /// Milliseconds between keep-alives, unless told otherwise.
    pub const KEEP_ALIVE_MS: u32 = 1_000;
    /// Milliseconds of silence that end a session, unless told otherwise.
    pub const LEASE_MS: u32 = 5_000;
}

/// Where a server's session stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Waits for hello.
    Greeting,
    /// The client is known.
    Ready,
    /// The client has an export.
    Attached,
    /// Over.
    Closed,
}

impl State {
    const fn name(self) -> &'static str {
        match self {
            Self::Greeting => "waiting for hello",
            Self::Ready => "ready",
            Self::Attached => "attached",
            Self::Closed => "closed",
        }
    }
}

/// What a server's session tells its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A client said who it is, and was welcomed.
    Greeted(Hello),
    /// Answer with [`Server::exports`] or [`Server::refuse`].
    ListWanted,
    /// Answer with [`Server::describe`] or [`Server::refuse`].
    DescribeWanted,
    /// Answer with [`Server::grant`] or [`Server::refuse`].
    AttachWanted(Attach),
    /// Answer with [`Server::lane_token`] or [`Server::refuse`]. How many lanes are alive is the owner's to count.
    LaneWanted(OpenLane),
    /// Close the lanes, free the lease, then answer with [`Server::detached`].
    DetachWanted,
    /// The control stream is over. The last event.
    Closed(CloseReason),
}

/// The decision that the owner owes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Want {
    List,
    Describe,
    Attach,
    Lane,
    Detach,
}

/// A server's session.
#[derive(Debug)]
pub struct Server {
    config: ServerConfig,
    state: State,
    channel: Channel,
    timers: Timers,
    waiting: VecDeque<Message>,
    want: Option<Want>,
    events: VecDeque<Event>,
    heard: Instant,
    /// The fabrics of the granted paths.
    paths: Vec<FabricKind>,
}

impl Server {
    /// A session whose stream has just been accepted.
    pub fn new(now: Instant, config: ServerConfig) -> Self {
        let mut timers = Timers::default();
        timers.set(Timer::Handshake, now + config.handshake);
        Self {
            config,
            state: State::Greeting,
            channel: Channel::new(Framer::of_requests()),
            timers,
            waiting: VecDeque::new(),
            want: None,
            events: VecDeque::new(),
            heard: now,
            paths: Vec::new(),
        }
    }

    /// Where it stands.
    pub const fn state(&self) -> State {
        self.state
    }

    /// How long nothing has been heard from the client.
    pub fn silent_for(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.heard)
    }

    /// Answers [`Event::ListWanted`].
    ///
    /// # Errors
    /// [`Misuse`] where that is not what is wanted.
    pub fn exports(&mut self, exports: Exports) -> Result<(), Misuse> {
        self.settle(Want::List)?;
        self.answer(Message::Exports(exports));
        Ok(())
    }

    /// Answers [`Event::DescribeWanted`].
    ///
    /// # Errors
    /// [`Misuse`] where that is not what is wanted.
    pub fn describe(&mut self, facts: HostFacts) -> Result<(), Misuse> {
        self.settle(Want::Describe)?;
        self.answer(Message::Described(facts));
        Ok(())
    }

    /// Answers [`Event::AttachWanted`].
    ///
    /// # Errors
    /// [`Misuse`] where that is not what is wanted, as after the client went away, or where no client would take the
    /// grant. What was granted is to be freed then.
    pub fn grant(&mut self, granted: Granted) -> Result<(), Misuse> {
        granted.check().map_err(Misuse::Invalid)?;
        self.settle(Want::Attach)?;
        self.state = State::Attached;
        self.paths = granted.grant.paths().iter().map(|path| path.fabric).collect();
        self.answer(Message::Granted(granted));
        Ok(())
    }

    /// Answers [`Event::LaneWanted`].
    ///
    /// # Errors
    /// As [`Self::grant`]; the token is to be forgotten then.
    pub fn lane_token(&mut self, ticket: LaneTicket) -> Result<(), Misuse> {
        self.settle(Want::Lane)?;
        self.answer(Message::LaneToken(ticket));
        Ok(())
    }

    /// Answers [`Event::DetachWanted`], which ends the session.
    ///
    /// # Errors
    /// [`Misuse`] where that is not what is wanted.
    pub fn detached(&mut self) -> Result<(), Misuse> {
        self.settle(Want::Detach)?;
        self.channel.send(Message::Detached(Empty));
        self.end(CloseReason::Detached);
        Ok(())
    }

    /// Refuses what is wanted: a list, a description, an export or a lane.
    ///
    /// # Errors
    /// [`Misuse`] where none of these is wanted.
    pub fn refuse(&mut self, refusal: Refusal) -> Result<(), Misuse> {
        match self.want {
            None | Some(Want::Detach) => return Err(self.not_now()),
            Some(_) => self.want = None,
        }
        self.answer(Message::Refused(refusal));
        Ok(())
    }

    /// Ends the session in any state and tells the client why.
    pub fn goodbye(&mut self, reason: Refusal) {
        if self.state != State::Closed {
            self.channel.send(Message::Goodbye(reason));
            self.end(CloseReason::ClosedHere);
        }
    }

    /// Bytes came.
    pub fn handle_bytes(&mut self, now: Instant, mut bytes: &[u8]) {
        while self.state != State::Closed {
            match self.channel.framer.next(&mut bytes) {
                Ok(Some(message)) => self.handle_message(now, message),
                Ok(None) => return,
                Err(fault) => self.blame(fault),
            }
        }
    }

    /// The stream broke or ended; `cause` is for people.
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
                    self.end(CloseReason::TimedOut { what: "the greeting", after: self.config.handshake });
                }
                Timer::KeepAlive => {
                    self.channel.send_keep_alive();
                    self.timers.set(Timer::KeepAlive, super::next_beat(due, self.keep_alive(), now));
                }
                Timer::Silence => self.expire(now, due),
                Timer::Answer => {}
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

    const fn keep_alive(&self) -> Duration {
        self.config.welcome.keep_alive()
    }

    const fn not_now(&self) -> Misuse {
        Misuse::NotNow { state: self.state.name() }
    }

    /// The owner decided on what is wanted.
    fn settle(&mut self, want: Want) -> Result<(), Misuse> {
        if self.want != Some(want) {
            return Err(self.not_now());
        }
        self.want = None;
        Ok(())
    }

    fn answer(&mut self, message: Message) {
        self.channel.send(message);
        self.advance();
    }

    fn handle_message(&mut self, now: Instant, message: Message) {
        self.hear(now);
        match (self.state, message) {
            (State::Greeting, Message::Hello(hello)) => self.greet(now, hello),
            (State::Ready | State::Attached, message) => match message {
                Message::KeepAlive(pulse) => self.channel.acknowledge(pulse),
                Message::KeepAliveAck(pulse) if self.channel.was_sent(pulse) => {}
                Message::List(_)
                | Message::Describe(_)
                | Message::Attach(_)
                | Message::OpenLane(_)
                | Message::Detach(_) => self.enqueue(message),
                other => self.blame_message(&other),
            },
            (_, other) => self.blame_message(&other),
        }
    }

    fn greet(&mut self, now: Instant, hello: Hello) {
        let Some(version) = self.config.versions.common(hello.versions) else {
            let text = format!("the client speaks {}, the server {}", hello.versions, self.config.versions);
            let refusal = Refusal::new(Status::BadVersion, &text);
            self.channel.send(Message::Refused(refusal.clone()));
            return self.end(CloseReason::Refused(refusal));
        };
        self.state = State::Ready;
        self.timers.set(Timer::Handshake, None);
        self.timers.set(Timer::KeepAlive, now + self.keep_alive());
        self.timers.set(Timer::Silence, now + self.config.welcome.lease());
        self.channel.send(Message::Welcome(Welcome { version, ..self.config.welcome.clone() }));
        self.events.push_back(Event::Greeted(hello));
    }

    fn enqueue(&mut self, request: Message) {
        let unanswered = self.waiting.len() + usize::from(self.want.is_some());
        if unanswered + self.channel.queued() >= MAX_PIPELINE {
            return self.blame(PeerFault::TooManyRequests { limit: MAX_PIPELINE });
        }
        self.waiting.push_back(request);
        self.advance();
    }

    /// Shows the owner the next request that is his to decide.
    fn advance(&mut self) {
        while self.want.is_none() {
            let Some(request) = self.waiting.pop_front() else { return };
            let (want, event) = match (self.state, request) {
                (State::Ready, Message::List(_)) => (Want::List, Event::ListWanted),
                (State::Ready, Message::Describe(_)) => (Want::Describe, Event::DescribeWanted),
                (State::Ready, Message::Attach(attach)) => (Want::Attach, Event::AttachWanted(attach)),
                (State::Attached, Message::OpenLane(lane)) if self.has_path(lane) => {
                    (Want::Lane, Event::LaneWanted(lane))
                }
                (State::Attached, Message::Detach(_)) => (Want::Detach, Event::DetachWanted),
                (state, request) => {
                    let text = format!("{} does not fit a session that is {}", request.name(), state.name());
                    self.channel.send(Message::Refused(Refusal::new(Status::BadRequest, &text)));
                    continue;
                }
            };
            self.want = Some(want);
            self.events.push_back(event);
        }
    }

    fn has_path(&self, lane: OpenLane) -> bool {
        self.paths.get(usize::from(lane.path)) == Some(&lane.fabric)
    }

    fn hear(&mut self, now: Instant) {
        self.heard = now;
        if self.state != State::Greeting {
            self.timers.set(Timer::Silence, now + self.config.welcome.lease());
        }
    }

    /// The lease ran out at `due`. Where we look much later, it was we who slept (a stopped process, a suspended
    /// machine): what the client sent meanwhile is still to be read, so it has one more interval.
    fn expire(&mut self, now: Instant, due: Instant) {
        if now > due + self.keep_alive() {
            self.timers.set(Timer::Silence, now + self.keep_alive());
        } else {
            self.end(CloseReason::Expired { silence: self.silent_for(now) });
        }
    }

    fn blame_message(&mut self, message: &Message) {
        self.blame(PeerFault::Unexpected { message: message.name(), state: self.state.name() });
    }

    /// The client broke the protocol: it is told so, as far as it can be told anything.
    fn blame(&mut self, fault: PeerFault) {
        if fault != PeerFault::NotKaeru {
            self.channel.send(Message::Goodbye(Refusal::new(Status::BadRequest, &fault.to_string())));
        }
        self.end(fault.into());
    }

    fn end(&mut self, reason: CloseReason) {
        if self.state != State::Closed {
            self.state = State::Closed;
            self.timers.clear();
            self.waiting.clear();
            self.want = None;
            self.events.push_back(Event::Closed(reason));
        }
    }
}
