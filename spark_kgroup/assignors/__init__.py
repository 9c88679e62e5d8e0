"""The assignors: pure functions from members and topics to an assignment, chosen by Kafka's names."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from spark_kgroup.assignors.contract import Assignor
from spark_kgroup.assignors.cooperative_sticky import CooperativeStickyAssignor
from spark_kgroup.assignors.range import RangeAssignor
from spark_kgroup.errors import OptionError

__all__ = ["NAMES", "assignor"]

_KNOWN: Final[MappingProxyType[str, Assignor]] = MappingProxyType(
    {known.name: known for known in (CooperativeStickyAssignor(), RangeAssignor())}
)

NAMES: Final[tuple[str, ...]] = tuple(sorted(_KNOWN))
"""Kafka's names of the assignors known here, sorted."""


def assignor(name: str) -> Assignor:
    """The assignor called `name`.

    Raises:
        OptionError: no assignor has this name.
    """
    try:
        return _KNOWN[name]
    except KeyError:
        raise OptionError(f"Unknown assignor {name!r}: use one of {', '.join(NAMES)}.") from None
