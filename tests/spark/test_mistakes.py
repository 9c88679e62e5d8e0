"""Mistakes of a user who is new to `format("kgroup")`, as far as they take Spark or a broker to notice.

Each ends within 20 s of the start with the option's name and the way out. The numbers are those of the list in
`tests/unit/datasource/options/test_mistakes.py`, which has those that need no broker. Tests of this file have:

    3  a topic, or one of two, that does not exist
    4  a wrong port or security protocol
    5  the port of an HTTP server
    8  startingOffsets that leaves partitions out
    9  startingOffsets with a partition that does not exist
    10 startingOffsets beyond the end
    12 writeStream.format("kgroup") of a stream of ours
    22 trigger(continuous=...)
    29 a session timeout that the broker does not allow
    41 a wrong password, no right to the topic or the group

Other tests have, beside them:

    4  kafka/test_odd_servers.py::
       test_a_bootstrap_server_that_is_no_kafka_broker_is_one_clear_error_within_the_bound_of_the_start
    11 spark/test_batch_reads.py::test_an_error_of_a_batch_read_is_our_sentence_and_no_frame
    12 spark/test_first_contact.py::test_a_stream_of_another_source_into_kgroup_is_refused_with_the_way_out
    13 spark/test_first_contact.py::test_a_batch_write_is_refused_with_the_way_out
    21 spark/test_first_contact.py::test_a_start_warns_of_idle_seats_of_a_start_at_the_end_and_of_another_checkpoint
    24 spark/test_first_contact.py::test_a_schema_of_the_users_own_is_refused_in_brief
    35 spark/test_fenced.py::test_an_idle_query_is_fenced_within_a_heartbeat
    36 spark/test_first_contact.py::test_a_start_warns_of_idle_seats_of_a_start_at_the_end_and_of_another_checkpoint
    37 spark/test_first_contact.py::test_a_start_warns_of_idle_seats_of_a_start_at_the_end_and_of_another_checkpoint
    38 spark/test_first_contact.py::test_an_unfinished_first_batch_of_the_built_in_source_is_refused_with_the_way_out
    40 spark/test_first_contact.py::test_register_warns_of_an_environment_that_was_not_activated
    41 spark/test_security.py::test_a_query_that_is_refused_fails_with_one_clear_error

Spark words itself the refusals that come before it asks us, and names no way out:

    13 without a mode: 'cannot be written in the "ErrorIfExists" mode'
    22 "Data source kgroup does not support continuous processing."
    23 trigger(realTime=...): "The input stream ... is not supported in Real-time Mode."
"""

import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from confluent_kafka.admin import AclOperation
from harness.kafka import produce
from harness.odd_servers import Listener, http
from harness.secured import ALICE, BOB, PASSWORDS
from harness.stream import options
from pyspark.sql import SparkSession

from spark_kgroup.testing import ApacheKafka

if TYPE_CHECKING:
    from harness.secured import SecuredKafka

NewTopic = Callable[[int], str]
Mistakes = dict[str, tuple[Callable[[], object], tuple[str, ...]]]
"""Name of the mistake -> the action that ends with an error, and the words that the error must contain."""

SECONDS_MAX = 20

CHECK = "Check the bootstrap servers (`bootstrap.servers`)"


@pytest.fixture(scope="module", autouse=True)
def spark_is_warm(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The first queries of a session wait for the JVM's classes and the first Python, which is no mistake's time."""
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "any", "startingOffsets": "latest"}
    batch = spark.read.format("kgroup").options(**given, **{"kafka.group.id": "any"}).load()
    ended(batch.count)
    frame = spark.readStream.format("kgroup").options(**{**given, "startingOffsets": "earliest"}).load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path_factory.mktemp("warm")))
    ended(lambda: writer.start().awaitTermination(60))  # without a group


Stream = Callable[..., Callable[[], object]]


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path, group: str) -> Stream:
    """Load a stream with a group of its own. Returns a function that starts its query and waits for the end."""

    def load(server: str, topic: str, *, sink: str = "noop", **more: str) -> Callable[[], object]:
        name = more.pop("group", f"{group}-{uuid4().hex[:4]}")
        frame = spark.readStream.format("kgroup").options(**options(server, topic, name, **more)).load()
        writer = frame.writeStream.format(sink).option("checkpointLocation", str(tmp_path / uuid4().hex))
        return lambda: writer.start().awaitTermination(60)

    return load


def ended(action: Callable[[], object]) -> tuple[str, float]:
    """The error of `action`, without Spark's description of the query, and how long it took."""
    began_s = time.monotonic()
    with pytest.raises(Exception, match="kgroup") as problem:
        action()
    return str(problem.value).partition("=== Streaming Query ===")[0], time.monotonic() - began_s


def assert_each_ends_in_time(mistakes: Mistakes) -> None:
    """At once, and few: an address where a broker may just be starting is tried until the bound of a start, 15 s."""
    with ThreadPoolExecutor(len(mistakes)) as at_once:
        ends = at_once.map(ended, [action for action, _ in mistakes.values()])
        found = dict(zip(mistakes, ends, strict=True))
    for name, (action, _) in mistakes.items():
        if found[name][1] >= SECONDS_MAX:  # once more, alone: the work of the other mistakes is not this one's time
            found[name] = ended(action)
    for name, (text, seconds) in found.items():
        print(f"{name}: {seconds:.1f} s: {text}")
    for name, (_, expected) in mistakes.items():
        text, seconds = found[name]
        assert [part for part in expected if part not in text] == [], f"{name}: {text}"
        assert seconds < SECONDS_MAX, name


# ------------------------------------------------------------------------------- 4, 5: no broker, or not that way


@pytest.fixture
def refusing() -> Iterator[str]:
    """A port that is bound and not listening: it refuses every connection."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.mark.full
def test_a_port_without_a_broker_ends_in_time_with_the_option_to_check(
    spark: SparkSession, stream: Stream, refusing: str
) -> None:
    batch = spark.read.format("kgroup").options(**{"kafka.bootstrap.servers": refusing, "subscribe": "any"}).load()
    assert_each_ends_in_time(
        {"stream": (stream(refusing, "any"), (CHECK, refusing)), "batch": (batch.count, (CHECK, refusing))}
    )


def test_a_query_to_a_listener_of_another_security_protocol_ends_in_time_and_names_the_protocol(
    stream: Stream, apache_kafka: ApacheKafka, secured_kafka: "SecuredKafka"
) -> None:
    tls = {"kafka.security.protocol": "SSL", "kafka.ssl.ca.pem": secured_kafka.ca_pem}
    assert_each_ends_in_time(
        {
            "TLS on a plain listener": (
                stream(apache_kafka.bootstrap_servers, "any", **tls),
                (CHECK, "does this listener speak TLS (`security.protocol`)?"),
            ),
            "no login": (
                stream(secured_kafka.bootstrap("SASL_SSL"), "any", **tls),
                (CHECK, "does this listener expect SASL (`security.protocol`)?"),
            ),
        }
    )


def test_a_port_that_does_not_speak_plain_kafka_ends_at_once_with_the_options_to_check(
    stream: Stream, secured_kafka: "SecuredKafka"
) -> None:
    with Listener(http) as listener:
        assert_each_ends_in_time(
            {
                "port of an HTTP server": (stream(listener.address, "any"), (CHECK, "not a Kafka broker")),
                "no TLS on a TLS listener": (
                    stream(secured_kafka.bootstrap("SSL"), "any"),
                    (CHECK, "See `security.protocol`"),
                ),
            }
        )


# --------------------------------------------------------------------------------------------- 41: access rights


def test_a_wrong_password_or_a_right_that_lacks_ends_in_time_with_the_change_to_make(
    stream: Stream, secured_kafka: "SecuredKafka", group: str
) -> None:
    topic, server = f"topic-{uuid4().hex[:8]}", secured_kafka.bootstrap("SASL_SSL")
    secured_kafka.kafka.create_topic(topic, partitions=1)
    secured_kafka.allow(BOB, AclOperation.READ, group=group)
    secured_kafka.allow(ALICE, AclOperation.READ, topic=topic)
    login = {
        "group": group,
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.ssl.ca.pem": secured_kafka.ca_pem,
    }
    alice = {**login, "kafka.sasl.username": ALICE, "kafka.sasl.password": PASSWORDS[ALICE]}
    bob = {**login, "kafka.sasl.username": BOB, "kafka.sasl.password": PASSWORDS[BOB]}
    assert_each_ends_in_time(
        {
            "wrong password": (
                stream(server, topic, **{**alice, "kafka.sasl.password": "wrong"}),
                (ALICE, "Check `sasl.username` and `sasl.password`"),
            ),
            "no right to the topic": (
                stream(server, topic, **bob),
                (topic, "grant READ on it, or correct the subscription"),
            ),
            "no right to the group": (
                stream(server, topic, **alice),
                (f"group '{group}'", "grant READ on the group to this user"),
            ),
        }
    )


# ------------------------------------------------------- 3, 8, 9, 10, 29: the cluster's topics, offsets and limits


def test_an_option_that_does_not_fit_the_cluster_ends_in_time_with_its_name_and_the_way_out(
    stream: Stream, apache_kafka: ApacheKafka, new_topic: NewTopic
) -> None:
    topic, server = new_topic(2), apache_kafka.bootstrap_servers

    def starting(partitions: str) -> Callable[[], object]:
        return stream(server, topic, startingOffsets=f'{{"{topic}": {{{partitions}}}}}')

    assert_each_ends_in_time(
        {
            "one topic of two": (
                stream(server, f"{topic},fligths"),
                ("'fligths' does not exist", "create it, or correct the option `subscribe`"),
            ),
            "a partition left out": (
                starting('"0": 0'),
                (f"Option startingOffsets does not name {topic}-1", "name every partition"),
            ),
            "a partition that is not there": (
                starting('"0": 0, "1": 0, "7": 5'),
                (f"Option startingOffsets names partitions that do not exist: {topic}-7", "Leave them out"),
            ),
            "beyond the end": (
                starting('"0": 99, "1": 0'),
                (f"Option startingOffsets lies beyond the end of {topic}-0: 99", "-1 for latest"),
            ),
            "a session of two hours": (
                stream(server, topic, **{"kafka.session.timeout.ms": "7200000"}),
                ("set `session.timeout.ms` within the broker's group.min/max.session.timeout.ms",),
            ),
        }
    )


# ----------------------------------------------------------------------------------- 12, 22: uses that are refused


def test_a_stream_written_into_kgroup_itself_ends_in_time_with_the_format_that_writes(
    stream: Stream, apache_kafka: ApacheKafka, new_topic: NewTopic
) -> None:
    topic, server = new_topic(1), apache_kafka.bootstrap_servers
    produce(server, topic, 1, partitions=1)
    text, seconds = ended(stream(server, topic, sink="kgroup"))
    assert 'write with format("kafka")' in text
    assert seconds < SECONDS_MAX


def test_a_continuous_trigger_ends_in_time_with_the_source_that_has_none(
    spark: SparkSession, group: str, tmp_path: Path
) -> None:
    frame = spark.readStream.format("kgroup").options(**options("127.0.0.1:1", "any", group)).load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    text, seconds = ended(lambda: writer.trigger(continuous="1 second").start())
    assert "kgroup does not support continuous processing" in text
    assert seconds < SECONDS_MAX
