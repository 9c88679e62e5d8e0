"""A query that comes back with another `subscribe`: old topics go, new topics come, and no record is read twice."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from harness.boundary import World
from harness.fake_driver import Crash, Driver
from harness.fake_group import OTHER, FakeGroup

from spark_kgroup.model import TopicPartition

T0, U0 = TopicPartition("t", 0), TopicPartition("u", 0)


@pytest.fixture
def two_topics() -> tuple[FakeGroup, Driver]:
    """One partition and ten records in each."""
    group = FakeGroup({"t": 1, "u": 1}, seats=2)
    for tp in (T0, U0):
        group.produce(tp, 10)
    return group, Driver(group)


def comes_back(group: FakeGroup, driver: Driver, *subscribed: str, seats: int | None = None) -> None:
    group.die()
    group.subscribed = subscribed
    driver.restart(seats)


@pytest.mark.parametrize("seats", [None, 1, 3])
def test_a_topic_that_left_is_handed_over_at_the_position_it_was_read_to(
    two_topics: tuple[FakeGroup, Driver], seats: int | None
) -> None:
    """Its last batch was durable, and the group did not know of it yet."""
    group, driver = two_topics
    driver.trigger()
    assert group.committed_now == {T0: 0, U0: 0}
    comes_back(group, driver, "t", seats=seats)
    driver.drain()
    assert group.other == {U0: 10}
    assert driver.rows == {T0: [(0, 10)], U0: [(0, 10)]}


def test_topics_that_many_seats_left_are_looked_up_and_committed_in_one_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Seat by seat, 1,000 seats would make 3,000 requests, one after the other."""
    group = FakeGroup({"t": 1, "u": 30}, seats=30)
    for tp in group.topics_now["u"].partitions:
        group.produce(tp, 10)
    driver = Driver(group)
    driver.trigger()
    calls: Counter[str] = Counter()
    for name in ("describe", "topics_named", "committed", "commit"):
        monkeypatch.setattr(group, name, _counted(calls, name, getattr(group, name)))
    comes_back(group, driver, "t")
    driver.drain()
    assert group.other == dict.fromkeys(group.topics_now["u"].partitions, 10)
    assert max(calls.values()) < 10


def _counted(calls: Counter[str], name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def counted(*arguments: Any, **named: Any) -> Any:
        calls[name] += 1
        return call(*arguments, **named)

    return counted


def test_a_topic_that_left_during_an_unfinished_batch_is_handed_over_after_that(
    two_topics: tuple[FakeGroup, Driver],
) -> None:
    group, driver = two_topics
    with pytest.raises(Crash):
        driver.trigger(crash="unread")
    group.die()
    group.rebalance()
    comes_back(group, driver, "t")
    assert driver.rows == {T0: [(0, 10)], U0: [(0, 10)]}
    assert not group.other
    driver.drain()
    assert group.other == {U0: 10}


def test_a_topic_that_left_and_cannot_be_handed_over_yet_is_claimed_by_the_process_after_the_next_one(
    two_topics: tuple[FakeGroup, Driver],
) -> None:
    """Seed 205 of the boundary's worlds: the process in between wrote a checkpoint in which no seat owned the topic."""
    group, driver = two_topics
    driver.trigger()
    group.unstable.add(U0)  # a transaction keeps the group's offset of it from being told
    comes_back(group, driver, "t")
    group.produce(T0, 5)
    driver.trigger()
    assert driver.rows == {T0: [(0, 10), (10, 15)], U0: [(0, 10)]}
    comes_back(group, driver, "t")
    group.unstable.clear()
    driver.drain()
    assert group.other == {U0: 10}
    assert driver.rows == {T0: [(0, 10), (10, 15)], U0: [(0, 10)]}


def test_a_topic_that_left_and_was_recreated_is_given_up_without_a_commit(two_topics: tuple[FakeGroup, Driver]) -> None:
    group, driver = two_topics
    driver.trigger()
    group.create_topic("u", 1)
    comes_back(group, driver, "t")
    driver.drain()
    assert group.other == {U0: 0}


def test_a_topic_that_left_is_remembered_until_it_is_deleted(two_topics: tuple[FakeGroup, Driver]) -> None:
    group, driver = two_topics
    driver.drain()
    comes_back(group, driver, "t")
    driver.drain()
    assert driver.durable.topics.keys() == {"t", "u"}
    assert U0 in {**driver.durable.lost, **driver.durable.given_up}
    group.delete_topic("u")
    comes_back(group, driver, "t")
    driver.drain()
    assert driver.durable.topics.keys() == {"t"}
    assert not {**driver.durable.lost, **driver.durable.given_up}


@pytest.mark.parametrize("seats", [None, 1, 3])
def test_a_new_topic_is_shared_though_other_members_had_all_of_it(
    two_topics: tuple[FakeGroup, Driver], seats: int | None
) -> None:
    group, driver = two_topics
    comes_back(group, driver, "t")
    driver.drain()
    assert group.other == {U0: 0}
    group.other_reads(U0, 4)
    forced = len(group.forced)
    comes_back(group, driver, "t", "u", seats=seats)
    group.target[U0] = "seat-0"
    driver.ask()
    # A seat more makes the group rebalance by itself.
    assert group.forced[forced:].count("subscribed without a share: u") == (seats != 3)
    group.other_gives_up()
    driver.drain()
    assert driver.rows == {T0: [(0, 10)], U0: [(4, 10)]}


def test_a_share_that_stays_empty_costs_one_rebalance_and_not_one_for_each_start(
    two_topics: tuple[FakeGroup, Driver],
) -> None:
    group, driver = two_topics
    comes_back(group, driver, "t")
    driver.drain()
    comes_back(group, driver, "t", "u")
    group.target[U0] = OTHER
    driver.drain()
    forced = len(group.forced)
    comes_back(group, driver, "t", "u")
    driver.drain()
    assert len(group.forced) == forced


def test_brokers_are_asked_for_topics_that_left_only_if_some_did(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    group, driver = world(partitions=2, records=10)
    driver.trigger()
    asked: list[str] = []
    for call in ("topics_named", "topics_gone"):
        monkeypatch.setattr(group, call, lambda _, call=call: asked.append(call) or {})
    driver.restart()
    group.move(TopicPartition("t", 0), OTHER)
    driver.drain()
    assert group.committed_now == {TopicPartition("t", index): 10 for index in range(2)}
    assert asked == []
