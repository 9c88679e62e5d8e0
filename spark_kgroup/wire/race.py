"""Several ways to one result, each begun while those before it are slow."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

K = TypeVar("K")
T = TypeVar("T")
E = TypeVar("E", bound=Exception)


async def first_success(
    attempts: Iterable[tuple[K, Callable[[], Coroutine[Any, Any, T]]]],
    *,
    patience_ms: int,
    failure: type[E],
    failures: dict[K, E],
    discard: Callable[[T], object] = lambda _: None,
) -> T | None:
    """The result of the first attempt that succeeds, or None if all fail.

    Args:
        attempts: in order. The next one begins when one has failed, or after `patience_ms` of silence.
        patience_ms: bounds how long one silent attempt holds up the next.
        failure: the class of errors that let the other attempts go on. Any other error is raised here.
        failures: gets each attempt's failure.
        discard: called with the result of each attempt that succeeded too late.
    """
    left = list(attempts)
    running: dict[asyncio.Task[T], K] = {}
    try:
        while left or running:
            if left:
                key, begin = left.pop(0)
                running[asyncio.create_task(begin(), name=f"try {key}")] = key
            patience_s = patience_ms / 1000 if left else None
            await asyncio.wait(running, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
            for task in [task for task in running if task.done()]:
                try:
                    result = task.result()
                except failure as error:
                    failures[running.pop(task)] = error
                else:
                    del running[task]
                    return result
        return None
    finally:
        for task in running:
            task.cancel()
        for outcome in await asyncio.gather(*running, return_exceptions=True):
            if not isinstance(outcome, BaseException):
                discard(outcome)
