"""The seats of a group as its owner sees them. Plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from spark_kgroup.model import MemberIdentity, TopicPartition
from spark_kgroup.runtime.assignment_drift import AssignmentDrift


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatView:
    """One seat at one moment.

    Attributes:
        owned_since: the owned partitions, with the identity under which each partition's ownership began.
        to_give_up: to be given up before the next piece of work. Those not in `owned_since` were an earlier process's.
        settled: in a generation with no partition to give up and no rejoin on its way.
        trouble: why the seat waits, as a clause about it, or None if it does not wait.
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
    """The positions that one seat is to commit.

    Attributes:
        seat: as it was when it was checked that it holds the partitions: the commit goes out under that identity.
        positions: partition -> the offset of the next record.
        topic_ids: topic -> the id, as text, of the topic that the positions are of. Topics of a cluster without topic
            ids are missing.
    """

    seat: SeatView
    positions: Mapping[TopicPartition, int]
    topic_ids: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """All seats at one moment.

    Attributes:
        look_due: a static seat was asked back without a rebalance, and no look has told yet whether the group's
            assignment still fits.
        held: the drift that needs a rebalance, where that waits for the owner's word
            (`OngoingWork.holds_rebalances`).
        shares_known: whether each seat has reached its target assignment (`runtime.shares`).
        ids_decided: whether each seat has the member id with which it begins to read (`runtime.own_ids`).
    """

    seats: tuple[SeatView, ...]
    look_due: bool = False
    held: AssignmentDrift | None = None
    shares_known: bool = True
    ids_decided: bool = True

    @property
    def settled(self) -> bool:
        """Every seat is settled in its assignment, all in the same generation."""
        generations = {seat.identity.generation for seat in self.seats}
        known = self.shares_known and self.ids_decided
        return known and all(seat.settled for seat in self.seats) and len(generations) == 1
