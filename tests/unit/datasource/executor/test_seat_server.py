"""A seat's server, and logs that are cut and grow again. All else is tested on a real Kafka (test_sidecar_reads)."""

import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from ctypes import CDLL
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Message
from confluent_kafka import TopicPartition as AssignedPartition
from harness.fetch_broker import FetchBroker, answering
from harness.record_batches import Batch, Record
from harness.waiting import wait_for

from pyspark_kgroup.executor.batch_stream import receive
from pyspark_kgroup.executor.native.broker_connection import Broker
from pyspark_kgroup.executor.native.connection_security import ConnectionSecurity
from pyspark_kgroup.executor.native.fetch_settings import FetchSettings
from pyspark_kgroup.executor.sidecar import librdkafka_prefetcher, seat_server
from pyspark_kgroup.executor.sidecar.librdkafka_prefetcher import LibrdkafkaPrefetcher
from pyspark_kgroup.executor.sidecar.native_prefetcher import NativePrefetcher
from pyspark_kgroup.executor.sidecar.prefetch_buffer import PrefetchBuffer
from pyspark_kgroup.executor.sidecar.prefetcher import NativeFirst, Prefetcher
from pyspark_kgroup.executor.sidecar.seat_server import SeatServer
from pyspark_kgroup.shared.channel import Frames, frame
from pyspark_kgroup.shared.messages import Serve, to_json
from pyspark_kgroup.shared.tickets import Leader, Position, Range
from spark_kgroup.model import TopicPartition

P0, P1 = (TopicPartition("t", partition) for partition in range(2))

Values = dict[TopicPartition, list[bytes]]


class Consumer:
    """A consumer of logs that a test rewrites: librdkafka's would need two brokers for each election.

    Attributes:
        logs: the values of each partition, from offset 0 on.
        positions: of the assigned partitions.
    """

    def __init__(self, logs: Values) -> None:
        self.logs = logs
        self.positions: dict[TopicPartition, int] = {}

    def incremental_assign(self, partitions: Sequence[AssignedPartition]) -> None:
        self.positions |= {TopicPartition(at.topic, at.partition): at.offset for at in partitions}

    def incremental_unassign(self, partitions: Sequence[AssignedPartition]) -> None:
        for at in partitions:
            del self.positions[TopicPartition(at.topic, at.partition)]

    def position(self, partitions: Sequence[AssignedPartition]) -> list[AssignedPartition]:
        return [
            AssignedPartition(at.topic, at.partition, self.positions[TopicPartition(at.topic, at.partition)])
            for at in partitions
        ]

    def poll(self, _: float) -> Message | None:
        for tp, offset in self.positions.items():
            if offset < len(self.logs[tp]):
                message = Message(*tp, offset, None, self.logs[tp][offset], timestamp=(1, 0))
                self.positions[tp] = offset + 1  # last: the test looks at it from another thread
                return message
        return None

    def consume(self, _: int, __: float) -> list[Message]:
        return []

    def close(self) -> None:
        self.positions.clear()

    @property
    def done(self) -> bool:
        """Whether all that the logs have was fetched."""
        return all(offset == len(self.logs[tp]) for tp, offset in self.positions.items())


@pytest.fixture
def consumer(monkeypatch: pytest.MonkeyPatch) -> Consumer:
    consumer = Consumer({tp: [b"old"] * 10 for tp in (P0, P1)})
    monkeypatch.setattr(librdkafka_prefetcher, "Consumer", lambda *_, **__: consumer)
    return consumer


@contextmanager
def serving(ahead: PrefetchBuffer, prefetcher: Prefetcher) -> Iterator[socket.socket]:
    """The sidecar's end of a server that runs."""
    ours, its = socket.socketpair()
    server = threading.Thread(target=SeatServer(its, ahead, prefetcher).run)
    with ours, its:
        server.start()
        yield ours
        ours.shutdown(socket.SHUT_RDWR)
        server.join(30)
        assert not server.is_alive()


@pytest.fixture
def control(consumer: Consumer) -> Iterator[socket.socket]:
    """The sidecar's end of a server that fetches with librdkafka."""
    ahead = PrefetchBuffer()
    with serving(ahead, LibrdkafkaPrefetcher(ahead, lambda: 1024 * 1024, {}, include_headers=False)) as control:
        yield control


def read(
    control: socket.socket,
    first: int,
    end: int,
    tags: dict[TopicPartition, str],
    leaders: Mapping[TopicPartition, Leader] | None = None,
    *,
    owned: int | None = None,
    ready: int | None = None,
) -> Values:
    """The values that the server sends for these offsets of both partitions.

    Args:
        owned: where the next batch begins, if the read is a piece of a share.
        ready: how many rows must have been there.
    """
    here, there = socket.socketpair()
    request = Serve(
        ranges=tuple(Range(*tp, first, end, (leaders or {}).get(tp)) for tp in tags),
        owned=tuple(Position(*tp, owned or end, tag) for tp, tag in tags.items()),
        tells_sizes=False,
    )
    with here:
        with there:
            socket.send_fds(control, [frame(to_json(request))], [there.fileno()])
        rows = [row for batch in receive(here, False, 30) for row in batch.to_pylist()]
    frames = Frames()
    frames.feed(control.recv(65_536))
    finished = frames.next()
    assert finished is not None
    assert finished["op"] == "finished"
    assert finished["rows"] == len(rows)
    assert ready in (None, finished["ready"])
    assert [row["offset"] for row in rows if row["partition"] == 1] == list(range(first, end))
    return {tp: [row["value"] for row in rows if row["partition"] == tp.partition] for tp in tags}


def test_only_the_partition_whose_tag_has_changed_is_fetched_again(consumer: Consumer, control: socket.socket) -> None:
    """1. all is fetched ahead, 2. both logs are cut and grow again, 3. one of them is known to have another leader."""
    assert read(control, 0, 2, {P0: "x/1", P1: "x/1"}) == {P0: [b"old"] * 2, P1: [b"old"] * 2}
    wait_for(lambda: consumer.done, "all to be fetched")
    for log in consumer.logs.values():
        log[1:] = [b"new"] * 12
    assert read(control, 2, 5, {P0: "x/1", P1: "x/2"}) == {P0: [b"old"] * 3, P1: [b"new"] * 3}
    wait_for(lambda: consumer.done, "all to be fetched")
    assert read(control, 5, 13, {P0: "x/1", P1: "x/2"}) == {P0: [b"old"] * 5 + [b"new"] * 3, P1: [b"new"] * 8}


def test_behind_a_piece_the_server_fetches_what_the_next_batch_begins_with(
    consumer: Consumer, control: socket.socket
) -> None:
    """Other tasks read the rest of its share: the server does not fetch 2..6."""
    for log in consumer.logs.values():
        log[:] = [str(offset).encode() for offset in range(10)]
    assert read(control, 0, 2, {P0: "x/1", P1: "x/1"}, owned=6) == {P0: [b"0", b"1"], P1: [b"0", b"1"]}
    wait_for(lambda: consumer.done, "all to be fetched")
    assert read(control, 6, 10, {P0: "x/1", P1: "x/1"}, ready=8)[P0] == [b"6", b"7", b"8", b"9"]


def test_a_read_after_a_certificate_was_renewed_begins_with_a_new_consumer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """librdkafka reads certificates when a consumer is made. One that it cannot read yet makes no new consumer."""
    ca, ahead = tmp_path / "ca.pem", PrefetchBuffer()
    ca.write_text("the first one")
    logs: Values = {tp: [str(offset).encode() for offset in range(10)] for tp in (P0, P1)}
    made: list[tuple[str, Consumer]] = []

    def consumer_with(config: Mapping[str, Any], **_: Any) -> Consumer:
        text = Path(config["ssl.ca.location"]).read_text()
        if not text:
            raise KafkaException("no certificate in it")
        made.append((text, Consumer(logs)))
        return made[-1][1]

    monkeypatch.setattr(librdkafka_prefetcher, "Consumer", consumer_with)
    config = {"ssl.ca.location": str(ca)}
    with serving(ahead, LibrdkafkaPrefetcher(ahead, lambda: 1 << 20, config, include_headers=False)) as control:
        tags = {P0: "x/1", P1: "x/1"}
        for first, text, consumers in ((0, "", 1), (2, "the next one", 1), (4, "the next one", 2), (6, "", 2)):
            expected = [str(offset).encode() for offset in (first, first + 1)]
            assert read(control, first, first + 2, tags) == {P0: expected, P1: expected}
            wait_for(lambda: made[-1][1].done, "all to be fetched")
            assert len(made) == consumers
            if ca.read_text() != text:
                ca.write_text(text)
    assert [text for text, _ in made] == ["the first one", "the next one"]
    assert made[0][1].positions == {}, "closed"
    assert "the earlier ones stay in use: no certificate in it" in caplog.text


@pytest.fixture
def deaf_listener() -> Iterator[Broker]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield Broker(*listener.getsockname())


@pytest.mark.parametrize("silent", ["at once", "after the connection"])
def test_partitions_of_a_silent_broker_are_read_with_librdkafka_after_all_others_by_the_same_server(
    library: CDLL, consumer: Consumer, deaf_listener: Broker, silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the server takes itself for stalled: all that it has fetched ahead would be lost with it."""
    monkeypatch.setattr(seat_server, "SEAT_SERVER_STALL_MS", 20_000)  # of which half is not needed on a busy machine
    ahead = PrefetchBuffer()

    def native() -> NativePrefetcher:
        parts = (library, FetchSettings.of({}), ConnectionSecurity())
        return NativePrefetcher(ahead, lambda: 1 << 20, *parts, include_headers=False)

    def librdkafka() -> LibrdkafkaPrefetcher:
        return LibrdkafkaPrefetcher(ahead, lambda: 1 << 20, {}, include_headers=False)

    batch = Batch([Record(offset, None, b"new") for offset in range(10)]).encoded()
    broker = FetchBroker(answering(lambda _, at: batch if at < 10 else b""))
    with broker, FetchBroker(lambda _: None) as dumb:
        dead = (
            dumb.leader(1)
            if silent == "after the connection"
            else broker.leader(1)._replace(host=deaf_listener.host, port=deaf_listener.port)
        )
        leaders = {P0: dead, P1: broker.leader(2)}
        with serving(ahead, NativeFirst(native, librdkafka)) as control:
            tags = {P0: "x/1", P1: "x/1"}
            assert read(control, 0, 10, tags, leaders) == {P0: [b"old"] * 10, P1: [b"new"] * 10}
