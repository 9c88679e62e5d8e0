"""Two queries of a group, one of which comes back with another `subscribe`: each record is read, and read once."""

import json
from collections.abc import Callable
from uuid import uuid4

import pytest
from harness.kafka import produce
from harness.query import Query
from harness.waiting import wait_for

from pyspark_kgroup.offsets.checkpoint import Checkpoint
from spark_kgroup.testing import ApacheKafka

PARTITIONS = 4
"""Partitions of the second topic. The first topic has one, so that a query that reads it alone has less than a
share."""

MORE = {"startingOffsets": "committed", "kafka.auto.offset.reset": "earliest", "kafka.session.timeout.ms": "45000"}


class SubscriptionWorld:
    """Two topics, and two queries that read both."""

    def __init__(self, server: str) -> None:
        self.server = server
        self.first, self.second = (f"{name}-{uuid4().hex[:8]}" for name in ("first", "second"))
        self.both = f"{self.first},{self.second}"
        self.a, self.b = (
            Query(server, f"of-{self.first}", self.both, executor=None, instanceIdPrefix=p, **MORE) for p in "ab"
        )
        self.produced = 0

    def produce(self) -> None:
        """Ten records to each partition of the second topic."""
        produce(self.server, self.second, 10 * PARTITIONS, partitions=PARTITIONS, first=self.produced)
        self.produced += 10 * PARTITIONS

    def until(self, condition: Callable[[], bool], what: str, *queries: Query) -> None:
        def holds() -> bool:
            for query in queries or (self.a, self.b):
                query.trigger()
            return condition()

        wait_for(holds, what, 90)

    def owned(self, query: Query) -> int:
        """Partitions of the second topic."""
        return sum(tp.topic == self.second for tp in Checkpoint.from_json(json.loads(query.durable)).owned)

    def shared(self) -> bool:
        shares = self.owned(self.a), self.owned(self.b)
        return min(shares) > 0 and sum(shares) == PARTITIONS

    def offsets(self) -> list[tuple[int, int]]:
        """The records of the second topic that both have read."""
        return [
            (p, r["offset"]) for q in (self.a, self.b) for (t, p), rs in q.rows.items() if t == self.second for r in rs
        ]

    @property
    def complete(self) -> bool:
        return len(set(self.offsets())) == self.produced

    def assert_each_record_once(self) -> None:
        assert sorted(self.offsets()) == [(p, o) for p in range(PARTITIONS) for o in range(self.produced // PARTITIONS)]


@pytest.fixture
def world(apache_kafka: ApacheKafka) -> SubscriptionWorld:
    world = SubscriptionWorld(apache_kafka.bootstrap_servers)
    apache_kafka.create_topic(world.first, partitions=1)
    apache_kafka.create_topic(world.second, partitions=PARTITIONS)
    return world


def test_a_topic_that_leaves_is_read_on_by_who_still_wants_it_and_shared_when_it_comes_back(
    world: SubscriptionWorld,
) -> None:
    a, b = world.a, world.b
    with b:
        with a:
            world.until(world.shared, "each to have a share")
            world.produce()
            world.until(lambda: world.complete, "all to be read")
        a.options["subscribe"] = world.first
        with a:
            world.until(lambda: world.owned(b) == PARTITIONS, "the other to have all of the second topic")
            world.produce()
            world.until(lambda: world.complete, "all to be read")
        a.options["subscribe"] = world.both
        with a:
            world.until(world.shared, "the second topic to be shared again")
            world.produce()
            world.until(lambda: world.complete, "all to be read")
    world.assert_each_record_once()


@pytest.mark.parametrize("members", ["1", "3"])
def test_the_last_batch_of_a_topic_that_leaves_is_not_read_again_by_its_next_owner(
    world: SubscriptionWorld, members: str
) -> None:
    """The group hears of a batch at the next boundary, and that one belongs to a process without the topic."""
    a, b = world.a, world.b
    a.options["members"] = "2"
    with a:
        a.settle()
        world.produce()
        world.until(lambda: world.complete, "a batch of the second topic", a)
    a.options |= {"subscribe": world.first, "members": members}
    with a, b:
        world.produce()
        world.until(lambda: world.complete, "the rest to be read by the other")
    world.assert_each_record_once()
