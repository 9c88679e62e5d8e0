"""Sessions of members under test, and a coordinator's answers to them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any, TypeVar

from kio.schema.errors import ErrorCode as KioErrorCode
from kio.schema.join_group.v9.response import JoinGroupResponseMember
from kio.static.primitive import i32

from harness import kio_messages
from harness.fake_broker import NO_THROTTLE
from harness.fake_cluster import BrokerWorld, in_a_world
from spark_kgroup.assignors import assignor
from spark_kgroup.member.config import MemberConfig
from spark_kgroup.model import TopicPartition
from spark_kgroup.runtime.group import Group
from spark_kgroup.runtime.session import Observer, Session
from spark_kgroup.runtime.settings import GroupSettings
from spark_kgroup.runtime.views import GroupView
from spark_kgroup.wire.consumer_protocol import encode_assignment

C = TypeVar("C")


def joined(
    *,
    leader: str,
    generation: int = 1,
    member_id: str = "m",
    members: Mapping[str, bytes] | None = None,
    protocol_name: str = "cooperative-sticky",
    error: int = 0,
) -> kio_messages.JoinGroupResponse:
    """The answer that ends a join, with `members` (id -> subscription) for the leader."""
    return kio_messages.JoinGroupResponse(
        throttle_time=NO_THROTTLE,
        error_code=KioErrorCode(error),
        generation_id=i32(generation),
        protocol_type="consumer",
        protocol_name=protocol_name,
        leader=leader,
        skip_assignment=False,
        member_id=member_id,
        members=tuple(
            JoinGroupResponseMember(member_id=who, group_instance_id=None, metadata=subscription)
            for who, subscription in (members or {}).items()
        ),
    )


def join_refused(error: int) -> kio_messages.JoinGroupResponse:
    return kio_messages.JoinGroupResponse(
        throttle_time=NO_THROTTLE,
        error_code=KioErrorCode(error),
        generation_id=i32(-1),
        protocol_type=None,
        protocol_name=None,
        leader="",
        skip_assignment=False,
        member_id="",
        members=(),
    )


def synced(
    assignment: bytes | Sequence[TopicPartition],
    *,
    protocol_type: str = "consumer",
    protocol_name: str = "cooperative-sticky",
    error: int = 0,
) -> kio_messages.SyncGroupResponse:
    """The answer that gives a member its `assignment`, encoded or not."""
    return kio_messages.SyncGroupResponse(
        throttle_time=NO_THROTTLE,
        error_code=KioErrorCode(error),
        protocol_type=protocol_type,
        protocol_name=protocol_name,
        assignment=assignment if isinstance(assignment, bytes) else encode_assignment(assignment),
    )


def session_of(
    cluster: Any,
    *,
    observer: Observer = lambda *_: None,
    rack: Callable[[], str | None] = lambda: None,
    **config: Any,
) -> Session:
    """A session of a static cooperative member of group "g", unless `config` says otherwise."""
    common: dict[str, Any] = {
        "group": "g",
        "instance_id": "seat-0",
        "topics": ("a",),
        "assignors": (assignor("cooperative-sticky"),),
    }
    return Session(MemberConfig(**common | config), cluster, observer, Random(1), rack=rack)


@asynccontextmanager
async def running(*sessions: Session) -> AsyncIterator[None]:
    """Let sessions run until the end of the block."""
    tasks = [asyncio.create_task(session.run()) for session in sessions]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def in_a_group(
    coordinator_of: Callable[[BrokerWorld], C], rests: Callable[[GroupView], bool], **settings: Any
) -> Callable[[Callable[[C, Group], Awaitable[None]]], Callable[[], None]]:
    """Run a scenario with a coordinator and a group of one seat, which reads topic a, from when `rests` holds."""

    def wrap(scenario: Callable[[C, Group], Awaitable[None]]) -> Callable[[], None]:
        @in_a_world()
        async def run(world: BrokerWorld) -> None:
            coordinator, bootstrap = coordinator_of(world), (world.brokers[0].address,)
            group = Group(
                GroupSettings(bootstrap=bootstrap, group="g", topics=("a",), instance_ids=("seat-0",), **settings)
            )
            await group.start()
            try:
                assert rests(await group.wait_until(rests, 10_000))
                await scenario(coordinator, group)
            finally:
                await group.close()

        run.__name__, run.__doc__ = scenario.__name__, scenario.__doc__
        return run

    return wrap
