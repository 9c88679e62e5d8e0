"""Ranges read by our own reader and by librdkafka: one judges the other."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from harness.waiting import wait_for
from pyspark_kgroup.executor.native.read_natively import read_natively
from pyspark_kgroup.executor.read.range_reader import read_with_librdkafka
from pyspark_kgroup.options.parser import SourceOptions, parse
from pyspark_kgroup.options.security import driver_settings
from pyspark_kgroup.shared.arrow import arrow_schema
from pyspark_kgroup.shared.tickets import Leader, OffsetRange, ReadSettings
from spark_kgroup.wire.address import parse_bootstrap
from spark_kgroup.wire.cluster import Cluster
from spark_kgroup.wire.security.secured import load_security

STALL_MS = 30_000


def reading(options: Mapping[str, str], topic: str) -> tuple[ReadSettings, dict[int, Leader]]:
    """How a query with `options` reads `topic`, and the leaders of its partitions."""
    checked = parse({"kafka.group.id": "reads", "subscribe": topic, **options})
    settings = ReadSettings(
        consumer_config=checked.consumer_config(),
        include_headers=checked.include_headers,
        stall_timeout_ms=STALL_MS,
    )
    return settings, leaders_of(checked, topic)


def leaders_of(checked: SourceOptions, topic: str) -> dict[int, Leader]:
    """The leaders of the partitions of `topic`, by metadata asked for with these options."""

    async def look() -> dict[int, Leader]:
        security = load_security(driver_settings(checked.security))
        cluster = Cluster(parse_bootstrap(checked.bootstrap_servers), client_id="test", security=security)
        try:
            found = (await cluster.metadata([topic])).topics[topic]
        finally:
            await cluster.close()
        assert found.topic_id is not None
        return {p: Leader(*leader, topic_id=found.topic_id.hex) for p, leader in found.leaders.items()}

    return asyncio.run(look())


def whole(bootstrap: str, topic: str, leaders: Mapping[int, Leader]) -> list[OffsetRange]:
    """Ranges of all records that the topic has now."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "watermarks"})
    try:
        ends = {p: _range(consumer, TopicPartition(topic, p)) for p in leaders}
    finally:
        consumer.close()
    return [OffsetRange(topic, p, *ends[p], leader) for p, leader in leaders.items()]


def _range(consumer: Consumer, partition: TopicPartition) -> tuple[int, int]:
    """The offsets that the log has. A busy broker may lose its session with the controller, and lead again at once."""

    def look() -> tuple[int, int] | None:
        try:
            found: tuple[int, int] = consumer.get_watermark_offsets(partition, 30)
        except KafkaException as problem:
            if problem.args[0].code() != KafkaError.NOT_LEADER_FOR_PARTITION:
                raise
            return None
        return found

    return wait_for(look, f"the leader of {partition}")


def natively(
    ranges: Sequence[OffsetRange], settings: ReadSettings, on_batches: Callable[[int], None] = lambda _: None
) -> tuple[pa.Table, Sequence[OffsetRange]]:
    """The rows in the order of their offsets, and the ranges that were left to librdkafka.

    `on_batches` is told how many batches have come.
    """
    batches: list[pa.RecordBatch] = []
    left: list[Sequence[OffsetRange]] = []

    def drain() -> None:
        reader = read_natively(ranges, settings)
        while True:
            try:
                batches.append(next(reader))
                on_batches(len(batches))
            except StopIteration as done:
                left.append(done.value.ranges)
                return

    drain()
    return _in_order(batches, settings), left[0]


def by_both(
    ranges: Sequence[OffsetRange], settings: ReadSettings, on_batches: Callable[[int], None] = lambda _: None
) -> pa.Table:
    """The rows, which both readers see alike, ours without librdkafka's help."""
    ours, left = natively(ranges, settings, on_batches)
    assert left == (), "left to librdkafka"
    theirs = _in_order(list(read_with_librdkafka(ranges, settings)), settings)
    assert ours.equals(theirs), f"{ours.num_rows} rows natively, {theirs.num_rows} by librdkafka"
    return ours


def _in_order(batches: Sequence[pa.RecordBatch], settings: ReadSettings) -> pa.Table:
    """The rows in the order of their offsets. Fails if those of a partition do not come in that order by themselves."""
    table = pa.Table.from_batches(batches, schema=arrow_schema(settings.include_headers))
    table.validate(full=True)
    partitions, offsets = table["partition"].to_pylist(), table["offset"].to_pylist()
    last: dict[int, int] = {}
    for partition, offset in zip(partitions, offsets, strict=True):
        assert last.get(partition, -1) < offset, f"offset {offset} after {last[partition]}"
        last[partition] = offset
    return table.sort_by([("topic", "ascending"), ("partition", "ascending"), ("offset", "ascending")]).combine_chunks()
