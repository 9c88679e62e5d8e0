"""A session leaves nothing behind, however its end and the wish to end it meet."""

import asyncio
from random import Random
from typing import Any

import pytest
from harness.fake_broker import NO_THROTTLE, FakeBroker, on_a_loop
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.static.primitive import i32

from spark_kgroup.assignors import assignor
from spark_kgroup.member import contract
from spark_kgroup.member.classic import MemberConfig
from spark_kgroup.runtime.session import Session
from spark_kgroup.wire import messages
from spark_kgroup.wire.connection import Connection

pytestmark = pytest.mark.filterwarnings("error::ResourceWarning")


class OneBroker:
    """Stands for the cluster: the coordinator is always this one."""

    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker
        self.opened: list[Connection] = []

    async def open_coordinator(self, _group: str) -> Connection:
        self.opened.append(await Connection.open(self.broker.address, client_id="test"))
        return self.opened[-1]


def not_authorized(_: Any) -> Any:
    return messages.JoinGroupResponse(
        throttle_time=NO_THROTTLE,
        error_code=KioErrorCode(30),
        generation_id=i32(-1),
        protocol_type=None,
        protocol_name=None,
        leader="",
        skip_assignment=False,
        member_id="",
        members=(),
    )


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

            config = MemberConfig(
                group="g", instance_id="g-0", topics=("t",), assignors=(assignor("cooperative-sticky"),)
            )
            session = Session(config, cluster, observe, Random(1))
            running = asyncio.create_task(session.run())
            await failed.wait()
            for _ in range(ticks):
                await asyncio.sleep(0)
            running.cancel()
            await asyncio.wait([running])
            assert [connection.closed for connection in cluster.opened] == [True]

    scenario()
