"""`kgroup checkpoint`: the offsets in the folder of a checkpoint, and the way back to `format("kafka")`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyspark_kgroup.checkpoint_files import command as deeds
from pyspark_kgroup.checkpoint_files.files import LocalFiles, checksum_of
from pyspark_kgroup.checkpoint_files.offset_log import CheckpointFolder
from pyspark_kgroup.errors import CheckpointError
from pyspark_kgroup.offsets.checkpoint import EMPTY, Checkpoint, Owned, Period, Topic
from spark_kgroup.model import TopicPartition

HEAD = 'v1\n{"batchWatermarkMs":1767225600000,"batchTimestampMs":1767225700000,"conf":{"a":"b"}}'
T0, T1, T2, U0 = (TopicPartition(*at) for at in (("t", 0), ("t", 1), ("t", 2), ("u", 0)))
KAFKA = {"t": {"0": 5, "1": 7}}


def kgroup(second: int = 7, *, first_sight: int = 2, left: bool = False, **more: Any) -> dict[str, Any]:
    """An offset of a query that owns two partitions of a topic, and is at offset `second` of the second one."""
    period = Period(topic_id="id", start=0, seat="g-0", generation=3)
    topics = {"t": Topic(topic_id="id", first_sight=first_sight, left=left)}
    owned = {T0: Owned(period=period, position=5), T1: Owned(period=period, position=second)}
    fields: dict[str, Any] = {"owned": owned, "topics": topics} | more
    return Checkpoint(group="g", **fields).to_json()


def lost() -> dict[str, Any]:
    """The same, but the second partition was lost, and another member may read it."""
    period = Period(topic_id="id", start=0, seat="g-0", generation=3)
    return kgroup(owned={T0: Owned(period=period, position=5)}, lost={T1: 7})


class Folder:
    """A checkpoint as Spark writes it on a local disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        for log in ("offsets", "commits"):
            (path / log).mkdir(parents=True)

    def plan(self, batch: int, *offsets: object) -> bytes:
        lines = [each if isinstance(each, str) else json.dumps(each) for each in offsets]
        content = "\n".join([HEAD, *lines]).encode()
        self.offsets(batch).write_bytes(content)
        self.checksum(batch).write_bytes(checksum_of(content))
        return content

    def finish(self, batch: int) -> None:
        (self.path / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')
        (self.path / "commits" / f".{batch}.crc").write_bytes(b"")

    def batch(self, batch: int, *offsets: object) -> bytes:
        content = self.plan(batch, *offsets)
        self.finish(batch)
        return content

    def offsets(self, batch: int) -> Path:
        return self.path / "offsets" / str(batch)

    def checksum(self, batch: int) -> Path:
        return self.path / "offsets" / f".{batch}.crc"

    @property
    def files(self) -> dict[str, bytes]:
        return {str(each.relative_to(self.path)): each.read_bytes() for each in self.path.rglob("*") if each.is_file()}


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "checkpoint")


def export(folder: Folder, source: int | None = None, *, dry_run: bool = False) -> dict[str, Any]:
    return deeds.export(folder=str(folder.path), settings={}, source=source, dry_run=dry_run)


# -------------------------------------------------------------------------------------------------------- show


def test_each_partition_of_each_source_is_shown_with_both_batches(folder: Folder) -> None:
    folder.batch(8, "-", KAFKA, kgroup(), {"shards": 3})
    folder.batch(9, {"u": {"0": 1}}, KAFKA, kgroup(), {"shards": 4})
    folder.plan(10, {"u": {"0": 2}}, {"t": {"0": 9, "1": 7, "2": 4}}, kgroup(8), {"shards": 5})
    found = deeds.show(folder=str(folder.path), settings={})
    assert (found["batch"], found["unfinished"]) == (9, 10)
    keys = ("source", "format", "topic", "partition", "position", "planned", "seat")
    assert [tuple(line[key] for key in keys) for line in found["partitions"]] == [
        (0, "kafka", "u", 0, 1, 2, None),
        (1, "kafka", "t", 0, 5, 9, None),
        (1, "kafka", "t", 1, 7, 7, None),
        (1, "kafka", "t", 2, None, 4, None),
        (2, "kgroup", "t", 0, 5, 5, "g-0"),
        (2, "kgroup", "t", 1, 7, 8, "g-0"),
        (3, "other", None, None, None, None, None),
    ]


def test_a_checkpoint_whose_batches_are_all_finished_shows_no_planned_position(folder: Folder) -> None:
    folder.batch(0, kgroup(given_up={T2: 3}), "-")
    found = deeds.show(folder=str(folder.path), settings={})
    assert (found["batch"], found["unfinished"]) == (0, None)
    assert [line["position"] for line in found["partitions"]] == [5, 7, 3, None]
    assert {line["planned"] for line in found["partitions"]} == {None}
    assert found["partitions"][-1]["format"] is None, "no offset yet"


def test_a_checkpoint_without_a_finished_batch_shows_the_planned_one(folder: Folder) -> None:
    folder.plan(0, KAFKA)
    found = deeds.show(folder=str(folder.path), settings={})
    assert (found["batch"], found["unfinished"]) == (None, 0)
    assert [(line["position"], line["planned"]) for line in found["partitions"]] == [(None, 5), (None, 7)]


# ------------------------------------------------------------------------------------------------------ export


def test_the_last_offset_becomes_one_that_the_kafka_source_reads_and_no_other_file_changes(folder: Folder) -> None:
    folder.batch(8, kgroup())
    written = folder.batch(9, kgroup())
    before = folder.files
    done = export(folder)
    assert folder.offsets(9).read_text() == f'{HEAD}\n{{"t":{{"0":5,"1":7}}}}'
    assert folder.checksum(9).read_bytes() == checksum_of(folder.offsets(9).read_bytes())
    assert done == {"batch": 9, "source": 0, "offset": KAFKA, "backup": str(folder.path / "kgroup-backup/offsets-9")}
    assert Path(done["backup"]).read_bytes() == written
    assert {name for name, content in folder.files.items() if before.get(name) != content} == {
        "offsets/9",
        "offsets/.9.crc",
        "kgroup-backup/offsets-9",
    }


def test_a_dry_run_says_the_same_and_changes_no_file(folder: Folder) -> None:
    folder.batch(9, kgroup())
    before = folder.files
    assert export(folder, dry_run=True) == {"batch": 9, "source": 0, "offset": KAFKA, "backup": None}
    assert folder.files == before


def test_a_file_without_a_checksum_gets_none(folder: Folder) -> None:
    folder.batch(9, kgroup())
    folder.checksum(9).unlink()
    export(folder)
    assert not folder.checksum(9).exists()


def test_a_second_export_of_the_same_batch_keeps_both_files(folder: Folder) -> None:
    first = folder.batch(9, kgroup())
    export(folder)
    folder.offsets(9).write_bytes(first)
    assert export(folder)["backup"] == str(folder.path / "kgroup-backup/offsets-9-2")


def test_a_checksum_is_that_of_hadoop() -> None:
    """Of a file that Spark 4.3.0 wrote: `commits/0` of a query."""
    assert checksum_of(b'v1\n{"nextBatchWatermarkMs":0}').hex() == "6372630000000200f32abfdd"


def test_one_of_several_sources_is_named(folder: Folder) -> None:
    folder.batch(9, KAFKA, kgroup(), kgroup(70))
    with pytest.raises(CheckpointError, match=r"Of 0 to 2, kgroup's are: 1, 2\. Name one with --source"):
        export(folder)
    with pytest.raises(CheckpointError, match="kgroup's are: 1, 2"):
        export(folder, 0)
    assert export(folder, 2)["offset"] == {"t": {"0": 5, "1": 70}}
    assert export(folder)["source"] == 1, "the only one that is left"
    with pytest.raises(CheckpointError, match=r"No source of kgroup's has finished batch 9\. .* without an export"):
        export(folder)


def test_a_topic_that_is_not_subscribed_any_more_is_left_out(folder: Folder) -> None:
    topics = {"t": Topic(topic_id="id", first_sight=2), "u": Topic(topic_id="u", first_sight=3, left=True)}
    folder.batch(9, kgroup(topics=topics, lost={U0: 3}))
    assert export(folder)["offset"] == KAFKA


@pytest.mark.parametrize(
    ("offset", "named"),
    [
        (kgroup(first_sight=4), "t-2, t-3"),
        (kgroup(given_up={T2: 9}), "t-2"),
        (kgroup(unstarted=frozenset({T2})), "t-2"),
        (lost(), "t-1"),
    ],
    ids=["never had", "given up", "unstarted", "lost"],
)
def test_a_partition_that_the_query_does_not_own_is_refused(folder: Folder, offset: dict[str, Any], named: str) -> None:
    folder.batch(9, offset)
    before = folder.files
    with pytest.raises(CheckpointError, match=f"this query did not own {named}: another member"):
        export(folder)
    assert folder.files == before


def unfinished(folder: Folder) -> None:
    folder.batch(9, kgroup())
    folder.plan(10, kgroup())


def damaged(folder: Folder) -> None:
    folder.batch(9, kgroup())
    folder.offsets(9).unlink()


def no_text(folder: Folder) -> None:
    folder.batch(9, kgroup())
    folder.offsets(9).write_bytes(b"v1\n\xff")


def with_names(folder: Folder) -> None:
    folder.batch(9, kgroup())
    folder.offsets(9).write_text("v2\n{}")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (unfinished, r"Batch 10 is planned and not finished, .*run it once with format\(\"kgroup\"\)"),
        (lambda folder: folder.plan(0, kgroup()), "Batch 0 is planned and not finished"),
        (lambda _: None, "is no checkpoint of a query"),
        (damaged, "has no file offsets/9"),
        (no_text, "is no text"),
        (with_names, r"version 'v2', .*give the other source a \.name\(\)"),
        (lambda folder: folder.batch(9, EMPTY.to_json()), "has no position yet"),
    ],
    ids=["unfinished", "first unfinished", "nothing", "damaged", "no text", "named sources", "empty"],
)
def test_a_checkpoint_that_cannot_be_exported_is_refused_with_the_way_out(
    folder: Folder, make: Callable[[Folder], object], message: str
) -> None:
    make(folder)
    before = folder.files
    with pytest.raises(CheckpointError, match=message):
        export(folder)
    assert folder.files == before


@pytest.mark.parametrize("scheme", ["file:", "file://"])
def test_a_folder_may_be_a_uri_of_this_disk(folder: Folder, scheme: str) -> None:
    folder.batch(0, kgroup())
    assert deeds.show(folder=f"{scheme}{folder.path}", settings={})["batch"] == 0


def test_a_folder_that_is_no_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is no checkpoint of a query"):
        deeds.show(folder=str(tmp_path), settings={})


@pytest.mark.parametrize("happens", ["the next batch is planned", "the file changes"])
def test_a_query_that_runs_meanwhile_is_noticed(folder: Folder, happens: str) -> None:
    folder.batch(9, kgroup())
    files = CheckpointFolder(LocalFiles(folder.path))
    before = files.read(9)
    if happens == "the next batch is planned":
        folder.plan(10, kgroup())
    else:
        folder.plan(9, kgroup(8))
    there = folder.files
    with pytest.raises(CheckpointError, match="has changed just now"):
        files.put(before, before.with_offset(0, "{}"))
    assert {name: content for name, content in folder.files.items() if "kgroup-backup" not in name} == there
