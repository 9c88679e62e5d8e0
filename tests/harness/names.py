"""A resolver that answers as a test wants, and an address that swallows connections."""

import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

Answers = dict[str, list[str] | threading.Event]


class Resolver:
    """Stands in for `socket.getaddrinfo`. Numbers and names that it does not know go to the real one.

    Args:
        answers: name -> its IPv4 addresses in order, or an event: no answer comes before it is set, then a failure.

    Attributes:
        asked: name -> how many look-ups.
    """

    def __init__(self, answers: Answers) -> None:
        self.asked: Counter[str] = Counter()
        self._answers = answers
        self._real = socket.getaddrinfo

    def __call__(self, host: str, port: int, *args: Any, **kwargs: Any) -> Any:
        if host not in self._answers or kwargs.get("flags", 0) & socket.AI_NUMERICHOST:
            return self._real(host, port, *args, **kwargs)
        self.asked[host] += 1
        answer = self._answers[host]
        if isinstance(answer, threading.Event):
            assert answer.wait(60), "the test never let go of this name"
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in answer]


@contextmanager
def resolving(monkeypatch: pytest.MonkeyPatch, answers: Answers) -> Iterator[Resolver]:
    """Names resolve to `answers`. At the end no thread waits for an answer any more."""
    resolver = Resolver(answers)
    before = threading.active_count()
    with monkeypatch.context() as patched:
        patched.setattr(socket, "getaddrinfo", resolver)
        try:
            yield resolver
        finally:
            for answer in answers.values():
                if isinstance(answer, threading.Event):
                    answer.set()
            for thread in threading.enumerate():
                if thread.name.startswith("look up "):
                    thread.join(60)
    assert threading.active_count() <= before


@contextmanager
def swallowing(host: str, port: int = 0) -> Iterator[int]:
    """A port where no connection is ever accepted or refused: the queue of waiting connections is full."""
    with ExitStack() as held:
        listener = held.enter_context(socket.socket())
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(0)
        port = listener.getsockname()[1]
        for _ in range(3):  # Linux lets one more in than the queue is long
            waiting = held.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex((host, port))
        yield port
