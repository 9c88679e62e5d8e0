"""The processes under test ignore no signal, even if the process that started the tests does.

A shell without job control has its background jobs ignore SIGINT and SIGQUIT (POSIX, Shell Command Language, 2.11), and
`nohup` has its command ignore SIGHUP. A process inherits the signals that its parent ignores, but not its handlers.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

_IGNORED_BY_SOME = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def children_ignore_no_signals() -> Iterator[None]:
    """This process goes on ignoring the signals that it ignores, by an empty handler: exec resets handlers alone."""
    ignored = [number for number in _IGNORED_BY_SOME if signal.getsignal(number) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, lambda *_: None)
    try:
        yield
    finally:
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)
