"""`kgroup checkpoint` leaves the deed to the Spark source, and shows what it found."""

import json
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from spark_kgroup.admin import source_deeds
from spark_kgroup.admin.cli import app
from spark_kgroup.errors import EnvironmentProblem

LINE = {
    "source": 0,
    "format": "kgroup",
    "topic": "t\x1b[2J",
    "partition": 1,
    "position": 5,
    "planned": 9,
    "seat": "g-0",
}
FOUND = {"batch": 0, "unfinished": None, "partitions": [LINE, {**LINE, "position": None, "seat": None}]}

asked: list[dict[str, Any]] = []


def deed(**wanted: Any) -> dict[str, Any]:
    """Stands for the Spark source's."""
    asked.append(wanted)
    if "source" not in wanted:
        return FOUND
    return {"batch": 3, "source": 1, "offset": {"t": {"0": 5}}, "backup": None if wanted["dry_run"] else "/c/kept"}


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    asked.clear()
    only = EntryPoint("deed", f"{__name__}:deed", "spark_kgroup.commands")
    monkeypatch.setattr(EntryPoint, "load", lambda _: deed)
    monkeypatch.setattr(source_deeds, "entry_points", lambda **_: EntryPoints([only]))


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["checkpoint", *words])


def test_a_checkpoint_is_a_table_or_one_object(tmp_path: Path) -> None:
    shown = run("show", str(tmp_path))
    assert shown.output.startswith("Last finished batch: 0. Unfinished: none.\n")
    words = [line.split() for line in shown.output.splitlines()[3:]]
    assert words == [["0", "kgroup", "t?[2J", "1", "5", "9", "g-0"], ["0", "kgroup", "t?[2J", "1", "-", "9", "-"]]
    assert json.loads(run("show", str(tmp_path), "--json").output) == FOUND
    assert asked == [{"folder": str(tmp_path), "settings": {}}] * 2


def test_an_export_says_what_it_did_or_would_do() -> None:
    done = run("export", "--checkpoint", "/c", "--source", "1")
    assert json.loads(done.stdout) == {"t": {"0": 5}}
    assert done.stderr == "That is the offset of source 1 in batch 3 now. The former file is kept: /c/kept\n"
    tried = run("export", "--checkpoint", "s3a://c", "--dry-run", "--conf", "a.b=c=d")
    assert tried.stderr == "That would be the offset of source 1 in batch 3. Nothing is changed.\n"
    assert asked == [
        {"folder": "/c", "settings": {}, "source": 1, "dry_run": False},
        {"folder": "s3a://c", "settings": {"a.b": "c=d"}, "source": None, "dry_run": True},
    ]


def test_without_the_spark_source_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_deeds, "entry_points", lambda **_: EntryPoints([]))
    problem = run("show", "/c").exception
    assert isinstance(problem, EnvironmentProblem)
    assert "pip install spark-kgroup" in str(problem)
