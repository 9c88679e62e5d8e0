"""The inputs and outputs of a member machine under the consumer protocol. All plain values.

`contract` has those that both protocols share. The only request here is the heartbeat (KIP-848): it joins, acknowledges
or leaves, by the member epoch that it carries. None is ever parked, so any connection to the coordinator will do.
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
"""The member epoch of a heartbeat that leaves for good (LEAVE_GROUP_MEMBER_EPOCH)."""

RELEASE_EPOCH: Final = -2
"""The member epoch of a heartbeat that releases a static seat, whose next member gets its partitions
(LEAVE_GROUP_STATIC_MEMBER_EPOCH)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeatRequest:
    """ConsumerGroupHeartbeatRequest v1, or v0 where a broker has no newer one.

    Attributes:
        identity: its generation is the member epoch, or one of the three above.
        full: whether it has subscription, assignor, rack and rebalance timeout. If not, they are as in the last one.
        owned: all owned partitions, which acknowledges assigned and revoked ones, or None if they are as they were.

    """

    identity: MemberIdentity
    full: bool
    owned: frozenset[TopicIdPartition] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeatResponse:
    """ConsumerGroupHeartbeatResponse, answering `request`. With an error only `message` counts.

    Attributes:
        epoch: ours from now on.
        interval_ms: until the next heartbeat, as the broker wants it.
        assignment: all partitions that we may read, or None if they are as they were. Owned ones beyond it are to be
            given up.

    """

    request: ConsumerHeartbeatRequest
    error: int
    message: str = ""
    epoch: int = JOIN_EPOCH
    interval_ms: int = 0
    assignment: frozenset[TopicIdPartition] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unanswered:
    """No answer to `request` came. It may have been carried out."""

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
    """Send `request` to the coordinator, wherever it is by now. The answer, or `Unanswered`, always comes back."""

    request: ConsumerHeartbeatRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolveTopics:
    """Ask for the names of `topic_ids`. Answer with `TopicsResolved`, or not at all."""

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
