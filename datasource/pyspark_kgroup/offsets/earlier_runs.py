"""What earlier runs of a query have left behind: their numbers, and under which seats they read.

Runs on: driver. Pure.

Which of two runs is the newer one, no clock says: hosts' clocks differ, and virtual machines are restored. Each run has
a number instead, higher than all that it finds, in its checkpoint and beside the group's committed offsets, before its
first seat joins. So what bears such a number, or a higher one, and another process's mark, was written since.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pyspark_kgroup.offsets.checkpoint import Checkpoint
from spark_kgroup.seat_note import Author


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierRuns:
    """What is known of them.

    Attributes:
        last: the highest number that one had; 0 if there was none.
        seats: instance ids under which they owned or committed something.
    """

    last: int = 0
    seats: frozenset[str] = frozenset()


def earlier_runs(checkpoint: Checkpoint, texts: Iterable[str], *, group: str, app: str) -> EarlierRuns:
    """Those of the application `app` in `group`.

    Args:
        checkpoint: what the last run planned last.
        texts: what is written beside the offsets that the group has committed.
        group: the group's id.
        app: the prefix of the instance ids.
    """
    authors = {author for text in set(texts) if (author := Author.of(text)) is not None and author.app == app}
    seats = {f"{app}-{author.seat}" for author in authors if author.seat is not None}
    if checkpoint.is_written_by(group, app):
        seats |= {owned.period.seat for owned in checkpoint.owned.values()}
    return EarlierRuns(
        last=max([checkpoint.run, *(author.run for author in authors if author.run is not None)]),
        seats=frozenset(seats),
    )
