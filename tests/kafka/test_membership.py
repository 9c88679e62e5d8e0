"""`Group.connect` on a real Kafka, as a program that knows no Spark uses it."""

import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
from harness.fake_broker import on_a_loop
from harness.groups import assignment_by_instance
from harness.waiting import wait_for

from spark_kgroup import Assigned, Group, Lost, Revoked, TopicPartition
from spark_kgroup.errors import FencedInstanceId, OptionError, UnknownTopic
from spark_kgroup.membership import Event
from spark_kgroup.model import CLASSIC, CONSUMER
from spark_kgroup.testing import ApacheKafka

E = TypeVar("E", bound=Event)
EXAMPLE = Path(__file__).parents[2] / "examples" / "shards.py"


async def next_of(events: AsyncIterator[Event], kind: type[E]) -> E:
    """The next event, which has to be of this kind."""
    event = await anext(events)
    assert isinstance(event, kind)
    return event


def four_of(topic: str) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(topic, index) for index in range(4))


@pytest.mark.parametrize("protocol", [CLASSIC, CONSUMER])
def test_a_seat_hands_a_newcomer_s_partitions_over_at_the_offsets_that_it_committed(
    apache_kafka: ApacheKafka, topic: str, group: str, protocol: str
) -> None:
    @on_a_loop
    async def scenario() -> None:
        connect = partial(
            Group.connect, apache_kafka.bootstrap_servers, group=group, topics=[topic], group_protocol=protocol
        )
        async with connect(instance_ids=["a"]) as first:
            firsts = first.events()
            assert (await next_of(firsts, Assigned)).partitions == four_of(topic)
            assert await first.committed(four_of(topic)) == {}
            async with connect(instance_ids=["b"]) as second:
                seconds = second.events()
                asked = await next_of(firsts, Revoked)
                assert len(asked.partitions) == 2
                assert first.owned == {"a": four_of(topic)}, "until they are released"
                with pytest.raises(OptionError, match="has not asked for"):
                    first.release(four_of(topic))
                confirmed = await first.commit(dict.fromkeys(four_of(topic), 7))
                assert confirmed == four_of(topic)
                first.release(asked.partitions)
                assert first.owned == {"a": four_of(topic) - asked.partitions}
                taken = await next_of(seconds, Assigned)
                assert (taken.instance_id, taken.partitions) == ("b", asked.partitions)
                assert await second.committed(taken.partitions) == dict.fromkeys(taken.partitions, 7)
                assert await second.commit(dict.fromkeys(four_of(topic), 9)) == taken.partitions
                await second.leave()
            back = await next_of(firsts, Assigned)
            assert back.partitions == taken.partitions
            assert await first.committed(back.partitions) == dict.fromkeys(back.partitions, 9)

    scenario()


@pytest.mark.parametrize("protocol", [CLASSIC, CONSUMER])
def test_a_restarted_program_has_the_partitions_of_its_seat_and_the_older_one_is_fenced(
    apache_kafka: ApacheKafka, topic: str, group: str, protocol: str
) -> None:
    @on_a_loop
    async def scenario() -> None:
        connect = partial(
            Group.connect, apache_kafka.bootstrap_servers, group=group, topics=[topic], group_protocol=protocol
        )
        async with connect(instance_ids=["a"]) as older:
            olders = older.events()
            await next_of(olders, Assigned)
            async with connect(instance_ids=["a"]) as newer:
                assert (await next_of(newer.events(), Assigned)).partitions == four_of(topic)
                assert (await next_of(olders, Lost)).partitions == four_of(topic)
                with pytest.raises(FencedInstanceId):
                    await anext(olders)
                assert older.owned == {}

    scenario()
    assert assignment_by_instance(apache_kafka, group).keys() == {"a"}, "a static member keeps its place"


@pytest.mark.parametrize("protocol", [CLASSIC, CONSUMER])
def test_a_dynamic_member_leaves_at_the_end_of_its_block(
    apache_kafka: ApacheKafka, topic: str, group: str, protocol: str
) -> None:
    @on_a_loop
    async def scenario() -> None:
        server = apache_kafka.bootstrap_servers
        connect = partial(Group.connect, server, group=group, topics=[topic], group_protocol=protocol)
        async with connect(instance_ids=[None]) as joined:
            assert (await next_of(joined.events(), Assigned)).partitions == four_of(topic)

    scenario()
    assert assignment_by_instance(apache_kafka, group) == {}


def test_a_topic_that_is_missing_is_an_error_when_the_program_connects(apache_kafka: ApacheKafka, group: str) -> None:
    @on_a_loop
    async def scenario() -> None:
        with pytest.raises(UnknownTopic, match="no-such-topic"):
            async with Group.connect(
                apache_kafka.bootstrap_servers, group=group, topics=["no-such-topic"], instance_ids=["a"]
            ):
                pass

    scenario()


def test_the_example_runs_each_shard_in_one_process(apache_kafka: ApacheKafka, topic: str, tmp_path: Path) -> None:
    printed = tmp_path / "printed"

    def shards(me: str) -> set[str]:
        lines = [line for line in printed.read_text().splitlines() if line.startswith(f"{me} works on")]
        return set(re.findall(rf"{topic}-\d", lines[-1])) if lines else set()

    def start(me: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(EXAMPLE), apache_kafka.bootstrap_servers, topic, me]
        return subprocess.Popen(command, stdout=printed.open("a"), stderr=subprocess.STDOUT)

    with start("one") as one:
        try:
            wait_for(lambda: len(shards("one")) == 4, "all shards in one process", 60)
            with start("two") as two:
                try:
                    wait_for(lambda: len(shards("one")) == len(shards("two")) == 2, "half of the shards each", 60)
                    assert not shards("one") & shards("two")
                    two.send_signal(signal.SIGINT)
                    assert two.wait(30) == 0
                finally:
                    two.kill()
            one.send_signal(signal.SIGINT)
            assert one.wait(30) == 0
        finally:
            one.kill()
    assert "Traceback" not in printed.read_text()
