"""`minOffsetsPerTrigger` and `maxTriggerDelay`: few new offsets wait for more, as in `format("kafka")`."""

from collections.abc import Callable

import pytest
from harness.fake_driver import Driver
from harness.fake_group import FakeGroup

from pyspark_kgroup.limits import END_OFFSETS_MAX_AGE_MS, MAX_TRIGGER_DELAY_MS
from spark_kgroup.model import TopicPartition

PARTITIONS = [TopicPartition("t", index) for index in range(2)]
LEAST = 10

World = Callable[..., tuple[FakeGroup, Driver]]


@pytest.fixture
def waiting(world: World) -> tuple[FakeGroup, Driver]:
    """A query that has read its first batch, and wants ten offsets for the next one."""
    group, driver = world(partitions=2, seats=2, records=3)
    driver.offsets_min = LEAST
    driver.start()
    driver.drain()
    assert driver.rows == {tp: [(0, 3)] for tp in PARTITIONS}, "the first batch waits for nothing"
    return group, driver


def later(group: FakeGroup, by_ms: int = END_OFFSETS_MAX_AGE_MS + 1) -> None:
    group.now_ms += by_ms


def test_new_offsets_wait_until_there_are_enough_in_all_partitions_together(waiting: tuple[FakeGroup, Driver]) -> None:
    group, driver = waiting
    group.produce(PARTITIONS[0], 9)
    for _ in range(3):
        later(group)
        assert not driver.trigger()
    assert group.committed_now == dict.fromkeys(PARTITIONS, 3)
    group.produce(PARTITIONS[1], 1)
    later(group)
    assert driver.trigger()
    assert driver.rows == {PARTITIONS[0]: [(0, 3), (3, 12)], PARTITIONS[1]: [(0, 3), (3, 4)]}


def test_new_offsets_wait_no_longer_than_the_delay_since_the_last_batch(waiting: tuple[FakeGroup, Driver]) -> None:
    group, driver = waiting
    later(group, MAX_TRIGGER_DELAY_MS - 60_000)
    group.produce(PARTITIONS[0], 1)
    assert not driver.trigger()
    later(group, 60_000)
    assert driver.trigger()
    group.produce(PARTITIONS[0], 1)
    later(group)
    assert not driver.trigger(), "the delay begins anew with each batch"
    later(group, MAX_TRIGGER_DELAY_MS)
    assert driver.trigger()
    assert driver.rows[PARTITIONS[0]] == [(0, 3), (3, 4), (4, 5)]


def test_a_quiet_stream_makes_no_batch_when_the_delay_is_over(waiting: tuple[FakeGroup, Driver]) -> None:
    group, driver = waiting
    later(group, 2 * MAX_TRIGGER_DELAY_MS)
    assert not driver.trigger()
    group.produce(PARTITIONS[0], 1)
    later(group)
    assert driver.trigger(), "nothing has been read for long, so what comes now waits for nothing"


def test_a_limit_counts_once_there_are_enough(waiting: tuple[FakeGroup, Driver]) -> None:
    group, driver = waiting
    group.produce(PARTITIONS[0], 15)
    later(group)
    assert driver.trigger(limit=12)
    later(group)
    assert not driver.trigger(limit=12), "three are left"
    assert driver.rows[PARTITIONS[0]] == [(0, 3), (3, 15)]


def test_under_available_now_no_batch_waits(waiting: tuple[FakeGroup, Driver]) -> None:
    group, driver = waiting
    group.produce(PARTITIONS[0], 1)
    driver.restart(bounded=True)
    driver.drain()
    assert driver.rows[PARTITIONS[0]] == [(0, 3), (3, 4)]


def test_under_once_no_batch_waits(waiting: tuple[FakeGroup, Driver]) -> None:
    group, driver = waiting
    group.produce(PARTITIONS[0], 1)
    later(group)
    assert driver.boundary.advance(driver.durable) == driver.durable
    assert driver.boundary.advance(driver.durable, at_once=True).owned[PARTITIONS[0]].position == 4
