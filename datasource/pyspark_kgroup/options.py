"""The options of `format("kgroup")`: one row each, from which parser, error texts and the README's table come.

Runs on: driver. No I/O: librdkafka checks the names that are passed on to it without a broker to talk to.

Spark hands option names over in lower case, so a name matches in any case. What begins with `kafka.` and has no row
here goes to the executors' librdkafka consumers without its prefix.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Final, Generic, NoReturn, TypeVar, cast

from confluent_kafka import Consumer, KafkaException

from pyspark_kgroup.starting_offsets import EARLIEST, LATEST, StartingOffsets, parse_starting_offsets
from spark_kgroup.assignors import NAMES as ASSIGNORS
from spark_kgroup.errors import OptionError
from spark_kgroup.limits import (
    HEARTBEAT_INTERVAL_MS,
    METADATA_MAX_AGE_MS,
    REBALANCE_TIMEOUT_MS,
    REQUEST_TIMEOUT_MS,
    SESSION_TIMEOUT_MS,
)

T = TypeVar("T")

MEMBERS_DEFAULT: Final = 4
"""As many as the cores of a small job. A seat too many costs an idle connection; one too few costs parallelism."""

_PREFIX_CHARACTERS_MAX: Final = 240
"""Kafka accepts as instance id what it accepts as topic name, up to 249 characters
(JoinGroupRequest.validateGroupInstanceId); this leaves room for the seat's number."""

_INT_MAX: Final = 2**31 - 1
_LONG_MAX: Final = 2**63 - 1

# ------------------------------------------------------------------------------------------------- values


class PassedOn(dict[str, str]):
    """librdkafka's properties by name; its text shows no secrets."""

    def __repr__(self) -> str:
        return repr({name: "***" if is_secret(name) else value for name, value in self.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The options of one query, checked. Units are last in a name; the rows below say what each does."""

    bootstrap_servers: str
    group_id: str
    topics: tuple[str, ...]
    members: int
    instance_id_prefix: str
    starting_offsets: StartingOffsets
    max_offsets_per_trigger: int | None
    include_headers: bool
    session_timeout_ms: int
    rebalance_timeout_ms: int
    heartbeat_interval_ms: int
    metadata_max_age_ms: int
    request_timeout_ms: int
    assignors: tuple[str, ...]
    read_committed: bool
    client_id: str
    passed_on: PassedOn = field(default_factory=PassedOn)

    @property
    def instance_ids(self) -> tuple[str, ...]:
        """The instance id of every seat: `<prefix>-<k>`, k = 0..members-1."""
        return tuple(f"{self.instance_id_prefix}-{seat}" for seat in range(self.members))

    def consumer_config(self) -> dict[str, str]:
        """Configuration of an executor's librdkafka consumer: it is told what to read, and makes no group calls.

        `group.id` is there because librdkafka wants one; with `assign()` it neither joins nor commits.
        """
        return {
            "fetch.queue.backoff.ms": "10",  # with 1 s it waits half of the time (measured: 100 B records)
            "fetch.wait.max.ms": "50",  # all that is asked for is in the log: only its end is ever waited for
            "log.connection.close": "false",  # brokers close idle connections all the time
            **self.passed_on,
            "bootstrap.servers": self.bootstrap_servers,
            "group.id": self.group_id,
            "client.id": self.client_id,
            "isolation.level": "read_committed" if self.read_committed else "read_uncommitted",
            "auto.offset.reset": "error",  # an offset that is gone is an error, never a jump
            "enable.auto.commit": "false",
            "enable.auto.offset.store": "false",
            "enable.partition.eof": "true",  # the end of a range may lie past the last record one can see
        }


def is_secret(name: str) -> bool:
    """Whether an option's value must never be shown."""
    return re.search("password|secret|jaas|token|credential|private|key.pem", name.lower()) is not None


# --------------------------------------------------------------------------------------- rows and readers


@dataclass(frozen=True, slots=True, kw_only=True)
class Option(Generic[T]):
    """One row.

    Attributes:
        default: what holds if the option is absent; ignored for a required one.
        shown: the default as people read it, with its unit; None for a required option.
        range: which values there are.
        origin: Kafka's or Spark's name and default, or that it is ours.
        read: the text's value; ValueError if it is not in range.
        acts: where it acts: driver, executor or both.
    """

    name: str
    type: str
    default: T | None
    shown: str | None
    range: str
    effect: str
    origin: str
    read: Callable[[str], T]
    acts: str = "driver"

    def value(self, given: Mapping[str, str]) -> T:
        """The value in `given` (names in lower case), or the default.

        Raises:
            OptionError: it is required and absent, or not in range.
        """
        text = given.get(self.name.lower())
        if text is None:
            if self.shown is None:
                raise OptionError(f"Option {self.name} is missing: {self.effect} It needs {self.range}.")
            return cast("T", self.default)
        try:
            return self.read(text.strip())
        except ValueError as problem:
            why = f" ({problem})" if str(problem) else ""
            raise OptionError(f"Option {self.name} is {text!r}: it needs {self.range}{why}.") from None


def _duration(name: str, default_ms: int, effect: str, *, origin: str, low_ms: int = 1) -> Option[int]:
    return Option(
        name=name,
        type="int",
        default=default_ms,
        shown=f"{default_ms} ms",
        range=f"{low_ms} to {_INT_MAX} ms",
        effect=effect,
        origin=origin,
        read=_number(low_ms, _INT_MAX),
    )


def _number(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if re.fullmatch(r"-?[0-9]{1,19}", text) is None or not low <= int(text) <= high:
            raise ValueError
        return int(text)

    return read


def _one_of(*values: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in values:
            raise ValueError(_nearest(text, values))
        return text

    return read


def _text(text: str) -> str:
    if not text:
        raise ValueError
    return text


def _list(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise ValueError
    return names


def _servers(text: str) -> str:
    for server in _list(text):
        address = re.fullmatch(r"(?:\[[0-9A-Fa-f:.%]+\]|[^\s:/\[\]]+):([0-9]{1,5})", server)
        if address is None or not 0 < int(address[1]) < 65536:
            raise ValueError(f"{server!r} is not HOST:PORT")
    return ",".join(_list(text))


def _topics(text: str) -> tuple[str, ...]:
    for topic in _list(text):
        if not _is_kafka_name(topic):
            raise ValueError(f"{topic!r} is not a topic's name")
    return _list(text)


def _prefix(text: str) -> str:
    if not _is_kafka_name(text) or len(text) > _PREFIX_CHARACTERS_MAX:
        raise ValueError
    return text


def _is_kafka_name(text: str) -> bool:
    """Kafka's rule for topics and instance ids (Topic.validate)."""
    return re.fullmatch(r"[A-Za-z0-9._-]{1,249}", text) is not None and text not in {".", ".."}


def _assignors(text: str) -> tuple[str, ...]:
    for name in _list(text):
        if name not in ASSIGNORS:
            raise ValueError(_nearest(name, ASSIGNORS) or f"{name!r} is unknown")
    return _list(text)


def _nearest(name: str, known: Iterable[str]) -> str:
    found = get_close_matches(name, list(known), n=1)
    return f"did you mean {found[0]!r}?" if found else ""


# --------------------------------------------------------------------------------------------- the rows

_BOOTSTRAP_SERVERS = Option(
    name="kafka.bootstrap.servers",
    type="string",
    default="",
    shown=None,
    range="HOST:PORT[,HOST:PORT...]",
    effect="Brokers to ask first.",
    origin="Kafka's bootstrap.servers",
    acts="both",
    read=_servers,
)
_GROUP_ID = Option(
    name="kafka.group.id",
    type="string",
    default="",
    shown=None,
    range="a group's name",
    effect="The consumer group whose members are this query's seats.",
    origin="Kafka's group.id",
    acts="both",
    read=_text,
)
_SUBSCRIBE: Option[tuple[str, ...]] = Option(
    name="subscribe",
    type="list",
    default=(),
    shown=None,
    range="TOPIC[,TOPIC...]",
    effect="The topics to read.",
    origin="Spark's subscribe",
    read=_topics,
)
_MEMBERS = Option(
    name="members",
    type="int",
    default=MEMBERS_DEFAULT,
    shown=f"{MEMBERS_DEFAULT} seats",
    range="1 to 1000",
    effect="Seats of this query: static members of the group, each read by one task. About as many as executor cores; "
    "more than partitions are idle.",
    origin="ours",
    read=_number(1, 1000),
)
_INSTANCE_ID_PREFIX: Option[str | None] = Option(
    name="instanceIdPrefix",
    type="string",
    default=None,
    shown="the group's name",
    range=f"letters, digits, `.`, `_` and `-`, at most {_PREFIX_CHARACTERS_MAX}",
    effect="Seat k has the instance id PREFIX-k. Two queries in one group need different prefixes.",
    origin="ours; makes Kafka's group.instance.id",
    read=_prefix,
)
_STARTING_OFFSETS = Option(
    name="startingOffsets",
    type="string",
    default=StartingOffsets(text="committed", committed=True, everywhere=LATEST),
    shown="committed",
    range='committed, earliest, latest, or JSON such as {"topic":{"0":23,"1":-2,"2":-1}} (-2 earliest, -1 latest)',
    effect="Where a query without a checkpoint starts: at the group's committed offsets (see kafka.auto.offset.reset) "
    "or where this says. Partitions added later start at earliest.",
    origin="Spark's startingOffsets, latest",
    read=parse_starting_offsets,
)
_MAX_OFFSETS_PER_TRIGGER: Option[int | None] = Option(
    name="maxOffsetsPerTrigger",
    type="long",
    default=None,
    shown="no limit",
    range=f"1 to {_LONG_MAX} offsets",
    effect="Most offsets in one micro-batch, shared among partitions in proportion to what each has.",
    origin="Spark's maxOffsetsPerTrigger",
    read=_number(1, _LONG_MAX),
)
_INCLUDE_HEADERS = Option(
    name="includeHeaders",
    type="boolean",
    default=False,
    shown="false",
    range="true or false",
    effect="Adds the column headers.",
    origin="Spark's includeHeaders, false",
    acts="both",
    read=lambda text: _one_of("true", "false")(text.lower()) == "true",
)
_SESSION_TIMEOUT = _duration(
    "kafka.session.timeout.ms",
    SESSION_TIMEOUT_MS,
    "Silence after which the group gives a seat's partitions away: a driver that restarts faster moves nothing. The "
    "broker bounds it by group.min.session.timeout.ms and group.max.session.timeout.ms.",
    origin="Kafka's session.timeout.ms, 45000 ms",
)
_REBALANCE_TIMEOUT = _duration(
    "kafka.max.poll.interval.ms",
    REBALANCE_TIMEOUT_MS,
    "How long a rebalance waits for a seat, which gives partitions up only between micro-batches: set it longer than "
    "the longest batch.",
    origin="Kafka's max.poll.interval.ms, 300000 ms",
)
_HEARTBEAT_INTERVAL: Option[int | None] = Option(
    name="kafka.heartbeat.interval.ms",
    type="int",
    default=None,
    shown=f"{HEARTBEAT_INTERVAL_MS} ms, or a third of the session timeout if that is less",
    range=f"1 to {_INT_MAX} ms, at most a third of kafka.session.timeout.ms",
    effect="How often each seat tells the coordinator that it lives, and hears of rebalances.",
    origin="Kafka's heartbeat.interval.ms, 3000 ms",
    read=_number(1, _INT_MAX),
)
_METADATA_MAX_AGE = _duration(
    "kafka.metadata.max.age.ms",
    METADATA_MAX_AGE_MS,
    "How soon added partitions are noticed.",
    origin="Kafka's metadata.max.age.ms, 300000 ms",
    low_ms=100,
)
_REQUEST_TIMEOUT = _duration(
    "kafka.request.timeout.ms",
    REQUEST_TIMEOUT_MS,
    "How long the driver waits for a broker's answer before it asks again.",
    origin="Kafka's request.timeout.ms, 30000 ms",
    low_ms=100,
)
_ASSIGNORS: Option[tuple[str, ...]] = Option(
    name="kafka.partition.assignment.strategy",
    type="list",
    default=("cooperative-sticky",),
    shown="cooperative-sticky",
    range=f"names out of {', '.join(ASSIGNORS)}, the preferred one first",
    effect="How partitions are spread over all members of the group. All members must have one name in common.",
    origin="Kafka's partition.assignment.strategy, range and cooperative-sticky",
    read=_assignors,
)
_AUTO_OFFSET_RESET = Option(
    name="kafka.auto.offset.reset",
    type="string",
    default="latest",
    shown="latest",
    range="earliest or latest",
    effect="Where startingOffsets=committed starts a partition for which the group has no offset.",
    origin="Kafka's auto.offset.reset, latest",
    read=_one_of("earliest", "latest"),
)
_ISOLATION_LEVEL = Option(
    name="kafka.isolation.level",
    type="string",
    default="read_uncommitted",
    shown="read_uncommitted",
    range="read_uncommitted or read_committed",
    effect='Whether records of open and aborted transactions are read; the default is that of format("kafka").',
    origin="Kafka's isolation.level, read_uncommitted (librdkafka: read_committed)",
    acts="both",
    read=_one_of("read_uncommitted", "read_committed"),
)
_CLIENT_ID = Option(
    name="kafka.client.id",
    type="string",
    default="spark-kgroup",
    shown="spark-kgroup",
    range="a name",
    effect="What brokers log and count quotas by.",
    origin="Kafka's client.id",
    acts="both",
    read=_text,
)

_PLAINTEXT_ONLY: Final = "not in this version; only PLAINTEXT listeners can be used."

OPTIONS: Final[tuple[Option[Any], ...]] = (
    _BOOTSTRAP_SERVERS,
    _GROUP_ID,
    _SUBSCRIBE,
    _MEMBERS,
    _INSTANCE_ID_PREFIX,
    _STARTING_OFFSETS,
    _MAX_OFFSETS_PER_TRIGGER,
    _INCLUDE_HEADERS,
    _AUTO_OFFSET_RESET,
    _ISOLATION_LEVEL,
    _ASSIGNORS,
    _SESSION_TIMEOUT,
    _REBALANCE_TIMEOUT,
    _HEARTBEAT_INTERVAL,
    _METADATA_MAX_AGE,
    _REQUEST_TIMEOUT,
    _CLIENT_ID,
)
"""Every option there is, in the order in which people need them."""

_REFUSALS: Final = (
    ("path", "topics are not files; call load() without a path and set `subscribe`."),
    ("assign", "the group decides who reads which partition; set `subscribe`."),
    ("subscribePattern", "not in this version; list the topics in `subscribe`."),
    ("topic", "it belongs to writing; set `subscribe`."),
    (
        "startingTimestamp startingOffsetsByTimestamp startingOffsetsByTimestampStrategy",
        "not in this version; use startingOffsets, or set the group's offsets with kafka-consumer-groups.",
    ),
    ("endingOffsets endingTimestamp endingOffsetsByTimestamp", "it belongs to batch queries; a stream has no end."),
    ("failOnDataLoss", "this version always fails rather than skip lost records; leave it out."),
    ("minPartitions maxRecordsPerPartition", "each seat is read by one task; set `members`."),
    ("minOffsetsPerTrigger maxTriggerDelay", "not in this version; use a longer processing-time trigger."),
    ("groupIdPrefix", "this source is one group, and keeps its name; set `kafka.group.id`."),
    (
        "fetchOffset.numRetries fetchOffset.retryIntervalMs kafkaConsumer.pollTimeoutMs kafka.default.api.timeout.ms",
        "every wait here has a fixed bound; leave it out.",
    ),
    (
        "kafka.enable.auto.commit kafka.auto.commit.interval.ms kafka.enable.auto.offset.store",
        "offsets are committed to the group when a batch is durable; leave it out.",
    ),
    ("kafka.enable.partition.eof", "this source needs it for itself; leave it out."),
    ("kafka.group.instance.id", "every seat has its own; set `instanceIdPrefix`."),
    ("kafka.group.protocol kafka.group.remote.assignor", "not in this version; only `classic` can be used."),
    (
        "kafka.key.deserializer kafka.value.deserializer kafka.key.serializer kafka.value.serializer",
        "keys and values arrive as bytes; decode them with DataFrame operations.",
    ),
    ("kafka.interceptor.classes kafka.plugin.library.paths", "they could change what is read; leave it out."),
    ("kafka.metadata.broker.list", "set `kafka.bootstrap.servers`."),
    ("kafka.max.poll.records", "a batch is bounded by `maxOffsetsPerTrigger`."),
    ("kafka.security.protocol", _PLAINTEXT_ONLY),
    ("kafka.fetch.max.wait.ms", "librdkafka calls it otherwise; set `kafka.fetch.wait.max.ms`."),
    ("kafka.receive.buffer.bytes", "librdkafka calls it otherwise; set `kafka.socket.receive.buffer.bytes`."),
    ("kafka.send.buffer.bytes", "librdkafka calls it otherwise; set `kafka.socket.send.buffer.bytes`."),
)
"""Options of `format("kafka")` and of Kafka's clients that have no place here, and why."""

_REFUSED: Final = {name: reason for names, reason in _REFUSALS for name in names.split()}

_TRUE_ANYWAY: Final[Mapping[str, str]] = {
    "failOnDataLoss": "true",
    "kafka.enable.auto.commit": "false",
    "kafka.enable.auto.offset.store": "false",
    "kafka.group.protocol": "classic",
    "kafka.security.protocol": "plaintext",
}
"""Refused options that may be given with the one value that says what is so anyway."""

_LIBRDKAFKA_NAMES: Final = (
    "broker.address.family client.rack debug fetch.max.bytes fetch.message.max.bytes fetch.min.bytes fetch.wait.max.ms "
    "log_level max.partition.fetch.bytes queued.max.messages.kbytes queued.min.messages reconnect.backoff.max.ms "
    "socket.receive.buffer.bytes socket.timeout.ms"
)
"""What is passed on most often, to suggest a name. Which names there are, librdkafka itself knows."""

# ---------------------------------------------------------------------------------------------- parsing


def parse(options: Mapping[str, str]) -> SourceOptions:
    """The options of one query, checked, with defaults filled in.

    Args:
        options: as Spark hands them over; names match in any case.

    Raises:
        OptionError: an option is missing, unknown, out of range, refused, or contradicts another.
    """
    given = _in_lower_case(options)
    _refuse(given)
    passed_on = _passed_on(given)
    session_timeout_ms = _SESSION_TIMEOUT.value(given)
    group_id = _GROUP_ID.value(given)
    topics = _SUBSCRIBE.value(given)
    parsed = SourceOptions(
        bootstrap_servers=_BOOTSTRAP_SERVERS.value(given),
        group_id=group_id,
        topics=topics,
        members=_MEMBERS.value(given),
        instance_id_prefix=_INSTANCE_ID_PREFIX.value(given) or _prefix_of(group_id),
        starting_offsets=_starting_offsets_for(topics, given),
        max_offsets_per_trigger=_MAX_OFFSETS_PER_TRIGGER.value(given),
        include_headers=_INCLUDE_HEADERS.value(given),
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=_REBALANCE_TIMEOUT.value(given),
        heartbeat_interval_ms=_heartbeat_interval_ms(session_timeout_ms, given),
        metadata_max_age_ms=_METADATA_MAX_AGE.value(given),
        request_timeout_ms=_REQUEST_TIMEOUT.value(given),
        assignors=_ASSIGNORS.value(given),
        read_committed=_ISOLATION_LEVEL.value(given) == "read_committed",
        client_id=_CLIENT_ID.value(given),
        passed_on=passed_on,
    )
    if passed_on:
        _check_with_librdkafka(parsed)
    return parsed


def _in_lower_case(options: Mapping[str, str]) -> dict[str, str]:
    given: dict[str, str] = {}
    for name, value in options.items():
        if given.setdefault(name.lower(), value) != value:
            raise OptionError(f"Option {name} is given twice with different values: names match in any case.")
    return given


def _refuse(given: Mapping[str, str]) -> None:
    for name, reason in _REFUSED.items():
        value = given.get(name.lower())
        if value is not None and value.strip().lower() != _TRUE_ANYWAY.get(name):
            raise OptionError(f"Option {name} cannot be used with this source: {reason}")
    for name in given:
        if name.startswith(("kafka.sasl.", "kafka.ssl.")):
            raise OptionError(f"Option {name} cannot be used with this source: {_PLAINTEXT_ONLY}")


def _passed_on(given: Mapping[str, str]) -> PassedOn:
    """The options that librdkafka gets.

    Raises:
        OptionError: a name is neither ours nor begins with `kafka.`.
    """
    ours = {option.name.lower() for option in OPTIONS} | {name.lower() for name in _REFUSED}
    rest = {name: value.strip() for name, value in given.items() if name not in ours}
    for name in rest:
        if not name.startswith("kafka."):
            _refuse_unknown(name)
    return PassedOn({name.removeprefix("kafka."): value for name, value in rest.items()})


def _refuse_unknown(name: str) -> NoReturn:
    spelled = [option.name for option in OPTIONS] + [f"kafka.{known}" for known in _LIBRDKAFKA_NAMES.split()]
    # Compared without the prefix: people forget it, and it would make every name look alike.
    bare = {known.removeprefix("kafka.").lower(): known for known in spelled}
    near = get_close_matches(name.removeprefix("kafka."), bare, n=1)
    hint = f"did you mean {bare[near[0]]}?" if near else f"there are {', '.join(option.name for option in OPTIONS)}."
    raise OptionError(f"Option {name} is unknown: {hint}")


def _prefix_of(group_id: str) -> str:
    """The group's name as far as Kafka takes it as an instance id."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", group_id)[:_PREFIX_CHARACTERS_MAX]


def _starting_offsets_for(topics: tuple[str, ...], given: Mapping[str, str]) -> StartingOffsets:
    offsets = _STARTING_OFFSETS.value(given)
    strangers = sorted({tp.topic for tp in offsets.by_partition} - set(topics))
    if strangers:
        raise OptionError(
            f"Option startingOffsets names topics that `subscribe` does not: {', '.join(strangers)}. Add them there, "
            "or leave them out here."
        )
    if not offsets.committed:
        return offsets
    reset = EARLIEST if _AUTO_OFFSET_RESET.value(given) == "earliest" else LATEST
    return StartingOffsets(text=offsets.text, committed=True, everywhere=reset)


def _heartbeat_interval_ms(session_timeout_ms: int, given: Mapping[str, str]) -> int:
    longest_ms = max(1, session_timeout_ms // 3)  # one may be lost, and the next one late (Kafka's own advice)
    interval_ms = _HEARTBEAT_INTERVAL.value(given)
    if interval_ms is None:
        return min(HEARTBEAT_INTERVAL_MS, longest_ms)
    if interval_ms > longest_ms:
        raise OptionError(
            f"Option {_HEARTBEAT_INTERVAL.name} is {interval_ms} ms: it must be at most a third of "
            f"{_SESSION_TIMEOUT.name}, which is {session_timeout_ms} ms. Lower the one or raise the other."
        )
    return interval_ms


def _check_with_librdkafka(options: SourceOptions) -> None:
    """Let librdkafka judge what is passed on to it.

    Without a broker's address its client opens no connection; it is closed at once (measured: 0.4 ms in all).
    """
    config = {name: value for name, value in options.consumer_config().items() if name != "bootstrap.servers"}
    try:
        Consumer({**config, "log_level": "0"}).close()
        return
    except KafkaException as problem:
        told = str(problem.args[0].str()).strip()
    for name, value in options.passed_on.items():
        if value and is_secret(name):
            told = told.replace(value, "***")
        if f'"{name}"' in told and told.startswith("No such"):
            _refuse_unknown(f"kafka.{name}")
    raise OptionError(f"librdkafka does not accept the options that are passed on to it ({options.passed_on}): {told}.")


# ------------------------------------------------------------------------------------------ documentation


def options_table() -> str:
    """All rows as a Markdown table, for the README."""
    lines = ["| option | type | default | range | effect | origin | acts on |", "|---|---|---|---|---|---|---|"]
    for option in OPTIONS:
        cells = (option.type, option.shown or "required", option.range, option.effect, option.origin, option.acts)
        lines.append(f"| `{option.name}` | " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"
