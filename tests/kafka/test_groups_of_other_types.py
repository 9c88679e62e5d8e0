"""Our classic seats in a group that brokers have made one of type consumer (KIP-848), and groups that are not for us.

A broker converts a group when the first member with `group.protocol=consumer` joins it, and back when the last leaves.
"""

import json
import logging
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from uuid import uuid4

import pytest
from harness.fake_broker import on_a_loop
from harness.group_history import assert_never_rewound, group_history
from harness.kafka import MakeTopic, produce
from harness.members import KGROUP
from harness.runtime import options_of, owned, settings_of
from harness.sharing import Sharing
from harness.waiting import wait_for

from pyspark_kgroup.driver.boundary.boundary import Boundary
from pyspark_kgroup.driver.boundary.context import BoundaryContext
from pyspark_kgroup.offsets.checkpoint import EMPTY, Checkpoint
from pyspark_kgroup.offsets.earlier_runs import owned_by_seat
from spark_kgroup.errors import GroupRejected
from spark_kgroup.model import MemberIdentity, Subscription
from spark_kgroup.runtime.thread import GroupRuntime
from spark_kgroup.testing import ApacheKafka
from spark_kgroup.wire import messages, schema
from spark_kgroup.wire.address import parse_bootstrap
from spark_kgroup.wire.cluster import Cluster
from spark_kgroup.wire.consumer_protocol import encode_subscription

PARTITIONS = 4
RECORDS = 40


@pytest.fixture
def topic(apache_kafka: ApacheKafka, new_topic: MakeTopic) -> str:
    name = new_topic(PARTITIONS)
    produce(apache_kafka.bootstrap_servers, name, RECORDS, partitions=PARTITIONS)
    return name


Run = Callable[..., tuple[GroupRuntime, Boundary]]


@pytest.fixture
def run(apache_kafka: ApacheKafka, topic: str) -> Iterator[Run]:
    """Start the seats of one query, from a checkpoint if there is one, and close them at the end without leaving."""
    with ExitStack() as started:

        def start(members: int, checkpoint: Checkpoint = EMPTY, **more: str) -> tuple[GroupRuntime, Boundary]:
            options = options_of(apache_kafka.bootstrap_servers, topic, "job", members, **more)
            settings = settings_of(options)
            work = replace(settings.work, previously_owned=owned_by_seat(checkpoint, options.group_id))
            runtime = started.enter_context(GroupRuntime(replace(settings, work=work)))
            return runtime, Boundary(BoundaryContext.of(runtime, options), bounded=False)

        yield start


@pytest.fixture
def neighbour(apache_kafka: ApacheKafka, topic: str) -> Iterator[Callable[..., Sharing]]:
    """A librdkafka consumer of another application. It speaks the consumer protocol and commits all that it reads."""
    with ExitStack() as joined:
        yield lambda protocol="consumer": joined.enter_context(
            Sharing(apache_kafka.bootstrap_servers, f"of-{topic}", topic, commit_each=True, protocol=protocol)
        )


def all_owned(runtime: GroupRuntime, boundary: Boundary, checkpoint: Checkpoint, others: int = 0) -> Checkpoint:
    """Boundary after boundary, until our seats own all but `others` partitions.

    Each batch counts as read when it is planned.
    """
    now = [checkpoint]

    def holds() -> bool:
        now.append(boundary.advance(now[-1]))
        return len(owned(runtime.view())) == len(now[-1].owned) == PARTITIONS - others

    wait_for(holds, f"our seats to own all but {others}", 40)
    return now[-1]


def shared(runtime: GroupRuntime, boundary: Boundary, checkpoint: Checkpoint, other: Sharing) -> Checkpoint:
    """Boundary after boundary, until each partition has an owner, the neighbour too has some, and the group rests."""
    now = [checkpoint]

    def holds() -> bool:
        now.append(boundary.advance(now[-1]))
        ours = len(owned(runtime.view()))
        all_have_owners = 0 < len(other.owned) == PARTITIONS - ours and len(now[-1].owned) == ours
        return all_have_owners and runtime.describe().state == "Stable"

    wait_for(holds, "the partitions to be shared", 60)
    return now[-1]


def instance_ids(runtime: GroupRuntime) -> set[str]:
    return {member.instance_id for member in runtime.describe().members if member.instance_id}


def test_a_group_of_type_consumer_is_described_with_our_seats_in_it(run: Run, neighbour: Callable[[], Sharing]) -> None:
    runtime, boundary = run(2)
    begun = all_owned(runtime, boundary, EMPTY)
    assert runtime.describe().group_type == "classic"
    shared(runtime, boundary, begun, neighbour())
    found = runtime.describe()
    assert found.is_consumer_type
    assert {member.instance_id: member.protocol for member in found.members} == {
        "job-0": "classic",
        "job-1": "classic",
        None: "consumer",
    }
    seats = [member for member in found.members if member.instance_id]
    assert {tp for member in seats for tp in member.assignment} == owned(runtime.view())


def test_a_driver_that_comes_back_owing_a_partition_gives_it_up_only_with_its_position(
    run: Run, neighbour: Callable[[], Sharing]
) -> None:
    """1. A batch is done and not committed. 2. The driver dies. 3. A consumer-protocol neighbour joins. 4. The driver
    is back within its session: unless its seats claim their partitions, the neighbour reads the batch again."""
    first, boundary = run(2)
    done = all_owned(first, boundary, EMPTY)
    assert {place.position for place in done.owned.values()} == {RECORDS // PARTITIONS}
    first.close()
    other = neighbour()
    again, boundary = run(2, done)
    shared(again, boundary, done, other)
    assert other.rows == [], "read again by the neighbour"


def test_a_group_that_is_converted_while_a_batch_reads_partitions_asked_back_is_never_set_back(
    run: Run,
    neighbour: Callable[..., Sharing],
    apache_kafka: ApacheKafka,
    topic: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """1. A batch is done and not committed. 2. A classic neighbour joins, and two partitions are asked back from our
    seat. 3. A consumer-protocol neighbour joins: brokers convert the group, forget that our seat claims them, and give
    them away. 4. Their new owners read on and commit. 5. We come to our boundary."""
    server, group = apache_kafka.bootstrap_servers, f"of-{topic}"
    runtime, boundary = run(1)
    done = all_owned(runtime, boundary, EMPTY)
    produce(server, topic, RECORDS, partitions=PARTITIONS, first=RECORDS)
    now = [done]

    def read_on() -> bool:
        now.append(boundary.advance(now[-1]))
        return {place.position for place in now[-1].owned.values()} == {2 * RECORDS // PARTITIONS}

    wait_for(read_on, "a second batch", 30)
    classic = neighbour("classic")
    asked = wait_for(lambda: runtime.view().seats[0].to_give_up, "our seat to be asked for partitions", 60)
    produce(server, topic, RECORDS, partitions=PARTITIONS, first=2 * RECORDS)
    modern = neighbour()

    def read_by_others() -> bool:
        ends = {(tp.partition, 3 * RECORDS // PARTITIONS) for tp in asked}
        return ends <= {*classic.commits, *modern.commits}

    wait_for(read_by_others, "others to read and commit what our seat still holds", 60)
    assert asked <= owned(runtime.view()), "a seat gives nothing up before its boundary"

    after = boundary.advance(now[-1])
    assert_never_rewound(group_history(server, group))
    assert {tp: after.lost.get(tp) for tp in asked} == dict.fromkeys(asked, 2 * RECORDS // PARTITIONS)
    assert "may be delivered twice, by both applications" in caplog.text
    now.append(after)

    def shared_by_three() -> bool:
        now.append(boundary.advance(now[-1]))
        ours = {tp.partition for tp in owned(runtime.view())}
        return all((ours, classic.owned, modern.owned)) and len(ours | classic.owned | modern.owned) == PARTITIONS

    wait_for(shared_by_three, "the group to come to rest", 60)
    assert_never_rewound(group_history(server, group))


def test_a_driver_that_comes_back_finds_no_orphans_and_causes_no_rebalance(
    run: Run, neighbour: Callable[[], Sharing]
) -> None:
    first, boundary = run(2)
    begun = all_owned(first, boundary, EMPTY)  # a broker that converts a group in a rebalance may fail to, and say so
    other = neighbour()
    done = shared(first, boundary, begun, other)
    first.close()
    again, boundary = run(2, done)
    done = all_owned(again, boundary, done, len(other.owned))
    epochs = {member.epoch for member in again.describe().members}
    moves = other.moves
    assert boundary.advance(done).owned == done.owned
    assert not again.view().look_due, "it would wait at each boundary"
    assert ({member.epoch for member in again.describe().members}, other.moves) == (epochs, moves)


def test_seats_of_an_earlier_run_leave_a_group_of_type_consumer_with_their_positions(
    run: Run, neighbour: Callable[[], Sharing]
) -> None:
    first, boundary = run(4)
    done = all_owned(first, boundary, EMPTY)
    other = neighbour()
    wait_for(lambda: first.describe().is_consumer_type, "the group to be converted")
    first.close()
    again, boundary = run(2, done)
    began_s = time.monotonic()
    shared(again, boundary, done, other)
    assert time.monotonic() - began_s < 25, "nothing waits for their sessions, which last 30 s"
    assert instance_ids(again) == {"job-0", "job-1"}
    assert other.rows == [], "read again by the neighbour"


def test_an_explicit_start_does_not_overrule_a_neighbour_of_the_consumer_protocol(
    run: Run, neighbour: Callable[[], Sharing]
) -> None:
    other = neighbour()
    wait_for(lambda: len(other.rows) == RECORDS and not other._positions, "the neighbour to read and commit all", 60)
    runtime, boundary = run(2)  # startingOffsets=earliest
    begun = shared(runtime, boundary, EMPTY, other)
    assert {place.period.start for place in begun.owned.values()} == {RECORDS // PARTITIONS}


def test_a_seat_keeps_the_partitions_it_reads_when_the_group_becomes_classic_again_in_an_epoch_it_has_not_joined(
    run: Run, apache_kafka: ApacheKafka, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """1. A consumer-protocol neighbour leaves: a new epoch, of which our seat hears at its next heartbeat. 2. Before
    that the last one leaves, and brokers make the group a classic one in that epoch. 3. Every request of our seat is
    refused with ILLEGAL_GENERATION."""
    caplog.set_level(logging.INFO)
    server, group = apache_kafka.bootstrap_servers, f"of-{topic}"
    runtime, boundary = run(1, **{"kafka.heartbeat.interval.ms": "5000"})
    now = [all_owned(runtime, boundary, EMPTY)]
    modern = partial(Sharing, server, group, topic, protocol="consumer")
    with modern() as last, modern() as first:

        def shared_by_three() -> bool:
            now.append(boundary.advance(now[-1]))
            ours = {tp.partition for tp in owned(runtime.view())}
            shared = (ours, last.owned, first.owned)
            return all(shared) and sum(map(len, shared)) == PARTITIONS and runtime.view().settled

        wait_for(shared_by_three, "the group to be shared by three", 90)
        before = runtime.view().seats[0].owned_since
    now.append(all_owned(runtime, boundary, now[-1]))
    after = runtime.view().seats[0].owned_since
    assert "ILLEGAL_GENERATION" in caplog.text, "the seat was not behind"
    assert {tp: after[tp] for tp in before} == dict(before), "lost, and adopted anew"


# --------------------------------------------------------------------------------------------------- for people


def described(kafka: ApacheKafka, group: str, *more: str) -> subprocess.CompletedProcess[str]:
    return kgroup(kafka, group, "describe", *more)


def kgroup(kafka: ApacheKafka, group: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [KGROUP, *arguments, "--bootstrap-server", kafka.bootstrap_servers, "--group", group]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_describe_shows_type_protocols_and_epochs(
    run: Run, neighbour: Callable[[], Sharing], apache_kafka: ApacheKafka, topic: str
) -> None:
    runtime, boundary = run(2)
    shared(runtime, boundary, all_owned(runtime, boundary, EMPTY), neighbour())
    found = json.loads(described(apache_kafka, f"of-{topic}", "--json").stdout)
    assert (found["type"], found["state"], found["assignor"]) == ("consumer", "Stable", "uniform")
    assert sorted(str(member["protocol"]) for member in found["members"]) == ["classic", "classic", "consumer"]
    assert len({member["epoch"] for member in found["members"]}) == 1
    assert sum(len(member["partitions"]) for member in found["members"]) == PARTITIONS
    output = described(apache_kafka, f"of-{topic}").stdout
    print(output)
    assert f"Group of-{topic} is Stable: 3 members, assignor uniform, type consumer" in output
    assert "PROTOCOL" in output


def test_a_share_group_is_named_as_one_and_takes_no_seats(run: Run, apache_kafka: ApacheKafka, topic: str) -> None:
    consumer = "org.apache.kafka.tools.consumer.ConsoleShareConsumer"
    server, group = apache_kafka.bootstrap_servers, f"of-{topic}"
    apache_kafka.tool(
        consumer, "--bootstrap-server", server, "--topic", topic, "--group", group, "--timeout-ms", "10000"
    )
    ended = described(apache_kafka, group)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert f"kgroup: '{group}' is a share group" in ended.stderr
    assert "kafka-share-groups.sh" in ended.stderr
    for command in (["assign"], ["remove-members", "--all", "--yes"]):
        asked = kgroup(apache_kafka, group, *command)
        assert (asked.returncode, asked.stdout, asked.stderr) == (1, "", ended.stderr)
    runtime, _ = run(1)
    with pytest.raises(GroupRejected, match="share, streams, connect"):
        runtime.wait_until(lambda view: view.settled, 20_000)


@on_a_loop
async def connect_worker(kafka: ApacheKafka, group: str, then: Callable[[], None]) -> None:
    """A group whose protocol type is not that of consumers, as Kafka Connect's workers form it."""
    cluster = Cluster(parse_bootstrap(kafka.bootstrap_servers), client_id="a worker")
    await cluster.groups.describe(group)  # which waits for a coordinator
    connection = await cluster.coordinators.open(group)
    who = MemberIdentity(instance_id="worker-1")
    offered = [("sessioned", encode_subscription(Subscription(topics=("not-a-subscription",)))[5:])]
    join = messages.join_group(group, who, offered, session_timeout_ms=30_000, rebalance_timeout_ms=30_000, reason="")
    answer = await connection.call(join._replace(protocol_type="connect"))
    assert isinstance(answer, schema.JoinGroupResponse)
    assert answer.error_code == 0
    then()
    await connection.close()
    await cluster.close()


def test_a_connect_group_is_named_as_one(apache_kafka: ApacheKafka) -> None:
    group = f"connect-{uuid4().hex[:8]}"
    found: list[subprocess.CompletedProcess[str]] = []
    commands = (["describe"], ["assign"], ["remove-members", "--all", "--yes"])
    connect_worker(
        apache_kafka, group, lambda: found.extend(kgroup(apache_kafka, group, *command) for command in commands)
    )
    assert [ended.returncode for ended in found] == [1, 1, 1]
    for ended in found:
        assert f"kgroup: '{group}' is a connect group" in ended.stderr
