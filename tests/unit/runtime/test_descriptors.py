"""One file descriptor for each seat: made room for, or said so at the start, and named where there is none left."""

import importlib
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from harness.fake_broker import FakeBroker, on_a_loop, until
from harness.fake_cluster import BrokerWorld

from spark_kgroup.errors import ConnectionFailed, EnvironmentProblem
from spark_kgroup.limits import DESCRIPTORS_SPARE
from spark_kgroup.runtime import descriptors
from spark_kgroup.runtime.descriptors import make_room_for
from spark_kgroup.runtime.group import Group
from spark_kgroup.runtime.settings import GroupSettings
from spark_kgroup.wire.connection import Connection

pytestmark = pytest.mark.filterwarnings("error::ResourceWarning")


@contextmanager
def soft_limit(descriptors_left: int) -> Iterator[None]:
    """This process may open so many more files, unless it raises its limit."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free + descriptors_left, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def soft() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def test_the_soft_limit_is_raised_as_far_as_the_seats_need_it() -> None:
    with soft_limit(10):
        make_room_for(100)
        assert soft() >= len(os.listdir("/dev/fd")) - 1 + 100 + DESCRIPTORS_SPARE
        raised = soft()
        make_room_for(100)
        assert soft() == raised


def test_a_hard_limit_without_room_for_the_seats_is_named_with_the_limit_they_need(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 64))
    text = r"60 seats need \d+ file descriptors in this process, whose limit is 64\. Raise the limit .*fewer members"
    with pytest.raises(EnvironmentProblem, match=text):
        make_room_for(60)


def test_a_hard_limit_without_room_for_spare_descriptors_is_used_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptors, "DESCRIPTORS_SPARE", 10**9)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with soft_limit(10):
        make_room_for(100)
        assert soft() == hard


def test_a_platform_without_a_limit_of_descriptors_has_room_for_all_seats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resource", None)  # as on Windows
    importlib.reload(descriptors).make_room_for(10**9)


@on_a_loop
async def test_a_group_with_more_seats_than_descriptors_is_refused_at_its_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 256))
    world = BrokerWorld()
    await world.start()
    seats = tuple(f"seat-{number}" for number in range(300))
    group = Group(GroupSettings(bootstrap=(world.brokers[0].address,), group="g", topics=("a",), instance_ids=seats))
    try:
        with pytest.raises(EnvironmentProblem, match="300 seats need"):
            await group.start()
        assert not group.view().seats
    finally:
        await group.close()
        await world.stop()


@on_a_loop
async def test_a_connection_without_a_descriptor_says_so() -> None:
    async with FakeBroker() as broker:
        with soft_limit(0), pytest.raises(ConnectionFailed, match=r"no file descriptor is left for it \(ulimit -n\)"):
            await Connection.open(broker.address, client_id="c")


@on_a_loop
async def test_a_seat_says_why_it_is_not_connected() -> None:
    world = BrokerWorld()
    await world.start()
    world.first["JoinGroup"] = [None]
    group = Group(
        GroupSettings(bootstrap=(world.brokers[0].address,), group="g", topics=("a",), instance_ids=("seat-0",))
    )
    try:
        await group.start()
        world.hosts[0] = "a..b"  # its coordinator's, before any seat has run
        await until(lambda: "cannot be a host" in (group.view().seats[0].trouble or ""))
        world.hosts.clear()
        await until(lambda: group.view().seats[0].trouble is None)
    finally:
        await group.close()
        await world.stop()
