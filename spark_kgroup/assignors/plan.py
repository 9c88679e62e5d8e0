"""What an assignor would do: where everything is in the end, what its leader sends now, and what moves."""

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
        target: member id -> what it has in the end: first what it keeps, sorted, then what it gets, in the order in
            which the assignor hands it out, if it says.
        first_round: what the leader sends now: of a cooperative assignor the target without what another member still
            claims; of an eager one the target. In the target's order.
        moved: sorted. A partition that nobody holds, or that nobody gets, does not move.
    """

    target: Mapping[str, Sequence[TopicPartition]]
    first_round: Mapping[str, Sequence[TopicPartition]]
    moved: Sequence[Move]


@runtime_checkable
class Targeted(Protocol):
    """A cooperative assignor that says what it aims at in its rounds."""

    def target(self, members: Sequence[GroupMember], topics: Mapping[str, TopicDescription]) -> Target:
        """Where every partition shall be in the end, whoever holds it now."""
        ...


def plan(assignor: Assignor, members: Sequence[GroupMember], topics: Mapping[str, TopicDescription]) -> Plan:
    """What `assignor` makes of a group.

    Raises:
        Exception: whatever the assignor raises.
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
    """What the rounds come to: after each, members give up what they lost and claim what they were given."""
    generation = max((member.subscription.generation for member in members), default=0)
    assignment: Assignment = {}
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
