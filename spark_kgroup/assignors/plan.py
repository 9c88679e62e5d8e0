"""The plan of an assignor: the target, the assignment that the leader sends now, and the partitions that move."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import filterfalse
from typing import NamedTuple, Protocol, runtime_checkable

from spark_kgroup.assignors.contract import Assignor, RebalanceProtocol
from spark_kgroup.assignors.cooperative_sticky import Target, undisputed_claims
from spark_kgroup.limits import PLANNED_ROUNDS_MAX
from spark_kgroup.model import Assignment, GroupMember, TopicDescription, TopicPartition


class Move(NamedTuple):
    """A partition that changes hands: `giver` holds it, `taker` has it in the end."""

    partition: TopicPartition
    giver: str
    taker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One rebalance.

    Attributes:
        target: member id -> its partitions in the end. Of a `Targeted` assignor first those it keeps, sorted, then
            those it gains, in the order in which the assignor hands them out. Of any other assignor all are sorted.
        first_round: the assignment that the leader sends now, in the target's order. Of an eager assignor it is the
            target, of a cooperative one the target without the partitions that another member still claims.
        moved: sorted. A partition without a holder now, or without a holder in the end, does not move.
    """

    target: Mapping[str, Sequence[TopicPartition]]
    first_round: Mapping[str, Sequence[TopicPartition]]
    moved: Sequence[Move]


@runtime_checkable
class Targeted(Protocol):
    """A cooperative assignor that can name the target of its rounds."""

    def target(self, members: Sequence[GroupMember], topics: Mapping[str, TopicDescription]) -> Target:
        """Where every partition shall be in the end, regardless of its holder now."""
        ...


def plan(assignor: Assignor, members: Sequence[GroupMember], topics: Mapping[str, TopicDescription]) -> Plan:
    """The plan of `assignor` for a group.

    Raises:
        Exception: any error that the assignor raises.
    """
    target: dict[str, Sequence[TopicPartition]]
    if isinstance(assignor, Targeted):
        shares, withheld = assignor.target(members, topics)
        keeps = {member: sorted(share.kept) for member, share in shares.items()}
        target = {member: [*keeps[member], *share.gained] for member, share in shares.items()}
        first = {
            member: [*keeps[member], *filterfalse(withheld.__contains__, share.gained)]
            for member, share in shares.items()
        }
    else:
        sent = assignor.assign(members, topics)
        eager = assignor.protocol is RebalanceProtocol.EAGER
        rests = sent if eager else _at_rest(assignor, members, topics)
        target = {member: sorted(partitions) for member, partitions in rests.items()}
        first = {member: [tp for tp in listed if tp in sent[member]] for member, listed in target.items()}
    return Plan(target=target, first_round=first, moved=_moves(undisputed_claims(members), target))


def _at_rest(assignor: Assignor, members: Sequence[GroupMember], topics: Mapping[str, TopicDescription]) -> Assignment:
    """The assignment in which the rounds end: after each, members give up lost partitions and claim their new ones."""
    generation = max((member.subscription.generation for member in members), default=0)
    assignment: Assignment = {}
    # Later than every claim, as the generations of real rebalances would be, so that an assignor believes the new
    # claims.
    for generation_now in range(generation + 1, generation + 1 + PLANNED_ROUNDS_MAX):
        before, assignment = assignment, assignor.assign(members, topics)
        if assignment == before:
            break
        members = [
            replace(
                member,
                subscription=replace(
                    member.subscription,
                    owned=assignment[member.member_id],
                    generation=generation_now,
                    user_data=assignor.user_data(assignment[member.member_id], generation_now),
                ),
            )
            for member in members
        ]
    return assignment


def _moves(held: Assignment, target: Mapping[str, Sequence[TopicPartition]]) -> list[Move]:
    givers = {partition: member for member, own in held.items() for partition in own.difference(target[member])}
    return sorted(
        Move(partition, givers[partition], taker)
        for taker, partitions in target.items()
        for partition in partitions
        if partition in givers
    )
