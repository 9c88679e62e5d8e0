"""Seats of a classic group with member ids that their processes made, on a real Kafka (decision 72)."""

import asyncio
import logging
import os
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import replace

import pytest
from harness.fake_broker import on_a_loop, until
from harness.groups import stable_generation
from harness.kafka import MakeTopic
from harness.members import MemberProcess, all_pairs
from harness.sharing import Sharing
from harness.waiting import wait_for

from spark_kgroup.member.config import PreviouslyOwned
from spark_kgroup.member.member_ids import new_member_id
from spark_kgroup.model import MemberIdentity, TopicPartition
from spark_kgroup.runtime.group import Group
from spark_kgroup.runtime.settings import ClientSettings, GroupSettings, OngoingWork, ProtocolSettings
from spark_kgroup.testing import ApacheKafka
from spark_kgroup.wire import messages, schema
from spark_kgroup.wire.address import parse_bootstrap

PARTITIONS = 6
OWN_ID = re.compile(r"[\w-]{22}")


@pytest.fixture
def topic(new_topic: MakeTopic) -> str:
    return new_topic(PARTITIONS)


def settings_of(kafka: ApacheKafka, group: str, topic: str, *seats: str) -> GroupSettings:
    return GroupSettings(
        bootstrap=parse_bootstrap(kafka.bootstrap_servers),
        group=group,
        topics=(topic,),
        instance_ids=seats,
        client=ClientSettings(metadata_max_age_ms=1_000),
        protocol=ProtocolSettings(own_ids=True, heartbeat_interval_ms=500),
    )


@asynccontextmanager
async def started(settings: GroupSettings) -> AsyncIterator[Group]:
    group = Group(settings)
    await group.start()
    try:
        yield group
    finally:
        await group.close()


def _give_up_as_asked(group: Group) -> None:
    for seat in group.view().seats:
        if seat.to_give_up:
            group.give_up(seat.instance_id, seat.to_give_up)


async def at_rest(partitions: int, *groups: Group, own_ids: bool = True) -> dict[str, frozenset[TopicPartition]]:
    """Each seat's partitions once all are owned and each has its own id. Until then seats give up as asked."""

    def hold() -> bool:
        for group in groups:
            _give_up_as_asked(group)
        seats = [seat for group in groups for seat in group.view().seats]
        shares = [len(seat.owned_since) for seat in seats]
        named = all(bool(OWN_ID.fullmatch(seat.identity.member_id)) == own_ids for seat in seats)
        fair = sum(shares) == partitions and max(shares) - min(shares) <= 1
        return named and fair and all(seat.settled for seat in seats)

    await until(hold)
    return {seat.instance_id: frozenset(seat.owned_since) for group in groups for seat in group.view().seats}


def test_members_with_ids_of_their_own_come_and_restart_beside_librdkafka_s_without_another_rebalance(
    apache_kafka: ApacheKafka, topic: str, group: str
) -> None:
    server = apache_kafka.bootstrap_servers

    def joined(name: str) -> MemberProcess:
        return MemberProcess(server, group, topic, name, "--member-ids", "client")

    def has_own_id(member: MemberProcess) -> bool:
        return bool(OWN_ID.fullmatch(member.events[-1]["member_id"]))

    with ExitStack() as running:
        first, second = (running.enter_context(joined(name)) for name in ("a", "b"))
        wait_for(lambda: bool(first.owned and second.owned), "a leader of ours", 60)
        # Else it comes between the two requests of a renaming, leads after the broker's own assignor, and a
        # leader of librdkafka's has the broker refuse ids (decisions 53, 104).
        wait_for(lambda: has_own_id(first) and has_own_id(second), "ids of their own", 60)
        other = running.enter_context(Sharing(server, group, topic))

        def shared() -> bool:
            theirs = {(topic, index) for index in other.owned}
            fair = {len(first.owned), len(second.owned), len(theirs)} == {PARTITIONS // 3}
            return fair and first.owned | second.owned | theirs == all_pairs(topic, PARTITIONS)

        wait_for(lambda: shared() and has_own_id(first) and has_own_id(second), "shares and ids", 60)
        generation = stable_generation(apache_kafka, group)
        before, moves, of_second = first.owned, other.moves, len(second.events)
        first.process.kill()
        first.end()
        with joined("a") as again:
            wait_for(lambda: again.owned == before and has_own_id(again), "the killed process's partitions", 30)
            assert again.events[-1]["member_id"] != first.events[-1]["member_id"]
            assert stable_generation(apache_kafka, group) == generation
            assert (other.moves, len(second.events)) == (moves, of_second), "others noticed the restart"
            assert again.last("lost") is None


def test_partitions_that_are_added_while_a_leader_without_knowing_restarts_are_found_and_no_other_partition_moves(
    apache_kafka: ApacheKafka, topic: str, group: str
) -> None:
    """KIP-814's SkipAssignment, and a leader that the coordinator chose without a word (ClassicGroup.add)."""

    @on_a_loop
    async def scenario() -> None:
        async with AsyncExitStack() as groups:
            settings = [settings_of(apache_kafka, group, topic, *seats) for seats in (("a", "b"), ("c",))]
            stays = await groups.enter_async_context(started(settings[0]))
            restarts = Group(settings[1])
            await restarts.start()
            held = await at_rest(PARTITIONS, stays, restarts)
            assert not [seat for each in (stays, restarts) for seat in each.view().seats if seat.leader]
            await restarts.close()
            await asyncio.to_thread(apache_kafka.add_partitions, topic, PARTITIONS + 3)
            again = await groups.enter_async_context(started(settings[1]))
            after = await at_rest(PARTITIONS + 3, stays, again)
            assert all(held[name] <= after[name] for name in held)

    scenario()


def test_a_seat_whose_process_dies_between_the_two_requests_is_there_again_with_all_it_had(
    apache_kafka: ApacheKafka, topic: str, group: str
) -> None:
    @on_a_loop
    async def scenario() -> None:
        async with AsyncExitStack() as groups:
            stays = await groups.enter_async_context(started(settings_of(apache_kafka, group, topic, "b")))
            settings = settings_of(apache_kafka, group, topic, "a")
            dies = Group(settings)
            await dies.start()
            held = await at_rest(PARTITIONS, stays, dies)
            since = stays.view().seats[0].owned_since
            generation = stays.view().seats[0].identity.generation
            await dies.close()
            late = MemberIdentity(instance_id="a", member_id=new_member_id(os.urandom), generation=0)
            request, _ = messages.consumer_group_heartbeat(
                group, late, rebalance_timeout_ms=60_000, topics=[topic], owned=()
            )
            answer = await stays._cluster.coordinators.call(group, request)
            assert isinstance(answer, schema.ConsumerGroupHeartbeatResponse)
            assert (int(answer.error_code), answer.member_epoch) == (0, generation)
            assert (await stays.describe()).is_consumer_type
            again = await groups.enter_async_context(started(settings))
            assert await at_rest(PARTITIONS, stays, again) == held
            assert stays.view().seats[0].owned_since == since
            assert not (await stays.describe()).is_consumer_type
            assert {seat.identity.generation for each in (stays, again) for seat in each.view().seats} == {generation}

    scenario()


def test_a_broker_that_does_not_convert_groups_back_leaves_seats_their_ids_and_it_is_said_once(
    group: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)

    @on_a_loop
    async def scenario(kafka: ApacheKafka) -> None:
        async with started(settings_of(kafka, group, "orders", "a", "b")) as seats:
            await at_rest(PARTITIONS, seats, own_ids=False)
            await until(lambda: bool(_warnings(caplog)))
            seats.force_rebalance("the test says so")
            before = seats.view().seats[0].identity.generation
            await until(lambda: seats.view().settled and seats.view().seats[0].identity.generation > before)
            await at_rest(PARTITIONS, seats, own_ids=False)

    with ApacheKafka(server_properties={"group.consumer.migration.policy": "upgrade"}) as kafka:
        kafka.create_topic("orders", PARTITIONS)
        scenario(kafka)
    (warning,) = _warnings(caplog)
    assert "group.consumer.migration.policy is upgrade" in warning


def test_an_eager_assignor_leaves_seats_their_ids_and_it_is_said_once(
    apache_kafka: ApacheKafka, topic: str, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)

    @on_a_loop
    async def scenario() -> None:
        settings = settings_of(apache_kafka, group, topic, "a")
        eager = replace(settings, protocol=replace(settings.protocol, assignors=("range",)))
        async with started(eager) as seats:
            await until(lambda: bool(_warnings(caplog)))
            await at_rest(PARTITIONS, seats, own_ids=False)

    scenario()
    (warning,) = _warnings(caplog)
    assert "an eager assignor (range)" in warning


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each for each in caplog.messages if "keep the coordinator's member ids" in each]


# ------------------------------------------------------------------------------------------- ids of their own if alone


def if_alone(kafka: ApacheKafka, group: str, topic: str, *seats: str) -> GroupSettings:
    settings = settings_of(kafka, group, topic, *seats)
    return replace(settings, protocol=replace(settings.protocol, own_ids=False, own_ids_if_alone=True))


async def settled(group: Group) -> list[str]:
    """The member ids of the seats at the first moment at which they may begin to read: they give up as asked till then.

    A coordinator that has not heard of the topic yet, which is new, forgets its assignment when it converts the group.
    """

    def rests() -> bool:
        _give_up_as_asked(group)
        return group.view().settled

    await until(rests)
    return [seat.identity.member_id for seat in group.view().seats]


def test_seats_that_are_alone_have_ids_of_their_own_before_they_are_settled(
    apache_kafka: ApacheKafka, topic: str, group: str
) -> None:
    @on_a_loop
    async def scenario() -> None:
        async with started(if_alone(apache_kafka, group, topic, "a", "b")) as seats:
            assert all(map(OWN_ID.fullmatch, await settled(seats)))
            assert not (await seats.describe()).is_consumer_type
            assert await at_rest(PARTITIONS, seats)

    scenario()


def test_seats_in_company_keep_the_broker_s_ids_also_when_the_other_members_have_left(
    apache_kafka: ApacheKafka, topic: str, group: str
) -> None:
    @on_a_loop
    async def scenario() -> None:
        async with started(if_alone(apache_kafka, group, topic, "a")) as first:
            (own,) = await settled(first)
            second = Group(if_alone(apache_kafka, group, topic, "b"))
            await second.start()
            await at_rest_whatever_ids(first, second)
            assert [seat.identity.member_id for seat in first.view().seats] == [own]
            (theirs,) = [seat.identity.member_id for seat in second.view().seats]
            assert theirs.startswith("b-")
            await first.leave()
            await at_rest_whatever_ids(second)
            assert [seat.identity.member_id for seat in second.view().seats] == [theirs]
            await second.close()

    scenario()


def test_a_seat_that_may_have_to_finish_an_earlier_process_s_work_keeps_the_broker_s_id(
    apache_kafka: ApacheKafka, topic: str, group: str
) -> None:
    """The broker's own assignor might give away the partitions that it reads again, if a member joined just then."""

    @on_a_loop
    async def scenario() -> None:
        settings = if_alone(apache_kafka, group, topic, "a")
        async with started(settings) as first:
            await settled(first)
            (seat,) = first.view().seats
            owed = PreviouslyOwned(partitions=frozenset(seat.owned_since), generation=seat.identity.generation)
        async with started(replace(settings, work=OngoingWork(previously_owned={"a": owed}))) as again:
            (member_id,) = await settled(again)
            assert member_id.startswith("a-")

    scenario()


def test_a_newcomer_hears_of_its_share_when_a_group_of_type_consumer_has_become_a_classic_one(
    apache_kafka: ApacheKafka, topic: str, group: str
) -> None:
    """1. A seat's process dies between the two requests of a renaming. 2. A newcomer joins. 3. The seat is back."""

    @on_a_loop
    async def scenario() -> None:
        settings = settings_of(apache_kafka, group, topic, "a")
        settings = replace(settings, protocol=replace(settings.protocol, own_ids=False))
        async with started(settings) as dies:
            await at_rest_whatever_ids(dies)
        async with started(replace(settings, instance_ids=(None,), group="another")) as asks:
            late = MemberIdentity(instance_id="a", member_id=new_member_id(os.urandom), generation=0)
            request, _ = messages.consumer_group_heartbeat(
                group, late, rebalance_timeout_ms=60_000, topics=[topic], owned=()
            )
            await asks._cluster.coordinators.call(group, request)
        async with started(replace(settings, instance_ids=(None,))) as newcomer:
            await until(lambda: newcomer.view().settled)
            assert (await newcomer.describe()).is_consumer_type
            async with started(settings) as again:
                await at_rest_whatever_ids(newcomer, again)

    scenario()


async def at_rest_whatever_ids(*groups: Group) -> None:
    def hold() -> bool:
        for group in groups:
            _give_up_as_asked(group)
        shares = [len(seat.owned_since) for group in groups for seat in group.view().seats]
        rests = all(group.view().settled for group in groups)
        return rests and sum(shares) == PARTITIONS and max(shares) - min(shares) <= 1

    await until(hold)
