"""`spark.python.use.daemon=false`: each task has a Python of its own, and the executor has a sidecar all the same."""

from pathlib import Path
from typing import Any

import pytest
from harness.application import Application, rows
from harness.kafka import MakeTopic, contents, produce
from harness.stream import options

from pyspark_kgroup.admission import HAS_ADMISSION_CONTROL
from spark_kgroup.testing import ApacheKafka

pytestmark = pytest.mark.full  # the start alone: unit/datasource/executor/test_sidecar_start.py


def test_a_sidecar_serves_tasks_whose_python_ends_with_them(
    apache_kafka: ApacheKafka, new_topic: MakeTopic, group: str, tmp_path: Path
) -> None:
    server, topic = apache_kafka.bootstrap_servers, new_topic(2)
    sent = 0

    def served(application: Application) -> bool:
        nonlocal sent
        produce(server, topic, 100, partitions=2, first=sent)
        sent += 100
        application.await_rows(sent)
        return not HAS_ADMISSION_CONTROL or any(at_home(report) for report in application.progress())

    with Application(tmp_path, options(server, topic, group), conf={"spark.python.use.daemon": "false"}) as application:
        application.wait_for(lambda: served(application), "a seat's server to have served its tasks", 120)
        application.stop()
    assert {(row.partition, row.offset): row.value for row in rows(tmp_path)} == contents(server, topic)
    assert len(rows(tmp_path)) == sent
    # A task's Python that ended in the midst of a start looked like a stranger at the driver's port.
    warned = tmp_path / "warnings.log"
    assert not warned.exists() or "did not show the key" not in warned.read_text()


def at_home(report: dict[str, Any]) -> int:
    """How many reads a seat's server has served, which progress tells from PySpark 4.2 on."""
    latest = report["sources"][0]["latestOffset"] or {}
    return int(latest.get("reads", {}).get("at_home", 0))
