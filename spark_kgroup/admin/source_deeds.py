"""Deeds of commands that the Spark source brings, under an entry point: this package knows no Spark. Their settings."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any, Final

from spark_kgroup.errors import EnvironmentProblem, OptionError

_ENTRY_POINTS: Final = "spark_kgroup.commands"


def find_deed(name: str) -> Any:
    """The function behind the entry point `name`. Raises EnvironmentProblem if the Spark source is not installed."""
    found = entry_points(group=_ENTRY_POINTS, name=name)
    if not found:
        raise EnvironmentProblem("The Spark source is not installed beside this command: pip install spark-kgroup.")
    return next(iter(found)).load()


def setting_from(given: str) -> tuple[str, str]:
    """A setting of `--conf`: its name and its value. Raises OptionError if it is none."""
    name, equals, value = given.partition("=")
    if not equals or not name.strip():
        raise OptionError(f"--conf {given!r} is no setting: write NAME=VALUE, such as spark.executor.cores=2.")
    return name.strip(), value
