"""Whether the JVM that a stream reader answers to is still there, as far as one process can play both."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from harness.waiting import wait_for

from pyspark_kgroup.driver.startup.jvm import Jvm

PORT, PATH = "PYTHON_WORKER_FACTORY_PORT", "PYTHON_WORKER_FACTORY_SOCK_PATH"
"""How Spark tells a Python process where to connect to (PythonWorkerFactory)."""


@contextmanager
def connected(listener: socket.socket) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A reader's connection to its JVM, and the JVM's end of it."""
    with listener, socket.socket(listener.family) as ours:
        ours.connect(listener.getsockname())
        theirs, _ = listener.accept()
        with theirs:
            yield ours, theirs


@pytest.fixture(params=["tcp", "unix"])
def jvm_end(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[socket.socket]:
    """The JVM's end of a connection that this process holds as Spark's stream reader does."""
    monkeypatch.delenv(PORT, raising=False)
    monkeypatch.delenv(PATH, raising=False)
    if request.param == "tcp":
        listener = socket.create_server(("127.0.0.1", 0))
        monkeypatch.setenv(PORT, str(listener.getsockname()[1]))
    else:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(tmp_path / "socket"))
        listener.listen()
        monkeypatch.setenv(PATH, str(tmp_path / "socket"))
    with connected(listener) as (_, theirs):
        yield theirs


def found() -> Jvm:
    jvm = Jvm.of_this_process()
    assert jvm is not None
    return jvm


def test_a_jvm_lives_until_its_end_of_the_connection_is_closed(jvm_end: socket.socket) -> None:
    jvm = found()
    assert jvm.alive()
    jvm_end.send(b"a request that nobody has read yet")
    assert jvm.alive()
    jvm_end.close()
    wait_for(lambda: not jvm.alive(), "the JVM's end to be noticed", every_s=0.001)


@pytest.mark.usefixtures("jvm_end")
def test_a_jvm_whose_socket_was_inherited_by_another_process_ends_as_our_parent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jvm = found()
    monkeypatch.setattr(os, "getppid", lambda: 1)
    assert not jvm.alive()


@pytest.mark.usefixtures("jvm_end")
def test_a_process_ends_with_a_jvm_whose_socket_was_inherited_by_another_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended: list[str] = []
    monkeypatch.setattr(os, "_exit", lambda _: ended.append("ended"))
    monkeypatch.setattr(threading, "main_thread", lambda: None)  # signals of the tests stay as they are
    found().end_process_with_it(lambda: ended.append("last"))
    monkeypatch.setattr(os, "getppid", lambda: 1)
    wait_for(lambda: ended == ["last", "ended"], "the process to end")


READER = """
import hashlib, sys, socket
from pathlib import Path
from pyspark_kgroup.driver.startup.jvm import Jvm

connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
jvm = Jvm.of_this_process()
jvm.end_process_with_it(lambda: Path(sys.argv[2]).touch())
print("begun", flush=True)
if sys.argv[3] == "busy":  # in C, where no handler of Python's runs
    hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)
elif sys.argv[3] == "waiting":
    connection.recv(1)
"""
"""A stream reader, as far as its end matters."""


@pytest.mark.parametrize(
    ("what", "end"),
    [
        ("waiting", "SIGTERM"),
        ("busy", "SIGTERM"),
        ("waiting", "its JVM closes the connection"),
        ("busy", "its JVM closes the connection"),
        ("about to end", "the end of its program"),
    ],
)
def test_a_reader_does_its_last_step_however_it_ends(what: str, end: str, tmp_path: Path) -> None:
    last = tmp_path / "last"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        command = [sys.executable, "-c", READER, port, str(last), what]
        environment = {**os.environ, PORT: port}
        environment.pop(PATH, None)
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as reader:
            connection, _ = listener.accept()
            with connection:
                assert reader.stdout is not None
                assert reader.stdout.readline() == b"begun\n"
                if end == "SIGTERM":
                    reader.terminate()
                elif end == "its JVM closes the connection":
                    connection.close()
                reader.wait(30)
    assert last.exists()


@pytest.mark.usefixtures("jvm_end")
def test_sparks_socket_stays_as_it_is_under_any_default_timeout_of_python() -> None:
    blocking = [fd for fd in map(int, os.listdir("/proc/self/fd")) if _blocks(fd)]
    socket.setdefaulttimeout(5)
    try:
        assert found().alive()
    finally:
        socket.setdefaulttimeout(None)
    assert all(map(_blocks, blocking))


def _blocks(descriptor: int) -> bool:
    try:
        return os.get_blocking(descriptor)
    except OSError:
        return False


def test_a_process_that_spark_did_not_start_has_no_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PORT, raising=False)
    monkeypatch.delenv(PATH, raising=False)
    assert Jvm.of_this_process() is None


def test_a_process_that_is_not_connected_to_its_jvm_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PATH, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setenv(PORT, str(listener.getsockname()[1]))
        assert Jvm.of_this_process() is None
