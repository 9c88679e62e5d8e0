"""Two queries share a group, and the commit before a hand-over fails: the hand-over waits, and no record is lost."""

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from uuid import uuid4

import pytest
from harness.group_history import assert_never_rewound, group_history
from harness.kafka import produce
from harness.offsets import offsets_alone
from harness.proxy import OFFSET_COMMIT, SYNC_GROUP, Proxy, Verdict
from harness.runtime import options_of, owned, settings_of
from harness.waiting import wait_for

from pyspark_kgroup.driver.boundary.boundary import Boundary
from pyspark_kgroup.driver.boundary.context import BoundaryContext
from pyspark_kgroup.offsets.checkpoint import EMPTY, Checkpoint
from spark_kgroup.model import TopicPartition
from spark_kgroup.runtime import offset_committer
from spark_kgroup.runtime.thread import GroupRuntime
from spark_kgroup.testing import ApacheKafka

PARTITIONS = 4


@pytest.fixture(scope="module")
def behind() -> Iterator[tuple[ApacheKafka, Proxy]]:
    """A broker of this module's own, which sends all clients through the proxy."""
    with Proxy(lambda: kafka.nodes[0].port) as proxy:
        advertised = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{proxy.port}"}
        kafka = ApacheKafka(server_properties=advertised)
        with kafka:
            yield kafka, proxy


class Query:
    """One query without Spark: each batch is done as soon as it is planned."""

    def __init__(self, bootstrap: str, topic: str, prefix: str, started: ExitStack) -> None:
        options = options_of(bootstrap, topic, prefix, 1)
        self.runtime = started.enter_context(GroupRuntime(settings_of(options)))
        self._boundary = Boundary(BoundaryContext.of(self.runtime, options), bounded=False)
        self.done: Checkpoint = EMPTY

    def trigger(self) -> Checkpoint:
        self.done = self._boundary.advance(self.done)
        return self.done

    @property
    def owned(self) -> set[TopicPartition]:
        return owned(self.runtime.view())

    @property
    def asked(self) -> frozenset[TopicPartition]:
        """The partitions that it must give up."""
        return frozenset(tp for seat in self.runtime.view().seats for tp in seat.to_give_up)

    @property
    def read(self) -> dict[TopicPartition, int]:
        return {tp: owned.position for tp, owned in self.done.owned.items()}


class HandOverWorld:
    """A query that has read to 10, has planned and done a batch to 20 that the group does not know of, and is asked by
    a second query to give two of four partitions up."""

    def __init__(self, kafka: ApacheKafka, proxy: Proxy, started: ExitStack) -> None:
        self.kafka, self.proxy, self._started = kafka, proxy, started
        self.topic = f"topic-{uuid4().hex[:8]}"
        kafka.create_topic(self.topic, partitions=PARTITIONS)
        self.end = 0
        self.produce()
        self.one = self.query("one")
        self.one.trigger()
        self.one.trigger()
        assert self.committed() == [10] * PARTITIONS
        self.produce()
        # One trigger is not enough: ends that were listed a moment ago serve it, too (END_OFFSETS_MAX_AGE_MS).
        wait_for(lambda: self.one.trigger() and set(self.one.read.values()) == {20}, "a second batch", 60)
        assert set(self.one.done.owned) == self.one.owned
        self.two = self.query("two")
        self.asked = wait_for(lambda: self.one.asked, "the first to be asked for partitions", 60)
        assert len(self.asked) == 2
        # It has its share, which is empty: no request of this generation is under way any more.
        wait_for(lambda: all(seat.settled for seat in self.two.runtime.view().seats), "the second to be a member", 60)

    def query(self, prefix: str) -> Query:
        return Query(f"127.0.0.1:{self.proxy.port}", self.topic, prefix, self._started)

    def produce(self) -> None:
        """Ten records to each partition."""
        produce(self.kafka.bootstrap_servers, self.topic, 40, partitions=PARTITIONS, first=self.end * PARTITIONS)
        self.end += 10

    def committed(self) -> list[int | None]:
        tps = [TopicPartition(self.topic, p) for p in range(PARTITIONS)]
        found = offsets_alone(self.one.runtime.committed(tps))
        return [found[tp] for tp in tps]

    def assert_not_handed_over(self) -> None:
        assert self.one.asked == self.asked
        assert self.one.owned >= self.asked
        assert not self.two.owned

    def assert_handed_over(self, *takers: Query) -> None:
        """Each partition goes to one owner, who begins where the first has read to. In the end all is read."""
        queries = (self.one, *takers)
        every = [TopicPartition(self.topic, p) for p in range(PARTITIONS)]

        def shared() -> bool:
            self.one.trigger()
            return all(query.owned for query in queries) and not self.one.asked

        wait_for(shared, "the partitions to be shared", 60)
        assert sorted(tp for query in queries for tp in query.owned) == every

        def all_known() -> bool:
            for query in queries:
                query.trigger()
            return self.committed() == [self.end] * PARTITIONS

        wait_for(all_known, "all to be read and known", 60)
        assert {owned.period.start for query in takers for owned in query.done.owned.values()} == {20}
        assert sorted(tp for query in queries for tp in query.read) == every
        assert_never_rewound(group_history(self.kafka.bootstrap_servers, f"of-{self.topic}"))


@pytest.fixture
def world(behind: tuple[ApacheKafka, Proxy]) -> Iterator[HandOverWorld]:
    kafka, proxy = behind
    with ExitStack() as started:
        try:
            yield HandOverWorld(kafka, proxy, started)
        finally:
            proxy.heal()


@pytest.mark.parametrize("verdict", [Verdict.CUT, pytest.param(Verdict.UNANSWERED, marks=pytest.mark.full)])
def test_a_commit_that_is_not_acknowledged_delays_the_hand_over(
    world: HandOverWorld, verdict: Verdict, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offset_committer, "COMMIT_TIMEOUT_MS", 1_000)  # 5 s, several times in one boundary
    world.proxy.fail(OFFSET_COMMIT, verdict)
    before = world.one.read
    world.produce()
    world.one.trigger()
    assert world.proxy.seen[OFFSET_COMMIT, verdict] > 1, "it is tried again"
    world.assert_not_handed_over()
    assert world.one.read == before, "what the group does not know of does not go on"
    world.proxy.heal()
    world.assert_handed_over(world.two)


def test_a_commit_while_the_group_rebalances_delays_the_hand_over(world: HandOverWorld) -> None:
    # 1. A generation asks for P. 2. A third query joins, and the leader's assignment is on its way. 3. The boundary
    # commits P in the new generation: REBALANCE_IN_PROGRESS.
    world.proxy.fail(SYNC_GROUP, Verdict.HELD)
    three = world.query("three")
    wait_for(lambda: world.one.runtime.describe().state == "CompletingRebalance", "the leader's turn", 60)
    world.one.trigger()
    world.assert_not_handed_over()
    assert world.committed() == [10] * PARTITIONS, "refused"
    world.proxy.heal()
    world.assert_handed_over(world.two, three)


def test_a_coordinator_that_dies_at_the_hand_over_delays_it(
    world: HandOverWorld, caplog: pytest.LogCaptureFixture
) -> None:
    node = world.kafka.nodes[0]
    node.kill()
    with ThreadPoolExecutor(1) as pool, caplog.at_level(logging.WARNING, "spark_kgroup.wire.brokers"):
        boundary = pool.submit(world.one.trigger)
        try:
            wait_for(lambda: "Trying again" in caplog.text, "the boundary to find no coordinator", 60)
            assert not boundary.done()
            world.assert_not_handed_over()
        finally:
            node.restart()
        boundary.result(120)
    world.assert_handed_over(world.two)
