"""A member that fails: its group goes on, and does not wait a session for a member that will not be back."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from uuid import uuid4

import pytest
from harness.fake_broker import on_a_loop, until
from harness.runtime import give_up_at_once

from spark_kgroup.errors import KgroupError
from spark_kgroup.member.classic import ClassicMember
from spark_kgroup.model import CLASSIC, CONSUMER
from spark_kgroup.runtime.group import Group
from spark_kgroup.runtime.session import Session
from spark_kgroup.runtime.settings import GroupSettings, ProtocolSettings
from spark_kgroup.testing import ApacheKafka
from spark_kgroup.wire.address import parse_bootstrap

SESSION_MS = 120_000
WITHIN_S = 40
"""Far less than a session."""

STICKY = "cooperative-sticky"
FAILING = "harness.custom_assignors:FailingForThree"


class World:
    """A group with a topic of six partitions, whose members give up at once the partitions they are asked for."""

    def __init__(self, kafka: ApacheKafka) -> None:
        self.kafka = kafka
        self.name = f"failing-{uuid4().hex[:8]}"
        kafka.create_topic(self.name, 6)

    @asynccontextmanager
    async def member(
        self, instance_id: str | None = None, assignor: str = STICKY, protocol: str = CLASSIC
    ) -> AsyncIterator[Session]:
        group = Group(
            GroupSettings(
                bootstrap=parse_bootstrap(self.kafka.bootstrap_servers),
                group=self.name,
                topics=(self.name,),
                instance_ids=(instance_id,),
                protocol=ProtocolSettings(
                    name=protocol, assignors=(assignor,), session_timeout_ms=SESSION_MS, heartbeat_interval_ms=200
                ),
            ),
            observer=give_up_at_once,
        )
        await group.start()
        try:
            yield group._seats.sessions[instance_id]
        finally:
            await group.close()


@pytest.mark.parametrize("protocol", [CLASSIC, CONSUMER])
def test_other_members_have_a_dynamic_member_s_share_at_once_when_it_fails(
    apache_kafka: ApacheKafka, protocol: str
) -> None:
    @on_a_loop
    async def scenario() -> None:
        world = World(apache_kafka)
        async with world.member(protocol=protocol) as first, world.member(protocol=protocol) as second:
            await until(lambda: len(first.machine.owned) == len(second.machine.owned) == 3)
            first.fail(KgroupError("a test"))
            async with asyncio.timeout(WITHIN_S):
                await until(lambda: len(second.machine.owned) == 6)
            assert first.machine.ended

    scenario()


def test_other_members_go_on_when_the_assignor_of_a_dynamic_leader_fails(apache_kafka: ApacheKafka) -> None:
    @on_a_loop
    async def scenario() -> None:
        world = World(apache_kafka)
        async with AsyncExitStack() as running:
            leader = await running.enter_async_context(world.member(assignor=FAILING))
            await until(lambda: len(leader.machine.owned) == 6)
            second = await running.enter_async_context(world.member())
            await until(lambda: len(leader.machine.owned) == len(second.machine.owned) == 3)
            third = await running.enter_async_context(world.member())
            await until(lambda: leader.failure is not None)
            async with asyncio.timeout(WITHIN_S):
                await until(lambda: len(second.machine.owned) == len(third.machine.owned) == 3)

    scenario()


def test_other_members_keep_their_partitions_when_the_assignor_of_a_static_leader_fails(
    apache_kafka: ApacheKafka,
) -> None:
    """Its seat is kept for a session, and its share is not read meanwhile.

    All other members have the group's word, and read on.

    The newcomer may ask for another rebalance, since it has no share: that waits for the seat, as any does (KIP-345).
    """

    @on_a_loop
    async def scenario() -> None:
        world = World(apache_kafka)
        async with AsyncExitStack() as running:
            leader = await running.enter_async_context(world.member("a", FAILING))
            await until(lambda: len(leader.machine.owned) == 6)
            second = await running.enter_async_context(world.member("b"))
            await until(lambda: len(leader.machine.owned) == len(second.machine.owned) == 3)
            kept, before = second.owned_since, _assigned_in(second)
            third = await running.enter_async_context(world.member("c"))
            async with asyncio.timeout(WITHIN_S):
                await until(lambda: leader.failure is not None)
                await until(lambda: min(_assigned_in(second), _assigned_in(third)) > before)
            assert "FailingForThree raised in assign" in str(leader.failure)
            assert second.owned_since == kept
            assert third.machine.owned == frozenset()

    scenario()


def _assigned_in(session: Session) -> int:
    """The generation of its last assignment."""
    assert isinstance(session.machine, ClassicMember)
    return session.machine.ownership.assigned_in
