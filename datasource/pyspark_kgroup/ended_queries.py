"""Stops queries that have read all records up to their ends (`endingOffsets`): by itself a stream goes on for ever.

Runs on: driver, in the user's own process (`listener`), with Spark Connect in the client.

Only a query of which every source has an end can come to one. The progress of an idle trigger tells that it has: then
the last positions are durable and committed to the group. The progress of a batch could not tell it, since the end may
be found when no batch is left: after a restart with all records read, or where a stop by timestamp is found only after
the last record was read.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)


class EndedQueries:
    """Which query runs may come to an end. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._endless: set[str] = set()

    def see(self, run: str, progress: Mapping[str, Any]) -> None:
        """Remember a run with an endless source, as `progress` shows it: that run is never stopped."""
        if any(ended is None for ended in _ended(progress)):
            with self._lock:
                self._endless.add(run)

    def drop(self, run: str) -> None:
        """The run is over."""
        with self._lock:
            self._endless.discard(run)

    def stop_if_ended(self, spark: SparkSession | None, query: str, run: str) -> None:
        """Stop an idle query if it has come to its end: in a thread of its own, so that the listener returns at once.

        Args:
            spark: the session of the query, or None for the session of this process.
            query: its id.
            run: of this query.
        """
        with self._lock:
            if run in self._endless:
                return
        threading.Thread(target=self._stop, args=(spark, query, run), name="kgroup end", daemon=True).start()

    def _stop(self, spark: SparkSession | None, query: str, run: str) -> None:
        try:
            found = (spark or _session()).streams.get(query)
            progress = found.lastProgress if found is not None and str(found.runId) == run else None
            if found is None or progress is None:
                return
            reported = json.loads(progress.json)
            self.see(run, reported)
            if all(ended is True for ended in _ended(reported)):
                log.info("query %s has read everything up to its end, and is stopped", found.name or query)
                found.stop()
        except Exception as problem:  # noqa: BLE001 - a session may be over at any time, and each Spark says so otherwise
            log.info("query %s may have come to its end, but cannot be asked or stopped from here: %s", query, problem)


def _session() -> SparkSession:
    """The session of this process: outside Spark Connect, `StreamingQueryListener.spark` is None."""
    from pyspark.sql import SparkSession

    return SparkSession.active()


def _ended(progress: Mapping[str, Any]) -> list[bool | None]:
    """For each source whether it has come to its end, or None if it has none."""
    latest = [source.get("latestOffset") for source in progress.get("sources", ())]
    return [each.get("ended") if isinstance(each, Mapping) else None for each in latest] or [None]
