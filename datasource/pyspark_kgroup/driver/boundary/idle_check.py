"""Idle triggers: while seats, topics and logs stay as the last boundary left them, only end offsets are asked for.

Runs on: driver.

1. A boundary ends where it began, and has no work left. 2. At the next triggers `start`, the seats, the end offsets and
the topics, as seen a moment ago, are the same. A whole boundary would end where it began again, so it is skipped.

Any change makes a whole boundary. That boundary looks at the topics AFTER the listing that shows changed end offsets,
so it plans from, and commits to, the topic that these end offsets belong to.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pyspark_kgroup.driver.boundary.boundary_state import BoundaryState
from pyspark_kgroup.driver.boundary.context import BoundaryContext
from pyspark_kgroup.limits import IDLE_TOPICS_MAX_AGE_MS
from pyspark_kgroup.offsets.checkpoint import Checkpoint
from spark_kgroup.model import TopicDescription, TopicPartition
from spark_kgroup.runtime.views import GroupView


@dataclass(frozen=True, slots=True)
class _Found:
    """Seats, topics and logs at a boundary that had no work."""

    start: Checkpoint
    view: GroupView
    topics: Mapping[str, TopicDescription]
    held: frozenset[TopicPartition]
    ends: Mapping[TopicPartition, int]
    """End offsets of those partitions in `held` whose leaders answered."""


class IdleCheck:
    """Remembers how the last boundary found seats, topics and logs, if it had no work."""

    def __init__(self, context: BoundaryContext) -> None:
        self._group = context.group
        self._topics_max_age_ms = min(IDLE_TOPICS_MAX_AGE_MS, context.options.metadata_max_age_ms)
        self._found: _Found | None = None

    def begin(self, boundary: BoundaryState, held: Collection[TopicPartition]) -> None:
        """Remember a boundary that ended where it began and left no work.

        Args:
            boundary: its state.
            held: the adopted partitions, whose end offsets count as listed for this boundary.
        """
        listed, out_of_reach = boundary.logs.listed_ends, boundary.logs.out_of_reach.partitions
        ends = {tp: listed[tp] for tp in held if tp not in out_of_reach}
        self._found = _Found(boundary.start, boundary.view, boundary.topics, frozenset(held), ends)

    def goes_on(self, boundary: BoundaryState) -> bool:
        """Whether all is as remembered. After a change, or if a request fails, the memory is dropped."""
        found, self._found = self._found, None
        if found is None or found.start != boundary.start or found.view != boundary.view:
            return False
        if self._group.topics(self._topics_max_age_ms) != found.topics:
            return False
        if boundary.logs.ends(found.held) != found.ends:
            return False
        self._found = found
        return True
