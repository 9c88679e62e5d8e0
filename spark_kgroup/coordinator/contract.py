"""The words between a coordinator and its caller: a request, the effects of a call, and the keys of timers."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from spark_kgroup.coordinator.records import Record
from spark_kgroup.wire import schema

Token = Hashable
"""The caller's name of a request, such as a connection and a correlation id: never None, and never that of another
request that waits."""


@dataclass(frozen=True, slots=True)
class Received:
    """One request.

    Attributes:
        request: the class of `wire.schema` with all fields of the API.
        version: the version that the client sent.
        client_id: from the header of the request.
        client_host: the client's address as Kafka shows it in DescribeGroups, such as "/127.0.0.1".
        token: names the request in the effects.
    """

    request: schema.Request
    version: int
    client_id: str
    client_host: str
    token: Token


@dataclass(frozen=True, slots=True)
class Append:
    """Append these records, in this order, BEFORE any effect that follows is carried out."""

    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """Send the response to the request that came with `token`. Each token is answered or dropped, once."""

    token: Token
    response: schema.Response


@dataclass(frozen=True, slots=True)
class Dropped:
    """The request with `token` is never answered.

    Its member sent it again over another connection, or left while its SyncGroup was parked. Kafka leaves such a
    request open (ClassicGroup.updateMember overwrites the future), and its client gives up by itself.
    """

    token: Token


Effect = Append | Answer | Dropped


@dataclass(frozen=True, slots=True)
class SessionTimer:
    """Fires when a member's session is over (GroupMetadataManager.classicGroupHeartbeatKey).

    The member may be one that has its id and has not joined with it yet.
    """

    group: str
    member_id: str


@dataclass(frozen=True, slots=True)
class JoinTimer:
    """Fires when a rebalance goes on without the members that have not joined (classicGroupJoinKey)."""

    group: str


@dataclass(frozen=True, slots=True)
class SyncTimer:
    """Fires when members that have not sent SyncGroup are removed (classicGroupSyncKey)."""

    group: str


@dataclass(frozen=True, slots=True)
class ExpiryTimer:
    """Fires when expired offsets and empty groups are removed (GroupCoordinatorShard.cleanupGroupMetadata)."""


# Classes, not named tuples: those of two kinds with the same fields would be equal.
TimerKey = SessionTimer | JoinTimer | SyncTimer | ExpiryTimer
