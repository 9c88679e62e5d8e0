"""A leader that is cut off and goes on answering is noticed beside a broker that does not know of its successor."""

import asyncio

import pytest
from harness.fake_broker import until
from harness.fake_cluster import A0, A1, BrokerWorld, in_a_world
from harness.kio_messages import MetadataRequest

from spark_kgroup.runtime import topics
from spark_kgroup.runtime.group import Group
from spark_kgroup.runtime.settings import GroupSettings

LONG_MS = 600_000


async def acquainted(world: BrokerWorld) -> Group:
    group = Group(GroupSettings(bootstrap=(world.brokers[0].address,), group="g", topics=("a",), instance_ids=("s",)))
    await group.topics.refresh(LONG_MS)
    return group


@in_a_world(nodes=3)
async def test_each_look_is_at_another_broker_until_one_names_the_new_leader(world: BrokerWorld) -> None:
    world.leaders, world.epochs = {A0: 0, A1: 1}, {A0: 4, A1: 4}
    group = await acquainted(world)
    for node in (0, 1):  # the leader, and a broker that has not heard of it
        world.cut_off_from_now_on(node)
    world.leaders, world.epochs = {A0: 2, A1: 1}, {A0: 5, A1: 4}
    with pytest.MonkeyPatch.context() as sooner:
        sooner.setattr(topics, "LEADERS_LOOKED_UP_MS", 10)
        watch = asyncio.create_task(group.topics.watch_leaders())
        await until(lambda: world.asked(MetadataRequest, 2) > 0)
        await until(lambda: group.topics._outdated)
    watch.cancel()
    await group.topics.subscribed(LONG_MS)
    assert {index: leader.node_id for index, leader in group.topics.known["a"].leaders.items()} == {0: 2, 1: 1}
    await group.close()


@in_a_world(nodes=3)
async def test_leaders_that_are_the_same_are_no_reason_to_ask_for_the_topics_anew(world: BrokerWorld) -> None:
    group = await acquainted(world)
    for _ in range(3):
        await group.topics.look_up_leaders()
    assert world.asked(MetadataRequest) == 4
    assert all(world.asked(MetadataRequest, node) for node in range(3))
    await group.topics.subscribed(LONG_MS)
    assert world.asked(MetadataRequest) == 4
    await group.close()


@in_a_world()
async def test_the_only_broker_is_not_asked(world: BrokerWorld) -> None:
    group = await acquainted(world)
    await group.topics.look_up_leaders()
    assert world.asked(MetadataRequest) == 1
    await group.close()
