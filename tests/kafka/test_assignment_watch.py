"""Changes while a static leader was away are noticed: the hole that KIP-814 leaves, closed for every member."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest
from harness.fake_broker import on_a_loop, until
from harness.groups import assignment_by_instance
from harness.mixed.clients import JAVA, KAFKA_PYTHON, LIBRDKAFKA, Client
from harness.runtime import give_up_at_once

from spark_kgroup.model import TopicPartition
from spark_kgroup.runtime.group import Group
from spark_kgroup.runtime.settings import ClientSettings, GroupSettings, ProtocolSettings
from spark_kgroup.testing import ApacheKafka
from spark_kgroup.wire.address import parse_bootstrap

REFRESH_MS = 500
UNHURRIED_REFRESH_MS = 2_500
"""Longer than a leader takes to come back on a busy machine: the others force a rebalance at their second look, though
it may not have heard of its share by then, and so not claim it."""

STICKY = "cooperative-sticky"


class World:
    """One group: processes with a static member each, that give up at once the partitions they are asked for.

    Attributes:
        running: instance id -> its process. Closing it counts as killing it, for it then sends no more requests.
    """

    def __init__(self, kafka: ApacheKafka, assignor: str, refresh_ms: int = REFRESH_MS) -> None:
        self.kafka = kafka
        self.assignor = assignor
        self.refresh_ms = refresh_ms
        self.name = f"watched-{uuid4().hex[:8]}"
        self.running: dict[str, Group] = {}

    async def create_topic(self, topic: str, partitions: int) -> str:
        name = f"{self.name}-{topic}"
        await asyncio.to_thread(self.kafka.create_topic, name, partitions)
        return name

    async def add_partitions(self, topic: str, total: int) -> None:
        await asyncio.to_thread(self.kafka.add_partitions, f"{self.name}-{topic}", total)

    async def delete_topic(self, topic: str) -> None:
        name = f"{self.name}-{topic}"
        await asyncio.to_thread(self.kafka.admin.delete_topics([name])[name].result, 30)

    async def start(self, instance_id: str, *topics: str) -> None:
        group = Group(
            GroupSettings(
                bootstrap=parse_bootstrap(self.kafka.bootstrap_servers),
                group=self.name,
                topics=tuple(f"{self.name}-{topic}" for topic in topics or ("t",)),
                instance_ids=(instance_id,),
                topics_must_exist=False,
                client=ClientSettings(metadata_max_age_ms=self.refresh_ms),
                protocol=ProtocolSettings(
                    assignors=(self.assignor,), session_timeout_ms=30_000, heartbeat_interval_ms=200
                ),
            ),
            observer=give_up_at_once,
        )
        self.running[instance_id] = group
        await group.start()

    async def kill(self, instance_id: str) -> None:
        await self.running.pop(instance_id).close()

    async def stop(self) -> None:
        for group in self.running.values():
            await group.close()

    @property
    def owned(self) -> dict[str, set[TopicPartition]]:
        return {name: set(_seat(group).owned_since) for name, group in self.running.items()}

    @property
    def leader(self) -> str:
        (leads,) = [name for name, group in self.running.items() if _seat(group).leader]
        return leads

    @property
    def generation(self) -> int:
        generation: int
        (generation,) = {_seat(group).identity.generation for group in self.running.values()}
        return generation

    async def rest(self, partitions: int, *, after: int = 0) -> int:
        """Wait until all partitions have one owner each, in a generation after `after`, and return which."""
        await until(lambda: self._rests(partitions, after))
        return self.generation

    def _rests(self, partitions: int, after: int) -> bool:
        shares = list(self.owned.values())
        generations = {_seat(group).identity.generation for group in self.running.values()}
        return (
            all(_seat(group).settled for group in self.running.values())
            and sum(map(len, shares)) == len(set.union(*shares)) == partitions
            and len(generations) == 1
            and max(generations) > after
        )

    async def refreshes(self, rounds: int = 2) -> None:
        """Wait until each process has looked so many times at the assignment of a group at rest."""
        looks = {name: _Looks(group) for name, group in self.running.items()}
        await until(lambda: all(each.count >= rounds for each in looks.values()))


class _Looks:
    """Counts the looks of one process from now on."""

    def __init__(self, group: Group) -> None:
        self.count = 0
        self._look = group._watch.look
        group._watch.look = self._counted  # type: ignore[method-assign]

    async def _counted(self) -> None:
        await self._look()
        self.count += 1


def _seat(group: Group) -> Any:
    return group.view().seats[0]


Scenario = Callable[[World], Awaitable[None]]


@asynccontextmanager
async def three_members(world: World, partitions: int = 6) -> Any:
    """Three processes that share a topic."""
    await world.create_topic("t", partitions)
    try:
        for name in "abc":
            await world.start(name)
        await world.rest(partitions)
        yield
    finally:
        await world.stop()


async def s0(world: World) -> str:
    await world.add_partitions("t", 9)
    return "the leader stays"


async def s1(world: World) -> str:
    leader, before = world.leader, world.generation
    await world.kill(leader)
    await world.start(leader)
    await world.rest(6)
    await world.refreshes()
    assert world.generation == before, "a restart alone moves nobody (KIP-345)"
    await world.add_partitions("t", 9)
    return "partitions are added after the leader's restart"


async def s2f(world: World) -> str:
    leader = world.leader
    await world.kill(leader)
    await world.add_partitions("t", 9)
    await world.start(leader)
    return "partitions are added while the leader is away"


async def s2s(world: World) -> str:
    leader, before = world.leader, world.generation
    await world.kill(leader)
    await world.add_partitions("t", 9)
    await world.refreshes()
    assert world.generation == before, "nobody holds the others up while the leader is away"
    assert all(_seat(group).settled for group in world.running.values())
    await world.start(leader)
    return "... for longer than a refresh"


@pytest.mark.parametrize("assignor", [STICKY, pytest.param("range", marks=pytest.mark.full)])
def test_partitions_added_around_a_restart_of_the_leader_are_noticed_in_one_rebalance(
    apache_kafka: ApacheKafka, assignor: str
) -> None:
    async def one(change: Callable[[World], Awaitable[str]]) -> None:
        world = World(apache_kafka, assignor, UNHURRIED_REFRESH_MS)
        async with three_members(world):
            before, owned = world.generation, world.owned
            what = await change(world)
            await world.rest(9, after=before)
            await world.refreshes()
            assert world.generation == before + 1, what
            if assignor == STICKY:
                assert all(owned[name] <= world.owned[name] for name in owned), what

    @on_a_loop
    async def scenario() -> None:
        await asyncio.gather(*(one(change) for change in (s0, s1, s2f, s2s)))

    scenario()


@pytest.mark.parametrize("assignor", [STICKY, pytest.param("range", marks=pytest.mark.full)])
def test_a_topic_deleted_while_the_leader_was_away_is_noticed_in_one_rebalance(
    apache_kafka: ApacheKafka, assignor: str
) -> None:
    @on_a_loop
    async def scenario() -> None:
        world = World(apache_kafka, assignor)
        for topic in ("kept", "deleted"):
            await world.create_topic(topic, 3)
        try:
            for name in "abc":
                await world.start(name, "kept", "deleted")
            before, leader = await world.rest(6), world.leader
            await world.kill(leader)
            await world.delete_topic("deleted")
            await world.start(leader, "kept", "deleted")
            await world.rest(3, after=before)
            rebalanced = world.generation
            await world.refreshes()
            assert world.generation == rebalanced
            # Cooperative members that give up deleted partitions one after the other join anew once each.
            assert rebalanced - before <= (1 + 3 if assignor == STICKY else 1)
        finally:
            await world.stop()

    scenario()


@pytest.mark.parametrize("assignor", [STICKY, pytest.param("range", marks=pytest.mark.full)])
def test_a_member_that_comes_back_with_a_topic_more_gets_a_share_of_it(
    apache_kafka: ApacheKafka, assignor: str
) -> None:
    """Another member owns all of it, so no partition lacks an owner, and no broker rebalances for it (KIP-345)."""

    @on_a_loop
    async def scenario() -> None:
        world = World(apache_kafka, assignor)
        await world.create_topic("both", 2)
        await world.create_topic("more", 4)
        try:
            await world.start("back", "both")
            await world.rest(2)
            await world.start("other", "both", "more")
            before = await world.rest(6)
            assert not any(tp.topic.endswith("more") for tp in world.owned["back"])
            await world.kill("back")
            await world.start("back", "both", "more")
            shared = await world.rest(6, after=before)
            assert {name: len(owned) for name, owned in world.owned.items()} == {"back": 3, "other": 3}
            await world.refreshes()
            assert world.generation == shared
        finally:
            await world.stop()

    scenario()


def test_several_leaders_restarted_in_turn_move_no_partition_and_the_last_one_notices(
    apache_kafka: ApacheKafka,
) -> None:
    @on_a_loop
    async def scenario() -> None:
        world = World(apache_kafka, STICKY)
        async with three_members(world):
            before, owned = world.generation, world.owned
            for name in "abc":
                await world.kill(name)
                await world.start(name)
                await world.rest(6)
            await world.refreshes()
            assert (world.generation, world.owned) == (before, owned)
            await world.add_partitions("t", 9)
            assert await world.rest(9, after=before) == before + 1

    scenario()


def test_a_leader_restarted_while_the_group_rebalances_leaves_no_partition_without_an_owner(
    apache_kafka: ApacheKafka,
) -> None:
    @on_a_loop
    async def scenario() -> None:
        world = World(apache_kafka, STICKY)
        async with three_members(world):
            leader, before = world.leader, world.generation
            await world.kill(leader)
            next(iter(world.running.values())).force_rebalance("the test says so")
            await until(lambda: not all(_seat(group).settled for group in world.running.values()))
            await world.add_partitions("t", 9)
            await world.start(leader)
            rebalanced = await world.rest(9, after=before)
            await world.refreshes()
            assert world.generation == rebalanced

    scenario()


@pytest.mark.parametrize("kind", [JAVA, LIBRDKAFKA, KAFKA_PYTHON])
def test_a_follower_notices_for_a_leader_of_another_client_that_came_back(apache_kafka: ApacheKafka, kind: str) -> None:
    """A leader of another client that comes back neither assigns nor watches.

    It looks at metadata every five minutes.
    """

    @on_a_loop
    async def scenario() -> None:
        world = World(apache_kafka, STICKY)
        name = await world.create_topic("t", 6)

        def start() -> Client:
            given = (kind, apache_kafka.bootstrap_servers, world.name, name)
            return Client(*given, instance_id="theirs", session_timeout_ms=60_000)

        theirs = await asyncio.to_thread(start)
        try:
            await until(lambda: len(theirs.owned) == 6)
            await world.start("ours")
            before = await world.rest(3)
            assert not _seat(world.running["ours"]).leader
            await asyncio.to_thread(theirs.kill)
            await world.add_partitions("t", 9)
            theirs = await asyncio.to_thread(start)
            await until(lambda: len(theirs.owned) + len(world.owned["ours"]) == 9)
            assert world.generation > before
            found = await asyncio.to_thread(assignment_by_instance, apache_kafka, world.name)
            assert len(set.union(*found.values())) == sum(map(len, found.values())) == 9
        finally:
            await asyncio.to_thread(theirs.abandon)
            await world.stop()

    scenario()


@pytest.mark.parametrize("static", [False, True])
def test_partitions_added_while_a_leader_of_another_client_is_there_are_noticed_within_our_refreshes(
    apache_kafka: ApacheKafka, static: bool
) -> None:
    """librdkafka looks for new partitions each five minutes, and asks for metadata before it assigns."""

    @on_a_loop
    async def scenario() -> None:
        world = World(apache_kafka, STICKY)
        name = await world.create_topic("t", 6)
        given = (LIBRDKAFKA, apache_kafka.bootstrap_servers, world.name, name)
        theirs = await asyncio.to_thread(lambda: Client(*given, instance_id="theirs" if static else ""))
        try:
            await until(lambda: len(theirs.owned) == 6)
            await world.start("ours")
            before = await world.rest(3)
            assert not _seat(world.running["ours"]).leader
            await world.add_partitions("t", 9)
            await until(lambda: len(theirs.owned) + len(world.owned["ours"]) == 9)
            await world.refreshes(4)
            assert world.generation == before + 1
        finally:
            await asyncio.to_thread(theirs.abandon)
            await world.stop()

    scenario()
