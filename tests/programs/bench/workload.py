"""The records to read: topics that are filled beforehand, and a producer that keeps a pace."""

import threading
import time
from dataclasses import dataclass, replace

from confluent_kafka import KafkaError, KafkaException, Message, Producer

PARTITIONS = 8

FLUSH_TIMEOUT_S = 120.0
"""Measured: under 1 s."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A topic that is full before it is read.

    Attributes:
        codec: Kafka's compression.type.
        batch_records: of one micro-batch, or None for all of it at once, with AvailableNow.
    """

    name: str
    records: int
    value_bytes: int
    codec: str = "none"
    batch_records: int | None = None

    def __str__(self) -> str:
        size = "1 KB" if self.value_bytes == 1_000 else f"{self.value_bytes} B"
        batches = f" in batches of {self.batch_records:,}" if self.batch_records else ""
        return f"{self.records:,} x {size}" + ("" if self.codec == "none" else f" {self.codec}") + batches

    @property
    def hundredth(self) -> "Shape":
        """With a hundredth of the records."""
        batch_records = self.batch_records and self.batch_records // 100
        return replace(self, records=self.records // 100, batch_records=batch_records)


SHAPES = (
    Shape("small", 4_000_000, 100),
    Shape("large", 1_000_000, 1_000),
    Shape("lz4", 4_000_000, 100, "lz4"),
    Shape("micro", 4_000_000, 100, batch_records=400_000),
)

QUICK_SHAPES = tuple(shape.hundredth for shape in SHAPES)


def fill(bootstrap: str, topic: str, shape: Shape) -> None:
    """Write the shape's records without keys, evenly over the partitions. Values look like the JSON that people send.

    Raises:
        KafkaException: a record was not delivered.
    """
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "compression.type": shape.codec,
            "linger.ms": 20,
            "batch.num.messages": 100_000,
            "queue.buffering.max.messages": 1_000_000,
            "acks": 1,
        }
    )
    refused: list[KafkaError] = []
    values = [_value(number, shape.value_bytes) for number in range(1_000)]
    for number in range(shape.records):
        _produce(producer, topic, values[number % len(values)], number // 500 % PARTITIONS, refused)
    left = producer.flush(FLUSH_TIMEOUT_S)
    if refused or left:
        raise KafkaException(refused[0] if refused else KafkaError(KafkaError._MSG_TIMED_OUT))


def _value(number: int, size: int) -> bytes:
    one = b'{"id": %08d, "carrier": "AA", "origin": "JFK", "delay": %d, "tail": "N%05d"}' % (
        number * 7_919,
        number % 60,
        number * 31 % 99_999,
    )
    return (one * (size // len(one) + 1))[:size]


def _produce(producer: Producer, topic: str, value: bytes, partition: int, refused: list[KafkaError]) -> None:
    def note(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            refused.append(error)

    while True:
        try:
            producer.produce(topic, value, partition=partition, on_delivery=note)
            return
        except BufferError:  # full: let it send
            producer.poll(0.1)


class Paced:
    """Records at a steady rate, in turn to each partition, each with its time of birth (ns since the epoch) as value.

    A context manager: leaving it stops the thread and flushes. A late record does not make the later ones late.

    Attributes:
        sent: records so far.
    """

    def __init__(self, bootstrap: str, topic: str, records_a_second: int, partitions: int = PARTITIONS) -> None:
        self.sent = 0
        self._topic = topic
        self._partitions = partitions
        self._period_s = 1 / records_a_second
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "acks": 1})
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="paced producer", daemon=True)

    def __enter__(self) -> "Paced":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._producer.flush(FLUSH_TIMEOUT_S)

    def send(self) -> None:
        """One record, to the next partition."""
        self._producer.produce(self._topic, b"%d" % time.time_ns(), partition=self.sent % self._partitions)
        self._producer.poll(0)
        self.sent += 1

    def _run(self) -> None:
        began, before = time.monotonic(), self.sent
        while not self._stop.is_set():
            self.send()
            self._stop.wait(max(0.0, began + (self.sent - before) * self._period_s - time.monotonic()))
