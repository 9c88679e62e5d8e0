"""`kgroup describe` against a real Kafka: seats, their servers, members of other applications, lag."""

import json
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from uuid import uuid4

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Place
from harness.kafka import MakeTopic, produce
from harness.members import KGROUP
from harness.offsets import offsets_alone
from harness.runtime import options_of, owned, settings_of
from harness.waiting import wait_for

from pyspark_kgroup.driver.boundary.boundary import Boundary
from pyspark_kgroup.driver.boundary.context import BoundaryContext
from pyspark_kgroup.offsets.checkpoint import EMPTY
from spark_kgroup.limits import STARTUP_TIMEOUT_MS
from spark_kgroup.model import MemberIdentity, TopicPartition
from spark_kgroup.runtime.settings import OwnerHooks
from spark_kgroup.runtime.thread import GroupRuntime
from spark_kgroup.runtime.views import GroupView, SeatCommit
from spark_kgroup.seat_note import SeatNote
from spark_kgroup.testing import ApacheKafka

PARTITIONS = 4


@pytest.fixture
def topic(apache_kafka: ApacheKafka, new_topic: MakeTopic) -> str:
    name = new_topic(PARTITIONS)
    produce(apache_kafka.bootstrap_servers, name, 40, partitions=PARTITIONS)
    return name


Seats = Callable[..., GroupRuntime]


@pytest.fixture
def seats(apache_kafka: ApacheKafka, topic: str) -> Iterator[Seats]:
    with ExitStack() as started:

        def start(metadata: Callable[[MemberIdentity, str], str], members: int = 2) -> GroupRuntime:
            options = options_of(apache_kafka.bootstrap_servers, topic, "job", members)
            settings = replace(settings_of(options), hooks=OwnerHooks(commit_metadata=metadata))
            runtime = started.enter_context(GroupRuntime(settings))
            # The seat that comes first must share with the next.
            settled = Boundary(BoundaryContext.of(runtime, options), bounded=False).advance(EMPTY)
            assert len(settled.owned) == PARTITIONS
            return runtime

        yield start


def note(who: MemberIdentity, _topic_id: str) -> str:
    return note_of(who.member_id)


def note_of(member: str) -> str:
    served = SeatNote(
        member=member, at_ms=1_700_000_060_000, executor="7", host="h1", warm=True, since_ms=1_700_000_000_000
    )
    return served.encode()


def commit(runtime: GroupRuntime, view: GroupView, position: int) -> None:
    """Each seat commits one position for all it has."""
    wanted = [SeatCommit(seat=seat, positions=dict.fromkeys(seat.owned_since, position)) for seat in view.seats]
    assert runtime.commit(wanted) == owned(view)


def described(bootstrap: str, group: str, *more: str) -> subprocess.CompletedProcess[str]:
    command = [KGROUP, "describe", "--bootstrap-server", bootstrap, "--group", group, *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_brokers_that_refuse_are_an_error_at_once_in_the_commands_words() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: refuses every connection
        refusing = f"127.0.0.1:{taken.getsockname()[1]}"
        began = time.monotonic()
        found = described(refusing, "any")
        assert time.monotonic() - began < STARTUP_TIMEOUT_MS / 1000
    assert found.returncode == 1
    assert found.stderr.startswith(
        "kgroup: No broker could be reached. Check the bootstrap servers (`bootstrap.servers`)."
    )
    assert len(found.stderr.splitlines()) == 1


def test_a_described_group_shows_its_seats_their_executors_and_their_lag(
    seats: Seats, apache_kafka: ApacheKafka, topic: str
) -> None:
    server, group = apache_kafka.bootstrap_servers, f"of-{topic}"
    runtime = seats(note)
    commit(runtime, runtime.view(), 7)
    found = json.loads(described(server, group, "--json").stdout)
    assert (found["state"], found["assignor"], found["lag"]) == ("Stable", "cooperative-sticky", 12)
    assert [member["instance_id"] for member in found["members"]] == ["job-0", "job-1"]
    for member in found["members"]:
        served = {name: member[name] for name in ("executor", "host", "warm", "since", "as_of", "client_id")}
        assert served == {
            "executor": "7",
            "host": "h1",
            "warm": True,
            "since": "2023-11-14T22:13:20+00:00",
            "as_of": "2023-11-14T22:14:20+00:00",
            "client_id": "spark-kgroup",
        }
        assert member["member_id"].startswith(f"{member['instance_id']}-")
        assert [(p["position"], p["end"], p["lag"]) for p in member["partitions"]] == [(7, 10, 3)] * 2
    output = described(server, group).stdout
    print(output)
    lines = [line.split() for line in output.splitlines()]
    assert [
        "INSTANCE",
        "ID",
        "MEMBER",
        "ID",
        "CLIENT",
        "ID",
        "EXECUTOR",
        "HOST",
        "WARM",
        "SINCE",
        "AS",
        "OF",
        "LAG",
    ] in lines
    (first,) = (line for line in lines if line[:1] == ["job-0"])
    assert first[3:] == ["7", "h1", "yes", "2023-11-14T22:13:20+00:00", "2023-11-14T22:14:20+00:00", "6"]
    assert [topic, "0", "job-0", "7", "10", "3"] in lines


def test_partitions_and_notes_of_other_applications_are_shown_and_never_an_error(
    seats: Seats, apache_kafka: ApacheKafka, topic: str
) -> None:
    server, group = apache_kafka.bootstrap_servers, f"of-{topic}"
    runtime = seats(
        lambda who, _: "job-0 was here" if who.instance_id == "job-0" else note_of("job-1-of-an-earlier-process")
    )
    commit(runtime, runtime.view(), 10)
    other = Consumer(
        {
            "bootstrap.servers": server,
            "group.id": group,
            "client.id": "\x1b[31mjava",
            "partition.assignment.strategy": "cooperative-sticky",
        }
    )
    try:
        other.subscribe([topic])

        def is_there() -> bool:
            assert other.poll(0.1) is None
            return len(runtime.describe().members) == 3

        wait_for(is_there, "the other application to join", 60)
        clients = {str(member["instance_id"]): member["client_id"] for member in _members(server, group)}
        assert clients == {"job-0": "spark-kgroup", "job-1": "spark-kgroup", "None": "\x1b[31mjava"}
        output = described(server, group).stdout
    finally:
        other.close()
    assert "?[31mjava@127.0.0.1" in output
    assert "\x1b[31m" not in output
    for member in _members(server, group):
        assert (member["executor"], member["host"], member["warm"], member["since"]) == (None, None, None, None)


def _members(server: str, group: str) -> list[dict[str, object]]:
    members: list[dict[str, object]] = json.loads(described(server, group, "--json").stdout)["members"]
    return members


def test_a_group_without_members(apache_kafka: ApacheKafka, topic: str) -> None:
    server, group = apache_kafka.bootstrap_servers, f"group-{uuid4().hex[:8]}"
    consumer = Consumer({"bootstrap.servers": server, "group.id": group, "enable.auto.commit": False})
    try:
        consumer.commit(offsets=[Place(topic, 0, 4, metadata="by hand")], asynchronous=False)
    finally:
        consumer.close()
    found = json.loads(described(server, group, "--json").stdout)
    line = {"topic": topic, "partition": 0, "position": 4, "end": 10, "lag": 6}
    assert (found["state"], found["members"], found["unowned"], found["lag"]) == ("Empty", [], [line], 6)
    assert [topic, "0", "-", "4", "10", "6"] in [row.split() for row in described(server, group).stdout.splitlines()]


def test_the_lag_of_a_partition_that_was_never_committed_is_unknown_and_not_0(
    apache_kafka: ApacheKafka, topic: str
) -> None:
    server, group = apache_kafka.bootstrap_servers, f"group-{uuid4().hex[:8]}"
    consumer = Consumer({"bootstrap.servers": server, "group.id": group, "enable.auto.commit": False})
    try:
        consumer.subscribe([topic])

        def has_all() -> bool:
            consumer.poll(0.1)
            return len(consumer.assignment()) == PARTITIONS

        wait_for(has_all, "the consumer to join", 60)
        found = json.loads(described(server, group, "--json").stdout)
        assert (found["lag"], [member["lag"] for member in found["members"]]) == (None, [None])
        text = described(server, group).stdout
    finally:
        consumer.close()
    assert f"Group {group} is Stable: 1 member," in text
    assert [topic, "0", found["members"][0]["member_id"], "-", "10", "-"] in [row.split() for row in text.splitlines()]


def test_a_group_that_does_not_exist_is_an_error(apache_kafka: ApacheKafka) -> None:
    ended = described(apache_kafka.bootstrap_servers, "nobody")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("kgroup: There is no group 'nobody' on this cluster")


def test_a_text_that_the_broker_does_not_take_costs_no_commit(seats: Seats, topic: str) -> None:
    runtime = seats(lambda _, topic_id: "x" * 5_000 + topic_id, 1)  # offset.metadata.max.bytes: 4096
    commit(runtime, runtime.view(), 3)
    tps = [TopicPartition(topic, index) for index in range(PARTITIONS)]
    assert offsets_alone(runtime.committed(tps)) == dict.fromkeys(tps, 3)
