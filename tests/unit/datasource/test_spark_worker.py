"""What is done to Spark's worker, in a process like one: TCP to its "JVM", and garbage collected after each task."""

import gc
import socket
from collections.abc import Iterator
from itertools import count

import pytest

from pyspark_kgroup import spark_worker
from pyspark_kgroup.spark_worker import acknowledge_at_once, spare_delays, tcp_connections

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def jvm() -> Iterator[Pair]:
    """Both ends of a TCP connection over loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
        with ours, theirs:
            yield ours, theirs


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(spark_worker, "_reads_here", count(1))
    callbacks = list(gc.callbacks)
    gc.unfreeze()
    yield
    gc.callbacks[:] = callbacks
    gc.unfreeze()


def quick(sock: socket.socket) -> bool:
    """Whether the kernel acknowledges at once, as far as is known now (tcp(7): TCP_QUICKACK is not permanent)."""
    return bool(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK))


def slow_down(sock: socket.socket) -> None:
    """What an answer does to a connection."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
    assert not quick(sock)


def names(connections: list[socket.socket]) -> set[object]:
    return {each.getsockname() for each in connections}


def test_after_each_task_the_jvm_is_acknowledged_at_once(jvm: Pair) -> None:
    ours, _ = jvm
    spare_delays()
    for _ in range(2):
        slow_down(ours)
        gc.collect()
        assert quick(ours)


def test_the_collections_of_a_running_task_change_nothing(jvm: Pair) -> None:
    ours, _ = jvm
    spare_delays()
    slow_down(ours)
    gc.collect(0)
    gc.collect(1)
    assert not quick(ours)


def test_what_a_worker_opens_later_is_left_alone(jvm: Pair) -> None:
    spare_delays()
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as later:
        slow_down(later)
        spare_delays()
        gc.collect()
        assert not quick(later)


def test_a_connection_that_is_lost_does_not_keep_another_from_its_own(jvm: Pair) -> None:
    ours, theirs = jvm
    mine = ours.dup()
    acknowledge_at_once([mine, ours])
    mine.close()
    theirs.close()
    slow_down(ours)
    gc.collect()
    assert quick(ours)


def test_each_tcp_connection_is_found_once(jvm: Pair) -> None:
    ours, theirs = jvm
    before, beside = socket.socketpair()
    with before, beside, ours.dup(), socket.create_server(("127.0.0.1", 0)) as listener:
        found = tcp_connections()
        try:
            assert {ours.getsockname(), theirs.getsockname()} <= names(found)
            assert len(names(found)) == len(found)
            assert listener.getsockname() not in names(found)
            assert all(each.family in (socket.AF_INET, socket.AF_INET6) for each in found)
        finally:
            for each in found:
                each.close()
        assert ours.send(b"still ours") == 10


def test_what_is_imported_is_frozen_at_the_second_read() -> None:
    spare_delays()
    assert gc.get_freeze_count() == 0
    spare_delays()
    frozen = gc.get_freeze_count()
    assert frozen > 0
    spare_delays()
    assert gc.get_freeze_count() <= frozen, "once in a worker's life"
