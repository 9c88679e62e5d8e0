"""How many rows a read has, and how large those of each topic are: the driver plans by it (`maxBytesPerTrigger`).

Runs on: executor.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from pyspark_kgroup.limits import SIZES_TOLD_MAX
from pyspark_kgroup.shared.arrow import last_rows
from pyspark_kgroup.shared.tickets import TopicSize


class ReadSizes:
    """The batches of one read, added up.

    Args:
        topics: of its ranges.

    Attributes:
        rows: of all batches.
    """

    def __init__(self, topics: Iterable[str]) -> None:
        self.rows = 0
        each = set(topics)
        self._only = each.pop() if len(each) == 1 else None
        self._seen: dict[str, tuple[int, int]] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Count one more; in one of several topics, to find out whose rows it has takes time."""
        self.rows += batch.num_rows
        if self._only is not None:
            self._count(self._only, batch)
            return
        first_row = 0
        for last_row in last_rows(batch):
            self._count(batch["topic"][last_row].as_py(), batch.slice(first_row, last_row + 1 - first_row))
            first_row = last_row + 1

    def _count(self, topic: str, rows: pa.RecordBatch) -> None:
        if topic in self._seen or len(self._seen) < SIZES_TOLD_MAX:
            rows_before, bytes_before = self._seen.get(topic, (0, 0))
            self._seen[topic] = rows_before + rows.num_rows, bytes_before + rows.nbytes

    def by_topic(self) -> tuple[TopicSize, ...]:
        """What there was of each topic, of at most `SIZES_TOLD_MAX`."""
        return tuple(TopicSize(topic, *seen) for topic, seen in self._seen.items())
