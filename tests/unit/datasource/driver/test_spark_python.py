"""A program is told when Spark would start another Python than its own."""

from pathlib import Path

import pytest

from pyspark_kgroup.driver.spark_python import other_python


def environment(folder: Path, name: str) -> Path:
    """A folder of executables with a link to the one Python that all environments share."""
    made = folder / name / "bin"
    made.mkdir(parents=True)
    shared = folder / "shared-python"
    shared.touch(mode=0o755)
    (made / "python3").symlink_to(shared)
    return made


def test_an_environment_that_was_not_activated_is_named_with_the_python_that_spark_starts(tmp_path: Path) -> None:
    ours, others = environment(tmp_path, "ours"), environment(tmp_path, "others")
    assert other_python({"PATH": str(others)}, str(ours / "python3")) == str(others / "python3")
    assert other_python({"PATH": f"{ours}:{others}"}, str(ours / "python")) is None


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
    assert other_python({"PATH": str(others), name: "x"}, str(tmp_path / "python3")) is None


def test_a_path_without_any_python_is_named_as_such(tmp_path: Path) -> None:
    assert other_python({"PATH": str(tmp_path)}, "/env/bin/python3") == "no python3 on PATH"
    assert other_python({}, "/env/bin/python3") == "no python3 on PATH"
