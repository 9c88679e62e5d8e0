"""What the seats of a query owned when its last process ended, by what it planned last.

Runs on: driver. Pure.
"""

from __future__ import annotations

from pyspark_kgroup.offsets.checkpoint import Checkpoint, Period
from spark_kgroup.member.config import PreviouslyOwned
from spark_kgroup.model import UNKNOWN_MEMBER_ID, TopicPartition


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
