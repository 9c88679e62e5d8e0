"""Tasks that no code awaits, whose failures must be seen all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class TaskSet:
    """The tasks in the background of one object, which ends them together.

    Args:
        failed: called with the error of a task that raises one. Without it asyncio drops the error, and the object
            goes on without the work of that task.
    """

    def __init__(self, failed: Callable[[BaseException], None]) -> None:
        self._failed = failed
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, work: Coroutine[Any, Any, None], *, name: str | None = None) -> asyncio.Task[None]:
        """Run `work` on the running loop."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        # asyncio itself holds a task only weakly: without this reference it may vanish before its end.
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        return task

    async def end(self) -> None:
        """Cancel all tasks but the one that calls this, and wait until they have ended."""
        current = asyncio.current_task()
        pending = [task for task in self._tasks if task is not current]  # a task cannot await itself
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            self._failed(problem)
