"""KIP-429 (cooperative rebalance), KIP-792 (generations in claims), and what eager members do instead."""

from __future__ import annotations

import pytest

from spark_kgroup.assignors.contract import Assignor
from spark_kgroup.member import contract
from spark_kgroup.member.classic import State
from spark_kgroup.model import NO_GENERATION, UNKNOWN_MEMBER_ID, ErrorCode, MemberIdentity

from .member_driver import COOPERATIVE, EAGER, ME, SESSION_MS, Driver, claim, none_of, only, parts, request_in

# -------------------------------------------------------------------------------------- added and revoked


def test_an_assignment_adds_what_was_not_owned_and_revokes_what_it_does_not_have():
    """KIP-429, 3.a: added is `Minus(assigned-partitions, owned-partitions)`, revoked `Minus(owned-partitions,
    assigned-partitions)`."""
    driver = Driver().into(State.STABLE)
    assigned = only(driver.rebalance_to(1, 2, 3), contract.Assigned)
    assert (assigned.assigned, assigned.added, assigned.revoked) == (parts(1, 2, 3), parts(2, 3), parts(0))


def test_a_partition_that_is_assigned_again_is_neither_added_nor_revoked():
    driver = Driver().into(State.STABLE)
    effects = driver.rebalance_to(0, 1)
    assert only(effects, contract.Assigned) == contract.Assigned(
        identity=driver.machine.identity, assigned=parts(0, 1), added=frozenset(), revoked=frozenset()
    )
    assert none_of(effects, contract.Lost, contract.Rejoining)
    assert driver.machine.settled


def test_a_join_claims_what_is_owned_and_the_generation_that_assigned_it():
    """KIP-429, 1.c: "with all the currently owned partitions as assigned partitions"; KIP-792: and their generation."""
    driver = Driver(rack="r1").into(State.STABLE)
    request = request_in(driver.take(contract.RejoinWanted(reason="because")))
    assert isinstance(request, contract.JoinRequest)
    assert request.reason == "because"
    assert request.identity == MemberIdentity(instance_id="seat-0", member_id=ME, generation=1)
    subscription = claim(request)
    assert (subscription.owned, subscription.generation) == (parts(0, 1), 1)
    assert (subscription.topics, subscription.rack) == (("orders",), "r1")
    assert subscription.user_data == b"sticky:2@1", "the assignor's own bytes"


def test_partitions_stay_owned_while_the_group_rebalances():
    """KIP-429: a cooperative member goes on with what it owns while the group rebalances."""
    driver = Driver().into(State.STABLE)
    driver.take(contract.RejoinWanted(reason="test"))
    assert driver.machine.owned == parts(0, 1)
    driver.answer_join(generation=2)
    assert driver.machine.owned == parts(0, 1)
    assert driver.machine.to_give_up == frozenset()


# -------------------------------------------------------------------------- revoked: kept until the boundary


def test_a_revoked_partition_is_owned_until_it_is_given_up_and_the_join_after_that_frees_it():
    """KIP-429, 2.d: "The old owner will realize it does not own it any more, revoke it and then rejoin." """
    driver = Driver().into(State.STABLE)
    effects = driver.rebalance_to(1)
    assert driver.state is State.REVOKING
    assert none_of(effects, contract.Rejoining)
    assert driver.machine.owned == parts(0, 1)
    assert driver.machine.to_give_up == parts(0)
    effects = driver.give_up(0)
    assert [type(effect) for effect in effects] == [contract.Rejoining, contract.Send]
    assert claim(request_in(effects)).owned == parts(1)


def test_a_member_that_gave_up_a_part_of_what_is_revoked_does_not_join_yet():
    driver = Driver().into(State.STABLE)
    driver.rebalance_to(7)
    assert driver.give_up(0) == []
    assert driver.state is State.REVOKING
    assert driver.machine.to_give_up == parts(1)
    assert claim(request_in(driver.give_up(1))).owned == parts(7)


def test_a_revoking_member_joins_at_once_when_the_group_rebalances_and_claims_what_it_still_owns():
    """Joins never wait for a batch; the claim keeps the partition from its next owner."""
    driver = Driver().into(State.REVOKING)
    effects = driver.answer_beat(ErrorCode.REBALANCE_IN_PROGRESS)
    assert claim(request_in(effects)).owned == parts(0, 1)
    assert driver.state is State.JOINING
    assert driver.machine.to_give_up == parts(1), "still to be given up at the next boundary"


def test_a_partition_given_up_while_a_join_that_claims_it_is_parked_leads_to_another_join():
    """1. the join claims P; 2. a boundary gives P up; 3. the leader kept P from its new owner because of our claim."""
    driver = Driver().into(State.REVOKING)
    driver.answer_beat(ErrorCode.REBALANCE_IN_PROGRESS)
    assert driver.give_up(1) == []
    driver.answer_join(generation=3)
    effects = driver.answer_sync(0)
    assert only(effects, contract.Assigned).revoked == frozenset()
    assert claim(request_in(effects)).owned == parts(0)
    assert only(effects, contract.Rejoining)
    driver.answer_join(generation=4)
    driver.answer_sync(0)
    assert driver.machine.settled, "once is enough"


def test_a_partition_given_up_while_the_join_is_parked_and_assigned_again_is_added():
    driver = Driver().into(State.REVOKING)
    driver.answer_beat(ErrorCode.REBALANCE_IN_PROGRESS)
    driver.give_up(1)
    driver.answer_join(generation=3)
    assert only(driver.answer_sync(0, 1), contract.Assigned).added == parts(1)
    assert driver.machine.settled


def test_a_partition_given_up_after_it_was_assigned_again_is_asked_for_by_another_join():
    """1. a boundary decides to give P up; 2. P is assigned to us again; 3. now it says so: nobody reads P."""
    driver = Driver().into(State.REVOKING)
    driver.answer_beat(ErrorCode.REBALANCE_IN_PROGRESS)
    driver.answer_join(generation=3)
    assert only(driver.answer_sync(0, 1), contract.Assigned).added == frozenset()
    effects = driver.give_up(1)
    assert claim(request_in(effects)).owned == parts(0)
    driver.answer_join(generation=4)
    assert only(driver.answer_sync(0, 1), contract.Assigned).added == parts(1)
    assert driver.machine.settled


# --------------------------------------------------------------------------------------------------- lost


def lost_joining(driver: Driver, error: int) -> list[contract.Effect]:
    driver.take(contract.RejoinWanted(reason="test"))
    return driver.answer_join(error=error)


def lost_syncing(driver: Driver, error: int) -> list[contract.Effect]:
    driver.rebalance_and_join()
    return driver.answer_sync(error=error)


def lost_by_heartbeat(driver: Driver, error: int) -> list[contract.Effect]:
    driver.after(3_000)
    return driver.answer_beat(error)


def lost_by_commit(driver: Driver, error: int) -> list[contract.Effect]:
    return driver.take(contract.MembershipRefused(identity=driver.machine.identity, error=error))


@pytest.mark.parametrize("where", [lost_joining, lost_syncing, lost_by_heartbeat, lost_by_commit])
def test_a_member_that_the_group_does_not_know_loses_all_at_once_and_joins_with_nothing(where):
    driver = Driver().into(State.STABLE)
    effects = where(driver, ErrorCode.UNKNOWN_MEMBER_ID)
    assert [type(effect) for effect in effects] == [contract.Lost, contract.Rejoining, contract.Send]
    assert only(effects, contract.Lost).partitions == parts(0, 1)
    assert driver.machine.owned == driver.machine.to_give_up == frozenset()
    request = request_in(effects)
    assert request.identity == MemberIdentity(instance_id="seat-0", member_id=UNKNOWN_MEMBER_ID)
    assert (claim(request).owned, claim(request).generation) == (frozenset(), NO_GENERATION)


@pytest.mark.parametrize("where", [lost_joining, lost_by_heartbeat, lost_by_commit])
@pytest.mark.parametrize("assignor", [COOPERATIVE, EAGER])
def test_a_member_that_fell_behind_loses_what_its_last_join_did_not_claim(where, assignor: Assignor):
    """ILLEGAL_GENERATION leaves the member id (AbstractCoordinator.resetStateOnResponseError)."""
    driver = Driver(assignors=(assignor,)).into(State.STABLE)
    if where is lost_joining and assignor is EAGER:
        driver.give_up(0, 1)  # what an eager member does before it joins
    effects = where(driver, ErrorCode.ILLEGAL_GENERATION)
    assert driver.machine.owned == driver.machine.to_give_up == frozenset()
    request = request_in(effects)
    assert request.identity == MemberIdentity(instance_id="seat-0", member_id=ME)
    assert (claim(request).owned, claim(request).generation) == (frozenset(), NO_GENERATION)


@pytest.mark.parametrize("where", [lost_joining, lost_syncing, lost_by_heartbeat, lost_by_commit])
def test_a_member_that_fell_behind_keeps_what_its_last_join_claimed(where):
    """1. in generation 2 we claim 0 and 1, and get 2, too; 2. a broker makes a group of type consumer a classic one, in
    a generation that we have not joined (GroupMetadataManager.convertToClassicGroup); 3. the leader of the next one
    gives nobody else what we claim; of 2 it does not know."""
    driver = Driver().into(State.STABLE)
    driver.rebalance_to(0, 1, 2)
    effects = where(driver, ErrorCode.ILLEGAL_GENERATION)
    claimed_since = where is lost_syncing
    lost = [effect.partitions for effect in effects if isinstance(effect, contract.Lost)]
    assert lost == ([] if claimed_since else [parts(2)])
    kept = parts(0, 1, 2) if claimed_since else parts(0, 1)
    assert driver.machine.owned == kept
    request = request_in(effects)
    assert request.identity == MemberIdentity(instance_id="seat-0", member_id=ME)
    assert (claim(request).owned, claim(request).generation) == (kept, 2)
    driver.answer_join(generation=5)
    assert only(driver.answer_sync(0, 1, 2), contract.Assigned).added == parts(0, 1, 2) - kept


def test_a_member_that_missed_a_generation_loses_its_partitions_a_session_after_the_last_answer():
    driver = Driver().into(State.STABLE)
    driver.rebalance_to(0, 1)
    lost_by_commit(driver, ErrorCode.ILLEGAL_GENERATION)
    assert only(driver.after(SESSION_MS), contract.Lost).partitions == parts(0, 1)


def test_a_commit_refused_under_an_earlier_identity_changes_nothing():
    driver = Driver().into(State.STABLE)
    old = driver.machine.identity
    driver.rebalance_to(0, 1)
    assert driver.take(contract.MembershipRefused(identity=old, error=ErrorCode.ILLEGAL_GENERATION)) == []
    assert driver.machine.settled


def into_joining_with_unclaimed() -> Driver:
    """Holds 0 and 1, which no answered join has claimed, and is cut off while it joins."""
    driver = Driver().into(State.STABLE)
    driver.take(contract.RejoinWanted(reason="test"))
    driver.lose_connection()
    driver.take(contract.Connected())
    return driver


def test_a_partition_that_no_join_claimed_is_lost_when_a_generation_was_missed():
    """KIP-345. 1. a static member is assigned 0 and 1; 2. it cannot rejoin in time and stays, claiming nothing;
    3. the leader may give 0 and 1 away; 4. its own join, into the generation after, succeeds."""
    driver = into_joining_with_unclaimed()
    effects = driver.answer_join(generation=3)
    assert [type(effect) for effect in effects] == [contract.Lost, contract.Joined, contract.Send]
    assert only(effects, contract.Lost).partitions == parts(0, 1)
    assert only(driver.answer_sync(1), contract.Assigned).added == parts(1), "what comes back is adopted anew"


def test_a_partition_that_the_last_join_claimed_is_kept_when_a_generation_was_missed():
    driver = Driver().into(State.STABLE)
    driver.rebalance_to(0, 1, 2)  # the join claimed 0 and 1
    driver.take(contract.RejoinWanted(reason="test"))
    effects = driver.answer_join(generation=4)
    assert only(effects, contract.Lost).partitions == parts(2)
    assert driver.machine.owned == parts(0, 1)


def test_a_member_that_missed_no_generation_loses_nothing():
    driver = into_joining_with_unclaimed()
    assert none_of(driver.answer_join(generation=2), contract.Lost)
    assert driver.machine.owned == parts(0, 1)


# ----------------------------------------------------------------------------------------- eager members


def eager_holding() -> Driver:
    return Driver(assignors=(EAGER,)).into(State.STABLE)


def test_an_eager_member_in_a_rebalance_gives_everything_up_before_it_joins():
    """KIP-429: an eager member revokes everything before it joins (ConsumerCoordinator.onJoinPrepare)."""
    driver = eager_holding()
    driver.after(3_000)
    effects = driver.answer_beat(ErrorCode.REBALANCE_IN_PROGRESS)
    assert effects == [contract.GiveUpAll(partitions=parts(0, 1), reason="the group rebalances")]
    assert driver.state is State.REVOKING
    assert driver.machine.to_give_up == parts(0, 1)
    assert driver.give_up(0) == []
    request = request_in(driver.give_up(1))
    assert claim(request).owned == frozenset()


def test_an_eager_member_asked_twice_to_rejoin_gives_everything_up_once():
    driver = eager_holding()
    driver.take(contract.RejoinWanted(reason="first"))
    assert driver.take(contract.RejoinWanted(reason="second")) == []
    driver.give_up(0, 1)
    assert driver.state is State.JOINING


def test_an_eager_member_that_owns_nothing_joins_a_rebalance_at_once():
    driver = Driver(assignors=(EAGER,)).into(State.SYNCING)
    driver.answer_sync()
    assert isinstance(request_in(driver.take(contract.RejoinWanted(reason="test"))), contract.JoinRequest)


def test_one_eager_assignor_makes_the_member_eager():
    """The first bounce of an upgrade offers both (KIP-429): kept is only what all assignors would keep."""
    driver = Driver(assignors=(COOPERATIVE, EAGER)).into(State.STABLE)
    driver.take(contract.RejoinWanted(reason="test"))
    assert driver.state is State.REVOKING
    request = request_in(driver.give_up(0, 1))
    assert isinstance(request, contract.JoinRequest)
    assert [name for name, _ in request.protocols] == ["sticky", "range"], "in order of preference"
    assert [s.user_data for _, s in request.protocols] == [b"sticky:0@1", b"range:0@1"]
