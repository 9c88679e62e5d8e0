"""`uncollected` keeps Python's search for cycles off until its block ends, and then leaves it as it was before."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator

import pytest

from spark_kgroup.admin.plan_lines import answer
from spark_kgroup.assignors import NAMES, assignor
from spark_kgroup.model import GroupMember, Subscription, TopicDescription
from spark_kgroup.uncollected import uncollected

PARTITIONS = 20_000


@pytest.fixture
def collections() -> Iterator[list[str]]:
    """One entry for each search for cycles that has begun."""
    begun: list[str] = []

    def note(phase: str, _: dict[str, int]) -> None:
        begun.append(phase)

    gc.freeze()  # objects from before are not looked at again: a third of a second for each test
    gc.collect()
    gc.callbacks.append(note)
    yield begun
    gc.callbacks.remove(note)
    gc.unfreeze()


def test_the_search_for_cycles_rests_and_goes_on_also_after_an_error() -> None:
    seen = []

    @uncollected()
    def fail() -> None:
        seen.append(gc.isenabled())
        raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert (seen, gc.isenabled()) == ([False], True)


def test_a_process_that_does_without_the_search_for_cycles_still_does_afterwards() -> None:
    gc.disable()
    try:
        with uncollected():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.parametrize("name", NAMES)
def test_an_assignment_of_many_partitions_is_made_without_the_search_for_cycles(
    name: str, collections: list[str]
) -> None:
    topics = {"t": TopicDescription(name="t", topic_id=None, partition_count=PARTITIONS)}
    members = [
        GroupMember(member_id=f"m{k}", instance_id=None, subscription=Subscription(topics=("t",))) for k in range(3)
    ]
    chosen = assignor(name)
    collections.clear()
    assigned = chosen.assign(members, topics)
    assert len(collections) <= 2, "one, when all is made"
    assert sum(map(len, assigned.values())) == PARTITIONS


def test_a_plan_of_many_partitions_is_made_without_the_search_for_cycles(collections: list[str]) -> None:
    group = {
        "assignor": "cooperative-sticky",
        "topics": {"t": {"partitions": PARTITIONS}},
        "members": {"m": {"topics": ["t"], "owned": [["t", index] for index in range(PARTITIONS)]}},
    }
    line = json.dumps(group).encode()
    collections.clear()
    planned = answer(line)
    assert len(collections) <= 2, "one, when all is made"
    assert len(planned["assignment"]["m"]) == PARTITIONS
