"""Properties of every group: each partition has one owner, two rounds settle, and no spread is better.

Second opinions: for small groups all possible spreads, for larger ones kafka-python.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from random import Random
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.coordinator.assignors.sticky.sticky_assignor import (
    StickyAssignmentExecutor,
    StickyAssignorMemberMetadataV1,
)
from kafka.structs import TopicPartition as KafkaPythonPartition

from spark_kgroup.assignors import _balance, assignor
from spark_kgroup.model import Assignment, GroupMember, Subscription, TopicDescription, TopicPartition

STICKY = assignor("cooperative-sticky")
TOPICS = ("a", "b", "c", "d")

T = TypeVar("T")
Group = tuple[list[GroupMember], dict[str, TopicDescription]]


def described(counts: Mapping[str, int]) -> dict[str, TopicDescription]:
    return {name: TopicDescription(name=name, topic_id=None, partition_count=n) for name, n in counts.items()}


@cache
def some_of(values: tuple[T, ...], most: int | None = None) -> st.SearchStrategy[frozenset[T]]:
    """One strategy for each choice: Hypothesis takes longer to make one than to draw from it."""
    return st.frozensets(st.sampled_from(values), max_size=most)


@cache
def instance_id_of(name: int) -> st.SearchStrategy[str | None]:
    return st.sampled_from((None, f"i{9 - name}"))


@st.composite
def groups(
    draw: st.DrawFn,
    *,
    members_max: int = 6,
    partitions_max: int = 9,
    topics: Sequence[str] = TOPICS,
    equal: bool | None = None,
    clean: bool = False,
) -> Group:
    """A group in any condition.

    `clean` leaves out claims that collide, are not subscribed, or name no real partition.
    """
    counts = draw(st.dictionaries(st.sampled_from(topics), st.integers(1, partitions_max), min_size=1))
    wanted = some_of(tuple(topics))
    alike = draw(wanted) if (draw(st.booleans()) if equal is None else equal) else None
    names = draw(st.permutations(range(draw(st.integers(1, members_max)))))
    wants = {name: alike if alike is not None else draw(wanted) for name in names}
    owned: dict[int, set[TopicPartition]] = {name: set() for name in names}
    for topic, index in [(t, k) for t in topics for k in range(counts.get(t, 0) + (not clean))]:
        may_own = tuple(name for name in range(len(names)) if not clean or topic in wants[name])
        for name in draw(some_of(may_own, 1 if clean else 3)) if may_own else ():
            owned[name].add(TopicPartition(topic, index))
    members = [
        GroupMember(
            member_id=f"m{name}",
            instance_id=draw(instance_id_of(name)),
            subscription=Subscription(
                topics=tuple(sorted(wants[name])),
                owned=frozenset(owned[name]),
                generation=draw(st.integers(-1, 2)),
            ),
        )
        for name in names
    ]
    return members, described(counts)


def rejoined(members: Sequence[GroupMember], assignment: Assignment, generation: int) -> list[GroupMember]:
    """The members after a round: they gave up the partitions that they lost and claim their new shares."""
    return [
        replace(m, subscription=replace(m.subscription, owned=assignment[m.member_id], generation=generation))
        for m in members
    ]


def settled(group: Group) -> Assignment:
    """The assignment after two rounds."""
    members, topics = group
    return STICKY.assign(rejoined(members, STICKY.assign(members, topics), 3), topics)


def wanted_partitions(group: Group) -> list[TopicPartition]:
    members, topics = group
    wanted = {name for m in members for name in m.subscription.topics}
    return [tp for name in sorted(wanted & topics.keys()) for tp in topics[name].partitions]


def score(members: Sequence[GroupMember], assignment: Mapping[str, frozenset[TopicPartition]]) -> tuple[int, int]:
    """Unevenness (sum of squared loads), then how many claimed partitions have left their claimant."""
    squares = sum(len(share) ** 2 for share in assignment.values())
    return squares, sum(len(m.subscription.owned - assignment[m.member_id]) for m in members)


@given(groups())
def test_each_partition_goes_to_one_subscriber_at_most(group: Group) -> None:
    members, topics = group
    assignment = STICKY.assign(members, topics)
    assert assignment.keys() == {m.member_id for m in members}
    given = Counter(partition for share in assignment.values() for partition in share)
    assert all(count == 1 for count in given.values())
    for m in members:
        assert all(tp.topic in m.subscription.topics for tp in assignment[m.member_id])
    assert given.keys() <= set(wanted_partitions(group))


@given(groups())
def test_a_partition_that_one_member_owns_is_given_to_no_other(group: Group) -> None:
    # KIP-429. A claim of an older generation is no hold if a newer one names the same partition
    members, topics = group
    assignment = STICKY.assign(members, topics)
    for taker, holder in itertools.permutations(members, 2):
        for partition in assignment[taker.member_id] & holder.subscription.owned:
            assert partition in taker.subscription.owned
            assert taker.subscription.generation > holder.subscription.generation


@given(groups())
def test_two_rounds_assign_all_partitions_and_a_third_moves_none(group: Group) -> None:
    members, topics = group
    second = settled(group)
    assert sorted(tp for share in second.values() for tp in share) == sorted(wanted_partitions(group))
    assert STICKY.assign(rejoined(members, second, 4), topics) == second


@given(groups())
def test_the_second_round_revokes_no_partition(group: Group) -> None:
    members, topics = group
    first = STICKY.assign(members, topics)
    second = settled(group)
    assert all(first[who] <= second[who] for who in first)


@given(groups(equal=True, members_max=9))
def test_equal_subscriptions_differ_by_one_at_most(group: Group) -> None:
    loads = [len(share) for share in settled(group).values()]
    assert max(loads) - min(loads) <= 1


@given(groups(), st.randoms())
def test_the_order_in_which_members_are_listed_does_not_matter(group: Group, random: Random) -> None:
    members, topics = group
    before = STICKY.assign(members, topics)
    random.shuffle(members)
    assert STICKY.assign(members, dict(sorted(topics.items(), reverse=True))) == before


@given(groups(), st.randoms())
def test_new_member_ids_of_static_members_do_not_matter(group: Group, random: Random) -> None:
    members, topics = group
    renamed = {m.member_id: m.member_id for m in members}
    renamed |= {m.member_id: f"{random.random()}-{m.member_id}" for m in members if m.instance_id is not None}
    before = STICKY.assign(members, topics)
    after = STICKY.assign([replace(m, member_id=renamed[m.member_id]) for m in members], topics)
    assert after == {renamed[member_id]: share for member_id, share in before.items()}


@given(groups(members_max=3, topics="abc", partitions_max=2, clean=True))
def test_no_other_spread_is_better(group: Group) -> None:
    # "as balanced as possible", and then sticky: AbstractStickyAssignor's own claim, here held against all spreads
    members, _ = group
    partitions = wanted_partitions(group)
    takers = [[m.member_id for m in members if tp.topic in m.subscription.topics] for tp in partitions]
    best = min(
        score(members, {m.member_id: frozenset(itertools.compress(partitions, mine(m, choice))) for m in members})
        for choice in itertools.product(*takers)
    )
    assert score(members, settled(group)) == best


def mine(member: GroupMember, choice: Sequence[str]) -> list[bool]:
    return [taker == member.member_id for taker in choice]


@given(groups(equal=True, members_max=9, clean=True))
def test_the_short_way_for_equal_subscriptions_is_as_good_as_the_general_one(group: Group) -> None:
    members, topics = group
    names = sorted(topics.keys() & set(members[0].subscription.topics))
    ids = [m.member_id for m in members]
    held = {m.member_id: frozenset(tp for tp in m.subscription.owned if tp.topic in names) for m in members}
    owned = frozenset().union(*held.values())
    free = {name: [tp for tp in topics[name].partitions if tp not in owned] for name in names}
    short = _balance.equal_shares(held, free)
    general = _balance.fair_shares(dict.fromkeys(ids, names), held, free)
    scores = [
        score(members, {m: kept.union(gained) for m, (kept, gained) in found.items()}) for found in (short, general)
    ]
    assert scores[0] == scores[1]


class KnownTopics:
    """The part of cluster metadata that kafka-python's assignors ask for."""

    def __init__(self, topics: Mapping[str, TopicDescription]) -> None:
        self._topics = topics

    def topics(self) -> set[str]:
        return set(self._topics)

    def partitions_for_topic(self, name: str) -> set[int] | None:
        return set(range(self._topics[name].partition_count)) if name in self._topics else None


def kafka_python_target(group: Group) -> dict[str, frozenset[TopicPartition]]:
    members, topics = group
    executor = StickyAssignmentExecutor(
        KnownTopics(topics),
        {
            m.member_id: StickyAssignorMemberMetadataV1(
                subscription=list(m.subscription.topics),
                partitions=[KafkaPythonPartition(*tp) for tp in sorted(m.subscription.owned)],
                generation=1,
            )
            for m in members
        },
    )
    executor.perform_initial_assignment()
    executor.balance()
    return {
        m.member_id: frozenset(
            TopicPartition(topic, index)
            for topic, indexes in executor.get_final_assignment(m.member_id)
            for index in indexes
        )
        for m in members
    }


@given(groups(clean=True, members_max=8))
def test_kafka_pythons_spread_is_never_better(group: Group) -> None:
    # StickyAssignmentExecutor gives the target before any hand-over
    members, _ = group
    assert score(members, settled(group)) <= score(members, kafka_python_target(group))


@given(group=groups(equal=False, members_max=8))
def test_a_search_cut_short_still_assigns_everything_once(group: Group) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_balance, "ASSIGNOR_STEPS_MAX", 0)
        second = settled(group)
    given = [tp for share in second.values() for tp in share]
    assert len(given) == len(set(given))
    assert set(given) <= set(wanted_partitions(group))
