"""A program is told which Python to choose, and when Spark would start another Python than its own."""

import sys
from importlib.metadata import Distribution, PackageNotFoundError
from pathlib import Path

import pytest

import pyspark_kgroup
from pyspark_kgroup.driver.startup import spark_python
from pyspark_kgroup.driver.startup.spark_python import other_python


def environment(folder: Path, name: str) -> Path:
    """The folder of executables of a virtual environment, which all link to the one Python."""
    made = folder / name / "bin"
    made.mkdir(parents=True)
    (made / "python3").symlink_to(Path(sys.executable).resolve())
    (made.parent / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).resolve().parent}\n")
    return made


def script(folder: Path, name: str, does: str) -> Path:
    """The folder of a `python3` that is a shell script, as those of pyenv and asdf are."""
    made = folder / name
    made.mkdir()
    shim = made / "python3"
    shim.write_text(f"#!/bin/sh\n{does}\n")
    shim.chmod(0o755)
    return made


def test_an_environment_that_was_not_activated_is_named_with_the_python_that_spark_starts(tmp_path: Path) -> None:
    ours, others = environment(tmp_path, "ours"), environment(tmp_path, "others")
    assert other_python({"PATH": str(others)}, str(ours.parent)) == str(others / "python3")
    assert other_python({"PATH": f"{ours}:{others}"}, str(ours.parent)) is None


def test_another_path_to_the_same_environment_makes_no_warning(tmp_path: Path) -> None:
    """1. pyenv puts its shims first on PATH, 2. Spark starts the shim, 3. that runs the Python that runs this."""
    ours, others = environment(tmp_path, "ours"), environment(tmp_path, "others")
    shims = script(tmp_path, "shims", f'exec {ours}/python3 "$@"')
    assert other_python({"PATH": str(shims)}, str(ours.parent)) is None
    assert other_python({"PATH": str(shims)}, str(others.parent)) == str(shims / "python3")
    (tmp_path / "link").symlink_to(ours.parent)
    assert other_python({"PATH": str(ours)}, str(tmp_path / "link")) is None


@pytest.mark.parametrize("does", ["exit 3", "sleep 60", "exec /no/such/python"])
def test_a_python_that_does_not_run_is_reported_within_a_bound(
    tmp_path: Path, does: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_python, "_START_S", 0.5)
    broken = script(tmp_path, "broken", does)
    assert other_python({"PATH": f"{broken}:/bin"}, str(tmp_path)) == str(broken / "python3")


@pytest.mark.parametrize(
    "name",
    [
        "PYSPARK_PYTHON",
        "PYSPARK_DRIVER_PYTHON",
        "PYSPARK_GATEWAY_PORT",
        "SPARK_REMOTE",
        "SPARK_CONNECT_MODE_ENABLED",
    ],
)
def test_a_python_that_was_chosen_is_accepted(tmp_path: Path, name: str) -> None:
    others = environment(tmp_path, "others")
    assert other_python({"PATH": str(others), name: "x"}, str(tmp_path)) is None


def test_a_path_without_any_python_is_named_as_such(tmp_path: Path) -> None:
    assert other_python({"PATH": str(tmp_path)}, "/env") == "no python3 on PATH"
    assert other_python({}, "/env") == "no python3 on PATH"


# ------------------------------------------------------------------------------------ which one to choose


def installed(folder: Path, script: str | None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of `kgroup-python` in an installation of the package that is first on the path of this process."""
    information = folder / "lib" / "python3.11" / "site-packages" / "spark_kgroup-9.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.4\nName: spark-kgroup\nVersion: 9\n")
    record = "" if script is None else "../../../bin/kgroup-python,,\n"
    (information / "RECORD").write_text(f"{record}spark_kgroup-9.dist-info/METADATA,,\n")
    made = folder / "bin" / "kgroup-python"
    if script is not None:
        made.parent.mkdir()
        made.write_text(f"#!/bin/sh\n{script}\n")
        made.chmod(0o755)
    monkeypatch.syspath_prepend(str(information.parent))
    return made


def test_the_script_where_it_was_installed_is_the_python_to_choose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = installed(tmp_path, f'exec {sys.executable} "$@"', monkeypatch)
    assert pyspark_kgroup.python() == str(made)


@pytest.mark.parametrize("does", [None, "exit 127", "echo /another; echo 3.11", f"echo {sys.prefix}; echo 3.9"])
def test_a_script_that_is_missing_or_is_of_another_python_is_not(
    tmp_path: Path, does: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(tmp_path, does, monkeypatch)
    assert pyspark_kgroup.python() == sys.executable


def test_a_package_that_is_on_the_path_without_being_installed_has_no_script(monkeypatch: pytest.MonkeyPatch) -> None:
    """`addArtifacts`, `--py-files`: there is no RECORD of an installer."""

    def none(name: str) -> Distribution:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(spark_python, "files", none)
    assert pyspark_kgroup.python() == sys.executable
