"""Producers of the run: two that commit and abort transactions at random, and one without transactions.

A value tells its producer, its number and its producer's intent. The fate of each, as its producer knows it in the end,
is kept: it was acknowledged, or aborted. Of the rest (an answer got lost) no claim is made.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from history.facts import ABORTED, ACKNOWLEDGED, UNKNOWN, Produced

from chaos.strands import Strand

_SETTINGS: Final = {
    "acks": "all",
    "enable.idempotence": True,
    "max.in.flight": 1,  # with more, librdkafka may store a record twice when leaders change (its issue 4953)
    "linger.ms": 5,
    "topic.metadata.refresh.interval.ms": 2000,
}
_DELIVERY_TIMEOUT_MS: Final = 120_000  # librdkafka's default is 300,000, but all brokers are away for seconds only
_TRANSACTION_TIMEOUT_MS: Final = 15_000  # an abandoned transaction holds readers back for so long
_OUTCOME_TIMEOUT_S: Final = 60.0
"""Time for the end of a transaction. librdkafka has been seen to time out for ever, with all brokers back for minutes.
A new producer of that id ends the transaction then."""

_ROUND_S: Final = 0.25

QUIET: Final = logging.getLogger("chaos.librdkafka")
"""Brokers come and go, and transactions are fenced: its log would be full of that."""
QUIET.setLevel(logging.CRITICAL + 1)

Partitions = Mapping[str, int]
"""Topic -> how many partitions it has now. Changes while producers run."""


OnDelivery = Callable[[KafkaError | None, Message], None]
"""librdkafka's delivery report."""


class Producing:
    """One producer in a thread of its own, until told to stop. It then leaves no transaction open.

    Args:
        request_timeout_ms: how long a leader may wait for its followers. Default: that of librdkafka.
    """

    def __init__(
        self,
        name: str,
        bootstrap: str,
        partitions: Partitions,
        seed: int,
        *,
        transactional: bool,
        request_timeout_ms: int = 30_000,
    ) -> None:
        self.name = name
        self._sent: dict[bytes, tuple[int, str, int]] = {}
        """Value -> its number, topic and partition."""
        self._acknowledged_at_s: dict[bytes, float] = {}
        self._aborted: set[bytes] = set()
        self.sent = 0
        self._settings: dict[str, Any] = {
            **_SETTINGS,
            "bootstrap.servers": bootstrap,
            "delivery.timeout.ms": _DELIVERY_TIMEOUT_MS,
            "request.timeout.ms": request_timeout_ms,
        }
        if transactional:
            self._settings |= {"transactional.id": f"chaos-{name}", "transaction.timeout.ms": _TRANSACTION_TIMEOUT_MS}
            self._settings["delivery.timeout.ms"] = _TRANSACTION_TIMEOUT_MS
        self._partitions = partitions
        self._random = Random(f"{seed} {name}")
        self._stop = threading.Event()
        self._strand = Strand(name, self._transactions if transactional else self._plain)

    def start(self) -> None:
        self._strand.start()

    def stop(self) -> None:
        """Let it finish its open transaction, and end. Returns at once."""
        self._stop.set()

    def failure(self, timeout_s: float = _DELIVERY_TIMEOUT_MS / 1000 + 60) -> str | None:
        """Wait for its end, which `stop` has asked for. Returns the error, if there was one."""
        return self._strand.failure(timeout_s)

    @property
    def acknowledged(self) -> int:
        """How many records the cluster has acknowledged by now."""
        return len(self._acknowledged_at_s)

    @property
    def produced(self) -> Iterator[Produced]:
        """Every record that was sent, in that order, once it has ended."""
        for value, (number, topic, partition) in self._sent.items():
            fate = ABORTED if value in self._aborted else UNKNOWN
            if (at_s := self._acknowledged_at_s.get(value)) is not None:
                fate = ACKNOWLEDGED
            yield Produced(self.name, number, topic, partition, value.decode(), fate, at_s)

    def _plain(self) -> None:
        producer = Producer(self._settings, logger=QUIET)
        while not self._stop.wait(_ROUND_S):
            self._produce(producer, "plain", 25, self._on_acknowledged)
        assert producer.flush(_DELIVERY_TIMEOUT_MS / 1000) == 0

    def _on_acknowledged(self, error: KafkaError | None, message: Message) -> None:
        value = message.value()
        if error is None and isinstance(value, bytes):
            self._acknowledged_at_s[value] = time.time()

    def _transactions(self) -> None:
        producer = self._new_producer()
        while not self._stop.wait(_ROUND_S):
            fate = self._random.choices(["commit", "abort", "abandon"], [12, 5, 1])[0]
            if not self._transaction(producer, fate):
                producer = self._new_producer()

    def _new_producer(self) -> Producer:
        """Also ends the transaction that the one before left open: the id is the same."""
        while True:
            producer = Producer(self._settings, logger=QUIET)
            try:
                producer.init_transactions(60)
                return producer
            except KafkaException:
                if self._stop.is_set():
                    raise

    def _transaction(self, producer: Producer, fate: str) -> bool:
        """One transaction. Returns whether the producer can go on."""
        values: set[bytes] = set()
        try:
            producer.begin_transaction()
            values = self._produce(producer, fate, self._random.randint(1, 40))
            if fate == "commit":
                self._again(producer.commit_transaction)
                self._acknowledged_at_s |= dict.fromkeys(values, time.time())
                return True
            self._aborted |= values  # never committed from here on, on any path
            producer.flush(1 if fate == "abandon" else 0)
            if fate == "abort":
                self._again(producer.abort_transaction)
            return fate == "abort"
        except KafkaException as problem:
            return self._after(problem, producer)

    def _after(self, problem: KafkaException, producer: Producer) -> bool:
        """Abort, if the error asks for it. Any other error needs a new producer."""
        error: KafkaError = problem.args[0]
        if not error.txn_requires_abort():
            return False
        try:
            self._again(producer.abort_transaction)
        except KafkaException:
            return False
        return True

    def _again(self, deed: Callable[[float], None]) -> None:
        """Try again after errors that allow it, within a bound: the outcome is not known yet."""
        deadline = time.monotonic() + _OUTCOME_TIMEOUT_S
        while True:
            try:
                return deed(10)
            except KafkaException as problem:
                error: KafkaError = problem.args[0]
                if not error.retriable() or time.monotonic() > deadline:
                    raise

    def _produce(
        self,
        producer: Producer,
        fate: str,
        count: int,
        on_delivery: OnDelivery | None = None,
    ) -> set[bytes]:
        values: set[bytes] = set()
        for _ in range(count):
            topic = self._random.choice(sorted(self._partitions))
            value = f"{self.name} {self.sent:08d} {fate}".encode()
            partition = self._random.randrange(self._partitions[topic])
            try:
                producer.produce(topic, value=value, partition=partition, on_delivery=on_delivery)
            except BufferError:
                producer.poll(1)
                continue
            except KafkaException as problem:
                if problem.args[0].code() != KafkaError._UNKNOWN_PARTITION:
                    raise
                continue  # it was added just now, and this producer has not heard of it
            self._sent[value] = self.sent, topic, partition
            self.sent += 1
            values.add(value)
        producer.poll(0)
        return values
