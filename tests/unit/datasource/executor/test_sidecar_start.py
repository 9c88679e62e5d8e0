"""Workers start a sidecar and do not wait for it. The ranges have no records, so no Kafka is needed.

A sidecar's Python waits behind a gate here, so that the events before it listens are known.
"""

import logging
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from harness.sidecars import Query, await_gone, kill, let_retry_time_pass, sidecars_of, sleeping_executor
from harness.waiting import wait_for

from pyspark_kgroup.executor.worker import sidecar_start as sidecar_start_module
from pyspark_kgroup.executor.worker import ticket_reader
from pyspark_kgroup.executor.worker.sidecar_start import SidecarStart
from pyspark_kgroup.executor.worker.ticket_reader import Worker
from pyspark_kgroup.limits import SIDECAR_START_MS
from pyspark_kgroup.shared.arrow import arrow_schema
from pyspark_kgroup.shared.tickets import Executor, TicketPayload

NO_RECORDS = {0: (41, 41)}

BATCHES = [pa.RecordBatch.from_pylist([], schema=arrow_schema(False))] * 2

GATED_PYTHON = """#!/bin/sh
echo started >>{folder}/starts
while [ ! -e {folder}/open ] && [ -e {folder}/starts ]; do sleep 0.02; done
exec {python} "$@"
"""

WORKER_THAT_ENDS = """
import os, pickle, sys
from pyspark_kgroup.executor.worker.ticket_reader import Worker
executor, ticket, python = pickle.load(sys.stdin.buffer)
sys.executable = python
assert list(Worker(executor).read(ticket)) == []
os._exit(0)
"""


class Gate:
    """Stands before the Python of each sidecar that this process starts."""

    def __init__(self, folder: Path) -> None:
        self.python = folder / "python"
        self.starts_file = folder / "starts"
        self._open = folder / "open"
        self.python.write_text(GATED_PYTHON.format(folder=folder, python=sys.executable))
        self.python.chmod(0o700)

    def starts(self) -> int:
        return len(self.starts_file.read_text().splitlines()) if self.starts_file.exists() else 0

    def open(self) -> None:
        self._open.touch()


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(tmp_path)
    monkeypatch.setattr(sys, "executable", str(gate.python))
    yield gate
    gate.open()  # no process is left behind it


@pytest.fixture
def executor() -> Iterator[Executor]:
    with sleeping_executor() as executor:
        yield executor


@pytest.fixture
def query() -> Iterator[Query]:
    with Query("127.0.0.1:1", "t", {"seat-0": [0]}, leaders=lambda *_: {}) as query:
        yield query


def await_end_of_start() -> None:
    wait_for(
        lambda: not any(thread.name == "kgroup sidecar start" for thread in threading.enumerate()),
        "the thread that starts a sidecar to end",
        30,
    )


def warnings_of_no_sidecar(caplog: pytest.LogCaptureFixture) -> list[str]:
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    return [text for text in said if "No sidecar" in text]


def read(worker: Worker, ticket: TicketPayload) -> None:
    begun_s = time.monotonic()
    assert list(worker.read(ticket)) == []
    assert time.monotonic() - begun_s < SIDECAR_START_MS / 2000, "it waited for a sidecar that does not come"


def await_sidecar(query: Query, executor: Executor) -> int:
    return wait_for(lambda: sidecars_of(query, executor), "a sidecar to listen", 30)[0]


def await_reads(query: Query, *, direct: int, warm: int) -> None:
    def read() -> bool:
        counts = query.registry.counts()
        return (counts.direct_reads, counts.warm_reads) == (direct, warm)

    wait_for(read, f"{direct} direct reads and {warm} of the seat's server to be counted", 30)


def test_reads_go_on_directly_while_a_sidecar_starts_and_the_next_one_finds_it(
    query: Query, executor: Executor, gate: Gate
) -> None:
    first = Worker(executor)
    read(first, query.plan(NO_RECORDS)[0])
    wait_for(lambda: gate.starts() == 1, "the first worker to start a sidecar", 30)
    for worker in (first, Worker(executor), Worker(executor)):  # the same one, and new ones of this executor
        read(worker, query.plan(NO_RECORDS)[0])
    assert (gate.starts(), sidecars_of(query, executor)) == (1, [])
    await_reads(query, direct=4, warm=0)
    assert (query.registry.homes(), query.registry.counts().guest_bindings) == ({}, 0)
    gate.open()
    await_sidecar(query, executor)
    read(first, query.plan(NO_RECORDS)[0])
    await_reads(query, direct=4, warm=1)
    assert query.registry.homes()["seat-0"].executor == executor
    assert gate.starts() == 1


@pytest.mark.parametrize(
    ("reused", "daemon", "waits_ms", "while_reading"),
    [("1", True, 60_000, False), ("1", True, 10, True), ("", True, 60_000, True), ("1", False, 60_000, True)],
    ids=[
        "after the read",
        "after a while",
        "at once where the worker ends with its task",
        "at once where the JVM itself has started the worker: it ends with its task, whatever Spark says",
    ],
)
def test_a_read_has_the_cpu_before_the_sidecar_that_is_started_for_later_ones(
    query: Query,
    executor: Executor,
    gate: Gate,
    monkeypatch: pytest.MonkeyPatch,
    reused: str,
    daemon: bool,
    waits_ms: int,
    while_reading: bool,
) -> None:
    monkeypatch.setenv("SPARK_REUSE_WORKER", reused)
    monkeypatch.setattr(os, "getppid", lambda: 1 if daemon else executor.pid)
    monkeypatch.setattr(sidecar_start_module, "SIDECAR_START_AFTER_MS", waits_ms)
    monkeypatch.setattr(ticket_reader, "_read_from_brokers", lambda *_: iter(BATCHES))
    reading = Worker(executor).read(query.plan(NO_RECORDS)[0])
    next(reading)
    if while_reading:
        wait_for(lambda: gate.starts() == 1, "a sidecar to be started in the midst of the read", 30)
    assert gate.starts() == while_reading
    assert len(list(reading)) == len(BATCHES) - 1
    wait_for(lambda: gate.starts() == 1, "a sidecar to be started", 30)


def test_a_worker_that_ends_with_its_task_first_hands_its_start_over_to_a_starting_sidecar(
    query: Query, executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the registry and the sidecar would hear half of it."""
    may_start = threading.Event()

    def start(_: SidecarStart, on_handed_over: Callable[[], None]) -> None:
        may_start.wait()
        on_handed_over()

    monkeypatch.delenv("SPARK_REUSE_WORKER", raising=False)
    monkeypatch.setattr(sidecar_start_module, "SIDECAR_START_AFTER_MS", 60_000)
    monkeypatch.setattr(SidecarStart, "start", start)
    with ThreadPoolExecutor(1) as task:
        reading = task.submit(list, Worker(executor).read(query.plan(NO_RECORDS)[0]))
        with pytest.raises(TimeoutError):
            reading.result(0.2)
        may_start.set()
        assert reading.result(30) == []


def test_after_a_sidecar_was_killed_the_next_read_goes_on_directly_and_starts_another(
    query: Query, executor: Executor, gate: Gate
) -> None:
    gate.open()
    worker = Worker(executor)
    read(worker, query.plan(NO_RECORDS)[0])
    killed = await_sidecar(query, executor)
    read(worker, query.plan(NO_RECORDS)[0])
    await_reads(query, direct=1, warm=1)
    kill(killed)
    await_gone([killed])
    read(worker, query.plan(NO_RECORDS)[0])
    await_sidecar(query, executor)
    read(worker, query.plan(NO_RECORDS)[0])
    await_reads(query, direct=2, warm=2)
    assert gate.starts() == 2


def test_a_sidecar_that_does_not_listen_in_time_is_tried_again_after_the_retry_time(
    query: Query,
    executor: Executor,
    gate: Gate,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(sidecar_start_module, "SIDECAR_START_MS", 200)
    worker, mark = Worker(executor), query.place(executor).folder / f"no-sidecar-{query.registry.query}"
    read(worker, query.plan(NO_RECORDS)[0])
    wait_for(mark.exists, "the start to be given up", 30)
    read(Worker(executor), query.plan(NO_RECORDS)[0])
    assert gate.starts() == 1
    await_end_of_start()
    (warning,) = warnings_of_no_sidecar(caplog)  # the worker that tried has said why, and the others need not
    assert "It did not start: " in warning
    let_retry_time_pass(query.place(executor))
    monkeypatch.undo()
    monkeypatch.setattr(sys, "executable", str(gate.python))
    gate.open()
    read(Worker(executor), query.plan(NO_RECORDS)[0])
    await_sidecar(query, executor)
    assert gate.starts() == 2


def test_a_query_that_ends_before_a_sidecar_is_started_for_it_warns_of_none(
    query: Query,
    executor: Executor,
    gate: Gate,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """1. A task finds no sidecar. 2. The query ends while it reads. 3. The worker finds no registry for a sidecar."""
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    monkeypatch.setattr(sidecar_start_module, "SIDECAR_START_AFTER_MS", 60_000)
    monkeypatch.setattr(ticket_reader, "_read_from_brokers", lambda *_: iter(BATCHES))
    reading = Worker(executor).read(query.plan(NO_RECORDS)[0])
    next(reading)
    query.server.close()
    assert len(list(reading)) == len(BATCHES) - 1
    await_end_of_start()
    assert gate.starts() == 0
    assert warnings_of_no_sidecar(caplog) == []


def test_a_query_that_ends_while_its_sidecar_starts_warns_of_none(
    query: Query, executor: Executor, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    """1. A worker starts a sidecar. 2. The query ends. 3. The sidecar hears no welcome, and tells the worker."""
    read(Worker(executor), query.plan(NO_RECORDS)[0])
    wait_for(lambda: gate.starts() == 1, "a sidecar to be started", 30)
    query.server.close()
    gate.open()
    await_end_of_start()
    assert warnings_of_no_sidecar(caplog) == []


def test_a_sidecar_listens_though_the_worker_that_started_it_ends_with_its_read(
    query: Query, executor: Executor, gate: Gate
) -> None:
    (ticket,) = query.plan(NO_RECORDS)
    given = pickle.dumps((executor, ticket, str(gate.python)))
    python = gate.python.read_text().split("exec ")[1].split()[0]
    subprocess.run([python, "-c", WORKER_THAT_ENDS], input=given, check=True, timeout=60)
    gate.open()
    await_sidecar(query, executor)
    assert gate.starts() == 1
    read(Worker(executor), query.plan(NO_RECORDS)[0])
    await_reads(query, direct=1, warm=1)
