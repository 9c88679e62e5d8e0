"""The broker dies in the middle of a read: the read waits for it, says so once, and goes on where it was."""

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from harness.kafka import produce
from harness.waiting import wait_for

from pyspark_kgroup.executor.read.range_reader import read_with_librdkafka
from pyspark_kgroup.options.parser import parse
from pyspark_kgroup.shared.tickets import OffsetRange, ReadSettings
from pyspark_kgroup.source import DefaultSource
from pyspark_kgroup.stream import KgroupStreamReader
from spark_kgroup.errors import WireError
from spark_kgroup.testing import ApacheKafka

RECORDS = 20_000


def test_a_read_goes_on_where_it_was_after_an_outage(
    apache_kafka_factory: Callable[..., ApacheKafka], caplog: pytest.LogCaptureFixture
) -> None:
    kafka = apache_kafka_factory()
    kafka.create_topic("large", partitions=1)
    produce(kafka.bootstrap_servers, "large", RECORDS, partitions=1, size=1_000)
    reading = read_with_librdkafka([OffsetRange("large", 0, 0, RECORDS)], little_ahead(kafka.bootstrap_servers))
    with caplog.at_level(logging.WARNING, "pyspark_kgroup.executor.read"):
        offsets = next(reading)["offset"].to_pylist()
        kafka.nodes[0].kill()
        assert len(offsets) < RECORDS / 2, "the better part is still to be read"
        with ThreadPoolExecutor(1) as executor:
            rest = executor.submit(list, reading)
            wait_for(lambda: caplog.records or rest.done(), "a word about it")
            kafka.nodes[0].restart()
            offsets += [offset for batch in rest.result(120) for offset in batch["offset"].to_pylist()]
    assert offsets == list(range(RECORDS))
    tried = [record for record in caplog.records if "Trying again, for 300 s at most" in record.getMessage()]
    assert len(tried) == 1, "told once; a broker that takes longer to come back makes another warning, of the silence"


def test_a_read_waits_through_an_outage_for_as_long_as_the_option_says(
    apache_kafka_factory: Callable[..., ApacheKafka],
) -> None:
    kafka = apache_kafka_factory()
    kafka.create_topic("small", partitions=1)
    produce(kafka.bootstrap_servers, "small", 10, partitions=1)
    source = DefaultSource(
        {
            "kafka.bootstrap.servers": kafka.bootstrap_servers,
            "kafka.group.id": "group",
            "subscribe": "small",
            "startingOffsets": "earliest",
            "kafka.default.api.timeout.ms": "3000",
        }
    )
    reader = source.streamReader(source.schema())
    assert isinstance(reader, KgroupStreamReader)
    try:
        start = reader.initialOffset()
        end = wait_for(lambda: now if (now := reader.latestOffset(start)) != start else None, "an offset")
        tickets = reader.partitions(start, end)
        kafka.nodes[0].kill()
        began = time.monotonic()
        with pytest.raises(WireError, match=r"`bootstrap\.servers`"):
            reader.latestOffset(end)
        with pytest.raises(WireError, match="No record came for 3 s"):
            list(reader.read(tickets[0]))
        assert 5 <= time.monotonic() - began < 60
    finally:
        reader.stop()


def little_ahead(bootstrap: str) -> ReadSettings:
    """For a consumer that fetches little ahead."""
    options = parse(
        {
            "kafka.bootstrap.servers": bootstrap,
            "kafka.group.id": "unused",
            "subscribe": "large",
            "kafka.queued.max.messages.kbytes": "1024",
            "kafka.queued.min.messages": "100",
        }
    )
    return ReadSettings(consumer_config=options.consumer_config())
