"""Drives one member under the consumer protocol by hand: events in, effects out, the coordinator's answers written."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TypeVar
from uuid import UUID

from spark_kgroup.member import consumer_contract, contract
from spark_kgroup.member.config import ConsumerMemberConfig, Resumption
from spark_kgroup.member.consumer import ConsumerMember, State
from spark_kgroup.member.consumer_contract import (
    Ask,
    ConsumerHeartbeatRequest,
    ConsumerHeartbeatResponse,
    TopicsResolved,
)
from spark_kgroup.member.member_ids import new_member_id
from spark_kgroup.model import ErrorCode, MemberIdentity, TopicIdPartition, TopicPartition

OLD, NEW = UUID(int=1), UUID(int=2)
SESSION_MS = 45_000
NEVER_SENT = ConsumerHeartbeatRequest(identity=MemberIdentity(instance_id="seat-0"), full=False)

OWING = Resumption(
    member_id="crashed", epoch=7, owned=frozenset((TopicPartition("orders", index), OLD) for index in (0, 1))
)
"""A seat whose earlier process may have been reading 0 and 1."""

E = TypeVar("E")


def by_id(*indexes: int, of: UUID = OLD) -> frozenset[TopicIdPartition]:
    return frozenset(TopicIdPartition(of, index) for index in indexes)


def parts(*indexes: int) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition("orders", index) for index in indexes)


def only(effects: Sequence[consumer_contract.Effect], kind: type[E]) -> E:
    """The one effect of a kind."""
    found = [effect for effect in effects if isinstance(effect, kind)]
    assert len(found) == 1, f"{kind.__name__} in {effects}"
    return found[0]


class Driver:
    """A machine, the instant, and the request that waits for its answer."""

    def __init__(self, instance_id: str | None = "seat-0", resumes: Resumption | None = None) -> None:
        rng = Random(1)
        config = ConsumerMemberConfig(
            group="g", instance_id=instance_id, topics=("orders",), session_timeout_ms=SESSION_MS, resumes=resumes
        )
        self.machine = ConsumerMember(config, jitter=lambda: 0.0, new_id=lambda: new_member_id(rng.randbytes))
        self.now_ms = 1_000_000
        self.awaited = NEVER_SENT

    @property
    def state(self) -> State:
        return self.machine.state

    def take(self, event: consumer_contract.Event) -> list[consumer_contract.Effect]:
        effects = self.machine.handle(event, self.now_ms)
        for effect in effects:
            if isinstance(effect, Ask):
                self.awaited = effect.request
        return effects

    def answer(
        self, *, error: int = 0, epoch: int = 3, assignment: frozenset[TopicIdPartition] | None = None, words: str = ""
    ) -> list[consumer_contract.Effect]:
        response = ConsumerHeartbeatResponse(
            request=self.awaited, error=error, message=words, epoch=epoch, interval_ms=5_000, assignment=assignment
        )
        return self.take(response)

    def resolve(self, topic_id: UUID = OLD) -> list[consumer_contract.Effect]:
        return self.take(TopicsResolved(names=((topic_id, "orders"),)))

    def pass_ms(self, duration_ms: int) -> list[consumer_contract.Effect]:
        self.now_ms += duration_ms
        return self.take(contract.Tick())

    def into(self, state: State) -> Driver:
        """Bring a new machine into `state`. In the group it owns 0 and 1, and in RECONCILING it must give up 1.

        RESUMING takes a driver that was made with `OWING`, which must give up 1 as well.
        """
        if state is State.IDLE:
            return self
        if state is State.CLOSED:
            self.take(contract.Close())
            return self
        self.take(contract.Join())
        if state is State.RESUMING:
            self.answer(epoch=7, assignment=by_id(0))
        elif state in (State.LOOKING, State.RELEASING):
            self.answer(error=ErrorCode.UNRELEASED_INSTANCE_ID)
            if state is State.RELEASING:
                self.take(contract.SeatSeen(member_id="crashed"))
        elif state is State.LEAVING:
            self.take(contract.Leave(reason="a test"))
        elif state is not State.JOINING:
            self.answer(assignment=by_id(0, 1))
            self.resolve()
            self.answer()
            if state is State.RECONCILING:
                self.pass_ms(5_000)
                self.answer(assignment=by_id(0))
        assert self.state is state
        return self
