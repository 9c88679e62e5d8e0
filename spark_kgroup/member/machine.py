"""The interface of a member's machine to the runtime, under either protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from spark_kgroup.member.config import ConsumerMemberConfig, MemberConfig
from spark_kgroup.model import MemberIdentity, TopicPartition

Config = MemberConfig | ConsumerMemberConfig
"""How a member presents itself, under either protocol."""


class Machine(Protocol):
    """One member's state machine. `handle` alone changes its state.

    Attributes:
        identity: the name under which the member speaks. Its generation is the member epoch under the consumer
            protocol.
        watched_topics: the topics whose metadata the member watches for the group.

    """

    identity: MemberIdentity

    @property
    def config(self) -> Config:
        """How the member presents itself."""

    @property
    def leader(self) -> bool:
        """Whether it leads its generation."""

    @property
    def leader_id(self) -> str:
        """The member id of its generation's leader, empty if there is none."""

    @property
    def watched_topics(self) -> frozenset[str]:
        """The topics whose metadata it watches for the group: those of all members if it leads, else none."""

    @property
    def awaits_join(self) -> bool:
        """Whether it has asked for a generation that other members may have to join first."""

    @property
    def assigning_in(self) -> int | None:
        """The generation that waits for this member's assignor, None if none does."""

    @property
    def in_generation(self) -> bool:
        """Whether it is a member, with an assignment."""

    @property
    def owned(self) -> frozenset[TopicPartition]:
        """The partitions that the application may be reading."""

    @property
    def to_give_up(self) -> frozenset[TopicPartition]:
        """The partitions to give up before the next piece of work."""

    @property
    def settled(self) -> bool:
        """In a generation, no partition to give up, and no request on its way that would change that."""

    @property
    def ended(self) -> bool:
        """The machine has ended, and no event has an effect any more."""

    def subscribe(self, topics: tuple[str, ...]) -> None:
        """Subscribe to `topics` from the next request on that names them."""

    def next_wakeup_at_ms(self) -> int | None:
        """When the next `Tick` is due, None if no timer runs."""

    def handle(self, event: Any, now_ms: int) -> Sequence[Any]:
        """Take one event, and return the effects to be carried out, in order."""
