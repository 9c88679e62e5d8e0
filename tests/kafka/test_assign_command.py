"""`kgroup assign --group` against a real Kafka: the group then gets the assignment that was planned."""

import json
import subprocess
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from harness.groups import stable_generation
from harness.kafka import MakeTopic
from harness.members import KGROUP, MemberProcess
from harness.waiting import wait_for

from spark_kgroup.testing import ApacheKafka

Join = Callable[[str], MemberProcess]


@pytest.fixture
def topic(new_topic: MakeTopic) -> str:
    return new_topic(6)


@pytest.fixture
def join(apache_kafka: ApacheKafka, group: str, topic: str) -> Iterator[Join]:
    started: list[MemberProcess] = []

    def start(instance_id: str) -> MemberProcess:
        member = MemberProcess(apache_kafka.bootstrap_servers, group, topic, instance_id)
        started.append(member)
        return member

    yield start
    for member in started:
        member.process.kill()
        member.end()


def owns(member: MemberProcess, wanted: set[tuple[str, int]]) -> bool:
    return member.owned == wanted


def planned(kafka: ApacheKafka, group: str, *more: str) -> subprocess.CompletedProcess[str]:
    command = [KGROUP, "assign", "--bootstrap-server", kafka.bootstrap_servers, "--group", group, *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_live_group_moves_when_a_member_joins_as_many_partitions_as_planned(
    join: Join, apache_kafka: ApacheKafka, group: str, topic: str
) -> None:
    members = {name: join(name) for name in ("a", "b")}
    for member in members.values():
        member.wait_for_owned(3)
    generation = stable_generation(apache_kafka, group)

    asked = planned(apache_kafka, group, "--join", "1", "--json")
    assert asked.returncode == 0, asked.stderr
    plan = json.loads(asked.stdout)
    assert plan["first_round"]["new-1"] == []
    assert {name: len(plan["assignment"][name]) for name in plan["assignment"]} == {"a": 2, "b": 2, "new-1": 2}
    assert [taker for *_, taker in plan["moved"]] == ["new-1", "new-1"]

    table = planned(apache_kafka, group, "--leave", "a", "--add-partitions", f"{topic}=6")
    assert table.returncode == 0, table.stderr
    assert "0 of 12 partitions would move between members that stay, 9 would come to them" in table.stdout
    assert stable_generation(apache_kafka, group) == generation  # planning does not change the group

    members["c"] = join("c")
    for name, member in members.items():
        wanted = {tuple(pair) for pair in plan["assignment"].get(name, [pair for *pair, _, _ in plan["moved"]])}
        wait_for(partial(owns, member, wanted), f"{name} with {wanted}", 60)


def test_a_group_that_is_not_there_is_named(apache_kafka: ApacheKafka, group: str) -> None:
    refused = planned(apache_kafka, group)
    assert refused.returncode == 1
    assert refused.stderr == (
        f"kgroup: There is no group {group!r} on this cluster: check --group and --bootstrap-server.\n"
    )
