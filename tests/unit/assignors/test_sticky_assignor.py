"""Tests name the one of Kafka's StickyAssignorTest (SAT) or the sentence of StickyAssignor that they paraphrase."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kgroup.assignors import assignor
from spark_kgroup.assignors.contract import RebalanceProtocol
from spark_kgroup.model import Assignment, GroupMember

from .test_cooperative_sticky_cases import described, member, parts
from .test_cooperative_sticky_properties import Group, groups, score, settled, wanted_partitions

STICKY = assignor("sticky")

V0 = b"\0\0\0\2" + b"\0\1a" + b"\0\0\0\2" + b"\0\0\0\0" + b"\0\0\0\5" + b"\0\1b" + b"\0\0\0\1" + b"\0\0\0\7"
"""STICKY_ASSIGNOR_USER_DATA_V0 of a-0, a-5 and b-7: previous_assignment, an array of topic and partitions."""

V1 = V0 + b"\0\0\0\3"
"""STICKY_ASSIGNOR_USER_DATA_V1 appends the generation."""


def eager(*members: GroupMember) -> list[GroupMember]:
    """The same members as eager ones: their partitions are in the user data, and their claims are empty."""
    return [
        replace(
            m,
            subscription=replace(
                m.subscription,
                owned=frozenset(),
                user_data=STICKY.user_data(m.subscription.owned, m.subscription.generation),
            ),
        )
        for m in members
    ]


def with_user_data(members: Sequence[GroupMember], raw: bytes | None) -> list[GroupMember]:
    first, *others = members
    return [replace(first, subscription=replace(first.subscription, user_data=raw)), *others]


def shares(*members: GroupMember, **counts: int) -> Assignment:
    return STICKY.assign(members, described(**counts))


def test_the_sticky_assignor_is_eager() -> None:
    assert (STICKY.name, STICKY.protocol) == ("sticky", RebalanceProtocol.EAGER)


def test_user_data_is_the_last_assignment_by_topic_and_its_generation() -> None:
    assert STICKY.user_data(parts("b-7 a-5 a-0"), 3) == V1


def test_a_member_without_an_assignment_yet_has_no_user_data() -> None:
    # StickyAssignor.subscriptionUserData: memberAssignment is null
    assert STICKY.user_data(frozenset(), -1) is None
    assert STICKY.user_data(frozenset(), 4) == b"\0\0\0\0" + b"\0\0\0\4"


@pytest.mark.parametrize("raw", [V0, V1, V1 + b"later"], ids=["version 0", "version 1", "more than version 1"])
def test_partitions_in_the_user_data_stay_where_they_were(raw: bytes) -> None:
    # SAT.testAssignmentWithMultipleGenerations1, SAT.testSchemaBackwardCompatibility
    members = with_user_data([member("m2", "a b"), member("m1", "a b")], raw)
    assert parts("a-0 a-5 b-7") <= shares(*members, a=6, b=8)["m2"]


@pytest.mark.parametrize(
    "raw",
    [
        None,
        b"",
        b"\0",
        b"\x7f\xff\xff\xff",
        b"\xff\xff\xff\xff" + V1[4:],
        V1[:4] + b"\xff\xff" + V1[6:],
        V1[:7] + b"\x7f\xff\xff\xff" + V1[11:],
        V1[:7] + b"\xff\xff\xff\xff" + V1[11:],
        V1[:6] + b"\xff" + V1[7:],
        V0[:-1],
    ],
)
def test_unreadable_user_data_claims_no_partition(raw: bytes) -> None:
    # StickyAssignor.deserializeTopicPartitionAssignment: "ignore the consumer's previous assignment if it cannot be
    # parsed"
    members = [member("m1", "a b"), member("m2", "a b")]
    assert shares(*with_user_data(members, raw), a=6, b=8) == shares(*members, a=6, b=8)


def test_a_claim_beside_the_user_data_does_not_count() -> None:
    # StickyAssignor.memberData: "Always deserialize ownedPartitions and generation id from user data"
    claiming = [member("m1", "t", owned="t-1 t-2 t-3"), member("m2", "t")]
    assert shares(*claiming, t=4) == shares(member("m1", "t"), member("m2", "t"), t=4)


def test_the_user_data_of_the_higher_generation_counts() -> None:
    # SAT.testAssignmentWithConflictingPreviousGenerations
    members = eager(member("m1", "t", owned="t-0 t-1", generation=1), member("m2", "t", owned="t-0", generation=2))
    assert shares(*members, t=2) == {"m1": parts("t-1"), "m2": parts("t-0")}


def test_a_partition_changes_hands_in_one_round() -> None:
    """Eager members do not read meanwhile. A cooperative assignor gives t-1 to no member in this round."""
    members = eager(member("m1", "t", owned="t-0 t-1"), member("m2", "t"))
    assert shares(*members, t=2) == {"m1": parts("t-0"), "m2": parts("t-1")}


@given(groups())
def test_one_round_reaches_the_result_that_the_cooperative_assignor_reaches_in_two(group: Group) -> None:
    members, _ = group
    assignment = STICKY.assign(eager(*members), group[1])
    owned = sorted(partition for share in assignment.values() for partition in share)
    assert owned == sorted(wanted_partitions(group))
    assert score(members, assignment)[0] == score(members, settled(group))[0]


@given(groups(), st.randoms())
def test_the_order_of_members_does_not_matter(group: Group, random: Random) -> None:
    members = eager(*group[0])
    before = STICKY.assign(members, group[1])
    random.shuffle(members)
    assert STICKY.assign(members, group[1]) == before
