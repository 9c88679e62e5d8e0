"""Sessions of members under test, and a coordinator's answers to them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any

from kio.schema.errors import ErrorCode as KioErrorCode
from kio.schema.join_group.v9.response import JoinGroupResponseMember
from kio.static.primitive import i32

from harness.fake_broker import NO_THROTTLE
from spark_kgroup.assignors import assignor
from spark_kgroup.member.config import MemberConfig
from spark_kgroup.model import TopicPartition
from spark_kgroup.runtime.session import Observer, Session
from spark_kgroup.wire import messages
from spark_kgroup.wire.consumer_protocol import encode_assignment


def joined(
    *,
    leader: str,
    generation: int = 1,
    member_id: str = "m",
    members: Mapping[str, bytes] | None = None,
    protocol_name: str = "cooperative-sticky",
    error: int = 0,
) -> messages.JoinGroupResponse:
    """The answer that ends a join, with `members` (id -> subscription) for the leader."""
    return messages.JoinGroupResponse(
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


def join_refused(error: int) -> messages.JoinGroupResponse:
    return messages.JoinGroupResponse(
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
) -> messages.SyncGroupResponse:
    """The answer that gives a member its `assignment`, encoded or not."""
    return messages.SyncGroupResponse(
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
