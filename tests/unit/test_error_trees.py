"""The errors are drawn where they are defined: whole, and as they inherit."""

import inspect
import re
from types import ModuleType

import pytest

from pyspark_kgroup import errors as of_the_source
from spark_kgroup import errors as of_the_engine
from spark_kgroup.errors import KgroupError

STEP = 4
"""Characters by which the drawing goes in for each step down."""


def drawn(module: ModuleType) -> dict[str, str | None]:
    """Class -> its parent in the drawing."""
    path: list[str] = []
    parents: dict[str, str | None] = {}
    for line in (module.__doc__ or "").splitlines():
        found = re.match(r"    ((?:│   )*)(?:[├└]── )?([A-Z]\w+)(?: {2,}\S.*)?$", line)
        if found is None:
            continue
        depth = len(found[1]) // STEP + ("── " in line)
        path = [*path[:depth], found[2]]
        parents[found[2]] = path[depth - 1] if depth else None
    return parents


def defined(module: ModuleType) -> dict[str, str | None]:
    """As `drawn`, by the classes themselves. The roots are `KgroupError` and the errors that the module imports."""
    classes = (kind for _, kind in inspect.getmembers(module, inspect.isclass) if kind.__module__ == module.__name__)
    parents = {kind: kind.__bases__[0] for kind in classes if issubclass(kind, KgroupError) and kind is not KgroupError}
    roots = {parent for parent in parents.values() if parent not in parents}
    return {kind.__name__: parent.__name__ for kind, parent in parents.items()} | {
        root.__name__: None for root in roots
    }


@pytest.mark.parametrize("module", [of_the_engine, of_the_source], ids=lambda module: module.__name__)
def test_every_error_is_drawn_below_the_one_that_it_inherits(module: ModuleType) -> None:
    assert drawn(module) == defined(module)
