"""How a member presents itself, and what it comes back to. Plain values."""

from __future__ import annotations

from dataclasses import dataclass

from spark_kgroup.assignors.contract import Assignor, RebalanceProtocol
from spark_kgroup.limits import HEARTBEAT_INTERVAL_MS, REBALANCE_TIMEOUT_MS, SESSION_TIMEOUT_MS
from spark_kgroup.model import NO_GENERATION, UNKNOWN_MEMBER_ID, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviouslyOwned:
    """What an earlier process of the same seat may have been reading when it ended.

    Attributes:
        generation: in which it was known to own `partitions`. Whoever was given one of them since claims it in a later
            generation, and that claim wins (KIP-792).
    """

    partitions: frozenset[TopicPartition] = frozenset()
    generation: int = NO_GENERATION


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberConfig:
    """How one member presents itself.

    Attributes:
        instance_id: None makes a dynamic member (KIP-394), anything else a static one (KIP-345).
        topics: subscribed names.
        assignors: in order of preference, at least one. The member is cooperative if all of them are (KIP-429).
        previously_owned: claimed by the first join, like what is owned; given up if it is not assigned.
            1. a process dies in the midst of its work; 2. the group rebalances; 3. the process comes back within its
            session, to finish that: without a claim the leader would give what it reads to others at once.
        replaces: the member id that the group kept for this seat when the process started, if that is known.

    """

    group: str
    instance_id: str | None
    topics: tuple[str, ...]
    assignors: tuple[Assignor, ...]
    session_timeout_ms: int = SESSION_TIMEOUT_MS
    rebalance_timeout_ms: int = REBALANCE_TIMEOUT_MS
    heartbeat_interval_ms: int = HEARTBEAT_INTERVAL_MS
    rack: str | None = None
    previously_owned: PreviouslyOwned = PreviouslyOwned()
    replaces: str = UNKNOWN_MEMBER_ID

    @property
    def cooperative(self) -> bool:
        """Whether partitions are kept through a rebalance (KIP-429: the lowest common protocol counts)."""
        return all(a.protocol is RebalanceProtocol.COOPERATIVE for a in self.assignors)
