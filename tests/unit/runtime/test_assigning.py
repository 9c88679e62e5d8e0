"""A leader assigns beside the event loop: what else runs on the loop goes on, and an outdated result is dropped."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from harness.fake_broker import NO_THROTTLE, FakeBroker, on_a_loop, until
from harness.sessions import joined, running, session_of, synced
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.schema.heartbeat.v4 import HeartbeatRequest, HeartbeatResponse
from kio.schema.join_group.v9 import JoinGroupRequest
from kio.schema.sync_group.v5 import SyncGroupRequest

from spark_kgroup.assignors.cooperative_sticky import CooperativeStickyAssignor
from spark_kgroup.member import contract
from spark_kgroup.member.classic import State
from spark_kgroup.model import Assignment, GroupMember, Subscription, TopicDescription, TopicPartition
from spark_kgroup.runtime import session as session_module
from spark_kgroup.runtime.session import Session
from spark_kgroup.wire.connection import Connection
from spark_kgroup.wire.consumer_protocol import decode_assignment, encode_subscription
from spark_kgroup.wire.responses import ClusterMetadata

T0 = TopicPartition("t", 0)
TOPIC = TopicDescription(name="t", topic_id=None, partition_count=1)


@dataclass
class BusyAssignor(CooperativeStickyAssignor):
    """Takes as long as a test wants."""

    begun: threading.Event = field(default_factory=threading.Event)
    may_end: threading.Event = field(default_factory=threading.Event)
    calls: int = 0

    def assign(self, members: Sequence[GroupMember], topics: Mapping[str, TopicDescription]) -> Assignment:
        self.calls += 1
        self.begun.set()
        assert self.may_end.wait(timeout=20)
        return super().assign(members, topics)


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> BusyAssignor:
    slow = BusyAssignor()
    monkeypatch.setattr(session_module, "assignor", lambda _: slow)
    return slow


@dataclass
class Coordinator:
    """The coordinator of two groups: the seat of "led" leads it, the one of "quiet" does not."""

    broker: FakeBroker = field(default_factory=FakeBroker)
    generation: int = 1

    def __post_init__(self) -> None:
        self.broker.answer = self.answer

    async def open_coordinator(self, _group: str) -> Connection:
        return await Connection.open(self.broker.address, client_id="test")

    async def metadata(self, _topics: Sequence[str]) -> ClusterMetadata:
        return ClusterMetadata(brokers={}, topics={"t": TOPIC}, leaders={}, errors={})

    def count(self, kind: type[Any], group: str) -> int:
        return sum(isinstance(request, kind) and request.group_id == group for request in self.broker.requests)

    def answer(self, request: Any) -> Any:
        match request:
            case JoinGroupRequest():
                led = request.group_id == "led"
                members = {"m": encode_subscription(Subscription(topics=("t",)))} if led else {}
                return joined(leader="m" if led else "other", generation=self.generation, members=members)
            case SyncGroupRequest():
                return synced(request.assignments[0].assignment if request.assignments else [])
            case HeartbeatRequest():
                return HeartbeatResponse(throttle_time=NO_THROTTLE, error_code=KioErrorCode.none)
        raise AssertionError(f"not expected: {request}")


def seat(group: str, coordinator: Coordinator) -> Session:
    return session_of(coordinator, group=group, topics=("t",), heartbeat_interval_ms=10)


def test_heartbeats_of_other_seats_go_out_while_an_assignor_is_busy(busy: BusyAssignor) -> None:
    @on_a_loop
    async def scenario() -> None:
        coordinator = Coordinator()
        leader, quiet = seat("led", coordinator), seat("quiet", coordinator)
        async with coordinator.broker, running(leader, quiet):
            await until(busy.begun.is_set)
            before = coordinator.count(HeartbeatRequest, "quiet")
            await until(lambda: coordinator.count(HeartbeatRequest, "quiet") >= before + 3)
            assert leader.machine.state is State.ASSIGNING
            busy.may_end.set()
            await until(lambda: leader.machine.owned == {T0})
            assert leader.snapshot == {"t": 1}

    scenario()


def test_an_assignment_computed_for_an_earlier_generation_is_dropped(busy: BusyAssignor) -> None:
    """1. The assignor works on generation 1. 2. The seat loses its connection and joins again: generation 2. 3. Both
    results arrive, that of generation 1 first."""

    @on_a_loop
    async def scenario() -> None:
        coordinator = Coordinator()
        leader = seat("led", coordinator)
        async with coordinator.broker, running(leader):
            await until(busy.begun.is_set)
            coordinator.generation = 2
            leader.post(contract.ConnectionLost(reason="a test"))
            await until(lambda: busy.calls == 2)
            busy.may_end.set()
            await until(lambda: leader.machine.owned == {T0})
            syncs = [r for r in coordinator.broker.requests if isinstance(r, SyncGroupRequest)]
            assert [sync.generation_id for sync in syncs] == [2]
            assert decode_assignment(syncs[0].assignments[0].assignment) == {T0}

    scenario()


def test_an_assignor_that_fails_ends_its_own_seat_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: str) -> None:
        raise ArithmeticError("a bug")

    monkeypatch.setattr(session_module, "assignor", broken)

    @on_a_loop
    async def scenario() -> None:
        coordinator = Coordinator()
        leader, quiet = seat("led", coordinator), seat("quiet", coordinator)
        async with coordinator.broker, running(leader, quiet):
            await until(lambda: leader.failure is not None)
            before = coordinator.count(HeartbeatRequest, "quiet")
            await until(lambda: coordinator.count(HeartbeatRequest, "quiet") > before)
            assert quiet.failure is None

    scenario()
