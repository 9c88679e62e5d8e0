"""The changes to Spark's worker, in a process like one: TCP to its "JVM", and garbage collected after each task."""

import gc
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from pyspark_kgroup.executor.worker.spark_delays import SparkDelays, acknowledge_at_once, connections_to_jvm

Pair = tuple[socket.socket, socket.socket]


@contextmanager
def connected() -> Iterator[Pair]:
    """Both ends of a TCP connection over loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
        with ours, theirs:
            yield ours, theirs


@pytest.fixture
def jvm() -> Iterator[Pair]:
    """A connection that this process holds as Spark's worker does."""
    with connected() as pair, pair[0].dup(), pair[0].dup():
        yield pair


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    callbacks = list(gc.callbacks)
    gc.unfreeze()
    yield
    gc.callbacks[:] = callbacks
    gc.unfreeze()


def quick(sock: socket.socket) -> bool:
    """Whether the kernel acknowledges at once, as far as is known now (tcp(7): TCP_QUICKACK is not permanent)."""
    return bool(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK))


def slow_down(sock: socket.socket) -> None:
    """Slow a connection's acknowledgements down, as an answer does."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
    assert not quick(sock)


def test_after_each_task_the_jvm_is_acknowledged_at_once(jvm: Pair) -> None:
    ours, _ = jvm
    SparkDelays().avoid()
    for _ in range(2):
        slow_down(ours)
        gc.collect()
        assert quick(ours)


def test_garbage_collections_during_a_task_acknowledge_no_packet(jvm: Pair) -> None:
    ours, _ = jvm
    SparkDelays().avoid()
    slow_down(ours)
    gc.collect(0)
    gc.collect(1)
    assert not quick(ours)


def test_other_connections_than_the_jvms_are_left_alone(jvm: Pair) -> None:
    with connected() as (ours, theirs):
        SparkDelays().avoid()
        slow_down(ours)
        gc.collect()
        assert not quick(ours)
        ours.close()
        theirs.settimeout(30)
        assert theirs.recv(1) == b"", "nobody else holds it open"


def test_a_lost_connection_does_not_keep_the_next_one_from_being_acknowledged(jvm: Pair) -> None:
    ours, _ = jvm
    lost = ours.dup()
    lost.close()
    acknowledge_at_once([lost, ours])
    slow_down(ours)
    gc.collect()
    assert quick(ours)


def test_only_the_jvms_connection_is_found_and_only_once(jvm: Pair) -> None:
    ours, _ = jvm
    with ExitStack() as open_ones:
        one, other = socket.socketpair()
        listener = socket.create_server(("127.0.0.1", 0))
        for each in (one, other, listener, one.dup(), one.dup(), listener.dup(), listener.dup()):
            open_ones.enter_context(each)
        (found,) = connections_to_jvm()
        with found:
            assert found.getsockname() == ours.getsockname()
            assert found.getpeername() == ours.getpeername()
    assert os.get_blocking(ours.fileno())
    assert ours.send(b"still ours") == 10


def test_a_default_timeout_does_not_make_sparks_connection_non_blocking(jvm: Pair) -> None:
    ours, _ = jvm
    socket.setdefaulttimeout(30)
    try:
        assert not connections_to_jvm()
    finally:
        socket.setdefaulttimeout(None)
    assert os.get_blocking(ours.fileno())


def test_imported_modules_are_frozen_at_the_second_read() -> None:
    delays = SparkDelays()
    delays.avoid()
    assert gc.get_freeze_count() == 0
    delays.avoid()
    frozen = gc.get_freeze_count()
    assert frozen > 0
    kept = [[number] for number in range(100)]
    delays.avoid()
    assert gc.get_freeze_count() < frozen + len(kept), "once in a worker's life"
