"""`conf/mutants.toml`: which modules are mutated together, and which unit tests may fail for them."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
ROOMS_FILE = ROOT / "conf" / "mutants.toml"
PACKAGES = {"spark_kgroup": ROOT / "spark_kgroup", "pyspark_kgroup": ROOT / "datasource" / "pyspark_kgroup"}
"""Name by which a package is imported -> its folder."""


@dataclass(frozen=True)
class Room:
    """Modules (paths from the folder that holds their package), and the tests that are run for them."""

    name: str
    modules: tuple[str, ...]
    tests: tuple[str, ...]  # files and folders
    without: tuple[str, ...]  # ids of tests in these that cost too much for the few mutants they kill


@dataclass(frozen=True)
class Settings:
    """The contents of `conf/mutants.toml`."""

    killed_percent_min: float
    cpu_s_max: int
    rooms: tuple[Room, ...]


def read_settings(path: Path = ROOMS_FILE) -> Settings:
    """The contents of the file. A path in it that leads nowhere is an error, since modules and tests move."""
    given = tomllib.loads(path.read_text())
    rooms = tuple(_room(name, table) for name, table in given.pop("rooms").items())
    return Settings(rooms=rooms, **given)


def source_of(module: str) -> Path:
    """The file of a module that is named from its package on."""
    package, _, rest = module.partition("/")
    return PACKAGES[package] / rest


def _room(name: str, table: dict[str, Any]) -> Room:
    patterns, tests, without = (tuple(table.pop(key, ())) for key in ("modules", "tests", "without"))
    if table:
        raise ValueError(f"{ROOMS_FILE.name}: room {name} has no {', '.join(table)}")
    gone = [pattern for pattern in patterns if not _modules(pattern)]
    gone += [test for test in (*tests, *without) if not (ROOT / test.partition("::")[0]).exists()]
    if gone:
        raise ValueError(f"{ROOMS_FILE.name}: room {name} names what is not there: {', '.join(gone)}")
    return Room(name, tuple(module for pattern in patterns for module in _modules(pattern)), tests, without)


def _modules(pattern: str) -> list[str]:
    package, _, rest = pattern.partition("/")
    return sorted(f"{package}/{path.relative_to(PACKAGES[package])}" for path in PACKAGES[package].glob(rest))
