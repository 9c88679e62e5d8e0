"""A TCP proxy between Kafka's clients and a real broker, which fails at a chosen request."""

import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from enum import Enum

OFFSET_COMMIT = 8
SYNC_GROUP = 14
"""Kafka's API keys."""


class Verdict(Enum):
    """The fate of a request."""

    PASS = "it goes to the broker"
    CUT = "the connection ends before the broker sees it"
    UNANSWERED = "the broker carries it out, and the connection ends before its answer"
    HELD = "it waits until `heal`, and all behind it on its connection"


class Proxy:
    """Listens on 127.0.0.1. A context manager that ends every connection and thread.

    The broker must advertise the proxy's port, so that clients never get past it.

    Args:
        upstream: the broker's own port, asked for at each connection: it may start after the proxy.

    Attributes:
        seen: (API key, verdict) -> how many requests.
    """

    def __init__(self, upstream: Callable[[], int]) -> None:
        self.seen: Counter[tuple[int, Verdict]] = Counter()
        self._upstream = upstream
        self._faults: dict[int, Verdict] = {}
        self._healed = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._closing = False

    def fail(self, api_key: int, verdict: Verdict) -> None:
        """From now on, do this to every such request."""
        self._healed.clear()
        self._faults[api_key] = verdict

    def heal(self) -> None:
        """Let every request pass again, the held ones too."""
        self._faults.clear()
        self._healed.set()

    def __enter__(self) -> "Proxy":
        self._spawn(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._closing = True
        self.heal()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes `accept`
        self._listener.close()
        for end in list(self._sockets):
            _end(end)
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()

    def _spawn(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, name="proxy")
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    broker = socket.create_connection(("127.0.0.1", self._upstream()), timeout=5)
                except OSError:
                    client.close()
                    continue
                broker.settimeout(None)
                self._sockets |= {client, broker}
                unanswered = threading.Event()
                self._spawn(self._requests, client, broker, unanswered)
                self._spawn(self._answers, client, broker, unanswered)
                if self._closing:
                    _end(client)
                    _end(broker)

    def _requests(self, client: socket.socket, broker: socket.socket, unanswered: threading.Event) -> None:
        with suppress(OSError), client.makefile("rb") as stream:
            while len(head := stream.read(4)) == 4:
                frame = stream.read(struct.unpack(">i", head)[0])
                (api_key,) = struct.unpack_from(">h", frame)
                verdict = self._faults.get(api_key, Verdict.PASS)
                self.seen[api_key, verdict] += 1
                if verdict is Verdict.CUT:
                    break
                if verdict is Verdict.HELD:
                    self._healed.wait()
                if verdict is Verdict.UNANSWERED:
                    unanswered.set()
                broker.sendall(head + frame)
        if not unanswered.is_set():
            _end(client)
        with suppress(OSError):
            broker.shutdown(socket.SHUT_WR)

    def _answers(self, client: socket.socket, broker: socket.socket, unanswered: threading.Event) -> None:
        with suppress(OSError):
            while (data := broker.recv(65536)) and not unanswered.is_set():
                client.sendall(data)
        for end in (client, broker):
            _end(end)
            end.close()
            self._sockets.discard(end)


def _end(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
