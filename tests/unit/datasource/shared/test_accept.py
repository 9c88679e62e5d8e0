"""A connection that comes in while its server ends."""

import asyncio
import socket
from contextlib import suppress

import pytest
from harness.fake_broker import on_a_loop

from pyspark_kgroup.shared.accept import next_connection


def test_a_connection_that_comes_as_the_wait_for_it_is_cancelled_is_not_kept_open(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @on_a_loop
    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setblocking(False)
            accepting = asyncio.create_task(next_connection(listener))
            await asyncio.sleep(0)
            client = socket.create_connection(listener.getsockname())
            # It runs in one turn of the loop with the callback for the connection, and before that.
            asyncio.get_running_loop().call_soon(accepting.cancel)
            with suppress(asyncio.CancelledError):
                await accepting
            await asyncio.sleep(0)
        with client, suppress(ConnectionResetError):
            client.settimeout(30)
            assert client.recv(1) == b""

    scenario()
    assert caplog.records == []


@on_a_loop
async def test_connections_are_taken_one_after_the_other() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        for _ in range(2):
            accepting = asyncio.create_task(next_connection(listener))
            await asyncio.sleep(0)
            with socket.create_connection(listener.getsockname()) as client:
                taken, address = await accepting
                with taken:
                    assert address == client.getsockname()
                    assert not taken.getblocking()
