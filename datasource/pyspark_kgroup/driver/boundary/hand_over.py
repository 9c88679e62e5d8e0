"""Handing partitions over: commit durable positions, then give up the partitions that the group asks for.

Runs on: driver.

An adopted partition is given up only when the group has acknowledged our position in it, or when another application
reads it already. A partition that this process never adopted is given up only when the group has the position that the
checkpoint remembers, or has given the partition to another member.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from pyspark_kgroup.driver.boundary.boundary_commits import BoundaryCommits, SeatShare
from pyspark_kgroup.driver.boundary.boundary_state import BoundaryState
from pyspark_kgroup.driver.boundary.context import BoundaryContext
from pyspark_kgroup.limits import HANDOVER_WAIT_MS
from spark_kgroup.model import MemberIdentity, TopicPartition
from spark_kgroup.runtime.views import GroupView, SeatCommit

Ownership = dict[tuple[str, TopicPartition], MemberIdentity | None]
"""(instance id, partition) -> the identity under which the seat's ownership began, None for an earlier process's."""

_ROUNDS = 4
"""A cooperative rebalance takes two generations. The second pair is for a group that rebalances again meanwhile."""


class HandOver:
    """Commits for, and then gives up, the partitions that the group asks our seats for."""

    def __init__(self, context: BoundaryContext) -> None:
        self._group = context.group
        self._ledger = context.ledger
        self._commits = BoundaryCommits(context)

    def commit_and_give_up(self, boundary: BoundaryState) -> BoundaryState:
        """Commit durable positions, then give up requested partitions, up to `_ROUNDS` times while the group asks."""
        for _ in range(_ROUNDS):
            self._ledger.drop_lost(boundary.view)
            boundary = self._commits.commit_durable(boundary)
            if not asks(boundary.view) or not (given_up := self._give_up(boundary)):
                break
            boundary = boundary.with_view(self._group.wait_until(_after(given_up), HANDOVER_WAIT_MS))
        self._ledger.drop_lost(boundary.view)
        return boundary

    def _give_up(self, boundary: BoundaryState) -> Ownership:
        """Give up each requested partition whose position the group has, or that another application took over.

        Returns:
            The partitions that were given up, each with the identity under which its ownership began.
        """
        adopted = [SeatCommit(seat=s, positions=self._ledger.to_hand_over(s)) for s in boundary.view.seats]
        self._commits.commit([self._without_what_is_known(each) for each in adopted])
        holdings, taken = self._ledger.holdings.keys(), self._ledger.taken_over
        unadopted = self._unadopted_that_can_go(
            boundary,
            [
                # The ledger's entry may be of another seat of ours, which has adopted what this one only claims.
                SeatShare(seat, seat.to_give_up - (holdings & seat.owned_since.keys()) - taken)
                for seat in boundary.view.seats
            ],
        )
        went: Ownership = {}
        for each in adopted:
            seat = each.seat
            # A partition whose commit was not acknowledged is kept.
            # `commit` has taken partitions out of the ledger that another application reads.
            safe = self._ledger.known_to_group({tp: each.positions[tp] for tp in each.positions.keys() & holdings})
            if going := safe | unadopted[seat.instance_id] | (seat.to_give_up & taken):
                self._ledger.give_up(safe)
                self._group.give_up(seat.instance_id, going)
                went |= {(seat.instance_id, tp): seat.owned_since.get(tp) for tp in going}
        return went

    def _without_what_is_known(self, wanted: SeatCommit) -> SeatCommit:
        known = self._ledger.known_to_group(wanted.positions)
        return replace(wanted, positions={tp: offset for tp, offset in wanted.positions.items() if tp not in known})

    def _unadopted_that_can_go(
        self, boundary: BoundaryState, asked: Sequence[SeatShare]
    ) -> dict[str, frozenset[TopicPartition]]:
        """Instance id -> which of its partitions in `asked`, never adopted by this process, can go.

        A partition can go if the group has the position that the checkpoint remembers. One that only an earlier process
        owned may have another owner by now: then it goes, and we must not commit for it.
        """
        previously_owned = {share.seat.instance_id: share.partitions - share.seat.owned_since.keys() for share in asked}
        owners: dict[TopicPartition, set[str | None]] = {}
        if any(previously_owned.values()):
            group = self._group.describe()
            if not group.tells_owners:  # a classic group hides its assignment while it rebalances: ask again later
                asked = [SeatShare(s.seat, s.partitions - previously_owned[s.seat.instance_id]) for s in asked]
            for member in group.members:
                for tp in member.assignment | member.claimed:
                    owners.setdefault(tp, set()).add(member.instance_id)
        others = {name: {tp for tp in tps if owners.get(tp, set()) - {name}} for name, tps in previously_owned.items()}
        ours = [SeatShare(s.seat, s.partitions - others[s.seat.instance_id]) for s in asked]
        unknown = self._commits.commit_remembered(boundary, ours)
        return {share.seat.instance_id: share.partitions - unknown for share in asked}


def asks(view: GroupView) -> bool:
    """Whether the group asks a seat to give up partitions."""
    return any(seat.to_give_up for seat in view.seats)


def _after(given_up: Ownership) -> Callable[[GroupView], bool]:
    """A condition on views: the seats have processed `given_up`, and the group is at rest or asks again.

    Giving up is a message to the seat. A view taken before the message arrives still shows the partitions as held, so
    they would be given up twice. The second message could meet a partition that was assigned again meanwhile.
    """

    def arrived(view: GroupView) -> bool:
        held: Ownership = {(seat.instance_id, tp): None for seat in view.seats for tp in seat.to_give_up}
        held |= {(seat.instance_id, tp): who for seat in view.seats for tp, who in seat.owned_since.items()}
        # None: an earlier process owned the partition. The seat may come to own it before our message arrives, so an
        # identity in `held` does not prove that the message arrived.
        left = all(key not in held or who not in (None, held[key]) for key, who in given_up.items())
        return left and (view.settled or asks(view))

    return arrived
