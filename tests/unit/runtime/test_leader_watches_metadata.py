"""A leader's reactions to metadata: late answers, topics it may not see, brokers that lag behind."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from harness import kio_messages
from harness.fake_broker import NO_THROTTLE, until
from harness.fake_cluster import A0, A1, B0, BrokerWorld, in_a_world
from harness.kio_messages import HeartbeatRequest
from harness.sessions import in_a_group, joined
from kio.schema.errors import ErrorCode as KioErrorCode

from spark_kgroup.member import contract
from spark_kgroup.model import ErrorCode, Subscription, TopicPartition
from spark_kgroup.runtime import classic_work
from spark_kgroup.runtime import metadata_watch as watch_module
from spark_kgroup.runtime.group import Group
from spark_kgroup.runtime.session import Session
from spark_kgroup.runtime.settings import ClientSettings, GroupSettings, ProtocolSettings
from spark_kgroup.wire.consumer_protocol import decode_assignment, encode_subscription
from spark_kgroup.wire.responses import ClusterMetadata

pytestmark = pytest.mark.filterwarnings("error::ResourceWarning")

Scenario = Callable[["Coordinator", Group], Awaitable[None]]
OFTEN = ClientSettings(metadata_max_age_ms=20)
SELDOM = ClientSettings(metadata_max_age_ms=60_000)


class Coordinator:
    """Our one seat leads. There may be another member, whose topics a test sets.

    Attributes:
        others: the topics of another member, none for no such member.
        claims: the partitions that it claims.
        odd: another member's subscription in bytes that are no subscription.
        reasons: of each JoinGroup.
        rebalances: whether heartbeats are answered so, until the next join.
    """

    def __init__(self, world: BrokerWorld) -> None:
        self.world = world
        self.others: tuple[str, ...] = ()
        self.claims: frozenset[TopicPartition] = frozenset()
        self.odd: bytes | None = None
        self.reasons: list[str] = []
        self.rebalances = False
        self.members: dict[str, bytes] = {}
        answers: Any = world  # which has no answers of its own to these
        answers.on_JoinGroup = self.on_join
        answers.on_SyncGroup = self.on_sync
        answers.on_Heartbeat = self.on_heartbeat

    def on_join(self, _: int, request: Any, error: KioErrorCode) -> Any:
        self.reasons.append(request.reason)
        self.rebalances = False
        members = {"m": request.protocols[0].metadata}
        if self.others:
            members["other"] = encode_subscription(Subscription(topics=self.others, owned=self.claims, generation=1))
        if self.odd is not None:
            members["odd"] = self.odd
        self.members = members
        return joined(leader="m", generation=len(self.reasons), members=members, error=error.value)

    def on_sync(self, _: int, request: Any, error: KioErrorCode) -> Any:
        self.world.described = {
            given.member_id: (None, self.members[given.member_id], tuple(decode_assignment(given.assignment)))
            for given in request.assignments
        }
        own = next(given.assignment for given in request.assignments if given.member_id == "m")
        return kio_messages.SyncGroupResponse(
            throttle_time=NO_THROTTLE, error_code=error, protocol_type=None, protocol_name=None, assignment=own
        )

    def on_heartbeat(self, *_: Any) -> Any:
        code = ErrorCode.REBALANCE_IN_PROGRESS if self.rebalances else ErrorCode.NONE
        return kio_messages.HeartbeatResponse(throttle_time=NO_THROTTLE, error_code=KioErrorCode(code))


def leading(world: BrokerWorld) -> Coordinator:
    world.leaders = {A0: 0, B0: 0}
    return Coordinator(world)


def led(client: ClientSettings = OFTEN) -> Callable[[Scenario], Callable[[], None]]:
    """Run a scenario with a group that is settled, and whose one seat leads it."""

    return in_a_group(
        leading,
        lambda view: view.settled,
        client=client,
        protocol=ProtocolSettings(heartbeat_interval_ms=20),
    )


async def joined_again(coordinator: Coordinator, times: int) -> None:
    await until(lambda: len(coordinator.reasons) == times)


async def looked(world: BrokerWorld) -> None:
    """The watch has begun and ended some looks."""
    before = world.asked(kio_messages.DescribeGroupsRequest)
    await until(lambda: world.asked(kio_messages.DescribeGroupsRequest) > before + 3)


def seat_of(group: Group) -> Session:
    return group._seats.sessions["seat-0"]


@led(SELDOM)
async def test_an_answer_about_fewer_topics_than_are_watched_by_now_is_no_change(
    coordinator: Coordinator, group: Group
) -> None:
    """1. The watch asks for a. 2. A member that wants b too joins, and the leader assigns with both. 3. The answer
    about a alone arrives: b has not lost its partitions, and no member has too many."""
    asked, go_on = asyncio.Event(), asyncio.Event()
    metadata = group._cluster.metadata

    async def held_up(topics: Any, **more: Any) -> ClusterMetadata:
        answer = await metadata(topics, **more)
        if list(topics) == ["a"]:
            asked.set()
            await go_on.wait()
        return answer

    group._cluster.metadata = held_up  # type: ignore[method-assign]
    watching = asyncio.create_task(group._watch.look())
    await asked.wait()
    coordinator.others, coordinator.rebalances = ("b",), True
    await until(lambda: seat_of(group).snapshot == {"a": 1, "b": 1})
    await group.wait_until(lambda view: view.settled, 10_000)
    go_on.set()
    await watching
    assert seat_of(group).snapshot == {"a": 1, "b": 1}
    beats = coordinator.world.asked(HeartbeatRequest)
    await until(lambda: coordinator.world.asked(HeartbeatRequest) > beats + 2)
    assert len(coordinator.reasons) == 2, coordinator.reasons[2:]


@led()
async def test_a_changed_partition_count_leads_to_one_rebalance(coordinator: Coordinator, group: Group) -> None:
    """KIP-429, 1.b: "If topic metadata has changed [...] if the consumer is the leader, send join-group request." """
    coordinator.world.leaders[TopicPartition("a", 1)] = 0
    await group.wait_until(lambda view: len(view.seats[0].owned_since) == 2, 10_000)
    assert coordinator.reasons[1:] == ["partition count changed (a: 1 -> 2)"]


@led()
async def test_a_topic_that_one_broker_denies_for_a_moment_is_not_revoked(
    coordinator: Coordinator, group: Group
) -> None:
    world = coordinator.world
    world.first["Metadata"] = [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 3
    lost: list[contract.Effect] = []
    group._observer = lambda _, effect: (
        lost.append(effect) if isinstance(effect, contract.Lost | contract.Assigned) else None
    )
    coordinator.rebalances = True  # the watch may meet such a broker, and the leader that assigns
    await until(lambda: len(coordinator.reasons) == 2 and not world.first["Metadata"])
    await group.wait_until(lambda view: view.settled, 10_000)
    assert [effect.assigned for effect in lost if isinstance(effect, contract.Assigned)] == [{A0}]
    asked = world.asked(kio_messages.MetadataRequest)
    await until(lambda: world.asked(kio_messages.MetadataRequest) > asked + 2)
    assert len(coordinator.reasons) == 2, coordinator.reasons[2:]


@led()
async def test_a_topic_of_another_member_that_the_leader_may_not_see_is_said_once(
    coordinator: Coordinator, group: Group
) -> None:
    warnings: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: warnings.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("spark_kgroup.runtime.classic_work").addHandler(handler)
    try:
        topic = coordinator.world.topic
        hidden = KioErrorCode.topic_authorization_failed
        coordinator.world.topic = lambda name, error: topic(name, hidden if name == "secret" else error)  # type: ignore[method-assign]
        for generation in (2, 3):
            coordinator.others, coordinator.rebalances = ("secret",), True
            await joined_again(coordinator, generation)
            await group.wait_until(lambda view: view.settled, 10_000)
    finally:
        logging.getLogger("spark_kgroup.runtime.classic_work").removeHandler(handler)
    (line,) = warnings
    assert "may not see topic 'secret'" in line
    assert "they keep its partitions, and none is assigned anew" in line


@led()
async def test_members_keep_partitions_of_a_topic_that_the_leader_may_not_see_when_it_assigns(
    coordinator: Coordinator, group: Group
) -> None:
    topic, hidden = coordinator.world.topic, KioErrorCode.topic_authorization_failed
    coordinator.world.topic = lambda name, error: topic(name, hidden if name == "secret" else error)  # type: ignore[method-assign]
    coordinator.others, coordinator.rebalances = ("secret", "a"), True
    coordinator.claims = frozenset(
        {TopicPartition("secret", 0), TopicPartition("secret", 1), TopicPartition("left", 0)}
    )
    await until(lambda: len(coordinator.reasons) == 2)
    await group.wait_until(lambda view: view.settled, 10_000)
    (_, _, assigned) = coordinator.world.described["other"]
    assert {tp for tp in assigned if tp.topic != "a"} == {TopicPartition("secret", 0), TopicPartition("secret", 1)}


@led(replace(OFTEN, request_timeout_ms=300))
async def test_a_topic_that_the_leader_may_not_see_for_a_moment_has_not_lost_its_partitions(
    coordinator: Coordinator, group: Group
) -> None:
    """Its right may be back within a minute. A rebalance would take from all members the partitions that they read."""
    topic = coordinator.world.topic

    def denied(name: str, error: KioErrorCode) -> Any:
        return topic(name, KioErrorCode.topic_authorization_failed)

    coordinator.world.topic = denied  # type: ignore[method-assign]
    metadata, hidden = group._cluster.metadata, asyncio.Event()

    async def watched(topics: Any, **more: Any) -> ClusterMetadata:
        answer = await metadata(topics, **more)
        if "a" in answer.errors:
            hidden.set()
        return answer

    group._cluster.metadata = watched  # type: ignore[method-assign]
    await hidden.wait()
    coordinator.world.topic = topic  # type: ignore[method-assign]
    asked = coordinator.world.asked(kio_messages.MetadataRequest)
    await until(lambda: coordinator.world.asked(kio_messages.MetadataRequest) > asked + 2)
    assert coordinator.reasons[1:] == []
    assert seat_of(group).snapshot == {"a": 1}
    coordinator.world.leaders[TopicPartition("a", 1)] = 0
    await group.wait_until(lambda view: len(view.seats[0].owned_since) == 2, 10_000)
    assert coordinator.reasons[1:] == ["partition count changed (a: 1 -> 2)"]


@led()
async def test_a_member_with_an_unreadable_subscription_gets_no_partition_and_other_members_get_all(
    coordinator: Coordinator, group: Group
) -> None:
    for generation, odd in enumerate([b"", b"\0\1\xff\xff\xff\x7fjunk", b"\xff\xff"], start=2):
        coordinator.odd, coordinator.rebalances = odd, True
        await joined_again(coordinator, generation)
        view = await group.wait_until(lambda view: view.settled, 10_000)
        assert view.seats[0].owned_since.keys() == {A0}


def test_a_topic_that_brokers_do_not_describe_holds_up_neither_rebalances_nor_looks(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(classic_work, "TOPIC_PATIENCE_MS", 100)
    monkeypatch.setattr(watch_module, "TOPIC_PATIENCE_MS", 100)
    unclear_0 = TopicPartition("unclear", 0)

    @led()
    async def scenario(coordinator: Coordinator, group: Group) -> None:
        world = coordinator.world
        topic, code = world.topic, KioErrorCode.leader_not_available
        monkeypatch.setattr(world, "topic", lambda name, error: topic(name, code if name == "unclear" else error))
        coordinator.others, coordinator.claims = ("unclear",), frozenset({unclear_0})
        coordinator.rebalances = True
        await joined_again(coordinator, 2)
        await group.wait_until(lambda view: view.settled, 10_000)
        assert world.described["other"][2] == (unclear_0,)
        world.leaders[TopicPartition("a", 1)] = 0
        await group.wait_until(lambda view: len(view.seats[0].owned_since) == 2, 10_000)
        assert coordinator.reasons[2:] == ["partition count changed (a: 1 -> 2)"]
        assert world.described["other"][2] == (unclear_0,)
        (warning,) = [
            record.getMessage() for record in caplog.records if "Other topics are not affected" in record.getMessage()
        ]
        assert "do not describe topic 'unclear' now" in warning
        assert "so it is left out" in warning
        assert "LEADER_NOT_AVAILABLE: unclear" in warning
        monkeypatch.setattr(world, "topic", topic)
        world.leaders |= {unclear_0: 0, TopicPartition("unclear", 1): 0}
        await until(lambda: len(world.described["other"][2]) == 2)
        assert coordinator.reasons[3:] == ["partition count changed (unclear: 0 -> 2)"]

    scenario()


def test_a_broker_that_has_not_heard_of_an_added_partition_causes_no_second_rebalance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Were its answers believed, the known count would go back from 2 to 1, and then again from 1 to 2."""
    monkeypatch.setattr(classic_work, "TOPIC_PATIENCE_MS", 100)
    monkeypatch.setattr(watch_module, "TOPIC_PATIENCE_MS", 100)

    @led()
    async def scenario(coordinator: Coordinator, group: Group) -> None:
        world = coordinator.world
        world.leaders[A1] = 0
        await group.wait_until(lambda view: len(view.seats[0].owned_since) == 2, 10_000)
        del world.leaders[A1]
        await looked(world)
        assert seat_of(group).snapshot == {"a": 2}
        coordinator.rebalances = True  # the leader that assigns may meet such a broker, too
        await joined_again(coordinator, 3)
        await group.wait_until(lambda view: view.settled, 10_000)
        assert group.view().seats[0].owned_since.keys() == {A0, A1}
        world.leaders[A1] = 0
        await looked(world)
        assert seat_of(group).snapshot == {"a": 2}
        assert coordinator.reasons[1] == "partition count changed (a: 1 -> 2)"
        assert len(coordinator.reasons) == 3, coordinator.reasons[3:]

    scenario()


@in_a_world(nodes=2)
async def test_a_leader_asks_a_second_broker_before_it_assigns_fewer_partitions_than_members_have(
    world: BrokerWorld,
) -> None:
    """The first broker was cut off before our process started, so it tells nothing that contradicts our knowledge."""
    coordinator = leading(world)
    world.coordinator = 1
    world.cut_off_from_now_on(0)
    world.leaders = {A0: 1, A1: 1, B0: 1}
    coordinator.others, coordinator.claims = ("a",), frozenset({A1})
    group = Group(
        GroupSettings(bootstrap=(world.brokers[0].address,), group="g", topics=("a",), instance_ids=("seat-0",))
    )
    await group.start()
    try:
        await group.wait_until(lambda view: view.settled, 10_000)
        assert {who: assigned for who, (_, _, assigned) in world.described.items()} == {"m": (A0,), "other": (A1,)}
    finally:
        await group.close()


@led(SELDOM)
async def test_partitions_that_members_have_and_no_broker_knows_are_not_assigned(
    coordinator: Coordinator, group: Group
) -> None:
    coordinator.others, coordinator.claims = ("a",), frozenset({A0, A1})
    coordinator.rebalances = True
    await joined_again(coordinator, 2)
    await until(lambda: "other" in coordinator.world.described)
    assert [assigned for _, _, assigned in coordinator.world.described.values() if A1 in assigned] == []
