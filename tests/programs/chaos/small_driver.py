"""The program of a driver without Spark: the same stream reader, in a loop that keeps Spark's two logs as Spark does.

It starts in a second where Spark takes ten, so that a run meets far more faults in the same time. The folder is that of
`harness.application`: offset log, commit log, and a sink with the batch id as key.
"""

import json
import os
import select
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pyspark_kgroup.shared.columns import COLUMNS, spark_schema
from pyspark_kgroup.stream import KgroupStreamReader

_COLUMNS = ["topic", "partition", "offset", "value"]
_SCHEMA = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()), ("value", pa.binary())])

_SLOW_EVERY = 5
"""One batch in so many takes long, so that the group asks for partitions in its midst."""

_SLOW_S = 5.0

Offset = Mapping[str, Any]


class MicroBatches:
    """Batch after batch: the end goes into the offset log before it is read, the commit log follows the sink."""

    def __init__(self, folder: Path, read: Mapping[str, str]) -> None:
        self._reader = KgroupStreamReader(read, spark_schema(COLUMNS))
        self._limit = self._reader.getDefaultReadLimit()
        self._offsets, self._commits, self._sink = (
            folder / "checkpoint/offsets",
            folder / "checkpoint/commits",
            folder / "sink",
        )
        for made in (self._offsets, self._commits, self._sink):
            made.mkdir(parents=True, exist_ok=True)
        self._done = _newest(self._commits)

    def next_batch(self) -> bool:
        """Plan and read one batch, or read a planned batch that is not done again. False if there is no new record."""
        start = self._end_of(self._done)
        if _newest(self._offsets) == self._done:
            end = self._reader.latestOffset(start, self._limit)
            if json.dumps(end) == json.dumps(start):
                return False
            _write(self._offsets / str(self._done + 1), f"v1\n{{}}\n{json.dumps(end)}")
        self._read(start, self._end_of(self._done + 1))
        self._done += 1
        _write(self._commits / str(self._done), "v1\n{}")
        return True

    def _end_of(self, batch: int) -> dict[str, Any]:
        if batch < 0:
            return self._reader.initialOffset()
        return dict(json.loads((self._offsets / str(batch)).read_text().splitlines()[2]))

    def _read(self, start: dict[str, Any], end: dict[str, Any]) -> None:
        tickets = self._reader.partitions(start, end)
        if self._done % _SLOW_EVERY == 0:
            time.sleep(_SLOW_S)
        batches = [batch.select(_COLUMNS) for ticket in tickets for batch in self._reader.read(ticket)]
        number = self._done + 1
        pq.write_table(pa.Table.from_batches(batches, schema=_SCHEMA), self._sink / f".{number}")
        os.replace(self._sink / f".{number}", self._sink / f"batch-{number}.parquet")


def _newest(log: Path) -> int:
    return max((int(path.name) for path in log.iterdir() if path.name.isdecimal()), default=-1)


def _write(path: Path, text: str) -> None:
    unfinished = path.with_name(f".{path.name}")
    unfinished.write_text(text)
    os.replace(unfinished, path)


def main(folder: Path) -> None:
    try:
        batches = MicroBatches(folder, json.loads((folder / "application.json").read_text())["read"])
        wait_s = 0.0
        while not select.select([sys.stdin], [], [], wait_s)[0]:
            wait_s = 0.0 if batches.next_batch() else 0.2
    except Exception as error:
        (folder / "failure.txt").write_text(str(error))
        raise


if __name__ == "__main__":
    main(Path(sys.argv[1]))
