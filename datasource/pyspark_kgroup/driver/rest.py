"""Whether a trigger finds all as the last boundary left it: then nothing but end offsets is asked for.

Runs on: driver.

1. A boundary finds nothing new, and leaves nothing undone; 2. at the next triggers `start`, the seats and the ends of
their logs are what they were, and topics were looked at a moment ago: then a boundary would find nothing new either.
Whatever has changed makes a whole boundary. It looks at the topics AFTER the ends were listed that show a move, so what
it plans from, and commits to, is the topic that the ends are of.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pyspark_kgroup.driver.crossing import Crossing
from pyspark_kgroup.driver.group_port import GroupPort
from pyspark_kgroup.limits import IDLE_TOPICS_MAX_AGE_MS
from pyspark_kgroup.offsets.checkpoint import Checkpoint
from pyspark_kgroup.options.parser import SourceOptions
from spark_kgroup.model import TopicDescription, TopicPartition
from spark_kgroup.runtime.views import GroupView


@dataclass(frozen=True, slots=True)
class _Found:
    """What a boundary found that had nothing to do."""

    start: Checkpoint
    view: GroupView
    topics: Mapping[str, TopicDescription]
    held: frozenset[TopicPartition]
    ends: Mapping[TopicPartition, int]
    """Of those of `held` whose leaders answered."""


class Rest:
    """What the last boundary found, if it had nothing to do."""

    def __init__(self, group: GroupPort, options: SourceOptions) -> None:
        self._group = group
        self._topics_max_age_ms = min(IDLE_TOPICS_MAX_AGE_MS, options.metadata_max_age_ms)
        self._found: _Found | None = None

    def begin(self, crossing: Crossing, held: Collection[TopicPartition]) -> None:
        """The boundary found nothing new, and left nothing undone.

        Args:
            crossing: the boundary.
            held: the adopted partitions; their ends count as they were listed for this boundary.
        """
        listed, out_of_reach = crossing.logs.listed_ends, crossing.logs.out_of_reach.partitions
        ends = {tp: listed[tp] for tp in held if tp not in out_of_reach}
        self._found = _Found(crossing.start, crossing.view, crossing.topics, frozenset(held), ends)

    def goes_on(self, crossing: Crossing) -> bool:
        """Whether nothing has changed since; if something has, or nobody can tell, the rest is over."""
        found, self._found = self._found, None
        if found is None or found.start != crossing.start or found.view != crossing.view:
            return False
        if self._group.topics(self._topics_max_age_ms) != found.topics:
            return False
        if crossing.logs.ends(found.held) != found.ends:
            return False
        self._found = found
        return True
