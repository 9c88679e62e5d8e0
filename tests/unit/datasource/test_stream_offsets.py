"""Spark shows the reader each offset several times: as an end, as a start, and at every trigger without data."""

import json
from functools import partial
from typing import Any

import pytest
from harness.fake_group import FakeGroup

from pyspark_kgroup.driver import query as query_module
from pyspark_kgroup.driver.boundary import Boundary
from pyspark_kgroup.limits import END_OFFSETS_MAX_AGE_MS
from pyspark_kgroup.offsets import checkpoint as checkpoint_module
from pyspark_kgroup.offsets.checkpoint import Checkpoint
from pyspark_kgroup.shared.columns import spark_schema
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


def test_an_offset_that_spark_shows_again_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """To read one of 10,000 partitions takes 30 ms, and an idle query has nothing else to do."""
    group = Runtime({"t": 2})
    monkeypatch.setattr(query_module, "GroupRuntime", lambda _: group)
    monkeypatch.setattr(query_module, "Boundary", partial(Boundary, clock=lambda: group.now_ms))
    shown: list[dict[str, Any]] = []
    from_json = Checkpoint.from_json

    def read(raw: dict[str, Any]) -> Checkpoint:
        shown.append(raw)
        return from_json(raw)

    monkeypatch.setattr(checkpoint_module.Checkpoint, "from_json", read)

    reader = KgroupStreamReader(OPTIONS, spark_schema(False))
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

    assert start["owned"]["t"]["0"]["pos"] == 7
    assert len(shown) == 3, "the empty offset, and the ends of two batches"
