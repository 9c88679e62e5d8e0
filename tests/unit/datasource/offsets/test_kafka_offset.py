"""Offsets as `format("kafka")` writes them (KafkaSourceOffset), and what a query of kgroup makes of them."""

import json
from dataclasses import replace
from typing import Any

import pytest
from harness.fake_group import FakeGroup
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kgroup.offsets.adoption import Start, adopted_start, topic_key
from pyspark_kgroup.offsets.checkpoint import EMPTY, Checkpoint, Owned, Period, Topic
from pyspark_kgroup.offsets.kafka_offset import KafkaOffset, exported, not_owned
from pyspark_kgroup.offsets.offset_spec import OffsetSpec
from spark_kgroup.model import TopicPartition

NAMES = st.text("abcXYZ019._-", min_size=1, max_size=8)
WRITTEN = st.dictionaries(
    NAMES,
    st.dictionaries(st.integers(0, 2**31 - 1).map(str), st.integers(0, 2**63 - 1), min_size=1, max_size=5),
    min_size=1,
    max_size=4,
)


@given(WRITTEN)
def test_what_the_kafka_source_writes_is_read_and_written_as_it_was(written: dict[str, dict[str, int]]) -> None:
    offset = KafkaOffset.from_json(json.loads(json.dumps(written)))
    assert offset is not None
    assert offset.to_json() == written
    assert offset.positions == {
        TopicPartition(topic, int(partition)): at
        for topic, offsets in written.items()
        for partition, at in offsets.items()
    }


def test_topics_and_partitions_are_written_in_order() -> None:
    positions = {TopicPartition("b", 10): 1, TopicPartition("b", 9): 2, TopicPartition("a", 0): 3}
    assert json.dumps(KafkaOffset(positions).to_json()) == '{"a": {"0": 3}, "b": {"9": 2, "10": 1}}'


@pytest.mark.parametrize(
    "written",
    [
        5,  # rate
        None,
        [],
        "5",
        {"t": {}},
        {"t": {"0": 5}, "u": 7},
        {"files": {"part-0": 5}},
        {"shards": {"0": "49590338"}},
        {"t": {"0": 1.5}},
        {"t": {"0": True}},
        {"t": {"0": -1}},  # a start that was not looked up: Spark writes none
        {"t": {"0": 2**63}},
        {"t": {"-1": 5}},
        {"t": {"01": 5}},
        {"t": {"٣": 5}},
        {"t": {str(2**31): 5}},
        {"\ud800": {"0": 5}},
        EMPTY.to_json(),
    ],
    ids=ascii,
)
def test_another_offset_is_not_taken_for_one_of_the_kafka_source(written: Any) -> None:
    assert KafkaOffset.from_json(written) is None


@given(
    st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.dictionaries(st.text(), inner))
)
def test_any_json_is_an_offset_or_none(written: Any) -> None:
    offset = KafkaOffset.from_json(written)
    assert offset is None or offset.to_json() == written


# ---------------------------------------------------------------------------------------------- as a checkpoint

A0, A1, A2, GONE, OTHER = (TopicPartition(*at) for at in (("a", 0), ("a", 1), ("a", 2), ("gone", 0), ("other", 0)))
TOPIC = FakeGroup({"a": 3}).topics_now["a"]


def taken_over() -> Checkpoint:
    offset = KafkaOffset({A0: 5, A1: 7, GONE: 9, OTHER: 11})
    return offset.checkpoint({"a", "gone"}, {"a": TOPIC}, [A1])


def test_positions_are_remembered_and_no_partition_is_owned() -> None:
    found = taken_over()
    assert found.lost == {A0: 5, GONE: 9}, "not of a partition that is gone, nor of a topic that is not subscribed"
    assert (found.owned, found.given_up, found.inherited, found.fresh) == ({}, {}, frozenset(), False)


def test_a_topic_has_the_id_of_now_and_one_that_is_gone_has_none() -> None:
    assert taken_over().topics == {
        "a": Topic(topic_id=topic_key(TOPIC), first_sight=0),
        "gone": Topic(topic_id="", first_sight=0),
        "other": Topic(topic_id="", first_sight=0, left=True),
    }


def test_a_partition_that_the_kafka_source_did_not_know_starts_at_its_beginning() -> None:
    """As under `format("kafka")`, whatever `startingOffsets` says: it counts for a query without a checkpoint."""
    start = adopted_start(A2, checkpoint=taken_over(), topic=TOPIC, committed=None, explicit=False)
    assert start == Start(offset=OffsetSpec.EARLIEST, commit_first=True)


@given(WRITTEN)
def test_an_offset_that_was_taken_over_is_exported_as_it_was_when_all_partitions_are_owned(
    written: dict[str, dict[str, int]],
) -> None:
    offset = KafkaOffset.from_json(written)
    assert offset is not None
    taken = offset.checkpoint(written.keys(), {})
    assert (exported(taken).positions, not_owned(taken)) == ({}, sorted(offset.positions))
    period = Period(topic_id="", start=0, seat="g-0", generation=1)
    owned = replace(taken, owned={tp: Owned(period=period, position=at) for tp, at in taken.lost.items()}, lost={})
    assert (exported(owned), not_owned(owned)) == (offset, [])


def test_a_query_that_has_seen_no_partition_yet_is_taken_over_as_well() -> None:
    offset = KafkaOffset.from_json({})
    assert offset == KafkaOffset({})
    assert offset.checkpoint({"a"}, {"a": TOPIC}).lost == {}
