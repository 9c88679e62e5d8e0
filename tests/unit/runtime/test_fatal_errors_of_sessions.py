"""Errors that end a seat from outside its machine: they name the seat, the group, the cause, and the way out."""

from __future__ import annotations

import pytest
from harness import kio_messages
from harness.fake_broker import RANGES, until
from harness.fake_cluster import BrokerWorld, in_a_world

from spark_kgroup.errors import GroupRejected, IllegalTransition, KgroupError, OptionError
from spark_kgroup.member import contract
from spark_kgroup.model import CLASSIC, CONSUMER, ErrorCode
from spark_kgroup.runtime.classic_work import ClassicCalls
from spark_kgroup.runtime.group import Group
from spark_kgroup.runtime.metadata_watch import MetadataWatch
from spark_kgroup.runtime.neighbours import Neighbours
from spark_kgroup.runtime.own_ids import OwnIds
from spark_kgroup.runtime.session import Session
from spark_kgroup.runtime.settings import ClientSettings, GroupSettings, ProtocolSettings
from spark_kgroup.runtime.target_watch import TargetWatch
from spark_kgroup.runtime.topics import PatternSubscription
from spark_kgroup.topic_pattern import TopicPattern
from spark_kgroup.wire import messages

pytestmark = pytest.mark.filterwarnings("error::ResourceWarning")

JOIN = {
    CLASSIC: int(kio_messages.JoinGroupRequest.__api_key__),
    CONSUMER: int(kio_messages.ConsumerGroupHeartbeatRequest.__api_key__),
}


async def end_of_seat(
    world: BrokerWorld,
    protocol: str,
    instance_id: str | None,
    pattern: TopicPattern | None = None,
    *,
    own_ids: bool = False,
) -> tuple[KgroupError, KgroupError]:
    """The answers to a caller of the view, and to an observer."""
    errors: list[KgroupError] = []
    group = Group(
        GroupSettings(
            bootstrap=(world.brokers[0].address,),
            group="g",
            topics=() if pattern else ("a",),
            pattern=pattern,
            instance_ids=(instance_id,),
            client=ClientSettings(metadata_max_age_ms=10),
            protocol=ProtocolSettings(name=protocol, own_ids=own_ids),
        ),
        observer=lambda _, notice: errors.append(notice.error) if isinstance(notice, contract.Failed) else None,
    )
    try:
        await group.start()
        await until(lambda: group._seats.sessions[instance_id].failure is not None)
        with pytest.raises(KgroupError) as raised:
            group.view()
    finally:
        await group.close()
    (noticed,) = errors
    return raised.value, noticed


@pytest.mark.parametrize("protocol", [CLASSIC, CONSUMER])
@pytest.mark.parametrize("instance_id", ["seat-0", None])
def test_a_seat_whose_user_may_not_read_the_group_names_itself_its_group_the_cause_and_the_grant(
    protocol: str, instance_id: str | None
) -> None:
    @in_a_world()
    async def scenario(world: BrokerWorld) -> None:
        world.first["FindCoordinator"] = [ErrorCode.GROUP_AUTHORIZATION_FAILED] * 9
        for error in await end_of_seat(world, protocol, instance_id):
            who = "Member 'seat-0'" if instance_id else "A dynamic member"
            assert str(error).startswith(f"{who} of group 'g' cannot go on: FindCoordinator failed with GROUP_AUTH")
            assert "grant READ on the group" in str(error)
            assert str(error).endswith(". Start it again when that is mended.")

    scenario()


@pytest.mark.parametrize(
    ("protocol", "cause", "fix"),
    [
        (CLASSIC, "does not know this API", f"Apache Kafka {messages.OLDEST_KAFKA} or newer is needed"),
        (CONSUMER, "does not speak the consumer protocol", "set `group.protocol` to classic"),
    ],
)
def test_a_seat_whose_broker_is_too_old_names_itself_its_group_the_cause_and_the_needed_version(
    protocol: str, cause: str, fix: str
) -> None:
    ranges = {key: spoken for key, spoken in RANGES.items() if key != JOIN[protocol]}

    @in_a_world(ranges=ranges)
    async def scenario(world: BrokerWorld) -> None:
        for error in await end_of_seat(world, protocol, "seat-0"):
            for word in ("'seat-0'", "'g'", cause, fix):
                assert word in str(error)
            assert ("3.2" in str(error)) == (protocol == CLASSIC), "one release is named, and it is the right one"

    scenario()


@pytest.mark.parametrize("bug", [ValueError, OptionError])
@pytest.mark.parametrize(
    ("protocol", "pattern", "where"),
    [
        pytest.param(CLASSIC, None, (MetadataWatch, "look"), id="the watch over metadata"),
        pytest.param(CLASSIC, None, (Neighbours, "run"), id="what tells seats of each other's joins"),
        pytest.param(CLASSIC, None, (OwnIds, "run"), id="what renames members"),
        pytest.param(CLASSIC, TopicPattern("a"), (PatternSubscription, "_subscribe"), id="what follows a pattern"),
        pytest.param(CONSUMER, None, (TargetWatch, "run"), id="the look for shares"),
        pytest.param(CLASSIC, None, (Session, "_take"), id="the machine"),
        pytest.param(CONSUMER, None, (Session, "_take"), id="the machine of the consumer protocol"),
        pytest.param(CLASSIC, None, (ClassicCalls, "_connect"), id="what connects"),
    ],
)
def test_a_fault_in_any_task_of_a_seat_ends_it_with_an_error_that_names_seat_group_and_cause(
    protocol: str,
    pattern: TopicPattern | None,
    where: tuple[type, str],
    bug: type[Exception],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def faulty(*_: object, **__: object) -> None:
        raise bug("a bug")

    async def faulty_task(*_: object, **__: object) -> None:
        faulty()

    @in_a_world()
    async def scenario(world: BrokerWorld) -> None:
        world.first["JoinGroup"] = world.first["ConsumerGroupHeartbeat"] = [None] * 9
        for error in await end_of_seat(world, protocol, "seat-0", pattern, own_ids=where[0] is OwnIds):
            assert str(error).startswith("Member 'seat-0' of group 'g' cannot go on: ")
            assert "a bug" in str(error)

    monkeypatch.setattr(*where, faulty_task if where[1] == "run" else faulty)
    scenario()


@pytest.mark.parametrize("where", [(Session, "_carry_out"), (MetadataWatch, "look")])
@pytest.mark.parametrize("bug", [IllegalTransition("a machine", "stable", "Joined"), ValueError("a bug")])
def test_the_error_of_a_bug_says_that_it_is_one_and_the_log_has_its_traceback(
    where: tuple[type, str], bug: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A user cannot mend it, and needs to know that it is to be reported."""

    def faulty(*_: object) -> None:
        raise bug

    @in_a_world()
    async def scenario(world: BrokerWorld) -> None:
        world.first["JoinGroup"] = [None] * 9
        for error in await end_of_seat(world, CLASSIC, "seat-0"):
            assert isinstance(error, GroupRejected)
            assert f"cannot go on: a bug of spark-kgroup, {bug!r}. Please report it" in str(error)

    monkeypatch.setattr(*where, faulty)
    scenario()
    assert "in faulty" in caplog.text
