"""A thread that keeps the error it ended with."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotDone


class Strand:
    """Runs one function in a thread of its own."""

    def __init__(self, name: str, run: Callable[[], None]) -> None:
        self._name = name
        self._run = run
        self._future: Future[None] | None = None

    def start(self) -> None:
        pool = ThreadPoolExecutor(1, thread_name_prefix=self._name)
        self._future = pool.submit(self._run)
        pool.shutdown(wait=False)

    def failure(self, timeout_s: float) -> str | None:
        """Wait for its end; what went wrong, None if nothing did or it was never started."""
        if self._future is None:
            return None
        try:
            error = self._future.exception(timeout_s)
        except NotDone:
            return f"{self._name} did not end in {timeout_s:.0f} s"
        return None if error is None else f"{self._name}: {error!r}"
