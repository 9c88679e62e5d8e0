"""KIP-345 (static members), KIP-394 (MEMBER_ID_REQUIRED) and KIP-814 (SkipAssignment), one sentence at a time."""

from __future__ import annotations

import pytest

from spark_kgroup.errors import FencedInstanceId, GroupRejected
from spark_kgroup.member import contract
from spark_kgroup.member.classic import State
from spark_kgroup.model import NO_GENERATION, UNKNOWN_MEMBER_ID, ErrorCode, MemberIdentity

from .member_driver import ME, SESSION_MS, Driver, claim, member, none_of, only, parts, request_in

# ------------------------------------------------------------------------------------------------- KIP-345


def test_a_static_member_first_joins_with_its_instance_id_and_no_member_id():
    """KIP-345, "Client Behavior Changes": the instance id is in "the initial join group request"."""
    driver = Driver()
    assert driver.take(contract.Join()) == [contract.Connect(reason="start")]
    request = request_in(driver.take(contract.Connected()))
    assert isinstance(request, contract.JoinRequest)
    assert request.reason == "start"
    assert request.identity == MemberIdentity(instance_id="seat-0", member_id=UNKNOWN_MEMBER_ID)
    assert claim(request).owned == frozenset()
    assert claim(request).generation == NO_GENERATION


def test_a_static_member_that_comes_back_gets_the_same_generation_and_assignment():
    """KIP-345: a rejoin during Stable is answered from the current generation, the sync with the old assignment."""
    driver = Driver().into(State.JOINING)
    effects = driver.answer_join(generation=41, leader="somebody")
    joined = only(effects, contract.Joined)
    assert joined.rejoined
    assert joined.identity == MemberIdentity(instance_id="seat-0", member_id=ME, generation=41)
    assert none_of(effects, contract.ComputeAssignment)
    assigned = only(driver.answer_sync(3, 5), contract.Assigned)
    assert assigned == contract.Assigned(
        identity=joined.identity, assigned=parts(3, 5), added=parts(3, 5), revoked=frozenset()
    )
    assert driver.state is State.STABLE


def test_only_a_static_join_without_a_member_id_counts_as_given_back():
    assert only(Driver().into(State.STABLE).rebalance_and_join(), contract.Joined).rejoined is False
    dynamic = Driver(instance_id=None).into(State.JOINING)
    assert only(dynamic.answer_join(), contract.Joined).rejoined is False


def fenced_joining() -> list[contract.Effect]:
    driver = Driver().into(State.STABLE)
    driver.take(contract.RejoinWanted(reason="test"))
    return driver.answer_join(error=ErrorCode.FENCED_INSTANCE_ID)


def fenced_syncing() -> list[contract.Effect]:
    driver = Driver().into(State.STABLE)
    driver.rebalance_and_join()
    return driver.answer_sync(error=ErrorCode.FENCED_INSTANCE_ID)


def fenced_by_heartbeat() -> list[contract.Effect]:
    driver = Driver().into(State.STABLE)
    driver.after(3_000)
    return driver.answer_beat(ErrorCode.FENCED_INSTANCE_ID)


def fenced_by_commit() -> list[contract.Effect]:
    driver = Driver().into(State.STABLE)
    return driver.take(contract.MembershipRefused(identity=driver.machine.identity, error=ErrorCode.FENCED_INSTANCE_ID))


@pytest.mark.parametrize("fenced", [fenced_joining, fenced_syncing, fenced_by_heartbeat, fenced_by_commit])
def test_a_member_that_is_fenced_in_any_state_ends(fenced):
    """KIP-345: the fenced member loses what it owns and ends; to join again would fence the newer one."""
    effects = fenced()
    assert only(effects, contract.Lost).partitions == parts(0, 1)
    error = only(effects, contract.Failed).error
    assert isinstance(error, FencedInstanceId)
    assert "seat-0" in str(error)
    assert none_of(effects, contract.Send, contract.Connect)


def test_a_dynamic_member_that_is_fenced_all_the_same_ends_and_names_no_seat():
    driver = Driver(instance_id=None).into(State.STABLE)
    driver.after(3_000)
    error = only(driver.answer_beat(ErrorCode.FENCED_INSTANCE_ID), contract.Failed).error
    assert isinstance(error, FencedInstanceId)
    assert error.instance_id == ""


def test_a_fenced_member_has_no_timer_and_owns_nothing():
    driver = Driver().into(State.STABLE)
    driver.after(3_000)
    driver.answer_beat(ErrorCode.FENCED_INSTANCE_ID)
    assert driver.state is State.CLOSED
    assert driver.machine.owned == frozenset()
    assert driver.after(100 * SESSION_MS) == []


def test_a_member_that_ended_with_an_error_goes_by_no_member_id():
    """What a commit says of the membership that ended concerns nobody any more (`MembershipRefused`)."""
    driver = Driver().into(State.STABLE)
    driver.after(3_000)
    driver.answer_beat(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    assert driver.machine.identity == MemberIdentity(instance_id="seat-0")


def test_a_leaving_member_names_member_id_and_instance_id():
    """KIP-345, "Leave Group Logic Change": "If member.id is provided, the member will only be removed if the
    member.id matches." """
    driver = Driver().into(State.STABLE)
    request = request_in(driver.take(contract.Leave(reason="done")))
    assert request == contract.LeaveRequest(
        identity=MemberIdentity(instance_id="seat-0", member_id=ME, generation=1), reason="done"
    )
    assert driver.take(contract.LeaveResponse(request=request, error=0)) == [contract.Left(error=0)]
    assert driver.state is State.CLOSED


def test_leaving_ends_with_any_answer_and_not_with_a_connection_that_breaks():
    driver = Driver().into(State.LEAVING)
    leave = driver.last_sent()
    assert isinstance(leave, contract.LeaveRequest)
    assert driver.lose_connection() == []
    unanswered = contract.LeaveResponse(request=leave, error=ErrorCode.NETWORK_EXCEPTION)
    assert driver.take(unanswered) == [contract.Left(error=ErrorCode.NETWORK_EXCEPTION)]
    assert driver.state is State.CLOSED


def test_a_dynamic_member_that_nobody_knows_has_nothing_to_leave():
    driver = Driver(instance_id=None).into(State.JOINING)
    assert driver.take(contract.Leave(reason="done")) == [contract.Left(error=ErrorCode.NETWORK_EXCEPTION)]


def test_a_seat_that_was_never_asked_for_is_not_given_back():
    """LeaveGroup with the instance id alone would take it from whoever has it."""
    driver = Driver()
    driver.take(contract.Join())
    assert driver.take(contract.Leave(reason="done")) == [contract.Left(error=ErrorCode.NETWORK_EXCEPTION)]
    asked = Driver().into(State.JOINING)
    assert isinstance(request_in(asked.take(contract.Leave(reason="done"))), contract.LeaveRequest)


def test_a_seat_that_was_asked_for_at_the_instant_zero_is_given_back():
    """Where a clock begins is its own affair."""
    driver = Driver()
    driver.now_ms = 0
    driver.into(State.JOINING)
    assert isinstance(request_in(driver.take(contract.Leave(reason="done"))), contract.LeaveRequest)


def test_a_member_without_a_connection_leaves_over_another_one():
    driver = Driver().into(State.STABLE)
    driver.lose_connection()
    assert isinstance(request_in(driver.take(contract.Leave(reason="done"))), contract.LeaveRequest)
    assert driver.take(contract.Connected()) == []


@pytest.mark.parametrize("state", [State.JOINING, State.ASSIGNING, State.SYNCING, State.STABLE, State.REVOKING])
def test_a_closing_static_member_sends_nothing(state: State):
    """KIP-345: a static member "will not send leave group request when they go offline": its seat waits for it."""
    driver = Driver().into(state)
    assert driver.take(contract.Close()) == []


def test_a_zombie_is_fenced_and_does_not_fence_its_successor():
    """KIP-345. 1. a pause longer than the session; 2. another process takes the seat; 3. the first one wakes up."""
    driver = Driver().into(State.STABLE)
    effects = driver.after(SESSION_MS)
    assert only(effects, contract.Lost).partitions == parts(0, 1)
    assert request_in(effects).identity == MemberIdentity(instance_id="seat-0", member_id=ME)
    assert isinstance(
        only(driver.answer_join(error=ErrorCode.FENCED_INSTANCE_ID), contract.Failed).error, FencedInstanceId
    )


def test_a_seat_that_was_given_away_is_taken_anew_only_when_the_coordinator_says_so():
    driver = Driver().into(State.STABLE)
    driver.after(SESSION_MS)
    effects = driver.answer_join(error=ErrorCode.UNKNOWN_MEMBER_ID)
    assert request_in(effects).identity == MemberIdentity(instance_id="seat-0", member_id=UNKNOWN_MEMBER_ID)
    assert none_of(effects, contract.Lost), "lost already"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "share, streams, connect"),
        (ErrorCode.INVALID_SESSION_TIMEOUT, "`session.timeout.ms`"),
        (ErrorCode.INVALID_GROUP_ID, "`group.id`"),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, "grant READ"),
        (ErrorCode.GROUP_MAX_SIZE_REACHED, "members"),
        (ErrorCode.UNKNOWN_SERVER_ERROR, "max.message.bytes of the topic __consumer_offsets"),
        (ErrorCode.UNSUPPORTED_VERSION, "UNSUPPORTED_VERSION"),
        (12_345, "ERROR_12345"),
    ],
)
def test_a_refusal_that_retrying_cannot_mend_ends_the_member_and_says_why(error: int, message: str):
    driver = Driver().into(State.JOINING)
    failed = only(driver.answer_join(error=error), contract.Failed)
    assert isinstance(failed.error, GroupRejected)
    assert "'g'" in str(failed.error)
    assert message in str(failed.error)
    assert driver.state is State.CLOSED


# ------------------------------------------------------------------------------------------------- KIP-394


def test_a_dynamic_member_joins_again_with_the_id_it_is_given():
    """KIP-394; KIP-429, 1.e: "set the member id, and then re-send join-group"."""
    driver = Driver(instance_id=None).into(State.JOINING)
    assert driver.last_sent().identity == MemberIdentity(instance_id=None)
    effects = driver.answer_join(error=ErrorCode.MEMBER_ID_REQUIRED, member_id="dynamic-7")
    assert request_in(effects).identity == MemberIdentity(instance_id=None, member_id="dynamic-7")
    assert driver.state is State.JOINING


def test_a_dynamic_member_keeps_its_id_over_a_lost_connection():
    driver = Driver(instance_id=None).into(State.JOINING)
    driver.answer_join(error=ErrorCode.MEMBER_ID_REQUIRED, member_id="dynamic-7")
    driver.lose_connection()
    assert request_in(driver.take(contract.Connected())).identity.member_id == "dynamic-7"


# ------------------------------------------------------------------------------------------------- KIP-814


def test_a_leader_that_comes_back_to_a_stable_group_does_not_assign():
    """KIP-814: it "will send an SyncGroup with no assignment to collect its own (and existing) assignment"."""
    driver = Driver().into(State.JOINING)
    effects = driver.answer_join(leader=ME, members=(member(ME), member("b")), skip_assignment=True)
    joined = only(effects, contract.Joined)
    assert (joined.leader, joined.skip_assignment, joined.rejoined) == (True, True, True)
    assert joined.protocol == "sticky"
    assert none_of(effects, contract.ComputeAssignment)
    sync = request_in(effects)
    assert isinstance(sync, contract.SyncRequest)
    assert (sync.protocol, sync.assignments) == ("sticky", ())
    driver.answer_sync(0)
    assert driver.state is State.STABLE


@pytest.mark.parametrize("skip", [True, False])
def test_a_leader_watches_the_topics_of_all_members(skip: bool):
    """KIP-814: a leader that skips the assignment watches on, else partitions added later go unnoticed."""
    driver = Driver().into(State.JOINING)
    members = (member(ME), member("b", "orders", "returns"), member("c", "payments"))
    driver.answer_join(leader=ME, members=members, skip_assignment=skip)
    assert driver.machine.leader
    assert driver.machine.watched_topics == {"orders", "returns", "payments"}


def test_a_newcomer_a_follower_and_a_replaced_leader_watch_no_topics():
    driver = Driver().into(State.JOINING)
    assert not driver.machine.leader
    assert driver.machine.watched_topics == frozenset()
    driver.answer_join(leader=ME, members=(member(ME),))
    assert driver.machine.leader
    assert driver.machine.watched_topics == {"orders"}
    driver.take(contract.AssignmentComputed(generation=1, assignments=((ME, parts(0)),)))
    driver.answer_sync(0)
    driver.take(contract.RejoinWanted(reason="test"))
    driver.answer_join(generation=2, leader="somebody", members=(member("somebody"),))
    assert not driver.machine.leader
    assert driver.machine.watched_topics == frozenset()


def test_a_leader_that_lost_its_membership_leads_nobody_and_watches_no_topics():
    driver = Driver().into(State.ASSIGNING)
    driver.take(contract.AssignmentComputed(generation=1, assignments=((ME, parts(0)),)))
    driver.answer_sync(0)
    driver.answer_beat(ErrorCode.UNKNOWN_MEMBER_ID)
    assert not driver.machine.leader
    assert driver.machine.watched_topics == frozenset()


def test_a_leader_sends_the_assignment_that_was_computed_for_its_generation_and_no_other():
    driver = Driver().into(State.ASSIGNING)
    assert driver.take(contract.AssignmentComputed(generation=0, assignments=((ME, parts(9)),))) == []
    shares = ((ME, parts(0)), ("b", parts(1)))
    sync = request_in(driver.take(contract.AssignmentComputed(generation=1, assignments=shares)))
    assert isinstance(sync, contract.SyncRequest)
    assert sync.assignments == shares
