"""A session that is sent away by its coordinator comes back ever more seldom, until it is heard."""

import time
from random import Random

import pytest
from harness import kio_messages
from harness.fake_broker import until
from harness.fake_cluster import BrokerWorld, in_a_world
from harness.sessions import join_refused

from spark_kgroup.limits import RETRY_BACKOFF_JITTER, RETRY_BACKOFF_MS
from spark_kgroup.model import ErrorCode
from spark_kgroup.runtime.group import Group
from spark_kgroup.runtime.settings import GroupSettings

pytestmark = pytest.mark.filterwarnings("error::ResourceWarning")

FIVE_WAITS_S = RETRY_BACKOFF_MS / 1000 * (1 + 2 + 4 + 8 + 10) * (1 - RETRY_BACKOFF_JITTER)


@in_a_world(nodes=2)
async def test_a_seat_that_no_broker_coordinates_connects_ever_more_seldom(world: BrokerWorld) -> None:
    """FindCoordinator may name a broker for long that does not know of it. Each answer costs a connection."""
    world.coordinator = 1
    world.on_JoinGroup = lambda _node, _request, error: join_refused(error.value)  # type: ignore[attr-defined]
    world.first["JoinGroup"] = [ErrorCode.NOT_COORDINATOR] * 5 + [None]
    settings = GroupSettings(bootstrap=(world.brokers[0].address,), group="g", topics=("a",), instance_ids=("seat-0",))
    group = Group(settings, rng=Random(1))
    began = time.monotonic()
    await group.start()
    try:
        await until(lambda: world.asked(kio_messages.JoinGroupRequest) == 6)
        assert time.monotonic() - began >= FIVE_WAITS_S
        assert world.brokers[1].connections == 7, "one for each join, and one to ask whether another coordinates"
    finally:
        await group.close()
