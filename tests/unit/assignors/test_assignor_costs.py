"""The cost of assigning, counted and not timed: it grows with the partitions, not with members times topics."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from spark_kgroup.assignors import _balance, assignor
from spark_kgroup.assignors.cooperative_sticky import compute_target
from spark_kgroup.model import GroupMember, Subscription, TopicDescription, TopicPartition

MEMBERS = 100
PARTITIONS_OF_A_TOPIC = 10


def topics(count: int) -> dict[str, TopicDescription]:
    names = [f"t{k:04}" for k in range(count)]
    return {name: TopicDescription(name=name, topic_id=None, partition_count=PARTITIONS_OF_A_TOPIC) for name in names}


def one_lacks_a_topic(
    of: Mapping[str, TopicDescription], owned: Mapping[int, frozenset[TopicPartition]]
) -> list[GroupMember]:
    """A rolling change of `subscribe` has come as far as the first member."""
    return [
        GroupMember(
            member_id=f"m{k:03}",
            instance_id=None,
            subscription=Subscription(
                topics=tuple(of)[: -1 if k == 0 else None], owned=owned.get(k, frozenset()), generation=1
            ),
        )
        for k in range(MEMBERS)
    ]


def nobody_owns_anything(_: Mapping[str, TopicDescription]) -> Mapping[int, frozenset[TopicPartition]]:
    return {}


def one_owns_everything(of: Mapping[str, TopicDescription]) -> Mapping[int, frozenset[TopicPartition]]:
    return {1: frozenset(tp for topic in of.values() for tp in topic.partitions)}


@pytest.fixture
def heap_operations(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each function of a heap was called while spreading."""
    calls: Counter[str] = Counter()

    def counting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any) -> Any:
            calls[name] += 1
            return function(*args)

        return counted

    for name in ("heappush", "heappop", "heapreplace"):
        if hasattr(_balance, name):
            monkeypatch.setattr(_balance, name, counting(name, getattr(_balance, name)))
    return calls


@pytest.mark.parametrize("owned", [nobody_owns_anything, one_owns_everything])
@pytest.mark.parametrize("count", [50, 400])
def test_with_unequal_subscriptions_a_few_heap_operations_place_a_partition_however_many_topics_there_are(
    heap_operations: Counter[str],
    count: int,
    owned: Callable[[Mapping[str, TopicDescription]], Mapping[int, frozenset[TopicPartition]]],
) -> None:
    described = topics(count)
    assignment = assignor("cooperative-sticky").assign(one_lacks_a_topic(described, owned(described)), described)
    assert len(assignment) == MEMBERS
    assert heap_operations.total() <= 12 * count * PARTITIONS_OF_A_TOPIC


@pytest.mark.parametrize("owned", [nobody_owns_anything, one_owns_everything])
def test_with_unequal_subscriptions_memory_grows_with_the_partitions(
    owned: Callable[[Mapping[str, TopicDescription]], Mapping[int, frozenset[TopicPartition]]],
) -> None:
    peaks = []
    for count in (50, 400):
        described = topics(count)
        members = one_lacks_a_topic(described, owned(described))
        tracemalloc.start()
        assignor("cooperative-sticky").assign(members, described)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] <= 1.5 * 8 * peaks[0]


class Names(tuple[str, ...]):
    """Topics of a subscription that must not be searched one by one."""

    __slots__ = ()

    def __contains__(self, name: object) -> bool:
        raise AssertionError(f"looked through all topics for {name}")


@pytest.mark.parametrize("name", ["cooperative-sticky", "range"])
def test_no_topic_is_searched_in_the_list_of_a_subscription(name: str) -> None:
    described = topics(3)
    members = [
        GroupMember(member_id=who, instance_id=None, subscription=Subscription(topics=Names(wanted)))
        for who, wanted in (("a", described), ("b", list(described)[:2]))
    ]
    assert sum(map(len, assignor(name).assign(members, described).values())) == 3 * PARTITIONS_OF_A_TOPIC


def test_claims_of_members_that_keep_them_all_are_not_copied_when_other_members_have_left() -> None:
    described = topics(50)
    names = tuple(described)
    everybody = [
        GroupMember(member_id=f"m{k}", instance_id=None, subscription=Subscription(topics=names)) for k in range(5)
    ]
    before = assignor("cooperative-sticky").assign(everybody, described)
    stay = [replace(m, subscription=replace(m.subscription, owned=before[m.member_id])) for m in everybody[1:]]
    shares = compute_target(stay, described).shares
    assert all(shares[m.member_id].kept is m.subscription.owned for m in stay)
    assert sum(len(share.gained) for share in shares.values()) == len(before["m0"])


def test_the_search_for_chains_ends_when_its_steps_are_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    described = topics(50)
    members = one_lacks_a_topic(described, one_owns_everything(described))
    monkeypatch.setattr(_balance, "ASSIGNOR_STEPS_MAX", 1_000)
    first = assignor("cooperative-sticky").assign(members, described)
    assert 0 < len(first["m001"]) < 50 * PARTITIONS_OF_A_TOPIC
