"""Offsets are asked partition by partition: no partition waits for another one's leader."""

import asyncio
import time
from types import SimpleNamespace

import pytest
from harness import kio_messages
from harness.fake_broker import FakeBroker, until
from harness.fake_cluster import A0, A1, B0, BrokerWorld, in_a_world
from harness.kio_messages import OffsetFetchRequest
from kio.schema.errors import ErrorCode as KioErrorCode

from spark_kgroup.errors import BrokerError, ConnectionFailed, RequestTimedOut, UnknownTopic, WireError
from spark_kgroup.model import ErrorCode, TopicPartition
from spark_kgroup.wire import brokers as brokers_module
from spark_kgroup.wire import messages
from spark_kgroup.wire.address import Address
from spark_kgroup.wire.cluster import Cluster
from spark_kgroup.wire.listing import OffsetListing

pytestmark = pytest.mark.filterwarnings("error::ResourceWarning")

SOON_MS = 5_000
"""Far more than a round or two of retries take."""
A_MOMENT_MS = 1_000


def silence(broker: FakeBroker) -> None:
    """It accepts connections and requests, and answers none any more."""
    broker.answer = lambda _: asyncio.Event().wait()


def ends_of(cluster: Cluster, *partitions: TopicPartition, timeout_ms: int | None = None) -> OffsetListing:
    return cluster.logs.begin_list_offsets(dict.fromkeys(partitions, messages.LATEST), timeout_ms=timeout_ms)


@in_a_world()
async def test_all_that_is_asked_for_is_answered(world: BrokerWorld) -> None:
    cluster = world.cluster()
    listing = ends_of(cluster, A0, A1)
    answers = await listing.answers(SOON_MS)
    assert {tp: found.offset for tp, found in answers.found.items()} == {A0: 10, A1: 11}
    assert answers.unanswered == {}
    await until(lambda: listing.ended)
    await listing.close()
    await cluster.close()


@in_a_world()
async def test_an_empty_question_needs_no_broker(world: BrokerWorld) -> None:
    cluster = world.cluster()
    listing = ends_of(cluster)
    assert (await listing.answers(SOON_MS)).found == {}
    await listing.close()
    assert world.brokers[0].requests == []
    await cluster.close()


@in_a_world()
async def test_a_partition_without_a_leader_holds_up_no_other_one(world: BrokerWorld) -> None:
    world.leaders = {A0: 0, A1: -1}
    cluster = world.cluster()
    listing = ends_of(cluster, A0, A1)
    answers = await listing.answers(A_MOMENT_MS)
    assert answers.found.keys() == {A0}
    assert str(answers.unanswered[A1]) == "ListOffsets failed with LEADER_NOT_AVAILABLE: a-1"
    world.leaders[A1] = 0
    assert (await listing.answers(SOON_MS)).found[A1].offset == 11
    asked = [
        [p.partition_index for t in r.topics for p in t.partitions]
        for r in world.brokers[0].requests
        if isinstance(r, kio_messages.ListOffsetsRequest)
    ]
    assert asked == [[0], [1]], "who has answered is not asked again"
    await listing.close()
    await cluster.close()


@pytest.mark.silent_broker
@in_a_world(nodes=2)
async def test_a_silent_leader_holds_up_its_own_partitions_alone(world: BrokerWorld) -> None:
    world.leaders = {A0: 0, A1: 1, B0: -1}
    cluster = world.cluster()
    await cluster.metadata(["a", "b"])
    silence(world.brokers[1])
    listing = ends_of(cluster, A0, A1, B0)
    answers = await listing.answers(A_MOMENT_MS)
    assert answers.found.keys() == {A0}
    assert str(answers.unanswered[A1]) == f"{world.brokers[1].address} has not answered ListOffsets."
    world.leaders[B0] = 0
    answers = await listing.answers(SOON_MS // 2)
    assert answers.found.keys() == {A0, B0}, "nor does it hold up what is asked anew"
    await listing.close()
    await cluster.close()


@pytest.mark.silent_broker
@in_a_world(nodes=2)
async def test_a_partition_that_a_silent_broker_leads_no_more_is_found_at_its_next_leader(world: BrokerWorld) -> None:
    world.leaders = {A0: 0, A1: 1}
    cluster = world.cluster(request_timeout_ms=3 * A_MOMENT_MS)
    await cluster.metadata(["a"])
    silence(world.brokers[1])
    listing = ends_of(cluster, A0, A1)
    assert (await listing.answers(A_MOMENT_MS)).found.keys() == {A0}
    world.leaders[A1] = 0
    assert (await listing.answers(SOON_MS)).found.keys() == {A0, A1}
    await listing.close()
    await cluster.close()


@in_a_world(nodes=2)
async def test_a_new_leader_is_asked_while_the_old_one_is_still_silent(world: BrokerWorld) -> None:
    """The other brokers find out that a broker hangs, while this look-up still waits for its answer."""
    world.leaders = {A0: 0, A1: 1}
    cluster = world.cluster()
    await cluster.metadata(["a"])
    silence(world.brokers[1])
    listing = ends_of(cluster, A0, A1)
    assert (await listing.answers(A_MOMENT_MS)).found.keys() == {A0}
    world.leaders[A1] = 0
    await cluster.metadata(["a"])  # as each boundary does
    assert (await listing.answers(SOON_MS)).found.keys() == {A0, A1}
    await listing.close()
    await cluster.close()


@in_a_world(nodes=2)
async def test_a_leader_that_denies_it_for_ever_is_asked_at_a_pace(world: BrokerWorld) -> None:
    world.leaders = {A0: 0, A1: 1}
    cluster = world.cluster()
    denials = iter(range(10**6))
    world.brokers[1].answer = lambda request: (
        next(denials) is not None and world.on_ListOffsets(1, request, KioErrorCode.not_leader_or_follower)
        if isinstance(request, kio_messages.ListOffsetsRequest)
        else world.answer(1, request)
    )
    listing = ends_of(cluster, A0, A1)
    answers = await listing.answers(2_000)
    assert answers.found.keys() == {A0}
    error = answers.unanswered[A1]
    under_way = isinstance(error, RequestTimedOut)  # the last question, when the time was up
    assert under_way or (isinstance(error, BrokerError) and error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert 2 <= next(denials) <= 8
    await listing.close()
    await cluster.close()


@in_a_world()
async def test_a_listing_ends_when_its_time_is_up_and_names_the_missing_partitions(world: BrokerWorld) -> None:
    world.leaders = {A0: 0, A1: -1}
    cluster = world.cluster()
    listing = ends_of(cluster, A0, A1, timeout_ms=A_MOMENT_MS)
    answers = await listing.answers(SOON_MS)
    assert listing.ended
    assert (set(answers.found), set(answers.unanswered)) == ({A0}, {A1})
    await listing.close()
    await cluster.close()


@in_a_world()
async def test_an_error_that_no_further_question_mends_is_raised_at_once(world: BrokerWorld) -> None:
    cluster = world.cluster()
    world.first["ListOffsets"] = [ErrorCode.INVALID_TOPIC_EXCEPTION]
    listing = ends_of(cluster, A0)
    for _ in range(2):
        with pytest.raises(BrokerError, match="INVALID_TOPIC_EXCEPTION"):
            await listing.answers(SOON_MS)
    await listing.close()
    await cluster.close()


@in_a_world(nodes=2)
async def test_a_topic_that_two_brokers_deny_is_gone(world: BrokerWorld) -> None:
    cluster = world.cluster()
    await cluster.metadata(["a"])
    world.leaders = {}
    listing = ends_of(cluster, A0)
    with pytest.raises(UnknownTopic, match="a"):
        await listing.answers(SOON_MS)
    await listing.close()
    await cluster.close()


@in_a_world()
async def test_a_partition_that_its_leader_alone_denies_is_asked_for_again(world: BrokerWorld) -> None:
    cluster = world.cluster()
    end = world.ends.pop(A1)
    listing = ends_of(cluster, A0, A1)
    answers = await listing.answers(A_MOMENT_MS)
    assert answers.found.keys() == {A0}
    world.ends[A1] = end
    assert (await listing.answers(SOON_MS)).found.keys() == {A0, A1}
    await listing.close()
    await cluster.close()


@in_a_world()
async def test_while_no_broker_answers_all_are_without_an_answer(world: BrokerWorld) -> None:
    silence(world.brokers[0])
    cluster = world.cluster()
    listing = ends_of(cluster, A0, A1)
    answers = await listing.answers(A_MOMENT_MS)
    assert answers.found == {}
    assert all(isinstance(error, RequestTimedOut) for error in answers.unanswered.values())
    await listing.close()
    await cluster.close()


# ------------------------------------------------------------------------------------------------ committed offsets


@in_a_world()
async def test_offsets_in_a_transaction_hold_up_no_other_offsets(world: BrokerWorld) -> None:
    world.committed = {A0: 5, A1: 6}
    world.unstable = {A1}
    cluster = world.cluster()
    answers = await cluster.groups.committed_answers("g", [A0, A1], A_MOMENT_MS)
    assert {tp: found and found.offset for tp, found in answers.found.items()} == {A0: 5}
    assert str(answers.unanswered[A1]) == "OffsetFetch failed with UNSTABLE_OFFSET_COMMIT: a-1"
    asked = world.asked(OffsetFetchRequest)
    assert asked > 1, "it may end in a moment"
    await cluster.groups.committed_answers("g", [A0, A1], 0)
    assert world.asked(OffsetFetchRequest) == asked + 1
    with pytest.raises(WireError, match="UNSTABLE_OFFSET_COMMIT: a-1"):
        await cluster.groups.committed_offsets("g", [A0, A1], timeout_ms=A_MOMENT_MS)
    world.unstable = set()
    assert (await cluster.groups.committed_offsets("g", [A0, A1])).keys() == {A0, A1}
    await cluster.close()


# --------------------------------------------------------------------------------- addresses that brokers advertise


@in_a_world()
async def test_a_broker_that_advertises_its_bootstrap_address_is_reached_without_a_request(world: BrokerWorld) -> None:
    cluster = world.cluster()
    await cluster.metadata(["a"])
    asked = len(world.brokers[0].requests)
    await cluster.brokers.reach_advertised(timeout_ms=SOON_MS)
    assert len(world.brokers[0].requests) == asked
    await cluster.close()


@in_a_world(nodes=2)
async def test_one_advertised_address_that_answers_is_enough(world: BrokerWorld) -> None:
    world.hosts = {0: "127.0.0.2"}
    cluster = world.cluster()
    await cluster.metadata(["a"])
    await cluster.brokers.reach_advertised(timeout_ms=SOON_MS)
    await cluster.close()


def test_an_advertised_address_that_cannot_be_reached_is_named_beside_the_one_that_answers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The test turns the clock of the retries when the first attempt has failed, however long a look-up took."""
    ahead_s = 0.0
    monkeypatch.setattr(brokers_module, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + ahead_s))

    @in_a_world()
    async def scenario(world: BrokerWorld) -> None:
        nonlocal ahead_s
        at = world.brokers[0].address
        world.hosts = {0: "no-such-host.invalid"}
        cluster = world.cluster()
        await cluster.metadata(["a"])
        reaching = asyncio.create_task(cluster.brokers.reach_advertised(timeout_ms=60_000))
        await until(lambda: "Trying again" in caplog.text)
        ahead_s = 60
        with pytest.raises(ConnectionFailed) as problem:
            await reaching
        message = str(problem.value)
        assert f"{at} answers, but" in message
        assert str(Address("no-such-host.invalid", at.port)) in message
        assert "advertised.listeners" in message
        await cluster.close()

    scenario()
