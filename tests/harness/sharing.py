"""Consumers of other libraries that share a group with a query, and keep what they read."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Self

from confluent_kafka import Consumer, KafkaException, TopicPartition
from kafka import ConsumerRebalanceListener, KafkaConsumer, OffsetAndMetadata
from kafka import TopicPartition as KafkaPythonPartition
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.errors import KafkaError as KafkaPythonError


class _Peer(ABC):
    """Reads in a thread: commits what it read before giving anything up, and before it leaves. A context manager.

    Args:
        commit_each: commit after each read, too.

    Attributes:
        rows: (partition, offset) of each record, in order.
        owned: the partitions that it holds now.
        moves: how often it was told of an assignment or a revocation that was not empty.
        commits: (partition, offset) of each acknowledged commit, in order.
    """

    def __init__(self, *, commit_each: bool = False) -> None:
        self.rows: list[tuple[int, int]] = []
        self.owned: set[int] = set()
        self.moves = 0
        self.commits: list[tuple[int, int]] = []
        self.failure: BaseException | None = None
        self._commit_each = commit_each
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sharing")

    @abstractmethod
    def _read(self) -> list[tuple[int, int]]: ...

    @abstractmethod
    def _commit(self, partitions: Iterable[int]) -> None: ...

    @abstractmethod
    def _close(self) -> None: ...

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                read = self._read()
                self.rows += read
                if read and self._commit_each:
                    self._commit({partition for partition, _ in read})
            self._commit(self.owned)
        except (KafkaException, KafkaPythonError, AssertionError) as failure:
            self.failure = failure  # told to the test by __exit__
        finally:
            self._close()

    def _moved(self, *, added: Iterable[int] = (), removed: Iterable[int] = ()) -> None:
        before = set(self.owned)
        self.owned = (self.owned | set(added)) - set(removed)
        self.moves += self.owned != before

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        assert self.failure is None, repr(self.failure)


class Sharing(_Peer):
    """A librdkafka consumer."""

    def __init__(self, bootstrap: str, group: str, topic: str, *, commit_each: bool = False) -> None:
        super().__init__(commit_each=commit_each)
        self._topic = topic
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "partition.assignment.strategy": "cooperative-sticky",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        self._consumer.subscribe([topic], on_assign=self._assigned, on_revoke=self._revoked)

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.incremental_assign(partitions)
        self._moved(added=[tp.partition for tp in partitions])

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._commit([tp.partition for tp in partitions])
        consumer.incremental_unassign(partitions)
        self._moved(removed=[tp.partition for tp in partitions])

    def _read(self) -> list[tuple[int, int]]:
        message = self._consumer.poll(0.1)
        if message is None:
            return []
        if (error := message.error()) is not None:
            raise KafkaException(error)
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        return [(partition, offset)]

    def _commit(self, partitions: Iterable[int]) -> None:
        positions: list[Any] = self._consumer.position([TopicPartition(self._topic, p) for p in sorted(partitions)])
        read = [tp for tp in positions if tp.offset >= 0]
        if read:
            self._consumer.commit(offsets=read, asynchronous=False)
            self.commits += [(tp.partition, tp.offset) for tp in read]

    def _close(self) -> None:
        self._consumer.close()


class KafkaPythonSharing(_Peer):
    """A kafka-python consumer."""

    def __init__(self, bootstrap: str, group: str, topic: str, *, commit_each: bool = False) -> None:
        super().__init__(commit_each=commit_each)
        self._topic = topic
        self._consumer = KafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=group,
            partition_assignment_strategy=[CooperativeStickyAssignor],
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=500,
        )
        self._consumer.subscribe([topic], listener=_Listener(self))

    def _read(self) -> list[tuple[int, int]]:
        polled = self._consumer.poll(timeout_ms=100)
        return [(tp.partition, record.offset) for tp, records in polled.items() for record in records]

    def _commit(self, partitions: Iterable[int]) -> None:
        read = {p: self._consumer.position(KafkaPythonPartition(self._topic, p)) for p in sorted(partitions)}
        if read:
            self._consumer.commit(
                {KafkaPythonPartition(self._topic, p): OffsetAndMetadata(o, "", -1) for p, o in read.items()}
            )
            self.commits += read.items()

    def _close(self) -> None:
        self._consumer.close(autocommit=False)


class _Listener(ConsumerRebalanceListener):
    def __init__(self, peer: KafkaPythonSharing) -> None:
        self._peer = peer

    def on_partitions_assigned(self, assigned: list[KafkaPythonPartition]) -> None:
        self._peer._moved(added=[tp.partition for tp in assigned])

    def on_partitions_revoked(self, revoked: list[KafkaPythonPartition]) -> None:
        self._peer._commit([tp.partition for tp in revoked])
        self._peer._moved(removed=[tp.partition for tp in revoked])

    def on_partitions_lost(self, lost: list[KafkaPythonPartition]) -> None:
        self._peer._moved(removed=[tp.partition for tp in lost])
