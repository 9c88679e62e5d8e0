"""A group that is told its cluster starts at no other one, although that has a topic and a group of the same name."""

import pytest
from harness.fake_broker import on_a_loop, until
from harness.fake_cluster import A0, BrokerWorld, ends_with
from harness.kio_messages import JoinGroupRequest, OffsetFetchRequest

from spark_kgroup.errors import ConnectionFailed
from spark_kgroup.runtime import group as group_module
from spark_kgroup.runtime.group import Group
from spark_kgroup.runtime.settings import ClientSettings, GroupSettings, OwnerHooks

pytestmark = pytest.mark.filterwarnings("error::ResourceWarning")


def settings_of(world: BrokerWorld, cluster_id: str | None) -> GroupSettings:
    return GroupSettings(
        bootstrap=tuple(broker.address for broker in world.brokers),
        group="g",
        topics=("a",),
        instance_ids=("seat-0",),
        client=ClientSettings(cluster_id=cluster_id),
        hooks=OwnerHooks(before_joining=lambda _: None),
    )


@on_a_loop
async def test_a_start_ends_in_time_and_asks_the_other_cluster_for_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_module, "STARTUP_TIMEOUT_MS", 3_000)
    world = BrokerWorld(cluster_id="other", committed={A0: 7}, first={"JoinGroup": [None]})
    await world.start()
    group = Group(settings_of(world, "ours"))
    with ends_with(ConnectionFailed, r"of another cluster is at .+ \(cluster id other, was ours\)"):
        await group.start()
    assert world.asked(OffsetFetchRequest) == world.asked(JoinGroupRequest) == 0
    await group.close()
    await world.stop()


@pytest.mark.parametrize(
    ("told", "said", "known"),
    [
        pytest.param("ours", "ours", "ours", id="the same"),
        pytest.param("ours", None, "ours", id="brokers that do not say it"),
        pytest.param(None, "ours", "ours", id="a first start"),
        pytest.param(None, None, None, id="a first start, and brokers that do not say it"),
    ],
)
def test_a_group_knows_its_cluster_once_it_has_started(told: str | None, said: str | None, known: str | None) -> None:
    @on_a_loop
    async def scenario() -> None:
        world = BrokerWorld(cluster_id=said, first={"JoinGroup": [None]})
        await world.start()
        group = Group(settings_of(world, told))
        await group.start()
        await until(lambda: world.asked(JoinGroupRequest) == 1)
        assert group.cluster_id == known
        await group.close()
        await world.stop()

    scenario()
