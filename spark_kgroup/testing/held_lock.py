"""A lock among the processes of one machine."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spark_kgroup.testing.progress import announced


@contextmanager
def held_lock(path: Path, work: str) -> Iterator[None]:
    """Hold an advisory lock that ends with this process. `work` describes the work of another process that holds it."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with announced(f"Waiting for another process that {work}"):
                fcntl.flock(file, fcntl.LOCK_EX)
        yield
