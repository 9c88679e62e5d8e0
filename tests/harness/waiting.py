"""Tests do not sleep: they wait for a condition, with a bound."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


_PAUSES_S = (0.05, 0.25)
"""Between two looks at a condition, at first and later: what is waited for long needs the machine, too."""


def wait_for(condition: Callable[[], T | None], what: str, timeout_s: float = 60.0, every_s: float | None = None) -> T:
    """The first truthy value of `condition`, or after `timeout_s` an AssertionError with `what` in it.

    Without `every_s` the pause between two looks grows with the time that has been waited.
    """
    began, (first_s, longest_s) = time.monotonic(), _PAUSES_S
    while not (value := condition()):
        waited_s = time.monotonic() - began
        if waited_s > timeout_s:
            raise AssertionError(f"waited {timeout_s:.0f} s in vain for {what}; last seen: {value!r}")
        time.sleep(min(first_s + waited_s / 20, longest_s) if every_s is None else every_s)
    return value
