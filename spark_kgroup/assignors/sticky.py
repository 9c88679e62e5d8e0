"""The `sticky` assignor: the targets of `cooperative-sticky`, for members that give up everything before they join.

Source: KIP-54; Kafka's StickyAssignor. An eager member's subscription claims no partitions, so its last assignment is
in the user data (Java: STICKY_ASSIGNOR_USER_DATA_V1, V0 without the generation): an int32 count of topics, each with
its name (int16 length) and its partitions (int32 count, int32 each), and the generation (int32). Java's leader reads
ours, and ours reads Java's.

These claims are the partitions that each member would like to have again. No member reads any meanwhile, so the target
is reached in one round.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from spark_kgroup.assignors.contract import RebalanceProtocol
from spark_kgroup.assignors.cooperative_sticky import compute_target
from spark_kgroup.model import (
    NO_GENERATION,
    Assignment,
    GroupMember,
    Subscription,
    TopicDescription,
    TopicPartition,
    by_topic,
    partitions_of,
)
from spark_kgroup.uncollected import uncollected

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")


class StickyAssignor:
    """Balanced first, then with few moves, and eager."""

    name = "sticky"
    protocol = RebalanceProtocol.EAGER

    def user_data(self, owned: frozenset[TopicPartition], generation: int) -> bytes | None:
        """The member's last assignment and its generation, or None before the first (as Java)."""
        if not owned and generation == NO_GENERATION:
            return None
        topics = by_topic(owned)
        parts = [_INT32.pack(len(topics))]
        for topic, partitions in topics:
            name = topic.encode()
            parts += [_INT16.pack(len(name)), name, _INT32.pack(len(partitions))]
            parts.append(struct.pack(f">{len(partitions)}i", *(index for _, index in partitions)))
        return b"".join([*parts, _INT32.pack(generation)])

    @uncollected()
    def assign(self, members: Sequence[GroupMember], topics: Mapping[str, TopicDescription]) -> Assignment:
        """The target: every partition with its previous member, where balance allows."""
        claiming = [replace(member, subscription=_as_claims(member.subscription)) for member in members]
        shares = compute_target(claiming, topics).shares
        return {member_id: share.kept.union(share.gained) for member_id, share in shares.items()}


def _as_claims(subscription: Subscription) -> Subscription:
    """The subscription with the claims of its user data. Its own claims do not count (as Java).

    Unreadable user data makes no claims: that costs the member its partitions, and does no harm to the group.
    """
    try:
        owned, generation = decode_user_data(subscription.user_data or b"")
    except (struct.error, ValueError):
        owned, generation = frozenset(), NO_GENERATION
    # `claimed_generation` would take user data of four bytes, a list of no topics, for a generation.
    return replace(subscription, owned=owned, generation=generation, user_data=None)


def decode_user_data(raw: bytes) -> tuple[frozenset[TopicPartition], int]:
    """A member's last assignment and its generation, -1 if the user data do not name one.

    Raises:
        ValueError, struct.error: `raw` is not user data of this format.
    """
    if not raw:
        return frozenset(), NO_GENERATION
    owned: list[TopicPartition] = []
    (topics,), at = _INT32.unpack_from(raw), _INT32.size
    for _ in range(_checked(topics)):
        (length,), at = _INT16.unpack_from(raw, at), at + _INT16.size
        name, at = raw[at : at + _checked(length)].decode(), at + length
        (count,), at = _INT32.unpack_from(raw, at), at + _INT32.size
        owned += partitions_of(name, struct.unpack_from(f">{_checked(count)}i", raw, at))
        at += count * _INT32.size
    generation = _INT32.unpack_from(raw, at)[0] if len(raw) >= at + _INT32.size else NO_GENERATION
    return frozenset(owned), generation


def _checked(count: int) -> int:
    if count < 0:
        raise ValueError(f"a count is {count}")
    return count
