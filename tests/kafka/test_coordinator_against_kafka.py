"""Our coordinator and a real Apache Kafka, given the same requests: the same answers, the same groups.

`make compare SCRIPTS=1000 FIRST=0` runs so many scripts, from this seed on. A failure says its seed.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from harness.fake_broker import on_a_loop
from harness.two_coordinators import BROKER_PROPERTIES, TOPIC, Script, Undecided, await_coordinator, first_in_java_map

from spark_kgroup.coordinator import ANSWERED
from spark_kgroup.coordinator.classic_group import ClassicGroup
from spark_kgroup.testing import ApacheKafka
from spark_kgroup.wire import schema
from spark_kgroup.wire.address import Address, parse_bootstrap
from spark_kgroup.wire.connection import Connection

FIRST = int(os.environ.get("KGROUP_COMPARED_FIRST", "0"))
SCRIPTS = int(os.environ.get("KGROUP_COMPARED_SCRIPTS", "24"))
STEPS = 40
PER_TEST = 24
AT_ONCE = 8
TRIES = 4


@pytest.fixture(scope="module")
def address() -> Iterator[Address]:
    with ApacheKafka(server_properties=BROKER_PROPERTIES) as kafka:
        kafka.create_topic(TOPIC, 3)
        (address,) = parse_bootstrap(kafka.bootstrap_servers)
        asyncio.run(await_coordinator(address))
        yield address


@pytest.fixture(autouse=True)
def _leaders_as_in_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClassicGroup, "elected", staticmethod(first_in_java_map))


async def decided(address: Address, seed: int, play: Callable[[Script], Awaitable[None]]) -> str:
    """Play a script, again as long as the machine stops in its midst. The last story if it always did, else ""."""
    last = ""
    for _ in range(TRIES):
        try:
            async with Script(seed, address) as script:
                await play(script)
            return ""
        except Undecided as error:
            last = str(error)
    return last


@pytest.mark.parametrize("first", range(FIRST, FIRST + SCRIPTS, PER_TEST))
@on_a_loop
async def test_random_scripts_have_the_same_answers_and_leave_the_same_groups(address: Address, first: int) -> None:
    seeds = range(first, min(first + PER_TEST, FIRST + SCRIPTS))
    free = asyncio.Semaphore(AT_ONCE)
    undecided: list[str] = []

    async def run(seed: int) -> None:
        async with free:
            if last := await decided(address, seed, lambda script: script.take_steps(STEPS)):
                undecided.append(last)

    async with asyncio.TaskGroup() as scripts:
        for seed in seeds:
            scripts.create_task(run(seed))
    few = len(undecided) <= len(seeds) / 4
    assert few, f"{len(undecided)} of {len(seeds)} scripts prove nothing, the last: {undecided[-1]}"


@on_a_loop
async def test_a_static_member_that_comes_back_before_it_has_synced_makes_a_group_at_rest_rebalance(
    address: Address,
) -> None:
    """Its old member id stays among those whose SyncGroup is awaited (ClassicGroup.replaceStaticMember)."""

    async def play(script: Script) -> None:
        first, second, *_ = script.actors
        await script.join_well(first)
        await script.join_well(second)
        while not script.group_now.generation:
            await script.elapse()  # the initial delay, which the second member extended
        leader, follower = (first, second) if first.leads else (second, first)
        await script.sync_well(leader)
        await script.join_well(follower, member_id="")
        await script.sync_well(follower)
        assert follower.generation == 1
        assert script.group_now.state.value == "Stable"
        await script.elapse()  # the time to sync is over, at both coordinators
        assert script.group_now.state.value == "PreparingRebalance"

    assert not await decided(address, -1, play)


@on_a_loop
async def test_the_versions_that_our_coordinator_answers_are_among_kafka_s(address: Address) -> None:
    async with await Connection.open(address, client_id="versions") as connection:
        response: Any = await connection.call(schema.ApiVersionsRequest("test", "1"), timeout_ms=20_000)
    kafkas = {each.api_key: (each.min_version, each.max_version) for each in response.api_keys}
    for request, ours in ANSWERED.items():
        oldest, newest = kafkas[schema.API_OF[request].key]
        assert oldest <= ours.oldest <= ours.newest <= newest, request.__name__
