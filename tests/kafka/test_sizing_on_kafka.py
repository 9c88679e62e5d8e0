"""Six seats, then three, then five, on a real Kafka with data in flight: no step waits for a session timeout."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from uuid import uuid4

import pytest
from harness.kafka import produce
from harness.offsets import lag
from harness.runtime import options_of, settings_of
from harness.sharing import Sharing
from harness.waiting import wait_for

from pyspark_kgroup.driver.boundary.boundary import Boundary
from pyspark_kgroup.driver.boundary.context import BoundaryContext
from pyspark_kgroup.offsets.checkpoint import EMPTY, Checkpoint
from pyspark_kgroup.offsets.earlier_runs import owned_by_seat
from pyspark_kgroup.offsets.plan import ranges_by_seat
from spark_kgroup.model import CLASSIC, CONSUMER, TopicPartition
from spark_kgroup.runtime.thread import GroupRuntime
from spark_kgroup.testing import ApacheKafka

PARTITIONS = 12
SESSION_TIMEOUT_MS = 300_000


class Query:
    """One query over its restarts: each batch is done as soon as it is planned."""

    def __init__(self, kafka: ApacheKafka) -> None:
        self.server = kafka.bootstrap_servers
        self.topic = f"topic-{uuid4().hex[:8]}"
        kafka.create_topic(self.topic, partitions=PARTITIONS)
        self.sent = 0
        self.done: Checkpoint = EMPTY
        self.read: dict[TopicPartition, list[tuple[int, int]]] = {}

    @contextmanager
    def run(self, members: int, *, bounded: bool = False, protocol: str = CLASSIC) -> Iterator[None]:
        options = options_of(self.server, self.topic, "job", members)
        settings = settings_of(options)
        settings = replace(
            settings,
            protocol=replace(settings.protocol, name=protocol, session_timeout_ms=SESSION_TIMEOUT_MS),
            work=replace(settings.work, previously_owned=owned_by_seat(self.done, options.group_id)),
        )
        with GroupRuntime(settings) as self.runtime:
            self.boundary = Boundary(BoundaryContext.of(self.runtime, options), bounded=bounded)
            yield

    def produce(self, each: int) -> None:
        produce(self.server, self.topic, each * PARTITIONS, partitions=PARTITIONS, first=self.sent)
        self.sent += each * PARTITIONS

    def trigger(self) -> bool:
        """Plan a batch, done at once. Returns whether there was one."""
        before, self.done = self.done, self.boundary.advance(self.done)
        for ranges in ranges_by_seat(before, self.done).values():
            for tp, span in ranges.items():
                self.read.setdefault(tp, []).append(span)
        return self.done != before

    def drain(self) -> None:
        def known() -> bool:
            self.trigger()
            return lag(self.server, f"of-{self.topic}", self.topic) == 0

        wait_for(known, "the group to know all", 60)

    @property
    def shares(self) -> dict[str, set[TopicPartition]]:
        return {seat.instance_id: set(seat.owned_since) for seat in self.runtime.view().seats}

    def assert_read_once(self) -> None:
        for tp, spans in self.read.items():
            assert [a for a, _ in spans] == [0, *(b for _, b in spans[:-1])], f"{tp}: {spans}"
        assert sum(spans[-1][1] for spans in self.read.values()) == self.sent


def test_a_query_restarted_with_fewer_and_then_more_seats_reads_each_record_once(apache_kafka: ApacheKafka) -> None:
    query = Query(apache_kafka)
    with query.run(6):
        query.produce(10)
        query.drain()
        query.produce(10)
        wait_for(query.trigger, "a batch of the second half", 60)
    query.assert_read_once()  # and of the second half the group does not know yet
    assert lag(query.server, f"of-{query.topic}", query.topic) == 10 * PARTITIONS
    query.produce(10)
    began = time.monotonic()
    with query.run(3, bounded=True):  # AvailableNow: records that the first boundary does not see are not read
        query.trigger()
        took_s = time.monotonic() - began
        print(f"three seats own all after {took_s:.1f} s")
        assert len(query.done.owned) == PARTITIONS
        while query.trigger():
            pass
        query.assert_read_once()
        assert {name: len(share) for name, share in query.shares.items()} == {"job-0": 4, "job-1": 4, "job-2": 4}
        assert {m.instance_id for m in query.runtime.describe().members} == {"job-0", "job-1", "job-2"}
        assert took_s < SESSION_TIMEOUT_MS / 1000 / 5
        query.drain()
        before = query.shares
    query.produce(10)
    with query.run(5):

        def five_have_a_share() -> bool:
            query.trigger()
            return all(query.shares.values()) and query.runtime.view().settled

        wait_for(five_have_a_share, "five seats to have a share", 60)
        query.produce(10)
        query.drain()
        assert sorted(len(share) for share in query.shares.values()) == [2, 2, 2, 3, 3]
        stayed = sum(len(before[name] & query.shares[name]) for name in before)
        assert stayed == PARTITIONS - 4, "two new seats need two partitions each"
    query.assert_read_once()


@pytest.mark.parametrize("protocol", [CLASSIC, CONSUMER])
def test_seats_that_join_and_leave_while_the_query_runs_cost_one_rebalance_each_time(
    apache_kafka: ApacheKafka, protocol: str
) -> None:
    """It takes a partition only after its owner let go (KIP-429): two generations for any number of seats."""
    query = Query(apache_kafka)
    generations_max = 2 if protocol == CLASSIC else 2 * 4  # a coordinator has an epoch for each seat that comes or goes
    with query.run(2, protocol=protocol):

        def all_have_a_share(seats: int) -> bool:
            query.trigger()
            shares = query.shares
            return len(shares) == seats and all(shares.values()) and query.runtime.view().settled

        query.produce(10)
        query.drain()
        generation, before = query.runtime.view().seats[0].identity.generation, query.shares
        query.runtime.add_seats([f"job-{number}" for number in range(2, 6)])
        query.produce(10)
        wait_for(lambda: all_have_a_share(6), "six seats to have a share", 60)
        query.produce(10)
        query.drain()
        grown = query.runtime.view().seats[0].identity.generation
        assert grown - generation <= generations_max
        assert {len(share) for share in query.shares.values()} == {2}
        assert all(query.shares[name] <= before[name] for name in before), "nothing moves between the two"
        kept = query.shares
        query.boundary.let_leave(["job-3", "job-4", "job-5"])
        query.produce(10)
        wait_for(lambda: all_have_a_share(3), "three seats to have all", 60)
        query.drain()
        assert {m.instance_id for m in query.runtime.describe().members} == {"job-0", "job-1", "job-2"}
        assert query.runtime.view().seats[0].identity.generation - grown <= generations_max
        assert all(kept[name] <= query.shares[name] for name in query.shares), "nobody who stays loses anything"
    query.assert_read_once()


def test_a_member_that_joins_before_old_seats_leave_reads_no_record_of_their_batch(apache_kafka: ApacheKafka) -> None:
    """1. A batch is done and not committed. 2. Three of six seats are back, into a stable group. 3. A member joins."""
    query = Query(apache_kafka)
    group = f"of-{query.topic}"
    with query.run(6):
        query.produce(10)
        query.trigger()
    assert lag(query.server, group, query.topic) == 10 * PARTITIONS
    with query.run(3):
        assert query.runtime.wait_until(lambda view: view.settled, 60_000).settled
        with Sharing(query.server, group, query.topic) as peer:
            wait_for(lambda: query.runtime.describe().state == "PreparingRebalance", "the member to join", 60)
            query.trigger()
            wait_for(lambda: bool(peer.owned), "the member to have a share", 60)
            query.produce(10)
            wait_for(lambda: {p for p, _ in peer.rows} >= peer.owned, "the member to read", 60)
    assert {offset for _, offset in peer.rows} <= set(range(10, 20))


@pytest.mark.parametrize(("cap_seats_to_partitions", "expected"), [(True, 4), (False, 6)])
def test_seats_without_a_partition_only_where_they_were_asked_for(
    apache_kafka: ApacheKafka, cap_seats_to_partitions: bool, expected: int
) -> None:
    topic = f"topic-{uuid4().hex[:8]}"
    apache_kafka.create_topic(topic, partitions=4)
    options = options_of(apache_kafka.bootstrap_servers, topic, "job", 6)
    with GroupRuntime(replace(settings_of(options), cap_seats_to_partitions=cap_seats_to_partitions)) as runtime:
        assert len(Boundary(BoundaryContext.of(runtime, options), bounded=False).advance(EMPTY).owned) == 4
        seats = [seat.instance_id for seat in runtime.view().seats]
        assert seats == [f"job-{index}" for index in range(expected)]
