"""How many seats are started, by the topics that brokers know at that moment, and the waits of their start."""

import asyncio
from collections.abc import Mapping

import pytest
from harness.fake_broker import on_a_loop, until
from harness.fake_cluster import A0, A1, B0, BrokerWorld
from harness.kio_messages import JoinGroupRequest

from spark_kgroup.errors import OptionError
from spark_kgroup.member.classic import PreviouslyOwned
from spark_kgroup.model import ErrorCode, TopicPartition
from spark_kgroup.runtime import group as group_module
from spark_kgroup.runtime.group import Group
from spark_kgroup.runtime.settings import GroupSettings, OngoingWork, OwnerHooks, ProtocolSettings
from spark_kgroup.wire.consumer_protocol import decode_subscription

pytestmark = pytest.mark.filterwarnings("error::ResourceWarning")

SIX = tuple(f"seat-{index}" for index in range(6))


@pytest.mark.parametrize(
    ("leaders", "cap_seats_to_partitions", "expected"),
    [
        pytest.param({A0: 0, A1: 0, B0: 0}, True, 3, id="a seat for each partition"),
        pytest.param({A0: 0, A1: 0, B0: 0}, False, 6, id="as many as were asked for"),
        pytest.param({A0: 0, A1: 0}, True, 6, id="nobody knows how many partitions the missing topic has"),
        pytest.param({}, True, 6, id="no topic is there yet"),
    ],
)
def test_seats_are_limited_by_partitions_once_all_topics_are_seen(
    leaders: Mapping[TopicPartition, int], cap_seats_to_partitions: bool, expected: int
) -> None:
    @on_a_loop
    async def scenario() -> None:
        world = BrokerWorld(leaders=dict(leaders), first={"JoinGroup": [None] * len(SIX)})
        await world.start()
        settings = GroupSettings(
            bootstrap=(world.brokers[0].address,),
            group="g",
            topics=("a", "b"),
            instance_ids=SIX,
            topics_must_exist=False,
            cap_seats_to_partitions=cap_seats_to_partitions,
        )
        group = Group(settings)
        try:
            await group.start()
            assert [seat.instance_id for seat in group.view().seats] == list(SIX[:expected])
        finally:
            await group.close()
            await world.stop()

    scenario()


def test_seats_that_come_back_wait_for_their_coordinator_longer_than_for_a_first_contact(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_module, "STARTUP_TIMEOUT_MS", 1_500)
    away = [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 6  # answered with growing pauses: more than 1,500 ms in all

    @on_a_loop
    async def scenario() -> None:
        world = BrokerWorld(first={"FindCoordinator": list(away), "JoinGroup": [None]})
        await world.start()
        settings = GroupSettings(
            bootstrap=(world.brokers[0].address,),
            group="g",
            topics=("a",),
            instance_ids=("seat-0",),
            work=OngoingWork(previously_owned={"seat-0": PreviouslyOwned(partitions=frozenset({A0}), generation=1)}),
        )
        group = Group(settings)
        began = asyncio.get_running_loop().time()
        try:
            await group.start()
            assert asyncio.get_running_loop().time() - began > 1.5
            assert len(group.view().seats) == 1
        finally:
            await group.close()
            await world.stop()

    scenario()


def test_each_seat_offers_its_assignors_in_order_and_names_its_own_rack() -> None:
    @on_a_loop
    async def scenario() -> None:
        world = BrokerWorld(first={"JoinGroup": [None, None]})
        racks: dict[str | None, str] = {"seat-0": "r1"}
        await world.start()
        group = Group(
            GroupSettings(
                bootstrap=(world.brokers[0].address,),
                group="g",
                topics=("a",),
                instance_ids=("seat-0", "seat-1"),
                protocol=ProtocolSettings(assignors=("sticky", "harness.custom_assignors:FirstTakesAll", "range")),
                hooks=OwnerHooks(rack_of=racks.get),
            )
        )
        try:
            await group.start()
            await until(lambda: world.asked(JoinGroupRequest) == 2)
            joins = [r for broker in world.brokers for r in broker.requests if isinstance(r, JoinGroupRequest)]
            for join in joins:
                assert [offer.name for offer in join.protocols] == ["sticky", "first-takes-all", "range"]
                rack = {"seat-0": "r1", "seat-1": None}[join.group_instance_id or ""]
                assert {decode_subscription(offer.metadata).rack for offer in join.protocols} == {rack}
        finally:
            await group.close()
            await world.stop()

    scenario()


def test_an_assignor_that_cannot_be_imported_is_an_error_of_the_start() -> None:
    @on_a_loop
    async def scenario() -> None:
        world = BrokerWorld()
        await world.start()
        group = Group(
            GroupSettings(
                bootstrap=(world.brokers[0].address,),
                group="g",
                topics=("a",),
                instance_ids=("seat-0",),
                protocol=ProtocolSettings(assignors=("no_such_module:Assignor",)),
            )
        )
        try:
            with pytest.raises(OptionError, match="assignor 'no_such_module:Assignor'"):
                await group.start()
        finally:
            await group.close()
            await world.stop()

    scenario()


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        pytest.param([], {A0: 7}, id="at once"),
        pytest.param([ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 2, {A0: 7}, id="a coordinator that loads"),
        pytest.param([ErrorCode.GROUP_AUTHORIZATION_FAILED], {}, id="a right that is missing, which the seats tell of"),
    ],
)
def test_an_owner_is_told_the_group_s_committed_offsets_before_a_seat_joins(
    answers: list[int], expected: Mapping[TopicPartition, int]
) -> None:
    @on_a_loop
    async def scenario() -> None:
        world = BrokerWorld(committed={A0: 7}, first={"OffsetFetch": list(answers), "JoinGroup": [None]})
        await world.start()
        seen: list[tuple[dict[TopicPartition, int], int]] = []
        settings = GroupSettings(
            bootstrap=(world.brokers[0].address,),
            group="g",
            topics=("a",),
            instance_ids=("seat-0",),
            hooks=OwnerHooks(
                before_joining=lambda committed: seen.append(
                    ({tp: found.offset for tp, found in committed.items()}, world.asked(JoinGroupRequest))
                )
            ),
        )
        group = Group(settings)
        try:
            await group.start()
            await until(lambda: world.asked(JoinGroupRequest) == 1)
            assert seen == [(expected, 0)]
        finally:
            await group.close()
            await world.stop()

    scenario()
