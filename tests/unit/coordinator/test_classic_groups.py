"""A classic group at the coordinator: sentences of Kafka's ClassicGroupState and of the KIPs, each as a test."""

from __future__ import annotations

from typing import Any

import pytest

from spark_kgroup.model import ErrorCode
from spark_kgroup.wire import schema

from .asking import RANGE, REBALANCE_MS, SESSION_MS, Asking

# ------------------------------------------------------------------------------------------------- first members


def test_a_dynamic_member_is_given_an_id_and_joins_with_it() -> None:
    """KIP-394."""
    g = Asking()
    required = g.answers[g.join()]
    assert required.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert required.member_id == "me-1"
    g.join(required.member_id)
    assert [m.member_id for m in g.group.members.values()] == ["me-1"]


def test_a_dynamic_member_of_an_old_client_joins_at_once() -> None:
    g = Asking()
    token = g.join(version=3)
    assert token in g.waiting
    assert list(g.group.members) == ["me-1"]


def test_an_id_that_is_not_used_is_forgotten_after_a_session() -> None:
    g = Asking()
    member_id = g.answers[g.join()].member_id
    g.pass_ms(SESSION_MS)
    assert g.answers[g.join(member_id)].error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_rebalance_waits_for_a_client_that_was_given_an_id() -> None:
    g = Asking()
    leader, follower = g.two_seats()
    pending = g.answers[g.join()].member_id
    first, second = g.join(leader, "a"), g.join(follower, "b")
    assert {first, second} <= g.waiting
    g.join(pending)
    assert g.answers[first].generation_id == g.answers[second].generation_id == 2


def test_the_first_members_wait_for_further_ones_and_each_part_of_the_delay_with_a_new_one_is_followed_by_another() -> (
    None
):
    """KIP-134."""
    g = Asking(group_initial_rebalance_delay_ms=3_000)
    first = g.join(instance_id="a")
    g.pass_ms(2_999)
    second = g.join(instance_id="b")
    g.pass_ms(3_000)
    assert {first, second} <= g.waiting
    g.pass_ms(1)
    assert g.answers[first].generation_id == g.answers[second].generation_id == 1


def test_the_initial_delay_ends_with_the_rebalance_timeout() -> None:
    g = Asking(group_initial_rebalance_delay_ms=3_000)
    first = g.join(instance_id="seat", rebalance_timeout_ms=7_000)
    for n in range(3):
        g.pass_ms(2_500)
        g.join(instance_id=f"seat-{n}", rebalance_timeout_ms=7_000)
    assert first in g.answers or g.pass_ms(500) is None
    g.pass_ms(7_000)
    assert g.answers[first].generation_id == 1
    assert g.answers[first].error_code == ErrorCode.NONE


def test_the_leader_is_told_all_members_and_the_others_none() -> None:
    g = Asking()
    first, second = g.join(instance_id="a"), g.join(instance_id="b")
    g.pass_ms(6_000)
    leader, follower = g.answers[first], g.answers[second]
    assert leader.leader == follower.leader == leader.member_id
    assert [m.group_instance_id for m in leader.members] == ["a", "b"]
    assert follower.members == ()
    assert not leader.skip_assignment


# ------------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"session_timeout_ms": 5_999}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 1_800_001}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"member_id": "unheard-of"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"protocol_type": ""}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": ()}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_a_join_is_refused(fields: dict[str, Any], error: ErrorCode) -> None:
    g = Asking()
    assert g.answers[g.join(**fields)].error_code == error


def test_members_must_share_a_protocol_and_its_type() -> None:
    g = Asking()
    g.join(instance_id="a", protocols=(("range", b""), ("sticky", b"")))
    wrong = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert g.answers[g.join(instance_id="b", protocols=(("roundrobin", b""),))].error_code == wrong
    assert g.answers[g.join(instance_id="b", protocol_type="connect")].error_code == wrong
    g.join(instance_id="b", protocols=(("sticky", b""),))
    g.pass_ms(6_000)
    assert g.group.protocol == "sticky", "the only one that both support"


def test_the_protocol_that_most_members_prefer_is_chosen() -> None:
    g = Asking()
    for name, own in (("a", ("range", "sticky")), ("b", ("sticky", "range")), ("c", ("sticky", "range"))):
        g.join(instance_id=name, protocols=[(each, b"") for each in own])
    g.pass_ms(9_000)
    assert g.group.protocol == "sticky"


def test_protocols_with_as_many_votes_are_chosen_in_the_order_of_java_s_map() -> None:
    """ClassicGroup.selectProtocol takes the first of the best in a HashMap: "sticky" comes before "range"."""
    for names in (("range", "sticky"), ("sticky", "range")):
        g = Asking()
        for instance_id, own in zip("ab", (names, names[::-1]), strict=True):
            g.join(instance_id=instance_id, protocols=[(each, b"") for each in own])
        g.pass_ms(6_000)
        assert g.group.protocol == "sticky"


def test_a_group_that_is_full_takes_no_further_member() -> None:
    g = Asking(group_max_size=2)
    g.two_seats()
    assert g.answers[g.join(instance_id="c")].error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert g.state == "Stable"


def test_a_group_that_is_too_large_when_it_is_loaded_loses_the_last_members_to_join() -> None:
    g = Asking()
    leader, follower = g.two_seats()
    g = g.restarted(group_max_size=1)
    assert g.state == "PreparingRebalance"
    first = g.join(leader, "a")
    assert g.answers[g.join(follower, "b")].error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    g.pass_ms(REBALANCE_MS)
    assert g.answers[first].generation_id == 2


# ------------------------------------------------------------------------------------------------------- syncs


def test_a_follower_s_sync_waits_for_the_leader_s() -> None:
    g = Asking()
    first, second = g.join(instance_id="a"), g.join(instance_id="b")
    g.pass_ms(6_000)
    leader, follower = g.answers[first].member_id, g.answers[second].member_id
    parked = g.sync(follower, 1, instance_id="b")
    assert parked in g.waiting
    g.sync(leader, 1, {follower: b"of b"}, "a")
    assert g.answers[parked].assignment == b"of b"
    assert (g.answers[parked].protocol_type, g.answers[parked].protocol_name) == ("consumer", "range")
    assert g.answers[g.sync(leader, 1, instance_id="a")].assignment == b"", "it gave itself no share"


def test_a_session_begins_anew_with_the_answer_to_a_parked_sync() -> None:
    g = Asking()
    first, second = g.join(instance_id="a"), g.join(instance_id="b")
    g.pass_ms(6_000)
    leader, follower = g.answers[first].member_id, g.answers[second].member_id
    g.sync(follower, 1, instance_id="b")
    for _ in range(2):
        g.pass_ms(SESSION_MS - 1)
        g.beat(leader, 1, "a")
    g.sync(leader, 1, instance_id="a")
    g.pass_ms(SESSION_MS - 1)
    g.beat(leader, 1, "a")
    assert set(g.group.members) == {leader, follower}
    g.pass_ms(1)
    assert set(g.group.members) == {leader}


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"group_id": "none"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "unheard-of"}, ErrorCode.FENCED_INSTANCE_ID),
        ({"member_id": "unheard-of", "group_instance_id": None}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"group_instance_id": "unheard-of"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation_id": 0}, ErrorCode.ILLEGAL_GENERATION),
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_name": "sticky"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_name": None}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_a_sync_is_refused(fields: dict[str, Any], error: ErrorCode) -> None:
    """KIP-559: from v5 on a SyncGroup names the protocol."""
    g = Asking()
    leader, _ = g.two_seats()
    request = schema.SyncGroupRequest("g", 1, leader, "a", "consumer", "range", ())
    assert g.answer(request, 5).error_code == ErrorCode.NONE
    assert g.answer(request._replace(**fields), 5).error_code == error


def test_a_sync_of_an_old_client_names_no_protocol() -> None:
    g = Asking()
    leader, _ = g.two_seats()
    assert g.answer(schema.SyncGroupRequest("g", 1, leader, "a", None, None, ()), 3).assignment == b"of a"


def test_members_that_send_no_sync_in_time_are_removed() -> None:
    g = Asking()
    first, second = g.join(instance_id="a"), g.join(instance_id="b")
    g.pass_ms(6_000)
    leader, follower = g.answers[first].member_id, g.answers[second].member_id
    parked = g.sync(follower, 1, instance_id="b")
    for _ in range(5):
        g.pass_ms(REBALANCE_MS // 5)
        if g.state == "CompletingRebalance":
            g.beat(leader, 1, "a")
    assert g.answers[parked].error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert list(g.group.members) == [follower]
    assert g.group.leader == follower


# -------------------------------------------------------------------------------------------------- rebalances


def test_heartbeats_tell_members_to_join_again() -> None:
    g = Asking()
    leader, follower = g.two_seats()
    assert g.beat(follower, 1, "b") == ErrorCode.NONE
    g.join(leader, "a")
    assert g.beat(follower, 1, "b") == ErrorCode.REBALANCE_IN_PROGRESS
    assert g.answers[g.sync(follower, 1, instance_id="b")].error_code == ErrorCode.REBALANCE_IN_PROGRESS
    second = g.join(follower, "b")
    assert g.answers[second].generation_id == 2
    assert g.beat(follower, 1, "b") == ErrorCode.ILLEGAL_GENERATION
    assert g.beat(follower, 2, "b") == ErrorCode.NONE, "while the leader assigns"


def test_a_follower_that_has_not_changed_is_given_the_same_generation() -> None:
    g = Asking()
    _, follower = g.two_seats()
    answer = g.answers[g.join(follower, "b")]
    assert (answer.generation_id, answer.members, answer.skip_assignment) == (1, (), False)
    assert g.state == "Stable"
    g.join(follower, "b", protocols=(("range", b"changed"),))
    assert g.state == "PreparingRebalance"


def test_a_dynamic_member_that_does_not_join_in_time_is_removed_and_a_static_one_stays() -> None:
    """KIP-345."""
    g = Asking()
    leader, follower = g.two_seats()
    third = g.answers[g.join()].member_id
    joined = g.join(third)
    g.join(leader, "a"), g.join(follower, "b")
    assert g.answers[joined].generation_id == 2
    g.join(leader, "a", session_timeout_ms=60_000, protocols=(("range", b"new"),))
    for _ in range(10):
        g.pass_ms(REBALANCE_MS // 10)
        g.beat(follower, 2, "b")
        g.beat(third, 2)
    assert sorted(m.instance_id or "" for m in g.group.members.values()) == ["a", "b"]
    assert g.group.generation == 3


def test_a_static_leader_that_does_not_join_in_time_is_a_member_still_and_leads_no_more() -> None:
    g = Asking()
    leader, follower = g.two_seats()
    joined = g.join(follower, "b", protocols=(("range", b"changed"),))
    for _ in range(6):
        g.pass_ms(REBALANCE_MS // 6)
        g.beat(leader, 1, "a")
    assert g.answers[joined].leader == follower
    assert {m.group_instance_id for m in g.answers[joined].members} == {"a", "b"}


def test_a_rebalance_in_which_no_member_joins_goes_on_until_their_sessions_are_over() -> None:
    g = Asking()
    g.two_seats()
    g.leave(("", "a"))
    g.pass_ms(REBALANCE_MS)
    assert g.state == "Empty"
    assert g.group.generation == 2


def test_a_member_that_asks_again_takes_the_place_of_its_first_request() -> None:
    g = Asking()
    leader, _ = g.two_seats()
    first = g.join(leader, "a")
    second = g.join(leader, "a")
    assert g.dropped == {first}
    assert second in g.waiting


def test_a_silent_member_is_removed_when_its_session_is_over() -> None:
    g = Asking()
    leader, follower = g.two_seats()
    g.pass_ms(SESSION_MS - 1)
    assert g.beat(leader, 1, "a") == ErrorCode.NONE
    g.pass_ms(1)
    assert g.beat(leader, 1, "a") == ErrorCode.REBALANCE_IN_PROGRESS
    assert g.beat(follower, 1, "b") == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_parked_request_stands_for_heartbeats_but_a_new_member_s_only_for_5_minutes() -> None:
    g = Asking()
    leader, _ = g.two_seats()
    parked = g.join(leader, "a", rebalance_timeout_ms=1_000_000)
    new = g.join(instance_id="c", rebalance_timeout_ms=1_000_000)
    pending = g.answers[g.join(session_timeout_ms=1_800_000)].member_id
    g.pass_ms(299_999)
    assert {parked, new} <= g.waiting
    g.pass_ms(1)
    assert parked in g.waiting
    assert g.answers[new].error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert pending in g.group.pending_joins


# ------------------------------------------------------------------------------------------------ static members


def test_a_static_member_that_comes_back_at_rest_keeps_its_share_and_the_old_id_is_fenced() -> None:
    """KIP-345."""
    g = Asking()
    _, old = g.two_seats()
    answer = g.answers[g.join(instance_id="b")]
    assert (answer.generation_id, answer.members, answer.skip_assignment) == (1, (), False)
    assert answer.member_id != old
    assert g.answers[g.sync(answer.member_id, 1, instance_id="b")].assignment == b"of b"
    assert g.beat(old, 1, "b") == ErrorCode.FENCED_INSTANCE_ID
    assert g.answers[g.join(old, "b")].error_code == ErrorCode.FENCED_INSTANCE_ID
    assert g.state == "Stable"


def test_a_leader_that_comes_back_is_told_all_members_and_that_it_must_not_assign() -> None:
    """KIP-814."""
    g = Asking()
    g.two_seats()
    answer = g.answers[g.join(instance_id="a")]
    assert answer.skip_assignment
    assert answer.leader == answer.member_id
    assert len(answer.members) == 2


def test_a_leader_of_an_old_client_that_comes_back_takes_itself_for_a_follower() -> None:
    """KIP-814, "Motivation"."""
    g = Asking()
    leader, _ = g.two_seats()
    answer = g.answers[g.join(instance_id="a", version=5)]
    assert (answer.leader, answer.members, answer.skip_assignment) == (leader, (), False)
    assert answer.member_id != leader


def test_a_static_member_that_comes_back_with_another_choice_of_protocol_makes_the_group_rebalance() -> None:
    g = Asking()
    both = (("range", b""), ("sticky", b""))
    for name in ("a", "b"):
        g.join(instance_id=name, protocols=both)
    g.pass_ms(6_000)
    for member_id in g.group.members:
        g.sync(member_id, 1)
    assert g.state == "Stable"
    g.join(instance_id="b", protocols=(("sticky", b""),))
    assert g.state == "PreparingRebalance"


def test_a_static_member_that_comes_back_while_the_leader_assigns_makes_the_group_rebalance() -> None:
    g = Asking()
    first, second = g.join(instance_id="a"), g.join(instance_id="b")
    g.pass_ms(6_000)
    parked = g.sync(g.answers[second].member_id, 1, instance_id="b")
    g.join(instance_id="a")
    assert g.answers[parked].error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert g.state == "PreparingRebalance"
    assert first in g.answers


def test_a_parked_sync_of_a_static_member_that_is_replaced_is_fenced() -> None:
    g = Asking()
    g.join(instance_id="a")
    second = g.join(instance_id="b")
    g.pass_ms(6_000)
    parked = g.sync(g.answers[second].member_id, 1, instance_id="b")
    g.join(instance_id="b")
    assert g.answers[parked].error_code == ErrorCode.FENCED_INSTANCE_ID


def test_a_static_member_that_comes_back_before_it_has_synced_makes_a_group_at_rest_rebalance() -> None:
    """As on Apache Kafka 4.3.1 (tests/kafka/test_coordinator_against_kafka.py): its old id is awaited still."""
    g = Asking()
    first = g.join(instance_id="a")
    g.join(instance_id="b")
    g.pass_ms(6_000)
    leader = g.answers[first].member_id
    g.sync(leader, 1, instance_id="a")
    new = g.answers[g.join(instance_id="b")].member_id
    g.sync(new, 1, instance_id="b")
    for _ in range(6):
        assert g.state == "Stable"
        g.pass_ms(REBALANCE_MS // 6)
        g.beat(leader, 1, "a")
        g.beat(new, 1, "b")
    assert g.state == "PreparingRebalance"
    assert set(g.group.members) == {leader, new}


def test_a_parked_join_of_a_static_member_that_is_replaced_is_fenced() -> None:
    g = Asking()
    leader, _ = g.two_seats()
    parked = g.join(leader, "a")
    g.join(instance_id="a")
    assert g.answers[parked].error_code == ErrorCode.FENCED_INSTANCE_ID


# ------------------------------------------------------------------------------------------------------ leaving


def test_members_leave_in_batches_by_instance_id_and_each_has_its_own_error() -> None:
    """KIP-345, "LeaveGroup Request/Response"."""
    g = Asking()
    leader, _ = g.two_seats()
    wrong = [("", "unheard-of"), ("unheard-of", None), ("unheard-of", "b"), ("", None)]
    unknown, fenced = ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID
    assert g.leave(("", "b"), *wrong, (leader, "a")) == [0, unknown, unknown, unknown, unknown, 0]
    assert g.state == "Empty"
    assert g.leave(("", "b")) == [unknown]
    g = Asking()
    g.two_seats()
    assert g.leave(("unheard-of", "b")) == [fenced]
    assert g.state == "Stable"


def test_the_parked_join_of_a_member_that_leaves_is_answered() -> None:
    g = Asking()
    leader, _ = g.two_seats()
    parked = g.join(leader, "a")
    assert g.leave(("", "a")) == [ErrorCode.NONE]
    assert g.answers[parked].error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_the_parked_sync_of_a_member_that_leaves_is_never_answered_and_it_is_not_waited_for() -> None:
    """ClassicGroup.remove forgets it."""
    g = Asking()
    first, second = g.join(instance_id="a"), g.join(instance_id="b")
    g.pass_ms(6_000)
    parked = g.sync(g.answers[second].member_id, 1, instance_id="b")
    assert g.leave(("", "b")) == [ErrorCode.NONE]
    assert g.dropped == {parked}
    leader = g.answers[first].member_id
    assert g.answers[g.join(leader, "a")].generation_id == 2
    g.sync(leader, 2, instance_id="a")
    assert g.group.pending_syncs == set()


def test_a_pending_client_may_leave_and_a_rebalance_waits_for_it_no_longer() -> None:
    g = Asking()
    leader, follower = g.two_seats()
    pending = g.answers[g.join()].member_id
    parked = g.join(leader, "a")
    g.join(follower, "b")
    assert g.leave((pending, None)) == [ErrorCode.NONE]
    assert g.answers[parked].generation_id == 2


# --------------------------------------------------------------------------------------------- restarts and moves


def test_a_restart_goes_on_in_the_same_generation_with_sessions_that_begin_anew() -> None:
    g = Asking()
    leader, follower = g.two_seats()
    g.pass_ms(SESSION_MS - 1)
    g = g.restarted()
    g.pass_ms(SESSION_MS - 1)
    assert g.beat(leader, 1, "a") == ErrorCode.NONE
    assert g.answers[g.sync(leader, 1, instance_id="a")].assignment == b"of a"
    g.pass_ms(1)
    assert g.beat(follower, 1, "b") == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_restart_forgets_a_rebalance_that_is_not_complete() -> None:
    g = Asking()
    leader, follower = g.two_seats()
    g.join(leader, "a")
    g.join(follower, "b")
    assert g.group.generation == 2
    g = g.restarted()
    assert (g.group.generation, g.state) == (1, "Stable")


def test_a_restart_knows_a_static_member_that_came_back() -> None:
    g = Asking()
    g.two_seats()
    new = g.answers[g.join(instance_id="b")].member_id
    assert g.restarted().beat(new, 1, "b") == ErrorCode.NONE


def test_a_restart_knows_the_chosen_protocol_alone() -> None:
    g = Asking()
    for name in ("a", "b"):
        g.join(instance_id=name, protocols=(("range", b""), ("sticky", b"")))
    g.pass_ms(6_000)
    leader = g.group.leader
    g.sync(str(leader), 1, instance_id="a")
    assert g.group.protocol == "range"
    refused = g.restarted()
    answer = refused.answers[refused.join(instance_id="b", protocols=(("sticky", b""),))]
    assert answer.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_coordinator_that_resigns_answers_all_that_is_parked_and_its_groups_are_dead() -> None:
    g = Asking()
    leader, follower = g.two_seats()
    parked = g.join(leader, "a")
    g.resign()
    assert g.answers[parked].error_code == ErrorCode.NOT_COORDINATOR
    assert g.coordinator.next_wakeup_at_ms() is None
    dead = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert g.beat(follower, 1, "b") == dead
    assert g.answers[g.join(instance_id="b")].error_code == dead
    assert g.answers[g.sync(follower, 1, instance_id="b")].error_code == dead
    assert g.commit({0: 1}, follower, 1) == [dead]
    assert g.answer(schema.LeaveGroupRequest("g", ()), 5).error_code == dead


def test_the_list_of_a_generation_is_what_members_said() -> None:
    g = Asking()
    g.join(instance_id="a", protocols=(("range", b"x"), ("sticky", b"y")))
    second = g.join(instance_id="b", protocols=RANGE)
    g.pass_ms(6_000)
    listed = g.group.listed()
    assert [(m.group_instance_id, m.metadata) for m in listed] == [("a", b"x"), ("b", b"of range")]
    assert g.answers[second].members == ()
