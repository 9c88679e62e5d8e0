"""No look-up takes longer than it was given, and closing neither, for any fault of the brokers."""

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from harness.fake_broker import FakeBroker, on_a_loop
from harness.fake_cluster import A0, WHO, BrokerWorld, talk_garbage
from harness.names import resolving, swallowing

from spark_kgroup.errors import BrokerError, WireError
from spark_kgroup.limits import CONNECT_TIMEOUT_MS, STARTUP_TIMEOUT_MS
from spark_kgroup.model import ErrorCode
from spark_kgroup.runtime.group import Group
from spark_kgroup.runtime.settings import GroupSettings
from spark_kgroup.wire import brokers, messages
from spark_kgroup.wire.address import Address
from spark_kgroup.wire.brokers import Retries
from spark_kgroup.wire.cluster import Cluster
from spark_kgroup.wire.connection import Connection

pytestmark = pytest.mark.filterwarnings("error::ResourceWarning")

GIVEN_MS = 1_000

LOOK_UPS: dict[str, Callable[[Cluster], Awaitable[Any]]] = {
    "metadata": lambda cluster: cluster.metadata(["a"], timeout_ms=GIVEN_MS),
    "offsets": lambda cluster: cluster.logs.list_offsets({A0: messages.LATEST}, timeout_ms=GIVEN_MS),
    "committed": lambda cluster: cluster.groups.committed_offsets("g", [A0], timeout_ms=GIVEN_MS),
    "all committed": lambda cluster: cluster.groups.all_committed("g", timeout_ms=GIVEN_MS),
    "describe": lambda cluster: cluster.groups.describe("g", timeout_ms=GIVEN_MS),
    "group type": lambda cluster: cluster.groups.fetch_type("g", timeout_ms=GIVEN_MS),
    "coordinator": lambda cluster: cluster.coordinators.find("g", timeout_ms=GIVEN_MS),
    "open coordinator": lambda cluster: cluster.coordinators.open("g", timeout_ms=GIVEN_MS),
    "call": lambda cluster: cluster.coordinators.call("g", messages.describe_groups("g"), timeout_ms=GIVEN_MS),
    "remove": lambda cluster: cluster.groups.remove_members("g", [WHO], "test", timeout_ms=GIVEN_MS),
}
OF_ANY_BROKER = {"metadata", "coordinator"}
"""Look-ups that a cluster answers although one broker is in trouble."""


async def drip(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A frame of 4,096 bytes, one byte after the other."""
    for byte in b"\0\0\x10\0" + bytes(4096):
        writer.write(bytes([byte]))
        await asyncio.sleep(0.01)


async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def say_nothing(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    await reader.read(-1)


@asynccontextmanager
async def serving(serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]) -> AsyncIterator[Address]:
    tasks: set[asyncio.Task[Any] | None] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())
        try:
            if (serves := serve(reader, writer)) is not None:
                await serves
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    yield Address("127.0.0.1", server.sockets[0].getsockname()[1])
    server.close()
    for task in tasks:
        if task:
            task.cancel()
    await asyncio.gather(*filter(None, tasks), return_exceptions=True)
    await server.wait_closed()


@asynccontextmanager
async def mute_after_hello() -> AsyncIterator[Address]:
    async with FakeBroker(lambda _: asyncio.Event().wait()) as broker:
        yield broker.address


@asynccontextmanager
async def swallowed() -> AsyncIterator[Address]:
    with swallowing("127.0.0.2") as port:
        yield Address("127.0.0.2", port)


@asynccontextmanager
async def unresolved() -> AsyncIterator[Address]:
    yield Address("slow.test", 9092)


@asynccontextmanager
async def refused() -> AsyncIterator[Address]:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield Address(*bound.getsockname())


TROUBLES: dict[str, Callable[[], Any]] = {
    "a name that hangs": unresolved,
    "an address that swallows connections": swallowed,
    "a port where nobody listens": refused,
    "a listener that says nothing": lambda: serving(say_nothing),
    "a broker that falls silent": mute_after_hello,
    "one byte after the other": lambda: serving(drip),
    "garbage": lambda: serving(talk_garbage),
    "a listener that hangs up": lambda: serving(hang_up),
}


async def ask_everything(cluster: Cluster, *, answered: set[str]) -> None:
    """All look-ups at once: each fails within its bound, but those that are `answered`."""
    began = time.monotonic()
    outcomes = await asyncio.gather(*(ask(cluster) for ask in LOOK_UPS.values()), return_exceptions=True)
    await cluster.close()
    for connection in outcomes:
        if isinstance(connection, Connection):
            await connection.close()
    assert time.monotonic() - began < CONNECT_TIMEOUT_MS / 1000 / 2
    failed = {what for what, outcome in zip(LOOK_UPS, outcomes, strict=True) if isinstance(outcome, BaseException)}
    assert failed == LOOK_UPS.keys() - answered
    assert all(isinstance(outcome, WireError) for outcome in outcomes if isinstance(outcome, BaseException))


@pytest.mark.parametrize("trouble", TROUBLES)
def test_look_ups_end_in_time_where_no_broker_answers(trouble: str, monkeypatch: pytest.MonkeyPatch) -> None:
    @on_a_loop
    async def scenario() -> None:
        with resolving(monkeypatch, {"slow.test": threading.Event()}):
            async with TROUBLES[trouble]() as address:
                await ask_everything(Cluster([address], client_id="c"), answered=set())

    scenario()


@pytest.mark.parametrize("trouble", TROUBLES)
def test_look_ups_end_in_time_where_leader_and_coordinator_do_not_answer(
    trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @on_a_loop
    async def scenario() -> None:
        world = BrokerWorld(leaders={A0: 1}, coordinator=1)
        await world.start()
        with resolving(monkeypatch, {"slow.test": threading.Event()}):
            async with TROUBLES[trouble]() as address:
                world.brokers.append(SimpleNamespace(address=address, requests=[]))  # type: ignore[arg-type]
                cluster = world.cluster()
                await cluster.metadata(["a"])
                opens = {"open coordinator"} if TROUBLES[trouble] is mute_after_hello else set()
                await ask_everything(cluster, answered=OF_ANY_BROKER | opens)
                world.brokers.pop()
        await world.stop()

    scenario()


@pytest.mark.silent_broker
@on_a_loop
async def test_a_query_starts_in_time_behind_brokers_in_every_kind_of_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within the bound on a first contact, though the last of many bootstrap servers is the only good one."""
    world = BrokerWorld(first={"JoinGroup": [None]})
    await world.start()
    hanging = [f"slow-{number}.test" for number in range(5)]
    with resolving(monkeypatch, {name: threading.Event() for name in ("slow.test", *hanging)}):
        async with AsyncExitStack() as troubles:
            bad = [await troubles.enter_async_context(trouble()) for trouble in TROUBLES.values()]
            bootstrap = (*bad, *(Address(name, 9092) for name in hanging), world.brokers[0].address)
            settings = GroupSettings(bootstrap=bootstrap, group="g", topics=("a",), instance_ids=("seat-0",))
            group = Group(settings)
            began = time.monotonic()
            await group.start()
            assert time.monotonic() - began < STARTUP_TIMEOUT_MS / 1000
            await group.close()
    await world.stop()


@on_a_loop
async def test_an_attempt_that_had_no_time_left_does_not_hide_why_the_one_before_it_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A busy machine sleeps for longer than it was told."""
    now_s, attempts = 0.0, 0

    async def overslept(_: float) -> None:
        nonlocal now_s
        now_s = GIVEN_MS / 1000 - 0.001

    async def attempt() -> None:
        nonlocal attempts
        attempts += 1
        if attempts > 1:
            await asyncio.Event().wait()
        raise BrokerError("Metadata", ErrorCode.LEADER_NOT_AVAILABLE)

    monkeypatch.setattr(brokers, "time", SimpleNamespace(monotonic=lambda: now_s))
    monkeypatch.setattr(asyncio, "sleep", overslept)
    with pytest.raises(BrokerError, match="LEADER_NOT_AVAILABLE"):
        await Retries(GIVEN_MS, Random(0)).run(attempt, GIVEN_MS)
    assert attempts == 1
