"""The origin of a checkpoint: warnings for a query that continues from another group's, or from other topics.

Runs on: driver. Pure.

Both are allowed, since a user may rename a group or replace a topic under a checkpoint on purpose. The same is found
where a checkpoint's path was copied from another query by mistake, and then only the warning tells the user.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyspark_kgroup.offsets.checkpoint import Checkpoint
from pyspark_kgroup.options.parser import SourceOptions
from pyspark_kgroup.options.values import join

_FRESH_START = "If you do not want that, give this query its own checkpointLocation."

_SWAPPED = (
    "If sources of one query have changed places, put them back: each reads the last batch again if that was not "
    "committed yet."
)


def origin_warnings(checkpoint: Checkpoint, options: SourceOptions) -> Iterator[str]:
    """A warning for each part of `checkpoint` that is not of this query, with its effect. A fresh one has none."""
    if checkpoint.fresh:
        return
    seats = sorted({owned.period.seat for owned in checkpoint.owned.values()})
    goes_on = (
        "This query continues from the checkpoint's positions, or from its own group's committed offsets where they "
        "are further."
    )
    if checkpoint.group and checkpoint.group != options.group_id:
        yield (
            f"The checkpoint was written by group {checkpoint.group!r}, but kafka.group.id is {options.group_id!r}. "
            f"{goes_on} {_SWAPPED} {_FRESH_START}"
        )
    elif checkpoint.app and checkpoint.app != options.instance_id_prefix:
        yield (
            f"The checkpoint was written by a query with instanceIdPrefix={checkpoint.app}, but that of this query is "
            f"{options.instance_id_prefix}. {goes_on} {_SWAPPED} {_FRESH_START}"
        )
    elif not checkpoint.group and seats and not any(_is_ours(seat, options) for seat in seats):
        yield (
            f"The checkpoint was written by the seats {join(seats)}, but those of this query are "
            f"{options.instance_id_prefix}-0, ...: it is of another group, or `instanceIdPrefix` was changed. "
            f"{goes_on} {_FRESH_START}"
        )
    if not any(topic in options.subscription for topic in checkpoint.topics):
        yield (
            f"The checkpoint is of the topics {join(sorted(checkpoint.topics))}, of which this query reads none. "
            f"{options.subscription} will be read from the group's committed offsets, else from the beginning: "
            f"startingOffsets counts only for a query without a checkpoint. {_FRESH_START}"
        )


def _is_ours(seat: str, options: SourceOptions) -> bool:
    return seat.rpartition("-")[0] == options.instance_id_prefix
