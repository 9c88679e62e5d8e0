"""A query with a checkpoint of `format("kafka")` is changed to kgroup: Spark hands over the offsets that are there."""

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
from harness.boundary import messages
from harness.fake_group import FakeGroup
from harness.fake_listing import no_leader

from pyspark_kgroup.driver import query as query_module
from pyspark_kgroup.driver.boundary.context import BoundaryContext
from pyspark_kgroup.errors import CheckpointError, DataLoss
from pyspark_kgroup.limits import END_OFFSETS_MAX_AGE_MS
from pyspark_kgroup.offsets.checkpoint import Checkpoint
from pyspark_kgroup.shared.columns import COLUMNS, spark_schema
from pyspark_kgroup.shared.tickets import Mode
from pyspark_kgroup.stream import KgroupStreamReader, Ticket
from spark_kgroup.errors import BrokerError
from spark_kgroup.model import TopicPartition
from spark_kgroup.seat_note import Author
from spark_kgroup.wire.responses import CommittedOffset

T0, T1, T2 = (TopicPartition("t", number) for number in range(3))
U0 = TopicPartition("u", 0)

Ranges = dict[TopicPartition, tuple[int, int]]


class Runtime(FakeGroup):
    """The fake group with a runtime's beginning and end."""

    def start(self) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    group = Runtime({"t": 2})
    monkeypatch.setattr(query_module, "GroupRuntime", lambda _: group)
    monkeypatch.setattr(BoundaryContext, "of", partial(BoundaryContext.of, clock=lambda: group.now_ms))
    for tp in (T0, T1):
        group.produce(tp, 100)
    return group


def make_reader(**more: str) -> KgroupStreamReader:
    options = {
        "kafka.bootstrap.servers": "a:9092",
        "kafka.group.id": "g",
        "subscribe": "t",
        "instanceIdPrefix": "seat",
        "members": "1",
        "prefetchBytes": "0",
    }
    return KgroupStreamReader({**options, **more}, spark_schema(COLUMNS))


def again(offset: Mapping[str, Any]) -> dict[str, Any]:
    """An offset as it comes back from Spark: equal, and another object."""
    copied: dict[str, Any] = json.loads(json.dumps(offset))
    return copied


def positions(offset: Mapping[str, Any]) -> dict[TopicPartition, int]:
    return {tp: held.position for tp, held in Checkpoint.from_json(offset).owned.items()}


def starts(offset: Mapping[str, Any]) -> dict[TopicPartition, int]:
    return {tp: held.period.start for tp, held in Checkpoint.from_json(offset).owned.items()}


def tickets(reader: KgroupStreamReader, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[Ranges]:
    """The ranges of each ticket between two offsets of `format("kafka")`."""
    found = []
    for ticket in reader.partitions(again(start), again(end)):
        assert isinstance(ticket, Ticket)
        payload = ticket.payload
        assert (payload.mode, payload.registry) == (Mode.FIXED, None), "read directly"
        assert payload.reads is not None
        assert payload.reads.seat == "", "no seat owns the range"
        found.append(
            {TopicPartition(r.topic, r.partition): (r.start_offset, r.end_offset) for r in payload.reads.ranges}
        )
    return found


# -------------------------------------------------------------------------------------------------- going on


def test_reading_goes_on_where_the_kafka_source_stopped_and_the_group_is_told(
    group: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    reader, start = make_reader(), {"t": {"0": 60, "1": 70}}
    end = reader.latestOffset(again(start))
    assert (starts(end), positions(end)) == ({T0: 60, T1: 70}, {T0: 100, T1: 100})
    assert len(reader.partitions(again(start), again(end))) > 0
    assert group.committed_now == {T0: 60, T1: 70}, "what is durable"
    group.now_ms += END_OFFSETS_MAX_AGE_MS + 1
    assert reader.latestOffset(again(end)) == end
    assert group.committed_now == {T0: 100, T1: 100}
    (warning,) = messages(caplog, "goes on from the checkpoint")
    assert warning.endswith("as group 'g': t-0 at 60, t-1 at 70.")
    assert caplog.messages == [warning]


def test_a_query_without_new_records_has_one_empty_batch_that_makes_the_checkpoint_its_own(group: Runtime) -> None:
    reader, start = make_reader(), {"t": {"0": 100, "1": 100}}
    end = reader.latestOffset(again(start))
    assert (starts(end), positions(end)) == ({T0: 100, T1: 100}, {T0: 100, T1: 100})
    reader.partitions(again(start), again(end))
    group.now_ms += END_OFFSETS_MAX_AGE_MS + 1
    assert reader.latestOffset(again(end)) == end


def test_the_offset_stays_as_it_is_while_the_group_is_not_at_rest(group: Runtime) -> None:
    """To the byte, since any difference makes Spark run a batch."""
    reader, start = make_reader(), {"t": {"1": 70, "0": 60}}
    group.die()  # its seats are awaited, so that no partition has an owner
    assert json.dumps(reader.latestOffset(again(start))) == json.dumps(start)


def test_the_batch_is_planned_again_as_it_was_after_a_restart(group: Runtime) -> None:
    start = {"t": {"0": 60, "1": 70}}
    end = make_reader().latestOffset(again(start))
    group.produce(T0, 10)
    back = make_reader()
    back.partitions(again(start), again(end))
    group.now_ms += END_OFFSETS_MAX_AGE_MS + 1
    after = back.latestOffset(again(end))
    assert (starts(after), positions(after)) == ({T0: 60, T1: 70}, {T0: 110, T1: 100}), "the same periods go on"


def test_a_partition_that_was_added_since_is_read_from_its_beginning(group: Runtime) -> None:
    """Whatever `startingOffsets` says, and where a group without offsets starts: as under `format("kafka")`."""
    end = make_reader(startingOffsets="latest").latestOffset({"t": {"0": 60}})
    assert starts(end) == {T0: 60, T1: 0}


def test_a_topic_that_is_not_subscribed_is_forgotten_and_a_new_one_is_read_from_its_beginning(
    group: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    group.create_topic("u", 1)
    end = make_reader().latestOffset({"u": {"0": 60}})
    assert starts(end) == {T0: 0, T1: 0}
    assert "It does not read u any more." in caplog.text
    assert "of which this query reads none" in caplog.text
    assert Checkpoint.from_json(end).topics["u"].left


@pytest.mark.parametrize(
    ("committed", "author", "begun", "warned"),
    [
        (50, None, 60, False),
        (60, None, 60, False),
        (80, None, 80, True),
        (80, "neighbour", 80, True),
        (80, "seat", 60, False),
    ],
    ids=["behind", "equal", "an administrator's", "another application's", "this application's"],
)
def test_an_offset_of_the_group_that_is_further_on_counts_if_another_writer_committed_it(
    group: Runtime,
    caplog: pytest.LogCaptureFixture,
    committed: int,
    author: str | None,
    begun: int,
    warned: bool,
) -> None:
    """Rule 2 of `adoption`, as for any partition that the query has not owned without a break."""
    group.committed_now[T0] = committed
    if author is not None:
        note = Author(app=author).encode(str(group.topics_now["t"].topic_id))
        group._notes[T0] = CommittedOffset(offset=committed, metadata=note)
    group.checkpoint_set_back = True
    reader = make_reader()
    end = reader.latestOffset({"t": {"0": 60, "1": 70}})
    assert starts(end) == {T0: begun, T1: 70}
    assert bool(messages(caplog, "has offsets beyond the checkpoint")) is warned
    assert bool(messages(caplog, "t-0: group 80, checkpoint 60")) is (committed == 80)
    group.now_ms += END_OFFSETS_MAX_AGE_MS + 1
    reader.latestOffset({"t": {"0": 60, "1": 70}})
    assert len(messages(caplog, "has offsets beyond the checkpoint")) == warned, "told once"


@pytest.mark.parametrize(
    ("start", "left", "what"),
    [
        ({"t": {"0": 60, "1": 120}}, {T0: 60, T1: 100}, "the log has 0 to 99"),
        ({"t": {"0": 60, "1": 70, "2": 5}}, {T0: 60, T1: 70}, "t-2 were to be read next, but the partition does not"),
        ({"t": {"0": 60, "1": 70}, "gone": {"0": 5}}, {T0: 60, T1: 70}, "gone-0 were to be read next"),
    ],
    ids=["a shorter log", "fewer partitions", "no topic"],
)
@pytest.mark.parametrize("fails", [True, False], ids=["an error", "skipped"])
def test_positions_that_are_gone_are_an_error_or_skipped(
    group: Runtime,
    caplog: pytest.LogCaptureFixture,
    start: dict[str, Any],
    left: dict[TopicPartition, int],
    what: str,
    fails: bool,
) -> None:
    reader = make_reader(subscribe="t,gone" if "gone" in start else "t", failOnDataLoss=str(fails).lower())
    if fails:
        with pytest.raises(DataLoss, match=what):
            reader.latestOffset(again(start))
        return
    assert starts(reader.latestOffset(again(start))) == left
    assert len([message for message in messages(caplog, what) if message.startswith("Data loss")]) == 1


def test_a_broker_that_knows_fewer_partitions_is_not_believed_alone(
    group: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[TopicPartition]] = []

    def another(partitions: list[TopicPartition], _: int) -> dict[TopicPartition, Any]:
        asked.append(list(partitions))
        group.now_ms += 1
        group.produce(group.add_partition("t"), 9)
        group.spread(list(group.seats))
        return {}

    monkeypatch.setattr(group.logs, "ask_another_broker", another)
    end = make_reader().latestOffset({"t": {"0": 60, "1": 70, "2": 5}})
    assert asked == [[T2]]
    assert starts(end) == {T0: 60, T1: 70, T2: 5}


# ------------------------------------------------------------------------------------- an unfinished batch


def test_a_batch_that_the_kafka_source_planned_is_read_from_its_two_offsets(group: Runtime) -> None:
    reader = make_reader()
    assert tickets(reader, {"t": {"0": 10, "1": 20}}, {"t": {"0": 60, "1": 20}}) == [{T0: (10, 60)}]
    end = reader.latestOffset({"t": {"0": 60, "1": 20}})
    assert starts(end) == {T0: 60, T1: 20}


def test_each_partition_of_it_is_a_task_and_more_where_options_say_so(group: Runtime) -> None:
    start, end = {"t": {"0": 10, "1": 20}}, {"t": {"0": 60, "1": 30}}
    assert tickets(make_reader(), start, end) == [{T0: (10, 60)}, {T1: (20, 30)}]
    assert tickets(make_reader(minPartitions="3"), start, end) == [{T0: (10, 35)}, {T0: (35, 60)}, {T1: (20, 30)}]


def test_it_is_read_also_from_topics_that_are_not_subscribed_any_more(group: Runtime) -> None:
    group.create_topic("u", 1)
    start, end = {"t": {"0": 10}, "u": {"0": 3}}, {"t": {"0": 60}, "u": {"0": 8}}
    assert tickets(make_reader(), start, end) == [{T0: (10, 60)}, {U0: (3, 8)}]


def test_a_partition_that_only_its_end_has_is_read_from_the_beginning(group: Runtime) -> None:
    assert tickets(make_reader(), {"t": {"0": 10}}, {"t": {"0": 60, "1": 20}}) == [{T0: (10, 60)}, {T1: (0, 20)}]


def lose_the_beginning(group: Runtime) -> None:
    group.log[T1][0] = 5


@pytest.mark.parametrize(
    ("start", "end", "happens", "left", "what"),
    [
        ({"0": 10}, {"0": 60, "1": 20}, lose_the_beginning, [{T0: (10, 60)}, {T1: (5, 20)}], "the log has 5 to 19"),
        ({"0": 10}, {"0": 60, "3": 20}, lambda _: None, [{T0: (10, 60)}], "partition does not exist any more"),
        ({"0": 10, "1": 20}, {"0": 60}, lambda _: None, [{T0: (10, 60)}], "partition does not exist any more"),
        ({"0": 10, "1": 20}, {"0": 60, "1": 15}, lambda _: None, [{T0: (10, 60)}], "ends at offset 15 there"),
    ],
    ids=["an added one has lost its beginning", "an added one is gone", "one was deleted", "one ends before it begins"],
)
def test_losses_in_it_are_those_of_the_kafka_source(
    group: Runtime,
    caplog: pytest.LogCaptureFixture,
    start: dict[str, int],
    end: dict[str, int],
    happens: Callable[[Runtime], None],
    left: list[Ranges],
    what: str,
) -> None:
    """KafkaOffsetReaderAdmin.getOffsetRangesFromResolvedOffsets reports them: an error with failOnDataLoss."""
    happens(group)
    with pytest.raises(DataLoss, match=what):
        tickets(make_reader(), {"t": start}, {"t": end})
    assert tickets(make_reader(failOnDataLoss="false"), {"t": start}, {"t": end}) == left
    assert len(messages(caplog, what)) == 1


def test_no_range_of_it_is_left_out_for_want_of_a_leader(group: Runtime) -> None:
    group.out_of_reach[T1] = lambda: True
    with pytest.raises(BrokerError) as problem:
        tickets(make_reader(failOnDataLoss="false"), {"t": {"0": 10}}, {"t": {"0": 60, "1": 20}})
    assert str(problem.value) == str(no_leader(T1))


def test_the_first_batch_of_a_checkpoint_is_to_be_finished_by_the_kafka_source(group: Runtime) -> None:
    """Its beginning is in the checkpoint's folder `sources`, and no offset."""
    reader = make_reader()
    with pytest.raises(CheckpointError, match=r'Finish it with format\("kafka"\)'):
        reader.partitions(reader.initialOffset(), {"t": {"0": 60}})


def test_before_pyspark_4_2_the_checkpoint_shows_in_the_plan_that_comes_first(group: Runtime) -> None:
    """Spark asks for the partitions between the last offset and itself, then for an end, without a start."""
    reader, start = make_reader(), {"t": {"0": 60, "1": 70}}
    assert reader.partitions(again(start), again(start)) == []
    assert starts(reader.latestOffset()) == {T0: 60, T1: 70}
