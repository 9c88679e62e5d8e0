"""Drives one machine by hand: events in, effects out, the coordinator's answers written by the test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from harness.simulated_invariants import check_ownership
from spark_kgroup.assignors.contract import Assignor, RebalanceProtocol
from spark_kgroup.member import contract
from spark_kgroup.member.classic import ClassicMember, MemberConfig, State
from spark_kgroup.model import Assignment, ErrorCode, GroupMember, Subscription, TopicDescription, TopicPartition

TOPIC = "orders"
SESSION_MS = 10_000
HEARTBEAT_MS = 3_000
ME = "seat-0-aaa"
OWN_ID = "own-0"

E = TypeVar("E", bound=contract.Effect)


class NamedAssignor:
    """An assignor by name and protocol only: the machine never runs one itself."""

    def __init__(self, name: str, protocol: RebalanceProtocol) -> None:
        self.name = name
        self.protocol = protocol

    def user_data(self, owned: frozenset[TopicPartition], generation: int) -> bytes | None:
        return f"{self.name}:{len(owned)}@{generation}".encode()

    def assign(self, members: Sequence[GroupMember], topics: Mapping[str, TopicDescription]) -> Assignment:
        raise AssertionError(f"the machine asks for an assignment, it computes none: {members}, {topics}")


COOPERATIVE: Assignor = NamedAssignor("sticky", RebalanceProtocol.COOPERATIVE)
EAGER: Assignor = NamedAssignor("range", RebalanceProtocol.EAGER)


def parts(*indexes: int, topic: str = TOPIC) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(topic, index) for index in indexes)


def member(member_id: str, *topics: str) -> GroupMember:
    return GroupMember(member_id=member_id, instance_id=None, subscription=Subscription(topics=topics or (TOPIC,)))


class Driver:
    """A machine, the instant, whether other members hear for it, and all effects so far."""

    def __init__(
        self,
        *,
        instance_id: str | None = "seat-0",
        assignors: tuple[Assignor, ...] = (COOPERATIVE,),
        jitter: float = 0.0,
        session_ms: int = SESSION_MS,
        own_id: str = OWN_ID,
    ) -> None:
        self.rests = False
        config = MemberConfig(
            group="g",
            instance_id=instance_id,
            topics=(TOPIC,),
            assignors=assignors,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=6 * SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            own_id=own_id,
        )
        self.machine = ClassicMember(config, jitter=lambda: jitter, rests=lambda: self.rests)
        self.now_ms = 1_000_000
        self.sent: list[contract.Request] = []
        self.looks: list[contract.HeartbeatRequest | None] = []

    @property
    def state(self) -> State:
        return self.machine.state

    def take(self, event: contract.Event) -> list[contract.Effect]:
        effects = self.machine.handle(event, self.now_ms)
        check_ownership(self.machine)
        self.sent += [effect.request for effect in effects if isinstance(effect, contract.Send)]
        self.looks += [effect.heartbeat for effect in effects if isinstance(effect, contract.Look)]
        return effects

    def after(self, wait_ms: int) -> list[contract.Effect]:
        self.now_ms += wait_ms
        return self.take(contract.Tick())

    # ------------------------------------------------------------------------------- the coordinator's answers

    def last_sent(self) -> contract.Request:
        return self.sent[-1]

    def answer_join(
        self,
        *,
        error: int = ErrorCode.NONE,
        generation: int = 1,
        member_id: str = ME,
        leader: str = "somebody",
        members: tuple[GroupMember, ...] = (),
        skip_assignment: bool = False,
    ) -> list[contract.Effect]:
        request = next(r for r in reversed(self.sent) if isinstance(r, contract.JoinRequest))
        return self.take(
            contract.JoinResponse(
                request=request,
                error=error,
                generation=generation,
                protocol=self.machine.config.assignors[0].name,
                leader=leader,
                member_id=member_id,
                members=members,
                skip_assignment=skip_assignment,
            )
        )

    def answer_rename(self, error: int = ErrorCode.NONE) -> list[contract.Effect]:
        request = next(r for r in reversed(self.sent) if isinstance(r, contract.RenameRequest))
        return self.take(contract.RenameResponse(request=request, error=error))

    def answer_sync(self, *indexes: int, error: int = ErrorCode.NONE) -> list[contract.Effect]:
        request = next(r for r in reversed(self.sent) if isinstance(r, contract.SyncRequest))
        return self.take(contract.SyncResponse(request=request, error=error, assignment=parts(*indexes)))

    def answer_beat(self, error: int = ErrorCode.NONE) -> list[contract.Effect]:
        request = next(r for r in reversed(self.sent) if isinstance(r, contract.HeartbeatRequest))
        return self.take(contract.HeartbeatResponse(request=request, error=error))

    def answer_look(self, error: int = ErrorCode.NONE) -> list[contract.Effect]:
        request = self.looks[-1]
        assert request is not None
        return self.take(contract.HeartbeatResponse(request=request, error=error))

    def give_up(self, *indexes: int) -> list[contract.Effect]:
        return self.take(contract.GaveUp(partitions=parts(*indexes)))

    def lose_connection(self) -> list[contract.Effect]:
        return self.take(contract.ConnectionLost(reason="gone"))

    # --------------------------------------------------------------------------------------- into a state

    def into(self, state: State) -> Driver:
        """Bring a new machine into `state`, holding partitions 0 and 1 from STABLE on."""
        if state is State.IDLE:
            return self
        if state is State.CLOSED:
            self.take(contract.Close())
            return self
        self.take(contract.Join())
        self.take(contract.Connected())
        if state is State.LEAVING:
            self.take(contract.Leave(reason="test"))
        elif state is State.ASSIGNING:
            self.answer_join(leader=ME, members=(member(ME),))
        elif state is not State.JOINING:
            self.answer_join()
            if state is not State.SYNCING:
                self.answer_sync(0, 1)
                self.answer_beat()
            if state is State.REVOKING:
                self.rebalance_to(0)
            if state is State.RENAMING:
                self.take(contract.Rename())
        assert self.machine.state is state
        return self

    def rebalance_and_join(self, generation: int = 2) -> list[contract.Effect]:
        """From STABLE into SYNCING of the next generation."""
        self.take(contract.RejoinWanted(reason="test"))
        return self.answer_join(generation=generation)

    def rebalance_to(self, *indexes: int, generation: int = 2) -> list[contract.Effect]:
        """A whole cooperative rebalance from STABLE. Returns the effects of its last step."""
        self.rebalance_and_join(generation)
        return self.answer_sync(*indexes)


def only(effects: Sequence[contract.Effect], kind: type[E]) -> E:
    """The one effect of a kind."""
    found = [effect for effect in effects if isinstance(effect, kind)]
    assert len(found) == 1, f"{kind.__name__} in {effects}"
    return found[0]


def none_of(effects: Sequence[contract.Effect], *kinds: type[contract.Effect]) -> bool:
    return not any(isinstance(effect, kinds) for effect in effects)


def request_in(effects: Sequence[contract.Effect]) -> contract.Request:
    return only(effects, contract.Send).request


def claim(request: contract.Request) -> Subscription:
    """The subscription of a join, which has its claims."""
    assert isinstance(request, contract.JoinRequest)
    return request.protocols[0][1]
