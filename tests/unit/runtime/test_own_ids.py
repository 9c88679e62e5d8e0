"""When a seat may have a member id of its own: only where a group that is converted forgets no claim."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_kgroup.model import DescribedGroup, DescribedMember, Subscription, TopicPartition
from spark_kgroup.runtime.own_ids import alone, at_rest

OURS = {"m-a": frozenset({"orders"})}


def parts(*indexes: int) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition("orders", index) for index in indexes)


def member(name: str, *, has: frozenset[TopicPartition], claims: frozenset[TopicPartition]) -> DescribedMember:
    subscription = Subscription(topics=("orders",), owned=claims, generation=3)
    return DescribedMember(
        member_id=f"m-{name}",
        instance_id=name,
        client_id="test",
        client_host="here",
        assignment=has,
        subscription=subscription,
    )


A = member("a", has=parts(0, 1), claims=parts(0, 1))
B = member("b", has=parts(2), claims=parts())
GROUP = DescribedGroup(group="g", state="Stable", protocol="cooperative-sticky", members=(A, B))


def test_a_group_in_which_no_member_claims_more_than_it_has_is_at_rest() -> None:
    assert at_rest(GROUP, OURS)


NOT_AT_REST = {
    "rebalances": replace(GROUP, state="PreparingRebalance"),
    "is of type consumer": replace(GROUP, group_type="consumer"),
    "has a member that still reads what it must give up": replace(
        GROUP, members=(A, replace(B, subscription=Subscription(topics=("orders",), owned=parts(2, 3))))
    ),
    "has a member that nobody can read": replace(GROUP, members=(A, replace(B, subscription=None))),
    "has our seat under another id": replace(GROUP, members=(replace(A, member_id="m-of-another-process"), B)),
    "knows another subscription of ours": replace(
        GROUP, members=(replace(A, subscription=Subscription(topics=("orders", "more"), owned=parts(0, 1))), B)
    ),
}


@pytest.mark.parametrize("circumstance", NOT_AT_REST)
def test_a_group_is_not_at_rest_that(circumstance: str) -> None:
    assert not at_rest(NOT_AT_REST[circumstance], OURS)


def test_seats_are_alone_in_a_group_that_has_all_of_them_and_no_other_member() -> None:
    both = {**OURS, "m-b": frozenset({"orders"})}
    assert alone(GROUP, both)
    assert not alone(GROUP, OURS)
    assert not alone(replace(GROUP, members=(A,)), both)
