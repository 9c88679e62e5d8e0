"""A member's machine: its interface to the runtime, and the half that the machines of both protocols share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar

from spark_kgroup.errors import FencedInstanceId, IllegalTransition
from spark_kgroup.member.config import ConsumerMemberConfig, MemberConfig
from spark_kgroup.member.pacing import Pacing
from spark_kgroup.model import UNKNOWN_MEMBER_ID, MemberIdentity, TopicPartition
from spark_kgroup.rights import Rights

C = TypeVar("C", MemberConfig, ConsumerMemberConfig)
F = TypeVar("F")
S = TypeVar("S", bound=Enum)
T = TypeVar("T", bound=Enum)

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

    def in_touch(self, now_ms: int) -> bool:
        """In a generation, with a coordinator that answered the last heartbeat, or has an interval's time to do so."""

    def subscribe(self, topics: tuple[str, ...]) -> None:
        """Subscribe to `topics` from the next request on that names them."""

    def next_wakeup_at_ms(self) -> int | None:
        """When the next `Tick` is due, None if no timer runs."""

    def handle(self, event: Any, now_ms: int) -> Sequence[Any]:
        """Take one event, and return the effects to be carried out, in order."""


class StateMachine(Generic[C, S, T]):
    """The half that the machines of both protocols share: states, timers, and how fast the member asks again.

    `S` has the states, and `T` the timers, at most one of each kind. A timer that fires is gone, and a method that
    wants another sets it.

    Args:
        config: how the member presents itself.
        leaves_to: state -> the states that may follow it. The first one is where a machine starts, and the one that
            none follows is where it ends.
        jitter: gives a number in [0, 1) for each heartbeat and retry, passed in so that a simulation repeats.
        member_id: of the member from the start on.
    """

    def __init__(
        self,
        config: C,
        leaves_to: Mapping[S, Set[S]],
        *,
        jitter: Callable[[], float],
        member_id: str = UNKNOWN_MEMBER_ID,
    ) -> None:
        self.config: C = config
        self.identity = MemberIdentity(instance_id=config.instance_id, member_id=member_id)
        self.state: S = next(iter(leaves_to))
        self._leaves_to = leaves_to
        self._pacing = Pacing(config.heartbeat_interval_ms, jitter)
        self._rights = Rights()
        self._asked_at_ms = -1
        """When the awaited request was sent, or the last one, or -1 before the first."""
        self._timers: dict[T, int] = {}

    @property
    def ended(self) -> bool:
        """The machine has ended, and no event has an effect any more."""
        return not self._leaves_to[self.state]

    def next_wakeup_at_ms(self) -> int | None:
        """When the next `Tick` is due, None if no timer runs."""
        return min(self._timers.values(), default=None)

    def _become(self, state: S) -> None:
        """Change the state. No other method does.

        Raises:
            IllegalTransition: `leaves_to` does not have this step: a bug of ours.
        """
        if state is not self.state and state not in self._leaves_to[self.state]:
            raise IllegalTransition(self._name, self.state.value, f"become {state.value}")
        self.state = state

    def _follow(
        self, table: Mapping[S, Mapping[type[Any], Callable[[Any, Any, int], list[F]]]], event: object, now_ms: int
    ) -> list[F]:
        """Take one event as the table says for this state, and return the effects.

        Raises:
            IllegalTransition: the pair of state and event is not in the table: a bug of the caller or ours.
        """
        handler = table[self.state].get(type(event))
        if handler is None:
            raise IllegalTransition(self._name, self.state.value, type(event).__name__)
        return handler(self, event, now_ms)

    def _ignore(self, _: object, __: int) -> list[Any]:
        """Take no action: the event is no surprise, for example an answer that is no longer awaited."""
        return []

    def _fired(self, now_ms: int) -> Set[T]:
        """The timers that are due. They are gone."""
        due = {timer for timer, at_ms in self._timers.items() if at_ms <= now_ms}
        for timer in due:
            del self._timers[timer]
        return due

    def _end(self, effects: list[F]) -> list[F]:
        """End: no timer runs any more, and no event has an effect."""
        self._become(next(state for state, following in self._leaves_to.items() if not following))
        self._timers.clear()
        return effects

    def _fencing(self) -> FencedInstanceId:
        return FencedInstanceId(self.config.group, self.config.instance_id or "")

    @property
    def _silence(self) -> str:
        """Why the membership is taken for over when no answer came for a session, or refusals alone."""
        return f"the coordinator has not confirmed the membership for {self.config.session_timeout_ms} ms"

    @property
    def _name(self) -> str:
        """For errors."""
        return f"{'consumer' if isinstance(self.config, ConsumerMemberConfig) else 'classic'} member"
