"""The reader of a range: our own one first and librdkafka for the rest, or librdkafka alone."""

import time
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pytest
from harness.decoder import built_decoder
from harness.fetch_broker import FetchBroker, answering, partition
from harness.record_batches import Batch, Record

from pyspark_kgroup.executor.native.decode import FallbackToLibrdkafka
from pyspark_kgroup.executor.read import range_reader
from pyspark_kgroup.executor.read.reader import read_ranges
from pyspark_kgroup.shared.arrow import arrow_schema
from pyspark_kgroup.shared.tickets import OffsetRange, ReadSettings
from spark_kgroup.model import TopicPartition


@pytest.fixture
def reasons_given() -> dict[TopicPartition, str]:
    """Partition -> the reason why librdkafka is asked for it."""
    return {}


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch, reasons_given: dict[TopicPartition, str]) -> list[OffsetRange]:
    """The ranges that librdkafka is asked for. Its reader is not run: it needs a whole cluster (tests/kafka has it)."""
    built_decoder()
    asked: list[OffsetRange] = []

    def librdkafka(
        ranges: Sequence[OffsetRange],
        _: ReadSettings,
        *,
        reasons: Mapping[TopicPartition, FallbackToLibrdkafka],
        quiet_since_s: float,
    ) -> Iterator[pa.RecordBatch]:
        asked.extend(ranges)
        reasons_given.update({partition: why.reason for partition, why in reasons.items()})
        assert quiet_since_s <= time.monotonic()
        nothing = arrow_schema(False).empty_table().to_batches()
        yield from nothing

    monkeypatch.setattr(range_reader, "read_with_librdkafka", librdkafka)
    return asked


def log(first: int) -> bytes:
    return Batch([Record(offset) for offset in range(first, first + 10)]).encoded()


def offsets(ranges: Sequence[OffsetRange], settings: ReadSettings) -> list[int]:
    return [offset for batch in read_ranges(ranges, settings) for offset in batch["offset"].to_pylist()]


def test_ordinary_ranges_are_read_without_librdkafka(left: list[OffsetRange]) -> None:
    with FetchBroker(answering(lambda _, offset: log(offset))) as broker:
        found = offsets([OffsetRange("t", 0, 0, 20, broker.leader())], ReadSettings(consumer_config={}))
    assert found == list(range(20))
    assert left == []


def test_librdkafka_reads_on_where_our_own_reader_met_an_unusual_answer(
    left: list[OffsetRange], reasons_given: dict[TopicPartition, str]
) -> None:
    with FetchBroker(answering(lambda n, offset: log(offset) if offset < 10 else partition(n, error=6))) as broker:
        whole = OffsetRange("t", 0, 0, 20, broker.leader())
        assert offsets([whole], ReadSettings(consumer_config={})) == list(range(10))
    assert left == [whole._replace(start_offset=10)]
    assert reasons_given == {TopicPartition("t", 0): "t-0: NOT_LEADER_OR_FOLLOWER"}


def test_librdkafka_alone_reads_everything(left: list[OffsetRange]) -> None:
    with FetchBroker(answering(lambda _, offset: log(offset))) as broker:
        whole = OffsetRange("t", 0, 0, 20, broker.leader())
        assert offsets([whole], ReadSettings(consumer_config={}, reader="librdkafka")) == []
        assert broker.fake.connections == 0
    assert left == [whole]
