"""What a group's owner is shown of its seats. Plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spark_kgroup.model import MemberIdentity, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatView:
    """One seat at one moment.

    Attributes:
        owned_since: what is owned, with the identity under which each partition's ownership began.
        to_give_up: to be given up before the next piece of work; what is not in `owned_since` was an earlier process's.
        settled: in a generation with nothing to give up and no rejoin on its way.
        trouble: why the seat has no connection to its coordinator, None if it has one.
    """

    instance_id: str
    identity: MemberIdentity
    owned_since: Mapping[TopicPartition, MemberIdentity]
    to_give_up: frozenset[TopicPartition]
    settled: bool
    leader: bool
    trouble: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatCommit:
    """What one seat is to commit.

    Attributes:
        seat: as it was when it was checked that it holds the partitions: the commit goes out under that identity.
        positions: partition -> the offset of the next record.
    """

    seat: SeatView
    positions: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """All seats at one moment.

    Attributes:
        rejoins: how often a static seat was asked back without a member id, since the start; a change
            means that a partition may have lost its owner meanwhile.
    """

    seats: tuple[SeatView, ...]
    rejoins: int

    @property
    def settled(self) -> bool:
        """Every seat is settled, all in the same generation."""
        return all(seat.settled for seat in self.seats) and len({seat.identity.generation for seat in self.seats}) == 1

    def owner(self, partition: TopicPartition) -> SeatView | None:
        """The seat that holds `partition`, None if none does."""
        return next((seat for seat in self.seats if partition in seat.owned_since), None)
