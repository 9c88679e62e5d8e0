"""A librdkafka consumer that shares a group with a query, and keeps what it read."""

import threading
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition


class Sharing:
    """Reads in a thread: commits what it read before giving anything up, and before it leaves. A context manager."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        self.rows: list[tuple[int, int]] = []
        self.owned: set[int] = set()
        self._stop = threading.Event()
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
        self._thread = threading.Thread(target=self._run, name="sharing")
        self.failure: BaseException | None = None

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.incremental_assign(partitions)
        self.owned |= {tp.partition for tp in partitions}

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._commit(partitions)
        consumer.incremental_unassign(partitions)
        self.owned -= {tp.partition for tp in partitions}

    def _commit(self, partitions: list[Any]) -> None:
        read = [tp for tp in self._consumer.position(partitions) if tp.offset >= 0]
        if read:
            self._consumer.commit(offsets=read, asynchronous=False)

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                message = self._consumer.poll(0.1)
                if message is None:
                    continue
                if (error := message.error()) is not None:
                    raise KafkaException(error)
                partition, offset = message.partition(), message.offset()
                assert partition is not None
                assert offset is not None
                self.rows.append((partition, offset))
            self._commit(self._consumer.assignment())
        except (KafkaException, AssertionError) as failure:
            self.failure = failure  # told to the test by __exit__
        finally:
            self._consumer.close()

    def __enter__(self) -> "Sharing":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        assert self.failure is None, repr(self.failure)
