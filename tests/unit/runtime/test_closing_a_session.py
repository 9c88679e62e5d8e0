"""A session leaves no connection behind, however its end and the wish to end it meet."""

import asyncio
from typing import Any

import pytest
from harness.fake_broker import FakeBroker, on_a_loop
from harness.sessions import join_refused, session_of

from spark_kgroup.member import contract
from spark_kgroup.model import ErrorCode
from spark_kgroup.runtime.session import Session
from spark_kgroup.wire.connection import Connection

pytestmark = pytest.mark.filterwarnings("error::ResourceWarning")


class OneBroker:
    """Stands for the cluster: the coordinator is always this one."""

    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker
        self.opened: list[Connection] = []

    @property
    def coordinators(self) -> "OneBroker":
        return self

    async def open(self, _group: str, **_: Any) -> Connection:
        self.opened.append(await Connection.open(self.broker.address, client_id="test"))
        return self.opened[-1]


def not_authorized(_: Any) -> Any:
    return join_refused(ErrorCode.GROUP_AUTHORIZATION_FAILED)


@pytest.mark.parametrize("ticks", range(4))
def test_a_session_that_is_cancelled_while_it_fails_closes_its_connection(ticks: int) -> None:
    """1. The coordinator refuses the seat. 2. The session stops by itself. 3. The owner hears of it and cancels it,
    a few turns of the loop later."""

    @on_a_loop
    async def scenario() -> None:
        async with FakeBroker(not_authorized) as broker:
            cluster = OneBroker(broker)
            failed = asyncio.Event()

            def observe(_: Session, effect: contract.Effect) -> None:
                if isinstance(effect, contract.Failed):
                    failed.set()

            session = session_of(cluster, observer=observe)
            running = asyncio.create_task(session.run())
            await failed.wait()
            for _ in range(ticks):
                await asyncio.sleep(0)
            running.cancel()
            await asyncio.wait([running])
            assert [connection.closed for connection in cluster.opened] == [True]

    scenario()
