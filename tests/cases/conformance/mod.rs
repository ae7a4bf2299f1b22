//! The fabric contract, as checks that every fabric must pass, and the proof that each of them can fail.

mod access;
mod bytes;
mod death;
mod flow;
mod waiting;

use crate::harness::pair::{Pair, SimPair};
use crate::harness::tcp::TcpPair;
#[cfg(feature = "verbs")]
use crate::harness::verbs::VerbsPair;
use crate::requires;

/// One test for each check on one fabric.
macro_rules! conformance {
    ($fabric:ident, $pair:ty) => {
        conformance!(@ $fabric, $pair, {
            bytes: {
                reads_and_writes_move_the_right_bytes_at_every_boundary,
                a_read_leaves_the_rest_of_its_slot_alone,
                a_write_leaves_the_bytes_around_it_alone,
                messages_carry_the_right_bytes_both_ways,
                messages_have_slots_of_their_own,
                addresses_beyond_4_gib_are_exact,
                the_peer_moves_bytes_in_and_out_of_a_granted_pool,
                random_operations_agree_with_an_oracle,
            },
            flow: {
                every_slot_comes_back_once_with_its_tag,
                completions_of_one_kind_come_in_order,
                a_full_link_says_so_and_gives_the_slot_back,
                a_completed_write_is_seen_by_a_read_on_another_link,
                a_read_sees_the_writes_posted_before_it,
                the_last_of_many_writes_to_a_place_wins,
                a_message_comes_after_the_writes_before_it,
                a_message_waits_for_a_receive,
                messages_fill_receives_in_order,
                reads_beyond_the_responder_depth_queue,
            },
            access: {
                a_range_one_byte_outside_of_its_region_is_refused,
                a_wrong_key_is_refused,
                a_write_to_a_read_only_region_is_refused,
                a_local_pool_is_not_to_be_reached,
                a_read_only_pool_is_not_to_be_written,
                two_domains_do_not_reach_one_another,
                a_message_longer_than_its_receive_is_too_long,
                the_listener_gets_the_token_and_its_reason_gets_back,
                connecting_to_nobody_fails_and_names_the_address,
                a_listener_does_not_wait_longer_than_its_patience,
            },
            death: {
                a_link_closed_here_gives_everything_back_once,
                a_link_closed_by_the_peer_gives_everything_back_once,
                a_dropped_peer_ends_the_link_and_no_other,
                a_dead_link_refuses_and_gives_the_slot_back,
                dropping_a_link_with_operations_in_flight_leaks_no_slot,
                what_was_written_before_a_drop_stays_written,
            },
            waiting: {
                an_idle_link_sleeps,
                arming_says_that_something_arrived_before,
                no_wake_up_is_lost_in_ten_thousand_round_trips,
                a_sleeping_server_wakes_to_serve,
                sleepers_move_more_than_any_socket_holds,
                death_wakes_a_sleeping_link,
                a_poll_that_meets_the_end_says_so,
            },
        });
    };
    (@ $fabric:ident, $pair:ty, { $($module:ident: { $($check:ident),* $(,)? }),* $(,)? }) => {
        mod $fabric {
            use super::*;

            /// The names of all checks.
            #[allow(dead_code, reason = "one fabric's list is looked at")]
            pub(super) const CHECKS: &[&str] = &[$($(stringify!($check)),*),*];

            $($(
                #[test]
                fn $check() {
                    super::$module::$check(requires!(<$pair as Pair>::open()));
                }
            )*)*
        }
    };
}

conformance!(sim, SimPair);
conformance!(tcp, TcpPair);
#[cfg(feature = "verbs")]
conformance!(verbs, VerbsPair);

/// A fabric that breaks one promise fails the check of that promise.
mod proof {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use kaeru_common::fabric::sim::Defect;

    use super::*;

    macro_rules! proofs {
        ($($defect:ident: $module:ident::$check:ident),* $(,)?) => {
            /// Defects and the checks that catch them.
            const PROOFS: &[(Defect, &str, fn(SimPair))] =
                &[$((Defect::$defect, stringify!($check), super::$module::$check::<SimPair>)),*];
        };
    }

    proofs! {
        CutsLastByte: bytes::reads_and_writes_move_the_right_bytes_at_every_boundary,
        CutsLastByte: bytes::messages_carry_the_right_bytes_both_ways,
        CutsLastByte: bytes::messages_have_slots_of_their_own,
        CutsLastByte: bytes::the_peer_moves_bytes_in_and_out_of_a_granted_pool,
        FillsWholeSlot: bytes::a_read_leaves_the_rest_of_its_slot_alone,
        WritesOneMore: bytes::a_write_leaves_the_bytes_around_it_alone,
        CutsOffset: bytes::addresses_beyond_4_gib_are_exact,
        HurriesReads: bytes::random_operations_agree_with_an_oracle,
        ReordersPackets: bytes::random_operations_agree_with_an_oracle,
        WritesOneMore: bytes::random_operations_agree_with_an_oracle,
        ConfusesTags: flow::every_slot_comes_back_once_with_its_tag,
        OverfillsVector: flow::every_slot_comes_back_once_with_its_tag,
        ShufflesCompletions: flow::completions_of_one_kind_come_in_order,
        ForgetsDepth: flow::a_full_link_says_so_and_gives_the_slot_back,
        AnswersEarly: flow::a_completed_write_is_seen_by_a_read_on_another_link,
        HurriesReads: flow::a_read_sees_the_writes_posted_before_it,
        ReordersPackets: flow::the_last_of_many_writes_to_a_place_wins,
        ReordersPackets: flow::a_message_comes_after_the_writes_before_it,
        DropsUnexpectedSends: flow::a_message_waits_for_a_receive,
        FillsNewestReceive: flow::messages_fill_receives_in_order,
        OverstepsReads: flow::reads_beyond_the_responder_depth_queue,
        StretchesBounds: access::a_range_one_byte_outside_of_its_region_is_refused,
        SpreadsViolations: access::a_range_one_byte_outside_of_its_region_is_refused,
        IgnoresKeys: access::a_wrong_key_is_refused,
        IgnoresRights: access::a_write_to_a_read_only_region_is_refused,
        IgnoresRights: access::a_local_pool_is_not_to_be_reached,
        IgnoresRights: access::a_read_only_pool_is_not_to_be_written,
        IgnoresDomains: access::two_domains_do_not_reach_one_another,
        CutsLongMessages: access::a_message_longer_than_its_receive_is_too_long,
        HidesReason: access::the_listener_gets_the_token_and_its_reason_gets_back,
        GarblesToken: access::the_listener_gets_the_token_and_its_reason_gets_back,
        HidesReason: access::connecting_to_nobody_fails_and_names_the_address,
        Impatient: access::a_listener_does_not_wait_longer_than_its_patience,
        ForgetsOneAtDeath: death::a_link_closed_here_gives_everything_back_once,
        ForgetsOneAtDeath: death::a_link_closed_by_the_peer_gives_everything_back_once,
        KeepsCloseSecret: death::a_link_closed_by_the_peer_gives_everything_back_once,
        KeepsCloseSecret: death::a_dropped_peer_ends_the_link_and_no_other,
        TakesWhenDead: death::a_dead_link_refuses_and_gives_the_slot_back,
        LeaksAtDrop: death::dropping_a_link_with_operations_in_flight_leaks_no_slot,
        AnswersEarly: death::what_was_written_before_a_drop_stays_written,
        AlwaysRings: waiting::an_idle_link_sleeps,
        NeverRings: waiting::no_wake_up_is_lost_in_ten_thousand_round_trips,
        MissesArrivals: waiting::arming_says_that_something_arrived_before,
        NeverRings: waiting::a_sleeping_server_wakes_to_serve,
        NeverRings: waiting::sleepers_move_more_than_any_socket_holds,
        NeverRings: waiting::death_wakes_a_sleeping_link,
        EndsUnsaid: waiting::a_poll_that_meets_the_end_says_so,
    }

    #[test]
    fn every_check_has_a_proof() {
        let unproved: Vec<&&str> =
            sim::CHECKS.iter().filter(|check| PROOFS.iter().all(|(_, name, _)| name != *check)).collect();
        assert!(unproved.is_empty(), "which defect do these notice? {unproved:#?}");
    }

    #[test]
    fn every_check_fails_on_a_fabric_that_breaks_its_promise() {
        let blind = PROOFS.iter().filter(|(defect, _, check)| {
            catch_unwind(AssertUnwindSafe(|| check(SimPair::broken(1, *defect)))).is_ok()
        });
        let blind: Vec<String> = blind.map(|(defect, name, _)| format!("{name} on {defect:?}")).collect();
        assert!(blind.is_empty(), "these notice nothing: {blind:#?}");
    }
}
