"""The packages of CI are locked: `conf/versions.txt` has one version of each, with hashes, and environments have it."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


LOCKS = [ROOT / "conf" / "versions.txt", *sorted((ROOT / "conf" / "pyspark").glob("*.txt"))]
LOCKED = re.compile(r"([A-Za-z0-9._-]+)==(\S+) \\\n((?: {4}--hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)")


def locked(lock: Path = LOCKS[0]) -> dict[str, str]:
    return {canonicalize_name(name): version for name, version, _ in LOCKED.findall(lock.read_text())}


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_each_line_of_a_lock_is_a_package_with_hashes(lock: Path) -> None:
    without_head = re.sub(r"(?m)^#.*\n", "", lock.read_text())
    assert LOCKED.sub("", without_head) == ""
    assert locked(lock)


def test_each_pyspark_that_is_tested_is_locked_with_hashes() -> None:
    (releases,) = re.findall(r"(?m)^SPARK_VERSIONS := (.*)$", (ROOT / "Makefile").read_text())
    assert {lock.stem: locked(lock)["pyspark"] for lock in LOCKS[1:]} == {each: each for each in releases.split()}


def declared() -> list[Requirement]:
    project = PYPROJECT["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    lists += [PYPROJECT["build-system"]["requires"], *PYPROJECT["dependency-groups"].values()]
    return [Requirement(text) for texts in lists for text in texts]


@pytest.mark.parametrize("wanted", declared(), ids=str)
def test_a_declared_requirement_is_locked_within_its_bounds(wanted: Requirement) -> None:
    if wanted.name == "pyspark":  # each Spark environment names its own
        assert "pyspark" not in locked()
    else:
        assert wanted.specifier.contains(locked()[canonicalize_name(wanted.name)])


def test_development_has_the_pyspark_that_the_spark_tests_have_unless_told_otherwise() -> None:
    (default,) = re.findall(r"(?m)^SPARK +\?= (\S+)$", (ROOT / "Makefile").read_text())
    assert f"pyspark=={default}" in PYPROJECT["dependency-groups"]["dev"]


def test_this_environment_has_the_locked_versions() -> None:
    installed = {str(canonicalize_name(d.metadata["Name"])): d.version for d in distributions()}
    installed.pop("setuptools", None)  # venv brings one. The locked one builds PySpark, elsewhere
    installed.pop("spark-kgroup", None)
    every = {**locked(), **locked(ROOT / "conf" / "pyspark" / f"{installed['pyspark']}.txt")}
    assert installed == {name: every.get(name) for name in installed}


def test_make_installs_locked_packages_only() -> None:
    makefile = (ROOT / "Makefile").read_text()
    elsewhere = re.sub(r"(?ms)^lock:.*?(?=^\S)", "", makefile)  # locking itself looks for newer ones
    installs = [line for line in elsewhere.splitlines() if "pip install" in line]
    assert len(installs) >= 5
    assert all(re.search(r"\$\((PIP_ARGS|HASHED|PIP_LINES)\)", line) for line in installs)
