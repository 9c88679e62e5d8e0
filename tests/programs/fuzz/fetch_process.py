"""One process that reads answers to Fetch: `python -m fuzz.fetch_process SEED START STOP STEP MARK`.

It prints its findings on stdout, in JSON, and keeps in the file MARK how many answers it has begun.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from fuzz.fetches import Fetches
from fuzz.mark import Mark
from fuzz.run import MEMORY_RISE_BYTES_MAX, WARM_UP, Findings, resident_bytes
from pyspark_kgroup.limits import DECOMPRESSED_BYTES_MAX

ADDRESS_SPACE_BYTES = 4 << 30
"""Beyond it a process gets no memory: a frame may claim 100 MB, and a batch become as much."""

PEAK_RISE_BYTES_MAX = 2 * DECOMPRESSED_BYTES_MAX + MEMORY_RISE_BYTES_MAX
"""The memory that one answer may take while it is read: a batch may become so large, and its pieces are joined."""


def read(seed: int, numbers: Sequence[int], on_begin: Callable[[], None] = lambda: None) -> Findings:
    """Read these answers of the seed."""
    fetches, found, warm_bytes = Fetches(seed), Findings(seed), 0
    for n, number in enumerate(numbers):
        on_begin()
        began_s = time.monotonic()
        found.messages += 1
        try:
            found.outcomes[fetches.take(number)] += 1
        except Exception as error:  # noqa: BLE001 -- every one is a finding
            found.add(number, "fetches", error)
        found.slowest_s = max(found.slowest_s, time.monotonic() - began_s)
        if n == int(len(numbers) * WARM_UP):
            warm_bytes = resident_bytes()
    found.memory_rise_bytes = resident_bytes() - warm_bytes
    if _peak_bytes() - warm_bytes > PEAK_RISE_BYTES_MAX:
        found.add(numbers[-1], "fetches", MemoryError(f"{_peak_bytes() - warm_bytes:,} bytes more at once"))
    return found


def _peak_bytes() -> int:
    """The peak of this program's memory. ru_maxrss would be at least that of the process that started it."""
    (line,) = (one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def main() -> None:
    seed, start, stop, step = map(int, sys.argv[1:5])
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, resource.RLIM_INFINITY))
    found = read(seed, range(start, stop, step), Mark(Path(sys.argv[5])).begin)
    wrong = [[what, count, found.first[what]] for what, count in found.wrong.items()]
    report = {"messages": found.messages, "slowest_s": found.slowest_s, "rise_bytes": found.memory_rise_bytes}
    print(json.dumps({**report, "outcomes": found.outcomes, "wrong": wrong}))


if __name__ == "__main__":
    main()
