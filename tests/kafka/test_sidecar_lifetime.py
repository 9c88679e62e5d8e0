"""A sidecar lives as long as its executor and its query, for this user alone, and leaves no process or file behind."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from harness.kafka import MakeTopic, produce
from harness.sidecars import Query, await_gone, kill, seat_servers_of, sidecars_of, sleeping_executor
from harness.waiting import wait_for

from pyspark_kgroup.errors import KeyRefused
from pyspark_kgroup.executor.sidecar_dir import find_sidecar_dir
from pyspark_kgroup.limits import SIDECAR_UNAUTHENTICATED_MAX
from pyspark_kgroup.shared.application_key import find_key, hold_key, key_folder
from pyspark_kgroup.shared.channel import connect, new_key, peer_is_us
from pyspark_kgroup.shared.tickets import Executor
from spark_kgroup.testing import ApacheKafka

RECORDS = 1_000
GONE_S = 1.0
"""How soon everything is gone. The waits are given longer, as this machine may be busy, and compare the clock."""


@pytest.fixture(scope="module")
def topic(apache_kafka: ApacheKafka, new_topic: MakeTopic) -> str:
    name = new_topic(1)
    produce(apache_kafka.bootstrap_servers, name, RECORDS, partitions=1)
    return name


@pytest.fixture
def query(apache_kafka: ApacheKafka, topic: str) -> Iterator[Query]:
    with Query(apache_kafka.bootstrap_servers, topic, {"seat-0": [0]}) as query:
        yield query


def begun(query: Query, executor: Executor) -> list[int]:
    """The sidecar and its seat server, after a first read."""
    assert len(query.run(executor, {0: (0, 10)})) == 10
    (sidecar,) = sidecars_of(query, executor)
    (server,) = seat_servers_of(sidecar)
    return [sidecar, server]


def assert_gone(pids: list[int], folder: Path, since_s: float) -> None:
    await_gone(pids)
    took_s = time.monotonic() - since_s
    wait_for(lambda: not folder.exists(), "the folder to be removed")
    assert took_s < GONE_S * max(1.0, os.getloadavg()[0])  # the bound is for a core to each busy process


# ------------------------------------------------------------------------------------------------------ its end


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_sidecar_ends_with_its_executor(query: Query, executor: Executor, how: signal.Signals) -> None:
    pids, folder = begun(query, executor), query.place(executor).folder
    since_s = time.monotonic()
    os.kill(executor.pid, how)
    assert_gone(pids, folder, since_s)


def test_a_sidecar_ends_with_its_query(query: Query, executor: Executor) -> None:
    pids, folder = begun(query, executor), query.place(executor).folder
    since_s = time.monotonic()
    query.server.close()
    assert_gone(pids, folder, since_s)


def test_a_sidecar_ends_when_the_registry_says_so(query: Query, executor: Executor) -> None:
    pids, folder = begun(query, executor), query.place(executor).folder
    since_s = time.monotonic()
    os.kill(pids[0], signal.SIGTERM)
    assert_gone(pids, folder, since_s)
    assert len(query.run(executor, {0: (10, 20)})) == 10
    wait_for(lambda: len(sidecars_of(query, executor)) == 1, "it to be back after a read", 30)


def test_seat_servers_end_with_a_sidecar_that_was_killed(query: Query, executor: Executor) -> None:
    sidecar, server = begun(query, executor)
    kill(sidecar)
    await_gone([server], 10)


def test_a_sidecar_without_requests_ends(apache_kafka: ApacheKafka, topic: str, executor: Executor) -> None:
    with Query(apache_kafka.bootstrap_servers, topic, {"seat-0": [0]}, idle_ms=5_000) as query:
        pids, folder = begun(query, executor), query.place(executor).folder
        await_gone(pids)
        assert not folder.exists()
        assert len(query.run(executor, {0: (10, 20)})) == 10


def test_a_sidecar_and_its_servers_are_no_children_of_the_worker(query: Query, executor: Executor) -> None:
    sidecar, server = begun(query, executor)
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    assert str(sidecar) not in children
    assert os.getsid(sidecar) not in (0, os.getsid(0))
    assert os.getpgid(server) != os.getpgid(0)


def test_the_key_of_a_query_is_in_no_argument_and_no_environment(query: Query, executor: Executor) -> None:
    for pid in begun(query, executor):
        command_line = Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
        assert query.server.key.hex().encode() not in command_line
        assert query.server.key not in command_line


def test_a_sidecar_inherits_no_descriptor_of_the_worker(query: Query, executor: Executor) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        os.set_inheritable(listener.fileno(), True)
        ours = os.readlink(f"/proc/self/fd/{listener.fileno()}")
        for pid in begun(query, executor):
            assert ours not in set(targets(Path(f"/proc/{pid}/fd")))


def targets(descriptors: Path) -> Iterator[str]:
    for entry in descriptors.iterdir():
        with suppress(FileNotFoundError):  # closed just now
            yield os.readlink(entry)


def test_leftovers_of_dead_executors_are_swept(query: Query, executor: Executor) -> None:
    with sleeping_executor("2") as other:
        left = find_sidecar_dir(other, new_key()).folder
        left.mkdir(mode=0o700)
        (left / "socket").touch()
        living = find_sidecar_dir(executor, new_key()).folder
        living.mkdir(mode=0o700)
    begun(query, executor)
    assert not left.exists()
    assert living.exists()
    living.rmdir()


def test_the_key_of_a_killed_driver_goes_with_the_last_sidecar_beside_it_and_not_before(
    apache_kafka: ApacheKafka, topic: str, executor: Executor
) -> None:
    """In local mode, where driver and executor are one process."""
    folder = key_folder(executor.pid)
    assert folder is not None
    held = hold_key(folder)
    assert held is not None
    with Query(apache_kafka.bootstrap_servers, topic, {"seat-0": [0]}, key=held.value) as query:
        begun(query, executor)
    wait_for(lambda: not query.place(executor).folder.exists(), "the end of the first sidecar", 30)
    assert find_key(folder) == held.value
    with Query(apache_kafka.bootstrap_servers, topic, {"seat-0": [0]}, key=held.value) as query:
        begun(query, executor)
        os.kill(executor.pid, signal.SIGKILL)
        wait_for(lambda: not folder.exists(), "the key to be removed", 30)
    held.release()


# ------------------------------------------------------------------------------------------- unauthenticated peers


def test_unauthenticated_peers_are_hung_up_on_and_reads_go_on_beside_them(query: Query, executor: Executor) -> None:
    begun(query, executor)
    place = query.place(executor)
    half_open = [unix(place.socket) for _ in range(2 * SIDECAR_UNAUTHENTICATED_MAX)]
    garbage = unix(place.socket)
    garbage.recv(4096)
    garbage.sendall(os.urandom(4096))
    with pytest.raises(KeyRefused):
        connect(place.socket, new_key())
    huge = unix(place.socket)
    huge.recv(4096)
    huge.sendall(b"\xff\xff\xff\xff{")
    for peer in (garbage, huge):
        peer.settimeout(10)
        assert hung_up(peer)
    assert len(query.run(executor, {0: (10, 30)})) == 20
    wait_for(lambda: query.registry.counts().warm_reads == 2, "both reads to be served by the seat's server")
    for peer in half_open:
        peer.close()


def test_ten_thousand_rapid_connections_do_not_disturb_a_read(query: Query, executor: Executor) -> None:
    begun(query, executor)
    wait_for(lambda: query.registry.counts().warm_reads == 1, "the first read to be counted")
    place = query.place(executor)

    def flood() -> None:
        for _ in range(10_000):
            unix(place.socket).close()

    flooding = threading.Thread(target=flood)
    flooding.start()
    reads = 0
    while flooding.is_alive() or reads < 2:
        first = 10 + 10 * (reads % 2)
        assert len(query.run(executor, {0: (first, first + 10)})) == 10
        reads += 1
    flooding.join()
    wait_for(lambda: query.registry.counts().warm_reads == 1 + reads, "all to be served by the seat's server")


def test_the_folder_of_sidecars_opens_for_this_user_alone(query: Query, executor: Executor) -> None:
    begun(query, executor)
    folder = query.place(executor).folder
    assert folder.stat().st_mode & 0o777 == 0o700
    assert folder.stat().st_uid == os.geteuid()


def test_another_user_cannot_connect_even_if_the_folder_is_open(query: Query, executor: Executor) -> None:
    """Only root can become another user. Any other user connects as himself, and then the door must open."""
    begun(query, executor)
    place = query.place(executor)
    place.folder.chmod(0o755)
    place.socket.chmod(0o777)
    program = (
        "import os, socket, sys\n"
        "if os.geteuid() == 0:\n"
        "    os.setgid(65534); os.setuid(65534)\n"
        "door = socket.socket(socket.AF_UNIX); door.settimeout(10); door.connect(sys.argv[1])\n"
        "sys.exit(0 if door.recv(1) == b'' else 1)\n"
    )
    opened = subprocess.run([sys.executable, "-c", program, str(place.socket)], cwd="/").returncode
    assert opened == (0 if os.geteuid() == 0 else 1)


def test_a_peer_is_known_by_its_user(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert peer_is_us(ours)
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        assert not peer_is_us(ours)


def test_a_folder_of_another_user_is_not_used(
    query: Query, executor: Executor, caplog: pytest.LogCaptureFixture
) -> None:
    folder = query.place(executor).folder
    folder.mkdir()
    folder.chmod(0o777)
    assert len(query.run(executor, {0: (0, 10)})) == 10
    assert "not a folder of this user alone" in caplog.text
    assert sidecars_of(query, executor) == []
    folder.rmdir()


def unix(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(str(path))
    return sock


def hung_up(sock: socket.socket) -> bool:
    with sock:
        try:
            return sock.recv(4096) == b""
        except ConnectionResetError:
            return True
