"""What goes into a member machine under the consumer protocol, and what comes out of it. All plain values.

What both protocols have in common is in `contract`. Heartbeats are all there is here (KIP-848): they join, acknowledge
and leave, by the member epoch that they carry; none is ever parked, so any connection to the coordinator will do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from spark_kgroup.member import contract
from spark_kgroup.model import MemberIdentity, TopicIdPartition

JOIN_EPOCH: Final = 0
"""The member epoch of a heartbeat that joins (ConsumerGroupHeartbeatRequest.JOIN_GROUP_MEMBER_EPOCH)."""

LEAVE_EPOCH: Final = -1
"""Of one that leaves for good (LEAVE_GROUP_MEMBER_EPOCH)."""

RELEASE_EPOCH: Final = -2
"""Of one that releases a static seat, whose next member gets what it had (LEAVE_GROUP_STATIC_MEMBER_EPOCH)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeatRequest:
    """ConsumerGroupHeartbeatRequest v1, or v0 where a broker has no newer one.

    Attributes:
        identity: its generation is the member epoch, or one of the three above.
        full: with subscription, assignor, rack and rebalance timeout; else they are as they were in the last one.
        owned: all that is owned, which acknowledges what was assigned and revoked; None if that is as it was.

    """

    identity: MemberIdentity
    full: bool
    owned: frozenset[TopicIdPartition] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeatResponse:
    """ConsumerGroupHeartbeatResponse, answering `request`. With an error it says nothing more than `message`.

    Attributes:
        epoch: ours from now on.
        interval_ms: until the next heartbeat, as the broker wants it.
        assignment: all that we may read, None if that is as it was. What we own beyond it is to be given up.

    """

    request: ConsumerHeartbeatRequest
    error: int
    message: str = ""
    epoch: int = JOIN_EPOCH
    interval_ms: int = 0
    assignment: frozenset[TopicIdPartition] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unanswered:
    """Nobody answered `request`; it may have been carried out."""

    request: ConsumerHeartbeatRequest
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsResolved:
    """The names of topic ids, those that brokers know (the answer to `ResolveTopics`)."""

    names: tuple[tuple[UUID, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewsExpected:
    """Heartbeat now: the group's description shows a new epoch or target for us, or our subscription has changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Send `request` to the coordinator, wherever it is by now; the answer, or `Unanswered`, always comes back."""

    request: ConsumerHeartbeatRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolveTopics:
    """Ask for the names of `topic_ids`; answer with `TopicsResolved`, or not at all."""

    topic_ids: frozenset[UUID]


Event = (
    contract.Join
    | ConsumerHeartbeatResponse
    | Unanswered
    | TopicsResolved
    | NewsExpected
    | contract.GaveUp
    | contract.RejoinWanted
    | contract.MembershipRefused
    | contract.SeatSeen
    | contract.Tick
    | contract.Leave
    | contract.Close
)

Effect = Ask | ResolveTopics | contract.LookAtSeat | contract.Notice
