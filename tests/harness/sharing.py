"""Consumers of other libraries that share a group with a query, and keep the offsets of their records."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Self

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from kafka import AsyncConsumerRebalanceListener, KafkaConsumer, OffsetAndMetadata
from kafka import TopicPartition as KafkaPythonPartition
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.errors import IllegalGenerationError, RebalanceInProgressError
from kafka.errors import KafkaError as KafkaPythonError

_MOVES_ON = (KafkaError.ILLEGAL_GENERATION, KafkaError.REBALANCE_IN_PROGRESS)


class _Peer(ABC):
    """Reads in a thread: commits its positions before it gives up partitions, and before it leaves. A context manager.

    Args:
        commit_each: commit after each read, too.

    Attributes:
        rows: (partition, offset) of each record, in order.
        owned: the partitions that it holds now.
        moves: how often it was told of an assignment or a revocation that was not empty.
        commits: (partition, offset) of each acknowledged commit, in order.
    """

    def __init__(self, topic: str, *, commit_each: bool = False) -> None:
        self.rows: list[tuple[int, int]] = []
        self.owned: set[int] = set()
        self.moves = 0
        self.commits: list[tuple[int, int]] = []
        self.failure: BaseException | None = None
        self._topic = topic
        self._commit_each = commit_each
        self._positions: dict[int, int] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sharing")

    @abstractmethod
    def _read(self) -> list[tuple[int, int]]: ...

    @abstractmethod
    def _commit(self, positions: dict[int, int]) -> None: ...

    @abstractmethod
    def _close(self) -> None: ...

    def _run(self) -> None:
        try:
            while not (self._stop.is_set() and self._commit_read()):
                for partition, offset in self._read():
                    self.rows.append((partition, offset))
                    self._positions[partition] = offset + 1
                if self._commit_each:
                    self._commit_read()
        except (KafkaException, KafkaPythonError, AssertionError) as failure:
            self.failure = failure  # told to the test by __exit__
        finally:
            self._close()

    def _commit_read(self) -> bool:
        """Commit its positions. False if the group moves on in this moment, so that the next read joins it first."""
        positions = self._read_of(self.owned)
        if positions:
            try:
                self._commit(positions)
            except (IllegalGenerationError, RebalanceInProgressError):
                return False
            except KafkaException as refusal:
                if refusal.args[0].code() not in _MOVES_ON:
                    raise
                return False
            self._on_committed(positions)
        return True

    def _read_of(self, partitions: Iterable[int]) -> dict[int, int]:
        """Positions among `partitions` that are not committed yet."""
        return {p: self._positions[p] for p in partitions if p in self._positions}

    def _on_committed(self, positions: dict[int, int]) -> None:
        self.commits += positions.items()
        for partition in positions:
            del self._positions[partition]

    def _on_moved(self, *, added: Iterable[int] = (), removed: Iterable[int] = ()) -> None:
        before = self.owned
        self.owned = (before | set(added)) - set(removed)
        self.moves += self.owned != before
        for partition in removed:
            self._positions.pop(partition, None)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:  # for pytest to show with the test's failure
            print(f"the other member: owns {self.owned}, read {len(self.rows)}, {self.moves} moves, {self.failure!r};")
            print(f"  its positions that are not committed: {self._positions}; its commits: {self.commits[-20:]}")
        self.leave()

    def leave(self) -> None:
        """Commit and leave the group. Safe to call twice."""
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        assert self.failure is None, repr(self.failure)


SPEAKING = {
    "classic": {"partition.assignment.strategy": "cooperative-sticky"},
    "consumer": {"group.protocol": "consumer"},  # the brokers assign (KIP-848)
}


class Sharing(_Peer):
    """A librdkafka consumer."""

    def __init__(
        self, bootstrap: str, group: str, topic: str, *, commit_each: bool = False, protocol: str = "classic"
    ) -> None:
        super().__init__(topic, commit_each=commit_each)
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                **SPEAKING[protocol],
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        self._consumer.subscribe([topic], on_assign=self._on_assigned, on_revoke=self._on_revoked)

    def _on_assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.incremental_assign(partitions)
        self._on_moved(added=[tp.partition for tp in partitions])

    def _on_revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        given_up = [tp.partition for tp in partitions]
        if positions := self._read_of(given_up):
            self._commit(positions)
            self._on_committed(positions)
        consumer.incremental_unassign(partitions)
        self._on_moved(removed=given_up)

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

    def _commit(self, positions: dict[int, int]) -> None:
        offsets = [TopicPartition(self._topic, p, offset) for p, offset in positions.items()]
        self._consumer.commit(offsets=offsets, asynchronous=False)

    def _close(self) -> None:
        self._consumer.close()


class KafkaPythonSharing(_Peer, AsyncConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python has no types
    """A kafka-python consumer. It joins, and tells its listener, inside of `poll`, on a loop of its own."""

    def __init__(self, bootstrap: str, group: str, topic: str, *, commit_each: bool = False) -> None:
        super().__init__(topic, commit_each=commit_each)
        self._consumer = KafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=group,
            partition_assignment_strategy=[CooperativeStickyAssignor],
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=500,
        )
        self._consumer.subscribe([topic], listener=self)

    async def on_partitions_assigned(self, assigned: Iterable[KafkaPythonPartition]) -> None:
        self._on_moved(added=[tp.partition for tp in assigned])

    async def on_partitions_revoked(self, revoked: Iterable[KafkaPythonPartition]) -> None:
        given_up = [tp.partition for tp in revoked]
        if positions := self._read_of(given_up):
            await self._consumer.commit_async(self._offsets(positions))
            self._on_committed(positions)
        self._on_moved(removed=given_up)

    async def on_partitions_lost(self, lost: Iterable[KafkaPythonPartition]) -> None:
        self._on_moved(removed=[tp.partition for tp in lost])

    def _read(self) -> list[tuple[int, int]]:
        polled = self._consumer.poll(timeout_ms=100)
        return [(tp.partition, record.offset) for tp, records in polled.items() for record in records]

    def _commit(self, positions: dict[int, int]) -> None:
        self._consumer.commit(self._offsets(positions))

    def _offsets(self, positions: dict[int, int]) -> dict[KafkaPythonPartition, OffsetAndMetadata]:
        return {KafkaPythonPartition(self._topic, p): OffsetAndMetadata(o, "", -1) for p, o in positions.items()}

    def _close(self) -> None:
        self._consumer.close(autocommit=False)
