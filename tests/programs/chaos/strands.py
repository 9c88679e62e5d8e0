"""A thread that keeps the error it ended with."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotDone


class Strand:
    """Runs one function in a thread of its own. The end of the process does not wait for it."""

    def __init__(self, name: str, run: Callable[[], None]) -> None:
        self._name = name
        self._run = run
        self._future: Future[None] | None = None

    def start(self) -> None:
        self._future = Future()
        threading.Thread(target=self._carry_out, args=(self._future,), name=self._name, daemon=True).start()

    def _carry_out(self, future: Future[None]) -> None:
        try:
            future.set_result(self._run())
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the strand's failure
            future.set_exception(error)

    @property
    def ended(self) -> bool:
        """Whether its function has returned or failed."""
        return self._future is not None and self._future.done()

    def failure(self, timeout_s: float) -> str | None:
        """Wait for its end. Returns its failure, or None if it had none or was never started."""
        if self._future is None:
            return None
        try:
            error = self._future.exception(timeout_s)
        except NotDone:
            return f"{self._name} did not end in {timeout_s:.0f} s"
        return None if error is None else f"{self._name}: {error!r}"
