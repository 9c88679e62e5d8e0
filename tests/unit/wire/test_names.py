"""From names to connections: all addresses, side by side, and no name holds up another."""

import asyncio
import socket
import ssl
import threading
import time
from contextlib import ExitStack
from functools import partial

import pytest
import trustme
from harness.fake_broker import FakeBroker, on_a_loop, until
from harness.names import resolving, swallowing

from spark_kgroup.errors import ConnectionFailed
from spark_kgroup.limits import CONNECT_TIMEOUT_MS
from spark_kgroup.wire import names
from spark_kgroup.wire.address import Address
from spark_kgroup.wire.connection import Connection
from spark_kgroup.wire.race import first_success
from spark_kgroup.wire.security.secured import load_security
from spark_kgroup.wire.security.settings import SecuritySettings

pytestmark = pytest.mark.filterwarnings("error::ResourceWarning")

ODD_HOSTS = ["a..b", "x" * 64 + ".example", ".", "", "nul\0byte", "\ud800", "two words", "\x1b[31mred\n", "x" * 70_000]


# ------------------------------------------------------------------------------------------------ all addresses


@pytest.mark.parametrize("silent", [["127.0.0.2"], ["127.0.0.2", "127.0.0.3", "127.0.0.4"]], ids=len)
def test_a_name_whose_first_addresses_swallow_connections_is_reached_by_the_next(
    silent: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    @on_a_loop
    async def scenario() -> None:
        async with FakeBroker() as broker:
            port = broker.address.port
            with resolving(monkeypatch, {"kafka.test": [*silent, "127.0.0.1"]}), ExitStack() as holes:
                for host in silent:
                    holes.enter_context(swallowing(host, port))
                began = time.monotonic()
                async with await Connection.open(Address("kafka.test", port), client_id="c"):
                    assert time.monotonic() - began < CONNECT_TIMEOUT_MS / 1000 / 2

    scenario()


@on_a_loop
async def test_an_address_that_refuses_makes_way_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "NEXT_ADDRESS_AFTER_MS", 60_000)
    async with FakeBroker() as broker:
        with resolving(monkeypatch, {"kafka.test": ["127.0.0.2", "127.0.0.1"]}):
            async with await Connection.open(Address("kafka.test", broker.address.port), client_id="c"):
                assert broker.connections == 1


@on_a_loop
async def test_a_name_with_no_address_that_accepts_fails_with_the_error_of_the_first_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with FakeBroker() as broker:
        port = broker.address.port
    refusal = pytest.raises(ConnectionFailed, match=rf"kafka\.test:{port}: Connection refused at 127\.0\.0\.2\.")
    with resolving(monkeypatch, {"kafka.test": ["127.0.0.2", "127.0.0.1"]}), refusal:
        await Connection.open(Address("kafka.test", port), client_id="c")


@on_a_loop
async def test_a_whole_name_with_its_dot_is_the_one_in_the_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    ca, server = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("kafka.test").configure_cert(server)
    security = load_security(SecuritySettings(protocol="SSL", ca_pem=ca.cert_pem.bytes().decode()))
    with resolving(monkeypatch, {"kafka.test.": ["127.0.0.1"]}):
        async with FakeBroker(tls=server) as broker:
            address = Address("kafka.test.", broker.address.port)
            async with await Connection.open(address, client_id="c", security=security) as connection:
                assert not connection.closed


@on_a_loop
async def test_of_two_that_succeed_at_once_one_is_discarded() -> None:
    go_on = asyncio.Event()
    discarded: list[str] = []

    async def attempt(result: str) -> str:
        await go_on.wait()
        return result

    async def all_at_once() -> str | None:
        return await first_success(
            [(name, partial(attempt, name)) for name in "ab"],
            patience_ms=0,
            failure=OSError,
            failures={},
            discard=discarded.append,
        )

    racing = asyncio.create_task(all_at_once())
    await until(lambda: len(asyncio.all_tasks()) == 4)
    go_on.set()
    won = await racing
    assert won is not None
    assert sorted([won, *discarded]) == ["a", "b"]


# -------------------------------------------------------------------------------------------- names that hang


@on_a_loop
async def test_names_that_hang_hold_up_no_name_that_resolves(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop's own pool has a few threads more than the machine has cores."""
    hanging = {f"slow-{n}.test": threading.Event() for n in range(60)}
    async with FakeBroker() as broker:
        port = broker.address.port
        with resolving(monkeypatch, {**hanging, "kafka.test": ["127.0.0.1"]}) as resolver:
            waiting = [asyncio.create_task(names.resolve_addresses(name, port)) for name in hanging]
            await until(lambda: resolver.asked.keys() == hanging.keys())
            async with await Connection.open(Address("kafka.test", port), client_id="c"):
                assert not any(task.done() for task in waiting)
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)


@on_a_loop
async def test_a_name_that_hangs_is_given_up_in_time_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = pytest.raises(ConnectionFailed, match=r"slow\.test:9092 could not be resolved .*DNS within 50 ms")
    with resolving(monkeypatch, {"slow.test": threading.Event()}), refusal:
        await Connection.open(Address("slow.test", 9092), client_id="c", connect_timeout_ms=50)


@on_a_loop
async def test_all_who_ask_for_a_name_that_hangs_share_one_look_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with resolving(monkeypatch, {"slow.test": threading.Event()}) as resolver:
        for _ in range(5):
            with pytest.raises(ConnectionFailed):
                await Connection.open(Address("slow.test", 9092), client_id="c", connect_timeout_ms=10)
        assert resolver.asked["slow.test"] == 1


@on_a_loop
async def test_an_answer_is_not_kept_for_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that comes back under another address is found."""
    with resolving(monkeypatch, {"kafka.test": ["127.0.0.1"]}) as resolver:
        for _ in range(2):
            assert await names.resolve_addresses("kafka.test", 1) == [(socket.AF_INET, ("127.0.0.1", 1))]
        assert resolver.asked["kafka.test"] == 2


@on_a_loop
async def test_look_ups_at_one_time_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "LOOK_UPS_MAX", 2)
    hanging = {f"slow-{n}.test": threading.Event() for n in range(2)}
    with resolving(monkeypatch, {**hanging, "kafka.test": ["127.0.0.1"]}) as resolver:
        waiting = [asyncio.create_task(names.resolve_addresses(name, 1)) for name in hanging]
        await until(lambda: resolver.asked.keys() == hanging.keys())
        with pytest.raises(OSError, match="2 names are being looked up already: check this machine's DNS"):
            await names.resolve_addresses("kafka.test", 1)
        for event in hanging.values():
            event.set()
        await asyncio.wait(waiting)
        assert {type(task.exception()) for task in waiting} == {socket.gaierror}
        await until(lambda: not names._looking_up)
        assert await names.resolve_addresses("kafka.test", 1)


# ---------------------------------------------------------------------------------- names that cannot be a host


@pytest.mark.parametrize("host", ODD_HOSTS, ids=lambda host: ascii(host[:12]))
@pytest.mark.parametrize("port", [9092, -1, 2**31 - 1])
def test_a_host_that_cannot_be_one_is_a_connection_that_failed(host: str, port: int) -> None:
    @on_a_loop
    async def scenario() -> None:
        with pytest.raises(ConnectionFailed) as failed:
            await Connection.open(Address(host, port), client_id="c")
        assert str(failed.value).isprintable()
        assert len(str(failed.value)) < 500

    scenario()


@pytest.mark.parametrize("host", ODD_HOSTS, ids=lambda host: ascii(host[:12]))
def test_a_caller_without_an_event_loop_gets_an_oserror(host: str) -> None:
    with pytest.raises(OSError):  # noqa: PT011  whichever the system gives
        names.connect(host, 9092, 10)


# -------------------------------------------------------------------------------- callers without an event loop


def test_a_blocking_caller_tries_all_addresses_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with (
            resolving(monkeypatch, {"driver.test": ["127.0.0.2", "127.0.0.1"]}),
            swallowing("127.0.0.2", port),
            names.connect("driver.test", port, 10) as connection,
        ):
            assert connection.getpeername() == ("127.0.0.1", port)
            assert connection.gettimeout() == 10


def test_a_blocking_caller_s_bound_covers_the_look_up(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = pytest.raises(TimeoutError, match=r"'driver\.test' was not resolved within 0\.05 s")
    with resolving(monkeypatch, {"driver.test": threading.Event()}), refusal:
        names.connect("driver.test", 1, 0.05)


def test_a_look_up_may_have_a_longer_bound_than_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's resolver asks its second server after some seconds, a firewall never answers."""
    refusal = pytest.raises(TimeoutError, match=r"'driver\.test' was not resolved within 0\.1 s")
    with resolving(monkeypatch, {"driver.test": threading.Event()}), refusal:
        names.connect("driver.test", 1, 60, look_up_timeout_s=0.1)
    refusal = pytest.raises(TimeoutError, match=r"no connection was accepted within 0\.05 s")
    with swallowing("127.0.0.2") as port, resolving(monkeypatch, {"driver.test": ["127.0.0.2"]}), refusal:
        names.connect("driver.test", port, 0.05, look_up_timeout_s=60)


def test_a_blocking_caller_s_bound_covers_the_connection() -> None:
    with swallowing("127.0.0.2") as port, pytest.raises(TimeoutError, match=r"no connection was accepted within 0\.05"):
        names.connect("127.0.0.2", port, 0.05)
