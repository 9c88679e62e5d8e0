"""Executors that are killed at random moments while a query runs, and replaced."""

import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from typing import Self

from harness.group_log import read_group_record

from bench_seats.executors import Executor
from bench_seats.placement import Kill, settled_at
from bench_seats.session import CONF, WORKERS_PATH, Session
from spark_kgroup.testing import ApacheKafka
from spark_kgroup.testing.spark_cluster import SparkCluster

EXECUTORS = 3
FURTHER_BATCHES = 3
"""Batches after all executors are there again, until reads count as settled."""

BEFORE_MS, AFTER_MS = 2_000, 10_000
"""Records born from so long before a kill to so long after it: those whose latency counts."""

REPLACED = {
    "new ids": "same host, new executor id (local-cluster)",
    "new hosts": "executor and worker, on a new host (standalone)",
}


class NewIds:
    """Spark's local-cluster: an executor that is killed comes back on the same host, with a new id."""

    def __init__(self, _: Path) -> None:
        self.master = f"local-cluster[{EXECUTORS},1,1024]"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """The driver's end is the cluster's."""

    def replace(self, _: Executor, pid: int) -> None:
        """Kill an executor."""
        os.kill(pid, signal.SIGKILL)


class NewHosts:
    """A standalone cluster, a worker on each address: a killed executor is replaced on a new address."""

    def __init__(self, folder: Path) -> None:
        self._cluster = SparkCluster(folder, CONF, environment={"PYTHONPATH": WORKERS_PATH})
        self._addresses = (f"127.0.{third}.{fourth}" for third in range(1, 255) for fourth in range(1, 255))
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with self._stack:
            self._stack.enter_context(self._cluster)
            self._cluster.start_workers(*(next(self._addresses) for _ in range(EXECUTORS)))
            self.master = self._cluster.master_url
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def replace(self, executor: Executor, pid: int) -> None:
        """Kill an executor and its worker, and start another worker."""
        worker = self._cluster.workers.pop(executor.host)
        worker.kill()
        worker.wait()
        os.kill(pid, signal.SIGKILL)
        self._cluster.start_workers(next(self._addresses))


CLUSTERS: Mapping[str, Callable[[Path], NewIds | NewHosts]] = {"new ids": NewIds, "new hosts": NewHosts}


class Killing:
    """Kills executors of one session, one after the other.

    Args:
        chance: picks the executor to kill, and when.
        connections: counts those ever opened at the broker.
    """

    def __init__(
        self,
        session: Session,
        cluster: NewIds | NewHosts,
        kafka: ApacheKafka,
        chance: random.Random,
        connections: Callable[[], int],
    ) -> None:
        self._session = session
        self._cluster = cluster
        self._kafka = kafka
        self._chance = chance
        self._connections = connections

    def kills(self, count: int) -> Iterator[Kill]:
        """Settle, kill, settle, kill, ..."""
        for _ in range(count):
            self._await_settled(0, "")
            yield self._kill()

    def _kill(self) -> Kill:
        generation, connections = self._generation(), self._connections()
        Event().wait(self._chance.uniform(0, 2 * self._session.settings.trigger_ms / 1000))
        running = sorted(self._session.executors().items(), key=lambda each: int(each[0].executor_id))
        victim, pid = self._chance.choice(running)
        killed_ms = time.time_ns() // 1_000_000
        self._cluster.replace(victim, pid)
        settled = self._await_settled(killed_ms, victim.executor_id)
        opened = self._connections() - connections
        batches = self._session.batches[: settled + 1]
        first = max(index for index, batch in enumerate(batches) if batch.at_ms <= killed_ms)
        return Kill(
            victim=victim.key,
            killed_ms=killed_ms,
            batches=batches[first:],
            connections=opened,
            generations=None if generation is None else (generation, self._generation() or 0),
        )

    def _await_settled(self, killed_ms: int, victim_id: str) -> int:
        """Index of the last batch: all executors are there, further batches ran, all records that count were read."""

        def settled() -> int | None:
            batches = self._session.batches
            if settled_at(batches, killed_ms, victim_id, EXECUTORS, FURTHER_BATCHES) is None:
                return None
            return len(batches) - 1 if max(batches[-1].births_ms) >= killed_ms + AFTER_MS else None

        return self._session.await_(settled, f"{EXECUTORS} executors and {FURTHER_BATCHES} further batches")

    def _generation(self) -> int | None:
        """The generation in the coordinator's own record: DescribeGroups does not tell a classic group's generation."""
        record = read_group_record(self._kafka.bootstrap_servers, self._session.settings.group)
        return record.generation if record else None
