"""How large the records of each topic are, by the reads of executors.

Runs on: driver. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pyspark_kgroup.limits import ROWS_REMEMBERED, TOPICS_SIZED_MAX
from pyspark_kgroup.shared.tickets import TopicSize


class RecordSizes:
    """The mean size of a topic's records, in which later reads count more: sizes change."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, float]] = {}  # topic -> rows and bytes that count

    def remember(self, record_bytes: Mapping[str, int]) -> None:
        """Take the sizes of an earlier run, each as that of one row: the first read of this run outweighs it."""
        self.add(TopicSize(topic, 1, size_bytes) for topic, size_bytes in record_bytes.items())

    def to_remember(self, topics: Iterable[str]) -> dict[str, int]:
        """The sizes of these topics, for a later run to `remember`."""
        return {topic: round(size) for topic in topics if (size := self.of(topic)) is not None}

    def add(self, read: Iterable[TopicSize]) -> None:
        """Add the rows and bytes of one read."""
        for topic, rows, size_bytes in read:
            if rows <= 0 or (topic not in self._seen and len(self._seen) >= TOPICS_SIZED_MAX):
                continue
            rows_before, bytes_before = self._seen.get(topic, (0.0, 0.0))
            kept = min(1.0, ROWS_REMEMBERED / max(1.0, rows_before))
            self._seen[topic] = kept * rows_before + rows, kept * bytes_before + size_bytes

    def of(self, topic: str) -> float | None:
        """Bytes of one record of `topic`, at least 1, or None if none was read."""
        if topic not in self._seen:
            return None
        rows, size_bytes = self._seen[topic]
        return max(1.0, size_bytes / rows)
