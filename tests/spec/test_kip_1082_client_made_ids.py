"""KIP-1082, "Require client-generated IDs over the ConsumerGroupHeartbeat RPC": its rules for members.

A test names the section that it paraphrases. One that begins with `test_deviates` says where we do otherwise, and why.
Left out: how a server checks an id, and which of two members with one id it keeps.
"""

from __future__ import annotations

import base64
import re
from random import Random
from uuid import UUID

import pytest
from harness.consumer_driver import Driver, by_id, only, parts

from spark_kgroup.errors import GroupRejected
from spark_kgroup.member import contract
from spark_kgroup.member.consumer import State
from spark_kgroup.member.consumer_contract import JOIN_EPOCH, LEAVE_EPOCH, Ask, Unanswered
from spark_kgroup.member.member_ids import new_member_id
from spark_kgroup.model import ErrorCode, MemberIdentity
from spark_kgroup.wire import messages, schema

# ------------------------------------------------------------------------------------ "UUID Generation Specifications"


def test_a_member_id_is_a_version_4_uuid_in_base64_that_no_tool_takes_for_an_option() -> None:
    """Version 4, and base64 that a URL may have. As Kafka's Uuid, it does not begin with a "-"."""
    rng = Random(3)
    for _ in range(500):
        text = new_member_id(rng.randbytes)
        assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{21}", text)
        assert UUID(bytes=base64.urlsafe_b64decode(text + "==")).version == 4


@pytest.mark.parametrize("reserved", [UUID(int=0), UUID(int=1)], ids=["ZERO_UUID", "ONE_UUID"])
def test_a_reserved_uuid_is_no_member_id_though_the_random_source_gives_it(reserved: UUID) -> None:
    drawn = new_member_id(lambda count: reserved.bytes[:count])
    assert UUID(bytes=base64.urlsafe_b64decode(drawn + "==")) != reserved


# ----------------------------------------------------------------------- "Public Interfaces" and "Member ID Lifecycle"


def test_the_first_heartbeat_has_the_id_of_the_member_s_own_and_so_has_each_one_after_it() -> None:
    """One id for the whole session, from the first heartbeat until the member leaves."""
    driver = Driver()
    ids = [only(driver.take(contract.Join()), Ask).request.identity.member_id]
    driver.answer(assignment=by_id(0, 1))
    ids.append(only(driver.resolve(), Ask).request.identity.member_id)
    driver.answer()
    ids.append(only(driver.pass_ms(5_000), Ask).request.identity.member_id)
    driver.answer()
    ids.append(only(driver.take(contract.Leave(reason="a test")), Ask).request.identity.member_id)
    assert ids[0]
    assert ids == ids[:1] * 4


def test_a_first_heartbeat_without_an_answer_is_sent_again_with_the_same_id_and_makes_no_ghost() -> None:
    """ "Motivation", and "Test Plan", Retry Mechanism."""
    driver = Driver().into(State.JOINING)
    first = driver.awaited
    driver.take(Unanswered(request=first, reason="a test"))
    again = only(driver.pass_ms(1_000), Ask).request
    assert again.identity == first.identity
    assert again.identity.generation == JOIN_EPOCH


def test_a_member_that_ends_before_its_first_answer_can_leave_for_it_knows_its_id() -> None:
    """ "Motivation": without an id the broker would keep, until its session is over, a member without a process."""
    driver = Driver(instance_id=None).into(State.JOINING)
    joined = driver.awaited.identity
    leave = only(driver.take(contract.Leave(reason="a test")), Ask).request
    assert (leave.identity.member_id, leave.identity.generation) == (joined.member_id, LEAVE_EPOCH)


@pytest.mark.parametrize("instance_id", ["seat-0", None])
def test_a_member_whose_epoch_is_fenced_joins_with_the_same_id_and_epoch_zero(instance_id: str | None) -> None:
    driver = Driver(instance_id).into(State.STABLE)
    member_id = driver.machine.identity.member_id
    driver.pass_ms(5_000)
    effects = driver.answer(error=ErrorCode.FENCED_MEMBER_EPOCH)
    assert only(effects, contract.Lost).partitions == parts(0, 1)
    if instance_id is not None:
        effects = driver.pass_ms(1_000)  # a static one leaves time for a process about to release its seat
    request = only(effects, Ask).request
    assert (request.identity.member_id, request.identity.generation) == (member_id, JOIN_EPOCH)


def test_deviates_a_seat_that_was_released_for_us_is_joined_with_another_id_than_the_one_that_was_refused() -> None:
    """The KIP has one id from the first heartbeat on.

    That one was answered UNRELEASED_INSTANCE_ID, so no member has it yet. With a fresh one, no request that is still on
    its way under the first id can be taken for ours.
    """
    driver = Driver().into(State.RELEASING)
    first_id = driver.machine.identity.member_id
    request = only(driver.answer(epoch=-2), Ask).request
    assert request.identity.generation == JOIN_EPOCH
    assert request.identity.member_id not in (first_id, "crashed")


def test_deviates_an_id_that_a_server_calls_invalid_ends_the_member() -> None:
    """ "Test Plan", Error Handling: make a correct one and try again. Ours is correct, so another one would be refused
    as well, and INVALID_REQUEST has other reasons."""
    failed = only(Driver().into(State.JOINING).answer(error=ErrorCode.INVALID_REQUEST), contract.Failed)
    assert isinstance(failed.error, GroupRejected)


# ------------------------------------------------------------- "Compatibility, Deprecation, and Migration Plan"


def test_a_broker_that_has_version_0_alone_is_told_the_member_s_own_id_as_well() -> None:
    """Version 0 takes the id of a client already, and the fields are the same."""
    who = MemberIdentity(instance_id="seat-0", member_id=new_member_id(Random(1).randbytes), generation=JOIN_EPOCH)
    newest, oldest = messages.consumer_group_heartbeat("g", who, topics=["orders"], owned=())
    assert isinstance(newest, schema.ConsumerGroupHeartbeatRequest)
    assert isinstance(oldest, schema.ConsumerGroupHeartbeatRequestV0)
    assert [schema.API_OF[type(each)].version for each in (newest, oldest)] == [1, 0]
    assert newest.member_id == oldest.member_id == who.member_id
