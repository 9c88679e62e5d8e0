"""Filters of a query that a batch read can use: on topic, partition, offset and timestamp.

Runs on: driver. Pure: PySpark's filters are known by their names, since 4.0 has none.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from pyspark_kgroup.offsets.pieces import Span
from spark_kgroup.model import TopicPartition

_COMPARISONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "EqualTo": operator.eq,
    "EqualNullSafe": operator.eq,
    "GreaterThan": operator.gt,
    "GreaterThanOrEqual": operator.ge,
    "LessThan": operator.lt,
    "LessThanOrEqual": operator.le,
    "In": lambda left, values: left in values,
}

_NEVER_NULL: Final = frozenset({"topic", "partition", "offset", "timestamp", "timestampType"})
"""Columns that every record has."""

_TYPES: Final[Mapping[str, type]] = {"topic": str, "partition": int, "offset": int, "timestamp": datetime}


class PushedFilters:
    """All filters of one read, which a row has to meet together.

    Attributes:
        since_ms: reading may begin at the first record that is not older than this, or at any record if it is None.
    """

    def __init__(self) -> None:
        self.since_ms: int | None = None
        self._of_partitions: list[Callable[[TopicPartition], bool]] = []
        self._of_offsets: list[Span] = []

    def take(self, filters: Iterable[Any]) -> list[Any]:
        """Use the filters that can be used, and return those that Spark has to apply all the same."""
        return [each for each in filters if not self._take(each)]

    def _take(self, each: Any) -> bool:
        """Use a filter, if possible, and return whether every row that is read from now on meets it."""
        kind, path = type(each).__name__, tuple(getattr(each, "attribute", ()))
        if len(path) != 1 or path[0] not in _NEVER_NULL:
            return False
        column = path[0]
        if kind == "IsNotNull":
            return True
        values: list[Any] = list(each.value) if kind == "In" else [getattr(each, "value", None)]
        if kind not in _COMPARISONS or not values or not all(_is(value, _TYPES.get(column)) for value in values):
            return False
        if column == "timestamp":
            self._take_timestamps(kind, min(values))
            return False  # timestamps need not grow with offsets
        if column == "offset":
            return self._take_offsets(kind, values)
        compare, wanted = _COMPARISONS[kind], set(values) if kind == "In" else values[0]
        self._of_partitions.append(lambda tp: compare(getattr(tp, column), wanted))
        return True

    def _take_offsets(self, kind: str, values: Collection[int]) -> bool:
        least, most = min(values), max(values)
        first = {"GreaterThan": least + 1, "LessThan": 0, "LessThanOrEqual": 0}.get(kind, least)
        end = {"LessThan": most, "GreaterThan": None, "GreaterThanOrEqual": None}.get(kind, most + 1)
        self._of_offsets.append(Span(first, 2**63 if end is None else end))
        return kind != "In" or least == most

    def _take_timestamps(self, kind: str, value: datetime) -> None:
        if kind in ("LessThan", "LessThanOrEqual") or value.tzinfo is None:
            return
        since_ms = int(value.timestamp() // 0.001)  # Kafka keeps whole milliseconds
        if since_ms > 0:
            self.since_ms = max(since_ms - 1, self.since_ms or 0)

    @property
    def spares_reading(self) -> bool:
        """Whether some records may not be read."""
        return bool(self.since_ms is not None or self._of_partitions or self._of_offsets)

    def may_have_rows(self, partition: TopicPartition) -> bool:
        """Whether `partition` is to be read at all."""
        return all(test(partition) for test in self._of_partitions)

    def within(self, span: Span) -> Span:
        """The part of `span` that is to be read."""
        for allowed in self._of_offsets:
            span = Span(max(span.start_offset, allowed.start_offset), min(span.end_offset, allowed.end_offset))
        return span


def _is(value: object, wanted: type | None) -> bool:
    """Whether a value is of a column's type (a bool is no int here)."""
    return wanted is not None and isinstance(value, wanted) and not isinstance(value, bool)
