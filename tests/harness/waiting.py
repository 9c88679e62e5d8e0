"""Tests do not sleep: they wait for a condition, with a bound."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_for(condition: Callable[[], T | None], what: str, timeout_s: float = 60.0, every_s: float = 0.05) -> T:
    """The first truthy value of `condition`, or after `timeout_s` an AssertionError with `what` in it."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout_s:.0f} s in vain for {what}; last seen: {value!r}")
        time.sleep(every_s)
    return value
