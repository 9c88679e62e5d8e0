"""Records that our own reader leaves to librdkafka, or that librdkafka cannot read: each is read to its end with both.

The end is the rows that Java's clients have, or one error that names the partition, the offset and a way out.
"""

import gzip
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from harness.both_readers import leaders_of, whole
from harness.decoder import built_decoder
from harness.kafka import MakeTopic, console_consumer, fill
from harness.query import Query
from harness.raw_records import message_of_before_0_11, produce_raw, replace_in_log, segment_of
from harness.record_batches import CODECS, Batch, Record

from pyspark_kgroup.executor.native import codecs
from pyspark_kgroup.executor.read import unread_ranges
from pyspark_kgroup.executor.read.reader import read_ranges
from pyspark_kgroup.options.parser import parse
from pyspark_kgroup.shared.tickets import Executor
from spark_kgroup.errors import KgroupError
from spark_kgroup.testing import ApacheKafka

pytestmark = pytest.mark.usefixtures("decoder")

both_readers = pytest.mark.parametrize("reader", ["native", "librdkafka"])


@pytest.fixture(scope="module")
def decoder() -> None:
    built_decoder()


class Reads:
    """Reads a topic to its end as a worker does."""

    def __init__(self, kafka: ApacheKafka, topic: str) -> None:
        self._kafka = kafka
        self._topic = topic

    def rows(self, reader: str, **options: str) -> list[dict[str, Any]]:
        return [row for batch in self.batches(reader, **options) for row in batch.to_pylist()]

    def batches(self, reader: str, **options: str) -> Iterator[pa.RecordBatch]:
        required = {"kafka.bootstrap.servers": self._kafka.bootstrap_servers, "kafka.group.id": "g"}
        checked = parse({**required, "subscribe": self._topic, "reader": reader, **options})
        settings = checked.read_settings()
        ranges = whole(self._kafka.bootstrap_servers, self._topic, leaders_of(checked, self._topic))
        return (batch.select(list(settings.columns)) for batch in read_ranges(ranges, settings))

    def error(self, reader: str, **options: str) -> str:
        with pytest.raises(KgroupError) as problem:
            self.rows(reader, **options)
        return str(problem.value)


def java_consumer_shows(kafka: ApacheKafka, topic: str, count: int, *shown: str) -> list[str]:
    """Lines of Java's console consumer, one for each record."""
    arguments = ["--bootstrap-server", kafka.bootstrap_servers, "--topic", topic, "--from-beginning"]
    for property_ in shown:
        arguments += ["--property", property_]
    arguments += ["--max-messages", str(count), "--timeout-ms", "30000"]
    lines = kafka.tool(console_consumer(kafka.release), *arguments).split("\n")
    return [line for line in lines if not line.startswith("Option --property is deprecated")][:count]


def headers_of(rows: list[dict[str, Any]]) -> list[list[tuple[str, bytes | None]]]:
    return [[(header["key"], header["value"]) for header in row["headers"]] for row in rows]


# ------------------------------------------------------------------------------------------------- names of headers

ODD_NAMES = {
    b"caf\xe9": "caf�",
    b"\xff\xfea": "��a",
    b"\xed\xa0\x80!": "�!",
    b"a\0b": "a\0b",
    b"": "",
    "ü".encode(): "ü",
}


@pytest.fixture
def odd_names(apache_kafka: ApacheKafka, new_topic: MakeTopic) -> str:
    """One record for each name."""
    topic = new_topic()
    records = [Record(n, b"k", b"v", ((name, b"1"), (b"h", None))) for n, name in enumerate(ODD_NAMES)]
    produce_raw(apache_kafka, topic, Batch(records).encoded())
    return topic


def test_names_of_headers_are_read_as_java_reads_them(apache_kafka: ApacheKafka, odd_names: str) -> None:
    rows = Reads(apache_kafka, odd_names).rows("native", includeHeaders="true")
    assert headers_of(rows) == [[(name, b"1"), ("h", None)] for name in ODD_NAMES.values()]
    shown = java_consumer_shows(apache_kafka, odd_names, len(ODD_NAMES), "print.headers=true", "print.value=false")
    assert shown == [f"{name}:1,h:null" for name in ODD_NAMES.values()]


def test_a_name_that_librdkafka_cannot_show_is_an_error_that_names_the_record(
    apache_kafka: ApacheKafka, odd_names: str, new_topic: MakeTopic
) -> None:
    """Also when the interpreter has specialised the call, after many records with usual headers."""
    usual, producer = new_topic(), Producer({"bootstrap.servers": apache_kafka.bootstrap_servers})
    for number in range(1_000):
        producer.produce(usual, str(number).encode(), headers=[("name", b"value")])
    producer.flush()
    assert len(Reads(apache_kafka, usual).rows("librdkafka", includeHeaders="true")) == 1_000
    error = Reads(apache_kafka, odd_names).error("librdkafka", includeHeaders="true")
    assert f"offset 0 of {odd_names}-0 has a header whose name is not UTF-8" in error
    assert "reader=native" in error


@both_readers
def test_headers_that_are_not_asked_for_may_have_any_name(
    apache_kafka: ApacheKafka, odd_names: str, reader: str
) -> None:
    assert len(Reads(apache_kafka, odd_names).rows(reader)) == len(ODD_NAMES)


# ---------------------------------------------------------------------------------- batches that become large

MEGABYTE = 1_000_000
LARGE = 105


@pytest.fixture(scope="module")
def large_batch(apache_kafka: ApacheKafka, new_topic: MakeTopic) -> str:
    """One batch of some kilobytes that becomes 105 MB."""
    topic = new_topic()
    records = [Record(n, None, b"%03d" % n + bytes(MEGABYTE)) for n in range(LARGE)]
    produce_raw(apache_kafka, topic, Batch(records, "zstd").encoded())
    return topic


def numbers_of(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [int(value[:3]) for batch in batches for value in batch["value"].to_pylist()]


def test_a_batch_that_becomes_more_than_librdkafka_takes_is_read(apache_kafka: ApacheKafka, large_batch: str) -> None:
    assert numbers_of(Reads(apache_kafka, large_batch).batches("native")) == list(range(LARGE))


def test_a_batch_that_librdkafka_cannot_decompress_is_not_called_damaged(
    apache_kafka: ApacheKafka, large_batch: str
) -> None:
    """The error names an option with which it is read."""
    error = Reads(apache_kafka, large_batch).error("librdkafka")
    assert f"{large_batch}-0 has records from offset 0 on that librdkafka cannot read" in error
    assert "kafka.receive.message.max.bytes=1000000000" in error
    assert "delete" not in error
    larger = {"kafka.receive.message.max.bytes": "1000000000"}
    assert numbers_of(Reads(apache_kafka, large_batch).batches("librdkafka", **larger)) == list(range(LARGE))


# ---------------------------------------------------------------------------------------------- far timestamps

NANOSECONDS = 1_712_345_678_123_456_789


@pytest.fixture
def far_timestamp(apache_kafka: ApacheKafka, new_topic: MakeTopic) -> str:
    """A topic whose second record is of a producer that takes nanoseconds for milliseconds."""
    any_time = {"message_timestamp_after_max_ms": str(2**63 - 1)} if apache_kafka.release.number >= (3, 6) else {}
    topic = new_topic(**any_time)  # KIP-937: brokers before it take any
    records = [Record(0), Record(1, timestamp_ms=NANOSECONDS), Record(2)]
    produce_raw(apache_kafka, topic, Batch(records).encoded())
    return topic


@both_readers
def test_a_timestamp_that_spark_cannot_hold_is_an_error_only_for_who_asks_for_it(
    apache_kafka: ApacheKafka, far_timestamp: str, reader: str
) -> None:
    reads = Reads(apache_kafka, far_timestamp)
    rows = reads.rows(reader, columns="offset,value,timestampType")
    assert [(row["offset"], row["value"]) for row in rows] == [(0, b"v"), (1, b"v"), (2, b"v")]
    error = reads.error(reader)
    assert f"offset 1 of {far_timestamp}-0 has the timestamp {NANOSECONDS} ms" in error
    assert "name the other columns in the option columns" in error


@pytest.mark.parametrize("reader", ["native", "librdkafka"])
def test_a_sidecar_reads_on_over_a_timestamp_that_is_not_asked_for(
    apache_kafka: ApacheKafka, far_timestamp: str, executor: Executor, reader: str
) -> None:
    group = f"group-{far_timestamp}-{reader}"
    columns = {"columns": "offset,partition,topic", "reader": reader}
    with Query(apache_kafka.bootstrap_servers, group, far_timestamp, executor=executor, **columns) as query:
        query.settle()
        if reader == "native":
            query.await_served()
        else:
            assert query.served_warm == 0, "nothing is fetched ahead with librdkafka"
    assert [row["offset"] for row in query.rows[far_timestamp, 0]] == [0, 1, 2]


# --------------------------------------------------------------------------------- batches that few producers write


def test_a_batch_of_several_members_of_gzip_is_read_whole_or_said_not_to_be(
    apache_kafka: ApacheKafka, new_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka takes the first gzip member for the whole batch, and waits for the rest."""
    monkeypatch.setattr(unread_ranges, "_IDLE_LOOK_S", 0.5)
    topic = new_topic()
    records = [Record(n, None, b"%03d" % n) for n in range(200)]
    payload = Batch(records).encoded()[61:]
    members = b"".join(gzip.compress(payload[at : at + 900]) for at in range(0, len(payload), 900))
    produce_raw(apache_kafka, topic, Batch(records, "gzip", payload=members).encoded())
    assert numbers_of(Reads(apache_kafka, topic).batches("native")) == list(range(200))
    error = Reads(apache_kafka, topic).error("librdkafka", **{"kafka.default.api.timeout.ms": "4000"})
    assert "the log has 0 to 199: librdkafka makes no records of it" in error
    assert "reader=native" in error


@pytest.fixture
def rewritten(apache_kafka: ApacheKafka, new_topic: MakeTopic) -> Callable[[bytes], str]:
    """A topic of one record whose batch is another one on the broker's disk, of as many bytes."""

    def rewrite(batch: bytes) -> str:
        topic = new_topic()
        produced = Batch([Record(0, None, bytes(len(batch) - OVERHEAD))]).encoded()
        produce_raw(apache_kafka, topic, produced)
        replace_in_log(apache_kafka, topic, segment_of(apache_kafka, topic).read_bytes(), batch)
        return topic

    return rewrite


OVERHEAD = len(Batch([Record(0, None, bytes(100))]).encoded()) - 100


@both_readers
def test_records_of_before_kafka_0_11_are_read(
    apache_kafka: ApacheKafka, rewritten: Callable[[bytes], str], reader: str
) -> None:
    topic = rewritten(message_of_before_0_11(0, b"old" * 40))
    assert [row["value"] for row in Reads(apache_kafka, topic).rows(reader)] == [b"old" * 40]


SENSELESS = {
    "an unknown codec": Batch([Record(0, None, bytes(150))], attributes=7),
    "no records": Batch([Record(0)], payload=b"\xff" * 150),
    "no zstd": Batch([Record(0)], "zstd", payload=b"no zstd" * 20),
}


@pytest.mark.parametrize("odd", SENSELESS.values(), ids=SENSELESS)
def test_a_batch_of_which_no_records_can_be_made_is_an_error_that_names_it(
    apache_kafka: ApacheKafka, rewritten: Callable[[bytes], str], monkeypatch: pytest.MonkeyPatch, odd: Batch
) -> None:
    """Its checksum is right: its producer wrote it so, and Java's consumer fails at it as well."""
    monkeypatch.setattr(unread_ranges, "_IDLE_LOOK_S", 0.5)
    topic = rewritten(odd.encoded())
    error = Reads(apache_kafka, topic).error("native")  # within seconds, and not after 5 minutes
    assert f"{topic}-0 has records from offset 0 on that librdkafka cannot read" in error
    assert "its producer wrote it so" in error
    bound = {"kafka.default.api.timeout.ms": "3000"}
    assert f"{topic}-0" in Reads(apache_kafka, topic).error("librdkafka", **bound)


@both_readers
def test_a_batch_that_says_to_have_more_records_gives_those_that_are_there(
    apache_kafka: ApacheKafka, rewritten: Callable[[bytes], str], reader: str
) -> None:
    """Java's consumer fails at it, but librdkafka reads it."""
    topic = rewritten(Batch([Record(0, None, bytes(150))], count=2).encoded())
    assert [row["offset"] for row in Reads(apache_kafka, topic).rows(reader)] == [0]


def test_a_codec_that_pyarrow_lacks_is_left_to_librdkafka(
    apache_kafka: ApacheKafka, new_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(codecs._STREAMS, CODECS["lz4"], "lz4_raw")  # never a stream: refused by the same error
    topic = new_topic()
    producer = Producer({"bootstrap.servers": apache_kafka.bootstrap_servers, "compression.type": "lz4"})
    fill(producer, topic, [b"v" * 100] * 10)
    assert [row["offset"] for row in Reads(apache_kafka, topic).rows("native")] == list(range(10))
