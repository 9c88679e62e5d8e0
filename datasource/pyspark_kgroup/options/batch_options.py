"""The options of one batch read (`spark.read`): the rows of streams that concern it, and rows of its own.

Runs on: driver. No I/O, as `parser`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from pyspark_kgroup.offsets.offset_spec import OffsetSpec
from pyspark_kgroup.options import rows
from pyspark_kgroup.options.offset_bound import OffsetBound
from pyspark_kgroup.options.parser import (
    check_with_librdkafka,
    for_librdkafka,
    in_lower_case,
    offset_bound,
    parse_columns,
    parse_subscription,
    starting_offsets_for,
)
from pyspark_kgroup.options.read_options import ReadOptions
from pyspark_kgroup.options.refusals import refuse
from pyspark_kgroup.options.security import check_mechanism, parse_security
from pyspark_kgroup.shared.redacted import Redacted
from spark_kgroup.errors import OptionError

_STARTING_OFFSETS: Final = replace(
    rows.STARTING_OFFSETS,
    default=OffsetBound(text="earliest", everywhere=OffsetSpec.EARLIEST),
    range='earliest, committed, or JSON such as {"topic":{"0":23,"1":-2}} (-2 earliest)',
)
"""A group is not required: a batch read starts at the beginning, as with `format("kafka")`."""

_AUTO_OFFSET_RESET: Final = replace(rows.AUTO_OFFSET_RESET, default=OffsetSpec.EARLIEST)
"""A batch read has an end: without a committed offset, the group has read none of the records before that end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions(ReadOptions):
    """The options of one batch read, checked: see `ReadOptions`."""

    ending_offsets: OffsetBound
    min_partitions: int | None
    max_records_per_partition: int | None


def concerns_batches(options: Mapping[str, str]) -> bool:
    """Whether the options may be meant for a batch read: they name no group, or an end."""
    given = {name.lower() for name in options}
    return rows.GROUP_ID.name not in given or any(row.name.lower() in given for row in rows.ENDS)


def given_for_streams(options: Mapping[str, str]) -> list[str]:
    """The names of given options that have no effect on a batch read."""
    given = {name.lower() for name in options}
    return [row.name for row in rows.OF_STREAMS if row.name.lower() in given]


def parse_batch(options: Mapping[str, str]) -> BatchOptions:
    """The options of one batch read, checked, with defaults filled in.

    Args:
        options: as Spark hands them over. Names match in any case.

    Raises:
        OptionError: an option is missing, unknown, out of range, refused, or contradicts another.
    """
    given = in_lower_case(options)
    check_mechanism(given)
    refuse(given, batch=True)
    passed_on = for_librdkafka(given)
    subscription = parse_subscription(given)
    parsed = BatchOptions(
        bootstrap_servers=rows.BOOTSTRAP_SERVERS.value(given),
        group_id=_group_id(given),
        subscription=subscription,
        starting_offsets=_start(starting_offsets_for(subscription, given, _STARTING_OFFSETS, _AUTO_OFFSET_RESET)),
        ending_offsets=_end(offset_bound(subscription, given, rows.ENDS)),
        min_partitions=rows.MIN_PARTITIONS.value(given),
        max_records_per_partition=rows.MAX_RECORDS_PER_PARTITION.value(given),
        columns=parse_columns(given),
        fail_on_data_loss=rows.FAIL_ON_DATA_LOSS.value(given),
        reader=rows.READER.value(given),
        request_timeout_ms=rows.REQUEST_TIMEOUT.value(given),
        api_timeout_ms=rows.API_TIMEOUT.value(given),
        read_committed=rows.ISOLATION_LEVEL.value(given) == "read_committed",
        client_id=rows.CLIENT_ID.value(given),
        passed_on=passed_on,
        security=Redacted(parse_security(given)),
    )
    if parsed.starting_offsets.committed and parsed.group_id is None:
        raise OptionError(
            "Option startingOffsets is 'committed', and kafka.group.id is missing: name the group whose offsets count, "
            "or start at earliest."
        )
    check_with_librdkafka(parsed)
    return parsed


def _group_id(given: Mapping[str, str]) -> str | None:
    return rows.GROUP_ID.value(given) if rows.GROUP_ID.name in given else None


def _start(start: OffsetBound) -> OffsetBound:
    if start.everywhere is OffsetSpec.LATEST and not start.committed:
        raise OptionError(
            "Option startingOffsets is 'latest': a batch read would have no records to read. Start at earliest, at an "
            "offset, or at a timestamp (startingTimestamp)."
        )
    if at_end := start.first_at_end():
        raise OptionError(f"Option startingOffsets has {at_end}: a batch read starts before its end. Give an offset.")
    return replace(start, may_be_latest=False)


def _end(end: OffsetBound) -> OffsetBound:
    return replace(end, later_is_latest=True)  # no record of such a partition is after the end
