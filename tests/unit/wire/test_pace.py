"""Connections that fail are made ever more seldom, and by the host's addresses in turn."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from harness.fake_broker import HUNG_UP, FakeBroker, on_a_loop
from harness.fake_cluster import BrokerWorld, in_a_world
from harness.names import resolving

from spark_kgroup.errors import ConnectionFailed, Disconnected, WireError
from spark_kgroup.limits import RETRY_BACKOFF_JITTER, RETRY_BACKOFF_MS
from spark_kgroup.wire import messages, pace
from spark_kgroup.wire.address import Address
from spark_kgroup.wire.cluster import Cluster
from spark_kgroup.wire.connection import Connection
from spark_kgroup.wire.pace import Pace

pytestmark = pytest.mark.filterwarnings("error::ResourceWarning")

FOUR_WAITS_S = RETRY_BACKOFF_MS / 1000 * (1 + 2 + 4 + 8) * (1 - RETRY_BACKOFF_JITTER)


@in_a_world(nodes=2)
async def test_connections_that_break_at_their_first_request_come_ever_more_seldom(world: BrokerWorld) -> None:
    """A load balancer without a broker behind it accepts, and lets us authenticate, many times a second."""
    world.coordinator = 1
    world.first["DescribeGroups"] = [HUNG_UP] * 5
    cluster = world.cluster()
    began = time.monotonic()
    for connects in range(1, 6):
        with pytest.raises(Disconnected):
            await cluster.coordinators.call("g", messages.describe_groups("g"))
        assert world.brokers[1].connections == connects
    assert time.monotonic() - began >= FOUR_WAITS_S
    await cluster.groups.describe("g")
    await cluster.brokers.connections._pool[world.brokers[1].address].close()
    before_s = time.monotonic()
    assert await cluster.brokers.connections._pace.turn(world.brokers[1].address) == 0, (
        "who has answered is connected to at once"
    )
    assert time.monotonic() - before_s < FOUR_WAITS_S
    await cluster.close()


@in_a_world(nodes=2)
async def test_sessions_whose_connections_break_wait_for_each_other_s(world: BrokerWorld) -> None:
    world.coordinator = 1
    cluster = world.cluster()
    began = time.monotonic()
    for _ in range(5):
        connection = await cluster.coordinators.open("g")
        await connection.close()
    assert time.monotonic() - began >= FOUR_WAITS_S
    await cluster.close()


@on_a_loop
async def test_a_host_that_refuses_is_asked_ever_more_seldom_by_any_caller() -> None:
    async with FakeBroker() as broker:
        address = broker.address
    cluster = Cluster([address], client_id="c", rng=Random(1))
    began = time.monotonic()
    for _ in range(5):
        with pytest.raises(ConnectionFailed):
            await cluster.coordinators.find("g")
    assert time.monotonic() - began >= FOUR_WAITS_S
    await cluster.close()


@in_a_world()
async def test_a_connection_in_use_does_not_delay_the_next_one(world: BrokerWorld) -> None:
    cluster = world.cluster()
    sessions = [await cluster.coordinators.open("g") for _ in range(5)]
    assert await cluster.brokers.connections._pace.turn(world.brokers[0].address) == 0
    for connection in sessions:
        await connection.close()
    await cluster.close()


def test_an_address_that_accepts_and_stays_silent_makes_way_for_the_next_of_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Java's client moves on to the next address with each attempt (ClusterConnectionStates.moveToNextAddress)."""

    @in_a_world()
    async def scenario(world: BrokerWorld) -> None:
        port = world.brokers[0].address.port
        done = asyncio.Event()
        accepted = []

        async def say_nothing(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            accepted.append(writer)
            await done.wait()
            writer.transport.abort()

        silent = await asyncio.start_server(say_nothing, "127.0.0.2", port)
        with resolving(monkeypatch, {"kafka.test": ["127.0.0.2", "127.0.0.1"]}):
            cluster = world.cluster(bootstrap=[Address("kafka.test", port)], request_timeout_ms=200)
            assert "a" in (await cluster.metadata(["a"])).topics
            assert len(accepted) == 1
            await cluster.close()
        done.set()
        silent.close()
        await silent.wait_closed()

    scenario()


@on_a_loop
async def test_the_number_of_remembered_addresses_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "PACED_ADDRESSES_MAX", 3)
    paced = Pace(Random(1))
    for port in range(10):
        paced.on_failed(Address("h", port))
    assert [await paced.turn(Address("h", port)) for port in (0, 6, 7, 9)] == [0, 0, 1, 1]


def broken() -> Any:
    return SimpleNamespace(has_answered=False, closed=True)


@on_a_loop
async def test_a_seat_whose_connection_broke_waits_also_while_that_of_another_one_is_open() -> None:
    """1. Two seats connect. 2. The first one's connection breaks. 3. It comes back before the other one's does."""
    paced, address = Pace(Random(1)), Address("h", 1)
    paced.on_opened(address, broken())
    paced.on_opened(address, cast("Connection", SimpleNamespace(has_answered=False, closed=False)))
    began = time.monotonic()
    assert await paced.turn(address) == 1
    assert time.monotonic() - began >= RETRY_BACKOFF_MS / 1000 * (1 - RETRY_BACKOFF_JITTER)


@on_a_loop
async def test_seats_that_fail_together_do_not_all_come_back_to_the_same_address_of_a_name() -> None:
    """Four seats, two addresses: with as many failures as seats between two attempts, the second had no turn ever."""
    paced, address = Pace(Random(1)), Address("h", 1)
    for _ in range(2):
        for _ in range(4):
            paced.on_failed(address)
        turns = await asyncio.gather(*(paced.turn(address) for _ in range(4)))
        assert {turn % 2 for turn in turns} == {0, 1}


ASKS_IN_300_MS: dict[str, Callable[[Cluster], Awaitable[Any]]] = {
    "metadata": lambda cluster: cluster.metadata(["a"], timeout_ms=300),
    "a look-up": lambda cluster: cluster.groups.describe("g", timeout_ms=300),
    "the coordinator": lambda cluster: cluster.coordinators.find("g", timeout_ms=300),
    "a session": lambda cluster: cluster.coordinators.open("g", timeout_ms=300),
    "a call": lambda cluster: cluster.coordinators.call("g", messages.describe_groups("g"), timeout_ms=300),
    "a reach": lambda cluster: cluster.brokers.reach(),
}


@pytest.mark.parametrize("ask", ASKS_IN_300_MS.values(), ids=ASKS_IN_300_MS)
def test_a_call_that_ends_before_its_connection_may_begin_says_why_there_is_none(
    ask: Callable[[Cluster], Awaitable[Any]],
) -> None:
    """1. An address refuses, so that the next connection has to wait. 2. The call's bound is nearer than its turn."""

    @on_a_loop
    async def scenario() -> None:
        async with FakeBroker() as broker:
            address = broker.address
        cluster = Cluster([address], client_id="c", rng=Random(1), api_timeout_ms=300)
        with pytest.raises(WireError):
            await cluster.metadata(["a"], timeout_ms=2_000)  # until turns are a second apart
        with pytest.raises(WireError, match=f"(?s)No broker could be reached.*{address}.*refused"):
            await ask(cluster)
        await cluster.close()

    scenario()


@in_a_world(nodes=2)
async def test_a_coordinator_that_refuses_is_named_although_other_brokers_answer(world: BrokerWorld) -> None:
    world.coordinator = 1
    cluster = world.cluster()
    await world.brokers[1].stop()
    refused = f"{world.brokers[1].address}.*refused"
    with pytest.raises(WireError, match=refused):
        await cluster.groups.describe("g", timeout_ms=2_000)
    with pytest.raises(WireError, match=refused):
        await cluster.coordinators.open("g", timeout_ms=3_000)
    with pytest.raises(WireError, match=refused):
        await cluster.coordinators.call("g", messages.describe_groups("g"), timeout_ms=2_000)
    await cluster.close()
    await world.brokers[1].start()


@on_a_loop
async def test_a_connection_that_may_still_begin_in_time_is_awaited() -> None:
    paced, address = Pace(Random(1)), Address("h", 1)
    paced.on_failed(address, ConnectionFailed("refused"))
    now_s = asyncio.get_running_loop().time()
    turn_s = RETRY_BACKOFF_MS / 1000 * (1 + RETRY_BACKOFF_JITTER)
    paced.check_in_time(address, now_s + turn_s + RETRY_BACKOFF_MS / 1000)
    paced.check_in_time(Address("h", 2), now_s)
    for _ in range(2):
        with pytest.raises(ConnectionFailed, match="refused"):
            paced.check_in_time(address, now_s)
