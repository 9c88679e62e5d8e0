"""Which restarted seats go on as the member that an earlier process was, under the consumer protocol. No I/O.

A join may claim no partition there, and a process that takes a seat over has the seat's target alone. Partitions that
an earlier process may have been reading, and that the group wants for another member, are owed: to be finished,
committed and given up first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from spark_kgroup.member.config import PreviouslyOwned, Resumption
from spark_kgroup.member.consumer_contract import JOIN_EPOCH
from spark_kgroup.model import UNKNOWN_MEMBER_ID, DescribedGroup, TopicDescription, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatDebt:
    """A seat that owes partitions: the member as which it goes on, with topics by name."""

    member_id: str
    epoch: int
    owned: frozenset[TopicPartition]


def resumable(
    previously_owned: Mapping[str, PreviouslyOwned],
    group: DescribedGroup,
    seats: Sequence[str | None],
    topics: Collection[str],
) -> dict[str | None, SeatDebt]:
    """Those of `seats` that owe partitions of `previously_owned`, which `group` still keeps for them.

    A partition is owed if the seat's target lacks it, or its topic is not subscribed any more. It is not owed if
    another member has it by now. A partition that a member was told to give up is still in its assignment, or in no
    assignment: brokers differ (`wire.responses.parse_consumer_description`).

    A seat goes on only as the very member that owned it: 1. A process is stopped for long, and its session ends. 2. The
    next process of its seat dies while it reads. 3. The first one wakes up, and joins anew. The second one's debt is
    lost by then, and a third process that went on as the first one's member would leave the first unfenced until all is
    paid.

    Args:
        previously_owned: instance id -> the partitions that an earlier process may have been reading.
        group: as it is now. A classic one has claims for this (`previously_owned.claimable`).
        seats: the instance ids that this process serves.
        topics: the subscribed ones.
    """
    if not group.is_consumer_type:
        return {}
    owners = {tp: member.member_id for member in group.members for tp in member.assignment}
    found: dict[str | None, SeatDebt] = {}
    for member in group.members:
        name = member.instance_id
        # A member that is joining (epoch 0) or has released its seat (-2) has no ownership to go on with.
        if name is None or name not in seats or name not in previously_owned or (member.epoch or 0) <= JOIN_EPOCH:
            continue
        if previously_owned[name].member_id not in (UNKNOWN_MEMBER_ID, member.member_id):
            continue
        stays = frozenset(tp for tp in member.target or () if tp.topic in topics)
        owed = frozenset(
            tp
            for tp in previously_owned[name].partitions - stays
            if owners.get(tp, member.member_id) == member.member_id
        )
        if owed and member.protocol != "classic":
            found[name] = SeatDebt(member_id=member.member_id, epoch=member.epoch or 0, owned=member.assignment | owed)
    return found


def with_topic_ids(owing: SeatDebt, topics: Mapping[str, TopicDescription]) -> Resumption:
    """`owing` by topic ids, as the coordinator wants it. Partitions of a topic that is gone cannot be owed."""
    ids = {name: topic.topic_id for name, topic in topics.items()}
    owned = frozenset((tp, of) for tp in owing.owned if (of := ids.get(tp.topic)) is not None)
    return Resumption(member_id=owing.member_id, epoch=owing.epoch, owned=owned)
