"""Facts of executors become findings: the healthy ones in one line, each other one with its cost and its fix."""

from typing import Any

import pytest

from pyspark_kgroup.diagnosis import Finding, Verdict
from pyspark_kgroup.diagnosis.examination import Diagnosis
from pyspark_kgroup.diagnosis.findings import findings

REACHED = {"driver_error": "", "driver_ms": 1.0, "clock_ahead_ms": 20.0, "peers": 2, "peer_errors": []}
HEALTHY: dict[str, Any] = {
    "executor": "h:1",
    "name": "executor 1, h",
    "python": "3.12.1 /env/bin/python3",
    "kgroup": "0.2.0",
    "pyspark": "4.3.0",
    "pyspark_compiled": True,
    "unix_sockets": True,
    "jvm_above": True,
    "pidfd": True,
    "folder": "/tmp",
    "folder_error": "",
    "folder_free_mb": 5_000,
    "descriptors_max": None,
    "memory_max_mb": None,
    "cpus": 4,
    "cores": 4,
    "rack": "a",
    "reach": REACHED,
    "broker_errors": [],
}


def of_consequence(**changed: Any) -> list[Finding]:
    return Diagnosis(findings("0.2.0", [{**HEALTHY, **changed}], ["b:9092"])).of_consequence


def test_a_healthy_executor_has_no_finding_of_consequence() -> None:
    assert of_consequence() == []


@pytest.mark.parametrize(
    ("changed", "subject", "found", "advice"),
    [
        ({"kgroup": "0.1.0"}, "spark-kgroup", "0.1.0", "The driver has 0.2.0: install the same wheel"),
        ({"pyspark_compiled": False}, "PySpark", "from an archive of sources", "pyspark_kgroup.python()"),
        ({"unix_sockets": False}, "way to the JVM", "TCP", "spark.python.unix.domain.socket.enabled=true"),
        ({"jvm_above": False}, "executor's JVM", "out of sight", "A sandbox of the platform hides it"),
        ({"pidfd": False}, "pidfd_open", "missing", "Linux 5.3"),
        ({"folder_error": "Read-only file system"}, "TMPDIR", "/tmp: Read-only", "Set TMPDIR"),
        ({"folder_free_mb": 3}, "TMPDIR", "/tmp, 3 MB free", "Free space"),
        ({"descriptors_max": 1024}, "descriptors", "1024 at most", "ulimit -Hn"),
        ({"memory_max_mb": 500}, "memory", "500 MB", "spark.executor.pyspark.memory"),
        ({"cpus": 1}, "CPUs", "1 for 4 cores", "spark.executor.cores"),
        ({"reach": {**REACHED, "driver_error": "d:1: refused"}}, "driver", "d:1: refused", "registryPort"),
        ({"reach": {**REACHED, "driver_ms": 80.2}}, "driver", "after 80 ms", "Each task asks there once"),
        (
            {"reach": {**REACHED, "peer_errors": ["p:2: refused"]}},
            "other executors",
            "1 of 2 not reached: p:2",
            "ports",
        ),
        ({"reach": {**REACHED, "clock_ahead_ms": 3_600_000}}, "clock", "3600 s ahead of", "NTP"),
        ({"reach": {**REACHED, "clock_ahead_ms": -9_000}}, "clock", "9 s behind", "NTP"),
        ({"broker_errors": ["b:9092: refused"]}, "brokers", "1 of 1 not reached: b:9092", "advertised.listeners"),
    ],
)
def test_a_fact_that_costs_time_comes_with_its_cost_and_the_fix(
    changed: dict[str, Any], subject: str, found: str, advice: str
) -> None:
    (finding,) = of_consequence(**changed)
    assert finding.subject == subject
    assert found in finding.found
    assert advice in finding.advice
    assert finding.verdict is (Verdict.FAILS if subject in ("spark-kgroup", "brokers") else Verdict.COSTS)


def test_executors_with_the_same_answer_share_a_line() -> None:
    named = [{**HEALTHY, "name": f"executor {number}"} for number in range(3)]
    named[2]["rack"] = "b"
    racks = [(finding.where, finding.found) for finding in findings("0.2.0", named, None) if finding.subject == "rack"]
    assert racks == [("2 executors, such as executor 0", "a"), ("executor 2", "b")]
    clocks = [finding.where for finding in findings("0.2.0", named, None) if finding.subject == "clock"]
    assert clocks == ["all 3 executors"]


def test_the_text_of_a_diagnosis_is_a_table_with_each_advice_once_below() -> None:
    ill = {**HEALTHY, "pyspark_compiled": False}
    lines = str(Diagnosis(findings("0.2.0", [ill, {**ill, "name": "executor 2, i"}], None))).splitlines()
    assert lines[0].split() == ["subject", "where", "found"]
    assert sum("from an archive" in line for line in lines) == 1
    assert lines[-1].startswith("PySpark: Each Python process compiles PySpark anew")
    assert "Nothing costs time" in str(Diagnosis(findings("0.2.0", [HEALTHY], None)))


def test_a_pyspark_without_unix_sockets_is_not_told_to_use_them() -> None:
    assert of_consequence(unix_sockets=False, pyspark="4.0.1") == []


def test_brokers_are_not_tried_without_options() -> None:
    (brokers,) = (finding for finding in findings("0.2.0", [HEALTHY], None) if finding.subject == "brokers")
    assert "doctor(spark, options)" in brokers.found
