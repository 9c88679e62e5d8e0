"""A librdkafka consumer of the group under test: joins, reads committed records, and leaves in good order.

It commits every second, before it gives up partitions and before it leaves. Records that it has read and could not
commit when it lost its membership are its own exposure, and it says so.
"""

import threading
import time
from collections.abc import Sequence
from typing import Final

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition
from harness.kafka import place_of

from chaos.evidence import Delivered, Failure, PeerEvidence, Span
from chaos.producers import QUIET
from chaos.strands import Strand
from spark_kgroup import model

_COMMIT_EVERY_S: Final = 1.0
_LAST_COMMIT_S: Final = 20.0
_LEAVE_S: Final = 120.0
_SESSION_TIMEOUT_MS: Final = 10_000
_SETTINGS: Final = {
    "isolation.level": "read_committed",
    "auto.offset.reset": "earliest",
    "enable.auto.commit": False,
    "topic.metadata.refresh.interval.ms": 2000,
}
_CLASSIC: Final = {
    "partition.assignment.strategy": "cooperative-sticky",
    "session.timeout.ms": _SESSION_TIMEOUT_MS,
    "heartbeat.interval.ms": 1000,
}
_CONSUMER_PROTOCOL: Final = {"group.protocol": "consumer"}
"""KIP-848: the coordinator converts the group when such a member joins, and back when the last one has left."""


class Peer:
    """One consumer in a thread of its own, from `start` to `leave`."""

    def __init__(
        self, name: str, bootstrap: str, group: str, topics: Sequence[str], *, consumer_protocol: bool = False
    ) -> None:
        self.name = name
        self.rows: list[Delivered] = []
        self._exposed: list[Span] = []
        self._failures: list[Failure] = []
        self._read_to: dict[model.TopicPartition, int] = {}
        """Owned and read from: one past the last record that was handed on."""
        self._committed: dict[model.TopicPartition, int] = {}
        """The same partitions: where this ownership is known to the group, or began."""
        self._committed_at = 0.0
        self._leaving = threading.Event()
        settings = _SETTINGS | (_CONSUMER_PROTOCOL if consumer_protocol else _CLASSIC)
        self._consumer = Consumer({**settings, "bootstrap.servers": bootstrap, "group.id": group}, logger=QUIET)
        self._consumer.subscribe(
            list(topics), on_assign=self._on_assigned, on_revoke=self._on_revoked, on_lost=self._on_lost
        )
        self._strand = Strand(name, self._run_to_the_end)

    def start(self) -> None:
        self._strand.start()

    def leave(self) -> bool:
        """Commit, leave the group, end. Returns whether it has ended.

        librdkafka may wait in `close` without a bound while brokers come and go. No promise of ours speaks of that.
        """
        self._leaving.set()
        failure = self._strand.failure(_LEAVE_S)
        if failure is not None and self._strand.ended:
            self._failures.append(Failure(failure, time.time()))
        return self._strand.ended

    def abandon(self) -> None:
        """It has no process to end: the thread ends with this process at the latest."""
        self._leaving.set()

    @property
    def evidence(self) -> PeerEvidence:
        """One that has not ended has lost its membership meanwhile, with all records that it could not commit."""
        exposed = self._exposed if self._strand.ended else [*self._exposed, *self._uncommitted(list(self._read_to))]
        return PeerEvidence(name=self.name, rows=self.rows, exposed=exposed, failures=self._failures)

    def _run_to_the_end(self) -> None:
        try:
            while not self._leaving.is_set():
                self._read()
            self._commit_in_time(list(self._read_to))
        finally:
            self._consumer.close()  # a rebalance may be under way: the callbacks are called once more
            # Not for all partitions, if the member was fenced meanwhile.
            self._exposed += self._uncommitted(list(self._read_to))

    def _read(self) -> None:
        # One by one: consume() may call back in its midst, and then return records of partitions that were just given
        # up.
        message = self._consumer.poll(0.2)
        if message is not None and (error := message.error()) is not None:
            if error.fatal():
                raise KafkaException(error)  # from any other error librdkafka recovers by itself
        elif message is not None:
            delivered = _delivered(message)
            self.rows.append(delivered)
            self._committed.setdefault(delivered.partition, delivered.offset)
            self._read_to[delivered.partition] = delivered.offset + 1
        if time.monotonic() - self._committed_at > _COMMIT_EVERY_S:
            self._committed_at = time.monotonic()
            self._commit(list(self._read_to))

    def _commit(self, partitions: Sequence[model.TopicPartition]) -> bool:
        """Commit the records that were handed on. Returns whether all commits were acknowledged.

        Not the consumer's position: while it closes, that moves on over records that are handed on to no caller any
        more.
        """
        ahead = {tp: self._read_to[tp] for tp in partitions if self._read_to[tp] > self._committed[tp]}
        if not ahead:
            return True
        try:
            offsets = [TopicPartition(*tp, offset) for tp, offset in ahead.items()]
            answers = self._consumer.commit(offsets=offsets, asynchronous=False) or []
        except KafkaException:
            return False
        acknowledged = [model.TopicPartition(a.topic, a.partition) for a in answers if a.error is None]
        self._committed |= {tp: ahead[tp] for tp in acknowledged}
        return len(acknowledged) == len(ahead)

    def _commit_in_time(self, partitions: Sequence[model.TopicPartition]) -> None:
        deadline = time.monotonic() + _LAST_COMMIT_S
        while not self._commit(partitions) and time.monotonic() < deadline:
            time.sleep(0.2)

    def _on_assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.incremental_assign(partitions)

    def _on_revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._commit_in_time(self._read_of(partitions))
        self._part_with(partitions)
        consumer.incremental_unassign(partitions)

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._part_with(partitions)
        consumer.incremental_unassign(partitions)

    def _read_of(self, partitions: Sequence[TopicPartition]) -> list[model.TopicPartition]:
        return [tp for p in partitions if (tp := model.TopicPartition(p.topic, p.partition)) in self._read_to]

    def _part_with(self, partitions: Sequence[TopicPartition]) -> None:
        """No longer own `partitions`. Records of them that were read and not committed are exposed."""
        gone = self._read_of(partitions)
        self._exposed += self._uncommitted(gone)
        for tp in gone:
            del self._committed[tp], self._read_to[tp]

    def _uncommitted(self, partitions: Sequence[model.TopicPartition]) -> list[Span]:
        """The records that were handed on, and that no acknowledged commit covers."""
        spans = [Span(tp, self._committed[tp], self._read_to[tp]) for tp in partitions]
        return [span for span in spans if span.end > span.first]


def _delivered(message: Message) -> Delivered:
    (partition, offset), topic, value = place_of(message), message.topic(), message.value()
    assert topic is not None
    assert value is not None, "chaos writes no tombstones"
    return Delivered(model.TopicPartition(topic, partition), offset, value, wall_at_s=time.time())
