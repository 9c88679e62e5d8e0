"""Calls that may block for ever, in threads whose end the process does not wait for."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")

log = logging.getLogger(__name__)


def in_a_thread(work: Callable[[], T], name: str) -> Future[T]:
    """Run `work` in a daemon thread: one that never returns delays neither its caller nor the process's end.

    The future gets any exception that ends `work`, SystemExit too: a thread swallows that, and the caller would wait
    for ever.

    Raises:
        OSError: this machine has no thread left for it.
    """
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # a wait that was given up cannot cancel it any more

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            log.debug("%s failed", name, exc_info=True)
            future.set_exception(error)

    try:
        threading.Thread(target=run, name=name, daemon=True).start()
    except RuntimeError as error:
        raise OSError(str(error)) from None
    return future
