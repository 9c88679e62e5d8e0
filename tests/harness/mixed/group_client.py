"""A member of a group, of librdkafka or of kafka-python, that reports its partitions as `kgroup member --json` does.

It leaves the group when its standard input ends. Arguments: the client, bootstrap servers, group, topic, client id,
group protocol, instance id (may be empty).
"""

import json
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer
from kafka import ConsumerRebalanceListener, KafkaConsumer
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor


class Owned:
    """The partitions that the member owns, reported with each change."""

    def __init__(self) -> None:
        self._owned: set[tuple[str, int]] = set()

    def _tell(self, event: str) -> None:
        event_line = {"event": event, "at_ms": time.time_ns() // 1_000_000, "partitions": sorted(self._owned)}
        print(json.dumps(event_line), flush=True)

    def on_assigned(self, partitions: Iterable[Any]) -> None:
        self._owned |= {(tp.topic, tp.partition) for tp in partitions}
        self._tell("assigned")

    def on_given_up(self, partitions: Iterable[Any], event: str = "revoked") -> None:
        self._owned -= {(tp.topic, tp.partition) for tp in partitions}
        self._tell(event)

    def on_leaving(self) -> None:
        self._owned.clear()
        self._tell("leaving")


class Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python has no types
    """kafka-python tells of its rebalances here, inside of `poll`."""

    def __init__(self, owned: Owned) -> None:
        self._owned = owned

    def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        self._owned.on_assigned(assigned)

    def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        self._owned.on_given_up(revoked)

    def on_partitions_lost(self, lost: Iterable[Any]) -> None:
        self._owned.on_given_up(lost, "lost")


def run_librdkafka(member: "Arguments", stop: threading.Event) -> None:
    owned = Owned()
    classic = {
        "partition.assignment.strategy": "cooperative-sticky",
        "session.timeout.ms": int(member.session_timeout_ms),
        "heartbeat.interval.ms": 500,
    }
    consumer = Consumer(
        {
            "bootstrap.servers": member.bootstrap,
            "group.id": member.group,
            "client.id": member.client_id,
            "group.protocol": member.protocol,
            **({"group.instance.id": member.instance_id} if member.instance_id else {}),
            **(classic if member.protocol == "classic" else {}),
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )

    def on_assign(consumer: Consumer, partitions: list[Any]) -> None:
        consumer.incremental_assign(partitions)
        owned.on_assigned(partitions)

    def on_revoke(consumer: Consumer, partitions: list[Any]) -> None:
        owned.on_given_up(partitions)
        consumer.incremental_unassign(partitions)

    consumer.subscribe([member.topic], on_assign=on_assign, on_revoke=on_revoke)
    while not stop.is_set():
        consumer.poll(0.1)
    owned.on_leaving()
    consumer.close()


def run_kafka_python(member: "Arguments", stop: threading.Event) -> None:
    owned = Owned()
    consumer = KafkaConsumer(
        bootstrap_servers=member.bootstrap,
        group_id=member.group,
        client_id=member.client_id,
        group_instance_id=member.instance_id or None,
        partition_assignment_strategy=[CooperativeStickyAssignor],
        session_timeout_ms=int(member.session_timeout_ms),
        heartbeat_interval_ms=500,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    # 1. New metadata begins a rebalance. 2. `poll` times out before its SyncGroup is answered. 3. As the metadata was
    # assigned by now, kafka-python 3.0.12 sees no reason to join, forgets the answer, and sends no heartbeat again.
    coordinator = consumer._coordinator
    needs = coordinator.need_rejoin
    coordinator.need_rejoin = lambda: needs() or coordinator._join_task is not None
    consumer.subscribe([member.topic], listener=Listener(owned))
    while not stop.is_set():
        consumer.poll(timeout_ms=100)
    owned.on_leaving()
    consumer.close(autocommit=False)


@dataclass(frozen=True, slots=True)
class Arguments:
    """The settings of this member: texts, as the command line has them."""

    bootstrap: str
    group: str
    topic: str
    client_id: str
    protocol: str
    instance_id: str
    session_timeout_ms: str


def main() -> None:
    stop = threading.Event()

    def watch() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=watch, daemon=True).start()
    run = {"librdkafka": run_librdkafka, "kafka-python": run_kafka_python}[sys.argv[1]]
    run(Arguments(*sys.argv[2:]), stop)


if __name__ == "__main__":
    main()
