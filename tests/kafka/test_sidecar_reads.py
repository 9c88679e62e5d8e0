"""Tickets read through an executor's sidecar: librdkafka's rows, mostly there before they are asked for."""

import os
import pickle
import signal
import socket
import threading
from collections.abc import Generator, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from harness.kafka import MakeTopic, produce, run_transaction
from harness.odd_servers import firewalled_port
from harness.sidecars import (
    Query,
    Rows,
    await_gone,
    kill,
    let_retry_time_pass,
    read_on,
    rows_of,
    seat_servers_of,
    sidecars_of,
    sleeping_executor,
    with_registry_at,
)
from harness.waiting import wait_for

from pyspark_kgroup.errors import RegistryUnreachable, SeatRefused
from pyspark_kgroup.executor.read.range_reader import read_with_librdkafka
from pyspark_kgroup.executor.worker import registry_client, ticket_reader
from pyspark_kgroup.executor.worker.ticket_reader import Worker
from pyspark_kgroup.shared.tickets import Executor, Mode, OffsetRange, TicketPayload
from spark_kgroup.testing import ApacheKafka
from spark_kgroup.wire import names

PARTITIONS = 4
RECORDS = 40_000
"""Records in each partition. They are 15 MB in all: more than a Unix socket holds, or a `small_receive_buffer`."""

ALL = dict.fromkeys(range(PARTITIONS), (0, RECORDS))


@pytest.fixture(scope="session")  # not of the module: one process need not run all of its tests
def topic(apache_kafka: ApacheKafka, new_topic: MakeTopic) -> str:
    name = new_topic(PARTITIONS)
    for first in range(0, RECORDS * PARTITIONS, RECORDS):
        produce(apache_kafka.bootstrap_servers, name, RECORDS, partitions=PARTITIONS, first=first, size=90)
    return name


@pytest.fixture
def query(apache_kafka: ApacheKafka, topic: str) -> Iterator[Query]:
    """Two seats with two partitions each."""
    with Query(apache_kafka.bootstrap_servers, topic, {"seat-0": [0, 1], "seat-1": [2, 3]}) as query:
        yield query


@pytest.fixture
def one_seat(apache_kafka: ApacheKafka, topic: str) -> Iterator[Query]:
    with Query(apache_kafka.bootstrap_servers, topic, {"seat-0": range(PARTITIONS)}) as query:
        yield query


def directly(query: Query, first: int, end: int, *partitions: int) -> Rows:
    ranges = tuple(OffsetRange(query.topic, p, first, end) for p in partitions or range(PARTITIONS))
    return sorted(rows_of(read_with_librdkafka(ranges, query.settings)))


def in_order(rows: Rows) -> bool:
    """Whether the offsets of each partition rise."""
    return all(
        offsets == sorted(offsets)
        for p in range(PARTITIONS)
        if (offsets := [offset for partition, offset, _ in rows if partition == p])
    )


def spans(first: int, end: int, *partitions: int) -> dict[int, tuple[int, int]]:
    return dict.fromkeys(partitions or range(PARTITIONS), (first, end))


def ready(query: Query) -> int:
    return query.registry.counts().rows_ready


def readied(query: Query, before: int, count: int) -> bool:
    return ready(query) >= before + count


# --------------------------------------------------------------------------------------------------- the same rows


def test_batches_have_the_rows_of_read_range_and_later_ones_are_there_already(query: Query, executor: Executor) -> None:
    for number in range(5):
        before = ready(query)
        rows = query.run(executor, spans(number * 500, number * 500 + 500))
        assert sorted(rows) == directly(query, number * 500, number * 500 + 500)
        assert in_order(rows)
        if number > 0:
            wait_for(partial(readied, query, before, 1_000), "one seat's rows at least to be ready")
    (sidecar,) = sidecars_of(query, executor)
    assert len(seat_servers_of(sidecar)) == 2
    assert query.registry.counts().guest_bindings == 0
    wait_for(lambda: query.registry.counts().warm_reads == 10, "all reads to be counted")
    assert all(home.warm for home in query.registry.homes().values())


def test_a_large_batch_comes_in_many_and_in_order(query: Query, executor: Executor) -> None:
    rows = query.run(executor, ALL)
    assert in_order(rows)
    assert sorted(rows) == directly(query, 0, RECORDS)


def test_a_ticket_travels_and_is_read_again_with_the_same_rows(one_seat: Query, executor: Executor) -> None:
    (ticket,) = one_seat.plan(spans(100, 2_000))
    travelled: TicketPayload = pickle.loads(pickle.dumps(ticket))
    assert repr(one_seat.server.key) not in repr(ticket)
    first = rows_of(read_on(executor, travelled))
    again = rows_of(read_on(executor, travelled))
    assert sorted(first) == sorted(again) == directly(one_seat, 100, 2_000)
    assert sorted(one_seat.run(executor, spans(2_000, 3_000))) == directly(one_seat, 2_000, 3_000)


def test_offsets_that_no_task_reads_are_skipped(one_seat: Query, executor: Executor) -> None:
    for first, end in ((0, 100), (150, 300), (20_000, 20_100), (5, 50)):  # a little ahead, far ahead, back
        assert sorted(one_seat.run(executor, spans(first, end))) == directly(one_seat, first, end)


def test_a_worker_that_stops_early_costs_no_other_worker_a_row(one_seat: Query, executor: Executor) -> None:
    (ticket,) = one_seat.plan(ALL)
    reading = read_on(executor, ticket)
    next(reading)
    assert isinstance(reading, Generator)
    reading.close()
    assert sorted(rows_of(read_on(executor, ticket))) == directly(one_seat, 0, RECORDS)
    (sidecar,) = sidecars_of(one_seat, executor)
    assert len(seat_servers_of(sidecar)) == 1


def test_a_second_reader_of_a_busy_seat_reads_by_itself(one_seat: Query, executor: Executor) -> None:
    (ticket,) = one_seat.plan(ALL)
    reading = read_on(executor, ticket)
    first = next(reading)
    assert sorted(rows_of(read_on(executor, ticket))) == directly(one_seat, 0, RECORDS)
    assert sorted(rows_of([first]) + rows_of(reading)) == directly(one_seat, 0, RECORDS)
    wait_for(lambda: one_seat.registry.counts().direct_reads == 1, "the second reader to be counted")


def test_partitions_that_stay_keep_their_fetched_records(query: Query, executor: Executor) -> None:
    query.run(executor, spans(0, 100))
    query.run(executor, spans(100, 200))
    query.owned |= {"seat-0": [0], "seat-1": [1, 2, 3]}
    before = ready(query)
    assert sorted(query.run(executor, spans(200, 300))) == directly(query, 200, 300)
    wait_for(lambda: ready(query) >= before + 300, "the rows of the three that stayed to be ready")
    assert sorted(query.run(executor, spans(300, 400))) == directly(query, 300, 400)


def test_records_fetched_ahead_of_a_log_that_may_be_another_by_now_are_dropped(
    one_seat: Query, executor: Executor
) -> None:
    for number in range(3):
        one_seat.run(executor, spans(number * 100, number * 100 + 100))
    wait_for(lambda: one_seat.registry.counts().warm_reads == 3, "three reads to be counted")
    before = ready(one_seat)
    one_seat.tags[1] = "second"
    assert sorted(one_seat.run(executor, spans(300, 400))) == directly(one_seat, 300, 400)
    wait_for(lambda: one_seat.registry.counts().warm_reads == 4, "the fourth to be counted")
    assert before < ready(one_seat) <= before + 300, "that of the three other partitions is kept"
    before = ready(one_seat)
    one_seat.tags = dict.fromkeys(range(PARTITIONS), "third")
    assert sorted(one_seat.run(executor, spans(400, 500))) == directly(one_seat, 400, 500)
    wait_for(lambda: one_seat.registry.counts().warm_reads == 5, "the fifth to be counted")
    assert ready(one_seat) == before


def test_a_range_may_end_with_the_marker_of_a_transaction(
    apache_kafka: ApacheKafka, executor: Executor, transactions: Producer
) -> None:
    name = f"sidecar-{uuid4().hex[:8]}"
    apache_kafka.create_topic(name, partitions=1)
    for committed in (True, False, True):  # 0-9, marker 10, aborted 11-20, marker 21, 22-31, marker 32
        run_transaction(transactions, name, [b"%d" % number for number in range(10)], commit=committed)
    isolation: dict[str, Any] = {"kafka.isolation.level": "read_committed"}
    with Query(apache_kafka.bootstrap_servers, name, {"seat-0": [0]}, **isolation) as query:
        for first, end, offsets in (
            (0, 11, range(10)),
            (11, 15, ()),
            (15, 22, ()),
            (22, 23, (22,)),
            (23, 33, range(23, 32)),
        ):
            assert [offset for _, offset, _ in query.run(executor, {0: (first, end)})] == list(offsets)
        wait_for(lambda: query.registry.counts().warm_reads == 5, "all five to be served by the seat's server")


def test_a_record_larger_than_the_budget_passes(apache_kafka: ApacheKafka, executor: Executor) -> None:
    name, size = f"sidecar-{uuid4().hex[:8]}", 10 * 1024 * 1024
    apache_kafka.create_topic(name, partitions=1, configs={"max.message.bytes": str(16 * 1024 * 1024)})
    limits = {"message.max.bytes": 16 * 1024 * 1024, "enable.idempotence": True}
    large = Producer({"bootstrap.servers": apache_kafka.bootstrap_servers, **limits})
    for value in (b"a", bytes(size), b"b", bytes(size), b"c"):
        large.produce(name, value, partition=0)
    assert large.flush(60) == 0
    with Query(apache_kafka.bootstrap_servers, name, {"seat-0": [0]}, prefetch_bytes=1024 * 1024) as query:
        for first, end in ((0, 1), (1, 2), (2, 5)):
            rows = query.run(executor, {0: (first, end)})
            assert [len(value) for _, _, value in rows] == [1, size, 1, size, 1][first:end]
        wait_for(lambda: query.registry.counts().warm_reads == 3, "all three to be served by the seat's server")


def test_memory_for_records_fetched_ahead_is_bounded(apache_kafka: ApacheKafka, topic: str, executor: Executor) -> None:
    budget = 4 * 1024 * 1024
    seats = {"seat-0": range(PARTITIONS)}
    with Query(apache_kafka.bootstrap_servers, topic, seats, prefetch_bytes=budget) as query:
        query.run(executor, spans(0, 10))
        (server,) = seat_servers_of(sidecars_of(query, executor)[0])
        small = anonymous_bytes(server)
        for end in range(100, 3_000, 100):
            query.run(executor, spans(end - 100 if end > 100 else 10, end))
        assert ready(query) > 0
        assert anonymous_bytes(server) < small + 8 * budget
        # records further on in the first partition must not take the room of the other partitions
        rows = query.run(executor, {**spans(2_900, RECORDS), 0: (2_900, 3_000)})
        rows += query.run(executor, {0: (3_000, RECORDS)})
        assert sorted(rows) == directly(query, 2_900, RECORDS)
        wait_for(lambda: query.registry.counts().warm_reads == 32, "all to be served by the seat's server")


def anonymous_bytes(pid: int) -> int:
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in rollup if line.startswith("Anonymous:"))


def test_a_seat_that_has_moved_has_no_server_any_more(query: Query, executor: Executor) -> None:
    for number in range(2):
        query.run(executor, spans(number * 100, number * 100 + 100))
    (sidecar,) = sidecars_of(query, executor)
    assert len(seat_servers_of(sidecar)) == 2
    with sleeping_executor("2") as other:
        list(read_on(other, query.plan(spans(200, 300))[0]))  # a newcomer, which is due one of two seats
        wait_for(lambda: len(seat_servers_of(sidecar)) == 1, "the server of the seat that moved to end")
    wait_for(lambda: len(query.registry.homes()) == 1, "the newcomer to go again")
    reads = query.registry.counts().warm_reads
    for number in range(3, 5):  # both seats are at home here again, the one that comes back in a server of its own
        rows = query.run(executor, spans(number * 100, number * 100 + 100))
        assert sorted(rows) == directly(query, number * 100, number * 100 + 100)
    wait_for(lambda: query.registry.counts().warm_reads == reads + 4, "all to be served by the seats' servers")
    assert len(seat_servers_of(sidecar)) == 2


# ------------------------------------------------------------------------------------- seats that are not fetched ahead


def test_with_librdkafka_no_record_is_fetched_ahead_and_workers_read_directly(
    apache_kafka: ApacheKafka, topic: str, executor: Executor
) -> None:
    seats = {"seat-0": [0, 1], "seat-1": [2, 3]}
    with Query(apache_kafka.bootstrap_servers, topic, seats, reader="librdkafka") as query:
        for first in (0, 500):
            assert sorted(query.run(executor, spans(first, first + 500))) == directly(query, first, first + 500)
        wait_for(lambda: query.registry.counts().direct_reads == 4, "all reads to be counted")
        assert query.registry.counts().warm_reads == 0
        (sidecar,) = sidecars_of(query, executor)
        assert seat_servers_of(sidecar) == []


def test_a_seat_that_its_server_cannot_fetch_is_read_by_the_worker_at_once_and_for_a_while(
    apache_kafka: ApacheKafka, topic: str, executor: Executor
) -> None:
    """The driver does not know who leads its partitions: librdkafka finds out."""
    seats = {"seat-0": range(PARTITIONS)}
    with Query(apache_kafka.bootstrap_servers, topic, seats, leaders=lambda *_: {}) as query:
        assert sorted(query.run(executor, spans(0, 500))) == directly(query, 0, 500)
        (sidecar,) = sidecars_of(query, executor)
        wait_for(lambda: seat_servers_of(sidecar) == [], "the server to end")
        assert sorted(query.run(executor, spans(500, 1_000))) == directly(query, 500, 1_000)
        wait_for(lambda: query.registry.counts().direct_reads == 1, "the second read to be counted")
        assert query.registry.counts().warm_reads == 0


# ------------------------------------------------------------------------------------------- two executors, or none


def test_a_ticket_read_on_another_executor_is_a_guest(query: Query, executor: Executor) -> None:
    with sleeping_executor("2") as other:
        for number in range(2):
            one, two = query.plan(spans(number * 100, number * 100 + 100))
            rows = rows_of(read_on(executor, one)) + rows_of(read_on(other, two))
            assert sorted(rows) == directly(query, number * 100, number * 100 + 100)
        one, two = query.plan(spans(200, 300))
        assert one.mode is Mode.LATE
        rows = rows_of(read_on(executor, one)) + rows_of(read_on(executor, two))
        third = query.plan(spans(300, 400))[0]
        rows += rows_of(read_on(other, third)) + rows_of(read_on(executor, replace(third, ticket=1)))
        assert sorted(rows) == directly(query, 200, 400)
        assert {home.executor.executor_id for home in query.registry.homes().values()} == {"1", "2"}


@pytest.fixture
def sharing(apache_kafka: ApacheKafka, topic: str) -> Iterator[Query]:
    """A query whose executors send each other records."""
    with Query(apache_kafka.bootstrap_servers, topic, {"seat-0": range(PARTITIONS)}, homes_serve_others=True) as query:
        yield query


def test_a_guest_gets_from_the_home_the_records_that_were_fetched_ahead_there(
    sharing: Query, executor: Executor
) -> None:
    with sleeping_executor("2") as other:
        guest = replace(other, has_sidecar=False)
        assert sorted(sharing.run(executor, spans(0, 500))) == directly(sharing, 0, 500)
        for first in (500, 1_000, 1_500):
            before = ready(sharing)
            rows = sharing.run(guest, spans(first, first + 500))
            assert sorted(rows) == directly(sharing, first, first + 500)
            assert in_order(rows)
            wait_for(partial(readied, sharing, before, 1_000), "half of the rows to be ready")
        counts = sharing.registry.counts()
        assert (counts.warm_reads, counts.network_reads, counts.direct_reads) == (1, 3, 0)


@pytest.fixture
def small_receive_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    """TCP connections receive at most 64 KiB ahead. By itself Linux lets the buffer grow up to 32 MiB, all of `ALL`."""
    connect = names.connect

    def connect_with_a_small_buffer(*address: Any, **bounds: Any) -> socket.socket:
        connected = connect(*address, **bounds)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        return connected

    monkeypatch.setattr(names, "connect", connect_with_a_small_buffer)


@pytest.mark.usefixtures("small_receive_buffer")
def test_a_guest_goes_on_directly_when_the_home_ends_in_the_midst_of_a_read(sharing: Query, executor: Executor) -> None:
    with sleeping_executor("2") as other:
        sharing.run(executor, spans(0, 10))
        (sidecar,) = sidecars_of(sharing, executor)
        servers = seat_servers_of(sidecar)
        (ticket,) = sharing.plan(dict.fromkeys(range(PARTITIONS), (10, RECORDS)))
        reading = Worker(replace(other, has_sidecar=False)).read(ticket)
        rows = rows_of([next(reading)])
        kill(sidecar)
        await_gone([sidecar, *servers])
        rows += rows_of(reading)
        assert sorted(rows) == directly(sharing, 10, RECORDS)
        wait_for(lambda: sharing.registry.counts().direct_reads == 1, "the rest to be read directly")


def test_a_guest_that_finds_a_server_hung_reads_directly_and_the_home_replaces_the_server(
    sharing: Query, executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ticket_reader, "SEAT_SERVER_SILENCE_MS", 1_000)
    with sleeping_executor("2") as other:
        guest = replace(other, has_sidecar=False)
        sharing.run(executor, spans(0, 10))
        (sidecar,) = sidecars_of(sharing, executor)
        (server,) = seat_servers_of(sidecar)
        os.kill(server, signal.SIGSTOP)
        assert sorted(sharing.run(guest, spans(10, 100))) == directly(sharing, 10, 100)
        wait_for(lambda: sharing.registry.counts().direct_reads == 1, "the read to be a direct one")
        await_gone([server])
        sharing.run(executor, spans(100, 110))  # the home starts another server
        assert sorted(sharing.run(guest, spans(110, 200))) == directly(sharing, 110, 200)
        wait_for(lambda: sharing.registry.counts().network_reads == 1, "the new server to serve the guest")


def test_without_a_sidecar_the_worker_asks_and_reads_by_itself(
    query: Query, executor: Executor, caplog: pytest.LogCaptureFixture
) -> None:
    cold = replace(executor, has_sidecar=False)
    for first in (0, 100, 200):
        assert sorted(query.run(cold, spans(first, first + 100))) == directly(query, first, first + 100)
    assert query.plan(spans(300, 400))[0].mode is Mode.FIXED, "nobody has a home"
    assert caplog.text.count("read directly, which is slower") == 1
    assert sidecars_of(query, executor) == []


def test_a_fixed_ticket_needs_no_registry_and_a_late_one_without_it_is_refused_with_the_reason(
    query: Query, executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixed = query.plan(spans(0, 100))
    for ticket in fixed:
        list(read_on(executor, ticket))
    late = query.plan(spans(100, 200))
    unknown = replace(late[0], scan_id=77)
    with pytest.raises(SeatRefused, match="ticket 0 of scan 77"):
        list(read_on(executor, unknown))
    sidecars = sidecars_of(query, executor)
    query.server.close()
    await_gone(sidecars)
    rows = [row for ticket in fixed for row in rows_of(read_on(executor, ticket))]
    assert sorted(rows) == directly(query, 0, 100)
    monkeypatch.setattr(registry_client, "REGISTRY_PATIENCE_MS", 500)
    with pytest.raises(RegistryUnreachable, match="registryPort"):
        list(read_on(executor, late[0]))


def test_a_sidecar_is_started_when_the_registry_can_be_reached_again(query: Query, executor: Executor) -> None:
    fixed = query.plan(spans(0, 100))
    with firewalled_port() as port:
        rows = [row for ticket in fixed for row in rows_of(read_on(executor, with_registry_at(port, ticket)))]
    assert sorted(rows) == directly(query, 0, 100)
    let_retry_time_pass(query.place(executor))
    assert sorted(row for ticket in fixed for row in rows_of(read_on(executor, ticket))) == sorted(rows)
    assert len(sidecars_of(query, executor)) == 1
    wait_for(lambda: query.registry.counts().warm_reads == 2, "both to be served by the seats' servers")
    query.server.close()
    wait_for(lambda: not query.place(executor).folder.exists(), "nothing to be left")


def test_a_folder_may_lie_deeper_than_a_sockets_name_is_long(
    query: Query, executor: Executor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setenv("TMPDIR", str(deep))
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    for first in (0, 100):
        assert sorted(query.run(executor, spans(first, first + 100))) == directly(query, first, first + 100)
    wait_for(lambda: query.registry.counts().warm_reads == 4, "all to be served by the seats' servers")
    query.server.close()
    wait_for(lambda: list(deep.iterdir()) == [], "nothing to be left")


# --------------------------------------------------------------------------------------------------- killed mid-read


def test_a_seats_server_killed_in_the_midst_of_a_read_loses_no_record(one_seat: Query, executor: Executor) -> None:
    list(read_on(executor, one_seat.plan(spans(0, 10))[0]))
    (sidecar,) = sidecars_of(one_seat, executor)
    (server,) = seat_servers_of(sidecar)
    (ticket,) = one_seat.plan(spans(10, RECORDS))
    reading = read_on(executor, ticket)
    batches = [next(reading)]
    kill(server)
    batches += reading
    assert sorted(rows_of(batches)) == directly(one_seat, 10, RECORDS)
    assert in_order(rows_of(batches))
    await_gone([server])
    one_seat.run(executor, spans(0, 100))
    (replacement,) = seat_servers_of(sidecar)
    assert replacement != server
    before = ready(one_seat)
    assert sorted(one_seat.run(executor, spans(100, 200))) == directly(one_seat, 100, 200)
    wait_for(lambda: ready(one_seat) > before, "rows that the new server had ready")


def test_a_seats_server_that_hangs_loses_no_record_and_is_replaced(one_seat: Query, executor: Executor) -> None:
    list(read_on(executor, one_seat.plan(spans(0, 10))[0]))
    (sidecar,) = sidecars_of(one_seat, executor)
    (server,) = seat_servers_of(sidecar)
    os.kill(server, signal.SIGSTOP)
    assert sorted(one_seat.run(executor, spans(10, 100))) == directly(one_seat, 10, 100)
    await_gone([server])
    reads = one_seat.registry.counts().warm_reads
    assert sorted(one_seat.run(executor, spans(100, 200))) == directly(one_seat, 100, 200)
    wait_for(lambda: one_seat.registry.counts().warm_reads == reads + 1, "the new server to have served it")


def test_a_sidecar_killed_in_the_midst_of_a_read_loses_no_record_and_is_replaced(
    one_seat: Query, executor: Executor
) -> None:
    list(read_on(executor, one_seat.plan(spans(0, 10))[0]))
    (sidecar,) = sidecars_of(one_seat, executor)
    servers = seat_servers_of(sidecar)
    (ticket,) = one_seat.plan(spans(10, RECORDS))
    reading = read_on(executor, ticket)
    batches = [next(reading)]
    kill(sidecar)
    await_gone([sidecar, *servers])
    batches += reading
    assert sorted(rows_of(batches)) == directly(one_seat, 10, RECORDS)
    assert one_seat.place(executor).socket.exists()  # a killed sidecar leaves it
    worker = Worker(executor)
    assert sorted(rows_of(worker.read(one_seat.plan(spans(0, 100))[0]))) == directly(one_seat, 0, 100)
    wait_for(lambda: len(sidecars_of(one_seat, executor)) == 1, "another sidecar to listen", 30)
    reads = one_seat.registry.counts().warm_reads
    assert sorted(rows_of(worker.read(one_seat.plan(spans(100, 200))[0]))) == directly(one_seat, 100, 200)
    wait_for(lambda: one_seat.registry.counts().warm_reads == reads + 1, "its seat's server to have served it")


def test_workers_that_start_at_once_share_one_sidecar(query: Query, executor: Executor) -> None:
    tickets = query.plan(spans(0, 1_000))
    found: list[Rows] = []
    workers = [
        threading.Thread(target=lambda t=ticket: found.append(rows_of(Worker(executor).read(t))))
        for ticket in tickets * 3
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert sorted(row for rows in found for row in rows) == sorted(3 * directly(query, 0, 1_000))
    wait_for(lambda: len(sidecars_of(query, executor)) == 1, "one of them to have started a sidecar", 30)
    assert sorted(query.run(executor, spans(1_000, 2_000))) == directly(query, 1_000, 2_000)
    wait_for(lambda: query.registry.counts().warm_reads >= 2, "the last two to be served by the seats' servers")
    assert len(sidecars_of(query, executor)) == 1


def test_two_queries_have_a_sidecar_each(query: Query, one_seat: Query, executor: Executor) -> None:
    assert sorted(query.run(executor, spans(0, 50))) == sorted(one_seat.run(executor, spans(0, 50)))
    assert len({*sidecars_of(query, executor), *sidecars_of(one_seat, executor)}) == 2


@pytest.mark.parametrize("batches", [400, pytest.param(1_000, marks=pytest.mark.full)])
def test_many_batches_leak_no_descriptors_and_no_memory(query: Query, executor: Executor, batches: int) -> None:
    def used() -> list[tuple[int, int]]:
        """Descriptors and KB of this process, the sidecar and its seat servers."""
        (sidecar,) = sidecars_of(query, executor)
        return [use(pid) for pid in (os.getpid(), sidecar, *seat_servers_of(sidecar))]

    for number in range(200):
        query.run(executor, spans(number * 20, number * 20 + 20))
    before = used()
    for number in range(200, batches):
        assert len(query.run(executor, spans(number * 20, number * 20 + 20))) == 20 * PARTITIONS

    def no_more_files() -> bool:  # a server closes a worker's socket just after the worker has all
        return all(now <= then for (now, _), (then, _) in zip(used(), before, strict=True))

    wait_for(no_more_files, "as few descriptors as before")
    after = used()
    grown = [now - then for (_, now), (_, then) in zip(after, before, strict=True)]
    assert max(grown) < 15_000, f"KB by which processes grew: {grown}"


def use(pid: int) -> tuple[int, int]:
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    rss = next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))
    return len(os.listdir(f"/proc/{pid}/fd")), rss
