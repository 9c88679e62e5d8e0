"""A seat's server: logs that are cut and grow again, and a seat that it cannot fetch. A real Kafka has the rest.

(`tests/kafka/test_sidecar_reads.py`)
"""

import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import pyarrow as pa
import pytest
from harness.fetch_broker import FetchBroker, answering, partition, wanted
from harness.record_batches import Batch, Record
from harness.waiting import wait_for

from pyspark_kgroup.executor.batch_stream import receive
from pyspark_kgroup.executor.native.decode import FallbackToLibrdkafka
from pyspark_kgroup.executor.sidecar import seat_processes, seat_server
from pyspark_kgroup.executor.sidecar.prefetch_buffer import PrefetchBuffer
from pyspark_kgroup.executor.sidecar.prefetcher import Prefetcher
from pyspark_kgroup.executor.sidecar.seat_processes import PrefetchQuota
from pyspark_kgroup.executor.sidecar.seat_server import SeatServer
from pyspark_kgroup.shared.arrow import arrow_schema
from pyspark_kgroup.shared.channel import Frames, frame
from pyspark_kgroup.shared.messages import (
    CannotFetch,
    Finished,
    QueryMessage,
    Serve,
    StartSeatServer,
    WorkerGone,
    parse,
    to_json,
)
from pyspark_kgroup.shared.tickets import Leader, OffsetRange, Position
from spark_kgroup.model import ErrorCode, TopicPartition

P0, P1 = (TopicPartition("t", partition) for partition in range(2))

Values = dict[TopicPartition, list[bytes]]

pytestmark = pytest.mark.usefixtures("library")


class Logs:
    """A broker with logs that a test rewrites: a real Kafka would need two brokers for each election.

    Attributes:
        values: of each partition, from offset 0 on.
        refused_from: partition -> the offset from which on the broker answers with an error.
    """

    def __init__(self, values: Values) -> None:
        self.values = values
        self.refused_from: dict[TopicPartition, int] = {}
        self.broker = FetchBroker(answering(self._records))

    def _records(self, number: int, offset: int) -> Any:
        tp = TopicPartition("t", number)
        if offset >= self.refused_from.get(tp, sys.maxsize):
            return partition(number, error=ErrorCode.UNKNOWN_SERVER_ERROR)
        values = self.values[tp][offset : offset + 1]
        return Batch([Record(offset, None, values[0])]).encoded() if values else b""

    def leaders(self) -> dict[TopicPartition, Leader]:
        return dict.fromkeys(self.values, self.broker.leader())

    def await_ends_asked_for(self) -> None:
        """Wait until all that the logs have was fetched: a request asks for records past their ends."""

        def at_ends() -> bool:
            asked = {(number, at) for _, number, at in wanted(self.broker.fetches[-1])}
            return asked == {(tp.partition, len(values)) for tp, values in self.values.items()}

        wait_for(at_ends, "all to be fetched")


@pytest.fixture
def logs() -> Iterator[Logs]:
    logs = Logs({tp: [b"old"] * 10 for tp in (P0, P1)})
    with logs.broker:
        yield logs


@contextmanager
def serving() -> Iterator[socket.socket]:
    """The sidecar's end of a server that runs."""
    host = StartSeatServer(seat="g-0", config={}, headers=False, timestamps=True)
    share = PrefetchQuota()
    share.set(1 << 20)
    ours, its = socket.socketpair()
    server = threading.Thread(target=seat_processes._serve, args=(host, its, share))
    with ours:
        server.start()
        yield ours
        ours.shutdown(socket.SHUT_RDWR)
        server.join(30)
        assert not server.is_alive()


@pytest.fixture
def control() -> Iterator[socket.socket]:
    with serving() as control:
        yield control


def ask(control: socket.socket, request: Serve) -> socket.socket:
    """Let the server serve a read. Returns the worker's socket."""
    here, there = socket.socketpair()
    with there:
        socket.send_fds(control, [frame(to_json(request))], [there.fileno()])
    return here


def answer(control: socket.socket) -> QueryMessage:
    """What the server tells the sidecar next."""
    frames = Frames()
    frames.feed(control.recv(65_536))
    message = frames.next()
    assert message is not None
    return parse(message)


def read(
    control: socket.socket,
    first: int,
    end: int,
    tags: dict[TopicPartition, str],
    leaders: Mapping[TopicPartition, Leader],
    *,
    owned: int | None = None,
    ready: int | None = None,
) -> Values:
    """The values that the server sends for these offsets of both partitions.

    Args:
        owned: where the next batch begins, if the read is a piece of a share.
        ready: how many rows must have been there.
    """
    request = Serve(
        ranges=tuple(OffsetRange(*tp, first, end, leaders[tp]) for tp in tags),
        owned=tuple(Position(*tp, owned or end, tag, leaders[tp]) for tp, tag in tags.items()),
        tells_sizes=False,
    )
    with ask(control, request) as worker:
        rows = [row for batch in receive(worker, False, 30) for row in batch.to_pylist()]
    finished = answer(control)
    assert isinstance(finished, Finished)
    assert finished.rows == len(rows)
    assert ready in (None, finished.ready)
    assert [row["offset"] for row in rows if row["partition"] == 1] == list(range(first, end))
    return {tp: [row["value"] for row in rows if row["partition"] == tp.partition] for tp in tags}


def test_only_the_partition_whose_tag_has_changed_is_fetched_again(logs: Logs, control: socket.socket) -> None:
    """1. all is fetched ahead, 2. both logs are cut and grow again, 3. one of them is known to have another leader."""
    leaders = logs.leaders()
    assert read(control, 0, 2, {P0: "x/1", P1: "x/1"}, leaders) == {P0: [b"old"] * 2, P1: [b"old"] * 2}
    logs.await_ends_asked_for()
    for log in logs.values.values():
        log[1:] = [b"new"] * 12
    changed = {P0: "x/1", P1: "x/2"}
    assert read(control, 2, 5, changed, leaders) == {P0: [b"old"] * 3, P1: [b"new"] * 3}
    logs.await_ends_asked_for()
    assert read(control, 5, 13, changed, leaders) == {P0: [b"old"] * 5 + [b"new"] * 3, P1: [b"new"] * 8}


def test_behind_a_piece_the_server_fetches_the_beginning_of_the_next_batch(logs: Logs, control: socket.socket) -> None:
    """Other tasks read the rest of its share: the server does not fetch 2..6."""
    leaders = logs.leaders()
    for log in logs.values.values():
        log[:] = [str(offset).encode() for offset in range(10)]
    tags = {P0: "x/1", P1: "x/1"}
    assert read(control, 0, 2, tags, leaders, owned=6) == {P0: [b"0", b"1"], P1: [b"0", b"1"]}
    logs.await_ends_asked_for()
    assert read(control, 6, 10, tags, leaders, ready=8)[P0] == [b"6", b"7", b"8", b"9"]


# ------------------------------------------------------------------------------------------- a seat that is not fetched


@contextmanager
def silent_leader(how: str, broker: FetchBroker) -> Iterator[Leader]:
    """A broker that refuses all clients, or one that lets us in and then answers no request."""
    if how == "after the connection":
        with FetchBroker(lambda _: None) as dumb:
            yield dumb.leader(1)
        return
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        yield broker.leader(1)._replace(host=host, port=port)


@pytest.mark.parametrize("how", ["at once", "after the connection"])
def test_a_server_whose_broker_is_silent_sends_the_rest_first_and_ends(
    logs: Logs, control: socket.socket, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the server takes itself for stalled: all that it has fetched ahead would be lost with it."""
    monkeypatch.setattr(seat_server, "SEAT_SERVER_STALL_MS", 20_000)  # of which half is not needed on a busy machine
    with silent_leader(how, logs.broker) as silent:
        leaders = {P0: silent, P1: logs.broker.leader(2)}
        request = Serve(
            ranges=tuple(OffsetRange(*tp, 0, 10, leader) for tp, leader in leaders.items()),
            owned=tuple(Position(*tp, 10, "x/1", leader) for tp, leader in leaders.items()),
            tells_sizes=False,
        )
        assert offsets_until_cut_off(ask(control, request)) == [(1, offset) for offset in range(10)]
        refused = answer(control)
    assert isinstance(refused, CannotFetch)
    assert "did not answer in time" in refused.reason
    assert control.recv(1) == b"", "the server has ended"


def test_a_server_ends_in_a_read_before_a_range_that_is_left_to_librdkafka(logs: Logs, control: socket.socket) -> None:
    logs.refused_from[P0] = 4
    leaders = logs.leaders()
    request = Serve(
        ranges=(OffsetRange(*P0, 0, 10, leaders[P0]),),
        owned=(Position(*P0, 10, "x/1", leaders[P0]),),
        tells_sizes=False,
    )
    assert offsets_until_cut_off(ask(control, request)) == [(0, offset) for offset in range(4)]
    assert answer(control) == CannotFetch(reason="t-0: UNKNOWN_SERVER_ERROR", lasting=False)


@pytest.mark.parametrize(("where", "lasting"), [("make_prefetcher", True), ("SeatServer", False)])
def test_a_server_says_that_it_cannot_start_or_that_it_cannot_go_on(
    monkeypatch: pytest.MonkeyPatch, where: str, lasting: bool
) -> None:
    """A process without the decoder never has it. A record in an old format is past when its worker has read it."""

    def refuse(*_: object) -> object:
        raise FallbackToLibrdkafka("the reason", lasting=True)

    monkeypatch.setattr(seat_processes, where, refuse)
    with serving() as control:
        assert answer(control) == CannotFetch(reason="the reason", lasting=lasting)


def test_a_server_ends_between_reads_if_no_partition_is_left_that_it_can_fetch(
    logs: Logs, control: socket.socket
) -> None:
    leaders = logs.leaders()
    assert read(control, 0, 2, {P0: "x/1", P1: "x/1"}, leaders)[P0] == [b"old"] * 2
    logs.refused_from |= {P0: 0, P1: 0}
    refused = answer(control)
    assert isinstance(refused, CannotFetch)
    assert "UNKNOWN_SERVER_ERROR" in refused.reason


class Refusing:
    """A prefetcher that has rows of `P0` at the first look of a read, and cannot go on at the second."""

    def __init__(self, ahead: PrefetchBuffer) -> None:
        self._ahead = ahead
        self._looks = 0

    def fetch(self, _: object) -> None:
        self._looks += 1
        if self._looks > 1:
            raise FallbackToLibrdkafka("t-0: an old format")
        row = {"topic": "t", "partition": 0, "offset": 0, "value": b"v", "timestampType": 0}
        self._ahead.add(pa.RecordBatch.from_pylist([row], arrow_schema(False)), P0)

    def connections(self) -> tuple[()]:
        return ()

    def nothing(self, *_: object) -> None: ...

    begin = end = flush = prefetch = take = nothing


def test_a_server_that_cannot_go_on_ends_though_its_worker_has_gone_just_then() -> None:
    """Its prefetcher has forgotten records that came behind: the next read would not have them."""
    ours, its = socket.socketpair()
    ahead = PrefetchBuffer()
    server = SeatServer(its, ahead, cast("Prefetcher", Refusing(ahead)))
    request = Serve(ranges=(OffsetRange(*P0, 0, 10),), owned=(Position(*P0, 10, "x/1"),), tells_sizes=False)
    with ours, its:
        ask(ours, request).close()
        ours.shutdown(socket.SHUT_WR)  # no other request comes
        with pytest.raises(FallbackToLibrdkafka, match="an old format"):
            server.run()
        assert answer(ours) == WorkerGone()


def offsets_until_cut_off(worker: socket.socket) -> list[tuple[int, int]]:
    """(partition, offset) of the rows that the server sends before it hangs up in the midst of the read."""
    found: list[tuple[int, int]] = []

    def take() -> None:
        for batch in receive(worker, False, 30):
            found.extend(zip(batch["partition"].to_pylist(), batch["offset"].to_pylist(), strict=True))

    with worker, pytest.raises(ConnectionResetError):
        take()
    return sorted(found)
