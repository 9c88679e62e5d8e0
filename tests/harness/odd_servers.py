"""Servers that are no Kafka broker, a firewall, and a proxy that can turn into one of them."""

import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import cycle

OddServer = Callable[[socket.socket], None]
"""Serves one connection, which is closed afterwards."""


def http(client: socket.socket) -> None:
    client.recv(1024)
    client.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")


def silent(client: socket.socket) -> None:
    while client.recv(1024):
        pass


def hangs_up(_: socket.socket) -> None:
    pass


def random_bytes(client: socket.socket) -> None:
    client.sendall(os.urandom(4096))


def huge_length(client: socket.socket) -> None:
    client.sendall(struct.pack(">i", 2**31 - 1) + bytes(100))


def truncated_frame(client: socket.socket) -> None:
    client.sendall(struct.pack(">i", 1000) + bytes(10))


def garbage_in_a_frame(client: socket.socket) -> None:
    """A well-formed frame that answers the request. Its body claims an array of two thousand million entries."""
    request = client.recv(4096)
    client.sendall(struct.pack(">i", 44) + request[8:12] + bytes(2) + b"\xff" * 38)


GARBAGE: tuple[OddServer, ...] = (random_bytes, huge_length, truncated_frame, garbage_in_a_frame)


class Listener:
    """Hands each connection to `serve`, in a thread of its own. A context manager."""

    def __init__(self, serve: OddServer) -> None:
        self._serve = serve
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self._open: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept, name=f"listen on {self.address}")]

    def __enter__(self) -> "Listener":
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._threads[0].join(30)
        self._socket.close()
        self.cut()
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()

    def cut(self) -> None:
        """End every connection."""
        for client in list(self._open):
            end(client)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return  # shut down
            self._open.add(client)
            serving = threading.Thread(target=self._run, args=(client,), name=f"serve on {self.address}")
            self._threads.append(serving)
            serving.start()

    def _run(self, client: socket.socket) -> None:
        try:
            self._serve(client)
        except OSError:
            pass  # the other side has gone
        finally:
            self._open.discard(client)
            client.close()


@contextmanager
def firewalled_port() -> Iterator[int]:
    """A port that never answers, as behind a firewall: Linux drops packets when a listener's queue is full."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        with socket.create_connection(listener.getsockname()):  # the one that fits into the queue
            yield listener.getsockname()[1]


def end(one: socket.socket) -> None:
    with suppress(OSError):  # it had ended already
        one.shutdown(socket.SHUT_RDWR)


class Proxy(Listener):
    """Stands in front of a broker that advertises the proxy's port. It may begin to talk garbage, and stop again.

    Attributes:
        broker_port: where the broker listens. Connections before that is known are closed.
        garbled: connections that were answered with garbage.
    """

    def __init__(self) -> None:
        super().__init__(self._relay)
        self.broker_port = 0
        self.garbled = 0
        self._garbage = cycle(GARBAGE)
        self._talking_garbage = False

    def talk_garbage(self) -> None:
        self._talking_garbage = True
        self.cut()

    def relay_again(self) -> None:
        self._talking_garbage = False
        self.cut()

    def _relay(self, client: socket.socket) -> None:
        if self._talking_garbage:
            self.garbled += 1
            next(self._garbage)(client)
            return
        with socket.create_connection(("127.0.0.1", self.broker_port)) as broker:
            answers = threading.Thread(target=pump, args=(broker, client), name="answers")
            answers.start()
            pump(client, broker)
            answers.join(30)


def pump(source: socket.socket, sink: socket.socket) -> None:
    """Copy all bytes from one to the other, until either ends. Then both end."""
    try:
        while data := source.recv(65536):
            sink.sendall(data)
    except OSError:
        pass  # one of them has gone
    end(source)
    end(sink)
