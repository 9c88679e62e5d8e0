"""The buffer of one seat: each record is there once, in order, until it is taken, skipped or dropped."""

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import groupby
from operator import itemgetter

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kgroup.executor.sidecar.prefetch_buffer import PrefetchBuffer
from pyspark_kgroup.shared.arrow import arrow_schema
from spark_kgroup.model import TopicPartition

P0, P1, P2 = (TopicPartition("t", partition) for partition in range(3))
OTHER = TopicPartition("u", 0)

Record = tuple[TopicPartition, int]


def batch(records: Sequence[Record], value: bytes = b"v") -> pa.RecordBatch:
    rows = [
        {
            "key": None,
            "value": value,
            "topic": partition.topic,
            "partition": partition.partition,
            "offset": offset,
            "timestamp": datetime(2026, 1, 1, tzinfo=UTC),
            "timestampType": 0,
        }
        for partition, offset in records
    ]
    return pa.RecordBatch.from_pylist(rows, schema=arrow_schema(include_headers=False))


def add(ahead: PrefetchBuffer, records: Sequence[Record], value: bytes = b"v") -> None:
    """Append the records, each run of one partition as a batch of its own."""
    for partition, run in groupby(records, key=itemgetter(0)):
        ahead.add(batch(list(run), value), partition)


def records(batches: Sequence[pa.RecordBatch]) -> list[Record]:
    return [(TopicPartition(row["topic"], row["partition"]), row["offset"]) for b in batches for row in b.to_pylist()]


def of(partition: TopicPartition, *offsets: int) -> list[Record]:
    return [(partition, offset) for offset in offsets]


@pytest.fixture
def ahead() -> PrefetchBuffer:
    """Spans of three partitions of one topic, from offset 0 on."""
    ahead = PrefetchBuffer()
    for partition in (P0, P1, P2):
        ahead.begin(partition, 0)
    return ahead


def test_taking_returns_records_below_each_end_and_keeps_the_rest_in_order(ahead: PrefetchBuffer) -> None:
    add(ahead, of(P0, 0, 1, 2) + of(P1, 0, 1) + of(P0, 3, 5))
    add(ahead, of(P1, 2, 3))
    assert records(ahead.take({P0: 3, P1: 3})) == of(P0, 0, 1, 2) + of(P1, 0, 1) + of(P1, 2)
    assert ahead.take({P0: 3, P1: 3}) == []
    assert records(ahead.take({P0: 6})) == of(P0, 3, 5)
    assert records(ahead.take({P1: 4})) == of(P1, 3)
    assert ahead.bytes == 0


def test_a_read_that_starts_where_the_last_one_ended_is_served(ahead: PrefetchBuffer) -> None:
    add(ahead, of(P0, 0, 1, 2, 3))
    ahead.take({P0: 2})
    assert ahead.skip(P0, 2)
    assert records(ahead.take({P0: 4})) == of(P0, 2, 3)
    assert ahead.skip(P0, 4)  # everything was taken, and the next read starts there
    assert ahead.next_offset(P0) == 4


def test_records_below_a_reads_start_are_skipped(ahead: PrefetchBuffer) -> None:
    add(ahead, of(P0, 0, 1, 2, 3) + of(P1, 0))
    assert ahead.skip(P0, 2)
    assert records(ahead.take({P0: 9, P1: 9})) == of(P0, 2, 3) + of(P1, 0)


def test_a_start_outside_the_span_cannot_be_served(ahead: PrefetchBuffer) -> None:
    add(ahead, of(P0, 0, 1, 2, 3))
    ahead.take({P0: 2})
    assert not ahead.skip(P0, 1)  # taken already: a retry
    assert not ahead.skip(P0, 5)  # there may be records between
    assert not ahead.skip(OTHER, 0)
    assert records(ahead.take({P0: 4})) == of(P0, 2, 3)


def test_markers_and_compacted_records_move_a_span(ahead: PrefetchBuffer) -> None:
    add(ahead, of(P0, 0))
    ahead.advance(P0, 7)
    ahead.advance(P0, 3)
    ahead.advance(OTHER, 9)
    assert ahead.next_offset(P0) == 7
    assert records(ahead.take({P0: 7})) == of(P0, 0)
    assert ahead.skip(P0, 7)


def test_a_new_span_forgets_the_old_one(ahead: PrefetchBuffer) -> None:
    add(ahead, of(P0, 4, 5) + of(P1, 0))
    ahead.begin(P0, 1)
    add(ahead, of(P0, 1, 2))
    assert records(ahead.take({P0: 9, P1: 9})) == of(P1, 0) + of(P0, 1, 2)


def test_a_dropped_partition_leaves_the_rest(ahead: PrefetchBuffer) -> None:
    add(ahead, of(P0, 0) + of(P1, 0) + of(P0, 1))
    ahead.drop(P0)
    add(ahead, of(P0, 2) + of(P1, 1))  # on its way when it was dropped
    assert set(ahead.partitions) == {P1, P2}
    assert records(ahead.take({P1: 9})) == of(P1, 0) + of(P1, 1)
    assert ahead.bytes == 0


def test_partitions_of_two_topics_with_the_same_number_are_kept_apart(ahead: PrefetchBuffer) -> None:
    ahead.begin(OTHER, 0)
    add(ahead, of(P0, 0) + of(OTHER, 0) + of(OTHER, 1))
    assert records(ahead.take({OTHER: 1})) == of(OTHER, 0)
    assert records(ahead.take({OTHER: 2, P0: 1})) == of(P0, 0) + of(OTHER, 1)


def test_an_offset_that_comes_twice_is_an_error(ahead: PrefetchBuffer) -> None:
    add(ahead, of(P0, 0, 1))
    with pytest.raises(ValueError, match="offset 1 of t-0 came after 1"):
        add(ahead, of(P0, 1, 2))


def test_bytes_count_only_the_records_that_are_left(ahead: PrefetchBuffer) -> None:
    add(ahead, of(P0, *range(100)), value=bytes(1_000))
    whole = ahead.bytes
    assert 100_000 < whole < 120_000
    ahead.take({P0: 90})
    assert ahead.bytes < whole / 9
    left = ahead.take({P0: 100})
    assert left[0].get_total_buffer_size() < whole / 9  # a copy, which does not keep the whole


@given(st.data())
def test_every_record_is_taken_once(data: st.DataObject) -> None:
    ahead = PrefetchBuffer()
    partitions = (P0, P1, OTHER)
    arrived = dict.fromkeys(partitions, 0)
    ends = dict.fromkeys(partitions, 0)
    for partition in partitions:
        ahead.begin(partition, 0)
    for _ in range(data.draw(st.integers(1, 8))):
        come: list[Record] = []
        for partition, count in data.draw(st.lists(st.tuples(st.sampled_from(partitions), st.integers(1, 5)))):
            come += of(partition, *range(arrived[partition], arrived[partition] + count))
            arrived[partition] += count
        if come:
            add(ahead, come)
        wanted = {
            partition: data.draw(st.integers(ends[partition], arrived[partition]))
            for partition in data.draw(st.sets(st.sampled_from(partitions)))
        }
        taken = records(ahead.take(wanted))
        for partition in partitions:
            first, end = ends[partition], wanted.get(partition, ends[partition])
            assert [record for record in taken if record[0] == partition] == of(partition, *range(first, end))
        ends |= wanted
