"""Seats under the consumer protocol: their requests, and their reactions to brokers that know little of it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import kio.schema.consumer_group_heartbeat.v0.response as v0
import kio.schema.consumer_group_heartbeat.v1.response as v1
import pytest
from harness import kio_messages
from harness.fake_broker import HUNG_UP, NO_THROTTLE, RANGES, until
from harness.fake_cluster import A0, A1, TOPIC_ID, BrokerWorld, in_a_world
from harness.kio_messages import OffsetFetchRequest
from harness.offsets import offsets_alone
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.static.primitive import i32, i32Timedelta

from spark_kgroup.errors import GroupRejected
from spark_kgroup.member.config import PreviouslyOwned
from spark_kgroup.model import CONSUMER, ErrorCode
from spark_kgroup.runtime.group import Group
from spark_kgroup.runtime.settings import GroupSettings, OngoingWork, ProtocolSettings
from spark_kgroup.topic_pattern import TopicPattern

pytestmark = pytest.mark.filterwarnings("error::ResourceWarning")

NEWEST, OLDEST = kio_messages.ConsumerGroupHeartbeatRequest, kio_messages.ConsumerGroupHeartbeatRequestV0
KEY = int(NEWEST.__api_key__)
DESCRIBE_KEY = int(kio_messages.ConsumerGroupDescribeResponse.__api_key__)


class Coordinator:
    """Assigns both partitions of the topic to any member that asks.

    Attributes:
        errors: for the next requests, before that.

    """

    def __init__(self, world: BrokerWorld) -> None:
        self.asked: list[Any] = []
        self.errors: list[Any] = []
        self.assignment: Any = (0, 1)
        self.epoch = 1
        world.on_ConsumerGroupHeartbeat = self.answer  # type: ignore[attr-defined]

    def acknowledged(self) -> list[list[int]]:
        """The partitions that each request says to own, of those that say so."""
        owned = [r.topic_partitions for r in self.asked if r.topic_partitions]
        assert {topic.topic_id for topics in owned for topic in topics} <= {TOPIC_ID}
        return [list(topic.partitions) for (topic,) in owned]

    def answer(self, _node: int, request: Any, _error: KioErrorCode) -> Any:
        self.asked.append(request)
        error = self.errors.pop(0) if self.errors else 0
        if error is HUNG_UP:
            return HUNG_UP
        of: Any = v1 if isinstance(request, NEWEST) else v0
        topic = of.TopicPartitions(topic_id=TOPIC_ID, partitions=tuple(map(i32, self.assignment)))
        return of.ConsumerGroupHeartbeatResponse(
            throttle_time=NO_THROTTLE,
            error_code=KioErrorCode(error),
            member_id=request.member_id,
            member_epoch=i32(request.member_epoch if request.member_epoch < 0 else self.epoch),
            heartbeat_interval=i32Timedelta.parse(_ms(50)),
            assignment=of.Assignment(topic_partitions=(topic,)),
        )


def _ms(count: int) -> Any:
    return timedelta(milliseconds=count)


def names_of(group: Group) -> tuple[str, ...]:
    return group.topics.names


@asynccontextmanager
async def seated(
    world: BrokerWorld,
    pattern: TopicPattern | None = None,
    work: OngoingWork = OngoingWork(),  # noqa: B008 - frozen
) -> AsyncIterator[Group]:
    settings = GroupSettings(
        bootstrap=(world.brokers[0].address,),
        group="g",
        topics=() if pattern else ("a",),
        pattern=pattern,
        instance_ids=("seat-0",),
        protocol=ProtocolSettings(name=CONSUMER, server_assignor="range", rebalance_timeout_ms=60_000),
        work=work,
    )
    group = Group(settings)
    await group.start()
    try:
        yield group
    finally:
        await group.close()


@pytest.mark.parametrize(
    ("spoken", "request_type"), [((0, 1), NEWEST), ((0, 0), OLDEST)], ids=["Kafka 4.0", "Kafka 3.7"]
)
def test_a_seat_owns_its_assignment_in_whichever_version_the_broker_speaks(
    spoken: tuple[int, int], request_type: type
) -> None:
    @in_a_world(ranges={**RANGES, KEY: spoken})
    async def scenario(world: BrokerWorld) -> None:
        coordinator = Coordinator(world)
        async with seated(world) as group:
            await until(lambda: group.view().seats[0].settled and set(group.view().seats[0].owned_since) == {A0, A1})
            assert coordinator.acknowledged() == [[0, 1]]
            before = len(coordinator.asked)
            await until(lambda: len(coordinator.asked) > before)
            assert {type(request) for request in coordinator.asked} == {request_type}
            join, beat = coordinator.asked[0], coordinator.asked[before]
            assert (join.instance_id, join.server_assignor, join.topic_partitions) == ("seat-0", "range", ())
            assert join.subscribed_topic_names == ("a",)
            assert getattr(join, "subscribed_topic_regex", "") == "", "an earlier one does not count any more"
            assert join.rebalance_timeout == _ms(60_000)
            assert (beat.subscribed_topic_names, beat.topic_partitions, beat.rebalance_timeout) == (None, None, _ms(-1))
        assert coordinator.asked[-1].member_epoch == -2, "a static seat that closes is released"

    scenario()


@in_a_world(ranges={**RANGES, DESCRIBE_KEY: (0, 0)})
async def test_a_seat_that_was_removed_and_is_added_again_joins_as_a_member_of_its_own(world: BrokerWorld) -> None:
    """1. A seat resumes as an earlier process's member. 2. It leaves. 3. It comes back: that member is gone."""
    world.group_type = CONSUMER  # its member m has A0, and no member has A1
    coordinator = Coordinator(world)
    coordinator.assignment, coordinator.epoch = (0,), 4
    owned = PreviouslyOwned(partitions=frozenset({A0, A1}), generation=4, member_id="m")
    async with seated(world, work=OngoingWork(previously_owned={"seat-0": owned})) as group:
        await until(lambda: coordinator.asked)
        assert (coordinator.asked[0].member_id, coordinator.asked[0].member_epoch) == ("m", 4)
        await group.remove_seats(["seat-0"], "scale down")
        before = len(coordinator.asked)
        await group.add_seats(["seat-0"])
        await until(lambda: len(coordinator.asked) > before)
        again = coordinator.asked[before]
        assert (again.instance_id, again.member_epoch) == ("seat-0", 0)
        assert again.member_id != "m"


def test_a_cluster_that_does_not_speak_the_protocol_is_one_clear_error() -> None:
    ranges = {key: spoken for key, spoken in RANGES.items() if key != KEY}

    @in_a_world(ranges=ranges)
    async def scenario(world: BrokerWorld) -> None:
        async with seated(world) as group:
            await until(lambda: group._seats.sessions["seat-0"].failure is not None)
            with pytest.raises(GroupRejected, match=r"'g' rejected member 'seat-0'.*Kafka 4\.0.*`group\.protocol`"):
                group.view()

    scenario()


@pytest.mark.parametrize(
    ("pattern", "errors", "regexes"),
    [
        ("a|t-.", [], ["a|t\\-."]),
        ("a++", [], [""]),
        ("a|t-.", [KioErrorCode.invalid_regular_expression], ["a|t\\-.", ""]),
    ],
    ids=["brokers match it", "Java's alone", "brokers refuse it"],
)
def test_a_pattern_goes_to_brokers_that_can_match_it_beside_the_names_that_it_matches_now(
    pattern: str, errors: list[KioErrorCode], regexes: list[str]
) -> None:
    @in_a_world()
    async def scenario(world: BrokerWorld) -> None:
        coordinator = Coordinator(world)
        coordinator.errors += errors
        async with seated(world, TopicPattern(pattern)) as group:
            await until(lambda: len(group.view().seats[0].owned_since) == 2)
            joins = [request for request in coordinator.asked if request.member_epoch == 0]
            assert [join.subscribed_topic_regex for join in joins] == regexes
            assert {join.subscribed_topic_names for join in joins} == {("a",)}

    scenario()


@in_a_world()
async def test_a_topic_that_brokers_match_before_the_member_does_is_owned_and_subscribed(world: BrokerWorld) -> None:
    leaders, world.leaders = world.leaders, {}
    coordinator = Coordinator(world)
    coordinator.assignment = ()
    async with seated(world, TopicPattern("a")) as group:
        await until(lambda: group.view().seats[0].settled)
        assert names_of(group) == ()
        world.leaders, coordinator.assignment = leaders, (0, 1)
        await until(lambda: set(group.view().seats[0].owned_since) == {A0, A1})
        assert names_of(group) == ("a",)
        await until(lambda: any(each.subscribed_topic_names == ("a",) for each in coordinator.asked))


@in_a_world()
async def test_a_seat_whose_heartbeat_is_not_answered_keeps_its_partitions_and_asks_again(world: BrokerWorld) -> None:
    coordinator = Coordinator(world)
    async with seated(world) as group:
        await until(lambda: len(group.view().seats[0].owned_since) == 2)
        before, coordinator.errors = len(coordinator.asked), [HUNG_UP]
        await until(lambda: group.view().seats[0].trouble is not None)
        await until(lambda: group.view().seats[0].trouble is None)
        assert len(coordinator.asked) > before + 1
        assert set(group.view().seats[0].owned_since) == {A0, A1}
        assert coordinator.asked[before + 1].subscribed_topic_names == ("a",), "everything is said once more"


@in_a_world()
async def test_a_seat_whose_heartbeat_is_refused_says_that_it_waits_for_another_answer(world: BrokerWorld) -> None:
    coordinator = Coordinator(world)
    async with seated(world) as group:
        await until(lambda: len(group.view().seats[0].owned_since) == 2)
        coordinator.errors = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
        refused = "is refused: a heartbeat is answered with COORDINATOR_LOAD_IN_PROGRESS"
        await until(lambda: group.view().seats[0].trouble == refused)
        await until(lambda: group.view().seats[0].trouble is None)


@pytest.mark.parametrize("odd", [0, -1, -2])
def test_an_answer_without_the_epoch_of_a_member_is_none(odd: int) -> None:
    """A member that took it would join again in its next heartbeat, or leave."""

    @in_a_world()
    async def scenario(world: BrokerWorld) -> None:
        coordinator = Coordinator(world)
        coordinator.epoch = odd
        async with seated(world) as group:
            await until(lambda: "epoch" in (group.view().seats[0].trouble or ""))
            coordinator.epoch = 1
            await until(lambda: len(group.view().seats[0].owned_since) == 2)

    scenario()


@in_a_world()
async def test_a_revoked_partition_is_acknowledged_when_it_is_given_up(world: BrokerWorld) -> None:
    coordinator = Coordinator(world)
    async with seated(world) as group:
        await until(lambda: len(group.view().seats[0].owned_since) == 2)
        coordinator.assignment = (0,)
        await until(lambda: group.view().seats[0].to_give_up == {A1})
        assert A1 in group.view().seats[0].owned_since
        group.give_up("seat-0", frozenset({A1}))
        await until(lambda: [0] in coordinator.acknowledged())
        assert set(group.view().seats[0].owned_since) == {A0}


@in_a_world()
async def test_a_commit_with_a_stale_epoch_is_sent_again_and_the_coordinator_asked_for_the_new_one(
    world: BrokerWorld,
) -> None:
    coordinator = Coordinator(world)
    async with seated(world) as group:
        await until(lambda: len(group.view().seats[0].owned_since) == 2)
        seat = group.view().seats[0].identity
        world.first["OffsetCommit"] = [ErrorCode.STALE_MEMBER_EPOCH]
        before = len(coordinator.asked)
        assert await group.commits.commit(seat, {A0: 5}) == {A0}
        assert len(coordinator.asked) > before
        commits = [r for r in world.brokers[0].requests if isinstance(r, kio_messages.OffsetCommitRequestV9)]
        assert [int(r.generation_id_or_member_epoch) for r in commits] == [1, 1]


@in_a_world()
async def test_committed_offsets_are_asked_for_as_the_member_and_again_in_its_new_epoch(world: BrokerWorld) -> None:
    coordinator = Coordinator(world)
    async with seated(world) as group:
        await until(lambda: len(group.view().seats[0].owned_since) == 2)
        coordinator.epoch = 2
        answer = world.on_OffsetFetch

        def checking(node: int, request: Any, error: KioErrorCode) -> Any:
            stale = request.groups[0].member_epoch != 2
            return answer(node, request, KioErrorCode(ErrorCode.STALE_MEMBER_EPOCH) if stale else error)

        world.on_OffsetFetch = checking  # type: ignore[method-assign]
        world.committed = {A0: 5}
        assert offsets_alone(await group.offsets.committed([A0, A1])) == {A0: 5, A1: None}
        asked = [r.groups[0] for r in world.brokers[0].requests if isinstance(r, kio_messages.OffsetFetchRequestV9)]
        who = group.view().seats[0].identity
        assert {each.member_id for each in asked} == {who.member_id}
        assert (int(asked[-1].member_epoch), who.generation) == (2, 2)


@in_a_world()
async def test_committed_offsets_of_a_membership_that_is_over_are_asked_for_without_a_member_id(
    world: BrokerWorld,
) -> None:
    coordinator = Coordinator(world)
    async with seated(world) as group:
        await until(lambda: len(group.view().seats[0].owned_since) == 2)
        before = len(coordinator.asked)
        coordinator.errors = [ErrorCode.UNKNOWN_MEMBER_ID]
        world.first["OffsetFetch"] = [ErrorCode.UNKNOWN_MEMBER_ID]
        world.committed = {A0: 5}
        assert offsets_alone(await group.offsets.committed([A0])) == {A0: 5}
        assert len(coordinator.asked) > before


@in_a_world(ranges={**RANGES, int(kio_messages.OffsetFetchRequestV9.__api_key__): (1, 8)})
async def test_committed_offsets_are_asked_for_without_a_member_where_the_broker_cannot_check_it(
    world: BrokerWorld,
) -> None:
    Coordinator(world)
    async with seated(world) as group:
        await until(lambda: len(group.view().seats[0].owned_since) == 2)
        world.committed = {A0: 5}
        assert offsets_alone(await group.offsets.committed([A0])) == {A0: 5}
        assert world.asked(OffsetFetchRequest) == 1


@pytest.mark.parametrize(
    ("refused", "value", "taken"),
    [(0, "50000", 50_000), (0, "", 45_000), (ErrorCode.GROUP_AUTHORIZATION_FAILED, "", 45_000)],
)
def test_the_session_timeout_is_the_group_s_own_or_kafka_s_default(
    refused: int, value: str, taken: int, caplog: pytest.LogCaptureFixture
) -> None:
    @in_a_world()
    async def scenario(world: BrokerWorld) -> None:
        Coordinator(world)
        world.first["DescribeConfigs"], world.session_timeout = [refused], value
        async with seated(world) as group:
            assert group._seats.sessions["seat-0"].config.session_timeout_ms == taken

    scenario()
    assert ("grant DESCRIBE_CONFIGS on the group to this user" in caplog.text) is bool(refused)
