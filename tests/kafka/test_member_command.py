"""`kgroup member` against a real Kafka: static membership and cooperative rebalance as people and tests see them."""

import signal
import subprocess
import threading
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer
from harness.groups import assignment_by_instance, instance_ids, stable_generation
from harness.kafka import MakeTopic, console_consumer
from harness.members import KGROUP, MemberProcess, Pair, all_pairs
from harness.waiting import wait_for
from kafka import KafkaConsumer
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor

from spark_kgroup.testing import ApacheKafka


@pytest.fixture
def topic(new_topic: MakeTopic) -> str:
    return new_topic(6)


Join = Callable[..., MemberProcess]

JAVA_COOPERATIVE_STICKY = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"


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


def test_every_line_of_json_has_the_documented_fields(join: Join, topic: str) -> None:
    member = join("a")
    member.wait_for_owned(6)
    assert member.interrupt() == 0
    assert [e["event"] for e in member.events] == ["joined", "assigned"]
    for event in member.events:
        assert {"event", "at_ms", "member_id", "instance_id", "generation", "leader"} <= event.keys()
        assert event["instance_id"] == "a"
        assert event["leader"] is True
        assert event["generation"] == 1
    assigned = member.events[-1]
    assert assigned["partitions"] == assigned["added"] == [[topic, index] for index in range(6)]


def test_a_second_member_takes_half_and_only_that_moves(join: Join, topic: str) -> None:
    """KIP-429: partitions that a member keeps are never revoked."""
    # KIP-429: the owner keeps what it still owns, gives up the rest, and rejoins. Only then the newcomer gets it.
    first = join("a")
    first.wait_for_owned(6)
    second = join("b")
    kept, taken = first.wait_for_owned(3), second.wait_for_owned(3)
    assert kept | taken == all_pairs(topic, 6)
    revoked = first.wait_for_event("revoked")
    assert {tuple(pair) for pair in revoked["revoked"]} == taken
    assert second.last("revoked") is None


def test_ctrl_c_keeps_the_seat_and_a_restart_gets_it_back(
    join: Join, apache_kafka: ApacheKafka, group: str, topic: str
) -> None:
    """KIP-345: "broker will return the cached assignment back to the member, without doing any rebalance"."""
    # KIP-345: a static member that comes back within the session gets its assignment, and no other member notices.
    members = {name: join(name) for name in ("a", "b", "c")}
    for member in members.values():
        member.wait_for_owned(2)
    generation = stable_generation(apache_kafka, group)
    for name, member in members.items():
        before, old = member.owned, member.events[-1]
        others = {n: len(m.events) for n, m in members.items() if n != name}
        assert member.interrupt() == 0
        assert name in instance_ids(apache_kafka, group)
        again = join(name)
        assert again.wait_for_owned(2) == before
        came_back = again.wait_for_event("assigned")
        assert came_back["generation"] == old["generation"]
        assert came_back["member_id"] != old["member_id"]
        # KIP-814: a leader that comes back knows that it leads, and does not assign.
        assert came_back["leader"] == old["leader"]
        assert (again.last("skip_assignment") is not None) == old["leader"]
        assert {n: len(m.events) for n, m in members.items() if n != name} == others
        members[name] = again
    assert stable_generation(apache_kafka, group) == generation


def test_ctrl_c_says_that_a_static_seat_stays_and_for_how_long_and_gives_one_with_leave_and_a_dynamic_one_back(
    join: Join, apache_kafka: ApacheKafka, group: str
) -> None:
    static, leaving, dynamic = join("a", "--session-timeout-ms", "20000"), join("b", "--leave"), join(None)
    for member in (static, leaving, dynamic):
        member.wait_for_owned(2, 60)
    assert dynamic.events[-1]["instance_id"] is None
    for member in (leaving, dynamic):
        assert member.interrupt() == 0
        assert member.events[-1]["event"] == "left"
    static.wait_for_owned(6)
    assert instance_ids(apache_kafka, group) == ["a"]
    assert static.interrupt() == 0
    assert instance_ids(apache_kafka, group) == ["a"]
    assert static.stderr == (
        "The seat 'a' stays in the group: no other member gets its partitions for 20 s. With --leave it is given back "
        "at once.\n"
    )
    assert leaving.stderr == dynamic.stderr == ""


@pytest.mark.parametrize("instance_id", ["a", None], ids=["static", "dynamic"])
def test_a_closed_pipe_ends_the_member_as_it_ends_other_commands(
    join: Join, apache_kafka: ApacheKafka, group: str, topic: str, instance_id: str | None
) -> None:
    """`kgroup member | head -1` in a shell: no heartbeats go on unseen. A static seat stays, a dynamic one goes."""
    static = [] if instance_id is None else ["--instance-id", instance_id]
    command = [KGROUP, "member", "--bootstrap-server", apache_kafka.bootstrap_servers, "--group", group]
    command += ["--topics", topic, *static]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as member:
        assert member.stdout is not None
        assert member.stderr is not None
        assert "joined" in member.stdout.readline()
        member.stdout.close()
        join("b")  # a rebalance, and so one more line
        assert member.wait(60) == 128 + signal.SIGPIPE
        assert member.stderr.read() == ""
    if instance_id is None:
        wait_for(lambda: instance_ids(apache_kafka, group) == ["b"], "the other alone", 30)
    else:
        assert instance_id in instance_ids(apache_kafka, group)


def test_an_error_that_ends_a_member_is_printed_once(
    join: Join, apache_kafka: ApacheKafka, group: str, topic: str
) -> None:
    command = [KGROUP, "member", "--bootstrap-server", apache_kafka.bootstrap_servers, "--group", group]
    done = subprocess.run(
        [*command, "--topics", topic, "--instance-id", "a", "--session-timeout-ms", "10"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    (event,) = done.stdout.splitlines()
    assert event.split()[1:3] == ["error", "generation"]
    (line,) = done.stderr.splitlines()
    assert "set `session.timeout.ms` within" in line
    assert "session" not in event


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGHUP])
def test_a_dynamic_member_gets_its_id_first_and_leaves_on_sigterm_and_when_its_terminal_is_closed(
    join: Join, apache_kafka: ApacheKafka, group: str, ending: signal.Signals
) -> None:
    """KIP-394: MEMBER_ID_REQUIRED, then a join with the id."""
    # KIP-394: the coordinator answers a first join with MEMBER_ID_REQUIRED.
    member = join(None)
    member.wait_for_owned(6)
    assert member.events[-1]["instance_id"] is None
    member.process.send_signal(ending)
    assert member.end() == 0
    assert member.events[-1]["event"] == "left"
    assert instance_ids(apache_kafka, group) == []


def test_the_older_of_two_with_one_instance_id_is_fenced(join: Join) -> None:
    """KIP-345: "some other consumer takes its spot. The client should immediately fail itself"."""
    older = join("a", "--session-timeout-ms", "10000")
    older.wait_for_owned(6)
    newer = join("a", "--session-timeout-ms", "10000")
    newer.wait_for_owned(6)
    fenced = older.wait_for_event("fenced", 20)
    assert older.end() == 1
    assert fenced["partitions"] == []
    assert "'a'" in fenced["reason"]
    assert "'a'" in older.stderr
    assert newer.process.poll() is None


def test_the_leader_notices_added_partitions_and_no_other_partition_moves(
    join: Join, apache_kafka: ApacheKafka, topic: str
) -> None:
    """KIP-429, 1.b: "if the consumer is the leader, send join-group request"."""
    first = join("a", "--metadata-max-age-ms", "500")
    second = join("b", "--metadata-max-age-ms", "500")
    before = {"a": first.wait_for_owned(3), "b": second.wait_for_owned(3)}
    apache_kafka.add_partitions(topic, 8)
    after = {"a": first.wait_for_owned(4), "b": second.wait_for_owned(4)}
    assert before["a"] <= after["a"]
    assert before["b"] <= after["b"]
    assert after["a"] | after["b"] == all_pairs(topic, 8)


def test_a_member_stopped_for_longer_than_its_session_has_lost_its_partitions(join: Join) -> None:
    first = join("a", "--session-timeout-ms", "6000")
    second = join("b", "--session-timeout-ms", "6000")
    first.wait_for_owned(3)
    second.wait_for_owned(3)
    first.process.send_signal(signal.SIGSTOP)
    second.wait_for_owned(6, 40)
    first.process.send_signal(signal.SIGCONT)
    lost = first.wait_for_event("lost")
    assert lost["partitions"] == []
    first.wait_for_owned(3)
    second.wait_for_owned(3)


def test_two_members_with_the_range_assignor_share_the_topic_eagerly(join: Join, topic: str) -> None:
    first = join("a", "--assignor", "range")
    first.wait_for_owned(6)
    second = join("b", "--assignor", "range")
    assert first.wait_for_owned(3) == {(topic, index) for index in range(3)}
    assert second.wait_for_owned(3) == {(topic, index) for index in range(3, 6)}


def test_an_eager_seat_that_comes_back_with_fewer_topics_joins_for_the_sake_of_the_dropped_ones(
    join: Join, new_topic: MakeTopic, apache_kafka: ApacheKafka, group: str, topic: str
) -> None:
    """A static rejoin is answered with the old assignment (KIP-345): only another generation is without the topic."""
    topics = f"{topic},{new_topic(2)}"
    with MemberProcess(apache_kafka.bootstrap_servers, group, topics, "a", "--assignor", "range") as before:
        before.wait_for_owned(8)
    after = join("a", "--assignor", "range")
    wait_for(
        lambda: after.events[-1:] and after.events[-1]["generation"] == 2 and after.owned == all_pairs(topic, 6),
        "a generation without the dropped topic",
    )


def test_a_member_shares_a_group_with_librdkafka(join: Join, apache_kafka: ApacheKafka, group: str, topic: str) -> None:
    first = join("a")
    first.wait_for_owned(6)
    peer = Consumer(
        {
            "bootstrap.servers": apache_kafka.bootstrap_servers,
            "group.id": group,
            "partition.assignment.strategy": "cooperative-sticky",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    try:
        peer.subscribe([topic])

        def shared() -> bool:
            peer.poll(0.1)
            return len(peer.assignment()) == 3 and len(first.owned) == 3

        wait_for(shared, "three partitions each", 40)
        theirs = {(tp.topic, tp.partition) for tp in peer.assignment()}
        assert theirs | first.owned == all_pairs(topic, 6)
    finally:
        peer.close()
    first.wait_for_owned(6)


def test_a_member_shares_a_group_with_kafka_python(
    join: Join, apache_kafka: ApacheKafka, group: str, topic: str
) -> None:
    first = join("a")
    first.wait_for_owned(6)
    peer = KafkaConsumer(
        topic,
        bootstrap_servers=apache_kafka.bootstrap_servers,
        group_id=group,
        partition_assignment_strategy=[CooperativeStickyAssignor],
        enable_auto_commit=False,
    )
    try:

        def shared() -> bool:
            peer.poll(timeout_ms=100)
            return len(peer.assignment()) == 3 and len(first.owned) == 3

        wait_for(shared, "three partitions each", 40)
        theirs = {(tp.topic, tp.partition) for tp in peer.assignment()}
        assert theirs | first.owned == all_pairs(topic, 6)
    finally:
        peer.close()
    first.wait_for_owned(6)


def test_a_member_shares_a_group_with_the_java_client(
    join: Join, apache_kafka: ApacheKafka, group: str, topic: str
) -> None:
    first = join("a")
    first.wait_for_owned(6)
    java = threading.Thread(
        target=apache_kafka.tool,
        args=(
            console_consumer(apache_kafka.release),
            *("--bootstrap-server", apache_kafka.bootstrap_servers, "--topic", topic, "--group", group),
            *("--timeout-ms", "15000"),
            *("--consumer-property", "partition.assignment.strategy=" + JAVA_COOPERATIVE_STICKY),
        ),
    )
    java.start()
    kept = first.wait_for_owned(3, 60)
    described = wait_for(lambda: shares(apache_kafka, group, 2), "the Java member to own its share", 30)
    assert kept in described
    assert set.union(*described) == all_pairs(topic, 6)
    java.join(60)
    assert not java.is_alive()
    first.wait_for_owned(6)


def shares(kafka: ApacheKafka, group: str, members: int) -> list[set[Pair]] | None:
    """Each member's partitions, once there are so many members and each owns some. None before that."""
    found = list(assignment_by_instance(kafka, group).values())
    return found if len(found) == members and all(found) else None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--topics", "no-such-topic"], "'no-such-topic' does not exist"),
        (["--assignor", "fair"], "cooperative-sticky"),
        (["--bootstrap-server", "localhost"], "not HOST:PORT"),
        (["--session-timeout-ms", "10"], "set `session.timeout.ms` within"),
        (["--topics", " , "], "--topics names no topic"),
        (["--instance-id", ""], "--instance-id is empty"),
    ],
)
def test_a_wrong_argument_is_one_clear_error(
    apache_kafka: ApacheKafka, group: str, topic: str, arguments: list[str], message: str
) -> None:
    member = MemberProcess(apache_kafka.bootstrap_servers, group, topic, "a", *arguments)
    assert member.end() == 1
    lines = member.stderr.strip().splitlines()
    assert len(lines) == 1
    assert message in lines[0]
