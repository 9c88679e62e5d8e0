"""KIP-429 (cooperative rebalance), KIP-792 (generations in claims), and what eager members do instead."""

from __future__ import annotations

import pytest

from spark_kgroup.assignors.contract import Assignor
from spark_kgroup.member import effects as fx
from spark_kgroup.member.classic import State
from spark_kgroup.model import NO_GENERATION, UNKNOWN_MEMBER_ID, ErrorCode, MemberIdentity

from .member_driver import COOPERATIVE, EAGER, ME, SESSION_MS, Driver, claim, none_of, only, parts, request_in

# -------------------------------------------------------------------------------------- added and revoked


def test_added_is_new_minus_held_and_revoked_is_held_minus_new():
    driver = Driver().into(State.STABLE)
    assigned = only(driver.rebalance_to(1, 2, 3), fx.Assigned)
    assert (assigned.owned, assigned.added, assigned.revoked) == (parts(1, 2, 3), parts(2, 3), parts(0))


def test_what_is_kept_is_in_neither():
    driver = Driver().into(State.STABLE)
    effects = driver.rebalance_to(0, 1)
    assert only(effects, fx.Assigned) == fx.Assigned(
        identity=driver.machine.identity, owned=parts(0, 1), added=frozenset(), revoked=frozenset()
    )
    assert none_of(effects, fx.Lost, fx.Rejoining)
    assert driver.machine.settled


def test_a_join_claims_what_is_held_and_the_generation_that_assigned_it():
    driver = Driver(rack="r1").into(State.STABLE)
    request = request_in(driver.take(fx.RejoinWanted(reason="because")))
    assert isinstance(request, fx.JoinRequest)
    assert request.reason == "because"
    assert request.identity == MemberIdentity(instance_id="seat-0", member_id=ME, generation=1)
    subscription = claim(request)
    assert (subscription.owned, subscription.generation) == (parts(0, 1), 1)
    assert (subscription.topics, subscription.rack) == (("orders",), "r1")
    assert subscription.user_data == b"sticky:2@1", "the assignor's own bytes"


def test_partitions_stay_held_while_the_group_rebalances():
    driver = Driver().into(State.STABLE)
    driver.take(fx.RejoinWanted(reason="test"))
    assert driver.machine.held == parts(0, 1)
    driver.answer_join(generation=2)
    assert driver.machine.held == parts(0, 1)
    assert driver.machine.to_give_up == frozenset()


# -------------------------------------------------------------------------- revoked: kept until the boundary


def test_revoked_is_held_until_given_up_and_only_then_a_rejoin_frees_it():
    driver = Driver().into(State.STABLE)
    effects = driver.rebalance_to(1)
    assert driver.state is State.REVOKING
    assert none_of(effects, fx.Rejoining)
    assert driver.machine.held == parts(0, 1)
    assert driver.machine.to_give_up == parts(0)
    effects = driver.give_up(0)
    assert [type(effect) for effect in effects] == [fx.Rejoining, fx.Send]
    assert claim(request_in(effects)).owned == parts(1)


def test_a_part_given_up_is_not_enough():
    driver = Driver().into(State.STABLE)
    driver.rebalance_to(7)
    assert driver.give_up(0) == []
    assert driver.state is State.REVOKING
    assert driver.machine.to_give_up == parts(1)
    assert claim(request_in(driver.give_up(1))).owned == parts(7)


def test_a_revoking_member_joins_at_once_when_the_group_rebalances_and_claims_what_it_still_holds():
    """Joins never wait for a batch; the claim keeps the partition from its next owner."""
    driver = Driver().into(State.REVOKING)
    effects = driver.answer_beat(ErrorCode.REBALANCE_IN_PROGRESS)
    assert claim(request_in(effects)).owned == parts(0, 1)
    assert driver.state is State.JOINING
    assert driver.machine.to_give_up == parts(1), "still to be given up at the next boundary"


def test_given_up_while_the_join_is_parked_leads_to_another_join():
    """1. the join claims P; 2. a boundary gives P up; 3. the leader kept P from its new owner because of our claim."""
    driver = Driver().into(State.REVOKING)
    driver.answer_beat(ErrorCode.REBALANCE_IN_PROGRESS)
    assert driver.give_up(1) == []
    driver.answer_join(generation=3)
    effects = driver.answer_sync(0)
    assert only(effects, fx.Assigned).revoked == frozenset()
    assert claim(request_in(effects)).owned == parts(0)
    assert only(effects, fx.Rejoining)
    driver.answer_join(generation=4)
    driver.answer_sync(0)
    assert driver.machine.settled, "once is enough"


def test_given_up_while_the_join_is_parked_but_assigned_again_is_simply_added():
    driver = Driver().into(State.REVOKING)
    driver.answer_beat(ErrorCode.REBALANCE_IN_PROGRESS)
    driver.give_up(1)
    driver.answer_join(generation=3)
    assert only(driver.answer_sync(0, 1), fx.Assigned).added == parts(1)
    assert driver.machine.settled


def test_a_boundary_that_speaks_after_the_partition_came_back_has_it_assigned_once_more():
    """1. a boundary decides to give P up; 2. P is assigned to us again; 3. now it says so: nobody reads P."""
    driver = Driver().into(State.REVOKING)
    driver.answer_beat(ErrorCode.REBALANCE_IN_PROGRESS)
    driver.answer_join(generation=3)
    assert only(driver.answer_sync(0, 1), fx.Assigned).added == frozenset()
    effects = driver.give_up(1)
    assert claim(request_in(effects)).owned == parts(0)
    driver.answer_join(generation=4)
    assert only(driver.answer_sync(0, 1), fx.Assigned).added == parts(1)
    assert driver.machine.settled


# --------------------------------------------------------------------------------------------------- lost


def lost_joining(driver: Driver, error: int) -> list[fx.Effect]:
    driver.take(fx.RejoinWanted(reason="test"))
    return driver.answer_join(error=error)


def lost_syncing(driver: Driver, error: int) -> list[fx.Effect]:
    driver.rebalance_and_join()
    return driver.answer_sync(error=error)


def lost_by_heartbeat(driver: Driver, error: int) -> list[fx.Effect]:
    driver.after(3_000)
    return driver.answer_beat(error)


def lost_by_commit(driver: Driver, error: int) -> list[fx.Effect]:
    return driver.take(fx.MembershipRefused(identity=driver.machine.identity, error=error))


@pytest.mark.parametrize("where", [lost_joining, lost_syncing, lost_by_heartbeat, lost_by_commit])
def test_membership_over_means_lost_without_waiting_for_a_boundary_then_rejoin(where):
    driver = Driver().into(State.STABLE)
    effects = where(driver, ErrorCode.UNKNOWN_MEMBER_ID)
    assert [type(effect) for effect in effects] == [fx.Lost, fx.Rejoining, fx.Send]
    assert only(effects, fx.Lost).partitions == parts(0, 1)
    assert driver.machine.held == driver.machine.to_give_up == frozenset()
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
    assert driver.machine.held == driver.machine.to_give_up == frozenset()
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
    lost = [effect.partitions for effect in effects if isinstance(effect, fx.Lost)]
    assert lost == ([] if claimed_since else [parts(2)])
    kept = parts(0, 1, 2) if claimed_since else parts(0, 1)
    assert driver.machine.held == kept
    request = request_in(effects)
    assert request.identity == MemberIdentity(instance_id="seat-0", member_id=ME)
    assert (claim(request).owned, claim(request).generation) == (kept, 2)
    driver.answer_join(generation=5)
    assert only(driver.answer_sync(0, 1, 2), fx.Assigned).added == parts(0, 1, 2) - kept


def test_what_a_member_that_fell_behind_keeps_is_lost_a_session_after_the_last_word():
    driver = Driver().into(State.STABLE)
    driver.rebalance_to(0, 1)
    lost_by_commit(driver, ErrorCode.ILLEGAL_GENERATION)
    assert only(driver.after(SESSION_MS), fx.Lost).partitions == parts(0, 1)


def test_a_commit_refused_under_an_older_identity_is_no_news():
    driver = Driver().into(State.STABLE)
    old = driver.machine.identity
    driver.rebalance_to(0, 1)
    assert driver.take(fx.MembershipRefused(identity=old, error=ErrorCode.ILLEGAL_GENERATION)) == []
    assert driver.machine.settled


def into_joining_with_unclaimed() -> Driver:
    """Holds 0 and 1, which no answered join has claimed, and is cut off while it joins."""
    driver = Driver().into(State.STABLE)
    driver.take(fx.RejoinWanted(reason="test"))
    driver.lose_connection()
    driver.take(fx.Connected())
    return driver


def test_what_was_not_claimed_is_lost_with_the_generation_that_went_by():
    """1. a static member is assigned 0 and 1; 2. it cannot rejoin in time and stays, with its old claim of nothing;
    3. the leader may give 0 and 1 away; 4. its own join, into the generation after, succeeds."""
    driver = into_joining_with_unclaimed()
    effects = driver.answer_join(generation=3)
    assert [type(effect) for effect in effects] == [fx.Lost, fx.Joined, fx.Send]
    assert only(effects, fx.Lost).partitions == parts(0, 1)
    assert only(driver.answer_sync(1), fx.Assigned).added == parts(1), "what comes back is adopted anew"


def test_what_was_claimed_is_safe_in_a_generation_that_went_by():
    driver = Driver().into(State.STABLE)
    driver.rebalance_to(0, 1, 2)  # the join claimed 0 and 1
    driver.take(fx.RejoinWanted(reason="test"))
    effects = driver.answer_join(generation=4)
    assert only(effects, fx.Lost).partitions == parts(2)
    assert driver.machine.held == parts(0, 1)


def test_nothing_is_lost_when_no_generation_went_by():
    driver = into_joining_with_unclaimed()
    assert none_of(driver.answer_join(generation=2), fx.Lost)
    assert driver.machine.held == parts(0, 1)


# ----------------------------------------------------------------------------------------- eager members


def eager_holding() -> Driver:
    return Driver(assignors=(EAGER,)).into(State.STABLE)


def test_an_eager_member_gives_everything_up_before_it_joins():
    driver = eager_holding()
    driver.after(3_000)
    effects = driver.answer_beat(ErrorCode.REBALANCE_IN_PROGRESS)
    assert effects == [
        fx.Assigned(identity=driver.machine.identity, owned=frozenset(), added=frozenset(), revoked=parts(0, 1))
    ]
    assert driver.state is State.REVOKING
    assert driver.machine.to_give_up == parts(0, 1)
    assert driver.give_up(0) == []
    request = request_in(driver.give_up(1))
    assert claim(request).owned == frozenset()


def test_an_eager_member_asked_twice_gives_up_once():
    driver = eager_holding()
    driver.take(fx.RejoinWanted(reason="first"))
    assert driver.take(fx.RejoinWanted(reason="second")) == []
    driver.give_up(0, 1)
    assert driver.state is State.JOINING


def test_an_eager_member_with_empty_hands_joins_at_once():
    driver = Driver(assignors=(EAGER,)).into(State.SYNCING)
    driver.answer_sync()
    assert isinstance(request_in(driver.take(fx.RejoinWanted(reason="test"))), fx.JoinRequest)


def test_one_eager_assignor_makes_the_member_eager():
    """The first bounce of an upgrade offers both (KIP-429): kept is only what all assignors would keep."""
    driver = Driver(assignors=(COOPERATIVE, EAGER)).into(State.STABLE)
    driver.take(fx.RejoinWanted(reason="test"))
    assert driver.state is State.REVOKING
    request = request_in(driver.give_up(0, 1))
    assert isinstance(request, fx.JoinRequest)
    assert [name for name, _ in request.protocols] == ["sticky", "range"], "in order of preference"
    assert [s.user_data for _, s in request.protocols] == [b"sticky:0@1", b"range:0@1"]
