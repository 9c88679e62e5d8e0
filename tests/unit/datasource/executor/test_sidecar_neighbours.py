"""A sidecar and its workers beside processes that mean no good. The ranges have no records: no Kafka is needed."""

import os
import resource
import socket
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from harness.accepting import accept
from harness.sidecars import Query, await_gone, read_on, sidecars_of, sleeping_executor
from harness.waiting import wait_for

from pyspark_kgroup.errors import ChannelEnded
from pyspark_kgroup.executor.sidecar_dir import find_sidecar_dir
from pyspark_kgroup.executor.worker.ticket_reader import Worker
from pyspark_kgroup.limits import CHANNEL_REQUEST_BYTES_MAX
from pyspark_kgroup.shared.channel import Channel, Message, connect, new_key
from pyspark_kgroup.shared.tickets import Executor, Mode

NOBODY = 65534
NO_BROKER = "127.0.0.1:1"
NO_RECORDS = {0: (41, 41)}


@pytest.fixture
def executor() -> Iterator[Executor]:
    with sleeping_executor() as executor:
        yield executor


@pytest.fixture
def query() -> Iterator[Query]:
    with Query(NO_BROKER, "t", {"seat-0": [0]}, leaders=lambda *_: {}) as query:
        yield query


@pytest.fixture
def sidecar(query: Query, executor: Executor) -> Iterator[int]:
    """Its process, after a first read. It is gone with the query."""
    assert query.run(executor, NO_RECORDS) == []
    (pid,) = sidecars_of(query, executor)
    yield pid
    query.server.close()
    await_gone([pid])


# --------------------------------------------------------------------------------------- a place of another user's


class Squatter:
    """Listens where a sidecar should, in a folder that is not this user's alone, and sends no byte."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o755)
        folder.chmod(0o755)
        self._folder = folder
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(folder / "socket"))
        self._socket.listen(16)
        self._socket.setblocking(False)
        if os.geteuid() == 0:
            os.chown(folder, NOBODY, NOBODY)

    def visited(self) -> bool:
        try:
            self._socket.accept()[0].close()
        except BlockingIOError:
            return False
        return True

    def __enter__(self) -> "Squatter":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        (self._folder / "socket").unlink(missing_ok=True)
        self._folder.rmdir()


def test_a_sidecar_in_a_folder_of_another_user_is_never_asked(
    query: Query, executor: Executor, caplog: pytest.LogCaptureFixture
) -> None:
    """No worker connects to it: a peer that is silent would cost each task the patience of a handshake."""
    with Squatter(query.place(executor).folder) as squatter:
        for _ in range(3):
            assert query.run(executor, NO_RECORDS) == []
        assert not squatter.visited()
    assert "not a folder of this user alone" in caplog.text
    wait_for(lambda: query.registry.counts().direct_reads == 3, "all to be told of as read directly")
    assert query.registry.counts().guest_bindings == 0
    assert query.registry.homes() == {}


def test_a_symbolic_link_to_a_folder_is_no_place(query: Query, executor: Executor, tmp_path: Path) -> None:
    with Squatter(tmp_path / "elsewhere") as squatter:
        if os.geteuid() == 0:
            os.chown(tmp_path / "elsewhere", 0, 0)
        (tmp_path / "elsewhere").chmod(0o700)
        place = query.place(executor)
        place.folder.symlink_to(tmp_path / "elsewhere")
        assert query.run(executor, NO_RECORDS) == []
        assert not squatter.visited()
        place.folder.unlink()


def test_the_folder_of_one_executor_does_not_reveal_that_of_another() -> None:
    key = new_key()
    digests = set()
    with sleeping_executor("1") as first, sleeping_executor("2") as second:
        for executor in (first, second):
            prefix, _, digest = find_sidecar_dir(executor, key).folder.name.rpartition("-")
            assert prefix.endswith(f"-{executor.pid}-{executor.key.rpartition(':')[2]}")  # for sweeps
            assert len(digest) == 16
            digests.add(digest)
            assert find_sidecar_dir(executor, key) == find_sidecar_dir(executor, key)
    assert len(digests) == 2


def test_a_sidecars_folder_is_open_to_this_user_only(query: Query, executor: Executor, sidecar: int) -> None:
    place = query.place(executor)
    assert stat.S_IMODE(place.folder.lstat().st_mode) == 0o700
    assert place.folder.lstat().st_uid == os.geteuid()
    assert os.stat(f"/proc/{sidecar}").st_uid == os.geteuid()


# --------------------------------------------------------------------------------- peers with the key that err


READ: Message = {
    "op": "read",
    "query": "q",
    "scan": 1,
    "ticket": 0,
    "config": {},
    "reader": "native",
    "headers": False,
    "timestamps": True,
}
BAD: list[Message] = [
    {},
    {"op": None},
    {"op": "read"},
    *({**READ, name: value} for name, value in {"scan": "1", "config": {"group.id": {}}, "query": 1}.items()),
    {**READ, "config": []},
    {"op": "hung"},
    {"op": "hung", "query": "q", "seat": []},
    {"op": "add-query", "query": "q", "prefetch_bytes": 1, "idle_ms": 1, "tells_sizes": False},
    {"op": "heartbeat"},
    {"op": "served", "seat": "seat-0", "by": "worker", "rows": 1, "ready": 0, "sizes": []},
]


def test_a_bad_message_to_the_sidecar_ends_its_connection_alone(query: Query, executor: Executor, sidecar: int) -> None:
    for message in BAD:
        worker = of_a_worker(query, executor)
        worker.send(message)
        with pytest.raises(ChannelEnded, match="hung up"):
            worker.receive(30)
    assert query.run(executor, NO_RECORDS) == []
    assert sidecars_of(query, executor) == [sidecar]
    wait_for(lambda: query.registry.counts().warm_reads == 2, "both reads to be served by the seat's server", 30)


def of_a_worker(query: Query, executor: Executor) -> Channel:
    place = query.place(executor)
    with place.short_socket_path() as path:
        return connect(path, query.server.key, place.server)


ACCOUNT: Message = {"op": "served", "seat": "seat-0", "by": "worker", "rows": 0, "ready": 0, "sizes": []}
ACCOUNTS: list[Message] = [
    {},
    {"op": "nonsense"},
    {"op": "heartbeat"},
    {"op": "served", "seat": 5},
    *(
        {**ACCOUNT, name: value}
        for name, value in {"rows": 2**70, "ready": 1, "by": "server", "seat": "seat-1"}.items()
    ),
    {**ACCOUNT, "rows": -1, "ready": -1},
]


def test_a_workers_message_reaches_the_registry_only_if_it_reports_a_read(
    query: Query, executor: Executor, sidecar: int
) -> None:
    """The sidecar tells it in its own name: a message that the registry refuses would end the sidecar."""
    (ticket,) = query.plan(NO_RECORDS)
    with sleeping_executor("2") as other:
        list(read_on(other, ticket))  # the seat is at home with the first executor: the second is a guest
        (pid,) = sidecars_of(query, other)
        for account in ACCOUNTS:
            (ticket,) = query.plan(NO_RECORDS)
            worker = of_a_worker(query, other)
            worker.send({**READ, "query": query.registry.query, "scan": ticket.scan_id})
            assert worker.receive(30)["op"] == "read-directly"
            worker.send(account)
            with pytest.raises(ChannelEnded, match="hung up"):
                worker.receive(30)
        list(read_on(other, query.plan(NO_RECORDS)[0]))
        assert sidecars_of(query, other) == [pid]


def test_a_worker_that_sidecars_hang_up_on_asks_the_registry(query: Query, executor: Executor) -> None:
    """Five times, since one may end at that very moment, or drop the first client. Then the worker reads directly."""
    place = query.place(executor)
    place.folder.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place.socket))
        listener.listen()
        asked: list[Message] = []

        def hang_up() -> None:
            for _ in range(5):
                channel = accept(listener.accept()[0], query.server.key, place.server)
                asked.append(channel.receive(30))
                channel.close()

        with ThreadPoolExecutor(1) as sidecars:
            hung_up = sidecars.submit(hang_up)
            assert list(Worker(executor).read(query.plan(NO_RECORDS)[0])) == []
            hung_up.result(30)
    assert [request["op"] for request in asked] == ["read"] * 5
    wait_for(lambda: query.registry.counts().direct_reads == 1, "the worker to have read directly", 30)
    place.socket.unlink()
    place.folder.rmdir()


# --------------------------------------------------------------------------------------------- missing descriptors


@pytest.fixture
def standard_error(tmp_path: Path) -> Iterator[Path]:
    """The file that is standard error while the later fixtures are made: a sidecar inherits it."""
    ours, path = os.dup(2), tmp_path / "stderr"
    with path.open("w") as file:
        os.dup2(file.fileno(), 2)
    yield path
    os.dup2(ours, 2)
    os.close(ours)


def test_a_sidecar_that_runs_out_of_descriptors_says_so_and_is_replaced_after_the_next_read(
    standard_error: Path, query: Query, executor: Executor, sidecar: int
) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.prlimit(sidecar, resource.RLIMIT_NOFILE, (3, most))  # it keeps its open ones
    assert query.run(executor, NO_RECORDS) == []
    await_gone([sidecar])
    (other,) = wait_for(lambda: sidecars_of(query, executor), "another one to listen", 30)
    assert query.run(executor, NO_RECORDS) == []
    wait_for(lambda: query.registry.counts().warm_reads == 2, "the third read to be served by the seat's server", 30)
    query.server.close()
    await_gone([other])
    assert standard_error.read_text().count("ulimit -n") == 1


# ------------------------------------------------------------------------------------------- a seat with a huge share


def await_warm_reads(query: Query, count: int) -> None:
    wait_for(lambda: query.registry.counts().warm_reads == count, "the seat's server to have served", 60)


def test_a_share_larger_than_a_message_of_a_client_reaches_the_seats_server(executor: Executor) -> None:
    """Few partitions, with tags longer than any log has: librdkafka takes seconds for thousands of topics."""
    tag = "t" * (CHANNEL_REQUEST_BYTES_MAX // 4)
    with Query(NO_BROKER, "t", {"seat-0": list(range(8))}, leaders=lambda *_: {}) as query:
        query.tags = dict.fromkeys(range(8), tag)
        for batch in range(3):
            for ticket in query.plan(dict.fromkeys(range(8), (7, 7))):
                assert ticket.mode is (Mode.LATE if batch else Mode.FIXED)
                assert list(read_on(executor, ticket)) == []
            await_warm_reads(query, batch + 1)
        (pid,) = sidecars_of(query, executor)
    await_gone([pid])
