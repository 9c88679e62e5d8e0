"""A mistake is one clear error within a bound. A query that ends leaves no process, thread or file behind."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.groups import assignment_by_instance
from harness.kafka import contents, produce
from harness.odd_servers import GARBAGE, Listener, OddServer, Proxy, garbage_in_a_frame, http
from harness.stream import Collected, assert_exactly, await_rows, options, start
from harness.waiting import wait_for
from pyspark.sql import SparkSession

from spark_kgroup.testing import ApacheKafka

NewTopic = Callable[[int], str]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"subscribe": None}, "OptionError: Option subscribe is missing"),
        ({"kafka.group.id": None}, "OptionError: Option kafka.group.id is missing"),
        ({"kafka.bootstrap.servers": None}, "OptionError: Option kafka.bootstrap.servers is missing"),
        ({"memebers": "3"}, "members"),
        ({"members": "0"}, "members"),
        ({"startingOffsets": "yesterday"}, "startingOffsets"),
        ({"kafka.group.instance.id": "me"}, "instanceIdPrefix"),
        ({"kafka.enable.auto.commit": "true"}, "kafka.enable.auto.commit"),
        ({"kafka.session.timeout.ms": "1000", "kafka.heartbeat.interval.ms": "1000"}, "kafka.session.timeout.ms"),
        ({"subscribe": "no-such-topic"}, "no-such-topic"),
        ({"kafka.bootstrap.servers": "nowhere"}, "kafka.bootstrap.servers"),
    ],
)
def test_a_wrong_option_is_named_with_its_fix(
    spark: SparkSession,
    apache_kafka: ApacheKafka,
    new_topic: NewTopic,
    group: str,
    tmp_path: Path,
    changes: dict[str, str | None],
    message: str,
) -> None:
    read: dict[str, str | None] = {**options(apache_kafka.bootstrap_servers, new_topic(1), group), **changes}
    given = {name: value for name, value in read.items() if value is not None}
    began = time.monotonic()
    with pytest.raises(Exception, match=message):
        start(spark, given, tmp_path / "cp", Collected()).awaitTermination(60)
    assert time.monotonic() - began < 60


def test_a_schema_of_the_users_own_is_refused(
    spark: SparkSession, apache_kafka: ApacheKafka, new_topic: NewTopic, group: str, tmp_path: Path
) -> None:
    read = options(apache_kafka.bootstrap_servers, new_topic(1), group)
    frame = spark.readStream.format("kgroup").schema("value string").options(**read).load()
    query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "cp")).start()
    with pytest.raises(Exception, match=r"remove \.schema"):
        query.awaitTermination(60)


def test_a_port_without_a_broker_is_one_clear_error(spark: SparkSession, group: str, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: refuses every connection
        refusing = f"127.0.0.1:{taken.getsockname()[1]}"
        assert_one_clear_error(spark, options(refusing, "topic", group), tmp_path)


def assert_one_clear_error(spark: SparkSession, read: dict[str, str], tmp_path: Path) -> None:
    query = start(spark, read, tmp_path / "cp", Collected())
    with pytest.raises(Exception, match=r"`bootstrap\.servers`"):
        query.awaitTermination(60)


@pytest.mark.parametrize("odd_server", [http, garbage_in_a_frame])
def test_a_restart_with_a_wrong_address_fails_and_loses_no_record(
    spark: SparkSession,
    apache_kafka: ApacheKafka,
    new_topic: NewTopic,
    group: str,
    tmp_path: Path,
    odd_server: OddServer,
) -> None:
    topic, server = new_topic(2), apache_kafka.bootstrap_servers
    read = options(server, topic, group)
    collected = Collected()
    produce(server, topic, 20, partitions=2)
    query = start(spark, read, tmp_path / "cp", collected)
    await_rows(query, collected, 20)
    query.stop()
    produce(server, topic, 20, partitions=2, first=20)
    with Listener(odd_server) as listener:
        assert_one_clear_error(spark, {**read, "kafka.bootstrap.servers": listener.address}, tmp_path)
    query = start(spark, read, tmp_path / "cp", collected)  # the same checkpoint, with the option corrected
    await_rows(query, collected, 40)
    query.stop()
    assert_exactly(collected, contents(server, topic))


@pytest.mark.full
def test_a_broker_that_talks_garbage_for_a_while_is_waited_for(
    spark: SparkSession, apache_kafka_factory: Callable[..., ApacheKafka], group: str, tmp_path: Path
) -> None:
    proxy = Proxy()
    with proxy:
        kafka = apache_kafka_factory(server_properties={"advertised.listeners": f"PLAINTEXT://{proxy.address}"})
        proxy.broker_port = kafka.nodes[0].port
        kafka.create_topic("topic", partitions=4)
        produce(proxy.address, "topic", 40, partitions=4)
        collected = Collected()
        query = start(spark, options(proxy.address, "topic", group), tmp_path / "cp", collected)
        await_rows(query, collected, 40)
        proxy.talk_garbage()
        wait_for(lambda: proxy.garbled >= 5 * len(GARBAGE) or query.exception(), "garbage of every kind", 120)
        proxy.relay_again()
        produce(proxy.address, "topic", 40, partitions=4, first=40)
        await_rows(query, collected, 80, 120)
        assert query.isActive
        assert_exactly(collected, contents(proxy.address, "topic"))
        # A query that waits for its brokers can be stopped at once all the same.
        garbled = proxy.garbled
        proxy.talk_garbage()
        wait_for(lambda: proxy.garbled >= garbled + 5 * len(GARBAGE), "a query that waits", 120)
        began = time.monotonic()
        query.stop()
        assert time.monotonic() - began < 30


def runners() -> set[int]:
    """Stream-reader processes among our descendants (other test sessions may run on this machine)."""
    listing = subprocess.run(["ps", "-wweo", "pid=,ppid=,args="], check=True, capture_output=True, text=True).stdout
    rows = [line.split(maxsplit=2) for line in listing.splitlines()]
    parents = {int(pid): int(ppid) for pid, ppid, *_ in rows}
    found = {int(row[0]) for row in rows if "python_streaming_source_runner" in row[-1]}
    return {pid for pid in found if os.getpid() in ancestors(pid, parents)}


def ancestors(pid: int, parents: dict[int, int]) -> set[int]:
    found: set[int] = set()
    while pid in parents and pid not in found:
        found.add(pid)
        pid = parents[pid]
    return found


def test_stop_leaves_no_process_or_file(
    spark: SparkSession, apache_kafka: ApacheKafka, new_topic: NewTopic, group: str, tmp_path: Path
) -> None:
    topic = new_topic(2)
    produce(apache_kafka.bootstrap_servers, topic, 20, partitions=2)
    before_files, before_runners = temporary_files(), runners()
    for index in range(3):
        collected = Collected()
        query = start(spark, options(apache_kafka.bootstrap_servers, topic, group), tmp_path / str(index), collected)
        await_rows(query, collected, 20)
        assert runners() - before_runners
        query.stop()
        wait_for(lambda: runners() <= before_runners, "the stream reader's process to end", 30)
    assert temporary_files() == before_files


def temporary_files() -> set[str]:
    """The names in the folder for temporary files that only this test session writes to."""
    return {path.name for path in Path(tempfile.gettempdir()).iterdir()}


SCRIPT = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
read = dict(item.split("=", 1) for item in sys.argv[2:])
query = (
    spark.readStream.format("kgroup").options(**read).load().writeStream.format("noop")
    .option("checkpointLocation", sys.argv[1]).start()
)
try:
    query.awaitTermination()
except KeyboardInterrupt:
    spark.stop()
"""


@pytest.mark.parametrize("end", [pytest.param("ctrl-c", marks=pytest.mark.full), "kill -9"])
def test_an_application_that_ends_leaves_no_process(
    apache_kafka: ApacheKafka, new_topic: NewTopic, group: str, tmp_path: Path, end: str
) -> None:
    topic = new_topic(2)
    produce(apache_kafka.bootstrap_servers, topic, 20, partitions=2)
    read = [f"{k}={v}" for k, v in options(apache_kafka.bootstrap_servers, topic, group).items()]
    others = runners()
    started: list[subprocess.Popen[bytes]] = []

    def seated() -> bool:
        """Whether both seats are in the group. A busy machine may miss the 10 s that Spark gives a Python process."""
        if not started or started[-1].poll() is not None:
            print(f"start {len(started) + 1} of the application")
            command = [sys.executable, "-c", SCRIPT, str(tmp_path / "cp"), *read]
            started.append(
                subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            )
        return len(assignment_by_instance(apache_kafka, group)) == 2

    try:
        wait_for(seated, "two seats in the group", 240, every_s=0.5)
        application = started[-1]
        assert runners() - others
        if end == "ctrl-c":
            os.killpg(application.pid, signal.SIGINT)
        else:
            application.kill()
        application.wait(60)
        wait_for(lambda: not session_members(application.pid), "the JVM and all workers to end", 60)
    finally:
        for pid in (pid for each in started for pid in session_members(each.pid)):
            os.kill(pid, signal.SIGKILL)


def session_members(session: int) -> list[int]:
    """Pids of the processes of a terminal session, found by its id."""
    found = subprocess.run(["pgrep", "-s", str(session)], check=False, capture_output=True, text=True).stdout
    return [int(pid) for pid in found.split()]
