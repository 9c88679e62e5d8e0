"""Our coordinator and a real Apache Kafka, given the same requests: the same answers, the same groups.

`KGROUP_COMPARED_SCRIPTS` is how many scripts are run, `KGROUP_COMPARED_FIRST` the seed of the first.
"""

import asyncio
import os
from collections.abc import Iterator

import pytest
from harness.fake_broker import on_a_loop
from harness.two_coordinators import BROKER_PROPERTIES, TOPIC, Different, Script, await_coordinator, first_in_java_map

from spark_kgroup.coordinator.classic_group import ClassicGroup
from spark_kgroup.testing import ApacheKafka
from spark_kgroup.wire.address import Address, parse_bootstrap

FIRST = int(os.environ.get("KGROUP_COMPARED_FIRST", "0"))
SCRIPTS = int(os.environ.get("KGROUP_COMPARED_SCRIPTS", "24"))
STEPS = 40
AT_ONCE = 12


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


@on_a_loop
async def test_random_scripts_have_the_same_answers_and_leave_the_same_groups(address: Address) -> None:
    free = asyncio.Semaphore(AT_ONCE)

    async def run(seed: int) -> str:
        async with free:
            try:
                async with Script(seed, address) as script:
                    await script.take_steps(STEPS)
            except Different as error:
                return str(error)
            return ""

    found = await asyncio.gather(*(run(seed) for seed in range(FIRST, FIRST + SCRIPTS)))
    different = [each for each in found if each]
    assert not different, f"{len(different)} of {SCRIPTS} scripts differ, the first: {different[0]}"


@on_a_loop
async def test_a_static_member_that_comes_back_before_it_has_synced_makes_a_group_at_rest_rebalance(
    address: Address,
) -> None:
    """Its old member id stays among those whose SyncGroup is awaited (ClassicGroup.replaceStaticMember)."""
    async with Script(-1, address) as script:
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
