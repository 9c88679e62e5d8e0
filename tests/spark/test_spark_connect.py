"""The same query through Spark Connect: rows, progress, and an end that leaves no process behind."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
from harness.kafka import contents, produce
from harness.offsets import lag
from harness.stream import options
from harness.waiting import wait_for

import pyspark_kgroup
from spark_kgroup.testing import ApacheKafka

APPLICATION = """
import json, os, sys
import pyspark_kgroup
from pyspark.sql import SparkSession
from pyspark.sql.connect.session import SparkSession as Connected
folder, read = sys.argv[1], json.loads(sys.argv[2])
spark = SparkSession.builder.remote("local[2]").getOrCreate()
assert isinstance(spark, Connected)
frame = spark.readStream.format("kgroup").options(**read).load()
query = (
    frame.writeStream.format("parquet").option("checkpointLocation", f"{folder}/cp").option("path", f"{folder}/rows")
    .trigger(processingTime="200 milliseconds").start()
)
mode = os.environ.pop("SPARK_CONNECT_MODE_ENABLED")  # as where pyspark.sql.connect itself makes the session
found = {finding.subject: finding.found for finding in pyspark_kgroup.doctor(spark, read, tasks=1)}
os.environ["SPARK_CONNECT_MODE_ENABLED"] = mode
print(json.dumps(found), flush=True)
for line in sys.stdin:
    print(json.dumps(query.recentProgress, default=str), flush=True)
query.stop()
spark.stop()
"""


class Connected:
    """An application of its own: a Connect client, and the local server that it starts.

    SPARK_TESTING gives the server a free port (SPARK-42272). Otherwise it takes 15002, which another one may have.
    """

    def __init__(self, folder: Path, read: dict[str, str]) -> None:
        self._errors = (folder / "stderr").open("wb")
        self.process = subprocess.Popen(
            [sys.executable, "-c", APPLICATION, str(folder), json.dumps(read)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYSPARK_PYTHON": pyspark_kgroup.python(), "PYTHONSAFEPATH": "1", "SPARK_TESTING": "1"},
        )

    def __enter__(self) -> "Connected":
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)
        self.process.wait(30)
        for pipe in (self.process.stdin, self.process.stdout, self._errors):
            assert pipe is not None
            pipe.close()

    def diagnosis(self) -> dict[str, str]:
        assert self.process.stdout is not None
        found: dict[str, str] = json.loads(self.process.stdout.readline())
        return found

    def progress(self) -> list[dict[str, Any]]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("progress\n")
        self.process.stdin.flush()
        progress: list[dict[str, Any]] = json.loads(self.process.stdout.readline())
        return progress

    def stop(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(90)

    def processes(self) -> list[int]:
        found = subprocess.run(["pgrep", "-s", str(self.process.pid)], check=False, capture_output=True, text=True)
        return [int(pid) for pid in found.stdout.split()]


def test_a_query_through_connect_has_the_same_rows(
    apache_kafka: ApacheKafka, new_topic: Callable[[int], str], group: str, tmp_path: Path
) -> None:
    topic, server = new_topic(4), apache_kafka.bootstrap_servers
    produce(server, topic, 100, partitions=4)
    with Connected(tmp_path, options(server, topic, group)) as application:
        found_by_doctor = application.diagnosis()
        assert found_by_doctor["brokers"] == "1 of 1 reached"
        assert found_by_doctor["driver"].startswith("not tried")
        wait_for(lambda: len(rows(tmp_path)) == 100 or application.process.poll(), "100 rows", 300, every_s=0.5)
        produce(server, topic, 100, partitions=4, first=100)
        wait_for(lambda: len(rows(tmp_path)) == 200 or application.process.poll(), "200 rows", 180, every_s=0.5)

        def reported() -> int:  # after the sink has the rows
            return sum(source["numInputRows"] for one in application.progress() for source in one["sources"])

        wait_for(lambda: reported() == 200, "progress of 200 rows", 60, every_s=0.5)
        wait_for(lambda: lag(server, group, topic) == 0, "lag 0", 60)
        assert application.stop() == 0
        wait_for(lambda: not application.processes(), "client, server, reader and workers to end", 60)
    found = rows(tmp_path)
    assert {(p, o): v for p, o, v in found} == contents(server, topic)
    assert len(found) == 200


def rows(folder: Path) -> list[tuple[int, int, bytes]]:
    """The rows in the files that the sink's log names as written."""
    written: list[tuple[int, int, bytes]] = []
    for log in sorted((folder / "rows" / "_spark_metadata").glob("[0-9]*")):
        for line in log.read_text().splitlines()[1:]:
            file = Path(json.loads(line)["path"].removeprefix("file://"))
            table = parquet.ParquetFile(file).read(["partition", "offset", "value"]).to_pydict()
            written += zip(table["partition"], table["offset"], table["value"], strict=True)
    return written
