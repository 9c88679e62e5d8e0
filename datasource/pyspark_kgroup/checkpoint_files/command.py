"""The deeds of `kgroup checkpoint`, which finds them by their entry points.

Runs on: driver, in the process of the command.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from pyspark_kgroup.checkpoint_files.files import Files, LocalFiles
from pyspark_kgroup.checkpoint_files.offset_log import BatchEnd, CheckpointFolder
from pyspark_kgroup.errors import CheckpointError
from pyspark_kgroup.offsets.checkpoint import Checkpoint
from pyspark_kgroup.offsets.kafka_offset import KafkaOffset, exported, not_owned
from spark_kgroup.model import TopicPartition
from spark_kgroup.peer_words import listed

KGROUP, KAFKA, OTHER = "kgroup", "kafka", "other"


def _files_at(folder: str, settings: Mapping[str, str]) -> AbstractContextManager[Files]:
    """The files of a checkpoint: on this disk, or, if a URI says so, wherever Spark reaches them."""
    scheme, colon, path = folder.partition(":")
    if not colon or "/" in scheme:
        return nullcontext(LocalFiles(Path(folder)))
    if scheme == "file":
        return nullcontext(LocalFiles(Path("/" + path.lstrip("/"))))
    from pyspark_kgroup.checkpoint_files.hadoop_files import hadoop_files  # it needs PySpark

    return hadoop_files(folder, settings)


def show(*, folder: str, settings: Mapping[str, str]) -> dict[str, Any]:
    """What a checkpoint says of its sources.

    Args:
        folder: the query's `checkpointLocation`: a path on this disk, or a URI.
        settings: of Spark, for a URI that Spark has to reach.

    Returns:
        A JSON object: `batch` is the last finished batch, `unfinished` the one that is planned and not finished (each
        null if there is none), and `partitions` has one object for each partition of each source, with its position in
        both (null if unknown).

    Raises:
        CheckpointError: the folder is no checkpoint, or of a version that is not known here.
    """
    with _files_at(folder, settings) as files:
        return show_files(files)


def show_files(root: Files) -> dict[str, Any]:
    """As `show`, of these files."""
    files = CheckpointFolder(root)
    done, unfinished = files.last_done, files.unfinished
    ends = [files.read(batch) if batch is not None else None for batch in (done, unfinished)]
    count = max((len(end.offsets) for end in ends if end is not None), default=0)
    return {
        "batch": done,
        "unfinished": unfinished,
        "partitions": [line for source in range(count) for line in _lines(source, *ends)],
    }


def _lines(source: int, done: BatchEnd | None, planned: BatchEnd | None) -> list[dict[str, Any]]:
    """The lines of one source."""
    last, following = _offset(done, source), _offset(planned, source)
    newest = following if following is not None else last
    if newest is None or isinstance(newest, str):
        unknown = dict.fromkeys(("topic", "partition", "position", "planned", "seat"))
        return [{"source": source, "format": OTHER if newest is not None else None, **unknown}]
    before, after = _positions(last), _positions(following)
    return [
        {
            "source": source,
            "format": KAFKA if isinstance(newest, KafkaOffset) else KGROUP,
            "topic": tp.topic,
            "partition": tp.partition,
            "position": before.get(tp),
            "planned": after.get(tp),
            "seat": _seat(tp, newest),
        }
        for tp in sorted(before.keys() | after.keys())
    ]


def _offset(end: BatchEnd | None, source: int) -> Checkpoint | KafkaOffset | str | None:
    """The offset of a source: a text if it is of another kind of source, None if there is none."""
    if end is None or source >= len(end.offsets) or end.offsets[source] == "-":
        return None
    text = end.offsets[source]
    try:
        raw = json.loads(text)
        return KafkaOffset.from_json(raw) or Checkpoint.from_json(raw)
    except (ValueError, RecursionError, CheckpointError):
        return text


def _positions(offset: Checkpoint | KafkaOffset | str | None) -> Mapping[TopicPartition, int]:
    if isinstance(offset, KafkaOffset):
        return offset.positions
    if isinstance(offset, Checkpoint):
        return {**offset.given_up, **offset.lost, **{tp: held.position for tp, held in offset.owned.items()}}
    return {}


def _seat(tp: TopicPartition, offset: Checkpoint | KafkaOffset) -> str | None:
    owned = offset.owned.get(tp) if isinstance(offset, Checkpoint) else None
    return owned.period.seat if owned is not None else None


# ---------------------------------------------------------------------------------------------------------- export


def export(*, folder: str, settings: Mapping[str, str], source: int | None, dry_run: bool) -> dict[str, Any]:
    """Put an offset of `format("kafka")` in place of the last finished batch's.

    Args:
        folder: as of `show`.
        settings: likewise.
        source: the number of the source, or None for the only one that is kgroup's.
        dry_run: change no file.

    Returns:
        A JSON object: the `batch`, the `source`, the `offset` that stands there now, and the file that is kept
        (`backup`, null in a dry run).

    Raises:
        CheckpointError: a batch is unfinished, the query runs, or it does not own a partition.
    """
    with _files_at(folder, settings) as files:
        return export_files(files, source, dry_run=dry_run)


def export_files(root: Files, source: int | None, *, dry_run: bool) -> dict[str, Any]:
    """As `export`, of these files."""
    files = CheckpointFolder(root)
    end = _last_end(files)
    number = _of_kgroup(end, source)
    checkpoint = _offset(end, number)
    assert isinstance(checkpoint, Checkpoint), "it was chosen so"
    if missing := not_owned(checkpoint):
        raise CheckpointError(
            f"When batch {end.batch} ended, this query did not own {listed(missing, str)}: another member of the group "
            "may have read on there, and this checkpoint does not say how far. Stop the other members, run this query "
            "until it has read these partitions, too, and try again."
        )
    offset = exported(checkpoint)
    if not offset.positions:
        raise CheckpointError(f"Source {number} has no position yet: start with a new checkpointLocation.")
    text = json.dumps(offset.to_json(), separators=(",", ":"))
    kept = None if dry_run else files.put(end, end.with_offset(number, text))
    return {
        "batch": end.batch,
        "source": number,
        "offset": offset.to_json(),
        "backup": f"{root}/{kept}" if kept is not None else None,
    }


def _last_end(files: CheckpointFolder) -> BatchEnd:
    if files.unfinished is not None:
        raise CheckpointError(
            f"Batch {files.unfinished} is planned and not finished, and only the source that has planned it can read "
            'it again. If the query runs, stop it. Else run it once with format("kgroup") and '
            "trigger(availableNow=True), and try again."
        )
    if files.last_done is None:
        raise CheckpointError("No batch of this checkpoint is finished: start with a new checkpointLocation.")
    return files.read(files.last_done)


def _of_kgroup(end: BatchEnd, source: int | None) -> int:
    """The number of the source to export."""
    found = [number for number in range(len(end.offsets)) if isinstance(_offset(end, number), Checkpoint)]
    if source is None and len(found) == 1:
        return found[0]
    if source in found:
        return source
    if not found:
        raise CheckpointError(
            f"No source of kgroup's has finished batch {end.batch}. If the query was changed from another format and "
            "has not gone beyond its last batch, that format goes on from there without an export."
        )
    raise CheckpointError(
        f"Which source of the checkpoint is to be exported? Of 0 to {len(end.offsets) - 1}, kgroup's are: "
        f"{listed(found, str)}. Name one with --source."
    )
