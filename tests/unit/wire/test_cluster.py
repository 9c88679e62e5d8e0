"""The cluster client against brokers that speak real bytes: metadata, retries, connections, bounds."""

import asyncio
import socket
import threading
import time
from contextlib import ExitStack
from uuid import UUID

import pytest
from harness import kio_messages
from harness.fake_broker import HUNG_UP, RANGES, FakeBroker, until
from harness.fake_cluster import A0, A1, B0, TOPIC_ID, BrokerWorld, ends_with, in_a_world, logged, talk_garbage

from spark_kgroup.errors import (
    BrokerError,
    ConnectionFailed,
    Disconnected,
    ProtocolViolation,
    RequestTimedOut,
    UnknownTopic,
    UnsupportedApi,
)
from spark_kgroup.limits import CONNECT_TIMEOUT_MS, NEXT_BROKER_AFTER_MS, REQUEST_TIMEOUT_MS, STARTUP_TIMEOUT_MS
from spark_kgroup.model import ErrorCode, TopicPartition
from spark_kgroup.wire import cluster as cluster_module
from spark_kgroup.wire import messages, schema
from spark_kgroup.wire.address import Address
from spark_kgroup.wire.cluster import Cluster
from spark_kgroup.wire.responses import ClusterMetadata, parse_metadata

pytestmark = pytest.mark.filterwarnings("error::ResourceWarning")


# ------------------------------------------------------------------------------------------------------- metadata


@in_a_world(nodes=2)
async def test_metadata_tells_brokers_topics_leaders_and_errors(world: BrokerWorld) -> None:
    world.leaders = {A0: 0, A1: 1, B0: -1}
    cluster = world.cluster()
    found = await cluster.metadata(["a", "b", "c"])
    assert found.brokers == {0: world.brokers[0].address, 1: world.brokers[1].address}
    assert {name: (t.topic_id, t.partition_count) for name, t in found.topics.items()} == {
        "a": (TOPIC_ID, 2),
        "b": (TOPIC_ID, 1),
    }
    assert found.errors == {"c": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert found.leaders == {A0: 0, A1: 1}
    where = [world.brokers[node].address for node in (0, 1)]
    assert found.topics["a"].leaders == {n: (n, at.host, at.port, -1) for n, at in enumerate(where)}
    assert found.topics["b"].leaders == {}
    assert sorted((await cluster.metadata(None)).topics) == ["a", "b"]
    assert (await cluster.metadata([])).topics == {}
    await cluster.close()


@in_a_world()
async def test_metadata_tells_leaders_epochs_and_a_topic_stays_the_same_under_a_new_leader(world: BrokerWorld) -> None:
    world.epochs = {A0: 3}
    cluster = world.cluster()
    before = (await cluster.metadata(["a"])).topics
    assert before["a"].leader_epochs == {0: 3}, "unknown of the other partition"
    assert [leader.epoch for leader in before["a"].leaders.values()] == [3, -1]
    world.epochs = {A0: 4, A1: 0}
    after = (await cluster.metadata(["a"])).topics
    assert after["a"].leader_epochs == {0: 4, 1: 0}
    assert after == before
    await cluster.close()


def test_the_event_loop_goes_on_while_large_metadata_are_looked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, may_end, looked_through = threading.Event(), threading.Event(), parse_metadata

    def slowly(response: schema.MetadataResponse) -> ClusterMetadata:
        begun.set()
        assert may_end.wait(timeout=20)
        return looked_through(response)

    monkeypatch.setattr(cluster_module, "parse_metadata", slowly)
    monkeypatch.setattr(cluster_module, "PARTITIONS_AT_ONCE_MAX", 1)

    @in_a_world()
    async def scenario(world: BrokerWorld) -> None:
        cluster = world.cluster()
        asking = asyncio.create_task(cluster.metadata(["a"]))
        await until(begun.is_set)
        may_end.set()
        assert sorted((await asking).topics) == ["a"]
        await cluster.close()

    scenario()


@in_a_world()
async def test_metadata_waits_for_a_topic_that_is_being_created(world: BrokerWorld) -> None:
    world.first["Metadata"] = [ErrorCode.LEADER_NOT_AVAILABLE]
    cluster = world.cluster()
    assert sorted((await cluster.metadata(["a"])).topics) == ["a"]
    assert world.asked(kio_messages.MetadataRequest) == 2
    await cluster.close()


@in_a_world()
async def test_metadata_that_lost_partitions_is_not_believed(world: BrokerWorld) -> None:
    """A broker that has not heard of new partitions yet must not make a leader rebalance back and forth."""
    cluster = world.cluster()
    assert (await cluster.metadata(["a"])).topics["a"].partition_count == 2
    del world.leaders[A1]
    with pytest.raises(BrokerError, match="knows less than another did: a"):
        await cluster.metadata(["a"], timeout_ms=3_000)
    asking = asyncio.create_task(cluster.metadata(["a"]))
    before = world.asked(kio_messages.MetadataRequest)
    await until(lambda: world.asked(kio_messages.MetadataRequest) > before)
    world.leaders[A1] = 0
    assert (await asking).topics["a"].partition_count == 2
    await cluster.close()


@in_a_world()
async def test_a_topic_id_that_was_replaced_is_not_believed(world: BrokerWorld) -> None:
    """A broker that has not heard of a recreated topic yet must not make it look deleted and created once more."""
    cluster = world.cluster()
    assert (await cluster.metadata(["a"])).topics["a"].topic_id == TOPIC_ID
    world.topic_id = UUID(int=8)
    assert (await cluster.metadata(["a"])).topics["a"].topic_id == UUID(int=8)
    world.topic_id = TOPIC_ID
    with pytest.raises(BrokerError, match="knows less than another did: a"):
        await cluster.metadata(["a"], timeout_ms=3_000)
    await cluster.close()


def test_of_replaced_topic_ids_the_last_ones_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "REPLACED_TOPICS_MAX", 3)

    @in_a_world()
    async def scenario(world: BrokerWorld) -> None:
        cluster = world.cluster()
        for number in range(10):
            world.topic_id = UUID(int=100 + number)
            await cluster.metadata(["a"])
        assert list(cluster._known._replaced) == [UUID(int=106), UUID(int=107), UUID(int=108)]
        await cluster.close()

    scenario()


async def _names(cluster: Cluster, *topic_ids: UUID) -> dict[UUID, str]:
    return dict(await cluster.resolve_topic_names(frozenset(topic_ids), ["a"], timeout_ms=5_000))


@in_a_world()
async def test_a_thousand_seats_that_ask_for_a_topics_name_make_one_request(world: BrokerWorld) -> None:
    cluster = world.cluster()
    for _ in range(2):  # the second time it is known
        found = await asyncio.gather(*(_names(cluster, TOPIC_ID) for _ in range(1_000)))
        assert found == [{TOPIC_ID: "a"}] * 1_000
    assert world.asked(kio_messages.MetadataRequest) == 1
    await cluster.close()


@pytest.mark.parametrize(("known", "limit"), [(True, "TOPIC_NAMES_KNOWN_MS"), (False, "TOPIC_NAMES_MISSED_MS")])
def test_names_of_topics_are_asked_for_anew_when_the_answer_is_too_old(
    known: bool, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_module, limit, -1)

    @in_a_world()
    async def scenario(world: BrokerWorld) -> None:
        cluster = world.cluster()
        wanted, expected = (TOPIC_ID, {TOPIC_ID: "a"}) if known else (UUID(int=8), {})
        for asked in (1, 2):
            assert await _names(cluster, wanted) == expected
            assert world.asked(kio_messages.MetadataRequest) == asked
        await cluster.close()

    scenario()


@in_a_world()
async def test_a_topic_that_was_created_anew_has_no_name_under_its_old_id(world: BrokerWorld) -> None:
    cluster = world.cluster()
    assert await _names(cluster, TOPIC_ID) == {TOPIC_ID: "a"}
    world.topic_id = UUID(int=8)
    await cluster.metadata(["a"])
    assert await _names(cluster, TOPIC_ID) == {}
    await cluster.close()


@in_a_world()
async def test_a_known_topic_that_a_broker_denies_for_a_moment_is_asked_for_again(world: BrokerWorld) -> None:
    cluster = world.cluster()
    await cluster.metadata(["a"])
    world.first["Metadata"] = [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.TOPIC_AUTHORIZATION_FAILED]
    assert "a" in (await cluster.metadata(["a"])).topics
    await cluster.close()


def test_a_topic_that_is_denied_for_long_is_unknown_from_then_on_until_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster_module, "TOPIC_GONE_AFTER_MS", 1_200)

    @in_a_world()
    async def scenario(world: BrokerWorld) -> None:
        cluster = world.cluster()
        await cluster.metadata(["a"])
        leaders, world.leaders = world.leaders, {}
        assert "a" in (await cluster.metadata(["a"])).errors
        asked = world.asked(kio_messages.MetadataRequest)
        assert asked > 2, "it was asked for again"
        assert "a" in (await cluster.metadata(["a"])).errors
        assert world.asked(kio_messages.MetadataRequest) == asked + 1, "no longer"
        world.leaders = leaders
        assert "a" in (await cluster.metadata(["a"])).topics
        world.first["Metadata"] = [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert "a" in (await cluster.metadata(["a"])).topics
        await cluster.close()

    scenario()


def test_a_partition_that_is_denied_for_long_is_unknown_before_the_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "TOPIC_ABSENT_AFTER_MS", 100)

    @in_a_world()
    async def scenario(world: BrokerWorld) -> None:
        cluster = world.cluster()
        with pytest.raises(UnknownTopic, match="nowhere"):
            await cluster.logs.list_offsets({TopicPartition("nowhere", 0): messages.LATEST}, timeout_ms=60_000)
        await cluster.close()

    scenario()


def test_a_topic_that_was_denied_for_long_while_ends_were_listed_is_not_waited_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster_module, "TOPIC_GONE_AFTER_MS", 1_200)

    @in_a_world()
    async def scenario(world: BrokerWorld) -> None:
        cluster = world.cluster()
        await cluster.metadata(["a"])
        world.leaders = {}
        with pytest.raises(UnknownTopic, match="a"):
            await cluster.logs.list_offsets({A0: messages.LATEST})
        asked = world.asked(kio_messages.MetadataRequest)
        assert "a" in (await cluster.metadata(["a"])).errors
        assert world.asked(kio_messages.MetadataRequest) == asked + 1
        await cluster.close()

    scenario()


@in_a_world(nodes=2)
async def test_bootstrap_addresses_are_tried_in_turn(world: BrokerWorld) -> None:
    gone = world.brokers[0].address
    await world.brokers[0].stop()
    cluster = world.cluster(bootstrap=[gone, world.brokers[1].address])
    assert "a" in (await cluster.metadata(["a"])).topics
    assert world.brokers[1].connections == 1
    await cluster.metadata(["a"])
    assert world.brokers[1].connections == 1, "who answered once is asked first, on the same connection"
    await cluster.close()
    await world.brokers[0].start()


@pytest.mark.silent_broker
@in_a_world()
async def test_silent_bootstrap_hosts_do_not_use_up_the_time_for_the_start(world: BrokerWorld) -> None:
    with ExitStack() as silent:
        hosts = [silent.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]  # never accepts
        dead = [Address("127.0.0.1", host.getsockname()[1]) for host in hosts]
        cluster = world.cluster(bootstrap=[*dead, world.brokers[0].address])
        began = time.monotonic()
        assert "a" in (await cluster.metadata(["a"], timeout_ms=STARTUP_TIMEOUT_MS)).topics
        assert 3 * NEXT_BROKER_AFTER_MS / 1000 <= time.monotonic() - began < CONNECT_TIMEOUT_MS / 1000
        await cluster.close()


@pytest.mark.parametrize("host", ["a..b", "x" * 64 + ".example", "nul\0byte", "", "\x1b[2J"], ids=ascii)
def test_a_broker_whose_host_cannot_be_one_is_out_of_reach_and_other_brokers_go_on(host: str) -> None:
    @in_a_world(nodes=2)
    async def scenario(world: BrokerWorld) -> None:
        world.hosts[1] = host
        world.leaders = {A0: 0, A1: 1}
        cluster = world.cluster()
        assert "a" in (await cluster.metadata(["a"])).topics
        assert (await cluster.logs.list_offsets({A0: messages.LATEST}))[A0].offset == 10
        out_of_reach = (ConnectionFailed, RequestTimedOut)
        with pytest.raises(out_of_reach) as raised:
            await cluster.logs.list_offsets({A1: messages.LATEST}, timeout_ms=300)
        assert str(raised.value).isprintable()
        world.coordinator = 1
        with pytest.raises(out_of_reach):
            await cluster.coordinators.open("g")
        with pytest.raises(out_of_reach):
            await cluster.groups.committed_offsets("g", [A0], timeout_ms=300)
        world.hosts.clear()
        assert await cluster.groups.committed_offsets("g", [A0]) == {A0: None}
        assert (await cluster.logs.list_offsets({A1: messages.LATEST}))[A1].offset == 11
        await cluster.close()

    scenario()


@pytest.mark.silent_broker
@in_a_world(nodes=2)
async def test_a_known_broker_that_falls_silent_holds_up_no_look_up(world: BrokerWorld) -> None:
    cluster = world.cluster()
    await cluster.metadata(["a"])
    world.first["Metadata"] = [None]  # the request on the open connection is never answered
    began = time.monotonic()
    await cluster.metadata(["a"])
    assert world.asked(kio_messages.MetadataRequest, node=1) == 1
    assert time.monotonic() - began < REQUEST_TIMEOUT_MS / 1000 / 2
    await cluster.close()


@in_a_world()
async def test_garbage_where_a_broker_stood_is_waited_out(world: BrokerWorld) -> None:
    cluster = world.cluster()
    await cluster.metadata(["a"])
    port = world.brokers[0].address.port
    await world.brokers[0].stop()
    garbage = await asyncio.start_server(talk_garbage, "127.0.0.1", port)
    with logged() as warnings:
        asking = asyncio.create_task(cluster.metadata(["a"]))
        await until(lambda: warnings)
        assert "TLS or HTTP port" in warnings[0]
        garbage.close()
        await garbage.wait_closed()
        await world.brokers[0].start()
        assert "a" in (await asking).topics
        assert len(warnings) == 1, "one warning, however often it is tried again"
    await cluster.close()


@in_a_world()
async def test_garbage_at_a_first_contact_is_an_error_at_once(world: BrokerWorld) -> None:
    garbage = await asyncio.start_server(talk_garbage, "127.0.0.1", 0)
    cluster = world.cluster(bootstrap=[Address(*garbage.sockets[0].getsockname())])
    with pytest.raises(ProtocolViolation, match="TLS or HTTP port"):
        await cluster.metadata(["a"])
    garbage.close()
    await garbage.wait_closed()
    await cluster.close()


@in_a_world()
async def test_every_look_up_has_the_clusters_own_bound(world: BrokerWorld) -> None:
    cluster = world.cluster(api_timeout_ms=200)
    await world.brokers[0].stop()
    look_ups = (
        cluster.metadata(["a"]),
        cluster.logs.list_offsets({A0: messages.LATEST}),
        cluster.groups.committed_offsets("g", [A0]),
        cluster.groups.describe("g"),
    )
    for asking in look_ups:
        async with asyncio.timeout(5):
            with pytest.raises((ConnectionFailed, RequestTimedOut)):
                await asking
    await cluster.close()
    await world.brokers[0].start()


@in_a_world(nodes=2)
async def test_brokers_known_from_metadata_are_asked_when_the_bootstrap_list_is_gone(world: BrokerWorld) -> None:
    cluster = world.cluster()
    await cluster.metadata(["a"])
    await world.brokers[0].stop()
    assert "a" in (await cluster.metadata(["a"])).topics
    assert world.brokers[1].connections == 1
    await cluster.close()
    await world.brokers[0].start()


@in_a_world()
async def test_no_broker_at_all_is_one_error_that_names_every_address(world: BrokerWorld) -> None:
    async with FakeBroker() as other:
        second = other.address
    first = world.brokers[0].address
    await world.brokers[0].stop()
    cluster = world.cluster(bootstrap=[first, second])
    with ends_with(ConnectionFailed) as failure:
        await cluster.metadata(["a"], timeout_ms=3_000)
    message = str(failure.value)
    assert "`bootstrap.servers`" in message
    assert str(first) in message
    assert str(second) in message
    assert message.count("refused") == 2 or message.count("Connect call failed") == 2
    await cluster.close()
    await world.brokers[0].start()


@in_a_world()
async def test_a_broker_that_comes_back_is_found_again(world: BrokerWorld) -> None:
    cluster = world.cluster()
    await cluster.metadata(["a"])
    await world.brokers[0].stop()
    with logged() as warnings:
        asking = asyncio.create_task(cluster.metadata(["a"]))
        await until(lambda: warnings)
        await world.brokers[0].start()
        assert "a" in (await asking).topics
    await cluster.close()


@in_a_world()
async def test_the_first_failure_is_warned_of_while_it_is_tried_again(world: BrokerWorld) -> None:
    world.first["Metadata"] = [HUNG_UP, HUNG_UP]
    cluster = world.cluster()
    with logged() as warnings:
        await cluster.metadata(["a"])
    await cluster.close()
    assert len(warnings) == 1
    assert "closed the connection at the first request" in warnings[0]
    assert warnings[0].startswith("Trying again: ")


@in_a_world()
async def test_a_silent_broker_is_given_up_in_time(world: BrokerWorld) -> None:
    world.first["Metadata"] = [None] * 99
    cluster = world.cluster()
    with pytest.raises(RequestTimedOut, match="did not answer within 200 ms"):
        await cluster.metadata(["a"], timeout_ms=200)
    await cluster.close()


@in_a_world()
async def test_a_silent_connection_is_replaced_although_its_caller_gave_up_earlier(world: BrokerWorld) -> None:
    """Else every later call would wait on it in vain, each giving up before the request timeout can tell."""
    world.first["Metadata"] = [None]
    cluster = world.cluster(request_timeout_ms=250)
    with pytest.raises(RequestTimedOut):
        await cluster.metadata(["a"], timeout_ms=100)
    assert "a" in (await cluster.metadata(["a"])).topics
    assert world.brokers[0].connections == 2
    await cluster.close()


@in_a_world()
async def test_a_timeout_names_the_failure_before_it(world: BrokerWorld) -> None:
    world.first["Metadata"] = [HUNG_UP, None]
    cluster = world.cluster()
    with pytest.raises(RequestTimedOut, match=r"within 3000 ms\. Before that: No broker could be reached"):
        await cluster.metadata(["a"], timeout_ms=3_000)
    await cluster.close()


@in_a_world(nodes=2, ranges={**RANGES, 3: (0, 9)})
async def test_brokers_that_are_too_old_are_not_asked_again(world: BrokerWorld) -> None:
    cluster = world.cluster(bootstrap=[broker.address for broker in world.brokers])
    with pytest.raises(UnsupportedApi, match="Metadata v12 is needed"):
        await cluster.metadata(["a"])
    await cluster.close()


@in_a_world()
async def test_callers_share_one_connection_and_one_attempt_to_open_it(world: BrokerWorld) -> None:
    cluster = world.cluster()
    await asyncio.gather(*(cluster.metadata(["a"]) for _ in range(20)))
    assert world.brokers[0].connections == 1
    await cluster.close()


@in_a_world()
async def test_callers_who_share_an_attempt_get_an_error_each(world: BrokerWorld) -> None:
    """Two seats that fail together: each puts its own name before the cause."""
    async with await asyncio.start_server(talk_garbage, "127.0.0.1", 0) as server:
        cluster = world.cluster(bootstrap=[Address(*server.sockets[0].getsockname())])
        first, second = await asyncio.gather(*(cluster.metadata([]) for _ in range(2)), return_exceptions=True)
        assert isinstance(first, ProtocolViolation)
        assert isinstance(second, ProtocolViolation)
        assert (str(first), first.retriable) == (str(second), second.retriable)
        assert first is not second
        await cluster.close()


@in_a_world()
async def test_a_cancelled_caller_does_not_take_the_connection_of_other_callers(world: BrokerWorld) -> None:
    cluster = world.cluster()
    with logged() as warnings:
        first, second = (asyncio.create_task(cluster.metadata(["a"])) for _ in range(2))
        await until(lambda: world.brokers[0].connections)
        first.cancel()
        await asyncio.wait([first])
        assert "a" in (await second).topics
    assert not warnings
    assert world.brokers[0].connections == 1
    await cluster.close()


@in_a_world()
async def test_closing_ends_every_call(world: BrokerWorld) -> None:
    world.first["Metadata"] = [None]
    cluster = world.cluster()
    waiting = asyncio.create_task(cluster.metadata(["a"], timeout_ms=300))
    await until(lambda: world.asked(kio_messages.MetadataRequest))
    opening = asyncio.create_task(world.cluster(bootstrap=[Address("127.0.0.1", 1)]).metadata(["a"], timeout_ms=100))
    await cluster.close()
    await cluster.close()
    for call in (waiting, opening):
        with pytest.raises((Disconnected, ConnectionFailed, RequestTimedOut)):
            await call


@in_a_world()
async def test_closing_does_not_wait_for_a_connection_that_is_being_opened(world: BrokerWorld) -> None:
    world.brokers[0].api_versions = lambda *_: asyncio.Event().wait()  # type: ignore[method-assign]
    cluster = world.cluster()
    opening = asyncio.create_task(cluster.coordinators.call("g", messages.describe_groups("g")))
    await until(lambda: world.brokers[0].connections)
    async with asyncio.timeout(2):
        await cluster.close()
    with pytest.raises((Disconnected, ConnectionFailed)):
        await opening
