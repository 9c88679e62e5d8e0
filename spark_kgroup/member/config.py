"""How a member presents itself, and the earlier membership that it continues. Plain values."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from spark_kgroup.assignors.contract import Assignor, RebalanceProtocol
from spark_kgroup.limits import (
    CONSUMER_HEARTBEAT_INTERVAL_MS,
    CONSUMER_SESSION_TIMEOUT_MS,
    HEARTBEAT_INTERVAL_MS,
    REBALANCE_TIMEOUT_MS,
    SESSION_TIMEOUT_MS,
)
from spark_kgroup.model import NO_GENERATION, UNKNOWN_MEMBER_ID, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviouslyOwned:
    """The partitions that an earlier process of the same seat may have been reading when it ended.

    Attributes:
        generation: the one in which it was known to own `partitions`. A member that was given one of them since claims
            it in a later generation, and that claim wins (KIP-792).
        member_id: the member that owned `partitions`. Empty if it is not known.
    """

    partitions: frozenset[TopicPartition] = frozenset()
    generation: int = NO_GENERATION
    member_id: str = UNKNOWN_MEMBER_ID


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberConfig:
    """How one member presents itself.

    Attributes:
        instance_id: None makes a dynamic member (KIP-394), any other value a static one (KIP-345).
        topics: subscribed names.
        assignors: in order of preference, at least one. The member is cooperative if all of them are (KIP-429).
        previously_owned: claimed by the first join, like owned partitions, and given up if they are not assigned. 1. A
            process dies in the midst of its work. 2. The group rebalances. 3. The process comes back within its
            session, to finish that: without a claim the leader would give its partitions to other members at once.
        replaces: the member id that the group kept for this seat when the process started, if that is known.
        own_id: the member id, made by this process (KIP-1082), that its static seat is to have instead of the
            coordinator's, or empty for the coordinator's. A member that has one is cooperative.

    """

    group: str
    instance_id: str | None
    topics: tuple[str, ...]
    assignors: tuple[Assignor, ...]
    session_timeout_ms: int = SESSION_TIMEOUT_MS
    rebalance_timeout_ms: int = REBALANCE_TIMEOUT_MS
    heartbeat_interval_ms: int = HEARTBEAT_INTERVAL_MS
    previously_owned: PreviouslyOwned = PreviouslyOwned()
    replaces: str = UNKNOWN_MEMBER_ID
    own_id: str = UNKNOWN_MEMBER_ID

    @property
    def cooperative(self) -> bool:
        """Whether partitions are kept through a rebalance (KIP-429: the lowest common protocol counts)."""
        return all(a.protocol is RebalanceProtocol.COOPERATIVE for a in self.assignors)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """The earlier membership that a seat takes up because it still owes partitions, under the consumer protocol.

    Attributes:
        member_id: an earlier process's, as the group still has it.
        epoch: that member's.
        owned: the partitions that it may have been reading when it ended, each with its topic's id.
    """

    member_id: str
    epoch: int
    owned: frozenset[tuple[TopicPartition, UUID]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerMemberConfig:
    """How one member presents itself under the consumer protocol (KIP-848).

    Attributes:
        instance_id: None makes a dynamic member, any other value a static one.
        topics: subscribed names.
        regex: a pattern, as brokers read it, whose matches are subscribed to as well. Empty for no pattern.
        server_assignor: one of the coordinator's assignors (group.consumer.assignors), or None for its first.
        session_timeout_ms: the coordinator's, as far as it is known: after it without an answer, all partitions are
            taken for lost.
        rebalance_timeout_ms: how long the coordinator waits until revoked partitions are given up.
        heartbeat_interval_ms: until the coordinator says another one.
        resumes: an earlier process's membership, to be ended in good order before a new one begins, or None if no
            partition is owed. 1. A process dies in the midst of its work. 2. The group wants P for another member.
            3. The process comes back, to finish that: a join may claim no partition, so it would give P away at once.

    """

    group: str
    instance_id: str | None
    topics: tuple[str, ...]
    regex: str = ""
    server_assignor: str | None = None
    session_timeout_ms: int = CONSUMER_SESSION_TIMEOUT_MS
    rebalance_timeout_ms: int = REBALANCE_TIMEOUT_MS
    heartbeat_interval_ms: int = CONSUMER_HEARTBEAT_INTERVAL_MS
    resumes: Resumption | None = None

    @property
    def assignors(self) -> tuple[Assignor, ...]:
        """None of its own: the coordinator assigns."""
        return ()
