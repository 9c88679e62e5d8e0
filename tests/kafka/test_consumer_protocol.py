"""Members under the consumer protocol (KIP-848) on a real Kafka: beside other clients, restarted, killed, doubled."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import pytest
from harness.fake_broker import on_a_loop, until
from harness.kafka import MakeTopic
from harness.members import MemberProcess, all_pairs
from harness.offsets import offsets_alone
from harness.sharing import Sharing
from harness.waiting import wait_for

from spark_kgroup.errors import BrokerError, FencedInstanceId, GroupRejected
from spark_kgroup.model import CLASSIC, CONSUMER, MemberIdentity, TopicPartition
from spark_kgroup.runtime.group import Group
from spark_kgroup.runtime.settings import GroupSettings, ProtocolSettings
from spark_kgroup.runtime.views import GroupView
from spark_kgroup.testing import ApacheKafka
from spark_kgroup.wire.address import parse_bootstrap

pytestmark = pytest.mark.since_kafka_4

PARTITIONS = 6
TAKEN_OVER_WITHIN_S = 30
"""Kafka would keep the seat of a killed process for 45 s. Most of this bound is for a slow start on a busy machine."""


@pytest.fixture
def topic(new_topic: MakeTopic) -> str:
    return new_topic(PARTITIONS)


def settings_of(kafka: ApacheKafka, group: str, topic: str, *seats: str) -> GroupSettings:
    return GroupSettings(
        bootstrap=parse_bootstrap(kafka.bootstrap_servers),
        group=group,
        topics=(topic,),
        instance_ids=seats,
        protocol=ProtocolSettings(name=CONSUMER),
    )


@asynccontextmanager
async def started(settings: GroupSettings) -> AsyncIterator[Group]:
    group = Group(settings)
    await group.start()
    try:
        yield group
    finally:
        await group.close()


async def kill(group: Group) -> None:
    """End it as SIGKILL would, without a word to the group."""
    await group._seats.tasks.end()
    await group._cluster.close()


def owned(view: GroupView) -> dict[str, frozenset[TopicPartition]]:
    return {seat.instance_id: frozenset(seat.owned_since) for seat in view.seats}


async def all_owned(*groups: Group) -> dict[str, frozenset[TopicPartition]]:
    """Each seat's partitions once each has its share of all and none to give up. Until then seats give up as asked."""
    given_up: set[tuple[MemberIdentity, frozenset[TopicPartition]]] = set()

    def hold() -> bool:
        for group in groups:
            for seat in group.view().seats:
                if seat.to_give_up and (seat.identity, seat.to_give_up) not in given_up:
                    given_up.add((seat.identity, seat.to_give_up))
                    group.give_up(seat.instance_id, seat.to_give_up)
        seats = [seat for group in groups for seat in group.view().seats]
        shares = [len(seat.owned_since) for seat in seats]
        all_of_it = {tp for seat in seats for tp in seat.owned_since}
        once_each = sum(shares) == len(all_of_it) == PARTITIONS
        return once_each and max(shares) - min(shares) <= 1 and all(seat.settled for seat in seats)

    await until(hold)
    return {name: share for group in groups for name, share in owned(group.view()).items()}


async def at_rest(group: Group) -> None:
    """Wait until the coordinator calls the group stable. While a group rebalances it forgets the assignments."""
    bound_s = asyncio.get_running_loop().time() + 60
    while (state := (await group.describe()).state) != "Stable":
        assert asyncio.get_running_loop().time() < bound_s, f"the group is {state}"
        await asyncio.sleep(0.05)


def test_two_of_our_members_and_one_of_librdkafka_s_share_a_topic_and_a_restart_moves_no_partition(
    apache_kafka: ApacheKafka, topic: str, group: str
) -> None:
    server, modern = apache_kafka.bootstrap_servers, ("--group-protocol", "consumer")

    def joined(name: str) -> MemberProcess:
        return MemberProcess(server, group, topic, name, *modern)

    with joined("a") as first, joined("b") as second, Sharing(server, group, topic, protocol="consumer") as other:

        def shared() -> bool:
            theirs = {(topic, index) for index in other.owned}
            fair = {len(first.owned), len(second.owned), len(theirs)} == {PARTITIONS // 3}
            return fair and first.owned | second.owned | theirs == all_pairs(topic, PARTITIONS)

        wait_for(shared, "each of three to own a share", 60)
        before, moves, of_second = first.owned, other.moves, len(second.events)
        first.process.kill()
        first.end()
        with joined("a") as again:
            wait_for(lambda: again.owned == before, "the killed process's partitions", TAKEN_OVER_WITHIN_S)
            assert again.events[-1]["member_id"] != first.events[-1]["member_id"]
            assert (other.moves, len(second.events)) == (moves, of_second), "others noticed the restart"


def test_the_older_of_two_live_processes_of_a_seat_is_fenced_and_the_newer_keeps_it(
    apache_kafka: ApacheKafka, topic: str, group: str
) -> None:
    @on_a_loop
    async def scenario() -> None:
        settings = settings_of(apache_kafka, group, topic, "a")
        older = Group(settings)
        await older.start()
        held = await all_owned(older)
        async with started(settings) as newer:
            began_s = time.monotonic()
            assert await all_owned(newer) == held
            assert time.monotonic() - began_s < TAKEN_OVER_WITHIN_S
            await until(lambda: older._seats.sessions["a"].failure is not None)
            with pytest.raises(FencedInstanceId, match=f"'a' in group '{group}'"):
                older.view()
            await older.close()
            assert owned(newer.view()) == held

    scenario()


def test_a_seat_that_closes_or_is_killed_is_taken_over_with_its_partitions_and_no_other_partition_moves(
    apache_kafka: ApacheKafka, topic: str, group: str
) -> None:
    @on_a_loop
    async def scenario() -> None:
        async with AsyncExitStack() as groups:
            stays = await groups.enter_async_context(started(settings_of(apache_kafka, group, topic, "b")))
            await all_owned(stays)
            settings = settings_of(apache_kafka, group, topic, "a")
            first = Group(settings)
            await first.start()
            held = await all_owned(stays, first)
            since = stays.view().seats[0].owned_since
            await first.close()
            second = Group(settings)
            await second.start()
            assert await all_owned(stays, second) == held
            await kill(second)
            async with started(settings) as third:
                assert await all_owned(stays, third) == held
                assert stays.view().seats[0].owned_since == since
                await third.leave()
            assert len((await all_owned(stays))["b"]) == PARTITIONS

    scenario()


def test_seats_change_to_the_classic_protocol_and_back_one_by_one_and_no_partition_moves(
    apache_kafka: ApacheKafka, topic: str, group: str
) -> None:
    """Kafka's group.consumer.migration.policy is `bidirectional`.

    They begin under the consumer protocol: so the coordinator knows the new topic before it converts (decision 53).
    """

    @on_a_loop
    async def scenario() -> None:
        modern = [settings_of(apache_kafka, group, topic, name) for name in ("a", "b")]
        protocol = ProtocolSettings(name=CLASSIC, heartbeat_interval_ms=500)
        classic = [replace(each, protocol=protocol) for each in modern]
        running = [Group(each) for each in modern]
        for each in running:
            await each.start()
        held = await all_owned(*running)
        await at_rest(running[0])
        for at, settings in [(0, classic), (1, classic), (1, modern), (0, modern)]:
            since = running[1 - at].view().seats[0].owned_since
            await running[at].close()
            running[at] = Group(settings[at])
            await running[at].start()
            assert await all_owned(*running) == held, f"{running[at].settings.protocol.name} seat {at} came"
            assert running[1 - at].view().seats[0].owned_since == since
            await at_rest(running[at])
        for each in running:
            await each.close()

    scenario()


def test_a_commit_of_an_epoch_that_has_moved_is_made_in_the_new_one(
    apache_kafka: ApacheKafka, topic: str, group: str
) -> None:
    @on_a_loop
    async def scenario() -> None:
        async with started(settings_of(apache_kafka, group, topic, "a")) as first:
            await all_owned(first)
            was = first.view().seats[0].identity
            async with started(settings_of(apache_kafka, group, topic, "b")) as second:
                held = (await all_owned(first, second))["a"]
                assert first.view().seats[0].identity.generation > was.generation
                positions = dict.fromkeys(held, 7)
                assert await first.commits.commit(was, positions) == held
                assert offsets_alone(await first.offsets.committed(held)) == positions
                with pytest.raises(BrokerError, match="STALE_MEMBER_EPOCH"):
                    await first._cluster.groups.committed_offsets(group, held, who=was)
                unknown = replace(was, member_id="nobody")
                with pytest.raises(BrokerError, match="UNKNOWN_MEMBER_ID"):
                    await first._cluster.groups.committed_offsets(group, held, who=unknown)
                gone = dict.fromkeys((await all_owned(first, second))["b"], 9)
                assert await first.commits.commit(replace(was, generation=1 << 20), gone) == frozenset()
                assert "STALE_MEMBER_EPOCH" in first.commits.refusal

    scenario()


def test_an_assignor_that_the_broker_does_not_have_is_one_clear_error(
    apache_kafka: ApacheKafka, topic: str, group: str
) -> None:
    @on_a_loop
    async def scenario() -> None:
        settings = settings_of(apache_kafka, group, topic, "a")
        settings = replace(settings, protocol=replace(settings.protocol, server_assignor="sticky"))
        async with started(settings) as seats:
            await until(lambda: seats._seats.sessions["a"].failure is not None)
            with pytest.raises(GroupRejected, match=r"'a' \(UNSUPPORTED_ASSIGNOR\).*`group.remote.assignor`"):
                seats.view()

    scenario()
