"""One broker's word is one witness: brokers that are cut off go on answering, and other brokers know better."""

import asyncio
from dataclasses import replace
from uuid import UUID

import pytest
from harness import kio_messages
from harness.fake_broker import until
from harness.fake_cluster import A0, A1, B0, TOPIC_ID, WHO, BrokerWorld, ends_with, in_a_world
from harness.kio_messages import DescribeConfigsRequest, FindCoordinatorRequest

from spark_kgroup.errors import BrokerError, ConnectionFailed, Disconnected, UnknownTopic, WireError
from spark_kgroup.limits import TOPIC_GONE_AFTER_MS, WITNESS_MAX_AGE_MS
from spark_kgroup.model import ErrorCode, TopicPartition
from spark_kgroup.runtime.group import Group
from spark_kgroup.runtime.settings import GroupSettings, OngoingWork
from spark_kgroup.runtime.topics import Topics
from spark_kgroup.wire import brokers as brokers_module
from spark_kgroup.wire import cluster as cluster_module
from spark_kgroup.wire import messages, schema
from spark_kgroup.wire.address import Address
from spark_kgroup.wire.cluster import Cluster
from spark_kgroup.wire.witnesses import Denials, NamedLeader, NewIds, Witnesses

pytestmark = pytest.mark.filterwarnings("error::ResourceWarning")

A, B, C = (Address("broker", port) for port in (1, 2, 3))
SOON_MS = 5_000
"""Far more than a round or two of retries take, and far less than any bound on a look-up."""


# -------------------------------------------------------------------------------------------- who is asked next


def test_brokers_are_asked_as_they_come_until_one_leads_nowhere() -> None:
    witnesses = Witnesses()
    assert witnesses.in_order([A, B, C, A]) == [A, B, C]
    witnesses.doubt(A)
    assert witnesses.in_order([A, B, C]) == [B, C, A]
    witnesses.doubt(B)
    witnesses.doubt(C)
    assert witnesses.in_order([A, B, C]) == [A, B, C], "each has led nowhere: the one that did so longest ago is first"


def test_a_broker_that_was_asked_in_vain_comes_after_the_one_that_answered() -> None:
    witnesses = Witnesses()
    witnesses.heard(B, [A, B, C], 0)
    assert witnesses.in_order([A, B, C]) == [B, C, A]


def test_a_broker_is_not_asked_first_for_ever() -> None:
    witnesses = Witnesses()
    old_s = WITNESS_MAX_AGE_MS / 1000 + 1
    witnesses.heard(A, [A, B], 0)
    witnesses.heard(A, [A, B], old_s - 2)
    assert witnesses.in_order([A, B]) == [A, B]
    witnesses.heard(A, [A, B], old_s)
    assert witnesses.in_order([A, B]) == [B, A]
    witnesses.heard(B, [B, A], old_s + 1)
    witnesses.heard(B, [B, A], 2 * old_s)
    assert witnesses.in_order([A, B]) == [B, A], "its own time has begun anew"


def test_addresses_that_are_no_brokers_any_more_are_forgotten() -> None:
    witnesses = Witnesses()
    witnesses.doubt(A)
    assert witnesses.in_order([B, C]) == [B, C]
    assert witnesses.in_order([A, B, C]) == [A, B, C]


# -------------------------------------------------------------------------------------------- leaders, topics


async def acquainted(world: BrokerWorld) -> Cluster:
    """A client that knows all brokers and is connected to node 0 alone."""
    cluster = world.cluster()
    await cluster.metadata(["a"])
    return cluster


@in_a_world(nodes=3)
async def test_a_leader_that_is_gone_is_asked_for_at_another_broker(world: BrokerWorld) -> None:
    """librdkafka #1389, sarama #595: the broker that names it is cut off, and names it for ever."""
    world.leaders = {A0: 2, A1: 2}
    cluster = await acquainted(world)
    world.cut_off_from_now_on(0)
    world.leaders = {A0: 1, A1: 1}
    await world.brokers[2].stop()
    found = await cluster.logs.list_offsets({A0: messages.LATEST, A1: messages.LATEST}, timeout_ms=SOON_MS)
    assert {tp: listed.offset for tp, listed in found.items()} == {A0: 10, A1: 11}
    await cluster.close()
    await world.brokers[2].start()


@in_a_world(nodes=3)
async def test_a_leader_that_leads_no_more_is_asked_for_at_another_broker(world: BrokerWorld) -> None:
    world.leaders = {A0: 2}
    cluster = await acquainted(world)
    world.cut_off_from_now_on(0)
    world.leaders = {A0: 1}
    assert (await cluster.logs.list_offsets({A0: messages.LATEST}, timeout_ms=SOON_MS))[A0].offset == 10
    await cluster.close()


@in_a_world(nodes=2)
async def test_a_partition_without_a_leader_is_asked_for_at_another_broker(world: BrokerWorld) -> None:
    world.leaders = {A0: -1}
    cluster = await acquainted(world)
    world.cut_off_from_now_on(0)
    world.leaders = {A0: 1}
    assert (await cluster.logs.list_offsets({A0: messages.LATEST}, timeout_ms=SOON_MS))[A0].offset == 10
    await cluster.close()


@in_a_world(nodes=2)
async def test_a_broker_that_knows_less_is_not_asked_next(world: BrokerWorld) -> None:
    """Once it was asked 53 times, and the other one, which has the answer, never (knows_less)."""
    del world.leaders[A1]
    cluster = await acquainted(world)
    world.cut_off_from_now_on(0)
    world.leaders[A1] = 1
    await cluster.logs.list_offsets({A1: messages.LATEST}, timeout_ms=SOON_MS)  # the other one says so
    before = [world.asked(kio_messages.MetadataRequest, node) for node in (0, 1)]
    for _ in range(5):
        assert (await cluster.metadata(["a"], timeout_ms=SOON_MS)).topics["a"].partition_count == 2
    asked = [world.asked(kio_messages.MetadataRequest, node) - at for node, at in enumerate(before)]
    assert asked[0] <= 1 < asked[1]
    await cluster.close()


@in_a_world(nodes=3)
async def test_a_topic_that_two_brokers_deny_is_gone(world: BrokerWorld) -> None:
    cluster = await acquainted(world)
    world.leaders = {}
    assert "a" in (await cluster.metadata(["a"], timeout_ms=TOPIC_GONE_AFTER_MS // 2)).errors
    assert world.asked(kio_messages.MetadataRequest) == 3
    assert "a" in (await cluster.metadata(["a"])).errors
    assert world.asked(kio_messages.MetadataRequest) == 4, "that holds"
    with pytest.raises(UnknownTopic, match="a"):
        await cluster.logs.list_offsets({A0: messages.LATEST}, timeout_ms=TOPIC_GONE_AFTER_MS // 2)
    await cluster.close()


@in_a_world(nodes=3)
async def test_a_topic_that_one_of_two_brokers_lists_is_doubtful(world: BrokerWorld) -> None:
    """The broker that is asked first was cut off before topic b was created, and topic a was deleted."""
    c0 = TopicPartition("c", 0)
    world.leaders = {A0: 0, c0: 1}
    world.cut_off_from_now_on(0)
    world.leaders = {B0: 1, c0: 1}
    cluster = world.cluster()
    listed = await cluster.list_topics(timeout_ms=SOON_MS)
    assert (list(listed.agreed), listed.doubtful) == (["c"], frozenset({"a", "b"}))
    await cluster.close()


@in_a_world(nodes=3)
async def test_a_broker_that_lists_no_topic_is_not_asked_twice(world: BrokerWorld) -> None:
    leaders, world.leaders = world.leaders, {}
    world.cut_off_from_now_on(0)
    world.leaders = leaders
    cluster = world.cluster()
    assert (await cluster.list_topics(timeout_ms=SOON_MS)).doubtful == {"a"}
    assert [world.asked(kio_messages.MetadataRequest, node) for node in range(3)] == [1, 1, 0]
    await cluster.close()


@in_a_world(nodes=2)
async def test_a_broker_at_two_addresses_lists_topics_as_one(world: BrokerWorld) -> None:
    world.cut_off_from_now_on(0)
    world.leaders = {B0: 1}
    cluster = world.cluster(bootstrap=[replace(world.brokers[0].address, host="localhost")])
    assert (await cluster.list_topics(timeout_ms=SOON_MS)).doubtful == {"a", "b"}
    await cluster.close()


@in_a_world(nodes=2)
async def test_a_list_of_topics_is_that_of_the_only_broker_that_answers(world: BrokerWorld) -> None:
    cluster = world.cluster()
    await world.brokers[1].stop()
    listed = await cluster.list_topics(timeout_ms=SOON_MS)
    assert (list(listed.agreed), listed.doubtful) == (["a"], frozenset())
    await cluster.close()
    await world.brokers[1].start()


@in_a_world(nodes=3)
async def test_a_topic_whose_ends_are_listed_is_gone_when_two_brokers_deny_it(world: BrokerWorld) -> None:
    cluster = await acquainted(world)
    world.leaders = {}
    with pytest.raises(UnknownTopic, match="a"):
        await cluster.logs.list_offsets({A0: messages.LATEST}, timeout_ms=TOPIC_GONE_AFTER_MS // 2)
    await cluster.close()


@in_a_world()
async def test_one_broker_at_two_addresses_is_one_witness(world: BrokerWorld) -> None:
    world.hosts = {0: "localhost"}
    cluster = await acquainted(world)
    leaders, world.leaders = world.leaders, {}
    asking = asyncio.create_task(cluster.metadata(["a"]))
    await until(lambda: world.brokers[0].connections >= 2 and world.asked(kio_messages.MetadataRequest) > 4)
    assert not asking.done()
    world.leaders = leaders
    assert "a" in (await asking).topics
    await cluster.close()


@in_a_world()
async def test_a_topic_that_the_only_broker_denies_for_a_while_is_waited_for(world: BrokerWorld) -> None:
    """librdkafka #3513, #4401: a broker that starts does not know all topics yet."""
    cluster = await acquainted(world)
    leaders, world.leaders = world.leaders, {}
    asking = asyncio.create_task(cluster.metadata(["a"]))
    await until(lambda: world.asked(kio_messages.MetadataRequest) > 3)
    assert not asking.done()
    world.leaders = leaders
    assert "a" in (await asking).topics
    await cluster.close()


@in_a_world()
async def test_at_a_start_a_topic_is_waited_for_that_the_only_broker_denies_for_a_moment(world: BrokerWorld) -> None:
    leaders, world.leaders = world.leaders, {}
    settings = GroupSettings(bootstrap=(world.brokers[0].address,), group="g", topics=("a",), instance_ids=("seat-0",))
    cluster = world.cluster()
    topics = Topics(settings, cluster)
    asking = asyncio.create_task(topics.subscribed(0))
    await until(lambda: world.asked(kio_messages.MetadataRequest) > 2)
    world.leaders = leaders
    assert (await asking).keys() == {"a"}
    await cluster.close()


async def beside_a_broker_that_does_not_know_b_yet(world: BrokerWorld) -> Cluster:
    """A client that has never heard of b, and whose first question goes to that broker, which is node 0."""
    world.leaders = {A0: 1, A1: 1}
    world.cut_off_from_now_on(0)
    world.leaders = {A0: 1, A1: 1, B0: 1}
    return await acquainted(world)


@in_a_world(nodes=3)
async def test_a_topic_that_this_process_has_not_seen_is_not_gone_because_one_broker_denies_it(
    world: BrokerWorld,
) -> None:
    """Partitions of b would be given up without their position, and another application's seat would lose them."""
    cluster = await beside_a_broker_that_does_not_know_b_yet(world)
    settings = GroupSettings(bootstrap=(world.brokers[0].address,), group="g", topics=("a",), instance_ids=("seat-0",))
    assert await Topics(settings, cluster).gone(["b"]) == set()
    assert [world.asked(kio_messages.MetadataRequest, node) for node in (0, 1, 2)] == [2, 1, 0]
    await cluster.close()


@in_a_world(nodes=3)
async def test_the_assignors_leader_sees_a_topic_that_one_broker_denies(world: BrokerWorld) -> None:
    cluster = await beside_a_broker_that_does_not_know_b_yet(world)
    found = await cluster.metadata(["a", "b"], timeout_ms=SOON_MS, patience_ms=SOON_MS)
    assert (sorted(found.topics), found.errors) == (["a", "b"], {})
    await cluster.close()


@in_a_world(nodes=3)
async def test_a_topic_that_never_was_is_gone_when_two_brokers_deny_it(world: BrokerWorld) -> None:
    cluster = await acquainted(world)
    found = await cluster.metadata(["a", "b"], timeout_ms=2 * SOON_MS)
    assert found.errors == {"b": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert world.asked(kio_messages.MetadataRequest) == 3
    await cluster.close()


@in_a_world(nodes=3)
async def test_a_person_who_looks_hears_what_the_first_broker_says(world: BrokerWorld) -> None:
    cluster = await beside_a_broker_that_does_not_know_b_yet(world)
    assert (await cluster.metadata(["b"], absent_after_ms=0)).errors == {"b": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert world.asked(kio_messages.MetadataRequest) == 2
    await cluster.close()


def test_denials_of_long_ago_are_forgotten() -> None:
    denials = Denials()
    denials.add("a", 0, 0)
    denials.add("a", 0, 1 + TOPIC_GONE_AFTER_MS / 1000)
    assert not denials.suffice("a", TOPIC_GONE_AFTER_MS), "it was there in between, as far as anybody knows"
    denials.add("a", None, 2 + TOPIC_GONE_AFTER_MS / 1000)
    assert denials.suffice("a", 1_000)
    denials.add("a", None, 1_000)
    assert denials.suffice("a", TOPIC_GONE_AFTER_MS), "it is gone until it is seen"
    denials.forget({"a"})
    assert not denials.suffice("a", 0)


@in_a_world(nodes=2)
async def test_a_topic_that_one_broker_denies_is_asked_for_at_another(world: BrokerWorld) -> None:
    cluster = await acquainted(world)
    leaders, world.leaders = world.leaders, {}
    world.cut_off_from_now_on(0)
    world.leaders = leaders
    assert "a" in (await cluster.metadata(["a"], timeout_ms=SOON_MS)).topics
    assert world.asked(kio_messages.MetadataRequest, 0) == 2
    await cluster.close()


@pytest.mark.silent_broker
def test_a_broker_that_was_silent_once_is_not_asked_first_again(monkeypatch: pytest.MonkeyPatch) -> None:
    @in_a_world(nodes=2)
    async def scenario(world: BrokerWorld) -> None:
        cluster = await acquainted(world)
        world.first["Metadata"] = [None]  # nor does it answer later requests on this connection
        await cluster.metadata(["a"])
        monkeypatch.setattr(brokers_module, "NEXT_BROKER_AFTER_MS", 2 * SOON_MS)
        await cluster.metadata(["a"], timeout_ms=SOON_MS)
        assert [world.asked(kio_messages.MetadataRequest, node) for node in (0, 1)] == [2, 2]
        await cluster.close()

    scenario()


# -------------------------------------------------------------------------------------------------- topic ids

RECREATED = UUID(int=8)


def cut_off_before_the_topic_was_created_again(world: BrokerWorld, node: int) -> None:
    """The topic's id is `TOPIC_ID` at this broker, and `RECREATED` at all others."""
    world.cut_off_from_now_on(node)
    world.topic_id = RECREATED


async def id_of_a(world: BrokerWorld, cluster: Cluster, *order: int) -> UUID | None:
    """The topic's id as a look says that asks brokers in this order, until one answer is of use."""
    for node in order:
        cluster.brokers.witnesses.doubt(world.brokers[node].address)
    return (await cluster.metadata(["a"], timeout_ms=SOON_MS)).topics["a"].topic_id


@in_a_world(nodes=3)
async def test_a_topic_id_that_is_new_to_this_process_is_not_believed_from_a_broker_that_was_cut_off(
    world: BrokerWorld,
) -> None:
    """1. A broker is cut off. 2. The topic is created again. 3. This process starts, at another broker."""
    cut_off_before_the_topic_was_created_again(world, 0)
    cluster = world.cluster(bootstrap=[world.brokers[1].address])
    assert await id_of_a(world, cluster) == RECREATED
    for times in (1, 2, 3):
        assert await id_of_a(world, cluster, 0, 1, 2) == RECREATED
        assert world.asked(kio_messages.MetadataRequest, 0) == times
    await cluster.close()


@in_a_world(nodes=3)
async def test_a_topic_that_two_brokers_name_under_another_id_was_created_again(world: BrokerWorld) -> None:
    cluster = await acquainted(world)
    cut_off_before_the_topic_was_created_again(world, 0)
    assert await id_of_a(world, cluster, 1, 2, 0) == RECREATED
    assert [world.asked(kio_messages.MetadataRequest, node) for node in (0, 1, 2)] == [1, 1, 1]
    assert await id_of_a(world, cluster, 0, 1, 2) == RECREATED
    await cluster.close()


@in_a_world(nodes=3)
async def test_a_broker_that_was_cut_off_does_not_make_two_others_wait_that_were_asked_apart(
    world: BrokerWorld,
) -> None:
    cluster = await acquainted(world)
    cut_off_before_the_topic_was_created_again(world, 0)
    assert await id_of_a(world, cluster, 1, 0, 2) == TOPIC_ID, "one broker against one: it stays as it was"
    assert await id_of_a(world, cluster, 2, 0, 1) == RECREATED
    await cluster.close()


@in_a_world(nodes=2)
async def test_a_broker_that_lists_no_other_does_not_confirm_itself_while_this_process_knows_of_another(
    world: BrokerWorld,
) -> None:
    cut_off_before_the_topic_was_created_again(world, 0)
    world.cut_off[0].brokers = world.brokers[:1]
    cluster = world.cluster(bootstrap=[world.brokers[1].address])
    assert await id_of_a(world, cluster) == RECREATED
    assert await id_of_a(world, cluster, 0, 1) == RECREATED
    assert world.asked(kio_messages.MetadataRequest, 0) == 1
    await cluster.close()


@in_a_world()
async def test_the_only_broker_of_a_cluster_is_believed_at_once(world: BrokerWorld) -> None:
    cluster = await acquainted(world)
    world.topic_id = RECREATED
    assert await id_of_a(world, cluster) == RECREATED
    assert world.asked(kio_messages.MetadataRequest) == 2
    await cluster.close()


@in_a_world(nodes=2)
async def test_at_a_start_one_broker_does_not_contradict_the_id_that_an_earlier_process_knew(
    world: BrokerWorld,
) -> None:
    cut_off_before_the_topic_was_created_again(world, 0)
    group = group_that_knew(world, RECREATED)
    await group.topics.refresh(SOON_MS)
    assert group.topics.known["a"].topic_id == RECREATED
    assert world.asked(kio_messages.MetadataRequest, 0) == 1
    await group.close()


@in_a_world(nodes=2)
async def test_a_start_believes_the_only_broker_that_answers_within_its_own_bound(world: BrokerWorld) -> None:
    """The topic was created again while the query was down, and the other broker on the list is down now."""
    await world.brokers[1].stop()
    group = group_that_knew(world, RECREATED)
    with pytest.MonkeyPatch.context() as sooner:
        sooner.setattr(cluster_module, "TOPIC_ABSENT_AFTER_MS", 300)
        await group.topics.refresh(SOON_MS)
    assert group.topics.known["a"].topic_id == TOPIC_ID
    assert world.asked(kio_messages.MetadataRequest, 0) > 1
    await group.close()
    await world.brokers[1].start()


def group_that_knew(world: BrokerWorld, topic_id: UUID) -> Group:
    """A group as it starts, whose checkpoint knows this id of the topic `a`."""
    return Group(
        GroupSettings(
            bootstrap=tuple(broker.address for broker in world.brokers),
            group="g",
            topics=("a",),
            instance_ids=("seat-0",),
            work=OngoingWork(topic_ids={"a": topic_id}),
        )
    )


def test_another_topic_id_is_believed_from_one_broker_that_is_not_contradicted_for_long() -> None:
    new_ids, long_s = NewIds(), TOPIC_GONE_AFTER_MS / 1000
    assert not new_ids.suffice("a", RECREATED, 0, 0)
    assert not new_ids.suffice("a", RECREATED, 0, long_s - 1)
    new_ids.contradict("a", 1)
    assert not new_ids.suffice("a", RECREATED, 0, long_s), "another broker names the known id"
    assert not new_ids.suffice("a", RECREATED, None, 2 * long_s - 1)
    assert new_ids.suffice("a", RECREATED, 0, 2 * long_s)
    new_ids.forget("a")
    assert not new_ids.suffice("a", RECREATED, 0, 3 * long_s)


def test_brokers_that_name_different_topic_ids_do_not_confirm_each_other() -> None:
    new_ids, long_s = NewIds(), TOPIC_GONE_AFTER_MS / 1000
    assert not new_ids.suffice("a", RECREATED, 0, 0)
    assert not new_ids.suffice("a", UUID(int=9), 1, 1)
    assert not new_ids.suffice("a", UUID(int=9), None, long_s), "it is said for less than that"
    new_ids.contradict("a", 0)
    assert not new_ids.suffice("a", RECREATED, 2, long_s + 1), "the broker that said so knows better by now"
    assert new_ids.suffice("a", RECREATED, 1, long_s + 2)


# ----------------------------------------------------------------------------------------------- coordinators


@in_a_world(nodes=3)
async def test_a_coordinator_that_is_gone_is_looked_up_at_another_broker(world: BrokerWorld) -> None:
    """librdkafka #2944, sarama #1004: the broker that names it is cut off."""
    world.coordinator = 2
    cluster = await acquainted(world)
    world.cut_off_from_now_on(0)
    world.coordinator = 1
    await world.brokers[2].stop()
    with pytest.raises((ConnectionFailed, Disconnected)):
        await cluster.coordinators.open("g")
    connection = await cluster.coordinators.open("g")
    assert connection.address == world.brokers[1].address
    await connection.close()
    await cluster.close()
    await world.brokers[2].start()


@in_a_world(nodes=3)
async def test_a_coordinator_that_says_it_is_none_is_looked_up_at_another_broker(world: BrokerWorld) -> None:
    world.coordinator = 2
    cluster = await acquainted(world)
    world.cut_off_from_now_on(0)
    world.coordinator = 1
    connection = await cluster.coordinators.open("g")
    assert connection.address == world.brokers[2].address, "who is asked first does not know better"
    moved = await cluster.coordinators.open("g", lost=connection.address)  # its answer was NOT_COORDINATOR
    assert moved.address == world.brokers[1].address
    commit = messages.offset_commit("g", WHO, {A0: 5})
    assert await cluster.groups.committed_offsets("g", [A0], timeout_ms=SOON_MS) == {A0: None}
    response = await cluster.coordinators.call("g", commit)
    assert isinstance(response, schema.OffsetCommitResponse)
    assert messages.offset_commit_errors(response) == {A0: 0}
    for each in (connection, moved):
        await each.close()
    await cluster.close()


@in_a_world(nodes=2)
async def test_a_broker_that_finds_no_coordinator_is_not_asked_next(world: BrokerWorld) -> None:
    cluster = await acquainted(world)
    world.first["FindCoordinator"] = [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    assert await cluster.groups.committed_offsets("g", [A0], timeout_ms=SOON_MS) == {A0: None}
    assert [world.asked(FindCoordinatorRequest, node) for node in (0, 1)] == [1, 1]
    await cluster.close()


@in_a_world(nodes=3)
async def test_another_broker_is_asked_where_one_contradicts_the_known_coordinator(
    world: BrokerWorld,
) -> None:
    """Else a session would end a good connection because of one broker that is cut off."""
    world.coordinator = 2
    cluster = await acquainted(world)
    world.cut_off_from_now_on(0)
    world.coordinator = 1
    good = world.brokers[1].address
    assert await cluster.coordinators.find("g", known=good) == good
    assert world.asked(FindCoordinatorRequest, 0) == 1
    assert await cluster.coordinators.find("g", known=world.brokers[2].address) == good, (
        "it has moved, as two brokers say"
    )
    await cluster.close()


@in_a_world(nodes=2)
async def test_the_coordinators_own_setting_is_asked_of_the_coordinator_that_another_broker_names(
    world: BrokerWorld,
) -> None:
    cluster = await acquainted(world)
    world.cut_off_from_now_on(0)
    await world.brokers[0].stop()  # it named itself
    world.coordinator = 1
    assert await cluster.coordinators.config("g", "any", timeout_ms=SOON_MS) == "50000"
    await cluster.close()
    await world.brokers[0].start()


@in_a_world(nodes=2)
async def test_a_setting_of_a_group_that_one_broker_cannot_tell_is_asked_of_another(world: BrokerWorld) -> None:
    cluster = await acquainted(world)
    world.first["DescribeConfigs"] = [ErrorCode.REQUEST_TIMED_OUT]
    assert await cluster.groups.config("g", "any", timeout_ms=SOON_MS) == "50000"
    await until(lambda: world.asked(DescribeConfigsRequest, 1) == 1)
    await cluster.close()


# --------------------------------------------------------------------------------------------- leaders' epochs


@in_a_world(nodes=2)
async def test_a_leader_of_an_older_epoch_is_not_believed(world: BrokerWorld) -> None:
    """KIP-320, and Metadata.updateLastSeenEpochIfNewer: the old leader lists where its own log ended."""
    world.leaders, world.epochs, world.ends[A0] = {A0: 0}, {A0: 3}, 25
    cluster = await acquainted(world)
    world.cut_off_from_now_on(0)
    world.leaders, world.epochs, world.ends[A0] = {A0: 1}, {A0: 4}, 40
    cluster.brokers.witnesses.doubt(world.brokers[0].address)
    assert (await cluster.metadata(["a"])).topics["a"].leader_epochs == {0: 4}
    cluster.brokers.witnesses.doubt(world.brokers[1].address)  # so the old one is asked first, and must not be believed
    found = await cluster.metadata(["a"], timeout_ms=SOON_MS)
    assert found.topics["a"].leader_epochs == {0: 4}
    assert (await cluster.logs.list_offsets({A0: messages.LATEST}, timeout_ms=SOON_MS))[A0].offset == 40
    assert world.asked(kio_messages.ListOffsetsRequest, 0) == 0
    await cluster.close()


@in_a_world(nodes=1)
async def test_where_all_know_an_older_epoch_the_error_says_so(world: BrokerWorld) -> None:
    world.epochs = {A0: 3}
    cluster = await acquainted(world)
    world.epochs = {A0: 2}
    with pytest.raises(BrokerError, match="knows less than another did: a"):
        await cluster.metadata(["a"], timeout_ms=3_000)
    world.topic_id = UUID(int=8)  # another topic has epochs of its own
    assert (await cluster.metadata(["a"])).topics["a"].leader_epochs == {0: 2}
    await cluster.close()


@in_a_world(nodes=1)
async def test_an_answer_without_an_epoch_takes_none_back(world: BrokerWorld) -> None:
    world.epochs = {A0: 3, A1: 1}
    cluster = await acquainted(world)
    world.epochs = {A1: 1}
    await cluster.metadata(["a"])
    world.epochs = {A0: 2, A1: 1}
    with pytest.raises(BrokerError, match="knows less than another did: a"):
        await cluster.metadata(["a"], timeout_ms=3_000)
    await cluster.close()


@in_a_world(nodes=2)
async def test_a_leader_that_was_cut_off_does_not_list_where_its_log_ends(world: BrokerWorld) -> None:
    """Brokers compare the epoch that a question names with their own (KIP-320): UNKNOWN_LEADER_EPOCH."""
    world.leaders, world.epochs, world.ends[A0] = {A0: 0}, {A0: 3}, 25
    cluster = await acquainted(world)
    world.cut_off_from_now_on(0)
    world.epochs = {A0: 4}  # the other broker knows of the next epoch, in which it is to lead again, and it does not
    cluster.brokers.witnesses.doubt(world.brokers[0].address)
    await cluster.metadata(["a"])
    asking = asyncio.create_task(cluster.logs.list_offsets({A0: messages.LATEST}, timeout_ms=SOON_MS))
    await until(lambda: world.asked(kio_messages.ListOffsetsRequest, 0))
    world.leaders, world.ends[A0] = {A0: 1}, 40
    assert (await asking)[A0].offset == 40
    await cluster.close()


async def come_back_to_an_old_leader(world: BrokerWorld) -> Cluster:
    """A new client. Node 0, the first in its list, led in epoch 0 up to 25, is cut off, and has told of itself."""
    world.leaders, world.epochs, world.ends = {A0: 0, A1: 1}, {A0: 0, A1: 0}, {A0: 25, A1: 11}
    world.cut_off_from_now_on(0)
    world.leaders, world.epochs, world.ends = {A0: 1, A1: 1}, {A0: 1, A1: 0}, {A0: 60, A1: 11}
    cluster = world.cluster(bootstrap=[broker.address for broker in world.brokers])
    await cluster.metadata(["a"])
    assert (await cluster.logs.list_offsets({A0: messages.LATEST}))[A0].offset == 25
    return cluster


@in_a_world(nodes=2)
async def test_a_client_that_comes_back_hears_of_a_newer_leader_from_another_broker(world: BrokerWorld) -> None:
    cluster = await come_back_to_an_old_leader(world)
    named = await cluster.logs.ask_another_broker([A0, A1], SOON_MS)
    assert named == {
        A0: (NamedLeader(0, leader=0, epoch=0), NamedLeader(1, leader=1, epoch=1)),
        A1: (NamedLeader(0, leader=1, epoch=0), NamedLeader(1, leader=1, epoch=0)),
    }
    assert (await cluster.logs.list_offsets({A0: messages.LATEST}))[A0].offset == 60
    named = await cluster.logs.ask_another_broker([A0], SOON_MS)
    assert named == {A0: (NamedLeader(1, leader=1, epoch=1),) * 2}, "the old leader knows less, and is no witness"
    assert (await cluster.logs.list_offsets({A0: messages.LATEST}))[A0].offset == 60
    await cluster.close()


@in_a_world(nodes=2)
async def test_after_another_broker_was_asked_the_subscribed_topics_have_its_leaders(world: BrokerWorld) -> None:
    """Executors read where the topics name the leader, and an old one has none of the newer records."""
    cluster = await come_back_to_an_old_leader(world)
    settings = GroupSettings(bootstrap=(world.brokers[0].address,), group="g", topics=("a",), instance_ids=("seat-0",))
    topics = Topics(settings, cluster)
    assert (await topics.subscribed(0))["a"].leaders[0].epoch == 0
    await topics.ask_another_broker([A0], SOON_MS)
    for _ in range(2):
        assert (await topics.subscribed(2 * SOON_MS))["a"].leaders[0].epoch == 1
    assert [world.asked(kio_messages.MetadataRequest, node) for node in (0, 1)] == [2, 2], "it is known again"
    await cluster.close()


@in_a_world(nodes=3)
async def test_each_broker_is_heard_about_a_leader_in_turn(world: BrokerWorld) -> None:
    """Two of three are cut off together, and name the same old leader."""
    world.leaders, world.epochs = {A0: 0}, {A0: 0}
    world.cut_off_from_now_on(0)
    world.cut_off_from_now_on(1)
    world.leaders, world.epochs = {A0: 2}, {A0: 1}
    cluster = world.cluster(bootstrap=[broker.address for broker in world.brokers])
    await cluster.metadata(["a"])
    words = [(await cluster.logs.ask_another_broker([A0], SOON_MS))[A0][-1] for _ in range(2)]
    assert words == [NamedLeader(1, leader=0, epoch=0), NamedLeader(2, leader=2, epoch=1)]
    await cluster.close()


@in_a_world(nodes=2)
async def test_without_another_broker_the_only_one_is_one_witness(world: BrokerWorld) -> None:
    cluster = await come_back_to_an_old_leader(world)
    await world.brokers[1].stop()
    for _ in range(2):
        named = await cluster.logs.ask_another_broker([A0], SOON_MS)
        assert named == {A0: (NamedLeader(0, leader=0, epoch=0),) * 2}
    await cluster.close()
    await world.brokers[1].start()


@in_a_world(nodes=2)
async def test_where_no_broker_answers_in_time_the_leader_is_as_it_was_named(world: BrokerWorld) -> None:
    cluster = await come_back_to_an_old_leader(world)
    world.first["Metadata"] = [None, None]
    named = await cluster.logs.ask_another_broker([A0], 100)
    assert named == {A0: (NamedLeader(0, leader=0, epoch=0),) * 2}
    await cluster.close()


@in_a_world(nodes=2)
async def test_a_broker_of_unknown_id_is_no_witness_of_a_leader(world: BrokerWorld) -> None:
    """It may be one that is known, at another of its addresses."""
    world.hosts = {0: "localhost"}
    cluster = await acquainted(world)
    named = await cluster.logs.ask_another_broker([A0], SOON_MS)
    assert len(named[A0]) == 1
    await cluster.close()


def test_a_topic_id_without_a_name_is_asked_for_at_another_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator has assigned it. The first broker is cut off since before the topic was created anew."""
    monkeypatch.setattr(cluster_module, "TOPIC_NAMES_MISSED_MS", -1)

    @in_a_world(nodes=3)
    async def scenario(world: BrokerWorld) -> None:
        world.cut_off_from_now_on(0)
        world.topic_id = new_id = UUID(int=8)
        cluster = world.cluster(bootstrap=[broker.address for broker in world.brokers])
        assert await cluster.resolve_topic_names({new_id}, ["a"], timeout_ms=SOON_MS) == {}
        assert await cluster.resolve_topic_names({new_id}, ["a"], timeout_ms=SOON_MS) == {new_id: "a"}
        await cluster.close()

    scenario()


# ------------------------------------------------------------------------------------------------ another cluster


async def pass_to_another_cluster(world: BrokerWorld, node: int) -> None:
    """The address of this broker goes to one of another cluster, which has a topic of the same name."""
    await world.brokers[node].stop()
    world.cut_off_from_now_on(node)
    other = world.cut_off[node]
    other.cluster_id, other.topic_id, other.ends = "other", UUID(int=99), {A0: 1_000, A1: 1_000}
    other.coordinator, other.leaders = node, {A0: node, A1: node}
    await world.brokers[node].start()


@in_a_world(nodes=2)
async def test_a_broker_of_another_cluster_is_not_believed(world: BrokerWorld) -> None:
    """LinkedIn kafka #95, #224: an address passes to another cluster, and its rows were read."""
    world.cluster_id, world.leaders = "ours", {A0: 0, A1: 1}
    cluster = await acquainted(world)
    await cluster.logs.list_offsets({A0: messages.LATEST, A1: messages.LATEST})
    await pass_to_another_cluster(world, 0)
    for _ in range(3):
        assert (await cluster.metadata(["a"], timeout_ms=SOON_MS)).topics["a"].topic_id == TOPIC_ID
    with pytest.raises(WireError, match="of another cluster is at"):  # its old leader, as other brokers still say
        await cluster.logs.list_offsets({A0: messages.LATEST}, timeout_ms=3_000)
    world.leaders = {A0: 1, A1: 1}
    assert (await cluster.logs.list_offsets({A0: messages.LATEST}, timeout_ms=SOON_MS))[A0].offset == 10
    await cluster.close()


@in_a_world()
async def test_where_another_cluster_is_all_there_is_the_error_says_so_until_the_address_is_given_back(
    world: BrokerWorld,
) -> None:
    world.cluster_id = "ours"
    cluster = await acquainted(world)
    await pass_to_another_cluster(world, 0)
    with ends_with(ConnectionFailed, r"of another cluster is at .+ \(cluster id other, was ours\)"):
        await cluster.metadata(["a"], timeout_ms=3_000)
    with pytest.raises(ConnectionFailed, match="of another cluster is at"):
        await cluster.coordinators.open("g", timeout_ms=SOON_MS)
    assert world.asked(FindCoordinatorRequest) == 0
    await world.brokers[0].stop()
    world.cut_off.clear()
    await world.brokers[0].start()
    assert (await cluster.metadata(["a"], timeout_ms=SOON_MS)).topics["a"].topic_id == TOPIC_ID
    await cluster.close()


@in_a_world()
async def test_an_answer_of_another_cluster_on_an_open_connection_is_not_believed(world: BrokerWorld) -> None:
    """A proxy or a load balancer may pass a connection on to any server."""
    world.cluster_id = "ours"
    cluster = await acquainted(world)
    world.cluster_id = "other"
    with pytest.raises(WireError, match="of another cluster is at"):
        await cluster.metadata(["a"], timeout_ms=3_000)
    assert world.brokers[0].connections > 1, "what is on that connection is not used any more"
    world.cluster_id = None  # a broker that does not say is believed
    assert "a" in (await cluster.metadata(["a"], timeout_ms=SOON_MS)).topics
    await cluster.close()


@in_a_world(nodes=2)
async def test_a_client_that_is_told_its_cluster_passes_over_the_address_of_another_one(world: BrokerWorld) -> None:
    """The address went to another cluster while the process was away: the first answer is not believed either."""
    world.cluster_id = "ours"
    await pass_to_another_cluster(world, 0)
    world.leaders, world.coordinator = {A0: 1, A1: 1}, 1
    cluster = world.cluster(bootstrap=[broker.address for broker in world.brokers], cluster_id="ours")
    assert (await cluster.metadata(["a"], timeout_ms=SOON_MS)).topics["a"].topic_id == TOPIC_ID
    assert (await cluster.logs.list_offsets({A0: messages.LATEST}, timeout_ms=SOON_MS))[A0].offset == 10
    await (await cluster.coordinators.open("g", timeout_ms=SOON_MS)).close()
    asked = {type(request).__name__ for request in world.brokers[0].requests}
    assert asked == {"MetadataRequest"}, "that is how its cluster is known"
    await cluster.close()


@in_a_world(nodes=2)
async def test_a_client_that_is_told_its_cluster_believes_no_other_one(world: BrokerWorld) -> None:
    """One sentence says both ids, an address and the fix, and not that no broker could be reached."""
    world.cluster_id = "other"
    cluster = world.cluster(bootstrap=[broker.address for broker in world.brokers], cluster_id="ours")
    with ends_with(ConnectionFailed) as problem:
        await cluster.metadata(["a"], timeout_ms=3_000)
    message = str(problem.value).removeprefix("The cluster did not answer within 3000 ms. Before that: ")  # at times
    assert message.startswith(
        f"A broker of another cluster is at {world.brokers[0].address} (cluster id other, was ours)"
    )
    for named in ("Correct `bootstrap.servers`", "a fresh checkpoint and a fresh sink"):
        assert message.count(named) == 1
    with pytest.raises(ConnectionFailed, match="of another cluster is at"):
        await cluster.coordinators.open("g", timeout_ms=SOON_MS)
    assert world.asked(FindCoordinatorRequest) == 0
    world.cluster_id = "ours"  # the addresses are given back
    assert "a" in (await cluster.metadata(["a"], timeout_ms=SOON_MS)).topics
    await cluster.close()


@in_a_world()
async def test_a_client_that_is_told_its_cluster_believes_brokers_that_do_not_say_theirs(world: BrokerWorld) -> None:
    cluster = world.cluster(cluster_id="ours")
    assert "a" in (await cluster.metadata(["a"], timeout_ms=SOON_MS)).topics
    assert cluster.brokers.connections.cluster_id == "ours"
    await cluster.close()
