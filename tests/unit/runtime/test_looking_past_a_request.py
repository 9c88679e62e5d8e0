"""A session asks past a request that is parked on its own connection, and leaves without waiting behind it.

It asks which broker coordinates, and whether it is still a member.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from harness import kio_messages
from harness.fake_broker import HUNG_UP, NO_THROTTLE, on_a_loop, until
from harness.fake_cluster import A0, BrokerWorld
from harness.kio_messages import (
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from harness.sessions import join_refused, joined, running, session_of, synced
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.schema.leave_group.v5.response import MemberResponse

from spark_kgroup.member import contract
from spark_kgroup.member.classic import ClassicMember, State
from spark_kgroup.model import ErrorCode, GroupMember, Subscription
from spark_kgroup.runtime.session import Session

pytestmark = pytest.mark.filterwarnings("error::ResourceWarning")

SESSION_MS = 3_000


class Coordinated(BrokerWorld):
    """A cluster that also joins a follower, unless told to keep its JoinGroups in `parked`.

    With `fences` it refuses each join that names a member id.
    """

    def __init__(self) -> None:
        super().__init__()
        self.parked = False
        self.protocol_name = "cooperative-sticky"
        self.synced_type = "consumer"
        self.beats_past = 0
        self.member_id = "m"
        self.fences = False

    def answer(self, node: int, request: Any) -> Any:
        if self.parked and type(request).__name__ == "JoinGroupRequest":
            return asyncio.Event().wait()
        return super().answer(node, request)

    def on_JoinGroup(self, node: int, request: Any, error: KioErrorCode) -> Any:
        if self.fences and request.member_id:
            return join_refused(ErrorCode.FENCED_INSTANCE_ID)
        return joined(
            leader="another",
            generation=3,
            member_id=self.member_id,
            protocol_name=self.protocol_name,
            error=self.group_error(node, error).value,
        )

    def on_SyncGroup(self, node: int, _: Any, error: KioErrorCode) -> Any:
        return synced(
            [A0],
            protocol_type=self.synced_type,
            protocol_name=self.protocol_name,
            error=self.group_error(node, error).value,
        )

    def on_Heartbeat(self, node: int, _: Any, error: KioErrorCode) -> Any:
        self.beats_past += self.parked
        return kio_messages.HeartbeatResponse(throttle_time=NO_THROTTLE, error_code=self.group_error(node, error))

    def on_LeaveGroup(self, node: int, request: Any, error: KioErrorCode) -> Any:
        members = tuple(
            MemberResponse(
                member_id=m.member_id, group_instance_id=m.group_instance_id, error_code=self.group_error(node, error)
            )
            for m in request.members
        )
        return kio_messages.LeaveGroupResponse(
            throttle_time=NO_THROTTLE, error_code=self.group_error(node, error), members=members
        )


Run = Callable[[Coordinated, Session], Awaitable[None]]


def with_a_session(run: Run) -> Callable[[], None]:
    """Run a scenario with two brokers, the first of them the coordinator, and a session of a static member."""

    async def scenario() -> None:
        world = Coordinated()
        await world.start(nodes=2)
        cluster = world.cluster()
        session = session_of(cluster, session_timeout_ms=SESSION_MS, replaces="m")  # as the group describes it
        try:
            async with running(session):
                await run(world, session)
        finally:
            await cluster.close()
            await world.stop()

    scenario.__name__, scenario.__doc__ = run.__name__, run.__doc__
    return on_a_loop(scenario)


def state_of(session: Session) -> State:
    assert isinstance(session.machine, ClassicMember)
    return session.machine.state


async def park_a_join(world: Coordinated, session: Session) -> None:
    await until(lambda: state_of(session) is State.STABLE)
    world.parked = True
    joins = world.asked(kio_messages.JoinGroupRequest)
    session.post(contract.RejoinWanted(reason="test"))
    await until(lambda: world.asked(kio_messages.JoinGroupRequest) > joins)


@with_a_session
async def test_a_parked_join_costs_no_partition_while_heartbeats_past_it_are_answered(
    world: Coordinated, session: Session
) -> None:
    await park_a_join(world, session)
    await until(lambda: world.beats_past >= 7)  # three in a session
    assert session.machine.owned == {A0}
    await until(lambda: world.asked(FindCoordinatorRequest) >= 7)


@with_a_session
async def test_a_join_parked_where_the_coordinator_was_is_sent_to_where_it_is(
    world: Coordinated, session: Session
) -> None:
    await park_a_join(world, session)
    world.coordinator, world.parked = 1, False
    await until(lambda: state_of(session) is State.STABLE)
    assert world.asked(SyncGroupRequest, node=1) == 1
    assert session.machine.owned == {A0}


@with_a_session
async def test_a_member_that_the_group_removed_hears_of_it_past_its_parked_join(
    world: Coordinated, session: Session
) -> None:
    await park_a_join(world, session)
    world.first["Heartbeat"] = [ErrorCode.UNKNOWN_MEMBER_ID]
    await until(lambda: not session.machine.owned)
    assert session.owned_since == {}


@with_a_session
async def test_a_seat_that_the_next_coordinator_knows_under_the_id_before_is_taken_again(
    world: Coordinated, session: Session
) -> None:
    world.member_id, world.fences = "n", True
    world.first["SyncGroup"] = [ErrorCode.FENCED_INSTANCE_ID]
    await until(lambda: state_of(session) is State.STABLE)
    first, *between, last = [
        r.member_id for r in world.brokers[0].requests if isinstance(r, kio_messages.JoinGroupRequest)
    ]
    assert (first, last) == ("", "")
    # A join is due a backoff after the refusal. It comes first where the description of the group takes longer.
    assert set(between) <= {"n"}
    assert world.asked(DescribeGroupsRequest) >= 1


@with_a_session
async def test_a_leave_is_sent_past_a_parked_join(world: Coordinated, session: Session) -> None:
    await park_a_join(world, session)
    session.post(contract.Leave(reason="test"))
    await until(lambda: state_of(session) is State.CLOSED)
    assert world.asked(LeaveGroupRequest) == 1


@with_a_session
async def test_a_leave_is_sent_again_while_the_coordinator_moves(world: Coordinated, session: Session) -> None:
    left: list[contract.Left] = []
    session._observer = lambda _, effect: left.append(effect) if isinstance(effect, contract.Left) else None
    await until(lambda: state_of(session) is State.STABLE)
    world.first["LeaveGroup"] = [ErrorCode.NOT_COORDINATOR, HUNG_UP, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
    session.post(contract.Leave(reason="test"))
    await until(lambda: state_of(session) is State.CLOSED)
    assert left == [contract.Left(error=ErrorCode.NONE)]


@with_a_session
async def test_a_refused_leave_is_reported_as_not_confirmed(world: Coordinated, session: Session) -> None:
    left: list[contract.Left] = []
    session._observer = lambda _, effect: left.append(effect) if isinstance(effect, contract.Left) else None
    await until(lambda: state_of(session) is State.STABLE)
    world.first["LeaveGroup"] = [ErrorCode.GROUP_AUTHORIZATION_FAILED]
    session.post(contract.Leave(reason="test"))
    await until(lambda: state_of(session) is State.CLOSED)
    assert left == [contract.Left(error=ErrorCode.NETWORK_EXCEPTION)]


@with_a_session
async def test_a_join_answered_with_a_protocol_that_is_not_ours_ends_the_member(
    world: Coordinated, session: Session
) -> None:
    """As in Java (AbstractCoordinator.JoinGroupResponseHandler, SyncGroupResponseHandler)."""
    world.protocol_name = "connect"
    await until(lambda: session.failure)
    assert "another type" in str(session.failure)


@with_a_session
async def test_a_sync_answered_with_a_protocol_type_that_is_not_ours_ends_the_member(
    world: Coordinated, session: Session
) -> None:
    world.synced_type = "connect"
    await until(lambda: session.failure)
    assert session.machine.owned == frozenset()


@with_a_session
async def test_a_broken_connection_is_an_event_before_it_is_closed(world: Coordinated, session: Session) -> None:
    """Requests sent while it closes would go nowhere, and no event would say so."""
    await until(lambda: state_of(session) is State.STABLE)
    connection = session._classic_calls._connection
    assert connection is not None
    waiting: list[int] = []
    close, events = connection.close, session._events

    async def slow_close() -> None:
        told = [events.get_nowait() for _ in range(events.qsize())]  # a timer may have been due as well
        waiting.append(sum(isinstance(event, contract.ConnectionLost) for event in told))
        for event in told:
            events.put_nowait(event)
        await close()

    connection.close = slow_close  # type: ignore[method-assign]
    await session._classic_calls._drop(connection, "test")
    assert waiting == [1]


@on_a_loop
async def test_metadata_that_arrives_after_its_generation_is_over_is_no_snapshot() -> None:
    """1. The leader asks for metadata. 2. A later generation begins. 3. The answer is about the topics of the first."""
    world = Coordinated()
    await world.start()
    cluster = world.cluster()
    session = session_of(cluster)
    machine = session.machine
    assert isinstance(machine, ClassicMember)
    machine.state, machine.identity = State.ASSIGNING, machine.identity.__class__(instance_id="s", generation=1)
    asked = cluster.metadata

    async def meanwhile(topics: Any, **more: Any) -> Any:
        found = await asked(topics, **more)
        machine.identity = machine.identity.__class__(instance_id="s", generation=2)
        return found

    cluster.metadata = meanwhile  # type: ignore[method-assign]
    member = GroupMember(member_id="m", instance_id="s", subscription=Subscription(topics=("a",)))
    try:
        await session._leading._compute_assignment(
            contract.ComputeAssignment(generation=1, assignor="cooperative-sticky", members=(member,))
        )
        assert session.snapshot is None
        assert session._events.empty()
    finally:
        await cluster.close()
        await world.stop()
