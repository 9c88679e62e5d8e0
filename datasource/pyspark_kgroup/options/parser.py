"""The options of one query: parsed by the rows in `rows`, checked against each other and by librdkafka.

Runs on: driver. No I/O: librdkafka checks the names that are passed on to it without a broker to talk to.

Spark hands option names over in lower case, so a name matches in any case. An option that begins with `kafka.` and has
no row here goes to the executors' librdkafka consumers without its prefix.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Final, NoReturn

from pyspark_kgroup.offsets.offset_spec import Ago, AtTimestamp, OffsetSpec
from pyspark_kgroup.offsets.plan import Limit
from pyspark_kgroup.options import rows
from pyspark_kgroup.options.offset_bound import OffsetBound
from pyspark_kgroup.options.read_options import ReadOptions
from pyspark_kgroup.options.refusals import REFUSED, refuse
from pyspark_kgroup.options.rows import OPTIONS
from pyspark_kgroup.options.security import JAVA_NAMES, check_mechanism, parse_security
from pyspark_kgroup.options.subscription import Subscription
from pyspark_kgroup.options.values import PREFIX_CHARACTERS_MAX, Option, join, shorten
from pyspark_kgroup.shared.columns import HEADERS
from pyspark_kgroup.shared.redacted import Redacted, is_secret
from spark_kgroup.errors import OptionError
from spark_kgroup.limits import HEARTBEAT_INTERVAL_MS
from spark_kgroup.model import CLASSIC, CONSUMER, longest_heartbeat_interval_ms

# ------------------------------------------------------------------------------------------------- values


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions(ReadOptions):
    """The options of one streaming query, checked: see `ReadOptions`.

    Attributes:
        members: None if the option was not given: a number that `sizing` derives on the driver is no option.
        ending_offsets: None if the stream has no end.
        limit: `maxOffsetsPerTrigger` and `maxBytesPerTrigger`.
    """

    group_id: str
    members: int | None
    instance_id_prefix: str
    ending_offsets: OffsetBound | None
    limit: Limit
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    min_partitions: int | None
    max_records_per_partition: int | None
    prefetch_bytes: int
    records_between_executors: bool | None
    registry_host: str | None
    registry_port: int
    session_timeout_ms: int
    rebalance_timeout_ms: int
    heartbeat_interval_ms: int
    metadata_max_age_ms: int
    group_protocol: str
    member_ids: str
    assignors: tuple[str, ...]
    remote_assignor: str | None

    @property
    def instance_ids(self) -> tuple[str, ...]:
        """The instance id of every seat: `<prefix>-<k>`, k = 0..members-1. `sizing.fill_in_members` sets `members`."""
        assert self.members is not None, "the number of seats is not known yet"
        return tuple(f"{self.instance_id_prefix}-{seat}" for seat in range(self.members))

    @property
    def homes_serve_others(self) -> bool:
        """Whether records may go between executors: as the option says, or else if brokers send them unencrypted."""
        if self.records_between_executors is not None:
            return self.records_between_executors
        return not self.security.get("security.protocol", "PLAINTEXT").upper().endswith("SSL")


_LIBRDKAFKA_NAMES: Final = (
    "broker.address.family client.rack debug fetch.max.bytes fetch.message.max.bytes fetch.min.bytes fetch.wait.max.ms "
    "log_level max.partition.fetch.bytes queued.max.messages.kbytes queued.min.messages reconnect.backoff.max.ms "
    "socket.receive.buffer.bytes socket.timeout.ms"
)
"""The properties that are passed on most often, to suggest a name. Only librdkafka itself knows all its names."""

_OURS: Final = tuple(option.name for option in OPTIONS)

_OF_A_TABLE: Final = "provider"
"""Spark adds this option to CREATE TABLE (TableCatalog.PROP_PROVIDER), and not to a temporary view."""

_PROPERTY: Final = re.compile(r"([`\"])([a-z_]+\.[a-z_.]+)\1")
"""How librdkafka's errors write the name of a property."""

_RELATION: Final = re.compile(
    r"`kafka\.(?P<greater>[a-z.]+)` must be >= `kafka\.(?P<less>[a-z.]+)`(?: \+ (?P<more>\d+))?"
)
"""rd_kafka_conf_finalize (rdkafka_conf.c)."""

_RELATED_DEFAULTS: Final = {"message.max.bytes": "1000000", "fetch.max.bytes": "52428800"}
"""librdkafka's CONFIGURATION.md."""

_UNUSED_UNDER: Final[Mapping[str, Mapping[str, str]]] = {
    CLASSIC: {rows.REMOTE_ASSIGNOR.name: f"set {rows.GROUP_PROTOCOL.name}={CONSUMER}, or use {rows.ASSIGNORS.name}"},
    CONSUMER: {
        rows.MEMBER_IDS.name: "each seat's process makes its own there. Leave it out",
        rows.ASSIGNORS.name: f"the brokers assign. Leave it out, or set {rows.REMOTE_ASSIGNOR.name}",
        rows.SESSION_TIMEOUT.name: "the brokers decide. Leave it out, or set the group's consumer.session.timeout.ms "
        "with kafka-configs",
        rows.HEARTBEAT_INTERVAL.name: "the brokers decide. Leave it out, or set the group's "
        "consumer.heartbeat.interval.ms with kafka-configs",
    },
}
"""Group protocol -> options that it refuses, and the advice for each."""

# ---------------------------------------------------------------------------------------------- parsing


def parse(options: Mapping[str, str]) -> SourceOptions:
    """The options of one query, checked, with defaults filled in.

    Args:
        options: as Spark hands them over. Names match in any case.

    Raises:
        OptionError: an option is missing, unknown, out of range, refused, or contradicts another.
    """
    given = in_lower_case(options)
    check_mechanism(given)
    refuse(given)
    passed_on = for_librdkafka(given)
    _check_protocol(given)
    session_timeout_ms = rows.SESSION_TIMEOUT.value(given)
    group_id = rows.GROUP_ID.value(given)
    subscription = parse_subscription(given)
    parsed = SourceOptions(
        bootstrap_servers=rows.BOOTSTRAP_SERVERS.value(given),
        group_id=group_id,
        subscription=subscription,
        members=rows.MEMBERS.value(given),
        instance_id_prefix=rows.INSTANCE_ID_PREFIX.value(given) or _make_prefix(group_id),
        starting_offsets=starting_offsets_for(subscription, given, rows.STARTING_OFFSETS, rows.AUTO_OFFSET_RESET),
        ending_offsets=_end(subscription, given),
        limit=_limit(given),
        min_offsets_per_trigger=_min_offsets_per_trigger(given),
        max_trigger_delay_ms=rows.MAX_TRIGGER_DELAY.value(given),
        min_partitions=rows.MIN_PARTITIONS.value(given),
        max_records_per_partition=rows.MAX_RECORDS_PER_PARTITION.value(given),
        columns=parse_columns(given),
        fail_on_data_loss=rows.FAIL_ON_DATA_LOSS.value(given),
        reader=rows.READER.value(given),
        prefetch_bytes=rows.PREFETCH_BYTES.value(given),
        records_between_executors=rows.RECORDS_BETWEEN_EXECUTORS.value(given),
        registry_host=rows.REGISTRY_HOST.value(given),
        registry_port=rows.REGISTRY_PORT.value(given),
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=rows.REBALANCE_TIMEOUT.value(given),
        heartbeat_interval_ms=_heartbeat_interval_ms(session_timeout_ms, given),
        metadata_max_age_ms=rows.METADATA_MAX_AGE.value(given),
        request_timeout_ms=rows.REQUEST_TIMEOUT.value(given),
        api_timeout_ms=rows.API_TIMEOUT.value(given),
        group_protocol=rows.GROUP_PROTOCOL.value(given),
        member_ids=rows.MEMBER_IDS.value(given),
        assignors=rows.ASSIGNORS.value(given),
        remote_assignor=rows.REMOTE_ASSIGNOR.value(given),
        read_committed=rows.ISOLATION_LEVEL.value(given) == "read_committed",
        client_id=rows.CLIENT_ID.value(given),
        passed_on=passed_on,
        security=Redacted(parse_security(given)),
    )
    check_with_librdkafka(parsed)
    return parsed


def in_lower_case(options: Mapping[str, str]) -> dict[str, str]:
    """The options by their names in lower case. Raises OptionError if one is given with two values, or is no text."""
    given: dict[str, str] = {}
    for name, value in options.items():
        _check_characters(name, value)
        if given.setdefault(name.lower(), value) != value:
            raise OptionError(
                f"Option {_find_spelling(name)} is given twice with different values: names match in any case."
            )
    return given


def _check_characters(name: str, value: str) -> None:
    """Refuse text that no C string can hold: librdkafka's binding crashes on the one and cuts the other short."""
    for text in (name, value):
        if "\0" in text or any("\ud800" <= letter <= "\udfff" for letter in text):
            shown_name = _find_spelling(name) if text is value else ascii(name)
            raise OptionError(
                f"Option {shown_name} contains a character that is not text (U+0000, or half of a surrogate pair): "
                "remove it."
            )


def _find_spelling(name: str) -> str:
    """A known name as the documentation spells it. Spark may hand it over in another case."""
    return next((known for known in (*_OURS, *REFUSED) if known.lower() == name.lower()), name)


def for_librdkafka(given: Mapping[str, str]) -> Redacted:
    """The options that librdkafka gets.

    Raises:
        OptionError: a name is neither ours nor begins with `kafka.`, or would secure the executors only, or Spark is
            about to make a table of the options.
    """
    ours = {name.lower() for name in (*_OURS, *REFUSED, *JAVA_NAMES)}
    rest = {name: value.strip() for name, value in given.items() if name not in ours}
    if _OF_A_TABLE in rest:
        raise OptionError(
            "No table of the catalog can be made of kgroup: Spark gives a source no options when it reads one. Use "
            "CREATE TEMPORARY VIEW ... USING kgroup OPTIONS (...), or spark.readStream."
        )
    for name in rest:
        if not name.startswith("kafka.") or name.startswith(("kafka.ssl.", "kafka.sasl.", "kafka.https.")):
            _refuse_unknown(name)
    return Redacted({name.removeprefix("kafka."): value for name, value in rest.items()})


def _refuse_unknown(name: str) -> NoReturn:
    spelled = [*_OURS, *(f"kafka.{known}" for known in _LIBRDKAFKA_NAMES.split())]
    # Compared without the prefix: people forget it, and it would make every name look alike.
    bare = {known.removeprefix("kafka.").lower(): known for known in spelled}
    near = get_close_matches(shorten(name.removeprefix("kafka.")), bare, n=1)
    if near:
        hint = f"did you mean {bare[near[0]]}?"
    elif name.startswith("kafka."):
        hint = "librdkafka, which reads here, has no property of that name (they are listed in its CONFIGURATION.md)."
    else:
        hint = f"there are {', '.join(n for n in _OURS if not n.startswith('kafka.'))}, and Kafka's, as kafka.NAME."
    raise OptionError(f"Option {shorten(name)} is unknown: {hint}")


def _make_prefix(group_id: str) -> str:
    """The group's name as far as Kafka takes it as an instance id."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", group_id)[:PREFIX_CHARACTERS_MAX]


def parse_subscription(given: Mapping[str, str]) -> Subscription:
    """The topics to read. Raises OptionError if neither `subscribe` nor `subscribePattern` is given, or both are."""
    topics, pattern = rows.SUBSCRIBE.value(given), rows.SUBSCRIBE_PATTERN.value(given)
    if topics is not None and pattern is not None:
        raise OptionError("Options subscribe and subscribePattern are both given: leave one of them out.")
    if topics is None and pattern is None:
        raise OptionError(
            "Option subscribe is missing: which topics to read. It needs TOPIC[,TOPIC...]. Or set subscribePattern."
        )
    return Subscription(topics=topics or (), pattern=pattern)


def parse_columns(given: Mapping[str, str]) -> tuple[str, ...]:
    """The columns of a query's rows, in their order."""
    columns = rows.COLUMN_NAMES.value(given)
    more = (HEADERS,) if rows.INCLUDE_HEADERS.value(given) and HEADERS not in columns else ()
    return (*columns, *more)


def offset_bound(
    subscription: Subscription,
    given: Mapping[str, str],
    rows_in_order: Sequence[Option[OffsetBound] | Option[OffsetBound | None]],
) -> OffsetBound:
    """Where a query starts, or ends.

    Args:
        subscription: its topics.
        given: names in lower case.
        rows_in_order: of these options the first that is given counts. The last has a default.

    Raises:
        OptionError: it names topics that are not subscribed, or cannot be read.
    """
    values = [row.value(given) for row in rows_in_order]
    bound = next(value for value in values if value is not None)
    unsubscribed = sorted(subscription.beyond(bound.topics))
    if unsubscribed:
        raise OptionError(
            f"Option {bound.option} names topics that `{subscription.option}` does not: {join(unsubscribed)}. "
            "Subscribe to them, or leave them out here."
        )
    return bound


def starting_offsets_for(
    subscription: Subscription, given: Mapping[str, str], row: Option[OffsetBound], reset: Option[OffsetSpec | Ago]
) -> OffsetBound:
    """Where a query starts. Raises as `offset_bound`.

    Args:
        subscription: its topics.
        given: names in lower case.
        row: of `startingOffsets`.
        reset: of `kafka.auto.offset.reset`.
    """
    start = offset_bound(subscription, given, (rows.STARTING_TIMESTAMP, rows.STARTING_OFFSETS_BY_TIMESTAMP, row))
    strategy, otherwise = rows.STARTING_OFFSETS_BY_TIMESTAMP_STRATEGY.value(given), reset.value(given)
    if not start.committed:
        return replace(start, later_is_latest=strategy == "latest")
    if isinstance(otherwise, Ago):
        now_ms = time.time_ns() // 1_000_000
        return replace(start, everywhere=AtTimestamp(max(0, now_ms - otherwise.ms)), later_is_latest=True)
    return replace(start, everywhere=otherwise)


def _end(subscription: Subscription, given: Mapping[str, str]) -> OffsetBound | None:
    """Where a stream ends, if it does. Raises OptionError if that is the present end of a log, or as `offset_bound`."""
    if not any(row.name.lower() in given for row in rows.ENDS):
        return None
    end = offset_bound(subscription, given, rows.ENDS)
    at_end = end.first_at_end()
    if at_end or end.everywhere is OffsetSpec.LATEST:
        given_as = f"has {at_end}" if at_end else "is 'latest'"
        raise OptionError(
            f"Option {end.option} {given_as}: a stream ends at offsets that you name. To end where logs end now, leave "
            "it out and use writeStream.trigger(availableNow=True)."
        )
    return replace(end, may_be_latest=False)


def _limit(given: Mapping[str, str]) -> Limit:
    bytes_max = rows.MAX_BYTES_PER_TRIGGER.value(given)
    if bytes_max is not None and not rows.PREFETCH_BYTES.value(given):
        raise OptionError(
            f"Options {rows.MAX_BYTES_PER_TRIGGER.name} and {rows.PREFETCH_BYTES.name}=0 exclude each other: record "
            "sizes are reported through the sidecars, which prefetchBytes=0 turns off. Leave one of them out."
        )
    return Limit(rows.MAX_OFFSETS_PER_TRIGGER.value(given), bytes_max)


def _min_offsets_per_trigger(given: Mapping[str, str]) -> int | None:
    least, most = rows.MIN_OFFSETS_PER_TRIGGER.value(given), rows.MAX_OFFSETS_PER_TRIGGER.value(given)
    if least is not None and most is not None and least > most:
        raise OptionError(
            f"Option {rows.MIN_OFFSETS_PER_TRIGGER.name} is {least}, and {rows.MAX_OFFSETS_PER_TRIGGER.name} {most}: "
            "no batch could be large enough. Lower the one or raise the other."
        )
    return least


def _heartbeat_interval_ms(session_timeout_ms: int, given: Mapping[str, str]) -> int:
    longest_ms = longest_heartbeat_interval_ms(session_timeout_ms)
    interval_ms = rows.HEARTBEAT_INTERVAL.value(given)
    if interval_ms is None:
        return min(HEARTBEAT_INTERVAL_MS, longest_ms)
    if interval_ms > longest_ms:
        raise OptionError(
            f"Option {rows.HEARTBEAT_INTERVAL.name} is {interval_ms} ms: it must be at most a third of "
            f"{rows.SESSION_TIMEOUT.name}, which is {session_timeout_ms} ms. Lower the one or raise the other."
        )
    return interval_ms


def _check_protocol(given: Mapping[str, str]) -> None:
    """Refuse options that the group's protocol has no use for, as Java's consumer does (ConsumerConfig)."""
    protocol = rows.GROUP_PROTOCOL.value(given)
    for name, remedy in _UNUSED_UNDER[protocol].items():
        if name.lower() in given:
            raise OptionError(f"Option {name} has no effect with {rows.GROUP_PROTOCOL.name}={protocol}: {remedy}.")


def check_with_librdkafka(options: ReadOptions) -> None:
    """Let librdkafka judge the options that are passed on to it.

    Without a broker's address its client opens no connection. It is closed at once (measured: 0.4 ms in all).

    Raises:
        OptionError: it rejects one of them.
    """
    if not options.passed_on:
        return
    from confluent_kafka import Consumer, KafkaException  # 60 CPU ms, which most queries do without

    elsewhere = {"bootstrap.servers", *options.security}
    config = {name: value for name, value in options.consumer_config().items() if name not in elsewhere}
    try:
        Consumer({**config, "log_level": "0"}).close()
        return
    except KafkaException as problem:
        reason = str(problem.args[0].str()).strip()
    except (TypeError, ValueError, AttributeError) as problem:  # its binding wanted an object of a program
        reason = str(problem)
    for name, value in options.passed_on.items():
        if value and is_secret(name):
            reason = reason.replace(value, "***")
        if f'"{name[:100]}' in reason and reason.startswith("No such"):  # it cuts its text at 512 characters
            _refuse_unknown(f"kafka.{name}")
    given = shorten(", ".join(f"kafka.{name}={value}" for name, value in options.passed_on.without_secrets().items()))
    reason = shorten(_PROPERTY.sub(r"\1kafka.\2\1", reason))
    raise OptionError(
        f"librdkafka rejects the properties passed on to it ({given}): {reason}.{_remedy(reason, config)}"
    )


def _remedy(reason: str, config: Mapping[str, str]) -> str:
    """The value to set, where librdkafka says only how two properties are related."""
    relation = _RELATION.search(reason)
    if relation is None:
        return ""
    greater, less, more = relation["greater"], relation["less"], int(relation["more"] or 0)
    bound = config.get(less, _RELATED_DEFAULTS.get(less, ""))
    return f" Set kafka.{greater} to at least {int(bound) + more}, or lower kafka.{less}." if bound.isdecimal() else ""
