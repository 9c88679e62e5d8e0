"""Checkpoints that another query wrote: sources that change places and back, a group or a prefix that was changed.

Spark keeps the offsets of a query's sources by their place, so after such a change a source goes on from the offsets
that another one wrote.
"""

import random
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from harness.boundary import P0, P1, World, messages
from harness.fake_driver import Driver
from harness.fake_group import OTHER, FakeGroup, Violation
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kgroup.driver.boundary.boundary import Boundary
from pyspark_kgroup.driver.boundary.context import BoundaryContext
from pyspark_kgroup.offsets.adoption import topic_key
from pyspark_kgroup.offsets.checkpoint import Checkpoint, Topic
from spark_kgroup.model import TopicPartition
from spark_kgroup.seat_note import Author


def change_places(one: Driver, another: Driver) -> None:
    """Each goes on from the offset and commit log of the other. Both processes are new."""
    for name in ("planned", "batches_done", "sink"):
        here, there = getattr(one, name), getattr(another, name)
        setattr(one, name, there)
        setattr(another, name, here)
    one.restart()
    another.restart()


@dataclass
class TwoSources:
    """Two sources of one query, each of its own topic in its own group."""

    partitions: int = 2
    drivers: list[Driver] = field(default_factory=list)

    def __post_init__(self) -> None:
        groups = {topic: FakeGroup({topic: self.partitions}) for topic in ("a", "b")}
        groups["a"].topics_now |= groups["b"].topics_now  # one cluster: a topic that is gone is not remembered
        groups["b"].topics_now |= groups["a"].topics_now
        self.drivers.extend(Driver(group, name=f"group of {topic}") for topic, group in groups.items())

    def produce(self, count: int) -> None:
        for driver in self.drivers:
            for tp in sorted(driver.group.log):
                driver.group.produce(tp, count)

    def drain(self) -> None:
        for driver in self.drivers:
            driver.drain()

    def change_places(self) -> None:
        change_places(*self.drivers)

    @property
    def rows(self) -> dict[TopicPartition, list[tuple[int, int]]]:
        """The ranges that were read of each partition, from either place."""
        found: dict[TopicPartition, list[tuple[int, int]]] = {}
        for driver in self.drivers:
            for tp, spans in driver.rows.items():
                found.setdefault(tp, []).extend(spans)
        return {tp: sorted(spans) for tp, spans in found.items()}

    def assert_read_once(self) -> None:
        ends = {tp: end for driver in self.drivers for tp, (_, end) in driver.group.log.items()}
        for tp, end in ends.items():
            offsets = [offset for a, b in self.rows.get(tp, ()) for offset in range(a, b)]
            assert sorted(offsets) == list(range(end)), f"{tp}: {self.rows.get(tp)}"


def test_sources_that_change_places_and_back_read_each_record_once(caplog: pytest.LogCaptureFixture) -> None:
    sources = TwoSources()
    sources.produce(20)
    sources.drain()
    for _ in range(2):
        sources.produce(10)
        sources.change_places()
        sources.drain()
    sources.assert_read_once()
    assert messages(caplog, "was set back") == []
    ends = [driver.group.committed_now for driver in sources.drivers]
    assert [set(committed.values()) for committed in ends] == [{40}, {40}]


def test_a_partition_that_is_adopted_late_after_a_change_back_is_read_once() -> None:
    """Its source has written into the place again by then, so the place's group no longer tells who owned it."""
    sources = TwoSources()
    sources.produce(20)
    sources.drain()
    sources.produce(10)
    sources.change_places()
    sources.drain()
    a = sources.drivers[0]
    late = TopicPartition("a", 1)
    a.group.unassign(late)
    a.group.target.pop(late)
    sources.change_places()
    sources.produce(10)
    a.drain()
    assert (late in a.durable.owned, a.durable.group) == (False, "group of a")
    assert late in a.durable.inherited
    a.group.target[late] = "seat-0"
    a.group.rebalance()
    sources.drain()
    sources.assert_read_once()
    assert {tp.topic for tp in a.durable.inherited} == {"b"}


def test_a_partition_that_is_handed_over_before_it_is_adopted_keeps_its_committed_offset() -> None:
    """1. a source has changed places and back, 2. its partition is asked for before its first boundary: the place's
    position of it is older than the offset that the source itself has committed since."""
    sources = TwoSources(partitions=1)
    sources.produce(20)
    sources.drain()
    sources.produce(10)
    sources.change_places()
    sources.drain()
    a = sources.drivers[0]
    sources.change_places()
    a.group.move(TopicPartition("a", 0), OTHER)
    a.drain()
    assert a.group.other == {TopicPartition("a", 0): 30}


def test_a_checkpoint_that_was_set_back_after_a_change_back_is_read_again_from_there() -> None:
    """The partition that the source has owned since is its own again."""
    sources = TwoSources(partitions=1)
    sources.produce(20)
    sources.drain()
    for _ in range(2):
        sources.change_places()
        sources.produce(10)
        sources.drain()
    a = sources.drivers[0]
    before = a.batches_done
    a.group.produce(TopicPartition("a", 0), 5)
    a.drain()
    a.group.die()
    a.group.checkpoint_set_back = True
    a.set_back(before)
    a.restart()
    a.drain()
    assert a.rows[TopicPartition("a", 0)][-1] == (40, 45)


@given(st.lists(st.sampled_from(["produce", "drain", "trigger", "change places", "restart"]), max_size=25))
def test_in_any_order_sources_that_change_places_at_rest_read_each_record_once(story: list[str]) -> None:
    sources = TwoSources()
    for step in story:
        match step:
            case "produce":
                sources.produce(7)
            case "drain":
                sources.drain()
            case "trigger":
                for driver in sources.drivers:
                    driver.trigger(limit=5)
            case "restart":
                for driver in sources.drivers:
                    driver.restart()
            case "change places":
                sources.drain()  # else the end of a last batch may be in its place alone, hidden from the other source
                sources.change_places()
    sources.drain()
    sources.assert_read_once()


def renamed(driver: Driver, **what: Any) -> None:
    """The query comes back with other names in its options, and its commits bear the new prefix. Seats keep theirs."""
    driver.restart()
    driver.options = replace(driver.options, **what)
    driver.boundary = Boundary(
        BoundaryContext.of(driver.group, driver.options, clock=lambda: driver.group.now_ms), bounded=False
    )
    driver.group.author = Author(app=driver.options.instance_id_prefix)


def test_a_prefix_that_is_changed_and_changed_back_reads_each_record_once(world: World) -> None:
    group, driver = world(partitions=2, records=20)
    driver.drain()
    for prefix in ("blue", "seat"):
        renamed(driver, instance_id_prefix=prefix)
        group.produce(P0, 10)
        driver.drain()
        assert driver.durable.app == prefix
    assert driver.rows == {P0: [(0, 20), (20, 30), (30, 40)], P1: [(0, 20)]}


@pytest.mark.parametrize("changed", ["group_id", "instance_id_prefix"])
def test_a_checkpoint_from_before_a_change_of_name_is_read_again_where_the_query_went_on(
    world: World, changed: str
) -> None:
    """It was restored, with the sink: the query that wrote it owned the partitions in it."""
    group, driver = world(partitions=1, records=20)
    driver.drain()
    before = driver.batches_done
    renamed(driver, **{changed: "blue"})
    group.produce(P0, 10)
    driver.drain()
    group.die()
    group.checkpoint_set_back = True
    driver.set_back(before)
    renamed(driver, **{changed: "blue"})
    driver.drain()
    assert driver.rows == {P0: [(0, 20), (20, 30)]}


def test_another_querys_checkpoint_stays_as_it_is_while_no_partition_is_adopted(world: World) -> None:
    """Any difference makes Spark run a batch."""
    group, driver = world(records=20)
    known = Topic(topic_id=topic_key(group.topics_now["t"]), first_sight=1)
    start = Checkpoint(topics={"t": known}, given_up={P0: 7}, group="another")
    group.commit_fate = lambda: "lost"
    assert driver.boundary.advance(start) is start
    group.commit_fate = lambda: "ok"
    assert driver.boundary.advance(start).owned[P0].period.start == 7


@pytest.mark.parametrize("first_seed", range(0, 80, 20))
def test_sources_in_random_worlds_that_change_places_read_each_record_once(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 20):
        rng, sources = random.Random(seed), TwoSources(partitions=3)
        try:
            for _ in range(30):
                driver = rng.choice(sources.drivers)
                tp = rng.choice(sorted(driver.group.log))
                match rng.randrange(7):
                    case 0 | 1:
                        driver.group.produce(tp, rng.randint(1, 9))
                    case 2:
                        driver.trigger(limit=rng.choice([None, 3]))
                    case 3:
                        driver.restart()
                    case 4:
                        driver.group.move(tp, rng.choice(["seat-0", OTHER]))
                        driver.group.other_gives_up()
                    case 5:
                        driver.group.add_partition(tp.topic)
                    case _:
                        sources.drain()
                        sources.change_places()
            for driver in sources.drivers:
                driver.group.spread(["seat-0"])
                driver.group.other_gives_up()
            sources.drain()
            sources.assert_read_once()
        except (AssertionError, Violation) as error:
            raise AssertionError(f"seed {seed}: {error}") from error
