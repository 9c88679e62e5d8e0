"""The versions of each API that a coordinator answers, and the answers that depend on a version.

| API | versions | oldest because | newest because |
|---|---|---|---|
| JoinGroup | 2-9 | Kafka 4 has none older (KIP-896) | Kafka 4 has none newer |
| SyncGroup | 0-5 | as Kafka | as Kafka |
| Heartbeat | 0-4 | as Kafka | as Kafka |
| LeaveGroup | 0-5 | librdkafka sends v1, one member without a list | as Kafka |
| OffsetCommit | 2-9 | KIP-896 | v10 names topics by id, which `wire.schema` does not lay out |
| OffsetFetch | 1-9 | KIP-896 | as OffsetCommit |
| OffsetDelete | 0 | as Kafka | as Kafka |
| DescribeGroups | 0-5 | as Kafka | v6 answers GROUP_ID_NOT_FOUND where older ones say Dead: `wire.schema` has v5 |
| ListGroups | 0-5 | as Kafka | as Kafka |
| DeleteGroups | 0-2 | as Kafka | as Kafka |

Clients that negotiate them (2026): Kafka's Java client takes the newest, kafka-python JoinGroup v7, librdkafka and
aiokafka v5. A request of an older version is widened to the class with all fields before it comes here, and
its answer is narrowed: LeaveGroup before v3 has one member, whose error is the answer's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from spark_kgroup.wire import schema


class Versions(NamedTuple):
    """The oldest and the newest version of an API."""

    oldest: int
    newest: int


ANSWERED: Final[Mapping[type[Any], Versions]] = MappingProxyType(
    {
        schema.JoinGroupRequest: Versions(2, 9),
        schema.SyncGroupRequest: Versions(0, 5),
        schema.HeartbeatRequest: Versions(0, 4),
        schema.LeaveGroupRequest: Versions(0, 5),
        schema.OffsetCommitRequest: Versions(2, 9),
        schema.OffsetFetchRequest: Versions(1, 9),
        schema.OffsetDeleteRequest: Versions(0, 0),
        schema.DescribeGroupsRequest: Versions(0, 5),
        schema.ListGroupsRequest: Versions(0, 5),
        schema.DeleteGroupsRequest: Versions(0, 2),
    }
)
"""Each request that a coordinator answers. A class of another version, such as `OffsetCommitRequestV9`, is
answered, too."""


def requires_known_member_id(version: int) -> bool:
    """Whether a dynamic member's first JoinGroup is answered with MEMBER_ID_REQUIRED (KIP-394)."""
    return version >= 4


def skips_assignment(version: int) -> bool:
    """Whether a JoinGroup answer can tell a leader to keep the assignment (KIP-814).

    An older client that replaces the leader is told its predecessor's member id instead, and follows.
    """
    return version >= 9


def names_protocol(version: int) -> bool:
    """Whether a SyncGroup must name the protocol's type and name (KIP-559)."""
    return version >= 5


def knows_group_id_not_found(version: int) -> bool:
    """Whether an OffsetCommit of an unknown group is answered with GROUP_ID_NOT_FOUND, not with ILLEGAL_GENERATION."""
    return version >= 9
