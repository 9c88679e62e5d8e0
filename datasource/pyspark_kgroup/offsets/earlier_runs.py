"""What earlier runs of a query have left behind: what their seats owned, under which seats they read, their numbers.

Runs on: driver. Pure.

Which of two runs is the newer one, no clock says: hosts' clocks differ, and virtual machines are restored. Each run has
a number instead, higher than all that it finds, in its checkpoint and beside the group's committed offsets, before its
first seat joins. So what bears such a number, or a higher one, and another process's mark, was written since.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pyspark_kgroup.offsets.checkpoint import Checkpoint, Period
from spark_kgroup.member.config import PreviouslyOwned
from spark_kgroup.model import UNKNOWN_MEMBER_ID, TopicPartition
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


def owned_by_seat(planned: Checkpoint, group: str) -> dict[str, PreviouslyOwned]:
    """Instance id -> what that seat was reading, or had read and not committed, when its last process ended.

    Of topics that have left `subscribe`, too: nobody else may have them before that is read and committed. The member
    id is that under which the seat owned it, where the checkpoint says so.

    Args:
        planned: the end of the batch that was planned last.
        group: in which the seats are now.
    """
    if planned.group not in ("", group):
        return {}  # another group gave these partitions to seats that may have the same names
    by_seat: dict[str, dict[TopicPartition, Period]] = {}
    for tp, held in planned.owned.items():
        by_seat.setdefault(held.period.seat, {})[tp] = held.period
    return {
        seat: PreviouslyOwned(
            partitions=frozenset(periods),
            generation=max(period.generation for period in periods.values()),
            member_id=planned.members.get(seat, UNKNOWN_MEMBER_ID),
        )
        for seat, periods in by_seat.items()
    }
