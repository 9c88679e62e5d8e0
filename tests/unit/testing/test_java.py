"""Which Java is taken, and the error when there is none that will do."""

import stat
from pathlib import Path

import pytest

from spark_kgroup.errors import EnvironmentProblem
from spark_kgroup.testing.java import find_java


def fake_java(directory: Path, stderr: str, exit_code: int = 0) -> Path:
    directory.mkdir(parents=True)
    script = directory / "java"
    script.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{stderr}\nEND\nexit {exit_code}\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return script


@pytest.mark.parametrize(
    ("build", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment', 17),
        ('Picked up JAVA_TOOL_OPTIONS: -Dx="version 8"\nopenjdk version "21" 2023-09-19', 21),
        ('java version "25-ea" 2025-09-16', 25),
    ],
)
def test_the_java_of_java_home_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, build: str, version: int
) -> None:
    script = fake_java(tmp_path / "home" / "bin", build)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert (find_java().executable, find_java().version) == (script, version)


def test_a_java_in_path_is_taken_when_java_home_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = fake_java(tmp_path / "bin", 'openjdk version "17.0.1"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    assert find_java().executable == script


@pytest.mark.parametrize(
    ("build", "found"), [('openjdk version "11.0.22" 2024-01-16', "Java 11"), ('java version "1.8.0_292"', "Java 8")]
)
def test_too_old_a_java_is_named_with_the_needed_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, build: str, found: str
) -> None:
    script = fake_java(tmp_path / "bin", build)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(EnvironmentProblem) as problem:
        find_java()
    for part in (found, str(script), "Java 17 or later", "JAVA_HOME"):
        assert part in str(problem.value)


def test_no_java_at_all_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentProblem, match=r"(?s)Found no Java.*JAVA_HOME is not set.*Java 17 or later"):
        find_java()


def test_a_java_that_prints_no_version_is_reported_with_its_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(tmp_path / "bin", "The operation couldn't be completed.", exit_code=1)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(EnvironmentProblem, match="operation couldn't be completed"):
        find_java()
