"""A topic of which brokers do not say what it is, and a coordinator that hangs, hold up nothing but themselves."""

import asyncio
import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from harness import kio_messages
from harness.fake_broker import until
from harness.fake_cluster import A0, A1, B0, BrokerWorld, in_a_world
from kio.schema.errors import ErrorCode as KioErrorCode

from spark_kgroup.errors import BrokerError
from spark_kgroup.limits import API_TIMEOUT_MS, AUTHORIZATION_GRACE_MS
from spark_kgroup.model import ErrorCode, TopicDescription
from spark_kgroup.runtime import topics as topics_module
from spark_kgroup.runtime.settings import ClientSettings, GroupSettings
from spark_kgroup.runtime.topics import Topics
from spark_kgroup.wire import messages
from spark_kgroup.wire.address import Address, parse_bootstrap
from spark_kgroup.wire.cluster import KnownTopics
from spark_kgroup.wire.responses import ClusterMetadata
from spark_kgroup.wire.witnesses import UnclearTopics, Witnesses

pytestmark = pytest.mark.filterwarnings("error::ResourceWarning")

PATIENCE_MS = 300
SOON_MS = 5_000
CODES = [
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.INVALID_TOPIC_EXCEPTION,
]
EACH_CODE = pytest.mark.parametrize("code", CODES, ids=[code.name for code in CODES])


def trouble(world: BrokerWorld, code: ErrorCode) -> None:
    """From now on brokers answer with this error of b, and of b alone."""
    of_topic: Any = BrokerWorld.topic
    answers: Any = world
    answers.topic = lambda name, error: of_topic(world, name, KioErrorCode(code) if name == "b" else error)


def no_more_trouble(world: BrokerWorld) -> None:
    del world.topic


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


@EACH_CODE
def test_a_topic_in_trouble_is_as_it_was_and_other_topics_are_as_they_are(
    code: ErrorCode, caplog: pytest.LogCaptureFixture
) -> None:
    @in_a_world()
    async def scenario(world: BrokerWorld) -> None:
        world.leaders = {A0: 0, B0: 0}
        cluster = world.cluster()
        before: TopicDescription = (await cluster.metadata(["a", "b"])).topics["b"]
        trouble(world, code)
        world.leaders[A1] = 0
        found = await cluster.metadata(["a", "b"], timeout_ms=SOON_MS, patience_ms=PATIENCE_MS)
        assert found.topics["a"].partition_count == 2
        assert (found.topics["b"], found.errors) == (before, {"b": code})
        asked = world.asked(kio_messages.MetadataRequest)
        assert asked > 2, "b was asked for again for a while"
        await cluster.metadata(["a", "b"], patience_ms=PATIENCE_MS)
        assert world.asked(kio_messages.MetadataRequest) == asked + 1, "its time is over"
        (warning,) = warnings_of(caplog)
        assert f"Brokers do not describe topic 'b' now (Metadata failed with {code.name}" in warning
        no_more_trouble(world)
        world.leaders = {A0: 0, A1: 0, B0: 0}
        assert (await cluster.metadata(["a", "b"], patience_ms=PATIENCE_MS)).errors == {}
        await cluster.close()

    scenario()


@EACH_CODE
def test_a_topic_that_was_in_trouble_from_the_start_is_left_out(code: ErrorCode) -> None:
    @in_a_world()
    async def scenario(world: BrokerWorld) -> None:
        world.leaders = {A0: 0, B0: 0}
        trouble(world, code)
        cluster = world.cluster()
        found = await cluster.metadata(["a", "b"], timeout_ms=SOON_MS, patience_ms=PATIENCE_MS)
        assert (sorted(found.topics), found.errors) == (["a"], {"b": code})
        await cluster.close()

    scenario()


@in_a_world()
async def test_of_all_topics_one_in_trouble_is_left_out(world: BrokerWorld) -> None:
    world.leaders = {A0: 0, B0: 0}
    trouble(world, ErrorCode.LEADER_NOT_AVAILABLE)
    cluster = world.cluster()
    found = await cluster.metadata(None, timeout_ms=SOON_MS, patience_ms=PATIENCE_MS)
    assert sorted(found.topics) == ["a"]
    await cluster.close()


@in_a_world()
async def test_a_topic_of_which_the_only_broker_knows_less_is_as_another_one_said(world: BrokerWorld) -> None:
    world.leaders, world.epochs = {A0: 0, B0: 0}, {B0: 3}
    cluster = world.cluster()
    await cluster.metadata(["a", "b"])
    world.leaders[A1], world.epochs[B0] = 0, 2
    found = await cluster.metadata(["a", "b"], timeout_ms=SOON_MS, patience_ms=PATIENCE_MS)
    assert found.topics["a"].partition_count == 2
    assert found.topics["b"].leader_epochs == {0: 3}
    await cluster.close()


@in_a_world(nodes=2)
async def test_a_topic_in_trouble_at_one_broker_is_asked_for_at_another(world: BrokerWorld) -> None:
    world.leaders = {A0: 0, B0: 0}
    cluster = world.cluster()
    await cluster.metadata(["a", "b"])
    world.first["Metadata"] = [ErrorCode.UNKNOWN_SERVER_ERROR]
    found = await cluster.metadata(["a", "b"], timeout_ms=SOON_MS, patience_ms=SOON_MS)
    assert (sorted(found.topics), found.errors) == (["a", "b"], {})
    assert world.asked(kio_messages.MetadataRequest, node=1) == 1
    await cluster.close()


@in_a_world()
async def test_a_topic_that_was_deleted_is_not_there_again_because_of_an_inconclusive_error(
    world: BrokerWorld,
) -> None:
    world.leaders = {A0: 0, B0: 0}
    cluster = world.cluster()
    await cluster.metadata(["a", "b"])
    cluster._known._denials.believe(["b"])
    trouble(world, ErrorCode.LEADER_NOT_AVAILABLE)
    found = await cluster.metadata(["a", "b"], timeout_ms=SOON_MS, patience_ms=0)
    assert sorted(found.topics) == ["a"]
    await cluster.close()


@EACH_CODE
def test_the_ends_of_other_topics_are_listed_beside_one_in_trouble(code: ErrorCode) -> None:
    @in_a_world()
    async def scenario(world: BrokerWorld) -> None:
        world.leaders = {A0: 0, B0: 0}
        cluster = world.cluster()
        await cluster.metadata(["a", "b"])
        for tp in (A0, B0):
            cluster._known.forget_leader(tp, 0)
        trouble(world, code)
        listing = cluster.logs.begin_list_offsets({A0: messages.LATEST, B0: messages.LATEST})
        answers = await listing.answers(1_000)
        assert {tp: listed.offset for tp, listed in answers.found.items()} == {A0: 10}
        assert str(answers.unanswered[B0]).startswith(f"Metadata failed with {code.name}: b")
        no_more_trouble(world)
        assert (await listing.answers(SOON_MS)).found.keys() == {A0, B0}
        await listing.close()
        await cluster.close()

    scenario()


def test_a_subscribed_topic_may_be_in_trouble_for_as_long_as_one_call_may_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics_module, "TOPIC_PATIENCE_MS", 0)

    @in_a_world()
    async def scenario(world: BrokerWorld) -> None:
        world.leaders = {A0: 0, B0: 0}
        settings = GroupSettings(
            bootstrap=parse_bootstrap(str(world.brokers[0].address)),
            group="g",
            topics=("a", "b"),
            instance_ids=("seat-0",),
            client=ClientSettings(api_timeout_ms=API_TIMEOUT_MS),
        )
        cluster = world.cluster()
        topics = Topics(settings, cluster)
        await topics.refresh(SOON_MS)
        trouble(world, ErrorCode.UNKNOWN_SERVER_ERROR)
        world.leaders[A1] = 0
        assert (await topics.subscribed(-1))["a"].partition_count == 2
        assert topics.known.keys() == {"a", "b"}
        later_s = time.monotonic() + API_TIMEOUT_MS / 1000
        monkeypatch.setattr(topics_module, "time", SimpleNamespace(monotonic=lambda: later_s))
        with pytest.raises(BrokerError, match="Metadata failed with UNKNOWN_SERVER_ERROR: b"):
            await topics.subscribed(-1)
        await cluster.close()

    scenario()


def test_a_topic_that_was_not_asked_for_meanwhile_is_unclear_from_now_on() -> None:
    unclear = UnclearTopics()
    for now_s in (0, 1, 1 + API_TIMEOUT_MS / 1000):
        unclear.add("a", now_s)
        assert unclear.since_s("a") == 0
    assert unclear.tell("a")
    assert not unclear.tell("a")
    long_after_s = 2 + 2 * API_TIMEOUT_MS / 1000
    unclear.add("a", long_after_s)
    assert unclear.since_s("a") == long_after_s
    assert unclear.tell("a")


# --------------------------------------------------------------------------------------------- a coordinator hangs


@in_a_world(nodes=2)
async def test_a_coordinator_that_hangs_holds_up_no_question_to_another_broker(world: BrokerWorld) -> None:
    """It accepts connections, and answers nothing. It leads no partition."""
    world.coordinator, world.leaders = 1, {A0: 0, A1: 0}
    cluster = world.cluster()
    await cluster.metadata(["a"])
    assert await cluster.groups.committed_offsets("g", [A0]) == {A0: None}  # it is known, and connected
    world.brokers[1].answer = lambda _: asyncio.Event().wait()
    asked_of_it: list[asyncio.Task[object]] = [
        asyncio.create_task(cluster.groups.committed_offsets("g", [A0])),
        asyncio.create_task(cluster.groups.describe("g")),
    ]
    before = len(world.brokers[1].requests)
    await until(lambda: len(world.brokers[1].requests) > before)
    assert (await cluster.metadata(["a"], timeout_ms=SOON_MS)).topics.keys() == {"a"}
    found = await cluster.logs.list_offsets({A0: messages.LATEST, A1: messages.EARLIEST}, timeout_ms=SOON_MS)
    assert found.keys() == {A0, A1}
    assert await cluster.coordinators.find("g", timeout_ms=SOON_MS) == world.brokers[1].address
    assert not any(task.done() for task in asked_of_it), "they wait for it, and for nothing else"
    for task in asked_of_it:
        task.cancel()
    await asyncio.gather(*asked_of_it, return_exceptions=True)
    await cluster.close()


class Clock:
    """The clock of a `KnownTopics`."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def answer(errors: Mapping[str, int], *names: str, internal: frozenset[str] = frozenset()) -> ClusterMetadata:
    topics = {name: TopicDescription(name=name, topic_id=UUID(int=1 + ord(name)), partition_count=1) for name in names}
    return ClusterMetadata(brokers={}, topics=topics, errors=errors, leaders={}, internal=internal)


ONE_BROKER = Address("b", 9092)


def seen(known: KnownTopics, found: ClusterMetadata, *, named: bool = True) -> ClusterMetadata:
    return known.with_last_seen(known.hear(found, ONE_BROKER, 1, named=named))


def test_a_topic_whose_right_is_missing_is_there_for_as_long_as_a_right_may_be(clock: Clock) -> None:
    known = KnownTopics(Witnesses(), now_s=clock)
    seen(known, answer({}, "a", "b"))
    refused = answer({"b": ErrorCode.TOPIC_AUTHORIZATION_FAILED}, "a")
    began_s = clock.now_s
    while clock.now_s - began_s < AUTHORIZATION_GRACE_MS / 1000:
        assert sorted(seen(known, refused).topics) == ["a", "b"]
        clock.now_s += 5
    assert sorted(seen(known, refused).topics) == ["a"]


def test_a_topic_that_is_unclear_in_looks_at_all_topics_is_not_denied(clock: Clock) -> None:
    known = KnownTopics(Witnesses(), now_s=clock)
    seen(known, answer({}, "a", "b"))
    unclear = answer({"b": ErrorCode.UNKNOWN_SERVER_ERROR}, "a")
    for _ in range(20):
        clock.now_s += 5
        seen(known, unclear, named=False)
    assert sorted(seen(known, unclear).topics) == ["a", "b"]


def test_a_topic_of_the_brokers_own_stays_one_while_it_is_unclear(clock: Clock) -> None:
    known = KnownTopics(Witnesses(), now_s=clock)
    seen(known, answer({}, "a", "b", internal=frozenset("b")), named=False)
    found = seen(known, answer({"b": ErrorCode.LEADER_NOT_AVAILABLE}, "a"), named=False)
    assert (sorted(found.topics), found.internal) == (["a", "b"], frozenset("b"))
