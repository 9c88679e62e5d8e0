"""A query's earlier runs, by their traces, and this one: whose seats read, which partitions they owned, their numbers.

Runs on: driver. Pure.

No clock tells which of two runs is the newer one: hosts' clocks differ, and virtual machines are restored. Instead each
run takes a number before its first seat joins, higher than all that it finds in its checkpoint and beside the group's
committed offsets. So an offset with that number, or a higher one, and another process's mark was written since.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from pyspark_kgroup.offsets.checkpoint import Checkpoint, Period
from spark_kgroup.member.config import PreviouslyOwned
from spark_kgroup.model import UNKNOWN_MEMBER_ID, MemberIdentity, TopicPartition
from spark_kgroup.seat_note import Author


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierRuns:
    """The number of the last run, and the seats of all.

    Attributes:
        last: the highest number of a run, or 0 if there was none.
        seats: instance ids under which they owned partitions or committed offsets.
    """

    last: int = 0
    seats: frozenset[str] = frozenset()


def earlier_runs(checkpoint: Checkpoint, texts: Iterable[str], *, group: str, app: str) -> EarlierRuns:
    """The earlier runs of the application `app` in `group`.

    Args:
        checkpoint: the end of the last batch that the last run planned.
        texts: the metadata of the group's committed offsets.
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


class ThisRun:
    """One run of an application.

    Args:
        group: the group's id.
        app: the prefix of the instance ids.
        process: mark of this process, which no other run with its number has.

    Attributes:
        author: of the run's commits. It has no number before `begin`.
    """

    def __init__(self, group: str, app: str, process: str) -> None:
        self._group = group
        self.author = Author(app=app, process=process)
        self._earlier = EarlierRuns()

    @property
    def earlier_seats(self) -> frozenset[str]:
        """Instance ids under which earlier runs owned partitions or committed offsets."""
        return self._earlier.seats

    def begin(self, planned: Checkpoint, texts: Iterable[str]) -> None:
        """Take this run's number BEFORE a seat joins: commits with that number, or a higher one, were made since.

        Args:
            planned: the end of the last batch that the last run planned.
            texts: the metadata of the group's committed offsets.
        """
        self._earlier = earlier_runs(planned, texts, group=self._group, app=self.author.app)
        self.author = replace(self.author, run=self._earlier.last + 1)

    def author_as(self, who: MemberIdentity) -> Author:
        """The author that a seat of this run writes beside its commits."""
        number = (who.instance_id or "").rpartition("-")[2]
        return replace(self.author, seat=int(number)) if number.isdecimal() else self.author


def owned_by_seat(planned: Checkpoint, group: str) -> dict[str, PreviouslyOwned]:
    """Instance id -> the partitions that the seat was reading, or had not committed, when its last process ended.

    Topics that have left `subscribe` are included: no other member may own them before they are read and committed. The
    member id is that under which the seat owned the partitions, where the checkpoint has it.

    Args:
        planned: the end of the batch that was planned last.
        group: the group in which the seats are now.
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
