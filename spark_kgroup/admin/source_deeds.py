"""Deeds of commands that the Spark source brings, under an entry point: this package knows no Spark."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any, Final

from spark_kgroup.errors import EnvironmentProblem

_ENTRY_POINTS: Final = "spark_kgroup.commands"


def find_deed(name: str) -> Any:
    """The function behind the entry point `name`. Raises EnvironmentProblem if the Spark source is not installed."""
    found = entry_points(group=_ENTRY_POINTS, name=name)
    if not found:
        raise EnvironmentProblem("The Spark source is not installed beside this command: pip install spark-kgroup.")
    return next(iter(found)).load()
