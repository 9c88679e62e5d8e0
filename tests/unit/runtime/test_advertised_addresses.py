"""A start ends in time where brokers cannot be reached at the address that they advertise."""

import asyncio
import logging
import time
from types import SimpleNamespace

import pytest
from harness.fake_broker import on_a_loop, until
from harness.fake_cluster import BrokerWorld

from spark_kgroup.errors import ConnectionFailed
from spark_kgroup.limits import STARTUP_TIMEOUT_MS
from spark_kgroup.runtime.group import Group
from spark_kgroup.runtime.settings import GroupSettings
from spark_kgroup.wire import brokers as brokers_module
from spark_kgroup.wire.address import Address

pytestmark = pytest.mark.filterwarnings("error::ResourceWarning")


@on_a_loop
async def test_a_start_names_the_address_that_answers_and_the_one_that_does_not(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Docker, NAT, DNS: it took five minutes, and the error named neither the cause nor the address that did answer.

    The test turns the clock of the retries when the first attempt has failed, however long that took.
    """
    caplog.set_level(logging.WARNING)
    ahead_s = 0.0
    monkeypatch.setattr(brokers_module, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + ahead_s))
    world = BrokerWorld()
    await world.start()
    at = world.brokers[0].address
    world.hosts[0] = "kafka.internal.invalid"
    group = Group(GroupSettings(bootstrap=(at,), group="g", topics=("a",), instance_ids=("seat-0",)))
    starting = asyncio.create_task(group.start())
    await until(lambda: "Trying again" in caplog.text)
    ahead_s = STARTUP_TIMEOUT_MS / 1000
    with pytest.raises(ConnectionFailed) as problem:
        await starting
    message = str(problem.value)
    for named in (str(at), str(Address("kafka.internal.invalid", at.port)), "advertised.listeners"):
        assert named in message
    await group.close()
    await world.stop()


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
