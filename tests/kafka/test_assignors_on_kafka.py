"""Assignors in groups on a real Kafka: beside Java's, several at once, and from one rebalance protocol to the other."""

import threading
from collections.abc import Callable, Iterator

import pytest
from harness.groups import assignment_by_instance, stable_generation
from harness.kafka import MakeTopic, produce
from harness.members import MemberProcess, all_pairs
from harness.waiting import wait_for

from spark_kgroup.testing import ApacheKafka

Join = Callable[..., MemberProcess]


@pytest.fixture
def topic(new_topic: MakeTopic) -> str:
    return new_topic(6)


@pytest.fixture
def join(apache_kafka: ApacheKafka, group: str, topic: str) -> Iterator[Join]:
    started: list[MemberProcess] = []

    def start(instance_id: str, assignors: str) -> MemberProcess:
        member = MemberProcess(apache_kafka.bootstrap_servers, group, topic, instance_id, "--assignor", assignors)
        started.append(member)
        return member

    yield start
    for member in started:
        member.process.kill()
        member.end()


def test_java_s_sticky_leader_and_ours_after_it_leave_each_member_its_partitions(
    join: Join, apache_kafka: ApacheKafka, group: str, topic: str
) -> None:
    """1. Java leads. 2. Ours join, one after the other, with several assignors: Java reads the partitions of ours from
    their user data. 3. Java leaves, and one of ours leads."""
    java = threading.Thread(
        target=apache_kafka.tool,
        args=(
            "org.apache.kafka.tools.consumer.ConsoleConsumer",
            *("--bootstrap-server", apache_kafka.bootstrap_servers, "--topic", topic, "--group", group),
            *("--max-messages", "1"),  # it leaves when it has read one
            *("--command-property", "partition.assignment.strategy=org.apache.kafka.clients.consumer.StickyAssignor"),
        ),
        kwargs={"timeout_s": 180},
    )
    java.start()
    wait_for(lambda: len(assignment_by_instance(apache_kafka, group)) == 1, "the Java member to lead", 40)
    first = join("a", "cooperative-sticky,sticky")
    had = first.wait_for_owned(3)
    second = join("b", "sticky,cooperative-sticky")
    kept, taken = first.wait_for_owned(2), second.wait_for_owned(2)
    assert kept < had
    assert not first.events[-1]["leader"]
    produce(apache_kafka.bootstrap_servers, topic, 6, partitions=6)
    java.join(60)
    assert not java.is_alive()
    assert first.wait_for_owned(3) > kept
    assert second.wait_for_owned(3) > taken
    assert first.owned | second.owned == all_pairs(topic, 6)


def bounce(join: Join, members: dict[str, MemberProcess], topic: str, *steps: str) -> None:
    """Restart one member after the other with the assignors of each step. Both share the topic after each restart."""

    def shared() -> bool:
        shares = [member.owned for member in members.values()]
        return [len(share) for share in shares] == [3, 3] and set.union(*shares) == all_pairs(topic, 6)

    for assignors in steps:
        for name in list(members):
            members[name].interrupt()
            members[name] = join(name, assignors)
            wait_for(shared, f"two members to share the topic when {name} came back with {assignors}", 60)


@pytest.mark.full
def test_two_bounces_make_a_cooperative_group_eager_again(join: Join, topic: str) -> None:
    """KIP-429 has no such path, yet a group that was made cooperative must have a way back."""
    members = {name: join(name, "cooperative-sticky") for name in "ab"}
    for member in members.values():
        member.wait_for_owned(3)
    bounce(join, members, topic, "cooperative-sticky,range", "range")
    owned = {name: member.owned for name, member in members.items()}
    join("c", "range").wait_for_owned(2)
    for name, member in members.items():
        revoked = member.wait_for_event("revoked")
        assert {(tp, index) for tp, index in revoked["revoked"]} == owned[name], "an eager member gives up all"


def test_two_bounces_make_a_group_cooperative_and_each_restart_finds_its_seat(
    join: Join, apache_kafka: ApacheKafka, group: str, topic: str
) -> None:
    """KIP-429, "Compatibility, Deprecation, and Migration Plan"."""
    members = {name: join(name, "range") for name in "ab"}
    for member in members.values():
        member.wait_for_owned(3)
    bounce(join, members, topic, "cooperative-sticky,range", "cooperative-sticky")
    generation = stable_generation(apache_kafka, group)
    third = join("c", "cooperative-sticky")
    third.wait_for_owned(2)
    for member in members.values():
        member.wait_for_owned(2)
        revoked = member.wait_for_event("revoked")
        assert len(revoked["revoked"]) == 1, "an eager member would have given up all"
    assert stable_generation(apache_kafka, group) > generation
