"""Racks (KIP-881).

Tests of `range` paraphrase Kafka's RangeAssignorTest (named in each), those of the sticky ones its sentence
"prioritizing balanced assignment over rack alignment", and rack alignment over stickiness.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count, product
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kgroup.assignors import assignor
from spark_kgroup.assignors._racks import racks_matter, racks_of_members, racks_of_partitions
from spark_kgroup.model import Assignment, GroupMember, Subscription, TopicDescription, TopicPartition

RANGE = assignor("range")
STICKY = assignor("cooperative-sticky")


def member(member_id: str, rack: str | None, *topics: str, owned: str = "") -> GroupMember:
    claims = frozenset(TopicPartition(name, int(index)) for name, index in (w.rsplit("-", 1) for w in owned.split()))
    subscription = Subscription(topics=topics, rack=rack, owned=claims, generation=1)
    return GroupMember(member_id=member_id, instance_id=None, subscription=subscription)


def described(racks: str, replicas: int, **counts: int) -> dict[str, TopicDescription]:
    """Topics whose replicas go round the racks (Kafka: AbstractPartitionAssignorTest.partitionInfos)."""
    nodes = count()
    return {
        name: TopicDescription(
            name=name,
            topic_id=None,
            partition_count=partitions,
            racks={
                index: frozenset(racks[(node + replica) % len(racks)] for replica in range(replicas))
                for index, node in zip(range(partitions), nodes, strict=False)
            },
        )
        for name, partitions in counts.items()
    }


def shares(assignment: Assignment) -> list[str]:
    return [" ".join(map(str, sorted(assignment[name]))) for name in sorted(assignment)]


@pytest.mark.parametrize(
    ("racks", "replicas", "expected"),
    [
        (
            "abc",
            1,
            [
                "t1-0 t1-3 t2-0 t2-3 t2-6",
                "t1-1 t1-4 t2-1 t2-4 t3-0",
                "t1-2 t1-5 t2-2 t2-5 t3-1",
            ],
        ),
        (
            "abc",
            2,
            [
                "t1-0 t1-2 t2-0 t2-2 t2-3 t3-1",
                "t1-1 t1-3 t2-1 t2-4 t3-0",
                "t1-4 t1-5 t2-5 t2-6",
            ],
        ),
        (
            "ab",
            3,
            [
                "t1-0 t1-1 t2-0 t2-1 t2-2 t3-0",
                "t1-2 t1-3 t2-3 t2-4 t3-1",
                "t1-4 t1-5 t2-5 t2-6",
            ],
        ),
    ],
    ids=["one replica", "two replicas", "replicas everywhere"],
)
def test_range_gives_members_of_a_rack_its_partitions_and_no_member_more_than_without_racks(
    racks: str, replicas: int, expected: list[str]
) -> None:
    # testRackAwareAssignmentWithUniformSubscription
    members = [member(f"c{k}", rack, "t1", "t2", "t3") for k, rack in enumerate("abc")]
    assert shares(RANGE.assign(members, described(racks, replicas, t1=6, t2=7, t3=2))) == expected


def test_range_spreads_a_topic_over_its_own_subscribers_with_racks_too() -> None:
    # testRackAwareAssignmentWithNonEqualSubscription
    members = [member("c0", "a", "t1", "t2", "t3"), member("c1", "b", "t1", "t2", "t3"), member("c2", "c", "t1", "t3")]
    assert shares(RANGE.assign(members, described("abc", 1, t1=6, t2=7, t3=2))) == [
        "t1-0 t1-3 t2-0 t2-2 t2-3 t2-6",
        "t1-1 t1-4 t2-1 t2-4 t2-5 t3-0",
        "t1-2 t1-5 t3-1",
    ]


def test_range_keeps_topics_aligned_before_it_aligns_racks() -> None:
    """ "Topics with equal partition count and same set of subscribers guarantee co-partitioning"."""
    topics = described("abc", 1, t1=6) | described("cab", 1, t2=6)
    members = [member(f"c{k}", rack, "t1", "t2") for k, rack in enumerate("abc")]
    for share in RANGE.assign(members, topics).values():
        assert {tp.partition for tp in share if tp.topic == "t1"} == {tp.partition for tp in share if tp.topic == "t2"}


def test_range_gives_a_member_without_a_rack_the_first_partitions() -> None:
    members = [member("c0", None, "t"), member("c1", "b", "t")]
    assert shares(RANGE.assign(members, described("ab", 1, t=4))) == ["t-0 t-1", "t-2 t-3"]


def test_a_partition_moves_to_the_rack_of_its_replica_where_that_leaves_the_balance() -> None:
    members = [member("c0", "a", "t", owned="t-1 t-3"), member("c1", "b", "t", owned="t-0 t-2")]
    first = STICKY.assign(members, described("ab", 1, t=4))
    assert shares(first) == ["", ""], "each has first to give up what is the other's"
    assert shares(settled(members, described("ab", 1, t=4))) == ["t-0 t-2", "t-1 t-3"]


def test_balance_goes_before_racks() -> None:
    members = [member("c0", "a", "t", owned="t-0 t-1 t-2 t-3"), member("c1", "b", "t"), member("c2", "c", "t")]
    loads = [len(share) for share in settled(members, described("a", 1, t=4) | described("b", 1, u=1)).values()]
    assert sorted(loads) == [1, 1, 2]


def test_no_partition_moves_for_a_rack_if_replicas_are_in_all_of_them() -> None:
    members = [member("c0", "a", "t", owned="t-1 t-3"), member("c1", "b", "t", owned="t-0 t-2")]
    assert shares(STICKY.assign(members, described("ab", 2, t=4))) == ["t-1 t-3", "t-0 t-2"]


# Properties

Group = tuple[list[GroupMember], dict[str, TopicDescription]]


@st.composite
def groups(draw: st.DrawFn, members_max: int = 5, partitions_max: int = 6) -> Group:
    racks = st.sampled_from("abc")
    topics = {
        name: TopicDescription(
            name=name,
            topic_id=None,
            partition_count=partitions,
            racks={index: draw(st.frozensets(racks, max_size=2)) for index in range(partitions)},
        )
        for name, partitions in draw(
            st.dictionaries(st.sampled_from("tuv"), st.integers(1, partitions_max), min_size=1)
        ).items()
    }
    members = []
    for k in range(draw(st.integers(1, members_max))):
        wanted = draw(st.sets(st.sampled_from("tuv"), min_size=1))
        members.append(member(f"m{k}", draw(st.none() | racks), *sorted(wanted)))
    for partition in (tp for topic in topics.values() for tp in topic.partitions):
        at = draw(st.none() | st.integers(0, len(members) - 1))
        if at is not None and partition.topic in members[at].subscription.topics:
            was = members[at].subscription
            members[at] = replace(members[at], subscription=replace(was, owned=was.owned | {partition}))
    return members, topics


def rejoined(members: Sequence[GroupMember], assignment: Assignment) -> list[GroupMember]:
    return [
        replace(m, subscription=replace(m.subscription, owned=assignment[m.member_id], generation=2)) for m in members
    ]


def settled(members: Sequence[GroupMember], topics: dict[str, TopicDescription]) -> Assignment:
    """The assignment after two rounds."""
    return STICKY.assign(rejoined(members, STICKY.assign(members, topics)), topics)


def score(group: Group, owners: dict[TopicPartition, str]) -> tuple[int, int, int]:
    """Unevenness, then partitions far from their owner, then those that have moved."""
    members, topics = group
    racks = {m.member_id: m.subscription.rack for m in members}
    loads = [list(owners.values()).count(m.member_id) for m in members]
    far = [tp for tp, owner in owners.items() if racks[owner] not in (None, *topics[tp.topic].racks[tp.partition])]
    moved = sum(owners[tp] != m.member_id for m in members for tp in m.subscription.owned)
    return sum(load**2 for load in loads), len(far), moved


def owners_in(assignment: Assignment) -> dict[TopicPartition, str]:
    return {partition: member_id for member_id, share in assignment.items() for partition in share}


@given(groups())
def test_two_rounds_assign_all_partitions_and_a_third_moves_none(group: Group) -> None:
    members, topics = group
    second = settled(members, topics)
    wanted = {name for m in members for name in m.subscription.topics} & topics.keys()
    assert sum(map(len, second.values())) == sum(topics[name].partition_count for name in wanted)
    assert all(tp.topic in m.subscription.topics for m in members for tp in second[m.member_id])
    assert STICKY.assign(rejoined(members, second), topics) == second


@given(groups(members_max=3, partitions_max=2))
def test_no_other_spread_is_better(group: Group) -> None:
    members, topics = group
    wanted = {name for m in members for name in m.subscription.topics} & topics.keys()
    at = racks_of_partitions(topics[name] for name in wanted)
    if not racks_matter(set(racks_of_members(members).values()), at):
        return  # then the assignor ignores them
    ours = owners_in(settled(members, topics))
    choices = [[m.member_id for m in members if tp.topic in m.subscription.topics] for tp in ours]
    best = min(score(group, dict(zip(ours, choice, strict=True))) for choice in product(*choices))
    assert score(group, ours) == best


@given(groups(), st.randoms())
def test_the_order_in_which_members_are_listed_does_not_matter(group: Group, random: Random) -> None:
    members, topics = group
    before = {chosen: assignor(chosen).assign(members, topics) for chosen in ("range", "sticky", "cooperative-sticky")}
    random.shuffle(members)
    for chosen, assignment in before.items():
        assert assignor(chosen).assign(members, topics) == assignment
