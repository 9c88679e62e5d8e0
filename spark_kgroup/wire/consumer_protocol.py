"""The consumer protocol embedded in JoinGroup and SyncGroup: subscriptions and assignments as bytes.

Each begins with an int16 version. We write subscription v3 (owned partitions, generation, rack) and assignment v3, and
read every version. A newer one is read as v3, since versions only append fields (ConsumerProtocol.java).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from itertools import chain
from operator import itemgetter
from typing import Any, Final

from spark_kgroup.errors import ProtocolViolation
from spark_kgroup.model import NO_GENERATION, Subscription, TopicPartition, by_topic, partitions_of
from spark_kgroup.wire.codec import decode_struct, encode_struct
from spark_kgroup.wire.schema import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscriptionV0,
    ConsumerProtocolSubscriptionV1,
    ConsumerProtocolSubscriptionV2,
    ConsumerProtocolSubscriptionV3,
    PartitionsOfName,
)

VERSION: Final = 3

_SUBSCRIPTIONS: Final = (
    ConsumerProtocolSubscriptionV0,
    ConsumerProtocolSubscriptionV1,
    ConsumerProtocolSubscriptionV2,
    ConsumerProtocolSubscriptionV3,
)


def encode_subscription(subscription: Subscription) -> bytes:
    """ConsumerProtocolSubscription v3 with its version."""
    fields = ConsumerProtocolSubscriptionV3(
        topics=tuple(sorted(subscription.topics)),
        user_data=subscription.user_data,
        owned_partitions=tuple(
            PartitionsOfName(topic=topic, partitions=_indexes(found)) for topic, found in by_topic(subscription.owned)
        ),
        generation_id=subscription.generation,
        rack_id=subscription.rack,
    )
    return struct.pack(">h", VERSION) + encode_struct(fields, flexible=False)


def decode_subscription(raw: bytes) -> Subscription:
    """Read a subscription of any version. Fields that a version lacks are unknown (-1, None, empty).

    Raises:
        ProtocolViolation: `raw` is no subscription.
    """
    version = _version(raw, "ConsumerProtocolSubscription")
    try:
        fields: Any = decode_struct(_SUBSCRIPTIONS[min(version, VERSION)], raw[2:], flexible=False)
    except ProtocolViolation:
        if version != 1:
            raise
        # Old clients (sarama, kafka-go) say version 1 and write version 0, without owned partitions. franz-go reads
        # them so, too (its issue 493).
        fields = decode_struct(ConsumerProtocolSubscriptionV0, raw[2:], flexible=False)
    owned = getattr(fields, "owned_partitions", ())
    return Subscription(
        topics=tuple(sorted(fields.topics)),
        owned=_partitions(owned),
        generation=int(getattr(fields, "generation_id", NO_GENERATION)),
        rack=getattr(fields, "rack_id", None) or None,
        user_data=fields.user_data,
    )


def decode_subscribed_topics(raw: bytes) -> tuple[str, ...]:
    """The topics of a subscription of any version, which begins with the fields of v0 (ClassicGroup reads it so).

    Raises:
        ProtocolViolation: `raw` is no subscription.
    """
    _version(raw, "ConsumerProtocolSubscription")
    return decode_struct(ConsumerProtocolSubscriptionV0, raw[2:], flexible=False).topics


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """ConsumerProtocolAssignment v3 with its version."""
    fields = ConsumerProtocolAssignment(
        assigned_partitions=tuple(
            PartitionsOfName(topic=topic, partitions=_indexes(found)) for topic, found in by_topic(partitions)
        ),
        user_data=None,
    )
    return struct.pack(">h", VERSION) + encode_struct(fields, flexible=False)


def decode_assignment(raw: bytes) -> frozenset[TopicPartition]:
    """Read an assignment of any version (all have the fields of v0). Empty bytes are an empty assignment.

    Raises:
        ProtocolViolation: `raw` is no assignment.
    """
    if not raw:
        return frozenset()
    _version(raw, "ConsumerProtocolAssignment")
    fields = decode_struct(ConsumerProtocolAssignment, raw[2:], flexible=False)
    return _partitions(fields.assigned_partitions)


def _indexes(partitions: Iterable[TopicPartition]) -> tuple[int, ...]:
    return tuple(map(itemgetter(1), partitions))


def _partitions(topics: Iterable[Any]) -> frozenset[TopicPartition]:
    return frozenset(chain.from_iterable(partitions_of(t.topic, t.partitions) for t in topics))


def _version(raw: bytes, what: str) -> int:
    version = int.from_bytes(raw[:2], "big", signed=True)
    if len(raw) < 2 or version < 0:
        raise ProtocolViolation(f"{what} has no version: {raw[:8]!r}.")
    return version
