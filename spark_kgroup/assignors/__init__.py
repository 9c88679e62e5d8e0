"""The assignors: pure functions from members and topics to an assignment, chosen by Kafka's names or module:Class."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import Final

from spark_kgroup.assignors.contract import Assignor
from spark_kgroup.assignors.custom import SPELLING, load_assignor
from spark_kgroup.errors import OptionError

__all__ = ["NAMES", "assignor", "assignors_called"]

_KNOWN: Final[MappingProxyType[str, str]] = MappingProxyType(
    {
        "cooperative-sticky": f"{__name__}.cooperative_sticky:CooperativeStickyAssignor",
        "range": f"{__name__}.range:RangeAssignor",
        "roundrobin": f"{__name__}.roundrobin:RoundRobinAssignor",
        "sticky": f"{__name__}.sticky:StickyAssignor",
    }
)
"""Imported on demand, so that a start does not load assignors that it does not use."""

NAMES: Final[tuple[str, ...]] = tuple(sorted(_KNOWN))
"""Kafka's names of the assignors known here, sorted."""


def assignor(name: str) -> Assignor:
    """The assignor called `name`: one of `NAMES`, or the module:Class of a custom one.

    Raises:
        OptionError: no assignor has this name.
    """
    if name in _KNOWN:
        return _known(name)
    if SPELLING.fullmatch(name):
        return load_assignor(name)
    raise OptionError(f"Unknown assignor {name!r}: use one of {', '.join(NAMES)}, or module:Class of your own.")


@cache
def _known(name: str) -> Assignor:
    module, _, of_module = _KNOWN[name].partition(":")
    made: Assignor = getattr(import_module(module), of_module)()
    return made


def assignors_called(names: Iterable[str]) -> tuple[Assignor, ...]:
    """The assignors of these names, as `assignor`.

    Raises:
        OptionError: no assignor has one of the names, or members could not tell two of them apart.
    """
    found = tuple(map(assignor, names))
    by_name = [each.name for each in found]
    if twice := sorted({name for name in by_name if by_name.count(name) > 1}):
        raise OptionError(
            f"Two of the assignors in `partition.assignment.strategy` have the same name, {twice[0]!r}: leave one out."
        )
    return found
