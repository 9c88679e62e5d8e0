"""Each block of Python in README and in the documentation runs as a reader would paste it, page by page."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.kafka import produce
from pyspark.sql import SparkSession

from spark_kgroup.testing import ApacheKafka

ROOT = Path(__file__).parents[2]
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = sorted(page for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")] if PYTHON.search(page.read_text()))
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
