"""Seats of an earlier run of this query with more `members`: they are made to leave (KIP-345, scale down).

Runs on: driver.

The durable positions of their partitions are committed BEFORE they leave, by a seat that we serve. A member counts as a
former seat if its instance id is this query's prefix and a number, and it has committed offsets or owned partitions as
this query (`earlier_runs`), or has its client id. Other members that are named so are left alone, with a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from pyspark_kgroup.driver.boundary.boundary_commits import BoundaryCommits, SeatShare
from pyspark_kgroup.driver.boundary.boundary_state import BoundaryState
from pyspark_kgroup.driver.boundary.context import BoundaryContext
from pyspark_kgroup.options.values import join
from spark_kgroup.model import NO_GENERATION, DescribedGroup, DescribedMember, ErrorCode, TopicPartition
from spark_kgroup.runtime.views import GroupView, SeatView

log = logging.getLogger(__name__)


class FormerSeats:
    """Makes former seats leave."""

    def __init__(self, context: BoundaryContext, earlier_seats: Collection[str]) -> None:
        self._group = context.group
        self._options = context.options
        self._commits = BoundaryCommits(context)
        self._earlier_seats = earlier_seats
        self._left_alone: frozenset[str] = frozenset()
        self._left_in_generation: int | None = None
        """The last generation that had former seats in it. A seat that is still in it is not at rest."""
        self._may_not_leave: set[str] = set()

    def make_leave(self, boundary: BoundaryState) -> bool:
        """Make former seats leave, if there are any, and return whether the group is at rest without them.

        No process serves them: their partitions would wait for the session timeout, and so would every rebalance.

        A rebalance waits for the former seats, and our seats wait with it. So former seats are made to leave after one
        attempt to commit for them. It is worth making, since the coordinator still takes commits in PreparingRebalance
        (ClassicGroup.validateOffsetCommit): 1. The group is stable when we start, and no member claims the former
        seats' partitions. 2. Our seats rejoin into the current generation. 3. Another member makes the group rebalance.
        4. We commit in the old generation.

        Seats that came back after the rebalance had begun have no generation to commit in. They claim the former seats'
        partitions (`runtime.previously_owned.claimable`), so that these are committed before they get another owner.
        """
        view, group = boundary.view, self._group.describe()
        others = self._other_members(group, view)
        former = [member for member in others if self._is_one(member)]
        self._warn_of_namesakes([member for member in others if self._is_named_as_one(member) and member not in former])
        if not former:
            return self.group_rests(view)
        if group.tells_owners:
            # Any seat of ours may commit: the coordinator checks the member, and not who owns the partition.
            held = SeatShare(view.seats[0], frozenset(_held_by(former, group, boundary)))
            if not view.settled or self._commits.commit_remembered(boundary, [held]):
                return False  # they leave when the group is settled and has their positions
        else:
            self._commit_while_rebalancing(boundary, former)
        log.info("seats of an earlier run leave: %s", join([member.instance_id for member in former]))
        refused = self._group.remove_members(former, "the query was started again with fewer members")
        # Our seats hear of this rebalance at their next heartbeats, and until then seem at rest in the old generation.
        if view.settled and len(refused) < len(former):
            self._left_in_generation = view.seats[0].identity.generation
        self._may_not_leave |= refused.keys()
        if refused:
            errors = join([f"{name}: {ErrorCode.name_of(code)}" for name, code in sorted(refused.items())])
            boundary.skip_trigger(
                f"The coordinator does not let seats of an earlier run with more `members` leave ({errors}): they hold "
                f"partitions until their session times out ({_session_timeout_setting(group)})."
            )
        return False

    def _commit_while_rebalancing(self, boundary: BoundaryState, former: Collection[DescribedMember]) -> None:
        """Commit the remembered positions of seats that leave, in a group that shows no assignment in a rebalance."""
        seat = next((seat for seat in boundary.view.seats if seat.identity.generation != NO_GENERATION), None)
        if seat is not None:
            remembered = frozenset(_remembered_partitions(former, boundary))
            self._commits.commit_remembered(boundary, [SeatShare(seat, remembered)])

    def group_rests(self, view: GroupView) -> bool:
        """Whether all seats are settled, in a generation without the former seats that were made to leave."""
        return view.settled and all(map(self.seat_rests, view.seats))

    def seat_rests(self, seat: SeatView) -> bool:
        """Whether this seat is settled, in a generation without the former seats that were made to leave."""
        return seat.settled and seat.identity.generation != self._left_in_generation

    def other_applications(self, view: GroupView) -> list[str]:
        """The members of other applications that work in the group, by instance id or member id."""
        others = self._other_members(self._group.describe(), view)
        return sorted(member.instance_id or member.member_id for member in others if not self._is_one(member))

    def _other_members(self, group: DescribedGroup, view: GroupView) -> list[DescribedMember]:
        """Members that are neither our seats nor former ones that could not be made to leave."""
        ours = {seat.instance_id for seat in view.seats} | self._may_not_leave
        return [member for member in group.members if member.instance_id not in ours]

    def _is_one(self, member: DescribedMember) -> bool:
        """Whether this is a seat of an earlier run of this query with more `members`.

        It is known by its instance id and by its commits, since each run may have another client id, such as a pod's
        name. A seat that never had a partition has committed no offset, so its client id has to be that of this query.
        """
        known = member.instance_id in self._earlier_seats or member.client_id == self._options.client_id
        return known and self._is_named_as_one(member)

    def _is_named_as_one(self, member: DescribedMember) -> bool:
        prefix, _, number = (member.instance_id or "").rpartition("-")
        return prefix == self._options.instance_id_prefix and number.isdecimal()

    def _warn_of_namesakes(self, members: Collection[DescribedMember]) -> None:
        """Warn once of members left alone that may be former seats: they may hold partitions for a session."""
        names = frozenset(str(member.instance_id) for member in members)
        if names <= self._left_alone:
            return
        self._left_alone |= names
        log.warning(
            "Group %r has members that are named like seats of this query (%s), but bear another client id (%s), and "
            "have committed nothing as this query: they are left alone. If they are of an earlier run, they keep their "
            "partitions until their session is over; `kgroup remove-members` takes them out at once.",
            self._options.group_id,
            join(sorted(names)),
            join(sorted({member.client_id for member in members})),
        )


def _session_timeout_setting(group: DescribedGroup) -> str:
    """The setting that says how long a member may be silent: under the consumer protocol it is the broker's."""
    if group.is_consumer_type:
        return "consumer.session.timeout.ms of the group, else group.consumer.session.timeout.ms of the brokers"
    return "kafka.session.timeout.ms"


def _remembered_partitions(members: Collection[DescribedMember], boundary: BoundaryState) -> set[TopicPartition]:
    """The partitions that these seats owned, as the checkpoint remembers."""
    names = {member.instance_id for member in members}
    return {tp for tp, owned in boundary.start.owned.items() if owned.period.seat in names}


def _held_by(
    members: Collection[DescribedMember], group: DescribedGroup, boundary: BoundaryState
) -> set[TopicPartition]:
    """The partitions that these seats may hold. A group of type consumer hides those that it has asked back."""
    held = {tp for member in members for tp in member.assignment | member.claimed}
    if group.is_consumer_type:
        held |= _remembered_partitions(members, boundary) - {tp for member in group.members for tp in member.assignment}
    return held
