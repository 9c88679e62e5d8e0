"""Mistakes of a user who is new to `format("kgroup")`, as far as no broker is needed to notice them.

Each ends in `load()` or in the first call of the reader with the option's name and the way out, within 2 s: no broker
was asked. Those that need Spark or a broker are in `tests/spark/test_mistakes.py`, under the same numbers.

    1  kafka.group.id, kafka.bootstrap.servers or subscribe is missing
    2  an option is misspelt, or lacks its "kafka."
    3  the topic does not exist, or one of two does not
    4  the port or the host is wrong, or the listener speaks no TLS
    5  the port is that of an HTTP server
    6  the server has no port
    7  startingOffsets is no JSON, an unknown word, or about another topic
    8  startingOffsets leaves partitions out
    9  startingOffsets names a partition that does not exist
    10 startingOffsets lies beyond the end
    11 spark.read, with options of streams
    12 writeStream.format("kgroup")
    13 write.format("kgroup")
    14 assign, or a wrong subscribePattern
    15 a wrong startingTimestamp or startingOffsetsByTimestamp
    16 a stream that is to end where logs end
    17 wrong minPartitions or maxRecordsPerPartition
    18 wrong minOffsetsPerTrigger or maxTriggerDelay
    19 kafkaConsumer.pollTimeoutMs, fetchOffset.*
    20 members is 0, -2, "four"
    21 more members than partitions
    22 trigger(continuous=...)
    23 trigger(realTime=...)
    24 .schema(...) of the user's own
    25 load("flights")
    26 deserializers, auto commit, group.instance.id, max.poll.records, an unknown group.protocol
    27 auto.offset.reset=none
    28 a fetch.max.bytes that Java's consumer takes and librdkafka does not
    29 a session timeout that is too short or too long
    30 Kerberos
    31 AWS_MSK_IAM as AWS prints it
    32 JKS stores
    33 a PEM file that is missing, or garbage
    34 a tokenCallback that cannot be imported
    35 two queries with one group and prefix
    36 the checkpoint of another topic
    37 the checkpoint of another group
    38 the checkpoint of format("kafka"), whose first batch is not finished
    39 the group's offsets moved back while the query was stopped
    40 an environment that was not activated
    41 no right to the topic or the group, a wrong password
    42 CREATE TABLE ... USING kgroup
    43 a list or a dict of Python as an option
"""

import ast
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StringType, StructField, StructType

from pyspark_kgroup.offsets.checkpoint import EMPTY
from pyspark_kgroup.source import DefaultSource
from pyspark_kgroup.stream import KgroupStreamReader
from spark_kgroup.errors import KgroupError

TESTS = Path(__file__).parents[3]
WITH_A_BROKER = TESTS / "spark" / "test_mistakes.py"
SECONDS_MAX = 2

BATCH = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "flights"}
STREAM = {**BATCH, "kafka.group.id": "g"}
TLS = {"kafka.security.protocol": "SSL"}
SASL = {"kafka.security.protocol": "SASL_SSL"}
OAUTH = {**SASL, "kafka.sasl.mechanism": "OAUTHBEARER"}
MSK = "software.amazon.msk.auth.iam"

DRIVER = "unit/datasource/driver"
HERE = "unit/datasource/options/test_mistakes.py"

HELD_BY = {
    8: (
        f"{DRIVER}/test_first_start.py",
        "test_an_explicit_start_that_misses_or_invents_partitions_is_refused_with_all_of_them",
    ),
    9: (
        f"{DRIVER}/test_first_start.py",
        "test_an_explicit_start_that_misses_or_invents_partitions_is_refused_with_all_of_them",
    ),
    10: (f"{DRIVER}/test_first_start.py", "test_an_explicit_start_beyond_the_end_is_refused_with_both_offsets"),
    12: (HERE, "test_a_write_ends_at_once_with_the_format_that_writes"),
    13: (HERE, "test_a_write_ends_at_once_with_the_format_that_writes"),
    21: (
        f"{DRIVER}/test_sizing.py",
        "test_a_number_of_seats_that_is_a_guess_or_leaves_some_idle_makes_a_warning",
    ),
    24: (HERE, "test_a_schema_of_the_users_own_ends_at_once_with_the_call_to_remove"),
    29: (
        "unit/member/test_fatal_errors.py",
        "test_a_refusal_under_the_classic_protocol_says_how_to_mend_it",
    ),
    36: (
        f"{DRIVER}/test_checkpoint_origin.py",
        "test_a_checkpoint_without_any_subscribed_topic_makes_a_warning_that_the_query_starts_from_the_beginning",
    ),
    37: (
        f"{DRIVER}/test_checkpoint_origin.py",
        "test_a_checkpoint_of_another_group_makes_a_warning_with_both_names",
    ),
    38: (HERE, "test_an_unfinished_first_batch_of_the_built_in_source_ends_at_once_with_the_way_to_finish_it"),
    39: (f"{DRIVER}/test_ignored_commits.py", "test_a_committed_offset_that_was_moved_back_is_ignored_with_a_warning"),
    40: (
        f"{DRIVER}/test_spark_python.py",
        "test_an_environment_that_was_not_activated_is_named_with_the_python_that_spark_starts",
    ),
}
"""Mistakes that no row of `MISTAKES` can make, or not all of them. 21, 36, 37, 39 and 40 are no errors: the query runs,
and the log has a warning with the way out."""


class Mistake(NamedTuple):
    """A mistake as a user writes it: options beside those that every read has. None leaves an option out."""

    number: int
    read: str
    given: dict[str, str | None]
    named: str
    way_out: str


def of_both(number: int, given: dict[str, str | None], named: str, way_out: str) -> list[Mistake]:
    return [Mistake(number, read, given, named, way_out) for read in ("stream", "batch")]


MISTAKES = [
    *of_both(1, {"kafka.bootstrap.servers": None}, "Option kafka.bootstrap.servers is missing", "HOST:PORT"),
    *of_both(1, {"subscribe": None}, "Option subscribe is missing", "TOPIC[,TOPIC...]. Or set subscribePattern"),
    Mistake(1, "stream", {"kafka.group.id": None}, "Option kafka.group.id is missing", "It needs a group's name."),
    *of_both(2, {"startingOffset": "earliest"}, "Option startingoffset is", "did you mean startingOffsets?"),
    *of_both(2, {"kafka.isolation.levle": "x"}, "kafka.isolation.levle is", "did you mean kafka.isolation.level?"),
    *of_both(2, {"bootstrap.servers": "b:9092"}, "bootstrap.servers is", "did you mean kafka.bootstrap.servers?"),
    Mistake(2, "stream", {"maxOffsetsPerTriger": "5"}, "maxoffsetspertriger is", "did you mean maxOffsetsPerTrigger?"),
    Mistake(2, "stream", {"kafka.group.id": None, "group.id": "g"}, "group.id is", "did you mean kafka.group.id?"),
    Mistake(2, "batch", {"endingOffset": "latest"}, "Option endingoffset is", "did you mean endingOffsets?"),
    Mistake(2, "batch", {"minPartition": "8"}, "Option minpartition is", "did you mean minPartitions?"),
    *of_both(6, {"kafka.bootstrap.servers": "localhost"}, "kafka.bootstrap.servers is 'localhost'", "HOST:PORT"),
    *of_both(6, {"kafka.bootstrap.servers": "http://a:9092"}, "kafka.bootstrap.servers is 'http", "HOST:PORT"),
    *of_both(7, {"startingOffsets": '{"flights":{0:1}}'}, "startingOffsets is", "or JSON such as {"),
    *of_both(7, {"startingOffsets": "yesterday"}, "startingOffsets is 'yesterday'", "or JSON such as {"),
    *of_both(7, {"startingOffsets": '{"fligths":{"0":1}}'}, "startingOffsets names topics", "Subscribe to them, or"),
    Mistake(
        11, "batch", {"startingOffsets": "latest"}, "startingOffsets is 'latest'", "Start at earliest, at an offset"
    ),
    Mistake(11, "batch", {"startingOffsets": "committed"}, "kafka.group.id is missing", "name the group"),
    Mistake(11, "batch", {"endingOffsets": "earliest"}, "endingOffsets is 'earliest'", "it needs latest, or JSON"),
    *of_both(14, {"assign": '{"flights":[0]}'}, "Option assign cannot be used", "`subscribe`"),
    *of_both(14, {"subscribePattern": "f.*"}, "subscribe and subscribePattern are both given", "leave one of them out"),
    *of_both(14, {"subscribe": None, "subscribePattern": "*"}, "subscribePattern is '*'", r"write .* for any text, or"),
    *of_both(14, {"subscribe": "flights.*"}, "subscribe is 'flights.*'", "a pattern belongs into subscribePattern"),
    *of_both(
        43, {"subscribe": str(["t", "u"])}, "subscribe is \"['t', 'u']\"", 'list, ",".join(...) makes such a text'
    ),
    *of_both(43, {"startingOffsets": str({"t": {"0": 5}})}, "startingOffsets is", "dict, json.dumps(...) makes such a"),
    *of_both(15, {"startingTimestamp": "2024-01-01"}, "startingTimestamp is '2024-01-01'", "ms since 1970, UTC"),
    *of_both(15, {"startingOffsetsByTimestamp": "17"}, "startingOffsetsByTimestamp is '17'", "it needs JSON such as"),
    *of_both(15, {"startingOffsetsByTimestampStrategy": "x"}, "ByTimestampStrategy is 'x'", "error or latest"),
    Mistake(16, "stream", {"endingOffsets": "latest"}, "endingOffsets is 'latest'", "trigger(availableNow=True)"),
    Mistake(16, "stream", {"endingOffsets": '{"flights":{"0":-1}}'}, "has -1 (latest)", "trigger(availableNow=True)"),
    *of_both(16, {"endingTimestamp": "2024-01-01"}, "endingTimestamp is '2024-01-01'", "ms since 1970, UTC"),
    *of_both(17, {"minPartitions": "0"}, "Option minPartitions is '0'", "it needs 1 to"),
    *of_both(17, {"maxRecordsPerPartition": "many"}, "maxRecordsPerPartition is 'many'", "it needs 1 to"),
    Mistake(18, "stream", {"minOffsetsPerTrigger": "-1"}, "minOffsetsPerTrigger is '-1'", "it needs 1 to"),
    Mistake(
        18, "stream", {"maxTriggerDelay": "soon"}, "maxTriggerDelay is 'soon'", "a number and ms, s, m, min, h or d"
    ),
    Mistake(20, "stream", {"members": "0"}, "Option members is '0'", "it needs 1 to 1000"),
    Mistake(20, "stream", {"members": "-2"}, "Option members is '-2'", "it needs 1 to 1000"),
    Mistake(20, "stream", {"members": "four"}, "Option members is 'four'", "it needs 1 to 1000"),
    *of_both(25, {"path": "flights"}, "Option path cannot be used", "Call load() without a path and set `subscribe`"),
    *of_both(26, {"kafka.key.deserializer": "x"}, "kafka.key.deserializer", "Decode them with DataFrame operations"),
    *of_both(
        26, {"kafka.value.deserializer": "x"}, "kafka.value.deserializer", "Decode them with DataFrame operations"
    ),
    *of_both(26, {"kafka.enable.auto.commit": "true"}, "kafka.enable.auto.commit", "Leave it out"),
    Mistake(26, "stream", {"kafka.group.instance.id": "me"}, "kafka.group.instance.id", "Set `instanceIdPrefix`"),
    Mistake(26, "stream", {"kafka.max.poll.records": "500"}, "kafka.max.poll.records", "`maxOffsetsPerTrigger`"),
    Mistake(26, "stream", {"kafka.group.protocol": "new"}, "kafka.group.protocol is 'new'", "classic or consumer"),
    Mistake(
        27,
        "stream",
        {"kafka.auto.offset.reset": "none"},
        "auto.offset.reset is 'none'",
        "earliest, latest, or by_duration",
    ),
    Mistake(29, "stream", {"kafka.session.timeout.ms": "45s"}, "kafka.session.timeout.ms is '45s'", "it needs 1 to"),
    Mistake(
        29,
        "stream",
        {"kafka.session.timeout.ms": "1000", "kafka.heartbeat.interval.ms": "3000"},
        "kafka.heartbeat.interval.ms is 3000 ms",
        "Lower the one or raise the other",
    ),
    *of_both(30, {**SASL, "kafka.sasl.mechanism": "GSSAPI"}, "mechanism is 'GSSAPI'", "Use SCRAM, OAUTHBEARER or mTLS"),
    *of_both(
        30, {**SASL, "kafka.sasl.kerberos.keytab": "/k"}, "sasl.kerberos.keytab", "Use SCRAM, OAUTHBEARER or mTLS"
    ),
    *of_both(
        31,
        {
            **SASL,
            "kafka.sasl.mechanism": "AWS_MSK_IAM",
            "kafka.sasl.jaas.config": f"{MSK}.IAMLoginModule required;",
            "kafka.sasl.client.callback.handler.class": f"{MSK}.IAMClientCallbackHandler",
        },
        "kafka.sasl.mechanism is 'AWS_MSK_IAM'",
        "`tokenCallback` that calls AWS's aws-msk-iam-sasl-signer-python",
    ),
    *of_both(
        32,
        {**TLS, "kafka.ssl.truststore.location": "/trust.jks", "kafka.ssl.truststore.password": "changeit"},
        "`ssl.truststore.location` is about a JKS store",
        "export it with `keytool -list -rfc",
    ),
    *of_both(
        32,
        {**TLS, "kafka.ssl.keystore.location": "/key.jks", "kafka.ssl.keystore.password": "changeit"},
        "`ssl.keystore.location` is about a JKS store",
        "openssl pkcs12 -in STORE -out client.pem",
    ),
    *of_both(33, {**TLS, "kafka.ssl.ca.pem": "garbage"}, "`ssl.ca.pem`", "PEM form (-----BEGIN CERTIFICATE-----)"),
    *of_both(34, {**OAUTH, "tokenCallback": "nowhere:token"}, "tokenCallback: nowhere:token", "Install its module for"),
    *of_both(34, {**OAUTH, "tokenCallback": "nowhere.token"}, "tokenCallback is 'nowhere", "it needs MODULE:FUNCTION"),
]

WAITING = "set `kafka.default.api.timeout.ms`, which says how long to wait"

MISTAKES += [
    *of_both(19, {"kafkaConsumer.pollTimeoutMs": "512"}, "Option kafkaConsumer.pollTimeoutMs", WAITING),
    *of_both(19, {"fetchOffset.numRetries": "3"}, "Option fetchOffset.numRetries", WAITING),
    *of_both(19, {"fetchOffset.retryIntervalMs": "9"}, "Option fetchOffset.retryIntervalMs", WAITING),
    Mistake(26, "batch", {"kafka.max.poll.records": "9"}, "Option kafka.max.poll.records", "maxRecordsPerPartition"),
    Mistake(26, "batch", {"kafka.group.instance.id": "me"}, "Option kafka.group.instance.id", "Leave it out"),
    *of_both(
        28, {"kafka.fetch.max.bytes": "500000"}, ": `kafka.fetch.max.bytes` must", "lower kafka.message.max.bytes"
    ),
    *of_both(33, {**TLS, "kafka.ssl.ca.location": "/no/ca.pem"}, "`ssl.ca.location`", "`ssl.ca.pem`"),
    *of_both(
        33,
        {**TLS, "kafka.ssl.certificate.pem": "garbage", "kafka.ssl.key.pem": "garbage"},
        "`ssl.certificate.pem`",
        "give both, or a file that holds both",
    ),
    *of_both(
        27,
        {"startingOffsets": "earliest", "kafka.auto.offset.reset": "none"},
        "reset is 'none'",
        "earliest, latest, or by_duration",
    ),
    *of_both(42, {"owner": "me", "provider": "kgroup"}, "No table of the catalog", "CREATE TEMPORARY VIEW ... USING"),
]


@pytest.fixture(autouse=True)
def spark_shows_tracebacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")  # an error sets it: put back after the test


def begin(read: str, given: dict[str, str | None], schema: StructType | None = None) -> None:
    """`load()`, then Spark's first call when the query starts. With a schema given, the source is asked for none."""
    every = {**(STREAM if read == "stream" else BATCH), **given}
    source = DefaultSource(CaseInsensitiveDict({name: text for name, text in every.items() if text is not None}))
    columns = source.schema() if schema is None else schema
    if read == "stream":
        reader = source.streamReader(columns)
        assert isinstance(reader, KgroupStreamReader)
        reader.latestOffset(EMPTY.to_json())
    else:
        source.reader(columns).partitions()


def refusal(action: Callable[[], Any]) -> str:
    """The text of the error that `action` ends with in time."""
    began_s = time.monotonic()
    with pytest.raises(KgroupError) as problem:
        action()
    assert time.monotonic() - began_s < SECONDS_MAX
    return str(problem.value)


@pytest.mark.parametrize(
    "mistake",
    MISTAKES,
    ids=lambda mistake: f"{mistake.number} {mistake.read} {' '.join(mistake.given)}",
)
def test_a_mistake_ends_at_once_with_the_option_and_the_way_out(mistake: Mistake) -> None:
    message = refusal(lambda: begin(mistake.read, mistake.given))
    assert mistake.named in message
    assert mistake.way_out in message
    assert "kafka.kafka." not in message


# --------------------------------------------------------------------------------------------- beside options


def test_a_write_ends_at_once_with_the_format_that_writes() -> None:
    sink = DefaultSource(STREAM)
    columns = sink.schema()
    for action in (lambda: sink.writer(columns, False), lambda: sink.streamWriter(columns, False)):
        message = refusal(action)
        assert 'format("kgroup") reads from Kafka, it does not write' in message
        assert 'write with format("kafka")' in message


@pytest.mark.parametrize("read", ["stream", "batch"])
def test_a_schema_of_the_users_own_ends_at_once_with_the_call_to_remove(read: str) -> None:
    message = refusal(lambda: begin(read, {}, StructType([StructField("value", StringType())])))
    assert "remove .schema(...) from the query" in message
    assert "the option columns" in message


def test_an_unfinished_first_batch_of_the_built_in_source_ends_at_once_with_the_way_to_finish_it() -> None:
    source = DefaultSource(STREAM)
    reader = source.streamReader(source.schema())
    assert isinstance(reader, KgroupStreamReader)
    message = refusal(lambda: reader.partitions(reader.initialOffset(), {"flights": {"0": 250, "1": 7}}))
    assert 'planned by format("kafka") and is not finished' in message
    assert "availableNow=True" in message


# --------------------------------------------------------------------------------------------- the list itself


def functions_of(path: Path) -> set[str]:
    return {each.name for each in ast.walk(ast.parse(path.read_text())) if isinstance(each, ast.FunctionDef)}


def test_each_mistake_of_the_list_has_a_test_that_exists() -> None:
    """In this file, or as the two lists say: a test that is renamed is missed here. 23 is Spark's alone."""
    with_a_broker = ast.get_docstring(ast.parse(WITH_A_BROKER.read_text())) or ""
    numbered = re.compile(r"^ +(\d+) ", re.MULTILINE)
    listed = {int(number) for number in numbered.findall(__doc__ or "")}
    assert listed == set(range(1, max(listed) + 1))
    there = {int(number) for number in numbered.findall(with_a_broker)}
    assert {mistake.number for mistake in MISTAKES} | HELD_BY.keys() | there == listed
    elsewhere = re.findall(r"([\w/]+\.py)::\s*(test_\w+)", with_a_broker)
    assert elsewhere
    for file, test in [*HELD_BY.values(), *elsewhere]:
        assert test in functions_of(TESTS / file), f"{file}::{test}"
