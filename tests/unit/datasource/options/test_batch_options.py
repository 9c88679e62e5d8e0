"""Options of a batch read are checked as those of a stream are, and each refusal names the option and the fix."""

import pytest

from pyspark_kgroup.offsets.offset_spec import AtTimestamp, OffsetSpec
from pyspark_kgroup.options.batch_options import BatchOptions, concerns_batches, given_for_streams, parse_batch
from pyspark_kgroup.options.parser import parse
from spark_kgroup.errors import OptionError
from spark_kgroup.model import TopicPartition

REQUIRED = {"kafka.bootstrap.servers": "a:9092", "subscribe": "t,u"}
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def parsed(**options: str) -> BatchOptions:
    return parse_batch(REQUIRED | options)


def refusal(**options: str) -> str:
    with pytest.raises(OptionError) as problem:
        parsed(**options)
    return str(problem.value)


def test_a_batch_read_without_options_reads_everything_in_a_task_for_each_partition() -> None:
    options = parsed()
    assert options.starting_offsets.everywhere is OffsetSpec.EARLIEST
    assert not options.starting_offsets.committed
    assert options.ending_offsets.everywhere is OffsetSpec.LATEST
    assert (options.min_partitions, options.max_records_per_partition) == (None, None)
    assert options.group_id is None
    assert options.consumer_config()["group.id"] == "spark-kgroup"


def test_an_end_is_given_by_words_offsets_or_timestamps() -> None:
    assert parsed(endingOffsets="Latest").ending_offsets.everywhere is OffsetSpec.LATEST
    by_offset = parsed(endingOffsets='{"t": {"0": 23, "1": -1}}').ending_offsets
    assert (by_offset.offset_of(T0), by_offset.offset_of(T1)) == (23, OffsetSpec.LATEST)
    assert parsed(endingOffsets='{"t": "Latest"}').ending_offsets.offset_of(T0) is OffsetSpec.LATEST
    assert parsed(endingTimestamp="1000").ending_offsets.everywhere == AtTimestamp(1000)
    by_timestamp = parsed(endingOffsetsByTimestamp='{"t": {"0": 7, "1": 8}}').ending_offsets
    assert (by_timestamp.offset_of(T0), by_timestamp.offset_of(T1)) == (AtTimestamp(7), AtTimestamp(8))
    both = parsed(endingOffsets="latest", endingOffsetsByTimestamp='{"t": {"0": 7}}', endingTimestamp="9")
    assert both.ending_offsets.everywhere == AtTimestamp(9)


def test_partitions_without_a_record_as_late_as_the_end_are_read_to_their_ends_under_any_strategy() -> None:
    for strategy in ("error", "latest"):
        read = parsed(endingTimestamp="1000", startingOffsetsByTimestampStrategy=strategy)
        assert read.ending_offsets.later_is_latest


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"endingOffsets": "earliest"}, "Option endingOffsets is 'earliest': it needs latest, or JSON"),
        ({"endingOffsets": '{"t": {"0": -2}}'}, "t-0 has -2, which is for the beginning"),
        ({"endingOffsets": '{"v": {"0": 1}}'}, "Option endingOffsets names topics that `subscribe` does not: v."),
        ({"endingTimestamp": "-1"}, "Option endingTimestamp is '-1'"),
        ({"endingOffsetsByTimestamp": "7"}, "Option endingOffsetsByTimestamp is '7'"),
        ({"minPartitions": "0"}, "Option minPartitions is '0'"),
        ({"maxRecordsPerPartition": "none"}, "Option maxRecordsPerPartition is 'none'"),
        (
            {"startingOffsets": "latest"},
            "Option startingOffsets is 'latest': a batch read would have no records",
        ),
        ({"startingOffsets": '{"t": {"0": 1, "1": -1}}'}, "Option startingOffsets has -1 (latest) for t-1"),
        ({"startingOffsets": '{"t": "earliest", "u": "latest"}'}, "Option startingOffsets has latest for u: a batch"),
        ({"endingOffsets": '{"t": "earliest"}'}, "'t' needs an object of partitions or latest"),
        ({"startingOffsets": "committed"}, "kafka.group.id is missing: name the group"),
        ({"assign": '{"t":[0]}'}, "Option assign cannot be used"),
        ({"endngOffsets": "latest"}, "did you mean endingOffsets?"),
        ({"kafka.fetch.min.byts": "1"}, "did you mean kafka.fetch.min.bytes?"),
    ],
)
def test_an_option_that_a_batch_read_cannot_follow_is_refused_with_the_way_out(
    options: dict[str, str], message: str
) -> None:
    assert message in refusal(**options)


@pytest.mark.parametrize(("reset", "expected"), [({}, "EARLIEST"), ({"kafka.auto.offset.reset": "latest"}, "LATEST")])
def test_where_the_group_has_no_offset_a_batch_read_starts_at_the_beginning_unless_told_otherwise(
    reset: dict[str, str], expected: str
) -> None:
    start = parsed(**{"kafka.group.id": "g", "startingOffsets": "committed"}, **reset).starting_offsets
    assert start.committed
    assert start.everywhere is OffsetSpec[expected]


def test_options_of_streams_have_no_effect_on_a_batch_read_and_are_named() -> None:
    given = {"members": "4", "maxoffsetspertrigger": "10", "kafka.session.timeout.ms": "30000"}
    assert parsed(**given).group_id is None
    named = given_for_streams({**REQUIRED, **given})
    assert named == ["members", "maxOffsetsPerTrigger", "kafka.session.timeout.ms"]


def test_filters_cannot_be_handed_over_in_either_kind_of_query() -> None:
    given = {**REQUIRED, "pushFilters": "true"}
    with pytest.raises(OptionError, match=r"Option pushFilters cannot be used .* `startingTimestamp`"):
        parse_batch(given)
    with pytest.raises(OptionError, match="Option pushFilters cannot be used"):
        parse({**given, "kafka.group.id": "g"})


@pytest.mark.parametrize(
    ("option", "text", "place"),
    [
        ("endingOffsets", '{"t": {"0": 23}}', 23),
        ("endingTimestamp", "1000", AtTimestamp(1000)),
        ("endingOffsetsByTimestamp", '{"t": {"0": 7}}', AtTimestamp(7)),
    ],
)
def test_a_stream_takes_an_end_of_either_form(option: str, text: str, place: object) -> None:
    end = parse({**REQUIRED, "kafka.group.id": "g", option: text}).ending_offsets
    assert end is not None
    assert end.option == option
    assert end.offset_of(T0) == place
    if option != "endingTimestamp":
        with pytest.raises(OptionError, match=r"does not name t-1: name every partition of a subscribed topic.$"):
            end.check([T0, T1])


def test_a_stream_without_the_option_has_no_end_and_a_timestamp_comes_before_offsets() -> None:
    stream = {**REQUIRED, "kafka.group.id": "g"}
    assert parse(stream).ending_offsets is None
    end = parse({**stream, "endingOffsets": "latest", "endingTimestamp": "9"}).ending_offsets
    assert end is not None
    assert end.everywhere == AtTimestamp(9)


@pytest.mark.parametrize(
    ("text", "given_as"),
    [
        ("latest", "is 'latest'"),
        ('{"t": {"0": 5, "1": -1}, "u": {"0": -1}}', r"has -1 \(latest\) for t-1"),
        ('{"t": {"0": 5}, "u": "latest"}', "has latest for u"),
    ],
)
def test_a_stream_refuses_to_end_where_logs_end_and_says_which_trigger_does(text: str, given_as: str) -> None:
    given = {**REQUIRED, "kafka.group.id": "g", "endingOffsets": text}
    assert concerns_batches(given)
    with pytest.raises(OptionError, match=rf"Option endingOffsets {given_as}: .+trigger\(availableNow=True\)"):
        parse(given)


def test_a_stream_may_end_at_subscribed_topics_alone() -> None:
    with pytest.raises(OptionError, match="Option endingOffsets names topics that `subscribe` does not: v"):
        parse({**REQUIRED, "kafka.group.id": "g", "endingOffsets": '{"v": {"0": 1}}'})


def test_options_with_a_group_and_without_an_end_are_those_of_a_stream() -> None:
    assert not concerns_batches({**REQUIRED, "Kafka.Group.Id": "g"})
    assert concerns_batches(REQUIRED)
