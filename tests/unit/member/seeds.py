"""Which worlds are simulated under a protocol: 340 in each run of the tests, more with `make simulate`.

One seed makes one world. The kinds of worlds take turns.
"""

import os
from collections.abc import Sequence
from typing import Final

_FIRST: Final = int(os.environ.get("KGROUP_SIMULATION_FIRST", "0"))
_COUNT: Final = int(os.environ.get("KGROUP_SIMULATION_SEEDS", "240"))


def seeds_of(kind: str, kinds: Sequence[str]) -> range:
    """The seeds of the worlds of one kind."""
    return range(_FIRST + (kinds.index(kind) - _FIRST) % len(kinds), _FIRST + _COUNT, len(kinds))
