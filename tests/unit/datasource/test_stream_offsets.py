"""Spark shows the reader each offset several times: as an end, as a start, and at every trigger without data."""

import json
from functools import partial
from typing import Any

import pytest
from harness.fake_group import FakeGroup

from pyspark_kgroup.driver import query as query_module
from pyspark_kgroup.driver.boundary.context import BoundaryContext
from pyspark_kgroup.limits import END_OFFSETS_MAX_AGE_MS
from pyspark_kgroup.offsets import checkpoint as checkpoint_module
from pyspark_kgroup.offsets.checkpoint import Checkpoint
from pyspark_kgroup.offsets.plan import ranges_by_seat
from pyspark_kgroup.shared.columns import COLUMNS, spark_schema
from pyspark_kgroup.stream import KgroupStreamReader
from spark_kgroup.model import TopicPartition

OPTIONS = {
    "kafka.bootstrap.servers": "a:9092",
    "kafka.group.id": "g",
    "subscribe": "t",
    "startingOffsets": "earliest",
    "prefetchBytes": "0",
}


class Runtime(FakeGroup):
    """The fake group with a runtime's beginning and end."""

    def start(self) -> None: ...

    def close(self) -> None: ...


def again(offset: dict[str, Any]) -> dict[str, Any]:
    """An offset as it comes back from Spark: equal, and another object."""
    copied: dict[str, Any] = json.loads(json.dumps(offset))
    return copied


def in_version_1(offset: dict[str, Any]) -> dict[str, Any]:
    """The offset as releases before this shape wrote it."""
    written: dict[str, Any] = {**again(offset), "version": 1, "owned": {}}
    del written["periods"]
    for tp, held in Checkpoint.from_json(offset).owned.items():
        period = held.period
        entry = {"from": period.start, "pos": held.position, "seat": period.seat, "generation": period.generation}
        written["owned"].setdefault(tp.topic, {})[str(tp.partition)] = entry
    return written


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    group = Runtime({"t": 2})
    monkeypatch.setattr(query_module, "GroupRuntime", lambda _: group)
    monkeypatch.setattr(BoundaryContext, "of", partial(BoundaryContext.of, clock=lambda: group.now_ms))
    return group


def test_an_offset_that_spark_shows_again_is_read_once(group: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    """To read one of 10,000 partitions takes 30 ms, and that would be all the work of an idle query."""
    shown: list[dict[str, Any]] = []
    from_json = Checkpoint.from_json

    def read(raw: dict[str, Any]) -> Checkpoint:
        shown.append(raw)
        return from_json(raw)

    monkeypatch.setattr(checkpoint_module.Checkpoint, "from_json", read)

    reader = KgroupStreamReader(OPTIONS, spark_schema(COLUMNS))
    start = reader.initialOffset()
    for records in (3, 0, 0, 4, 0):
        group.produce(TopicPartition("t", 0), records)
        group.now_ms += END_OFFSETS_MAX_AGE_MS + 1
        end = reader.latestOffset(again(start))
        if end == start:
            assert records == 0
            continue
        reader.partitions(again(start), again(end))
        start = end

    assert start["owned"]["t"]["pos"] == "7 0"
    assert len(shown) == 3, "the empty offset, and the ends of two batches"


def test_a_checkpoint_of_version_1_is_gone_on_from_and_rewritten_with_the_next_batch(group: Runtime) -> None:
    reader = KgroupStreamReader(OPTIONS, spark_schema(COLUMNS))
    group.produce(TopicPartition("t", 0), 3)
    written = in_version_1(reader.latestOffset(reader.initialOffset()))
    group.now_ms += END_OFFSETS_MAX_AGE_MS + 1
    assert reader.latestOffset(again(written)) == written, "nothing is new, so there is no batch"
    group.produce(TopicPartition("t", 1), 4)
    group.now_ms += END_OFFSETS_MAX_AGE_MS + 1
    end = reader.latestOffset(again(written))
    assert (end["version"], end["owned"]["t"]["pos"]) == (2, "3 4")
    (ranges,) = ranges_by_seat(Checkpoint.from_json(written), Checkpoint.from_json(end)).values()
    assert ranges == {TopicPartition("t", 1): (0, 4)}


def test_a_reader_that_has_not_been_asked_for_offsets_yet_reports_none() -> None:
    assert KgroupStreamReader(OPTIONS, spark_schema(COLUMNS)).reportLatestOffset() is None


@pytest.mark.parametrize("shows_start", [True, False], ids=["PySpark 4.2", "PySpark 4.0"])
def test_a_batch_that_the_sink_does_not_look_at_is_passed_with_a_warning(
    group: Runtime, caplog: pytest.LogCaptureFixture, shows_start: bool
) -> None:
    """Spark plans no tickets for it. Before 4.2 this is all that tells where the next batch begins."""
    reader = KgroupStreamReader({**OPTIONS, "maxOffsetsPerTrigger": "2"}, spark_schema(COLUMNS))
    group.produce(TopicPartition("t", 0), 6)
    offset, ends = reader.initialOffset(), []
    for looked_at in (True, False, True, True):
        group.now_ms += END_OFFSETS_MAX_AGE_MS + 1
        end = reader.latestOffset(again(offset)) if shows_start else reader.latestOffset()
        ends.append(end["owned"]["t"]["pos"])
        if looked_at and end != offset:
            reader.partitions(again(offset), again(end))
        offset = end
    assert ends == ["2 0", "4 0", "6 0", "6 0"]
    assert caplog.text.count("A batch of 2 offsets is done, and no task has read a record of it.") == 1
