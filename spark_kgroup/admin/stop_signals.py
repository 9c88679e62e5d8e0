"""How a program in a terminal ends: by the first Ctrl-C, SIGTERM or closed terminal, and no second one disturbs it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def stop_signals() -> tuple[signal.Signals, ...]:
    """The signals that end a program: all but those that it was started to ignore.

    `nohup` has its command ignore the end of the terminal, and a script its background jobs Ctrl-C, which is for the
    script (POSIX, Shell Command Language, 2.11). The JVM does the same.
    """
    return tuple(each for each in STOP_SIGNALS if signal.getsignal(each) is not signal.SIG_IGN)


@contextmanager
def stop_signals_raise(stop: type[BaseException]) -> Iterator[None]:
    """Raise `stop` at the first stop signal, and ignore further ones: the program is then stopping its parts."""
    stopping = stop_signals()

    def request_stop(*_: object) -> None:
        for each in stopping:
            signal.signal(each, signal.SIG_IGN)
        raise stop

    before = {each: signal.signal(each, request_stop) for each in stopping}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
