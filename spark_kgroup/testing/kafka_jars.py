"""Sets of jars, fetched once into the user's cache.

    <cache>/jars/<name>/              complete: its manifest.json was the last thing written
    <cache>/jars/.<name>.partial/     being fetched, or left by a fetch that was interrupted: the next one goes on there
    <cache>/jars/.<name>.lock         held (flock) while a set is checked and fetched

<cache> is $KGROUP_CACHE, else $XDG_CACHE_HOME/spark-kgroup, else ~/.cache/spark-kgroup.

A set that is pinned (`kafka-<version>.pins`, beside this module) is downloaded with pooch. It is taken only if it has
these very jars, from the cache as from a repository: no jar is trusted on first use. Any other set has the jars that
the Ivy that PySpark ships finds in the repository.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from spark_kgroup.errors import EnvironmentProblem
from spark_kgroup.testing.held_lock import held_lock
from spark_kgroup.testing.ivy import AS_IN_MAVEN, Coordinate, NoIvy, fetch_with_ivy
from spark_kgroup.testing.kafka_release import KAFKA_VERSION, KafkaRelease
from spark_kgroup.testing.pinned_jars import REPOSITORY, Pin, compute_sha256, download, read_pins
from spark_kgroup.testing.pinned_jars import write_pins as write_pins_of

PINNED: Final = ("3.2.3", "3.7.2", "3.9.2", "4.0.2", KAFKA_VERSION)
"""The releases of Apache Kafka whose jars are known: those that this package is tested with (`make test-versions`)."""

_MANIFEST: Final = "manifest.json"


def kafka_jars(version: str = KAFKA_VERSION) -> list[Path]:
    """Every jar of an Apache Kafka broker and of Kafka's command-line tools.

    Those of the releases in `PINNED` are pinned. Those of another release are taken as the repository gives them.

    Raises:
        EnvironmentProblem: see `fetch_jars`.
        OptionError: see `KafkaRelease`.
    """
    pins = read_pins(_pins_path(version)) if version in PINNED else ()
    try:
        return fetch_jars(_kafka(version), f"kafka-{version}", pins=pins)
    except NoIvy as problem:
        raise NoIvy(f"{problem}, or run one whose jars are known: Kafka {', '.join(PINNED)}.") from None


def write_pins() -> None:
    """Pin the jars that Ivy finds for each release in `PINNED`, in place of the present pins (`make lock`)."""
    for version in PINNED:
        with TemporaryDirectory() as folder:
            name, repository = f"kafka-{version}", os.environ.get(REPOSITORY)
            fetch_with_ivy(_kafka(version), Path(folder), name, repository, AS_IN_MAVEN)
            write_pins_of(_pins_path(version), Path(folder, "jars"))


def _pins_path(version: str) -> Path:
    return Path(__file__).with_name(f"kafka-{version}.pins")


def _kafka(version: str) -> tuple[Coordinate, ...]:
    return (
        Coordinate("org.apache.kafka", "kafka_2.13", version),
        Coordinate("org.apache.kafka", "kafka-tools", version, transitive=False),
        KafkaRelease(version).logging.binding,
    )


def fetch_jars(
    coordinates: Sequence[Coordinate],
    name: str,
    *,
    repository: str | None = None,
    cache: Path | None = None,
    pins: Sequence[Pin] = (),
) -> list[Path]:
    """The jars of `coordinates`, from the cache if they are there and whole, else fetched into it.

    Args:
        coordinates: the artifacts to fetch. A changed list under the same name is fetched anew, unless there are pins.
        name: of the set, and of its directory in the cache.
        repository: URL of a Maven repository, or None for $KGROUP_MAVEN_REPOSITORY, else Maven Central.
        cache: None for `cache_directory()`.
        pins: exactly the jars that the set has, or empty to take those that Ivy finds in the repository.

    Raises:
        EnvironmentProblem: the repository cannot be reached, lacks an artifact, or gives other jars than `pins` says,
            or there is no pooch for `pins`, or no Java or no PySpark where there are no pins.
    """
    root = (cache or cache_directory()) / "jars"
    source = repository or os.environ.get(REPOSITORY)
    partial = root / f".{name}.partial"
    try:
        root.mkdir(parents=True, exist_ok=True)
        with held_lock(root / f".{name}.lock", f"fetches {name}"):
            jars = _whole(root / name, coordinates, pins)
            if jars is None:
                if pins:
                    download(pins, partial / "jars", name, source)
                else:
                    fetch_with_ivy(coordinates, partial, name, source)
                jars = _take_over(partial, root / name, coordinates)
    except OSError as problem:
        raise EnvironmentProblem(
            f"Cannot keep jars in {root}: {problem}. KGROUP_CACHE names another place."
        ) from problem
    return jars


def _take_over(partial: Path, complete: Path, coordinates: Sequence[Coordinate]) -> list[Path]:
    """Turn the fetched jars into the complete set: its manifest is written, then it takes its name in one step."""
    fetched = partial / "jars"
    _write_manifest(fetched, coordinates)
    # The set that is there is not whole, and a rename does not replace a folder that holds files.
    if complete.exists():
        shutil.rmtree(complete)
    fetched.rename(complete)
    shutil.rmtree(partial)
    return sorted(complete.glob("*.jar"))


def cache_directory() -> Path:
    """Where downloads are kept for this user."""
    own = os.environ.get("KGROUP_CACHE")
    if own:
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "spark-kgroup"


def _whole(directory: Path, coordinates: Sequence[Coordinate], pins: Sequence[Pin]) -> list[Path] | None:
    """The jars in `directory` if they are exactly those of its manifest and the pins, byte for byte, else None."""
    try:
        manifest = json.loads((directory / _MANIFEST).read_text())
        if not pins and manifest["coordinates"] != _as_json(coordinates):
            return None
        expected = {jar["name"]: (jar["size_bytes"], jar["sha256"]) for jar in manifest["jars"]}
    except (OSError, ValueError, KeyError, TypeError):
        return None
    jars = sorted(directory.glob("*.jar"))
    found = {jar.name: (jar.stat().st_size, compute_sha256(jar)) for jar in jars}
    pinned = {pin.jar: (pin.size_bytes, pin.sha256) for pin in pins}
    return jars if found == expected == (pinned or expected) else None


def _write_manifest(directory: Path, coordinates: Sequence[Coordinate]) -> None:
    jars = [
        {"name": jar.name, "size_bytes": jar.stat().st_size, "sha256": compute_sha256(jar)}
        for jar in sorted(directory.glob("*.jar"))
    ]
    text = json.dumps({"coordinates": _as_json(coordinates), "jars": jars}, indent=1)
    (directory / _MANIFEST).write_text(text)


def _as_json(coordinates: Sequence[Coordinate]) -> list[list[object]]:
    return [list(coordinate) for coordinate in coordinates]
