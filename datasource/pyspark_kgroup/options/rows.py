"""The options of `format("kgroup")`: one row each, from which parser, error texts and docs/reference/options.md come.

Runs on: driver. Pure.
"""

from __future__ import annotations

from typing import Any, Final, cast

from pyspark_kgroup.limits import MAX_TRIGGER_DELAY_MS, PREFETCH_BYTES_MIN, PREFETCH_BYTES_PER_EXECUTOR, TASKS_MAX
from pyspark_kgroup.offsets.offset_spec import Ago, OffsetSpec
from pyspark_kgroup.options.offset_bound import (
    OffsetBound,
    by_timestamp,
    by_timestamps,
    parse_ending_offsets,
    parse_starting_offsets,
)
from pyspark_kgroup.options.security_rows import SECURITY
from pyspark_kgroup.options.values import (
    LONG_MAX,
    PREFIX_CHARACTERS_MAX,
    Option,
    assignor_names,
    column_names,
    duration,
    instance_id_prefix,
    non_empty,
    number,
    offset_reset,
    one_of,
    servers,
    time_span,
    topic_pattern,
    topics,
    zero_or_number,
)
from pyspark_kgroup.shared.columns import COLUMNS, HEADERS
from pyspark_kgroup.shared.tickets import Reader
from spark_kgroup.assignors import NAMES as ASSIGNOR_NAMES
from spark_kgroup.limits import (
    API_TIMEOUT_MS,
    HEARTBEAT_INTERVAL_MS,
    METADATA_MAX_AGE_MS,
    REBALANCE_TIMEOUT_MS,
    REQUEST_TIMEOUT_MS,
    SESSION_TIMEOUT_MS,
)
from spark_kgroup.model import AUTO, BROKER, CLASSIC, CLIENT, CONSUMER, INT_MAX
from spark_kgroup.topic_pattern import TopicPattern

MEMBERS_MAX: Final = 1000
"""The seats that one driver bears: 1,000 take 13 % of a core and 144 MiB between batches (measured, two busy cores)."""

BOOTSTRAP_SERVERS = Option(
    name="kafka.bootstrap.servers",
    type="string",
    default="",
    shown=None,
    range="HOST:PORT[,HOST:PORT...]",
    effect="Brokers to connect to first.",
    origin="Kafka's bootstrap.servers",
    acts="both",
    read=servers,
)
GROUP_ID: Option[str] = Option(
    name="kafka.group.id",
    type="string",
    default="",
    shown=None,
    range="a group's name",
    effect="The consumer group whose members are this query's seats. A batch read joins no group: it needs one with "
    "startingOffsets=committed only.",
    origin="Kafka's group.id",
    acts="both",
    read=non_empty,
)
SUBSCRIBE: Option[tuple[str, ...] | None] = Option(
    name="subscribe",
    type="list",
    default=None,
    shown="required, or subscribePattern",
    range="TOPIC[,TOPIC...]",
    effect="The topics to read.",
    origin="Spark's subscribe",
    read=topics,
)
SUBSCRIBE_PATTERN: Option[TopicPattern | None] = Option(
    name="subscribePattern",
    type="string",
    default=None,
    shown="unset",
    range="a regular expression of Java's",
    effect="In place of subscribe: all topics whose whole name matches, as they come and go (looked for each "
    "kafka.metadata.max.age.ms). One that appears while the query runs is read from its earliest offset.",
    origin="Spark's subscribePattern",
    read=topic_pattern,
)
MEMBERS: Option[int | None] = Option(
    name="members",
    type="int",
    default=None,
    shown="the executors' cores, as the driver's start tells them, or else the executors, 4 at first; no more than "
    "partitions",
    range=f"1 to {MEMBERS_MAX}",
    effect="Seats of this query: static members of the group, each read by one task. On a restart with fewer, the "
    "rest leave the group; with more, as few partitions as possible move. Without this option, and where Spark's start "
    "does not say how many tasks run at once, seats join while the query runs as executors come, and leave when there "
    "are fewer for 10 min.",
    origin="ours",
    read=number(1, MEMBERS_MAX),
)
INSTANCE_ID_PREFIX: Option[str | None] = Option(
    name="instanceIdPrefix",
    type="string",
    default=None,
    shown="the group's name",
    range=f"letters, digits, `.`, `_` and `-`, at most {PREFIX_CHARACTERS_MAX}",
    effect="Seat k has the instance id PREFIX-k. Two queries in one group need different prefixes.",
    origin="ours; makes Kafka's group.instance.id",
    read=instance_id_prefix,
)
STARTING_OFFSETS = Option(
    name="startingOffsets",
    type="string",
    default=OffsetBound(text="committed", committed=True, everywhere=OffsetSpec.LATEST),
    shown="committed",
    range='committed, earliest, latest, or JSON such as {"flights":{"0":23,"1":-2,"2":-1},"orders":"earliest"} '
    "(-2 earliest, -1 latest)",
    effect="Where a query without a checkpoint starts: at the group's committed offsets (see kafka.auto.offset.reset) "
    "or where this says, unless members of other applications are in the group. Partitions added later start at "
    "earliest. A batch read starts at earliest by default.",
    origin="Spark's startingOffsets, latest",
    read=parse_starting_offsets,
)
STARTING_TIMESTAMP: Option[OffsetBound | None] = Option(
    name="startingTimestamp",
    type="long",
    default=None,
    shown="unset",
    range=f"0 to {LONG_MAX} ms since 1970, UTC",
    effect="In place of startingOffsets: each partition starts at its first record that is not older.",
    origin="Spark's startingTimestamp",
    read=by_timestamp("startingTimestamp"),
)
STARTING_OFFSETS_BY_TIMESTAMP: Option[OffsetBound | None] = Option(
    name="startingOffsetsByTimestamp",
    type="string",
    default=None,
    shown="unset",
    range='JSON such as {"topic":{"0":1767225600000,"1":0}}, in ms since 1970, UTC',
    effect="In place of startingOffsets: the same with a timestamp for each partition. startingTimestamp comes before "
    "it.",
    origin="Spark's startingOffsetsByTimestamp",
    read=by_timestamps("startingOffsetsByTimestamp"),
)
STARTING_OFFSETS_BY_TIMESTAMP_STRATEGY = Option(
    name="startingOffsetsByTimestampStrategy",
    type="string",
    default="error",
    shown="error",
    range="error or latest",
    effect="What becomes of a partition without a record at or after its timestamp: the query fails, or starts at the "
    "partition's end.",
    origin="Spark's startingOffsetsByTimestampStrategy, error",
    read=lambda text: one_of("error", "latest")(text.lower()),
)
ENDING_OFFSETS = Option(
    name="endingOffsets",
    type="string",
    default=OffsetBound(text="latest", option="endingOffsets", everywhere=OffsetSpec.LATEST),
    shown="latest for batch reads; a stream has no end",
    range='latest, or JSON such as {"flights":{"0":50,"1":-1},"orders":"latest"} (-1 latest); for streams offsets '
    "alone",
    effect="Where reading ends: the offset itself is not read. A stream goes on up to there, also beyond the present "
    "end of a log; partitions that come later are not read.",
    origin="Spark's endingOffsets, latest",
    read=parse_ending_offsets,
)
ENDING_TIMESTAMP: Option[OffsetBound | None] = Option(
    name="endingTimestamp",
    type="long",
    default=None,
    shown="unset",
    range=f"0 to {LONG_MAX} ms since 1970, UTC",
    effect="In place of endingOffsets: each partition ends before its first record that is not older. As long as there "
    "is none, a batch read ends at the partition's end, and a stream goes on.",
    origin="Spark's endingTimestamp",
    read=by_timestamp("endingTimestamp"),
)
ENDING_OFFSETS_BY_TIMESTAMP: Option[OffsetBound | None] = Option(
    name="endingOffsetsByTimestamp",
    type="string",
    default=None,
    shown="unset",
    range='JSON such as {"topic":{"0":1767225600000,"1":0}}, in ms since 1970, UTC',
    effect="In place of endingOffsets: the same with a timestamp for each partition. endingTimestamp comes before it.",
    origin="Spark's endingOffsetsByTimestamp",
    read=by_timestamps("endingOffsetsByTimestamp"),
)
MIN_PARTITIONS: Option[int | None] = Option(
    name="minPartitions",
    type="int",
    default=None,
    shown="a task for each seat; for batch reads, for each partition",
    range=f"1 to {TASKS_MAX} tasks",
    effect="At least so many tasks read a batch, as far as it has offsets: the largest shares are divided, also within "
    "a partition. Seats, and what they own, stay as they are.",
    origin="Spark's minPartitions",
    read=number(1, TASKS_MAX),
)
MAX_RECORDS_PER_PARTITION: Option[int | None] = Option(
    name="maxRecordsPerPartition",
    type="long",
    default=None,
    shown="no limit",
    range=f"1 to {LONG_MAX} offsets",
    effect="Most offsets that one task reads. A larger share is divided as with minPartitions.",
    origin="Spark's maxRecordsPerPartition",
    read=number(1, LONG_MAX),
)
MAX_OFFSETS_PER_TRIGGER: Option[int | None] = Option(
    name="maxOffsetsPerTrigger",
    type="long",
    default=None,
    shown="no limit",
    range=f"1 to {LONG_MAX} offsets",
    effect="Most offsets in one micro-batch, shared among partitions in proportion to the new records of each.",
    origin="Spark's maxOffsetsPerTrigger",
    read=number(1, LONG_MAX),
)
MAX_BYTES_PER_TRIGGER: Option[int | None] = Option(
    name="maxBytesPerTrigger",
    type="long",
    default=None,
    shown="no limit",
    range=f"1 to {LONG_MAX} bytes",
    effect="About how many bytes one micro-batch takes, as rows have them in memory: a topic's records count as those "
    "read last, in this run or the one before. Until some of a topic were, each counts as 1 MiB, so the first batches "
    "of a new query are small. With PySpark 4.0 and 4.1 the driver reads a sample before the first batch of each "
    "start. A batch has one record at least.",
    origin="ours",
    read=number(1, LONG_MAX),
)
MIN_OFFSETS_PER_TRIGGER: Option[int | None] = Option(
    name="minOffsetsPerTrigger",
    type="long",
    default=None,
    shown="no minimum",
    range=f"1 to {LONG_MAX} offsets",
    effect="New offsets wait for more until they are so many, or maxTriggerDelay has passed since the last batch with "
    "records. Not for the first batch after a start, nor with availableNow or once.",
    origin="Spark's minOffsetsPerTrigger",
    read=number(1, LONG_MAX),
)
MAX_TRIGGER_DELAY = Option(
    name="maxTriggerDelay",
    type="duration",
    default=MAX_TRIGGER_DELAY_MS,
    shown="15m",
    range="a number and ms, s, m, min, h or d; without a unit, ms",
    effect="For how long minOffsetsPerTrigger may hold records back.",
    origin="Spark's maxTriggerDelay, 15m",
    read=time_span,
)
COLUMN_NAMES: Option[tuple[str, ...]] = Option(
    name="columns",
    type="list",
    default=COLUMNS,
    shown="all but headers",
    range=f"one or more of {', '.join((*COLUMNS, HEADERS))}",
    effect="The columns that rows have, in this order. Columns that are not named are not handed to Spark, which does "
    "not tell a source which columns a query needs.",
    origin="ours",
    acts="both",
    read=column_names,
)
INCLUDE_HEADERS = Option(
    name="includeHeaders",
    type="boolean",
    default=False,
    shown="false",
    range="true or false",
    effect="Adds the column headers.",
    origin="Spark's includeHeaders, false",
    acts="both",
    read=lambda text: one_of("true", "false")(text.lower()) == "true",
)
FAIL_ON_DATA_LOSS = Option(
    name="failOnDataLoss",
    type="boolean",
    default=True,
    shown="true",
    range="true or false",
    effect="Whether the query fails when records that it had still to read are gone (retention, a deleted or recreated "
    "topic, a truncated log), or continues with the rest and warns. With false, a partition without a leader does "
    "not end it either.",
    origin="Spark's failOnDataLoss, true",
    acts="both",
    read=lambda text: one_of("true", "false")(text.lower()) == "true",
)
GROUP_PROTOCOL = Option(
    name="kafka.group.protocol",
    type="string",
    default=CLASSIC,
    shown=CLASSIC,
    range=f"{CLASSIC} or {CONSUMER}",
    effect="Who assigns partitions: a member of the group, or under consumer (KIP-848, Kafka 4.0) the brokers. These "
    "then decide about sessions and heartbeats, too: a driver may be away for the group's "
    "`consumer.session.timeout.ms` (45 s, at most the broker's group.consumer.max.session.timeout.ms, 60 s) before its "
    "partitions move. A restart may change it.",
    origin="Kafka's group.protocol, classic",
    read=lambda text: one_of(CLASSIC, CONSUMER)(text.lower()),
)
MEMBER_IDS = Option(
    name="memberIds",
    type="string",
    default=BROKER,
    shown=BROKER,
    range=f"{BROKER}, {CLIENT} or {AUTO}",
    effect=f"Who makes the seats' member ids in a classic group. {CLIENT}: the driver does, as UUIDs (KIP-1082), with "
    "a cooperative assignor, on brokers of Kafka 4.1 or later that convert groups both ways and say so "
    "(DESCRIBE_CONFIGS on the cluster); else the seats keep the broker's, and the log says why, once. "
    f"{AUTO}: the same, but only for a query that starts anew and is alone in its group, before it reads anything: it "
    "puts nothing at risk.",
    origin="ours",
    read=lambda text: one_of(BROKER, CLIENT, AUTO)(text.lower()),
)
REMOTE_ASSIGNOR: Option[str | None] = Option(
    name="kafka.group.remote.assignor",
    type="string",
    default=None,
    shown="the first one of the brokers",
    range="one of the brokers' group.consumer.assignors: uniform, range",
    effect=f"With kafka.group.protocol={CONSUMER}: how the brokers spread partitions over the group.",
    origin="Kafka's group.remote.assignor",
    read=non_empty,
)
SESSION_TIMEOUT = duration(
    "kafka.session.timeout.ms",
    SESSION_TIMEOUT_MS,
    "How long a seat may be silent before the group gives its partitions to others: a driver that restarts faster "
    "moves nothing. The broker bounds it by group.min.session.timeout.ms and group.max.session.timeout.ms.",
    origin="Kafka's session.timeout.ms, 45000 ms",
)
REBALANCE_TIMEOUT = duration(
    "kafka.max.poll.interval.ms",
    REBALANCE_TIMEOUT_MS,
    "How long a rebalance waits for a seat, which gives partitions up only between micro-batches: set it longer than "
    "the longest batch.",
    origin="Kafka's max.poll.interval.ms, 300000 ms",
)
HEARTBEAT_INTERVAL: Option[int | None] = Option(
    name="kafka.heartbeat.interval.ms",
    type="int",
    default=None,
    shown=f"{HEARTBEAT_INTERVAL_MS} ms, or a third of the session timeout if that is less",
    range=f"1 to {INT_MAX} ms, at most a third of kafka.session.timeout.ms",
    effect="How often two seats of the query send a heartbeat. The answers tell all seats of rebalances. The other "
    "seats send ten in a session.",
    origin="Kafka's heartbeat.interval.ms, 3000 ms",
    read=number(1, INT_MAX),
)
METADATA_MAX_AGE = duration(
    "kafka.metadata.max.age.ms",
    METADATA_MAX_AGE_MS,
    "How soon added partitions are noticed.",
    origin="Kafka's metadata.max.age.ms, 300000 ms",
    low_ms=100,
)
REQUEST_TIMEOUT = duration(
    "kafka.request.timeout.ms",
    REQUEST_TIMEOUT_MS,
    "How long the driver waits for a broker's answer before it asks again.",
    origin="Kafka's request.timeout.ms, 30000 ms",
    low_ms=100,
)
API_TIMEOUT = duration(
    "kafka.default.api.timeout.ms",
    API_TIMEOUT_MS,
    "How long a running query waits for brokers that are gone, or for a leader of one partition, before it fails. "
    "A query that finds no broker when it starts fails after 15 s.",
    origin="Kafka's default.api.timeout.ms, 60000 ms; bounds what kafkaConsumer.pollTimeoutMs does for Spark",
    acts="both",
    low_ms=1000,
)
ASSIGNORS: Option[tuple[str, ...]] = Option(
    name="kafka.partition.assignment.strategy",
    type="list",
    default=("cooperative-sticky",),
    shown="cooperative-sticky",
    range=f"one or more of {', '.join(ASSIGNOR_NAMES)} and module:Class of your own, the preferred one first",
    effect="How partitions are spread over all members of the group. All members must have one name in common. A class "
    "of your own derives from spark_kgroup.assignors.contract.Assignor; no other one is made.",
    origin="Kafka's partition.assignment.strategy, range and cooperative-sticky",
    read=assignor_names,
)
READER: Option[Reader] = Option(
    name="reader",
    type="string",
    default="native",
    shown="native",
    range="native or librdkafka",
    effect="The library that fetches and decodes records. native takes a fraction of the CPU. It leaves unusual "
    "records to librdkafka in the midst of a read, and the executor's log has the reason. With librdkafka, tasks read "
    "directly: nothing is fetched ahead.",
    origin="ours",
    acts="executor",
    read=lambda text: cast("Reader", one_of("native", "librdkafka")(text)),
)
PREFETCH_BYTES = Option(
    name="prefetchBytes",
    type="long",
    default=PREFETCH_BYTES_PER_EXECUTOR,
    shown=f"{PREFETCH_BYTES_PER_EXECUTOR} bytes",
    range=f"0, or {PREFETCH_BYTES_MIN} to {LONG_MAX} bytes",
    effect="How much of this query each executor fetches and converts ahead of the next micro-batch, for all of the "
    "query's seats there together. 0 turns this off: every task opens its own consumer. "
    "With reader=librdkafka nothing is fetched ahead either way.",
    origin="ours; as librdkafka's queued.max.messages.kbytes",
    acts="executor",
    read=zero_or_number(PREFETCH_BYTES_MIN, LONG_MAX),
)
RECORDS_BETWEEN_EXECUTORS: Option[bool | None] = Option(
    name="recordsBetweenExecutors",
    type="string",
    default=None,
    shown="auto",
    range="auto, true or false",
    effect="Whether a task that Spark has put on another executor than its seat's home gets the records from there, as "
    "they were fetched ahead, or from Kafka. These connections are authenticated and not encrypted; auto: only where "
    "Kafka's are not, either (kafka.security.protocol PLAINTEXT or SASL_PLAINTEXT).",
    origin="ours",
    acts="both",
    read=lambda text: {"auto": None, "true": True, "false": False}[one_of("auto", "true", "false")(text.lower())],
)
REGISTRY_HOST: Option[str | None] = Option(
    name="registryHost",
    type="string",
    default=None,
    shown="spark.driver.host",
    range="a host name or address of the driver, as executors reach it",
    effect="Where executors ask which seat to read, so that a seat stays on its executor.",
    origin="ours; as Spark's spark.driver.host",
    acts="both",
    read=non_empty,
)
REGISTRY_PORT = Option(
    name="registryPort",
    type="int",
    default=0,
    shown="0: any free port",
    range="0 to 65535",
    effect="The driver's port for this: choose one if there is a firewall between the driver and its executors.",
    origin="ours; as Spark's spark.driver.port",
    acts="both",
    read=number(0, 65535),
)
AUTO_OFFSET_RESET: Option[OffsetSpec | Ago] = Option(
    name="kafka.auto.offset.reset",
    type="string",
    default=OffsetSpec.LATEST,
    shown="latest",
    range="earliest, latest, or by_duration: and an ISO 8601 duration, such as by_duration:PT1H",
    effect="Where startingOffsets=committed starts a partition for which the group has no offset. With a duration: at "
    "the first record that is not older than that when the query starts, or at the end if there is none.",
    origin="Kafka's auto.offset.reset, latest (KIP-1106)",
    read=offset_reset,
)
ISOLATION_LEVEL = Option(
    name="kafka.isolation.level",
    type="string",
    default="read_uncommitted",
    shown="read_uncommitted",
    range="read_uncommitted or read_committed",
    effect='Whether records of open and aborted transactions are read. The default is that of format("kafka").',
    origin="Kafka's isolation.level, read_uncommitted (librdkafka: read_committed)",
    acts="both",
    read=one_of("read_uncommitted", "read_committed"),
)
CLIENT_ID = Option(
    name="kafka.client.id",
    type="string",
    default="spark-kgroup",
    shown="spark-kgroup",
    range="a name",
    effect="The name under which brokers log clients and apply quotas.",
    origin="Kafka's client.id",
    acts="both",
    read=non_empty,
)

OPTIONS: Final[tuple[Option[Any], ...]] = (
    BOOTSTRAP_SERVERS,
    GROUP_ID,
    SUBSCRIBE,
    SUBSCRIBE_PATTERN,
    MEMBERS,
    INSTANCE_ID_PREFIX,
    STARTING_OFFSETS,
    STARTING_TIMESTAMP,
    STARTING_OFFSETS_BY_TIMESTAMP,
    STARTING_OFFSETS_BY_TIMESTAMP_STRATEGY,
    ENDING_OFFSETS,
    ENDING_TIMESTAMP,
    ENDING_OFFSETS_BY_TIMESTAMP,
    MIN_PARTITIONS,
    MAX_RECORDS_PER_PARTITION,
    MAX_OFFSETS_PER_TRIGGER,
    MAX_BYTES_PER_TRIGGER,
    MIN_OFFSETS_PER_TRIGGER,
    MAX_TRIGGER_DELAY,
    COLUMN_NAMES,
    INCLUDE_HEADERS,
    FAIL_ON_DATA_LOSS,
    READER,
    PREFETCH_BYTES,
    RECORDS_BETWEEN_EXECUTORS,
    REGISTRY_HOST,
    REGISTRY_PORT,
    AUTO_OFFSET_RESET,
    ISOLATION_LEVEL,
    GROUP_PROTOCOL,
    ASSIGNORS,
    REMOTE_ASSIGNOR,
    MEMBER_IDS,
    SESSION_TIMEOUT,
    REBALANCE_TIMEOUT,
    HEARTBEAT_INTERVAL,
    METADATA_MAX_AGE,
    REQUEST_TIMEOUT,
    API_TIMEOUT,
    CLIENT_ID,
    *SECURITY,
)
"""Every option there is, in the order in which people need them."""

ENDS: Final = (ENDING_TIMESTAMP, ENDING_OFFSETS_BY_TIMESTAMP, ENDING_OFFSETS)
"""Where reading ends: the first that is given counts."""

OF_STREAMS: Final = (
    MEMBERS,
    INSTANCE_ID_PREFIX,
    MAX_OFFSETS_PER_TRIGGER,
    MAX_BYTES_PER_TRIGGER,
    MIN_OFFSETS_PER_TRIGGER,
    MAX_TRIGGER_DELAY,
    PREFETCH_BYTES,
    RECORDS_BETWEEN_EXECUTORS,
    REGISTRY_HOST,
    REGISTRY_PORT,
    GROUP_PROTOCOL,
    ASSIGNORS,
    REMOTE_ASSIGNOR,
    MEMBER_IDS,
    SESSION_TIMEOUT,
    REBALANCE_TIMEOUT,
    HEARTBEAT_INTERVAL,
    METADATA_MAX_AGE,
)
"""The options that only streams have. A batch read ignores them with a warning."""
