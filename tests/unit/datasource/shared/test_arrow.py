"""Record batches have exactly the schema that Spark expects, and stay within their bounds."""

import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME, TIMESTAMP_NOT_AVAILABLE, Message
from pyspark.sql.pandas.types import to_arrow_schema

from pyspark_kgroup.executor.read.records import record_batch
from pyspark_kgroup.shared import arrow
from pyspark_kgroup.shared.arrow import arrow_schema, before, last_offsets, rebatch
from pyspark_kgroup.shared.columns import COLUMNS, HEADERS, spark_schema
from spark_kgroup.errors import ProtocolViolation
from spark_kgroup.model import TopicPartition


def message(offset: int = 0, **fields: Any) -> Message:
    known: dict[str, Any] = {"topic": "t", "partition": 3, "timestamp": (TIMESTAMP_CREATE_TIME, 1_700_000_000_123)}
    return Message(**(known | {"offset": offset} | fields))


def rows(records: list[Message], include_headers: bool = False) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = record_batch(records, include_headers).to_pylist()
    return rows


def cut(records: list[Message], include_headers: bool) -> list[list[int]]:
    """The offsets of each batch."""
    return [batch["offset"].to_pylist() for batch in rebatch([record_batch(records, include_headers)])]


@pytest.mark.parametrize("include_headers", [False, True])
def test_the_arrow_schema_is_the_one_spark_makes_of_ours(include_headers: bool) -> None:
    expected = to_arrow_schema(spark_schema((*COLUMNS, HEADERS) if include_headers else COLUMNS), timezone="UTC")
    assert arrow_schema(include_headers).equals(expected, check_metadata=True)
    batch = record_batch([message()], include_headers)
    assert batch.schema.equals(expected, check_metadata=True)
    batch.validate(full=True)


def test_the_columns_are_those_of_format_kafka() -> None:
    assert spark_schema(COLUMNS).simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int>"
    )
    assert (
        spark_schema((*COLUMNS, HEADERS))["headers"].dataType.simpleString() == "array<struct<key:string,value:binary>>"
    )
    assert all(column.nullable for column in spark_schema((*COLUMNS, HEADERS)))


def test_a_record_becomes_a_row() -> None:
    (row,) = rows([message(7, key=b"k", value=b"\x00\xff")])
    assert row == {
        "key": b"k",
        "value": b"\x00\xff",
        "topic": "t",
        "partition": 3,
        "offset": 7,
        "timestamp": datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC),
        "timestampType": 0,
    }


def test_null_and_empty_stay_apart() -> None:
    found = rows([message(0, key=None, value=None), message(1, key=b"", value=b"")])
    assert [(row["key"], row["value"]) for row in found] == [(None, None), (b"", b"")]


@pytest.mark.parametrize(
    ("timestamp", "kind", "microsecond_of_epoch"),
    [
        ((TIMESTAMP_NOT_AVAILABLE, -1), -1, -1_000),  # KafkaRecordToRowConverter: new Timestamp(-1)
        ((TIMESTAMP_CREATE_TIME, -1), 0, -1_000),
        ((TIMESTAMP_CREATE_TIME, 0), 0, 0),
        ((TIMESTAMP_LOG_APPEND_TIME, 5), 1, 5_000),
    ],
)
def test_timestamps_are_as_format_kafka_makes_them(
    timestamp: tuple[int, int], kind: int, microsecond_of_epoch: int
) -> None:
    batch = record_batch([message(timestamp=timestamp)], False)
    assert batch["timestampType"].to_pylist() == [kind]
    assert batch["timestamp"].cast(pa.int64()).to_pylist() == [microsecond_of_epoch]


def test_a_timestamp_beyond_spark_names_the_record() -> None:
    nanoseconds = 1_700_000_000_123_456_789
    records = [message(0), message(1, timestamp=(TIMESTAMP_CREATE_TIME, nanoseconds)), message(2)]
    with pytest.raises(ProtocolViolation, match=rf"offset 1 of t-3 has the timestamp {nanoseconds} ms"):
        rows(records)


def test_headers_keep_order_duplicates_and_nulls() -> None:
    headers = [("b", b"1"), ("a", None), ("b", b""), ("é", b"\xff")]
    found = rows([message(0, headers=headers), message(1), message(2, headers=[])], include_headers=True)
    assert [(h["key"], h["value"]) for h in found[0]["headers"]] == headers
    assert found[1]["headers"] is None
    assert found[2]["headers"] is None


@pytest.mark.parametrize("include_headers", [False, True])
def test_batches_are_bounded_and_a_larger_record_is_alone(
    include_headers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow, "ARROW_BATCH_BYTES_MAX", 100)
    sizes = [40, 60, 1, 250, 99, 1, 1, 0, 300]
    records = [message(offset, value=b"v" * size) for offset, size in enumerate(sizes)]
    assert cut(records, include_headers) == [[0, 1], [2], [3], [4, 5], [6, 7], [8]]


def test_keys_and_headers_count_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "ARROW_BATCH_BYTES_MAX", 100)
    records = [message(offset, key=b"k" * 50, headers=[("h", b"v" * 19)]) for offset in range(4)]
    assert cut(records, include_headers=False) == [[0, 1], [2, 3]]
    assert cut(records, include_headers=True) == [[0], [1], [2], [3]]
    unlike: list[Any] = [None, [("h", None), ("hh", b"v" * 47)], [], [("h", b"v" * 49)], [("h", b"v" * 99)]]
    records = [message(offset, headers=headers) for offset, headers in enumerate(unlike)]
    assert cut(records, include_headers=True) == [[0, 1, 2, 3], [4]]


def test_small_batches_are_joined_and_a_joined_one_is_still_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = [record_batch([message(offset, value=b"v" * 60)], False) for offset in range(5)]
    (joined,) = rebatch(batches)
    assert joined["offset"].to_pylist() == list(range(5))
    monkeypatch.setattr(arrow, "ARROW_BATCH_BYTES_MAX", 130)
    assert [batch["offset"].to_pylist() for batch in rebatch(batches)] == [[0, 1], [2, 3], [4]]


def test_a_batch_with_a_given_topic_equals_one_that_asks_each_record() -> None:
    records = [message(offset) for offset in range(3)]
    assert record_batch(records, False, topic="t").equals(record_batch(records, False))


def test_a_batch_may_mix_records_with_and_without_keys() -> None:
    assert [row["key"] for row in rows([message(0), message(1, key=b"k"), message(2, key=b"")])] == [None, b"k", b""]


def test_the_last_offset_of_each_partition() -> None:
    mixed = [("t", 0, 5), ("t", 1, 7), ("u", 1, 70), ("u", 1, 71), ("t", 0, 6), ("t", 0, 9), ("u", 0, 1)]
    batch = record_batch([message(offset, topic=t, partition=p) for t, p, offset in mixed], False)
    assert last_offsets(batch) == {
        TopicPartition("t", 0): 9,
        TopicPartition("t", 1): 7,
        TopicPartition("u", 1): 71,
        TopicPartition("u", 0): 1,
    }


def test_records_at_or_past_a_partitions_end_are_left_out() -> None:
    mixed = [("t", 0, 5), ("t", 0, 6), ("t", 1, 6), ("u", 0, 6), ("t", 0, 7)]
    batch = record_batch([message(offset, topic=t, partition=p) for t, p, offset in mixed], False)
    left = before(batch, TopicPartition("t", 0), 6)
    assert [(row["topic"], row["partition"], row["offset"]) for row in left.to_pylist()] == [
        ("t", 0, 5),
        ("t", 1, 6),
        ("u", 0, 6),
    ]


def test_usual_records_do_not_need_pandas() -> None:
    program = """
import sys
from confluent_kafka import Message
from pyspark_kgroup.executor.read.records import record_batch
from pyspark_kgroup.shared.arrow import rebatch, last_offsets
records = [Message(topic="t", partition=0, offset=n, key=b"k", value=b"v", timestamp=(1, 5)) for n in range(3)]
assert last_offsets(next(rebatch([record_batch(records, False, "t")] * 2)))
sys.exit("pandas was imported" if "pandas" in sys.modules else 0)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
