"""KIP-814, "Static membership protocol should let the leader skip assignment": its rules for members.

A test names the section that it paraphrases. One that begins with `test_deviates` says where we do otherwise, and why.
Left out: how a coordinator finds out that a leader is back, and "Rejected Alternatives" 1 to 3, which are a broker's.
"""

from __future__ import annotations

import pytest
from harness import kio_messages
from harness import undisturbed_groups as groups
from harness.classic_driver import ME, Driver, member, none_of, only, parts, request_in

from spark_kgroup.member import contract
from spark_kgroup.member.classic import State
from spark_kgroup.model import (
    DescribedGroup,
    DescribedMember,
    ErrorCode,
    Subscription,
    TopicDescription,
)
from spark_kgroup.runtime.assignment_drift import find_drift

# --------------------------------------------------------------------------------------------- "Proposed Changes"


def test_a_leader_that_comes_back_to_a_stable_group_does_not_assign_and_collects_its_partitions() -> None:
    """It is told to skip the assignment, and sends a SyncGroup without one. The answer is its earlier assignment."""
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
def test_a_leader_that_skips_the_assignment_watches_the_topics_of_all_members_as_any_leader(skip: bool) -> None:
    """It has the subscriptions of all members, which may differ from its own, to see all that the group reads."""
    driver = Driver().into(State.JOINING)
    members = (member(ME), member("b", "orders", "returns"), member("c", "payments"))
    driver.answer_join(leader=ME, members=members, skip_assignment=skip)
    assert driver.machine.leader
    assert driver.machine.watched_topics == {"orders", "returns", "payments"}


def test_a_newcomer_a_follower_and_a_replaced_leader_watch_no_topics() -> None:
    """ "Motivation": the leader watches metadata. No other member does, by a list of members from an earlier join."""
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


def test_a_leader_that_lost_its_membership_leads_no_group_and_watches_no_topics() -> None:
    driver = Driver().into(State.ASSIGNING)
    driver.take(contract.AssignmentComputed(generation=1, assignments=((ME, parts(0)),)))
    driver.answer_sync(0)
    driver.answer_beat(ErrorCode.UNKNOWN_MEMBER_ID)
    assert not driver.machine.leader
    assert driver.machine.watched_topics == frozenset()


def test_a_leader_that_was_restarted_still_triggers_the_rebalance_for_partitions_that_are_added_later() -> None:
    """The KIP's purpose: without a leader on the clients' side no member would notice them."""
    world = groups.at_rest(static=3)
    before, generation, leader = groups.shares(world), world.coordinator.generation, groups.leader_of(world)
    groups.restart(world, leader)
    groups.come_to_rest(world)
    assert world.coordinator.generation == generation
    assert groups.process_of(world, leader).machine.leader
    world.brokers.grow(3)
    groups.come_to_rest(world)
    assert world.coordinator.generation == generation + 1
    assert all(before[name] < share for name, share in groups.shares(world).items())


def test_only_the_versions_that_can_skip_the_assignment_are_spoken() -> None:
    """The coordinator has only leaders of the newest version skip. "Public Interfaces": the field is new in v8."""
    assert kio_messages.JoinGroupRequest.__version__ >= 8


# -------------------------------------------------------------------------------------------- where we go further

SEAT = DescribedMember(
    member_id=ME,
    instance_id="seat-0",
    client_id="c",
    client_host="/127.0.0.1",
    subscription=Subscription(topics=("orders",)),
    assignment=parts(0, 1),
)


def test_deviates_changes_while_the_leader_was_away_are_noticed_all_the_same() -> None:
    """The KIP accepts that a leader cannot see partitions that were added while it was offline.

    We compare the group's assignment with the partitions there are: the added ones have no owner. (decision 67)
    """
    group = DescribedGroup(group="g", state="Stable", protocol="range", members=(SEAT,))
    three = {"orders": TopicDescription(name="orders", topic_id=None, partition_count=3)}
    assert find_drift(group, three).without_owner == parts(2)
    two = {"orders": TopicDescription(name="orders", topic_id=None, partition_count=2)}
    assert not find_drift(group, two), "and a restart alone gives no reason for a rebalance"


def test_deviates_a_follower_may_have_the_group_rebalance_as_well() -> None:
    """ "Rejected Alternatives" 4 leaves metadata to the leader, since all members would ask for a rebalance at once.
    Each process compares, for a leader of another client may not. Joins of one generation make one rebalance."""
    driver = Driver().into(State.STABLE)
    assert not driver.machine.leader
    request = request_in(driver.take(contract.RejoinWanted(reason="partitions without an owner")))
    assert isinstance(request, contract.JoinRequest)
    world = groups.at_rest(static=4)
    generation = world.coordinator.generation
    for name in list(world.seats):
        groups.process_of(world, name).post(contract.RejoinWanted(reason="partitions without an owner"))
    groups.come_to_rest(world)
    assert world.coordinator.generation == generation + 1
