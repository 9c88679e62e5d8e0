"""A sample of records: when a topic has enough of them, and what costs one topic its size and what costs all."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as AssignedPartition

from pyspark_kgroup.executor.read import record_samples
from pyspark_kgroup.executor.read.record_samples import sample_sizes
from pyspark_kgroup.limits import SAMPLE_MS, SAMPLED_BYTES, SAMPLED_RECORDS
from pyspark_kgroup.shared.tickets import OffsetRange, ReadSettings

SETTINGS = ReadSettings(consumer_config={"bootstrap.servers": "b:1", "log_level": "2"})
T0, T1, U0 = (("t", 0), ("t", 1), ("u", 0))
FAR_MS = 10**18


def range_of(place: tuple[str, int], end: int) -> OffsetRange:
    return OffsetRange(*place, 0, end)


class Log:
    """Logs that give one message at a time, each partition in turn, and what the consumer did."""

    def __init__(self, **values: bytes | KafkaError | int) -> None:
        self.of = {(name[0], int(name[1:])): value for name, value in values.items()}
        self.at = dict.fromkeys(self.of, 0)
        self.assigned: list[tuple[str, int]] = []
        self.now_s = 50.0
        self.takes_s = 0.001
        self.closed = False
        self.fails: Exception | None = None
        self.config: Mapping[str, Any] = {}

    def consumer(self, config: Mapping[str, Any]) -> "Log":
        self.config = config
        return self

    def assign(self, partitions: Sequence[AssignedPartition]) -> None:
        self.assigned = [(p.topic, p.partition) for p in partitions]

    def incremental_unassign(self, partitions: Sequence[AssignedPartition]) -> None:
        self.assigned = [place for place in self.assigned if place not in {(p.topic, p.partition) for p in partitions}]

    def consume(self, *_: float) -> list[Message]:
        if self.fails is not None:
            raise self.fails
        self.now_s += self.takes_s
        return [self.message(place) for place in self.assigned if place in self.of]

    def message(self, place: tuple[str, int]) -> Message:
        value, offset = self.of[place], self.at[place]
        self.at[place] += 1
        if isinstance(value, KafkaError):
            return Message(topic=place[0], partition=place[1], offset=offset, error=value)
        time_ms = value if isinstance(value, int) else 1
        body = value if isinstance(value, bytes) else b""
        return Message(topic=place[0], partition=place[1], offset=offset, value=body, timestamp=(1, time_ms))

    def close(self) -> None:
        self.closed = True

    def sample(self, monkeypatch: pytest.MonkeyPatch, *ranges: OffsetRange) -> dict[str, tuple[int, int]]:
        """Topic -> rows and bytes of a row."""
        monkeypatch.setattr(record_samples, "Consumer", self.consumer)
        sizes = sample_sizes(ranges, SETTINGS, lambda: self.now_s)
        assert self.closed
        return {size.topic: (size.rows, size.size_bytes // size.rows) for size in sizes}


def test_ranges_are_read_to_their_ends_and_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(t0=b"x" * 1_000, u0=b"y")
    found = log.sample(monkeypatch, range_of(T0, 5), range_of(U0, 30))
    assert {topic: rows for topic, (rows, _) in found.items()} == {"t": 5, "u": 30}
    assert found["t"][1] >= 1_000 > found["u"][1]
    assert log.at == {T0: 5, U0: 30}


def test_a_topic_with_enough_records_is_read_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(t0=b"x", t1=b"x", u0=b"x")
    found = log.sample(monkeypatch, range_of(T0, 10_000), range_of(T1, 10_000), range_of(U0, 10_000))
    assert {topic: rows for topic, (rows, _) in found.items()} == {"t": SAMPLED_RECORDS, "u": SAMPLED_RECORDS}
    assert log.at[T0] == SAMPLED_RECORDS // 2


def test_a_few_large_records_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Log(t0=bytes(SAMPLED_BYTES // 3)).sample(monkeypatch, range_of(T0, 10_000))["t"][0] == 3


@pytest.mark.parametrize(
    "odd",
    [KafkaError(KafkaError._PARTITION_EOF), KafkaError(KafkaError._BAD_MSG), FAR_MS],
    ids=["the end of the log", "a damaged batch", "a timestamp that librdkafka's client cannot show"],
)
def test_a_topic_whose_records_do_not_come_or_cannot_be_shown_costs_no_other_topic_its_size(
    odd: KafkaError | int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Log(t0=odd, u0=b"x").sample(monkeypatch, range_of(T0, 50), range_of(U0, 50))
    assert {topic: rows for topic, (rows, _) in found.items()} == {"u": 50}


def test_a_sample_ends_in_time_with_what_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(t0=b"x")
    log.takes_s = 1.0
    assert log.sample(monkeypatch, range_of(T0, 10_000), range_of(U0, 10_000))["t"][0] == SAMPLE_MS // 1000
    assert log.now_s == 50 + SAMPLE_MS / 1000


def test_a_failure_is_told_at_level_info_and_is_no_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The read of the batch meets it as well, with the patience and the words that it deserves."""
    caplog.set_level(logging.INFO)
    log = Log(t0=b"x")
    log.fails = KafkaException(KafkaError(KafkaError._FATAL, "no way"))
    assert log.sample(monkeypatch, range_of(T0, 50)) == {}
    log.config["error_cb"](KafkaError(KafkaError._TRANSPORT, "Connection refused"))
    assert {record.levelno for record in caplog.records} == {logging.INFO}
    assert "Connection refused" in caplog.text
    assert log.config["log_level"] == "0", "librdkafka's own lines are not about the query either"
