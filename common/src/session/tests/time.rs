//! Keep-alives, silence, leases and patience, exact to the nanosecond because the clock is ours.

use std::time::Duration;

use super::pair::{Owner, Pair, attach, ms};
use crate::fabric::FabricKind;
use crate::session::CloseReason;
use crate::session::client::{Event, State as ClientState};
use crate::session::framer::Framer;
use crate::session::server::State as ServerState;
use crate::wire::Message;
use crate::wire::control::OpenLane;

/// Where keep-alives stand in what one side sent.
fn sequences(mut framer: Framer, log: &[u8]) -> Vec<u32> {
    let mut input = log;
    let mut found = Vec::new();
    while let Some(message) = framer.next(&mut input).unwrap() {
        if let Message::KeepAlive(pulse) = message {
            found.push(pulse.sequence);
        }
    }
    found
}

/// Steps to the next wake-up of the client, and says when that is.
fn next_wake(pair: &mut Pair) -> Duration {
    let at = pair.client.poll_timeout().unwrap();
    pair.run_for(at - pair.now);
    pair.elapsed()
}

#[test]
fn keep_alives_go_out_on_the_beat_in_both_directions() {
    let mut pair = Pair::new();
    pair.delay = ms(3);
    pair.connect();
    pair.run_for(ms(10));
    // The welcome arrived after 6 ms: that is where the client's beat starts; the server's started 3 ms before.
    let wakes: Vec<_> = (0..3).map(|_| next_wake(&mut pair)).collect();
    assert_eq!(wakes, [ms(1006), ms(2006), ms(3006)]);
    pair.run_for(ms(10));
    assert_eq!(sequences(Framer::of_requests(), &pair.to_server.log), [1, 2, 3]);
    assert_eq!(sequences(Framer::of_answers(), &pair.to_client.log), [1, 2, 3]);
    pair.run_for(Duration::from_secs(3600));
    assert_eq!((pair.client.state(), pair.server.state()), (ClientState::Ready, ServerState::Ready));
    assert_eq!(sequences(Framer::of_requests(), &pair.to_server.log).len(), 3603);
    assert_eq!(pair.client_events.len(), 1, "an hour of good connection is no event");
}

#[test]
fn a_silent_server_is_reported_once_and_welcomed_back() {
    let mut pair = Pair::attached();
    pair.to_client.stalled = true;
    let heard = pair.elapsed() - pair.client.silent_for(pair.now);
    pair.client_events.clear();
    pair.run_for(ms(2999) - pair.client.silent_for(pair.now));
    assert_eq!(pair.client_events, []);
    pair.run_for(ms(1));
    assert_eq!(pair.elapsed(), heard + ms(3000));
    assert_eq!(pair.client_events, [Event::PeerSilent(ms(3000))]);
    pair.run_for(ms(1_000_000));
    assert_eq!(pair.client.state(), ClientState::Attached);
    pair.to_client.stalled = false;
    pair.run_for(ms(0));
    assert_eq!(pair.client_events, [Event::PeerSilent(ms(3000)), Event::PeerBack(ms(1_003_000))]);
    assert_eq!(pair.client.state(), ClientState::Attached);
}

#[test]
fn a_silent_client_loses_its_session_when_its_lease_runs_out() {
    let mut pair = Pair::attached();
    pair.to_server.stalled = true;
    pair.run_for(ms(4999) - pair.server.silent_for(pair.now));
    assert_eq!(pair.server.state(), ServerState::Attached);
    pair.run_for(ms(1));
    assert_eq!(pair.server_end(), Some(&CloseReason::Expired { silence: ms(5000) }));
}

#[test]
fn a_server_that_slept_reads_before_it_lets_a_lease_run_out() {
    let mut pair = Pair::attached();
    // A stopped process: a minute passes, and the first thing that it sees is its clock.
    let woken = pair.now + ms(60_000);
    pair.server.handle_timeout(woken);
    assert_eq!(pair.server.state(), ServerState::Attached);
    let again = pair.server.poll_timeout().unwrap();
    assert_eq!(again, woken + ms(1000));
    // Nothing was to be read: then it was not the server alone that slept.
    pair.server.handle_timeout(again);
    assert_eq!(pair.server.state(), ServerState::Closed);
}

#[test]
fn missed_beats_are_not_made_up_for() {
    let mut pair = Pair::attached();
    pair.to_client.stalled = true;
    let before = sequences(Framer::of_requests(), &pair.to_server.log).len();
    let woken = pair.now + ms(60_000);
    pair.client.handle_timeout(woken);
    pair.now = woken;
    pair.transmit();
    assert_eq!(sequences(Framer::of_requests(), &pair.to_server.log).len(), before + 1);
    assert_eq!(pair.client.poll_timeout(), Some(woken + ms(1000)));
}

#[test]
fn a_hello_must_be_complete_within_five_seconds() {
    let mut pair = Pair::new();
    pair.server.handle_bytes(pair.now, b"KAERUCTL\0\0");
    pair.run_for(ms(4999));
    assert_eq!(pair.server.state(), ServerState::Greeting);
    pair.server.handle_bytes(pair.now, b"\0");
    pair.run_for(ms(1));
    let after = Duration::from_secs(5);
    assert_eq!(pair.server_end(), Some(&CloseReason::TimedOut { what: "the greeting", after }));
    // Nobody connected the client either.
    assert_eq!(pair.client_end(), Some(&CloseReason::TimedOut { what: "the attempt to connect", after }));
}

#[test]
fn an_overdue_answer_ends_the_session_and_says_to_what() {
    type Request = fn(&mut Pair);
    let cases: [(&str, u64, Request); 4] = [
        ("List", 10, |pair| pair.client.list(pair.now).unwrap()),
        ("Describe", 10, |pair| pair.client.describe(pair.now).unwrap()),
        ("Attach", 30, |pair| pair.client.attach(pair.now, attach()).unwrap()),
        ("Detach", 5, |pair| {
            pair.owner = Owner::Grants;
            pair.client.attach(pair.now, attach()).unwrap();
            pair.run_for(ms(10));
            pair.to_server.stalled = true;
            pair.client.detach(pair.now).unwrap();
        }),
    ];
    for (what, seconds, request) in cases {
        let mut pair = Pair::new();
        pair.owner = Owner::Dithers;
        pair.connect();
        pair.run_for(ms(10));
        request(&mut pair);
        let after = Duration::from_secs(seconds);
        pair.run_for(after - ms(1));
        assert_eq!(pair.client_end(), None, "{what}");
        pair.run_for(ms(1));
        assert_eq!(pair.client_end(), Some(&CloseReason::TimedOut { what, after }));
    }
    let mut pair = Pair::new();
    pair.to_server.stalled = true;
    pair.connect();
    pair.run_for(ms(5000));
    assert_eq!(pair.client_end(), Some(&CloseReason::TimedOut { what: "Hello", after: ms(5000) }));
}

#[test]
fn a_late_lane_is_reported_once_and_still_taken() {
    let mut pair = Pair::attached();
    pair.client_events.clear();
    pair.to_client.stalled = true;
    pair.client.open_lane(pair.now, 0).unwrap();
    pair.run_for(ms(20_000));
    let lane = OpenLane { path: 0, fabric: FabricKind::Tcp };
    assert!(pair.client_events.contains(&Event::LaneLate(lane, ms(10_000))));
    assert_eq!(pair.client_events.len(), 2, "late and silent, once each: {:?}", pair.client_events);
    pair.to_client.stalled = false;
    pair.run_for(ms(0));
    assert!(matches!(pair.client_events[2..], [Event::PeerBack(_), Event::Lane(..)]));
    assert_eq!(pair.client.state(), ClientState::Attached);
}

#[test]
fn a_peer_that_reads_nothing_costs_one_keep_alive_and_one_answer() {
    let mut pair = Pair::attached();
    let quiet = pair.to_client.log.len();
    let mut stream = bytes::BytesMut::new();
    for sequence in 1..=1000 {
        Message::KeepAlive(crate::wire::control::Pulse { sequence }).encode(&mut stream);
    }
    pair.server.handle_bytes(pair.now, &stream);
    for _ in 0..3 {
        pair.server.handle_timeout(pair.server.poll_timeout().unwrap());
    }
    pair.transmit();
    assert_eq!(pair.to_client.log.len() - quiet, 20, "one KeepAliveAck and one KeepAlive of ten bytes each");
}
