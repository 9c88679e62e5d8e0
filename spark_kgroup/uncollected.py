"""Code that makes very many values and no cycles, without Python's search for cycles meanwhile.

The collector looks at all values again and again while their number grows: of a million partitions that took more than
half of the time of an assignment.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """No search for cycles in this process until the end, unless two threads overlap: then until the first ends.

    Also a decorator. Objects that are in no cycle are freed as ever.
    """
    # An outer use, or the user, has disabled it, and enables it again.
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
