"""The packages of CI are locked: `conf/versions.txt` has one version of each, and the environments have those."""

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


def locked() -> dict[str, str]:
    lines = [line for line in (ROOT / "conf" / "versions.txt").read_text().splitlines() if not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}


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
    installed = {canonicalize_name(d.metadata["Name"]): d.version for d in distributions()}
    installed.pop("setuptools", None)  # venv brings one. The locked one builds PySpark, elsewhere
    assert {name: installed[name] for name in locked() if name in installed} == {
        name: version for name, version in locked().items() if name in installed
    }


def test_make_installs_nothing_but_what_is_locked() -> None:
    makefile = (ROOT / "Makefile").read_text()
    elsewhere = re.sub(r"(?ms)^lock:.*?(?=^\S)", "", makefile)  # locking itself looks for newer ones
    installs = [line for line in elsewhere.splitlines() if "pip install" in line]
    assert len(installs) >= 5
    assert all("$(PIP_ARGS)" in line or "--constraint $(VERSIONS)" in line for line in installs)
