"""One sidecar serves all queries of an application on its executor. The ranges have no records: no Kafka is needed."""

import os
import signal
from collections.abc import Iterator
from dataclasses import replace

import pytest
from harness.sidecars import Query, await_gone, seat_servers_of, sidecars_of, sleeping_executor, start_sidecar
from harness.waiting import wait_for

from pyspark_kgroup.executor.worker.ticket_reader import Worker
from pyspark_kgroup.shared.channel import connect, new_key
from pyspark_kgroup.shared.messages import Hung
from pyspark_kgroup.shared.tickets import Executor

NO_BROKER = "127.0.0.1:1"
CORES = 2
SEATS = 6
NO_RECORDS = dict.fromkeys(range(SEATS), (41, 41))


@pytest.fixture
def executor() -> Iterator[Executor]:
    with sleeping_executor() as executor:
        yield replace(executor, cores=CORES)


@pytest.fixture
def queries() -> Iterator[tuple[Query, Query]]:
    key, owned = new_key(), {f"seat-{number}": [number] for number in range(SEATS)}
    with (
        Query(NO_BROKER, "t", owned, leaders=lambda *_: {}, key=key) as one,
        Query(NO_BROKER, "t", owned, leaders=lambda *_: {}, key=key) as other,
    ):
        yield one, other


def read_at_home(query: Query, executor: Executor) -> None:
    """Read a batch in which each seat's own server serves it."""
    before = query.registry.counts().warm_reads
    assert query.run(executor, NO_RECORDS) == []
    wait_for(lambda: query.registry.counts().warm_reads == before + SEATS, "all seats to be read at home", 30)


def test_queries_of_one_application_have_one_sidecar_and_no_more_processes_than_tasks_run_at_once(
    queries: tuple[Query, Query], executor: Executor
) -> None:
    for query in queries:
        read_at_home(query, executor)
    (sidecar,) = sidecars_of(queries[0], executor)
    assert sidecars_of(queries[1], executor) == [sidecar]
    assert len(seat_servers_of(sidecar)) == CORES
    for query in queries:
        read_at_home(query, executor)


def test_a_query_that_ends_leaves_the_seats_of_another_where_they_are(
    queries: tuple[Query, Query], executor: Executor
) -> None:
    one, other = queries
    for query in queries:
        read_at_home(query, executor)
    (sidecar,) = sidecars_of(one, executor)
    servers = seat_servers_of(sidecar)
    one.server.close()
    read_at_home(other, executor)
    assert sidecars_of(other, executor) == [sidecar]
    assert seat_servers_of(sidecar) == servers
    other.server.close()
    await_gone([sidecar, *servers])
    assert not other.place(executor).folder.exists()


def test_the_processes_of_seats_end_with_their_last_seat(executor: Executor) -> None:
    key, owned = new_key(), {"seat-0": [0]}
    with Query(NO_BROKER, "t", owned, leaders=lambda *_: {}, key=key) as lasting:
        assert lasting.run(executor, {0: (41, 41)}) == []
        (sidecar,) = sidecars_of(lasting, executor)
        (first,) = seat_servers_of(sidecar)
        with Query(NO_BROKER, "t", owned, leaders=lambda *_: {}, key=key) as passing:
            assert passing.run(executor, {0: (41, 41)}) == []
            wait_for(lambda: len(seat_servers_of(sidecar)) == 2, "a process for the other query's seat")
        wait_for(lambda: seat_servers_of(sidecar) == [first], "the end of that process")


def test_a_hung_server_takes_the_seats_of_its_process_along_and_they_come_back(
    queries: tuple[Query, Query], executor: Executor
) -> None:
    one, _ = queries
    for query in queries:
        read_at_home(query, executor)
    (sidecar,) = sidecars_of(one, executor)
    hung = seat_servers_of(sidecar)
    for pid in hung:
        os.kill(pid, signal.SIGSTOP)
    for seat in range(SEATS):
        report_hung(one, executor, f"seat-{seat}")
    await_gone(hung)
    for query in queries:
        read_at_home(query, executor)
    assert sidecars_of(one, executor) == [sidecar]
    assert len(seat_servers_of(sidecar)) == CORES


def report_hung(query: Query, executor: Executor, seat: str) -> None:
    place = query.place(executor)
    channel = connect(place.socket, query.server.key, place.server)
    channel.say(Hung(query=query.registry.query, seat=seat))
    channel.close()


def test_a_worker_of_a_query_that_the_sidecar_does_not_know_yet_reads_directly_and_hands_it_over(
    queries: tuple[Query, Query], executor: Executor
) -> None:
    one, other = queries
    read_at_home(one, executor)
    worker, tickets = Worker(executor), other.plan(NO_RECORDS)
    assert list(worker.read(tickets[0])) == []
    wait_for(lambda: other.registry.counts().direct_reads == 1, "the first read to be direct", 30)
    start_sidecar(executor, tickets[1])  # as the worker does beside its read: the second of them does not wait
    wait_for(lambda: list(worker.read(other.plan(NO_RECORDS)[0])) == [] and other.registry.homes(), "a home", 30)
    assert sidecars_of(one, executor) == sidecars_of(other, executor)


def test_a_failure_with_one_query_is_none_of_another(queries: tuple[Query, Query], executor: Executor) -> None:
    one, other = queries
    (ticket, *_) = one.plan(NO_RECORDS)
    one.server.close()
    start_sidecar(executor, ticket)
    assert [mark.name for mark in one.place(executor).folder.glob("no-*")] == [f"no-sidecar-{one.registry.query}"]
    read_at_home(other, executor)
