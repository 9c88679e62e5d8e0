"""The consumer protocol embedded in JoinGroup and SyncGroup: subscriptions and assignments as bytes.

Each begins with an int16 version. We write subscription v3 (owned partitions, generation, rack) and assignment v3, and
read every version. A newer one is read as v3, since versions only append fields (ConsumerProtocol.java).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from itertools import chain
from operator import itemgetter
from typing import Any, Final, cast

import kio.schema.consumer_protocol_assignment.v0 as assignment_v0
import kio.schema.consumer_protocol_assignment.v3 as assignment_v3
import kio.schema.consumer_protocol_subscription.v0 as subscription_v0
import kio.schema.consumer_protocol_subscription.v1 as subscription_v1
import kio.schema.consumer_protocol_subscription.v2 as subscription_v2
import kio.schema.consumer_protocol_subscription.v3 as subscription_v3
from kio.schema.consumer_protocol_assignment.v3.data import TopicPartition as AssignedTopic
from kio.schema.consumer_protocol_subscription.v3.data import TopicPartition as OwnedTopic
from kio.schema.types import TopicName
from kio.static.primitive import i32

from spark_kgroup.errors import ProtocolViolation
from spark_kgroup.model import NO_GENERATION, Subscription, TopicPartition, by_topic, partitions_of
from spark_kgroup.wire.codec import decode_entity, encode_entity

VERSION: Final = 3

_SUBSCRIPTIONS: Final = (
    subscription_v0.ConsumerProtocolSubscription,
    subscription_v1.ConsumerProtocolSubscription,
    subscription_v2.ConsumerProtocolSubscription,
    subscription_v3.ConsumerProtocolSubscription,
)


def encode_subscription(subscription: Subscription) -> bytes:
    """ConsumerProtocolSubscription v3 with its version."""
    entity = subscription_v3.ConsumerProtocolSubscription(
        topics=tuple(sorted(subscription.topics)),
        user_data=subscription.user_data,
        owned_partitions=tuple(
            OwnedTopic(topic=TopicName(topic), partitions=_indexes(found))
            for topic, found in by_topic(subscription.owned)
        ),
        generation_id=i32(subscription.generation),
        rack_id=subscription.rack,
    )
    return struct.pack(">h", VERSION) + encode_entity(entity)


def decode_subscription(raw: bytes) -> Subscription:
    """Read a subscription of any version. Fields that a version lacks are unknown (-1, None, empty).

    Raises:
        ProtocolViolation: `raw` is no subscription.
    """
    version = _version(raw, "ConsumerProtocolSubscription")
    try:
        entity: Any = decode_entity(_SUBSCRIPTIONS[min(version, VERSION)], raw[2:])
    except ProtocolViolation:
        if version != 1:
            raise
        # Old clients (sarama, kafka-go) say version 1 and write version 0, without owned partitions. franz-go reads
        # them so, too (its issue 493).
        entity = decode_entity(_SUBSCRIPTIONS[0], raw[2:])
    owned = getattr(entity, "owned_partitions", ())
    return Subscription(
        topics=tuple(sorted(entity.topics)),
        owned=_partitions(owned),
        generation=int(getattr(entity, "generation_id", NO_GENERATION)),
        rack=getattr(entity, "rack_id", None) or None,
        user_data=entity.user_data,
    )


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """ConsumerProtocolAssignment v3 with its version."""
    entity = assignment_v3.ConsumerProtocolAssignment(
        assigned_partitions=tuple(
            AssignedTopic(topic=TopicName(topic), partitions=_indexes(found)) for topic, found in by_topic(partitions)
        ),
        user_data=None,
    )
    return struct.pack(">h", VERSION) + encode_entity(entity)


def decode_assignment(raw: bytes) -> frozenset[TopicPartition]:
    """Read an assignment of any version (all have the fields of v0). Empty bytes are an empty assignment.

    Raises:
        ProtocolViolation: `raw` is no assignment.
    """
    if not raw:
        return frozenset()
    _version(raw, "ConsumerProtocolAssignment")
    entity = decode_entity(assignment_v0.ConsumerProtocolAssignment, raw[2:])
    return _partitions(entity.assigned_partitions)


def _indexes(partitions: Iterable[TopicPartition]) -> tuple[i32, ...]:
    """The indexes, not made i32 one by one: kio checks each again as it writes, and a leader writes a whole group's."""
    return cast("tuple[i32, ...]", tuple(map(itemgetter(1), partitions)))


def _partitions(topics: Iterable[Any]) -> frozenset[TopicPartition]:
    return frozenset(chain.from_iterable(partitions_of(t.topic, t.partitions) for t in topics))


def _version(raw: bytes, what: str) -> int:
    version = int.from_bytes(raw[:2], "big", signed=True)
    if len(raw) < 2 or version < 0:
        raise ProtocolViolation(f"{what} has no version: {raw[:8]!r}.")
    return version
