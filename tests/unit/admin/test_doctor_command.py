"""`kgroup doctor` reads its command line, leaves the examination to the Spark source, and says how it ended."""

import json
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from spark_kgroup.admin import source_deeds
from spark_kgroup.admin.cli import app
from spark_kgroup.errors import EnvironmentProblem, OptionError

HEALTHY = {"subject": "PySpark", "where": "executor 1", "found": "4.3.0, compiled", "verdict": "ok", "advice": ""}
FAILING = {**HEALTHY, "subject": "brokers", "found": "1 of 3 not reached: b:9092: no route", "verdict": "fails"}

examined: list[dict[str, Any]] = []
findings: list[dict[str, str]] = []


def examine(**wanted: Any) -> tuple[str, list[dict[str, str]]]:
    """Stands for the Spark source's."""
    examined.append(wanted)
    return "a table\x1b[2J", findings


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    examined.clear()
    findings[:] = [HEALTHY]
    only = EntryPoint("doctor", f"{__name__}:examine", "spark_kgroup.commands")
    monkeypatch.setattr(EntryPoint, "load", lambda _: examine)
    monkeypatch.setattr(source_deeds, "entry_points", lambda **_: EntryPoints([only]))


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["doctor", *words])


def test_without_words_the_session_has_the_user_s_settings_and_no_broker_is_tried() -> None:
    shown = run()
    assert shown.exit_code == 0
    assert examined == [{"remote": None, "settings": {}, "bootstrap_server": None, "security": {}, "tasks": None}]


def test_settings_and_brokers_reach_the_examination(tmp_path: Path) -> None:
    config = tmp_path / "client.properties"
    config.write_text("security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.username=a\nsasl.password=b=c\n")
    words = "--master local[2] --conf spark.a=b=c --conf spark.d= --bootstrap-server b:9092 --tasks 3"
    assert run(*words.split(), "--command-config", str(config)).exit_code == 0
    (wanted,) = examined
    assert wanted["settings"] == {"spark.a": "b=c", "spark.d": "", "spark.master": "local[2]"}
    assert wanted["tasks"] == 3
    assert wanted["bootstrap_server"] == "b:9092"
    assert wanted["security"]["security.protocol"] == "SASL_SSL"
    assert wanted["security"]["sasl.password"] == "b=c"


def test_a_table_for_people_steers_no_terminal() -> None:
    assert "a table" in run().stdout
    assert "\x1b" not in run().stdout


def test_json_for_programs_and_an_exit_code_that_says_whether_something_fails() -> None:
    shown = run("--json")
    assert (shown.exit_code, json.loads(shown.stdout)) == (0, [HEALTHY])
    findings.append(FAILING)
    shown = run("--json")
    assert (shown.exit_code, json.loads(shown.stdout)) == (1, [HEALTHY, FAILING])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--conf spark.executor.cores", r"--conf 'spark\.executor\.cores' is no setting: write NAME=VALUE"),
        ("--conf =2", "--conf '=2' is no setting"),
        ("--master yarn --remote sc://h", "--master starts a session here"),
        ("--command-config client.properties", "--command-config is for --bootstrap-server"),
        ("--bootstrap-server b:1 --command-config /missing", "--command-config '/missing': it cannot be read"),
    ],
)
def test_words_that_contradict_are_refused_before_a_session_starts(words: str, message: str) -> None:
    shown = run(*words.split())
    assert isinstance(shown.exception, OptionError)
    with pytest.raises(OptionError, match=message):
        raise shown.exception
    assert examined == []


def test_without_the_spark_source_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_deeds, "entry_points", lambda **_: EntryPoints())
    shown = run()
    assert isinstance(shown.exception, EnvironmentProblem)
    assert "pip install spark-kgroup" in str(shown.exception)
