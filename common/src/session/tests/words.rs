//! Who says what when, and what happens when somebody says something else.

use bytes::BytesMut;

use super::pair::{Owner, Pair, TICKET, attach, client_config, facts, granted, ms, server_config};
use crate::codec::{BoundedList, DecodeError};
use crate::error::{PeerFault, Status};
use crate::fabric::FabricKind;
use crate::session::client::{Ask, Event as ClientEvent, State as ClientState};
use crate::session::server::{Event as ServerEvent, Server, State as ServerState};
use crate::session::{CloseReason, Misuse};
use crate::wire::control::{Empty, Exports, Hello, OpenLane, Pulse, Refusal};
use crate::wire::version::VersionRange;
use crate::wire::{CONTROL_PREAMBLE, MAX_LANES, MAX_PIPELINE, Message};

const LANE: OpenLane = OpenLane { path: 0, fabric: FabricKind::Tcp };

#[test]
fn a_session_goes_from_hello_to_detached() {
    let mut pair = Pair::new();
    pair.connect();
    pair.run_for(ms(10));
    pair.client.list(pair.now).unwrap();
    pair.run_for(ms(10));
    pair.client.describe(pair.now).unwrap();
    pair.run_for(ms(10));
    pair.client.attach(pair.now, attach()).unwrap();
    pair.run_for(ms(10));
    pair.client.open_lane(pair.now, 0).unwrap();
    pair.client.open_lane(pair.now, 0).unwrap();
    pair.run_for(ms(10));
    pair.client.detach(pair.now).unwrap();
    pair.run_for(ms(10));

    let [ClientEvent::Welcomed(welcome), rest @ ..] = &pair.client_events[..] else { panic!() };
    assert_eq!((welcome.version, welcome.server.as_str()), (1, "frog"));
    let exports = Exports { exports: BoundedList::default(), cpu_us: 0 };
    let expected = [
        ClientEvent::Listed(exports),
        ClientEvent::Described(facts()),
        ClientEvent::Attached(granted()),
        ClientEvent::Lane(LANE, TICKET),
        ClientEvent::Lane(LANE, TICKET),
        ClientEvent::Closed(CloseReason::Detached),
    ];
    assert_eq!(rest, expected);
    let [ServerEvent::Greeted(hello), rest @ ..] = &pair.server_events[..] else { panic!() };
    assert_eq!((hello.client.as_str(), hello.identity.bytes), ("tama", [1; 16]));
    let expected = [
        ServerEvent::ListWanted,
        ServerEvent::DescribeWanted,
        ServerEvent::AttachWanted(attach()),
        ServerEvent::LaneWanted(LANE),
        ServerEvent::LaneWanted(LANE),
        ServerEvent::DetachWanted,
        ServerEvent::Closed(CloseReason::Detached),
    ];
    assert_eq!(rest, expected);
    assert_eq!((pair.client.poll_timeout(), pair.server.poll_timeout()), (None, None));
}

#[test]
fn a_refusal_leaves_the_session_where_it_was() {
    let mut pair = Pair::new();
    pair.owner = Owner::Refuses;
    pair.connect();
    pair.run_for(ms(10));
    pair.client.attach(pair.now, attach()).unwrap();
    pair.run_for(ms(10));
    let Some(ClientEvent::Refused(Ask::Attach, refusal)) = pair.client_events.last() else { panic!() };
    assert_eq!(refusal.status, Status::Busy);
    assert_eq!(
        refusal.to_string(),
        "another client writes to the export: mike has been writing to it for 60 s"
    );
    assert_eq!((pair.client.state(), pair.server.state()), (ClientState::Ready, ServerState::Ready));
    pair.owner = Owner::Grants;
    pair.client.attach(pair.now, attach()).unwrap();
    pair.run_for(ms(10));
    assert_eq!(pair.client.state(), ClientState::Attached);
    pair.owner = Owner::Refuses;
    pair.client.open_lane(pair.now, 0).unwrap();
    pair.run_for(ms(10));
    assert!(matches!(pair.client_events.last(), Some(ClientEvent::Refused(Ask::Lane(LANE), _))));
    assert_eq!(pair.client.state(), ClientState::Attached);
}

#[test]
fn versions_without_a_common_one_are_both_named() {
    let mut config = client_config();
    config.versions = VersionRange { oldest: 7, newest: 9 };
    let mut pair = Pair::with(config, server_config());
    pair.connect();
    pair.run_for(ms(10));
    let refusal = Refusal::new(Status::BadVersion, "the client speaks versions 7 to 9, the server version 1");
    assert_eq!(pair.client_end(), Some(&CloseReason::Refused(refusal.clone())));
    assert_eq!(pair.server_end(), Some(&CloseReason::Refused(refusal)));
}

#[test]
fn the_newest_common_version_is_spoken() {
    let (mut client, mut server) = (client_config(), server_config());
    client.versions = VersionRange { oldest: 1, newest: 6 };
    server.versions = VersionRange { oldest: 3, newest: 9 };
    let mut pair = Pair::with(client, server);
    pair.connect();
    pair.run_for(ms(10));
    let Some(ClientEvent::Welcomed(welcome)) = pair.client_events.first() else { panic!() };
    assert_eq!(welcome.version, 6);
}

#[test]
fn a_goodbye_reaches_the_client_with_its_reason() {
    let mut pair = Pair::attached();
    let reason = Refusal::new(Status::ShuttingDown, "see you");
    pair.server.goodbye(reason.clone());
    pair.run_for(ms(10));
    assert_eq!(pair.client_end(), Some(&CloseReason::Goodbye(reason)));
    assert_eq!(pair.server_end(), Some(&CloseReason::ClosedHere));
}

#[test]
fn calls_in_the_wrong_state_change_nothing() {
    let mut pair = Pair::new();
    let now = pair.now;
    let not_now = Err(Misuse::NotNow { state: "connecting" });
    assert_eq!(pair.client.list(now), not_now);
    assert_eq!(pair.client.attach(now, attach()), not_now);
    assert_eq!(pair.client.open_lane(now, 0), not_now);
    assert_eq!(pair.client.detach(now), not_now);
    assert_eq!(pair.server.grant(granted()), Err(Misuse::NotNow { state: "waiting for hello" }));
    let mut pair = Pair::attached();
    assert_eq!(pair.client.list(pair.now), Err(Misuse::NotNow { state: "attached" }));
    assert_eq!(pair.client.open_lane(pair.now, 1), Err(Misuse::NoSuchPath(1)));
    assert_eq!(pair.server.lane_token(TICKET), Err(Misuse::NotNow { state: "attached" }));
    assert_eq!(
        pair.server.refuse(Refusal::new(Status::Internal, "")),
        Err(Misuse::NotNow { state: "attached" })
    );
    pair.owner = Owner::Dithers;
    (0..MAX_LANES).for_each(|_| pair.client.open_lane(pair.now, 0).unwrap());
    assert_eq!(pair.client.open_lane(pair.now, 0), Err(Misuse::TooMany));
    pair.client.detach(pair.now).unwrap();
    pair.run_for(ms(10));
    assert_eq!(pair.server.state(), ServerState::Attached, "{:?}", pair.server_events);
}

#[test]
fn a_grant_that_no_client_would_take_is_not_sent() {
    let mut pair = Pair::new();
    pair.owner = Owner::Dithers;
    pair.connect();
    pair.run_for(ms(10));
    pair.client.attach(pair.now, attach()).unwrap();
    pair.run_for(ms(10));
    let mut bad = granted();
    bad.size += 512;
    let invalid = DecodeError::BadValue { what: "the regions of a path" };
    assert_eq!(pair.server.grant(bad), Err(Misuse::Invalid(invalid)));
    assert_eq!(pair.server.grant(granted()), Ok(()));
}

#[test]
fn a_grant_for_a_client_that_went_away_comes_back_to_the_owner() {
    let mut pair = Pair::new();
    pair.owner = Owner::Dithers;
    pair.connect();
    pair.run_for(ms(10));
    pair.client.attach(pair.now, attach()).unwrap();
    pair.run_for(ms(10));
    pair.hang_up();
    assert_eq!(pair.server.grant(granted()), Err(Misuse::NotNow { state: "closed" }));
    assert_eq!(pair.server_end(), Some(&CloseReason::Disconnected("reset".to_owned())));
}

fn hello() -> Message {
    let config = client_config();
    Message::Hello(Hello { versions: config.versions, identity: config.identity, client: config.client })
}

/// A server that was sent the preamble and these messages.
fn server_told(messages: &[Message]) -> (Server, Vec<ServerEvent>) {
    let mut bytes = BytesMut::from(&CONTROL_PREAMBLE[..]);
    messages.iter().for_each(|message| message.encode(&mut bytes));
    let now = std::time::Instant::now();
    let mut server = Server::new(now, server_config());
    server.handle_bytes(now, &bytes);
    let events = std::iter::from_fn(|| server.poll_event()).collect();
    (server, events)
}

fn fault_of(messages: &[Message]) -> PeerFault {
    match server_told(messages).1.pop() {
        Some(ServerEvent::Closed(CloseReason::Fault(fault))) => fault,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_client_that_says_what_only_servers_say_is_a_fault() {
    let unexpected = |message, state| PeerFault::Unexpected { message, state };
    let early = "waiting for hello";
    assert_eq!(fault_of(&[Message::List(Empty)]), unexpected("List", early));
    assert_eq!(fault_of(&[Message::KeepAlive(Pulse { sequence: 1 })]), unexpected("KeepAlive", early));
    assert_eq!(fault_of(&[hello(), hello()]), unexpected("Hello", "ready"));
    assert_eq!(fault_of(&[hello(), Message::Detached(Empty)]), unexpected("Detached", "ready"));
    let ack = Message::KeepAliveAck(Pulse { sequence: 1 });
    assert_eq!(fault_of(&[hello(), ack]), unexpected("KeepAliveAck", "ready"));
}

#[test]
fn a_request_that_does_not_fit_is_refused_and_the_session_goes_on() {
    let (mut server, events) = server_told(&[hello(), Message::Detach(Empty), Message::OpenLane(LANE)]);
    assert!(matches!(events[..], [ServerEvent::Greeted(_)]));
    let mut out = BytesMut::new();
    assert!(server.poll_transmit(&mut out));
    let text = String::from_utf8_lossy(&out).into_owned();
    assert!(text.contains("Detach does not fit a session that is ready"), "{text}");
    assert!(text.contains("OpenLane does not fit a session that is ready"), "{text}");
    assert_eq!(server.state(), ServerState::Ready);
}

#[test]
fn pipelining_is_bounded_even_where_the_client_reads_nothing() {
    let requests = |count: usize| [vec![hello()], vec![Message::List(Empty); count]].concat();
    // One place of the thirty-two is the welcome's, which has not left either.
    let (server, events) = server_told(&requests(MAX_PIPELINE - 1));
    assert_eq!(server.state(), ServerState::Ready);
    assert_eq!(events.len(), 2, "one request is shown at a time: {events:?}");
    assert_eq!(fault_of(&requests(MAX_PIPELINE)), PeerFault::TooManyRequests { limit: MAX_PIPELINE });
    // Requests that the session answers by itself count as well.
    let refused = [vec![hello()], vec![Message::Detach(Empty); MAX_PIPELINE]].concat();
    assert_eq!(fault_of(&refused), PeerFault::TooManyRequests { limit: MAX_PIPELINE });
}

#[test]
fn a_client_takes_no_answer_that_it_did_not_ask_for() {
    let answers = [
        Message::Exports(Exports { exports: BoundedList::default(), cpu_us: 0 }),
        Message::Granted(granted()),
        Message::LaneToken(TICKET),
        Message::Detached(Empty),
        Message::Refused(Refusal::new(Status::Internal, "")),
        Message::KeepAliveAck(Pulse { sequence: 99 }),
        hello(),
    ];
    for answer in answers {
        let mut pair = Pair::attached();
        let mut bytes = BytesMut::new();
        answer.encode(&mut bytes);
        pair.client.handle_bytes(pair.now, &bytes);
        pair.run_for(ms(1));
        let fault = PeerFault::Unexpected { message: answer.name(), state: "attached" };
        assert_eq!(pair.client_end(), Some(&CloseReason::Fault(fault)));
    }
}

/// The bytes of hello and of the welcome, each with its preamble.
fn greeting() -> (Vec<u8>, Vec<u8>) {
    let mut pair = Pair::new();
    pair.connect();
    pair.run_for(ms(10));
    (pair.to_server.log, pair.to_client.log)
}

#[test]
fn a_stream_cut_at_any_byte_of_the_handshake_ends_both_sides_with_a_reason() {
    let (hello, welcome) = greeting();
    for end in 0..hello.len() {
        let now = std::time::Instant::now();
        let mut server = Server::new(now, server_config());
        server.handle_bytes(now, &hello[..end]);
        server.handle_disconnected("reset");
        let between = end == 0 || end == CONTROL_PREAMBLE.len();
        let reason =
            if between { CloseReason::Disconnected("reset".to_owned()) } else { PeerFault::Cut.into() };
        assert_eq!(server.poll_event(), Some(ServerEvent::Closed(reason)), "after {end} bytes");
        assert_eq!(server.poll_event(), None);
    }
    for end in 0..welcome.len() {
        let mut pair = Pair::new();
        pair.connect();
        pair.client.handle_bytes(pair.now, &welcome[..end]);
        pair.hang_up();
        let fault = matches!(pair.client_end(), Some(CloseReason::Fault(PeerFault::Cut)));
        assert_eq!(fault, end != 0 && end != CONTROL_PREAMBLE.len(), "after {end} bytes");
        assert_eq!(pair.client.state(), ClientState::Closed);
    }
}

#[test]
fn a_byte_damaged_anywhere_in_the_handshake_ends_in_the_handshake_or_in_time() {
    let (hello, _) = greeting();
    for at in 0..hello.len() {
        for flip in [0x01, 0x80, 0xff] {
            let mut pair = Pair::new();
            pair.connect();
            pair.transmit();
            pair.to_server.meddle(|bytes| bytes[at] ^= flip);
            pair.run_for(ms(60_000));
            let (client, server) = (pair.client.state(), pair.server.state());
            // A damaged name or identity is still one; anything else has ended on both sides.
            let lives = client == ClientState::Ready && server == ServerState::Ready;
            let over = pair.client_end().is_some() && pair.server_end().is_some();
            assert!(lives || over, "byte {at} ^ {flip:#x}: {client:?} {server:?}");
            assert!(!lives || at >= CONTROL_PREAMBLE.len() + 6, "byte {at} is checked");
        }
    }
}

#[test]
fn an_overlong_message_at_any_point_of_the_session_is_a_fault() {
    let overlong = [0x00, 0x10, 0x00, 0x00, 0x00, 0x10];
    let mut pair = Pair::attached();
    pair.client.handle_bytes(pair.now, &overlong);
    pair.server.handle_bytes(pair.now, &overlong);
    pair.run_for(ms(1));
    for (end, limit) in [(pair.client_end(), 384 << 10), (pair.server_end(), 1 << 10)] {
        let fault = PeerFault::FrameTooLong { length: 1 << 20, limit };
        assert_eq!(end, Some(&CloseReason::Fault(fault)));
    }
}
