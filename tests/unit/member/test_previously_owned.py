"""A process that comes back in the midst of a rebalance claims the partitions that its seat's last process was reading.

Without the claim: 1. A driver dies in a batch that reads P. 2. A member joins, so the group rebalances. 3. The driver
is back within its session, to finish the batch. 4. Its join has an empty claim, so P is given to the new member at
once, from the last committed offset: both read the batch.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from harness.classic_driver import COOPERATIVE, EAGER, Driver, claim, none_of, only, parts, request_in

from spark_kgroup.assignors import assignor
from spark_kgroup.assignors.contract import Assignor
from spark_kgroup.member import contract
from spark_kgroup.member.classic import ClassicMember, PreviouslyOwned, State
from spark_kgroup.model import NO_GENERATION, ErrorCode, GroupMember, TopicDescription


def heir(*indexes: int, of: Assignor = COOPERATIVE) -> Driver:
    driver = Driver(assignors=(of,))
    owned_before = PreviouslyOwned(partitions=parts(*indexes), generation=4)
    driver.machine = ClassicMember(replace(driver.machine.config, previously_owned=owned_before), jitter=lambda: 0.0)
    driver.take(contract.Join())
    driver.take(contract.Connected())
    return driver


def test_the_first_join_claims_previously_owned_partitions_in_the_generation_they_are_known_from() -> None:
    """KIP-792: a member that was given one of them since claims it in a later generation, and wins."""
    subscription = claim(heir(0, 1).last_sent())
    assert (subscription.owned, subscription.generation) == (parts(0, 1), 4)


def test_a_previously_owned_partition_that_is_assigned_is_added_as_a_new_one() -> None:
    driver = heir(0, 1)
    driver.answer_join(generation=7)
    assert only(driver.answer_sync(0, 1, 2), contract.Assigned).added == parts(0, 1, 2)
    assert (driver.state, driver.machine.to_give_up) == (State.STABLE, frozenset())


def test_a_previously_owned_partition_that_is_not_assigned_is_claimed_until_it_is_given_up() -> None:
    driver = heir(0, 1)
    assert driver.machine.to_give_up == frozenset(), "the group has not answered yet"
    driver.answer_join(generation=7)
    effects = driver.answer_sync(1)
    assert only(effects, contract.Assigned).revoked == driver.machine.to_give_up == parts(0)
    assert driver.state is State.REVOKING
    assert driver.machine.owned == parts(1), "never read by this process"
    subscription = claim(request_in(driver.answer_beat(ErrorCode.REBALANCE_IN_PROGRESS)))
    assert (subscription.owned, subscription.generation) == (parts(0, 1), 6), "who was given it since claims it in 7"
    driver.answer_join(generation=8)
    driver.answer_sync(1)
    subscription = claim(request_in(driver.give_up(0)))
    assert (subscription.owned, subscription.generation) == (parts(1), 8)


def test_a_partition_left_over_is_claimed_in_the_generation_it_is_known_from_if_that_is_the_one_before() -> None:
    driver = heir(0, 1)
    driver.answer_join(generation=5)
    driver.answer_sync(1)
    subscription = claim(request_in(driver.answer_beat(ErrorCode.REBALANCE_IN_PROGRESS)))
    assert (subscription.owned, subscription.generation) == (parts(0, 1), 4)


@pytest.mark.parametrize(
    ("other", "claimed_in", "owner"),
    [
        pytest.param(0, 7, "other", id="left over, and assigned to another member in the same generation"),
        pytest.param(0, 6, None, id="left over, and owned by a member that has missed the last SyncGroup"),
        pytest.param(1, 5, "heir", id="owned, and known to another process that came back from before"),
        pytest.param(1, 6, None, id="owned, and known to another process from the generation before"),
    ],
)
def test_of_two_claims_to_a_partition_the_later_one_counts_and_of_equal_ones_neither(
    other: int, claimed_in: int, owner: str | None
) -> None:
    """A partition that two claim in one generation is given to neither (KIP-429: a round later it has an owner)."""
    driver = heir(0, 1)
    driver.answer_join(generation=7)
    driver.answer_sync(1)
    heirs = replace(claim(request_in(driver.answer_beat(ErrorCode.REBALANCE_IN_PROGRESS))), user_data=None)
    others = replace(heirs, owned=parts(other), generation=claimed_in)
    members = [
        GroupMember(member_id="heir", instance_id="heir", subscription=heirs),
        GroupMember(member_id="other", instance_id="other", subscription=others),
    ]
    topics = {"orders": TopicDescription(name="orders", topic_id=None, partition_count=4)}
    shares = assignor("cooperative-sticky").assign(members, topics)
    assert [who for who, share in shares.items() if parts(other) <= share] == ([owner] if owner else [])


def test_a_previously_owned_partition_that_is_assigned_later_is_no_longer_to_be_given_up() -> None:
    driver = heir(0)
    driver.answer_join(generation=7)
    driver.answer_sync()
    driver.answer_beat(ErrorCode.REBALANCE_IN_PROGRESS)
    driver.answer_join(generation=8)
    assert only(driver.answer_sync(0), contract.Assigned).added == parts(0)
    assert (driver.state, driver.machine.to_give_up) == (State.STABLE, frozenset())


def test_a_lost_membership_claims_no_previously_owned_partition_any_more() -> None:
    driver = heir(0)
    driver.answer_join(generation=7)
    driver.answer_sync()
    effects = driver.answer_beat(ErrorCode.UNKNOWN_MEMBER_ID)
    assert none_of(effects, contract.Lost), "nothing was held"
    subscription = claim(request_in(effects))
    assert (subscription.owned, subscription.generation) == (frozenset(), NO_GENERATION)


def test_an_eager_member_claims_no_previously_owned_partition() -> None:
    assert claim(heir(0, of=EAGER).last_sent()).owned == frozenset()
