"""Each block of Python in README and in the documentation runs as a reader would paste it, page by page.

A block that changes a program runs as the changed program, and each `kgroup` command is read as its program reads it.
What the commands do is tested in `tests/kafka`.
"""

import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.kafka import produce
from harness.stream import Collected
from pyspark.sql import SparkSession
from typer.core import TyperGroup
from typer.main import get_command

from spark_kgroup.admin.cli import app
from spark_kgroup.testing import ApacheKafka

ROOT = Path(__file__).parents[2]
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BASH = re.compile(r"^ *```bash\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
DIFF = re.compile(r"^```diff\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ALL_PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
PAGES = [page for page in ALL_PAGES if PYTHON.search(page.read_text())]
RECORDS = 120
STOPS_AT = 100
"""The end that docs/guide/streams-that-end.md names: 50 of each of two partitions."""

ROWS = {
    "README.md": 0,
    "docs/quickstart.md": 1000,  # it makes its topic and its records itself
    "docs/guide/batch-reads.md": RECORDS,
    "docs/guide/streams-that-end.md": STOPS_AT,
}
"""How many rows the frame `flights` of a page has, or its query has written. A new group starts at the end."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_blocks_of_a_page_run_one_after_the_other(
    spark: SparkSession, apache_kafka: ApacheKafka, new_topic: Callable[[int], str], tmp_path: Path, page: Path
) -> None:
    topic, session = new_topic(2), spark.newSession()  # with listeners and queries of its own
    produce(apache_kafka.bootstrap_servers, topic, RECORDS, partitions=2)
    if "NewTopic(" in page.read_text():
        topic = f"{topic}-of-the-page"
    names: dict[str, Any] = {"spark": session}
    try:
        for block in PYTHON.findall(page.read_text()):
            exec(compile(here(block, apache_kafka, topic, tmp_path), page.name, "exec"), names)
            for query in spark.streams.active:  # `getOrCreate` is this session
                query.processAllAvailable()
    finally:
        for query in (*spark.streams.active, *session.streams.active):
            query.stop()
    if (rows := ROWS.get(str(page.relative_to(ROOT)))) is not None:
        flights = names["flights"]
        for table in (tmp_path / "tables").glob("*"):
            flights = spark.read.schema(flights.schema).parquet(str(table))
        assert flights.count() == rows


def here(block: str, kafka: ApacheKafka, topic: str, folder: Path) -> str:
    """`block` with this test's broker, topic, group and folders for those that the page names."""
    for written, ours in {
        "broker-1:9092,broker-2:9092": kafka.bootstrap_servers,
        "127.0.0.1:9092": kafka.bootstrap_servers,
        '"flights': f'"{topic}',
        '"./checkpoints': f'"{folder}/checkpoints',
        '"/checkpoints': f'"{folder}/checkpoints',
        '"./tables': f'"{folder}/tables',
        '"/tables': f'"{folder}/tables',
    }.items():
        block = block.replace(written, ours)
    assert "broker-1" not in block
    return block


def commands() -> Iterator[str]:
    """The `kgroup` commands of all pages that a person has written."""
    for page in (page for page in ALL_PAGES if page.name != "command-line.md"):
        for block in BASH.findall(page.read_text()):
            yield from (
                line.strip() for line in block.replace("\\\n", " ").splitlines() if line.split()[:1] == ["kgroup"]
            )


@pytest.mark.parametrize("line", sorted(set(commands())))
def test_a_command_of_a_page_is_one_that_kgroup_understands(line: str) -> None:
    command, arguments = get_command(app), shlex.split(line)[1:]
    while isinstance(command, TyperGroup):
        command = command.commands[arguments.pop(0)]
    command.make_context(line, arguments)  # raises for an unknown option, a missing one, and a value of another type


@pytest.mark.usefixtures("kafka_source")
def test_a_job_that_is_moved_as_the_page_says_reads_on_where_it_stopped(
    spark: SparkSession, apache_kafka: ApacheKafka, new_topic: Callable[[int], str], tmp_path: Path
) -> None:
    (diff,) = DIFF.findall((ROOT / "docs" / "guide" / "coming-from-kafka.md").read_text())
    topic, collected = new_topic(2), Collected()
    for lines_that_go, starts in (("+", "earliest"), ("-", "latest")):  # the latter does not count on a checkpoint
        produce(apache_kafka.bootstrap_servers, topic, RECORDS, partitions=2, first=len(collected))
        lines = "".join(line[1:] for line in diff.splitlines(keepends=True) if line[0] != lines_that_go)
        code = compile(here(f"({lines})", apache_kafka, topic, tmp_path), "the lines of the page", "eval")
        frame = eval(code, {"spark": spark}).option("startingOffsets", starts).load()
        writer = frame.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint")).foreachBatch(collected)
        writer.trigger(availableNow=True).start().awaitTermination(120)
    assert sorted(row[1:3] for row in collected.rows) == [(p, at) for p in range(2) for at in range(RECORDS)]
