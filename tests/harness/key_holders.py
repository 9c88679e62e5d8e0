"""Queries of one application that hold its key at once: `python -P key_holders.py WHAT FOLDER PROCESSES`.

A process forks the queries. It imports the key alone: each process that a test spawned would import the test, which
takes it a second.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

from pyspark_kgroup.shared.application_key import ApplicationKey, find_key, hold_key

HOLDS_EACH = 4
"""How many queries each process of `keys_held` stands for."""

ROUNDS = 200


def keys_held(folder: Path, processes: int) -> list[str]:
    """The key that each query found, where queries start at once. They end without releasing it, as killed ones do."""
    return _in_processes("hold", folder, processes)


def keys_missed(folder: Path, processes: int) -> list[str]:
    """How often each process did not find the key that it held, where all hold and release keys many times."""
    return _in_processes("hold-and-release", folder, processes)


def _in_processes(what: str, folder: Path, processes: int) -> list[str]:
    command = [sys.executable, "-P", __file__, what, str(folder), str(processes)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout.split()


def held(folder: Path) -> ApplicationKey:
    """The key, which can be held."""
    key = hold_key(folder)
    assert key is not None
    return key


def _hold(folder: Path) -> str:
    return "\n".join(held(folder).value.hex() for _ in range(HOLDS_EACH))


def _hold_and_release(folder: Path) -> str:
    wrong = 0
    for _ in range(ROUNDS):
        key = held(folder)
        wrong += find_key(folder) != key.value
        key.release()
    return str(wrong)


_DEEDS: dict[str, Callable[[Path], str]] = {"hold": _hold, "hold-and-release": _hold_and_release}

if __name__ == "__main__":
    deed, where, count = _DEEDS[sys.argv[1]], Path(sys.argv[2]), int(sys.argv[3])
    with get_context("fork").Pool(count) as pool:
        print("\n".join(pool.map(deed, [where] * count, chunksize=1)))
