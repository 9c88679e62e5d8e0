"""Tells stream readers that a batch is durable, where Spark itself does so only at the next trigger.

Runs on: driver, in the user's own process (`listener`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pyspark_kgroup.errors import ChannelEnded, CheckpointError, KeyRefused
from pyspark_kgroup.limits import DURABLE_TOLD_AFTER_MS
from spark_kgroup.clock import monotonic_ms

log = logging.getLogger(__name__)


class DurableEnds:
    """The last batch of each query run that makes no progress for a while. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: dict[str, tuple[int, Mapping[str, Any]]] = {}  # run -> when, and its last progress
        self._thread: threading.Thread | None = None

    def put(self, run: str, progress: Mapping[str, Any]) -> None:
        """A batch of this run is in Spark's commit log, as its progress says."""
        if not any(True for _ in _readers(progress)):
            return
        with self._changed:
            self._due[run] = monotonic_ms() + DURABLE_TOLD_AFTER_MS, progress
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="kgroup durable ends", daemon=True)
                self._thread.start()
            self._changed.notify()

    def drop(self, run: str) -> None:
        """The run is over."""
        with self._changed:
            self._due.pop(run, None)

    def _run(self) -> None:
        while True:
            progress = self._next()
            for reader, end in _readers(progress):
                try:
                    tell(reader, end)
                except (ChannelEnded, KeyRefused, CheckpointError, KeyError, TypeError, ValueError) as problem:
                    # No warning: the next trigger makes the same commits, as it does without a listener.
                    log.debug("a stream reader was not told of a durable batch: %s", problem)

    def _next(self) -> Mapping[str, Any]:
        """Wait until a run has made no progress for long enough, and return its last progress."""
        with self._changed:
            while True:
                first = min(self._due, key=lambda run: self._due[run][0], default=None)
                if first is None:
                    self._changed.wait()
                    continue
                left_ms = self._due[first][0] - monotonic_ms()
                if left_ms <= 0:
                    return self._due.pop(first)[1]
                self._changed.wait(left_ms / 1000)


def _readers(progress: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """(address of a stream reader, end of its batch) for each source whose progress names both."""
    for source in progress.get("sources", ()):
        latest, end = source.get("latestOffset"), source.get("endOffset")
        if isinstance(latest, dict) and isinstance(latest.get("reader"), dict) and isinstance(end, dict):
            yield latest["reader"], end


def tell(reader: Mapping[str, Any], end: Mapping[str, Any]) -> None:
    """Tell one reader that the batch with this end is durable.

    Raises:
        ChannelEnded, KeyRefused: it cannot be reached from here.
        CheckpointError, KeyError, TypeError, ValueError: the progress is not that of a kgroup source.
    """
    from pyspark_kgroup.offsets.checkpoint import Checkpoint
    from pyspark_kgroup.shared.application_key import find_key
    from pyspark_kgroup.shared.channel import connect
    from pyspark_kgroup.shared.messages import Durable

    key = find_key(Path(reader["folder"]))
    if key is None:
        raise ChannelEnded("The driver is on another host, or another user's.")
    # A registry listens on loopback or on all addresses, and the key was found on this host.
    channel = connect(("127.0.0.1", int(reader["port"])), key)
    with channel.socket:
        channel.say(Durable(query=str(reader["query"]), end=Checkpoint.from_json(end).digest))
