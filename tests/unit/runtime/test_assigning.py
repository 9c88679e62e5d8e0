"""A leader assigns beside the event loop: other work on the loop goes on, and an outdated result is dropped."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from harness.assigning_group import T0, Coordinator, seat
from harness.fake_broker import on_a_loop, until
from harness.kio_messages import HeartbeatRequest, JoinGroupRequest, SyncGroupRequest
from harness.sessions import running, session_of

from spark_kgroup.assignors import assignor
from spark_kgroup.assignors.cooperative_sticky import CooperativeStickyAssignor
from spark_kgroup.member import contract
from spark_kgroup.model import Assignment, GroupMember, TopicDescription
from spark_kgroup.runtime import classic_work
from spark_kgroup.wire.consumer_protocol import decode_assignment, decode_subscription
from spark_kgroup.wire.schema import JoinGroupResponse


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
def busy() -> BusyAssignor:
    return BusyAssignor()


def test_heartbeats_of_other_seats_go_out_while_an_assignor_is_busy(busy: BusyAssignor) -> None:
    @on_a_loop
    async def scenario() -> None:
        coordinator = Coordinator()
        leader, quiet = seat("led", coordinator, busy), seat("quiet", coordinator, busy)
        async with coordinator.broker, running(leader, quiet):
            await until(busy.begun.is_set)
            before = coordinator.count(HeartbeatRequest, "quiet")
            await until(lambda: coordinator.count(HeartbeatRequest, "quiet") >= before + 3)
            assert leader.machine.assigning_in is not None
            busy.may_end.set()
            await until(lambda: leader.machine.owned == {T0})
            assert leader.snapshot == {"t": 1}

    scenario()


@pytest.mark.parametrize(("translate", "api"), [("to_event", JoinGroupResponse), ("to_message", contract.SyncRequest)])
def test_heartbeats_of_other_seats_go_out_while_subscriptions_or_shares_of_all_members_are_translated(
    translate: str, api: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end, translated = threading.Event(), threading.Event(), getattr(classic_work, translate)

    def slowly(request: contract.Request, *more: Any) -> Any:
        if request.identity.instance_id == "leader" and any(isinstance(each, api) for each in (request, *more)):
            begun.set()
            assert may_end.wait(timeout=20)
        return translated(request, *more)

    @on_a_loop
    async def scenario() -> None:
        coordinator, chosen = Coordinator(), assignor("cooperative-sticky")
        leader, quiet = seat("led", coordinator, chosen, "leader"), seat("quiet", coordinator, chosen)
        async with coordinator.broker, running(quiet):
            await until(lambda: quiet.machine.settled)
            monkeypatch.setattr(classic_work, translate, slowly)
            async with running(leader):
                await until(begun.is_set)
                before = coordinator.count(HeartbeatRequest, "quiet")
                await until(lambda: coordinator.count(HeartbeatRequest, "quiet") >= before + 3)
                may_end.set()
                await until(lambda: leader.machine.owned == {T0})

    scenario()


def test_an_assignment_computed_for_an_earlier_generation_is_dropped(busy: BusyAssignor) -> None:
    """1. The assignor works on generation 1. 2. The seat loses its connection and joins again: generation 2. 3. Both
    results arrive, that of generation 1 first."""

    @on_a_loop
    async def scenario() -> None:
        coordinator = Coordinator()
        leader = seat("led", coordinator, busy)
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


def test_a_rack_that_changes_is_no_reason_to_join_and_the_next_join_names_the_new_one() -> None:
    @on_a_loop
    async def scenario() -> None:
        coordinator, rack = Coordinator(), "r1"
        quiet = session_of(coordinator, group="quiet", topics=("t",), heartbeat_interval_ms=10, rack=lambda: rack)
        async with coordinator.broker, running(quiet):
            await until(lambda: quiet.machine.settled)
            rack = "r2"
            before = coordinator.count(HeartbeatRequest, "quiet")
            await until(lambda: coordinator.count(HeartbeatRequest, "quiet") >= before + 3)
            assert racks_in(coordinator) == ["r1"]
            quiet.post(contract.RejoinWanted(reason="a test"))
            await until(lambda: len(racks_in(coordinator)) == 2)
            assert racks_in(coordinator) == ["r1", "r2"]

    scenario()


def racks_in(coordinator: Coordinator) -> list[str | None]:
    """The rack of each join."""
    joins = [request for request in coordinator.broker.requests if isinstance(request, JoinGroupRequest)]
    return [decode_subscription(offer.metadata).rack for join in joins for offer in join.protocols]
