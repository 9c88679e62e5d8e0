"""The cluster client against brokers that speak real bytes: offsets, coordinators and groups."""

import asyncio
import struct
import threading
from dataclasses import replace
from typing import Any

import pytest
from harness import kio_messages
from harness.fake_broker import HUNG_UP, NO_THROTTLE, RANGES, Raw, until
from harness.fake_cluster import A0, A1, B0, WHO, BrokerWorld, in_a_world
from harness.kio_messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeRequestV0,
    FindCoordinatorRequest,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
)
from harness.offsets import offsets_alone
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.schema.offset_fetch.v8.response import (
    OffsetFetchResponseGroup,
)
from kio.schema.types import GroupId

from spark_kgroup import rights
from spark_kgroup.errors import (
    BrokerError,
    ConnectionFailed,
    Disconnected,
    RequestTimedOut,
    UnknownTopic,
    WireError,
)
from spark_kgroup.model import ErrorCode, TopicPartition
from spark_kgroup.wire import cluster as cluster_module
from spark_kgroup.wire import groups as groups_module
from spark_kgroup.wire import messages, schema
from spark_kgroup.wire.cluster import ListedOffset

pytestmark = pytest.mark.filterwarnings("error::ResourceWarning")


# -------------------------------------------------------------------------------------------------------- offsets


@in_a_world(nodes=2)
async def test_offsets_come_from_each_partitions_leader(world: BrokerWorld) -> None:
    world.leaders = {A0: 0, A1: 1, B0: 1}
    cluster = world.cluster()
    ends = await cluster.logs.list_offsets(dict.fromkeys([A0, A1, B0], messages.LATEST))
    assert ends == {tp: ListedOffset(offset=world.ends[tp], leader_epoch=4) for tp in (A0, A1, B0)}
    mixed = await cluster.logs.list_offsets({A0: messages.EARLIEST, B0: messages.LATEST}, isolation_level=1)
    assert {tp: found.offset for tp, found in mixed.items()} == {A0: 0, B0: 11}
    assert [world.asked(kio_messages.ListOffsetsRequest, node) for node in (0, 1)] == [2, 2]
    assert world.asked(kio_messages.MetadataRequest) == 1, "leaders are remembered"
    await cluster.close()


@in_a_world()
async def test_no_partitions_need_no_broker(world: BrokerWorld) -> None:
    cluster = world.cluster()
    assert await cluster.logs.list_offsets({}) == {}
    assert world.brokers[0].connections == 0
    await cluster.close()


@in_a_world(nodes=2)
async def test_a_moved_leader_is_looked_up_again(world: BrokerWorld) -> None:
    cluster = world.cluster()
    await cluster.logs.list_offsets({A0: messages.LATEST, A1: messages.LATEST})
    world.leaders[A1] = 1
    found = await cluster.logs.list_offsets({A0: messages.LATEST, A1: messages.LATEST})
    assert found.keys() == {A0, A1}
    assert world.asked(kio_messages.MetadataRequest) == 2
    last = [r for r in world.brokers[1].requests if isinstance(r, kio_messages.ListOffsetsRequest)]
    assert [[p.partition_index for p in t.partitions] for r in last for t in r.topics] == [[1]], "only what was missing"
    await cluster.close()


@in_a_world(nodes=2)
async def test_the_other_leaders_answers_are_kept_when_one_is_gone(world: BrokerWorld) -> None:
    world.leaders = {A0: 0, A1: 1}
    cluster = world.cluster()
    await cluster.metadata(["a"])
    await world.brokers[1].stop()
    asking = asyncio.create_task(cluster.logs.list_offsets({A0: messages.LATEST, A1: messages.LATEST}))
    await until(lambda: world.asked(kio_messages.MetadataRequest) > 1)
    world.leaders[A1] = 0
    assert (await asking).keys() == {A0, A1}
    asked = [
        [p.partition_index for t in r.topics for p in t.partitions]
        for r in world.brokers[0].requests
        if isinstance(r, kio_messages.ListOffsetsRequest)
    ]
    assert asked == [[0], [1]]
    await cluster.close()
    await world.brokers[1].start()


@in_a_world()
async def test_a_partition_without_a_leader_is_waited_for(world: BrokerWorld) -> None:
    world.leaders[A0] = -1
    cluster = world.cluster()
    asking = asyncio.create_task(cluster.logs.list_offsets({A0: messages.LATEST}))
    await until(lambda: world.asked(kio_messages.MetadataRequest) > 1)
    world.leaders[A0] = 0
    assert (await asking)[A0].offset == 10
    await cluster.close()


@in_a_world()
async def test_a_partition_without_a_leader_is_not_waited_for_forever(world: BrokerWorld) -> None:
    world.leaders[A0] = -1
    cluster = world.cluster()
    with pytest.raises(BrokerError, match="LEADER_NOT_AVAILABLE: a-0") as failure:
        await cluster.logs.list_offsets({A0: messages.LATEST}, timeout_ms=3_000)
    assert failure.value.retriable
    await cluster.close()


@pytest.mark.parametrize("missing", [TopicPartition("nowhere", 0), TopicPartition("a", 9), TopicPartition("gone", 0)])
def test_a_partition_that_does_not_exist_is_unknown_when_the_time_is_up(missing: TopicPartition) -> None:
    @in_a_world()
    async def scenario(world: BrokerWorld) -> None:
        world.leaders[TopicPartition("gone", 0)] = 0  # in the metadata, but its leader denies it
        cluster = world.cluster()
        with pytest.raises(UnknownTopic, match=missing.topic):
            await cluster.logs.list_offsets({A0: messages.LATEST, missing: messages.LATEST}, timeout_ms=3_000)
        assert world.asked(kio_messages.MetadataRequest) > 1, "it was looked for again"
        await cluster.close()

    scenario()


@in_a_world()
async def test_a_topic_that_was_created_just_now_is_found(world: BrokerWorld) -> None:
    new = TopicPartition("new", 0)
    cluster = world.cluster()
    asking = asyncio.create_task(cluster.logs.list_offsets({new: messages.LATEST}))
    await until(lambda: world.asked(kio_messages.MetadataRequest))
    world.leaders[new], world.ends[new] = 0, 5
    assert (await asking)[new].offset == 5
    await cluster.close()


UNKNOWN_CODES = pytest.mark.parametrize(
    "code", [ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.NOT_CONTROLLER, 9_999], ids=ErrorCode.name_of
)


@UNKNOWN_CODES
@pytest.mark.parametrize("api", ["Metadata", "ListOffsets", "FindCoordinator", "OffsetFetch", "DescribeGroups"])
def test_a_question_is_asked_again_after_an_inconclusive_error(api: str, code: int) -> None:
    """Java: "failed due to unexpected exception ..., retrying". redpanda PR #30097 has a table of clients."""

    @in_a_world()
    async def scenario(world: BrokerWorld) -> None:
        cluster = world.cluster()
        await cluster.metadata(["a"])
        world.first[api] = [code]
        match api:
            case "Metadata":
                assert "a" in (await cluster.metadata(["a"])).topics
            case "ListOffsets":
                assert (await cluster.logs.list_offsets({A0: messages.LATEST}))[A0].offset == 10
            case "DescribeGroups":
                assert (await cluster.groups.describe("g")).state == "Stable"
            case _:
                assert await cluster.groups.committed_offsets("g", [A0]) == {A0: None}
        assert world.first[api] == []
        await cluster.close()

    scenario()


@UNKNOWN_CODES
def test_a_topic_is_not_gone_because_of_an_inconclusive_error(code: int) -> None:
    @in_a_world()
    async def scenario(world: BrokerWorld) -> None:
        cluster = world.cluster()
        world.first["Metadata"] = [code] * 99
        with pytest.raises(BrokerError, match=f"Metadata failed with {ErrorCode.name_of(code)}: a"):
            await cluster.metadata(["a"], timeout_ms=3_000)
        assert (await cluster.metadata(None, timeout_ms=5_000)).errors == {"a": code}, "one of all keeps nobody waiting"
        await cluster.close()

    scenario()


def test_the_codes_that_may_pass_are_kafkas() -> None:
    """RetriableException's subclasses."""
    assert ErrorCode.retriable_codes() == {int(each) for each in KioErrorCode if each.retriable}
    final = [code for code in KioErrorCode if not ErrorCode.may_pass(int(code))]
    assert KioErrorCode.topic_authorization_failed in final
    assert KioErrorCode.invalid_topic_exception in final
    assert KioErrorCode.unsupported_for_message_format in final


@in_a_world()
async def test_an_error_that_no_retry_mends_is_raised_at_once(world: BrokerWorld) -> None:
    world.first["ListOffsets"] = [ErrorCode.INVALID_TOPIC_EXCEPTION]
    cluster = world.cluster()
    with pytest.raises(BrokerError, match="ListOffsets failed with INVALID_TOPIC_EXCEPTION: a-0"):
        await cluster.logs.list_offsets({A0: messages.LATEST})
    assert world.asked(kio_messages.ListOffsetsRequest) == 1
    await cluster.close()


@in_a_world()
async def test_a_leader_may_lack_a_right_that_another_broker_has_granted_a_moment_ago(world: BrokerWorld) -> None:
    """Also before the first answer of a leader: Metadata, which names the leader, takes the same right."""
    world.first["ListOffsets"] = [ErrorCode.TOPIC_AUTHORIZATION_FAILED] * 2
    cluster = world.cluster()
    assert (await cluster.logs.list_offsets({A0: messages.LATEST}))[A0].offset == 10
    assert world.asked(kio_messages.ListOffsetsRequest) == 3
    await cluster.close()


MISSING = [
    ("ListOffsets", ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    ("FindCoordinator", ErrorCode.GROUP_AUTHORIZATION_FAILED),
    ("OffsetFetch", ErrorCode.GROUP_AUTHORIZATION_FAILED),
    ("DescribeGroups", ErrorCode.GROUP_AUTHORIZATION_FAILED),
    ("ConsumerGroupDescribe", ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    ("Metadata", ErrorCode.TOPIC_AUTHORIZATION_FAILED),
]


@pytest.mark.parametrize(("api", "code"), MISSING, ids=[api for api, _ in MISSING])
def test_rights_that_were_there_may_be_missing_for_a_while(
    api: str, code: ErrorCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that starts may not have all ACLs yet (redpanda #26281). A refused login has the same patience."""

    @in_a_world()
    async def scenario(world: BrokerWorld) -> None:
        cluster = world.cluster()
        world.group_type = "consumer" if api == "ConsumerGroupDescribe" else "classic"

        async def ask() -> None:
            match api:
                case "Metadata":
                    assert "a" in (await cluster.metadata(["a"])).topics
                case "ListOffsets":
                    assert (await cluster.logs.list_offsets({A0: messages.LATEST}))[A0].offset == 10
                case "DescribeGroups" | "ConsumerGroupDescribe":
                    assert (await cluster.groups.describe("g")).members
                case _:
                    cluster.coordinators._known.clear()
                    assert await cluster.groups.committed_offsets("g", [A0]) == {A0: None}

        await ask()
        world.first[api] = [code, code]
        await ask()
        assert world.first[api] == []
        monkeypatch.setattr(rights, "AUTHORIZATION_GRACE_MS", 0)
        monkeypatch.setattr(cluster_module, "AUTHORIZATION_GRACE_MS", 0)
        world.first[api] = [code] * 9
        with pytest.raises((BrokerError, AssertionError), match=code.name if api != "Metadata" else "assert 'a' in"):
            await ask()
        assert len(world.first[api]) == 8
        await cluster.close()

    scenario()


@in_a_world(nodes=2)
async def test_an_error_that_no_retry_mends_counts_more_than_one_that_might_pass(world: BrokerWorld) -> None:
    world.leaders = {A0: 0, A1: 1}
    cluster = world.cluster()
    await cluster.metadata(["a"])
    world.leaders[A0] = 1  # a stale leader for one, a name that this one does not take for the other
    world.brokers[1].answer = lambda request: world.on_ListOffsets(1, request, KioErrorCode(17))
    with pytest.raises(BrokerError, match="INVALID_TOPIC_EXCEPTION: a-1"):
        await cluster.logs.list_offsets({A0: messages.LATEST, A1: messages.LATEST})
    assert world.asked(kio_messages.ListOffsetsRequest) == 2
    await cluster.close()


@in_a_world()
async def test_an_offset_that_the_leader_forgot_to_tell_is_asked_for_again_and_in_the_end_an_error(
    world: BrokerWorld,
) -> None:
    whole = world.on_ListOffsets
    nothing = kio_messages.ListOffsetsResponse(throttle_time=NO_THROTTLE, topics=())
    world.on_ListOffsets = lambda *_: nothing  # type: ignore[method-assign]
    cluster = world.cluster()
    with pytest.raises(WireError, match="leaves out a-0"):
        await cluster.logs.list_offsets({A0: messages.LATEST}, timeout_ms=3_000)
    many = {TopicPartition("many", n): 0 for n in range(1_000)}
    world.leaders |= many
    world.ends |= many
    with pytest.raises(WireError, match=r"leaves out many-0, .+ and 980 more") as error:
        await cluster.logs.list_offsets(dict.fromkeys(many, messages.LATEST), timeout_ms=3_000)
    assert len(str(error.value)) < 500
    before = world.asked(kio_messages.ListOffsetsRequest)
    asking = asyncio.create_task(cluster.logs.list_offsets({A0: messages.LATEST}))
    await until(lambda: world.asked(kio_messages.ListOffsetsRequest) > before)
    world.on_ListOffsets = whole  # type: ignore[method-assign]
    assert (await asking)[A0].offset == 10
    await cluster.close()


@in_a_world()
async def test_an_answer_that_cannot_be_decoded_is_asked_for_again_on_another_connection(world: BrokerWorld) -> None:
    cluster = world.cluster()
    await cluster.metadata(["a"])
    bad = iter([Raw(struct.pack(">iib", 5, 3, 0))])
    whole = world.brokers[0].answer
    world.brokers[0].answer = lambda request: next(bad, None) or whole(request)
    assert await cluster.groups.committed_offsets("g", [A0]) == {A0: None}
    assert world.brokers[0].connections == 2
    await cluster.close()


@in_a_world()
async def test_answers_that_never_can_be_decoded_are_the_error_when_the_time_is_up(world: BrokerWorld) -> None:
    cluster = world.cluster()
    await cluster.metadata(["a"])
    world.brokers[0].answer = lambda _: Raw(struct.pack(">i", 100) + b"\xff" * 100)
    with pytest.raises(WireError, match="answered request -1, which was never sent"):
        await cluster.groups.committed_offsets("g", [A0], timeout_ms=3_000)
    await cluster.close()


# ---------------------------------------------------------------------------------------------------- coordinator


@in_a_world(nodes=2)
async def test_each_session_gets_a_coordinator_connection_of_its_own(world: BrokerWorld) -> None:
    world.coordinator = 1
    cluster = world.cluster()
    one = await cluster.coordinators.open("g")
    other = await cluster.coordinators.open("g")
    assert {one.address, other.address} == {world.brokers[1].address}
    assert one is not other
    assert world.asked(FindCoordinatorRequest, 0) == 2, "each time anew: who asks has lost the old one"
    await cluster.close()
    assert not one.closed, "it is the session's"
    await one.close()
    await other.close()


@pytest.mark.parametrize("code", [ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.GROUP_AUTHORIZATION_FAILED])
def test_a_coordinator_that_cannot_be_found_is_an_error_for_the_caller(code: ErrorCode) -> None:
    @in_a_world()
    async def scenario(world: BrokerWorld) -> None:
        world.first["FindCoordinator"] = [code]
        cluster = world.cluster()
        with pytest.raises(BrokerError, match=f"FindCoordinator failed with {code.name}: why") as failure:
            await cluster.coordinators.open("g")
        assert failure.value.retriable == (code == ErrorCode.COORDINATOR_NOT_AVAILABLE)
        connection = await cluster.coordinators.open("g")
        await connection.close()
        await cluster.close()

    scenario()


@in_a_world()
async def test_opening_a_coordinator_has_a_bound(world: BrokerWorld) -> None:
    world.first["FindCoordinator"] = [None]
    cluster = world.cluster()
    with pytest.raises(RequestTimedOut, match="within 100 ms"):
        await cluster.coordinators.open("g", timeout_ms=100)
    await cluster.close()


@in_a_world(nodes=2)
async def test_a_coordinator_call_is_made_once_and_the_coordinator_looked_up_again_after_it_moved(
    world: BrokerWorld,
) -> None:
    cluster = world.cluster()
    commit = messages.offset_commit("g", WHO, {A0: 5})
    for moved_to, expected in [(0, 0), (1, ErrorCode.NOT_COORDINATOR), (1, 0)]:
        world.coordinator = moved_to
        response = await cluster.coordinators.call("g", commit)
        assert isinstance(response, schema.OffsetCommitResponse)
        assert messages.offset_commit_errors(response) == {A0: expected}
    assert world.committed == {A0: 5}
    assert [world.asked(OffsetCommitRequest, node) for node in (0, 1)] == [2, 1]
    assert world.asked(FindCoordinatorRequest) == 2
    await cluster.close()


@in_a_world(nodes=2)
async def test_a_coordinator_that_died_is_looked_up_again(world: BrokerWorld) -> None:
    world.coordinator = 1
    cluster = world.cluster()
    commit = messages.offset_commit("g", WHO, {A0: 5})
    await cluster.coordinators.call("g", commit)
    await world.brokers[1].stop()
    world.coordinator = 0
    with pytest.raises((Disconnected, ConnectionFailed)):
        await cluster.coordinators.call("g", commit)
    await cluster.coordinators.call("g", commit)
    assert world.asked(OffsetCommitRequest, 0) == 1
    await cluster.close()
    await world.brokers[1].start()


@in_a_world()
async def test_a_thousand_commits_at_once_are_a_thousand_requests_and_one_look_up(world: BrokerWorld) -> None:
    cluster = world.cluster()
    commit = messages.offset_commit("g", WHO, {A0: 5})
    for look_ups in (1, 1):  # the second time the coordinator is known
        await asyncio.gather(*(cluster.coordinators.call("g", commit) for _ in range(1_000)))
        assert world.asked(FindCoordinatorRequest) == look_ups
    assert world.asked(OffsetCommitRequest) == 2_000
    await cluster.close()


@in_a_world()
async def test_a_caller_that_gives_up_does_not_end_the_look_up_that_other_callers_wait_for(world: BrokerWorld) -> None:
    found = asyncio.Event()
    answer = world.brokers[0].answer

    async def held_up(request: Any) -> Any:
        await found.wait()
        return answer(request)

    world.brokers[0].answer = held_up
    cluster = world.cluster()
    commit = messages.offset_commit("g", WHO, {A0: 5})
    first, second = (asyncio.create_task(cluster.coordinators.call("g", commit)) for _ in range(2))
    await until(lambda: world.asked(FindCoordinatorRequest))
    first.cancel()
    await asyncio.wait([first])
    found.set()
    await second
    assert world.asked(FindCoordinatorRequest) == 1
    await cluster.close()


@in_a_world()
async def test_a_coordinator_call_has_a_bound(world: BrokerWorld) -> None:
    world.first["OffsetCommit"] = [None]
    cluster = world.cluster()
    with pytest.raises(RequestTimedOut, match="within 100 ms"):
        await cluster.coordinators.call("g", messages.offset_commit("g", WHO, {A0: 5}), timeout_ms=100)
    await cluster.close()


@pytest.mark.parametrize(
    "trouble",
    [
        [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS],
        [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE],
        [ErrorCode.UNSTABLE_OFFSET_COMMIT],
        [HUNG_UP],
    ],
    ids=["loading", "moving", "a transaction is pending", "disconnect"],
)
def test_committed_offsets_are_asked_for_until_they_are_known(trouble: list[Any]) -> None:
    @in_a_world()
    async def scenario(world: BrokerWorld) -> None:
        world.committed = {A0: 5}
        world.first["OffsetFetch"] = list(trouble)
        cluster = world.cluster()
        assert offsets_alone(await cluster.groups.committed_offsets("g", [A0, A1, A0])) == {A0: 5, A1: None}
        assert world.asked(OffsetFetchRequest) == len(trouble) + 1
        await cluster.close()

    scenario()


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID])
def test_a_partition_that_a_coordinator_does_not_know_has_no_committed_offset(code: ErrorCode) -> None:
    """Event Hubs says so of partitions that were never committed (franz-go #1312)."""

    @in_a_world()
    async def scenario(world: BrokerWorld) -> None:
        whole = world.on_OffsetFetch

        def on_offset_fetch(node: int, request: Any, error: KioErrorCode) -> Any:
            answer = whole(node, request, error)
            (group,) = answer.groups
            topics = tuple(
                replace(
                    topic,
                    partitions=tuple(
                        replace(p, error_code=KioErrorCode(code if p.committed_offset < 0 else 0))
                        for p in topic.partitions
                    ),
                )
                for topic in group.topics
            )
            return replace(answer, groups=(replace(group, topics=topics),))

        world.on_OffsetFetch = on_offset_fetch  # type: ignore[method-assign]
        world.committed = {A1: 7}
        cluster = world.cluster()
        found = await cluster.groups.committed_offsets("g", [A0, A1])
        assert {tp: each and each.offset for tp, each in found.items()} == {A0: None, A1: 7}
        assert world.asked(OffsetFetchRequest) == 1
        await cluster.close()

    scenario()


def test_a_partition_that_a_coordinator_leaves_out_each_time_has_no_committed_offset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(groups_module, "OFFSETS_LEFT_OUT_MS", 1_000)

    @in_a_world()
    async def scenario(world: BrokerWorld) -> None:
        whole = world.on_OffsetFetch

        def on_offset_fetch(node: int, request: Any, error: KioErrorCode) -> Any:
            answer = whole(node, request, error)
            (group,) = answer.groups
            topics = tuple(
                replace(topic, partitions=tuple(p for p in topic.partitions if p.committed_offset >= 0))
                for topic in group.topics
            )
            return replace(answer, groups=(replace(group, topics=topics),))

        world.on_OffsetFetch = on_offset_fetch  # type: ignore[method-assign]
        world.committed = {A1: 7}
        cluster = world.cluster()
        found = await cluster.groups.committed_offsets("g", [A0, A1])
        assert {tp: each and each.offset for tp, each in found.items()} == {A0: None, A1: 7}
        assert world.asked(OffsetFetchRequest) > 1, "not at its first word"
        await cluster.close()

    scenario()


@in_a_world()
async def test_a_committed_offset_that_the_coordinator_forgot_to_tell_is_not_none(world: BrokerWorld) -> None:
    """None would mean to start where `startingOffsets` says."""
    group = OffsetFetchResponseGroup(group_id=GroupId("g"), topics=())
    untold = kio_messages.OffsetFetchResponse(throttle_time=NO_THROTTLE, groups=(group,))
    world.on_OffsetFetch = lambda *_: untold  # type: ignore[method-assign]
    cluster = world.cluster()
    with pytest.raises(WireError, match="leaves out a-0"):
        await cluster.groups.committed_offsets("g", [A0], timeout_ms=1_500)
    no_group = kio_messages.OffsetFetchResponse(throttle_time=NO_THROTTLE, groups=())
    world.on_OffsetFetch = lambda *_: no_group  # type: ignore[method-assign]
    with pytest.raises(WireError, match="about one group and answered about 0"):
        await cluster.groups.committed_offsets("g", [A0], timeout_ms=1_500)
    await cluster.close()


@in_a_world()
async def test_a_group_is_described_with_its_members_shares(world: BrokerWorld) -> None:
    world.first["DescribeGroups"] = [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    cluster = world.cluster()
    group = await cluster.groups.describe("g")
    assert (group.group, group.state, group.protocol) == ("g", "Stable", "range")
    (member,) = group.members
    assert (member.member_id, member.instance_id, member.client_host) == ("m", "seat-0", "/127.0.0.1")
    assert member.assignment == {A0, B0}
    await cluster.close()


@pytest.mark.parametrize(
    ("group_type", "reader"), [("classic", "parse_description"), ("consumer", "parse_consumer_description")]
)
def test_a_group_is_read_beside_the_loop(monkeypatch: pytest.MonkeyPatch, group_type: str, reader: str) -> None:
    """One of 1,000 members takes a second, in which the seats of this process must not be silent."""
    on_the_loop: list[bool] = []
    read = getattr(groups_module, reader)

    def noting(response: Any) -> Any:
        on_the_loop.append(threading.current_thread() is threading.main_thread())
        return read(response)

    monkeypatch.setattr(groups_module, reader, noting)

    @in_a_world()
    async def scenario(world: BrokerWorld) -> None:
        world.group_type = group_type
        cluster = world.cluster()
        assert (await cluster.groups.describe("g")).group_type == group_type
        await cluster.close()

    scenario()
    assert on_the_loop == [False]


@in_a_world()
async def test_a_group_that_does_not_exist_is_dead(world: BrokerWorld) -> None:
    world.first["DescribeGroups"] = [ErrorCode.GROUP_ID_NOT_FOUND] * 2
    cluster = world.cluster()
    group = await cluster.groups.describe("g")
    assert (group.state, group.members) == ("Dead", ())
    await cluster.close()


@pytest.mark.parametrize("field", ["member_metadata", "member_assignment"])
def test_a_member_with_an_unreadable_subscription_claims_no_partition(field: str) -> None:
    """Its bytes are opaque to the broker, so that any client that may join a group can write any bytes."""

    @in_a_world()
    async def scenario(world: BrokerWorld) -> None:
        describe = world.on_DescribeGroups

        def garbled(node: int, request: Any, error: KioErrorCode) -> Any:
            (group,) = describe(node, request, error).groups
            odd = replace(group.members[0], **{field: b"\0\1\xff\xff\xff\x7fjunk"})
            groups = (replace(group, members=(odd,)),)
            return kio_messages.DescribeGroupsResponse(throttle_time=NO_THROTTLE, groups=groups)

        world.on_DescribeGroups = garbled  # type: ignore[method-assign]
        cluster = world.cluster()
        (member,) = (await cluster.groups.describe("g")).members
        assert (member.member_id, member.claimed) == ("m", frozenset())
        assert member.assignment == (frozenset() if field == "member_assignment" else {A0, B0})
        await cluster.close()

    scenario()


NEWEST = ConsumerGroupDescribeRequest
OLDEST = ConsumerGroupDescribeRequestV0
KEY = int(NEWEST.__api_key__)


@pytest.mark.parametrize(
    ("spoken", "asked", "protocols"),
    [((0, 1), NEWEST, ["classic", "consumer"]), ((0, 0), OLDEST, [None, None])],
    ids=["Kafka 4.0", "Kafka 3.7"],
)
def test_a_group_of_type_consumer_is_described_with_its_members_and_their_partitions(
    spoken: tuple[int, int], asked: type, protocols: list[str | None]
) -> None:
    """DescribeGroups calls it "Dead" (KIP-848), though classic seats of ours may live in it."""

    @in_a_world(ranges={**RANGES, KEY: spoken})
    async def scenario(world: BrokerWorld) -> None:
        world.group_type = "consumer"
        cluster = world.cluster()
        group = await cluster.groups.describe("g")
        assert (group.state, group.protocol, group.group_type) == ("Reconciling", "uniform", "consumer")
        assert group.tells_owners
        assert [(m.member_id, m.instance_id, m.epoch) for m in group.members] == [("m", "seat-0", 4), ("n", None, 5)]
        assert [m.protocol for m in group.members] == protocols
        assert [m.assignment for m in group.members] == [{A0}, frozenset()], "a target is not owned yet"
        assert world.asked(asked) == 1
        await cluster.close()

    scenario()


@pytest.mark.parametrize(
    "trouble",
    [[ErrorCode.GROUP_ID_NOT_FOUND], [ErrorCode.UNSUPPORTED_VERSION]],
    ids=["no such group", "the broker has no groups of that type"],
)
def test_a_group_of_neither_type_is_dead(trouble: list[ErrorCode]) -> None:
    @in_a_world()
    async def scenario(world: BrokerWorld) -> None:
        world.group_type = "share"
        world.first["ConsumerGroupDescribe"] = list(trouble)
        cluster = world.cluster()
        assert (await cluster.groups.describe("g")).state == "Dead"
        await cluster.close()

    scenario()


@in_a_world(ranges={key: spoken for key, spoken in RANGES.items() if key != KEY})
async def test_a_broker_that_knows_classic_groups_only_is_asked_for_those(world: BrokerWorld) -> None:
    cluster = world.cluster()
    assert (await cluster.groups.describe("g")).state == "Stable"
    world.first["DescribeGroups"] = [ErrorCode.GROUP_ID_NOT_FOUND] * 2
    assert (await cluster.groups.describe("g")).state == "Dead"
    await cluster.close()


@in_a_world()
async def test_a_group_that_is_converted_while_it_is_asked_for_is_found(world: BrokerWorld) -> None:
    """1. It is of type consumer. 2. DescribeGroups says Dead. 3. Its last such member leaves. 4. It is classic."""
    world.first["DescribeGroups"] = [ErrorCode.GROUP_ID_NOT_FOUND]
    cluster = world.cluster()
    assert (await cluster.groups.describe("g")).state == "Stable"
    assert world.asked(NEWEST) == 1
    await cluster.close()


@in_a_world()
async def test_a_consumer_group_whose_coordinator_moves_is_asked_for_again(world: BrokerWorld) -> None:
    world.group_type = "consumer"
    world.first["ConsumerGroupDescribe"] = [ErrorCode.NOT_COORDINATOR]
    cluster = world.cluster()
    assert (await cluster.groups.describe("g")).state == "Reconciling"
    assert world.asked(FindCoordinatorRequest) == 2
    await cluster.close()


@in_a_world()
async def test_the_type_of_a_group_can_be_asked(world: BrokerWorld) -> None:
    world.first["ListGroups"] = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
    cluster = world.cluster()
    for group_type in ("share", "streams", "classic"):
        world.group_type = group_type
        assert await cluster.groups.fetch_type("g") == group_type
    assert await cluster.groups.fetch_type("nobody's") is None
    await cluster.close()


@in_a_world(ranges={**RANGES, int(ListGroupsRequest.__api_key__): (0, 4)})
async def test_a_broker_that_knows_no_types_says_none(world: BrokerWorld) -> None:
    cluster = world.cluster()
    assert await cluster.groups.fetch_type("g") is None
    await cluster.close()


@in_a_world()
async def test_a_group_that_this_user_may_not_see_is_an_error(world: BrokerWorld) -> None:
    world.first["DescribeGroups"] = [ErrorCode.GROUP_AUTHORIZATION_FAILED]
    cluster = world.cluster()
    with pytest.raises(BrokerError, match="GROUP_AUTHORIZATION_FAILED: group 'g': grant READ on the group"):
        await cluster.groups.describe("g")
    world.first["OffsetFetch"] = [ErrorCode.INVALID_GROUP_ID]
    with pytest.raises(BrokerError, match="OffsetFetch failed with INVALID_GROUP_ID: group 'g'"):
        await cluster.groups.committed_offsets("g", [A0])
    await cluster.close()


@in_a_world()
async def test_a_topic_of_another_member_that_this_user_may_not_see_hides_a_group_of_type_consumer(
    world: BrokerWorld,
) -> None:
    """KafkaApis.handleConsumerGroupDescribe: the error is the group's, and names no topic."""
    world.group_type, world.words = "consumer", "The group has described topic(s) that the client may not describe."
    world.first["ConsumerGroupDescribe"] = [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
    cluster = world.cluster()
    with pytest.raises(
        BrokerError, match=r"group 'g': The group has .+: grant DESCRIBE on the topics of all its members"
    ):
        await cluster.groups.describe("g")
    await cluster.close()
