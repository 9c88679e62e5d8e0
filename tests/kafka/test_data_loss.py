"""Logs that no longer have the offsets asked for, on a real Kafka: an error that says all, or a skip with a warning."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

import pyarrow as pa
import pytest
from confluent_kafka import ElectionType, KafkaException
from confluent_kafka import TopicPartition as AssignedPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    OffsetSpec,
    PartitionMetadata,
    ResourceType,
)
from harness import offsets, sidecars
from harness.kafka import MakeTopic, produce
from harness.query import Query
from harness.sidecars import read_on, sidecars_of, sleeping_executor
from harness.waiting import wait_for

from pyspark_kgroup.driver.registry.registry import Registry
from pyspark_kgroup.driver.registry.seat_bindings import Scan
from pyspark_kgroup.errors import DataLoss
from pyspark_kgroup.executor.read import unread_ranges
from pyspark_kgroup.executor.read.range_reader import read_with_librdkafka
from pyspark_kgroup.options.parser import parse
from pyspark_kgroup.shared.tickets import OffsetRange, Position, ReadSettings
from spark_kgroup.testing import ApacheKafka


def delete_records(kafka: ApacheKafka, topic: str, partition: int, before: int) -> None:
    where = AssignedPartition(topic, partition, before)
    kafka.admin.delete_records([where])[where].result(30)


# ----------------------------------------------------------------------------------------------- executors


class Reads(NamedTuple):
    ranges: tuple[OffsetRange, ...]
    settings: ReadSettings

    def failing(self, fail: bool) -> "Reads":
        return self._replace(settings=replace(self.settings, fail_on_data_loss=fail))


def seat(kafka: ApacheKafka, ranges: Sequence[OffsetRange], *, fail: bool) -> Reads:
    required = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "kafka.group.id": "g", "subscribe": "t"}
    config = parse({**required, "kafka.topic.metadata.propagation.max.ms": "500"}).consumer_config()
    settings = ReadSettings(consumer_config=config, fail_on_data_loss=fail, stall_timeout_ms=60_000)
    return Reads(tuple(ranges), settings)


Read = Callable[[Reads], Iterable[pa.RecordBatch]]


@pytest.fixture(params=["a worker", "a sidecar"])
def batches_of(request: pytest.FixtureRequest, apache_kafka: ApacheKafka) -> Iterator[Read]:
    """How executors read: each loss is met in both ways, and answered within 60 s."""
    if request.param == "a worker":
        yield lambda reads: read_with_librdkafka(*reads)
        return
    with (
        sleeping_executor() as executor,
        sidecars.Query(apache_kafka.bootstrap_servers, "t", {"g-0": []}, leaders=lambda *_: {}) as query,
    ):

        def read_served(reads: Reads) -> Iterator[pa.RecordBatch]:
            query.settings = reads.settings
            owned = [Position(r.topic, r.partition, r.end_offset, "first") for r in reads.ranges]
            for ticket in query.plan_reads({"g-0": reads.ranges}, {"g-0": owned}):
                yield from read_on(executor, ticket)

        yield read_served
        assert sidecars_of(query, executor), "no worker asked one"


def read(batches: Iterable[pa.RecordBatch]) -> dict[tuple[str, int], list[int]]:
    """(topic, partition) -> the offsets read, in order."""
    found: dict[tuple[str, int], list[int]] = {}
    for batch in batches:
        for row in batch.select(["topic", "partition", "offset"]).to_pylist():
            found.setdefault((row["topic"], row["partition"]), []).append(row["offset"])
    return found


def assert_loss(
    batches_of: Read,
    reads: Reads,
    message: str,
    left: dict[tuple[str, int], list[int]],
    log: pytest.LogCaptureFixture,
) -> None:
    """One error that says all, or the rows that are `left` and a warning that says the same."""
    with pytest.raises(DataLoss, match=message + r".+failOnDataLoss=false.+new checkpointLocation"):
        read(batches_of(reads.failing(True)))
    with log.at_level(logging.WARNING, "pyspark_kgroup.executor.read"):
        assert read(batches_of(reads.failing(False))) == left
    (warning,) = [record.getMessage() for record in log.records if "Data loss" in record.getMessage()]
    assert message.replace("\\", "") in warning


def test_records_that_are_deleted_before_they_are_read(
    apache_kafka: ApacheKafka, new_topic: MakeTopic, batches_of: Read, caplog: pytest.LogCaptureFixture
) -> None:
    topic = new_topic(2)
    produce(apache_kafka.bootstrap_servers, topic, 200, partitions=2)
    delete_records(apache_kafka, topic, 0, 40)
    reads = seat(apache_kafka, [OffsetRange(topic, 0, 10, 90), OffsetRange(topic, 1, 0, 100)], fail=True)
    message = f"Offsets 10 to 89 of {topic}-0 were still to be read, but the log has 40 to 99"
    left = {(topic, 0): list(range(40, 90)), (topic, 1): list(range(100))}
    assert_loss(batches_of, reads, message, left, caplog)


def test_all_records_of_a_range_are_deleted(
    apache_kafka: ApacheKafka, new_topic: MakeTopic, batches_of: Read, caplog: pytest.LogCaptureFixture
) -> None:
    topic = new_topic(1)
    produce(apache_kafka.bootstrap_servers, topic, 100, partitions=1)
    delete_records(apache_kafka, topic, 0, 100)
    reads = seat(apache_kafka, [OffsetRange(topic, 0, 10, 90)], fail=True)
    message = f"Offsets 10 to 89 of {topic}-0 were still to be read, but the log is empty and ends at 100"
    assert_loss(batches_of, reads, message, {}, caplog)


@pytest.fixture
def believed_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a second consumer has asked anew: 10 s and 30 s else."""
    monkeypatch.setattr(unread_ranges, "END_BELOW_MS", 1_000)
    monkeypatch.setattr(unread_ranges, "TOPIC_GONE_AFTER_MS", 1_000)
    monkeypatch.setattr(unread_ranges, "_LOOKS_MIN", 2)


@pytest.mark.usefixtures("believed_soon")
@pytest.mark.parametrize("first", [3, 5, 10])
def test_a_log_that_ends_before_the_range_does(
    apache_kafka: ApacheKafka, new_topic: MakeTopic, batches_of: Read, caplog: pytest.LogCaptureFixture, first: int
) -> None:
    topic = new_topic(1)
    produce(apache_kafka.bootstrap_servers, topic, 5, partitions=1)
    reads = seat(apache_kafka, [OffsetRange(topic, 0, first, 20)], fail=True)
    message = f"Offsets {max(first, 5)} to 19 of {topic}-0 were still to be read, but the log has 0 to 4"
    left = {(topic, 0): list(range(first, 5))} if first < 5 else {}
    assert_loss(batches_of, reads, message, left, caplog)


@pytest.mark.usefixtures("believed_soon")
def test_a_topic_that_is_deleted_does_not_hold_up_other_topics(
    apache_kafka: ApacheKafka, new_topic: MakeTopic, batches_of: Read, caplog: pytest.LogCaptureFixture
) -> None:
    gone, there = new_topic(1), new_topic(1)
    for topic in (gone, there):
        produce(apache_kafka.bootstrap_servers, topic, 50, partitions=1)
    apache_kafka.delete_topic(gone)
    reads = seat(apache_kafka, [OffsetRange(gone, 0, 10, 50), OffsetRange(there, 0, 10, 50)], fail=True)
    message = f"Offsets 10 to 49 of {gone}-0 were still to be read, but the partition does not exist any more"
    assert_loss(batches_of, reads, message, {(there, 0): list(range(10, 50))}, caplog)


@pytest.mark.usefixtures("believed_soon")
def test_a_partition_that_its_new_topic_does_not_have(
    apache_kafka: ApacheKafka, new_topic: MakeTopic, batches_of: Read, caplog: pytest.LogCaptureFixture
) -> None:
    topic = new_topic(1)
    produce(apache_kafka.bootstrap_servers, topic, 50, partitions=1)
    reads = seat(apache_kafka, [OffsetRange(topic, 0, 10, 50), OffsetRange(topic, 1, 10, 50)], fail=True)
    message = f"Offsets 10 to 49 of {topic}-1 were still to be read, but the partition does not exist any more"
    assert_loss(batches_of, reads, message, {(topic, 0): list(range(10, 50))}, caplog)


# ------------------------------------------------------------------------------------- driver and executors


def failure_of(query: Query) -> str:
    """Trigger until the query fails for data loss, and return its message."""

    def failed() -> str:
        try:
            query.settle()
        except DataLoss as loss:
            return str(loss)
        return ""

    return wait_for(failed, "data loss to be noticed", 30)


def again(query: Query, **more: str) -> Query:
    """The same query in its next run, with some options changed."""
    query.options |= more
    return query


def committed(kafka: ApacheKafka, group: str, topic: str) -> int | None:
    """The group's committed offset of partition 0, None if it has none."""
    # With a new client: one that knew a coordinator that died may wait for it in vain.
    offset = offsets.committed(kafka.bootstrap_servers, group, topic, 1)[0]
    return offset if offset >= 0 else None


def test_a_query_whose_records_are_deleted(apache_kafka: ApacheKafka, new_topic: MakeTopic, group: str) -> None:
    topic, server = new_topic(1), apache_kafka.bootstrap_servers
    with Query(apache_kafka.bootstrap_servers, group, topic) as query:
        produce(server, topic, 10, partitions=1)
        query.read(topic, 10)
        produce(server, topic, 90, partitions=1, first=10)
        delete_records(apache_kafka, topic, 0, 40)
        assert f"Offsets 10 on of {topic}-0 were to be read next, but the log has 40 to 99" in failure_of(query)
        assert committed(apache_kafka, group, topic) == 10
    with again(query, failOnDataLoss="false"):
        assert query.read(topic, 70) == [*range(10), *range(40, 100)]
        query.settle()
        assert committed(apache_kafka, group, topic) == 100
    with again(query, failOnDataLoss="true"):  # one start with false is enough
        produce(server, topic, 5, partitions=1, first=100)
        assert query.read(topic, 75)[-5:] == list(range(100, 105))


def test_a_query_whose_topic_is_deleted_and_comes_back(
    apache_kafka: ApacheKafka, new_topic: MakeTopic, group: str
) -> None:
    gone, there, server = new_topic(2), new_topic(1), apache_kafka.bootstrap_servers
    with Query(apache_kafka.bootstrap_servers, group, f"{gone},{there}") as query:
        produce(server, gone, 20, partitions=2)
        produce(server, there, 10, partitions=1)
        query.read(gone, 10)
        query.read(there, 10)
        query.settle()
        apache_kafka.delete_topic(gone)
        produce(server, there, 5, partitions=1, first=10)
        message = failure_of(query)
        assert f"Offsets 10 on of {gone}-0 were to be read next, but the partition does not exist any more" in message
        assert "1 more partitions" in message
        wait_for(lambda: committed(apache_kafka, group, gone) is None, "Kafka to forget the group's offset")
    with again(query, failOnDataLoss="false"):
        assert query.read(there, 15) == list(range(15))
        apache_kafka.create_topic(gone, 2)
        produce(server, gone, 60, partitions=2, first=1000)
        assert query.read(gone, 40) == [*range(0, 20, 2), *range(1000, 1060, 2)]
        query.settle()
        assert committed(apache_kafka, group, gone) == 30
    with again(query, failOnDataLoss="true"):
        produce(server, gone, 2, partitions=2, first=2000)
        assert query.read(gone, 41)[-1] == 2000


@pytest.mark.parametrize(("partitions", "records"), [(2, 5), (2, 50), (1, 50)], ids=["fewer", "more", "one partition"])
def test_a_query_whose_topic_is_created_anew(
    apache_kafka: ApacheKafka, new_topic: MakeTopic, group: str, partitions: int, records: int
) -> None:
    """It is noticed by the topic id, not by offsets: the new topic may have a record at the query's position."""
    topic, server = new_topic(2), apache_kafka.bootstrap_servers
    with Query(apache_kafka.bootstrap_servers, group, topic) as query:
        produce(server, topic, 40, partitions=2)
        query.read(topic, 20, 1)
        query.read(topic, 20)
        query.settle()
        renew(apache_kafka, topic, partitions, records)
        assert f"Offsets 20 on of {topic}-0 were to be read next, but its topic is another one now" in failure_of(query)
    with again(query, failOnDataLoss="false"):
        assert query.read(topic, 20 + records)[20:] == list(range(1000, 1000 + partitions * records, partitions))
        query.settle()
        assert committed(apache_kafka, group, topic) == records


def renew(kafka: ApacheKafka, topic: str, partitions: int, records: int) -> None:
    """Delete a topic and create another one with so many records in each partition, from value 1000 on."""
    kafka.delete_topic(topic)
    kafka.create_topic(topic, partitions)
    produce(kafka.bootstrap_servers, topic, records * partitions, partitions=partitions, first=1000)


def test_a_batch_that_was_planned_for_a_topic_that_is_another_one_at_its_replay(
    apache_kafka: ApacheKafka, new_topic: MakeTopic, group: str
) -> None:
    topic, server = new_topic(1), apache_kafka.bootstrap_servers
    with Query(apache_kafka.bootstrap_servers, group, topic) as query:
        produce(server, topic, 10, partitions=1)
        query.read(topic, 10)
        query.settle()
        produce(server, topic, 10, partitions=1, first=10)
        wait_for(query.plan, "a batch 10..20")
    renew(apache_kafka, topic, 1, 50)
    with again(query), pytest.raises(DataLoss, match=f"Offsets 10 to 19 of {topic}-0 .+another one now"):
        query.run()
    with again(query, failOnDataLoss="false"):
        query.run()
        assert len(query.rows[topic, 0]) == 10
        assert query.read(topic, 60)[10:] == list(range(1000, 1050))


# ----------------------------------------------------------------------------- tests that need brokers of their own


on_three_nodes = pytest.mark.xdist_group("together-faults_of_three_nodes")


def offset_of(kafka: ApacheKafka, topic: str, place: OffsetSpec) -> int:
    where = AssignedPartition(topic, 0)
    offset: int = kafka.admin.list_offsets({where: place})[where].result(30).offset
    return offset


@on_three_nodes
def test_retention_takes_unread_records(three_nodes: ApacheKafka, group: str) -> None:
    topic, server = f"old-{group}", three_nodes.bootstrap_servers
    three_nodes.create_topic(topic, 1, 1)
    with Query(three_nodes.bootstrap_servers, group, topic) as query:
        produce(server, topic, 10, partitions=1)
        query.read(topic, 10)
        produce(server, topic, 90, partitions=1, first=10)
        keep_for(three_nodes, topic, "1")
        earliest = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
        wait_for(lambda: offset_of(three_nodes, topic, earliest) == 100, "all records to expire")
        keep_for(three_nodes, topic, "-1")
        message = failure_of(query)
        assert f"Offsets 10 on of {topic}-0 were to be read next, but the log is empty and ends at 100" in message
    with again(query, failOnDataLoss="false"):
        produce(server, topic, 5, partitions=1, first=100)
        assert query.read(topic, 15) == [*range(10), *range(100, 105)]


def keep_for(kafka: ApacheKafka, topic: str, milliseconds: str) -> None:
    entry = ConfigEntry("retention.ms", milliseconds, incremental_operation=AlterConfigOpType.SET)
    altered = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    kafka.admin.incremental_alter_configs([altered])[altered].result(30)


@pytest.fixture
def tags(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The log tags of planned batches, each that differs from the one before."""
    tags: list[str] = []
    plan = Registry.plan

    def listening(
        registry: Registry,
        batch: str,
        reads: Mapping[str, Sequence[Sequence[OffsetRange]]],
        owned: Mapping[str, Sequence[Position]],
    ) -> Scan:
        tags.extend(at.tag for some in owned.values() for at in some if tags[-1:] != [at.tag])
        return plan(registry, batch, reads, owned)

    monkeypatch.setattr(Registry, "plan", listening)
    return tags


@on_three_nodes
def test_an_unclean_leader_election_truncates_the_log(three_nodes: ApacheKafka, group: str, tags: list[str]) -> None:
    """1. Only the leader has offsets 60..100, and we have read them. 2. It dies. 3. A replica that lacks them leads."""
    kafka, topic, where = three_nodes, f"cut-{group}", AssignedPartition(f"cut-{group}", 0)
    kafka.create_topic(topic, 1, replication_factor=2)
    replicas = partition(kafka, topic).replicas  # the preferred leader first
    leader, follower = (next(node for node in kafka.nodes if node.node_id == replica) for replica in replicas)
    produce(kafka.bootstrap_servers, topic, 60, partitions=1)
    with Query(kafka.bootstrap_servers, group, topic) as query:
        query.read(topic, 60)
        follower.kill()
        wait_for(lambda: partition(kafka, topic).isrs == [leader.node_id], "the follower to be out of sync", 60)
        produce(kafka.bootstrap_servers, topic, 40, partitions=1, first=60)
        query.read(topic, 100)
        query.settle()
        wait_for(lambda: committed(kafka, group, topic) == 100, "the commit of 100")
        leader.kill()
        follower.restart()

        def leads() -> bool:
            # A new client each time: one that took the dead node for the controller sticks to it.
            admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "socket.timeout.ms": 5_000})
            with suppress(KafkaException):  # refused until the old leader counts as dead
                admin.elect_leaders(ElectionType.UNCLEAN, [where]).result(30)
            return partition(kafka, topic).leader == follower.node_id

        wait_for(leads, "the follower to lead", 60, every_s=0.5)
        error = failure_of(query)
        assert f"Offsets 100 on of {topic}-0 were to be read next, but the log has 0 to 59: it was truncated" in error
    with again(query, failOnDataLoss="false"):
        wait_for(lambda: query.settle() or committed(kafka, group, topic) == 60, "the group's offset to go back")
        produce(kafka.bootstrap_servers, topic, 5, partitions=1, first=1000)
        assert query.read(topic, 105)[100:] == list(range(1000, 1005))
        query.settle()
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        assert committed(kafka, group, topic) == offset_of(kafka, topic, latest) == 65
    assert tags[0] != tags[-1], "what was fetched ahead under the old leader is not what the new one has"


def partition(kafka: ApacheKafka, topic: str) -> PartitionMetadata:
    return kafka.admin.list_topics(topic, 30).topics[topic].partitions[0]
