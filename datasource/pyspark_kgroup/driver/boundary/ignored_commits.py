"""Warnings of committed offsets that are ignored, though a user may expect them to count.

Runs on: driver.

Each warning comes once for as long as the offsets stay as they are. The decisions are made in `offsets.adoption`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from pyspark_kgroup.driver.boundary.boundary_state import BoundaryState
from pyspark_kgroup.driver.boundary.context import BoundaryContext
from pyspark_kgroup.offsets.adoption import Committed, Start, Writer
from pyspark_kgroup.options.values import join
from spark_kgroup.model import TopicPartition

log = logging.getLogger(__name__)


class IgnoredCommitWarnings:
    """Warns, and remembers the offsets that it has warned of."""

    def __init__(self, context: BoundaryContext) -> None:
        self._options = context.options
        self._us = context.us
        self._warned_of: dict[TopicPartition, tuple[int, Committed]] = {}

    def warn(
        self,
        boundary: BoundaryState,
        starts: Mapping[TopicPartition, Start],
        offsets: Mapping[TopicPartition, int],
        committed: Mapping[TopicPartition, Committed],
    ) -> None:
        """Warn, once, of partitions whose committed offset is ignored, though a user may expect it to count.

        Args:
            boundary: its state.
            starts: how each adopted partition's start was decided.
            offsets: where each starts.
            committed: the committed offset of each partition that has one.
        """
        now = {tp: (offsets[tp], commit) for tp, commit in committed.items() if offsets[tp] != commit.offset}
        apart = [tp for tp in sorted(now) if self._warned_of.get(tp) != now[tp]]
        self._warned_of |= now
        back = [tp for tp in apart if starts[tp].set_back and offsets[tp] < committed[tp].offset]
        if back:
            self._warn_of_a_checkpoint_set_back(_apart(back, offsets, committed))
        behind = [
            tp
            for tp in apart
            if tp in boundary.start.owned
            and committed[tp].writer is Writer.UNKNOWN
            and committed[tp].offset < offsets[tp]
        ]
        if behind:
            self._warn_of_offsets_moved_back(_apart(behind, offsets, committed))
        outrun = [tp for tp in sorted(committed) if boundary.start.fresh and committed[tp].writer is Writer.SUCCESSOR]
        if outrun and not self._options.starting_offsets.committed:
            self._warn_of_a_later_run(outrun)

    def _warn_of_a_checkpoint_set_back(self, apart: str) -> None:
        log.warning(
            "This query (instanceIdPrefix=%s) has itself committed further to group %r than its checkpoint stands "
            "(%s): the checkpoint was set back, or another one was in use. The records between are read again, since "
            "the checkpoint decides what a batch is. To skip them, move the group's offsets (kafka-consumer-groups "
            "--reset-offsets) while the query is stopped.",
            self._us.app,
            self._options.group_id,
            apart,
        )

    def _warn_of_offsets_moved_back(self, apart: str) -> None:
        log.warning(
            "Group %r has offsets behind the checkpoint of this query, which it did not commit (%s): they are "
            "ignored, since the checkpoint decides what a batch is. If they were moved back to read again, start "
            "the query with a new checkpointLocation and startingOffsets=committed.",
            self._options.group_id,
            apart,
        )

    def _warn_of_a_later_run(self, partitions: Sequence[TopicPartition]) -> None:
        log.warning(
            "%s=%s is ignored for %s: this very query (instanceIdPrefix=%s) was started again meanwhile, and has "
            "committed since.",
            self._options.starting_offsets.option,
            self._options.starting_offsets,
            join(partitions),
            self._us.app,
        )


def _apart(
    partitions: Sequence[TopicPartition],
    offsets: Mapping[TopicPartition, int],
    committed: Mapping[TopicPartition, Committed],
) -> str:
    """Each partition with the group's offset and the offset where this query goes on, as text."""
    return join([f"{tp}: group {committed[tp].offset}, checkpoint {offsets[tp]}" for tp in partitions])
