"""Operations on static members (KIP-345): remove and convert them."""

import json
import subprocess
from collections.abc import Callable, Iterator

import pytest
from harness.groups import described_by_us, instance_ids, stable_generation
from harness.kafka import MakeTopic
from harness.members import KGROUP, MemberProcess, all_pairs
from harness.waiting import wait_for

from spark_kgroup.testing import ApacheKafka

Join = Callable[..., MemberProcess]
Remove = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def topic(new_topic: MakeTopic) -> str:
    return new_topic(6)


@pytest.fixture
def join(apache_kafka: ApacheKafka, group: str, topic: str) -> Iterator[Join]:
    started: list[MemberProcess] = []

    def start(instance_id: str | None, *more: str) -> MemberProcess:
        member = MemberProcess(apache_kafka.bootstrap_servers, group, topic, instance_id, *more)
        started.append(member)
        return member

    yield start
    for member in started:
        member.process.kill()
        member.end()


@pytest.fixture
def remove(apache_kafka: ApacheKafka, group: str) -> Remove:
    def run(*arguments: str, answer: str = "") -> subprocess.CompletedProcess[str]:
        command = [KGROUP, "remove-members", "--bootstrap-server", apache_kafka.bootstrap_servers, "--group", group]
        return subprocess.run(
            [*command, *arguments], input=answer, capture_output=True, text=True, timeout=60, check=False
        )

    return run


def member_epochs(kafka: ApacheKafka, group: str) -> list[int]:
    """Of a group of type consumer, whose members librdkafka does not describe: our own client asks."""
    epochs = [member.epoch for member in described_by_us(kafka, group).members]
    assert None not in epochs
    return [epoch for epoch in epochs if epoch is not None]


def test_members_that_are_away_are_removed_in_one_rebalance_and_those_that_are_not_there_are_named(
    join: Join, remove: Remove, apache_kafka: ApacheKafka, group: str, topic: str
) -> None:
    """KIP-345, Scale Down: "batch remove offline members and trigger rebalance immediately without them"."""
    members = {name: join(name) for name in "abc"}
    for member in members.values():
        member.wait_for_owned(2)
    generation = stable_generation(apache_kafka, group)
    assert members["b"].interrupt() == members["c"].interrupt() == 0
    done = remove("--instance-id", "b,nobody", "--instance-id", "c")
    assert done.returncode == 1
    assert done.stdout.splitlines() == ["removed b", "removed c"]
    assert done.stderr == (
        f"kgroup: group {group!r} has no static member 'nobody': correct --instance-id (it has: a, b, c).\n"
    )
    assert members["a"].wait_for_owned(6) == all_pairs(topic, 6)
    assert stable_generation(apache_kafka, group) == generation + 1
    again = remove("--instance-id", "b", "--json")
    assert (again.returncode, json.loads(again.stdout)) == (1, {"removed": [], "missing": ["b"], "refused": {}})


def test_all_members_are_removed_after_a_question(
    join: Join, remove: Remove, apache_kafka: ApacheKafka, group: str
) -> None:
    static = join("a")
    static.wait_for_owned(6)
    assert static.interrupt() == 0
    refused = remove("--all", answer="n\n")
    assert refused.returncode == 1
    assert "give --yes" in refused.stderr
    assert instance_ids(apache_kafka, group) == ["a"]
    done = remove("--all", answer="y\n")
    assert (done.returncode, done.stdout) == (0, "removed a\n")
    empty = remove("--all", "--yes")
    assert (empty.returncode, empty.stdout) == (0, f"group {group!r} has no members\n")


@pytest.mark.since_kafka_4
def test_members_under_the_consumer_protocol_are_removed_too(
    join: Join, remove: Remove, apache_kafka: ApacheKafka, group: str, topic: str
) -> None:
    members = {name: join(name, "--group-protocol", "consumer") for name in "abc"}
    for member in members.values():
        member.wait_for_owned(2)
    assert members["b"].interrupt() == 0
    members["c"].process.kill()
    done = remove("--instance-id", "b,c")
    assert (done.returncode, done.stdout.splitlines()) == (0, ["removed b", "removed c"])
    assert members["a"].wait_for_owned(6, 30) == all_pairs(topic, 6)
    dynamic = join(None, "--group-protocol", "consumer")
    wait_for_halves(members["a"], dynamic, topic)
    since = max(member_epochs(apache_kafka, group))
    done = remove("--all", "--yes")
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 2)
    wait_for(
        lambda: [epoch > since for epoch in member_epochs(apache_kafka, group)] == [True, True],
        "both to join anew, for they still run",
    )
    wait_for_halves(members["a"], dynamic, topic)


def test_a_group_that_is_not_there_has_no_member_to_remove(remove: Remove, group: str) -> None:
    done = remove("--instance-id", "a")
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert f"There is no group {group!r}" in line


def wait_for_halves(one: MemberProcess, other: MemberProcess, topic: str) -> None:
    """Until each has three of the topic's six partitions. For a while a member may still have its earlier ones."""
    wait_for(
        lambda: len(one.owned) == len(other.owned) == 3 and one.owned | other.owned == all_pairs(topic, 6),
        "two members to share six partitions",
        90,
    )


def test_dynamic_members_become_static_in_place_and_dynamic_again(
    join: Join, apache_kafka: ApacheKafka, group: str, topic: str
) -> None:
    """KIP-345, Upgrade and Downgrade Process: a rolling bounce with, and without, `group.instance.id`."""
    first, second = join(None), join(None)
    for member in (first, second):
        member.wait_for_owned(3)
    assert first.interrupt() == 0
    one = join("one")
    one.wait_for_owned(3, 60)
    assert second.interrupt() == 0
    two = join("two", "--leave")
    wait_for_halves(one, two, topic)
    assert instance_ids(apache_kafka, group) == ["one", "two"]
    assert two.interrupt() == 0
    third = join(None)
    wait_for_halves(one, third, topic)
    wait_for(lambda: len(instance_ids(apache_kafka, group)) == 2, "one of each kind")


def test_the_error_about_a_session_beyond_the_broker_s_cap_names_option_and_fix(join: Join) -> None:
    """KIP-345: "We shall increase the cap of session timeout to 30 min"."""
    member = join("a", "--session-timeout-ms", "1800001")
    assert member.end() == 1
    (line,) = member.stderr.splitlines()
    assert "set `session.timeout.ms` within the broker's group.min/max.session.timeout.ms" in line
    assert "6000 to 1800000" in line


@pytest.mark.since_kafka_4
def test_the_error_of_a_full_group_names_the_member_and_the_fix_under_either_protocol(
    apache_kafka_factory: Callable[..., ApacheKafka], group: str
) -> None:
    """KIP-389."""
    kafka = apache_kafka_factory(server_properties={"group.max.size": "1", "group.consumer.max.size": "1"})
    kafka.create_topic("orders", 2)
    for protocol, setting in (("classic", "group.max.size"), ("consumer", "group.consumer.max.size")):
        servers, more = kafka.bootstrap_servers, ("--group-protocol", protocol)
        with MemberProcess(servers, f"{group}-{protocol}", "orders", "a", *more) as first:
            first.wait_for_owned(2)
            with MemberProcess(servers, f"{group}-{protocol}", "orders", "b", *more) as second:
                assert second.end() == 1
            assert f"Group '{group}-{protocol}' rejected member 'b' (GROUP_MAX_SIZE_REACHED)" in second.stderr
            assert f"raise {setting}" in second.stderr
            assert len(first.owned) == 2
