"""Handing partitions over: commit what is durable, then give up what the group asks for.

Runs on: driver.

A partition that we adopted is given up only when the group has acknowledged where we stand in it, or when another
application reads it already. One that this process never adopted is given up only when the group knows what the
checkpoint remembers of it, or has given it to somebody else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from pyspark_kgroup.driver.commits import Commits, SeatShare
from pyspark_kgroup.driver.crossing import Crossing
from pyspark_kgroup.driver.group_port import GroupPort
from pyspark_kgroup.driver.ledger import Ledger
from pyspark_kgroup.limits import HANDOVER_WAIT_MS
from spark_kgroup.model import MemberIdentity, TopicPartition
from spark_kgroup.runtime.views import GroupView, SeatCommit

Ownership = dict[tuple[str, TopicPartition], MemberIdentity | None]
"""(instance id, partition) -> the identity under which the seat's ownership began, None if an earlier process's."""

_ROUNDS = 4
"""A cooperative rebalance takes two generations; one more pair for a group that moved on meanwhile."""


class HandOver:
    """Gives up what the group asks our seats for, in good order."""

    def __init__(self, group: GroupPort, ledger: Ledger, commits: Commits) -> None:
        self._group = group
        self._ledger = ledger
        self._commits = commits

    def commit_and_give_up(self, crossing: Crossing) -> None:
        """Commit what is durable, then give up what must go, until the group asks for nothing more."""
        for _ in range(_ROUNDS):
            self._ledger.drop_lost(crossing.view)
            self._commits.commit_durable(crossing)
            if not asks(crossing.view) or not (given_up := self._give_up(crossing)):
                break
            crossing.view = self._group.wait_until(_after(given_up), HANDOVER_WAIT_MS)
        self._ledger.drop_lost(crossing.view)

    def _give_up(self, crossing: Crossing) -> Ownership:
        """Give up all that is asked for and that the group knows our position of; returns what went."""
        adopted = [SeatCommit(seat=s, positions=self._ledger.to_hand_over(s)) for s in crossing.view.seats]
        self._commits.commit([self._without_what_is_known(each) for each in adopted])
        holdings, taken = self._ledger.holdings.keys(), self._ledger.taken_over
        unadopted = self._unadopted_that_can_go(
            crossing,
            [
                SeatShare(seat, seat.to_give_up - (holdings & seat.owned_since.keys()) - taken)
                for seat in crossing.view.seats
            ],
        )
        went: Ownership = {}
        for each in adopted:
            seat = each.seat
            # Not acknowledged means not given up.
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
        self, crossing: Crossing, asked: Sequence[SeatShare]
    ) -> dict[str, frozenset[TopicPartition]]:
        """Instance id -> which of its partitions in `asked`, never adopted by this process, can go.

        They can if the group knows what we remember of them. What is not ours but an earlier process's may have another
        owner by now: then we must not commit for it.
        """
        previously_owned = {share.seat.instance_id: share.partitions - share.seat.owned_since.keys() for share in asked}
        owners: dict[TopicPartition, set[str | None]] = {}
        if any(previously_owned.values()):
            group = self._group.describe()
            if not group.tells_owners:  # nobody knows whose they are: at the next boundary
                asked = [SeatShare(s.seat, s.partitions - previously_owned[s.seat.instance_id]) for s in asked]
            for member in group.members:
                for tp in member.assignment | member.claimed:
                    owners.setdefault(tp, set()).add(member.instance_id)
        others = {name: {tp for tp in tps if owners.get(tp, set()) - {name}} for name, tps in previously_owned.items()}
        ours = [SeatShare(s.seat, s.partitions - others[s.seat.instance_id]) for s in asked]
        unknown = self._commits.commit_remembered(crossing, ours)
        return {share.seat.instance_id: share.partitions - unknown for share in asked}


def asks(view: GroupView) -> bool:
    """Whether the group asks a seat to give something up."""
    return any(seat.to_give_up for seat in view.seats)


def _after(given_up: Ownership) -> Callable[[GroupView], bool]:
    """Whether the seats have taken `given_up` and the group is at rest, or asks again.

    Giving up is a message to the seat: a view taken before it arrives still shows what is gone, and would be answered
    twice. The second answer could meet a partition that was assigned again meanwhile.
    """

    def arrived(view: GroupView) -> bool:
        held: Ownership = {(seat.instance_id, tp): None for seat in view.seats for tp in seat.to_give_up}
        held |= {(seat.instance_id, tp): who for seat in view.seats for tp, who in seat.owned_since.items()}
        # What was an earlier process's and is ours now may have become so before our message arrives.
        left = all(key not in held or who not in (None, held[key]) for key, who in given_up.items())
        return left and (view.settled or asks(view))

    return arrived
