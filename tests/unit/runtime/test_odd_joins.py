"""JoinGroup answers that no coordinator gives are refused as such, before an assignor or a machine sees them."""

from __future__ import annotations

from typing import Any

import pytest
from harness import kio_messages
from harness.fake_broker import NO_THROTTLE
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.schema.join_group.v9.response import JoinGroupResponseMember
from kio.static.primitive import i32

from spark_kgroup.errors import ProtocolViolation
from spark_kgroup.member import contract
from spark_kgroup.model import MemberIdentity, Subscription
from spark_kgroup.runtime.translate import to_event
from spark_kgroup.wire.consumer_protocol import encode_subscription

WANTED = Subscription(topics=("t",))
ASKED = contract.JoinRequest(
    identity=MemberIdentity(instance_id=None, member_id="a", generation=-1),
    protocols=(("range", WANTED),),
    reason="",
)


def joined(*members: str, protocol: str | None = "range", error: int = 0) -> Any:
    answer = kio_messages.JoinGroupResponse(
        throttle_time=NO_THROTTLE,
        error_code=KioErrorCode(error),
        generation_id=i32(1),
        protocol_type="consumer",
        protocol_name=protocol,
        leader="a",
        skip_assignment=False,
        member_id="a",
        members=tuple(
            JoinGroupResponseMember(member_id=who, group_instance_id=None, metadata=encode_subscription(WANTED))
            for who in members
        ),
    )
    return kio_messages.as_ours(answer)


def test_a_join_answer_with_different_members_is_taken() -> None:
    event = to_event(ASKED, joined("a", "b"))
    assert isinstance(event, contract.JoinResponse)
    assert [member.member_id for member in event.members] == ["a", "b"]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        pytest.param(joined("a", "b", "a"), "names a member twice", id="a member twice"),
        pytest.param(joined("a", protocol=None), "names no assignor", id="no assignor"),
    ],
)
def test_a_join_answer_that_makes_no_sense_ends_the_connection_and_the_seat_asks_again(answer: Any, why: str) -> None:
    with pytest.raises(ProtocolViolation, match=why) as refused:
        to_event(ASKED, answer)
    assert refused.value.retriable


def test_a_join_answer_with_an_error_and_no_assignor_is_taken_as_that_error() -> None:
    event = to_event(ASKED, joined(protocol=None, error=27))
    assert isinstance(event, contract.JoinResponse)
    assert event.error == 27
