"""How a program in a terminal ends: by the first Ctrl-C, SIGTERM or closed terminal, and no second one disturbs it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def stop_signals_raise(stop: type[BaseException]) -> Iterator[None]:
    """Raise `stop` at the first stop signal, and ignore the others: what was started is then being stopped."""

    def request_stop(*_: object) -> None:
        for each in STOP_SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        raise stop

    before = {each: signal.signal(each, request_stop) for each in STOP_SIGNALS}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
