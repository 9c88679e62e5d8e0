"""A start ends in time where brokers cannot be reached at the address that they advertise."""

import asyncio

import pytest
from harness.fake_broker import on_a_loop
from harness.fake_cluster import BrokerWorld, connect_where_advertised

from spark_kgroup.runtime.group import Group
from spark_kgroup.runtime.settings import GroupSettings
from spark_kgroup.wire.address import Address

pytestmark = pytest.mark.filterwarnings("error::ResourceWarning")


@on_a_loop
async def test_a_start_names_the_address_that_answers_and_the_one_that_does_not(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It took five minutes, and the error named neither the cause nor the address that did answer."""

    async def starting(at: Address) -> None:
        group = Group(GroupSettings(bootstrap=(at,), group="g", topics=("a",), instance_ids=("seat-0",)))
        try:
            await group.start()
        finally:
            await group.close()

    await connect_where_advertised(starting, monkeypatch, caplog)


@on_a_loop
async def test_listings_that_go_on_end_with_their_group() -> None:
    world = BrokerWorld(first={"JoinGroup": [None]})
    await world.start()
    group = Group(
        GroupSettings(bootstrap=(world.brokers[0].address,), group="g", topics=("a",), instance_ids=("seat-0",))
    )
    await group.start()
    world.leaders = dict.fromkeys(world.leaders, -1)
    listing = await group.offsets.begin_ends(world.leaders, read_committed=False)
    assert (await listing.answers(100)).found == {}
    await group.close()
    assert listing.ended
    assert [task for task in asyncio.all_tasks() if task.get_name().startswith("offsets")] == []
    await world.stop()
