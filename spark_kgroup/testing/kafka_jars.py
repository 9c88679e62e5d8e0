"""Sets of jars, fetched once into the user's cache through the Ivy that PySpark ships.

    <cache>/jars/<name>/              complete: its manifest.json was the last thing written
    <cache>/jars/.<name>.partial/     being fetched, or left by a fetch that was interrupted: the next one goes on there
    <cache>/jars/.<name>.lock         held (flock) while a set is checked and fetched

<cache> is $KGROUP_CACHE, else $XDG_CACHE_HOME/spark-kgroup, else ~/.cache/spark-kgroup.

A set that is pinned (`kafka-<version>.sha256`, beside this module) is taken only if it has these very jars, from the
cache as from a repository: nothing is trusted on first use.

PySpark is looked for, not imported. How Java reaches the repository (proxy, trusted certificates) is Java's affair:
its defaults hold, and JAVA_TOOL_OPTIONS is inherited.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Timer
from typing import Final, NamedTuple
from xml.sax.saxutils import quoteattr

from spark_kgroup.errors import EnvironmentProblem
from spark_kgroup.testing.fetch_progress import FetchProgress, fetch_progress
from spark_kgroup.testing.java import Java, find_java
from spark_kgroup.testing.watchdog import ProcessGuard

KAFKA_VERSION: Final = "4.3.1"
"""The Apache Kafka release that is run unless another is named."""

_LOG4J_VERSION: Final = "2.25.4"
"""What kafka_2.13 4.3.1 depends on; the slf4j binding must be of the same release."""

_ATTEMPTS: Final = 2
"""A repository that fails twice in a row is down or unreachable."""

_FETCH_TIMEOUT_S: Final = 900
"""One attempt. Kafka's set (47 jars, 45 MB) took 27 to 46 s here; this allows a 20 times slower line."""

_LAST_LINES_MAX: Final = 15
"""How many of Ivy's lines an error repeats."""

_JARS_NAMED_MAX: Final = 5
"""How many wrong jars an error names; a mirror of another Kafka gives 40."""

_REPOSITORY: Final = "KGROUP_MAVEN_REPOSITORY"
_MANIFEST: Final = "manifest.json"


class Coordinate(NamedTuple):
    """One artifact in a Maven repository, with or without what it depends on at run time."""

    organisation: str
    module: str
    revision: str
    transitive: bool = True


def kafka_jars(version: str = KAFKA_VERSION) -> list[Path]:
    """Every jar of an Apache Kafka broker and of Kafka's command-line tools (4.0 or later).

    Those of `KAFKA_VERSION` are pinned; those of another version are what the repository gives.

    Raises:
        EnvironmentProblem: see `fetch_jars`.
    """
    return fetch_jars(_kafka(version), f"kafka-{version}", sha256=_pinned_sha256(version))


def write_pins() -> None:
    """Fetch the jars of `KAFKA_VERSION` anew, whatever is pinned, and pin what comes (`make lock`)."""
    with TemporaryDirectory() as cache:
        jars = fetch_jars(_kafka(KAFKA_VERSION), f"kafka-{KAFKA_VERSION}", cache=Path(cache))
        _pins_of(KAFKA_VERSION).write_text("".join(f"{_sha256(jar)}  {jar.name}\n" for jar in jars))


def _pins_of(version: str) -> Path:
    return Path(__file__).with_name(f"kafka-{version}.sha256")


def _pinned_sha256(version: str) -> dict[str, str] | None:
    """Jar -> SHA-256 of the set of this Kafka, None if it is not pinned. The file is one that `sha256sum -c` reads."""
    if version != KAFKA_VERSION:
        return None
    return {jar: digest for digest, jar in map(str.split, _pins_of(version).read_text().splitlines())}


def _kafka(version: str) -> tuple[Coordinate, ...]:
    return (
        Coordinate("org.apache.kafka", "kafka_2.13", version),
        Coordinate("org.apache.kafka", "kafka-tools", version, transitive=False),
        Coordinate("org.apache.logging.log4j", "log4j-slf4j-impl", _LOG4J_VERSION, transitive=False),
    )


def fetch_jars(
    coordinates: Sequence[Coordinate],
    name: str,
    *,
    repository: str | None = None,
    cache: Path | None = None,
    sha256: Mapping[str, str] | None = None,
) -> list[Path]:
    """The jars of `coordinates`, from the cache if they are there and whole, else fetched into it.

    Args:
        coordinates: what to fetch; a changed list under the same name is fetched anew.
        name: of the set, and of its directory in the cache.
        repository: URL of a Maven repository; None for $KGROUP_MAVEN_REPOSITORY, else Maven Central.
        cache: None for `cache_directory()`.
        sha256: jar -> its hash, for exactly the jars that the set has; None to take what the repository gives.

    Raises:
        EnvironmentProblem: no Java, no PySpark, or the repository cannot be reached, lacks an artifact, or gives other
            jars than `sha256` says.
    """
    root = (cache or cache_directory()) / "jars"
    source = repository or os.environ.get(_REPOSITORY)
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _hold_lock(root / f".{name}.lock"):
            jars = _whole(root / name, coordinates, sha256)
            if jars is None:
                _fetch(coordinates, root / f".{name}.partial", name, source)
                _refuse_others(root / f".{name}.partial", name, source, sha256)
                jars = _take_over(root / f".{name}.partial", root / name, coordinates)
    except OSError as problem:
        raise EnvironmentProblem(
            f"Cannot keep jars in {root}: {problem}. KGROUP_CACHE names another place."
        ) from problem
    return jars


def _take_over(partial: Path, complete: Path, coordinates: Sequence[Coordinate]) -> list[Path]:
    """Turn what was fetched into the complete set: its manifest is written, then it takes its name in one step."""
    fetched = partial / "jars"
    _write_manifest(fetched, coordinates)
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


@contextmanager
def _hold_lock(path: Path) -> Iterator[None]:
    """Hold an advisory lock that ends with this process."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _refuse_others(partial: Path, name: str, repository: str | None, sha256: Mapping[str, str] | None) -> None:
    """Nothing of a fetched set is kept if one of its jars is not the pinned one, is missing, or is one too many."""
    if sha256 is None:
        return
    found = {jar.name: _sha256(jar) for jar in (partial / "jars").glob("*.jar")}
    wrong = [
        f"{jar}: SHA-256 {found.get(jar, 'of no jar')}, expected {sha256.get(jar, 'no such jar')}"
        for jar in sorted(found.keys() | sha256.keys())
        if found.get(jar) != sha256.get(jar)
    ]
    if wrong:
        shutil.rmtree(partial)
        more = [f"and {len(wrong) - _JARS_NAMED_MAX} more"] if len(wrong) > _JARS_NAMED_MAX else []
        differences = "\n  ".join(wrong[:_JARS_NAMED_MAX] + more)
        raise EnvironmentProblem(
            f"{repository or 'Maven Central'} gives other jars of {name} than this version was tested with; none was "
            f"kept. Ask whoever runs that repository, or name another in {_REPOSITORY}.\n  {differences}"
        )


def _whole(directory: Path, coordinates: Sequence[Coordinate], sha256: Mapping[str, str] | None) -> list[Path] | None:
    """The jars in `directory` if they are exactly what its manifest and the pins say, byte for byte, else None."""
    try:
        manifest = json.loads((directory / _MANIFEST).read_text())
        if manifest["coordinates"] != _as_json(coordinates):
            return None
        expected = {jar["name"]: (jar["size_bytes"], jar["sha256"]) for jar in manifest["jars"]}
    except (OSError, ValueError, KeyError, TypeError):
        return None
    jars = sorted(directory.glob("*.jar"))
    found = {jar.name: (jar.stat().st_size, _sha256(jar)) for jar in jars}
    pinned = sha256 is None or sha256 == {jar: digest for jar, (_, digest) in found.items()}
    return jars if found == expected and pinned else None


def _write_manifest(directory: Path, coordinates: Sequence[Coordinate]) -> None:
    jars = [
        {"name": jar.name, "size_bytes": jar.stat().st_size, "sha256": _sha256(jar)}
        for jar in sorted(directory.glob("*.jar"))
    ]
    text = json.dumps({"coordinates": _as_json(coordinates), "jars": jars}, indent=1)
    (directory / _MANIFEST).write_text(text)


def _as_json(coordinates: Sequence[Coordinate]) -> list[list[object]]:
    return [list(coordinate) for coordinate in coordinates]


def _sha256(jar: Path) -> str:
    with jar.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fetch(coordinates: Sequence[Coordinate], partial: Path, name: str, repository: str | None) -> None:
    """Leave the jars in `partial`/jars, trying again from nothing if the first attempt fails."""
    java, ivy = find_java(), _ivy_jar()
    last_lines: list[str] = []
    for attempt in range(1, _ATTEMPTS + 1):
        shutil.rmtree(partial / "jars", ignore_errors=True)
        (partial / "jars").mkdir(parents=True)
        with fetch_progress(name) as progress:
            succeeded, last_lines = _run_ivy(java, ivy, coordinates, partial, repository, progress)
        if succeeded:
            return
        if attempt < _ATTEMPTS:
            shutil.rmtree(partial)
    words = "\n  ".join(last_lines)
    raise EnvironmentProblem(
        f"Could not fetch the jars of {name} ({_ATTEMPTS} attempts). Check that Java reaches "
        f"{repository or 'Maven Central'} (proxy and certificates: JAVA_TOOL_OPTIONS), or name a mirror in "
        f"{_REPOSITORY}. Ivy's last lines:\n  {words}"
    )


def _ivy_jar() -> Path:
    spec = find_spec("pyspark")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        found = sorted(Path(location).glob("jars/ivy-*.jar"))
        if found:
            return found[-1]
    raise EnvironmentProblem(
        "Fetching jars needs the Ivy that PySpark ships, and PySpark is not installed here: "
        "pip install 'spark-kgroup[spark]'."
    )


def _run_ivy(
    java: Java,
    ivy: Path,
    coordinates: Sequence[Coordinate],
    partial: Path,
    repository: str | None,
    progress: FetchProgress,
) -> tuple[bool, list[str]]:
    """Whether Ivy fetched everything, and its last lines."""
    settings, wanted = partial / "ivysettings.xml", partial / "ivy.xml"
    settings.write_text(_settings_xml(partial / "ivy", repository))
    wanted.write_text(_ivy_xml(coordinates))
    pattern = partial / "jars" / "[artifact]-[revision](-[classifier]).[ext]"
    command: list[str | Path] = [java.executable, f"-Divy.home={partial / 'ivy'}", "-jar", ivy]
    command += ["-settings", settings, "-ivy", wanted, "-confs", "default", "-types", "jar", "bundle"]
    guard = ProcessGuard()
    try:
        process = guard.popen([*command, "-retrieve", pattern], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        timer = Timer(_FETCH_TIMEOUT_S, process.kill)
        timer.start()
        last_lines: deque[str] = deque(maxlen=_LAST_LINES_MAX)
        assert process.stdout is not None
        with process.stdout:
            for raw in process.stdout:
                line = raw.decode(errors="replace").strip()
                progress.saw(line)
                if line:
                    last_lines.append(line)
        succeeded = process.wait() == 0
        timer.cancel()
    finally:
        guard.close()
    return succeeded, list(last_lines)


def _settings_xml(cache: Path, repository: str | None) -> str:
    root = f" root={quoteattr(repository)}" if repository else ""
    return (
        f'<ivysettings><settings defaultResolver="repository"/><caches defaultCacheDir={quoteattr(str(cache))}/>'
        f'<resolvers><ibiblio name="repository" m2compatible="true"{root}/></resolvers></ivysettings>'
    )


def _ivy_xml(coordinates: Sequence[Coordinate]) -> str:
    """An Ivy module that depends on `coordinates`; "master" is an artifact itself, "runtime" what it needs."""
    dependencies = "".join(
        f"<dependency org={quoteattr(wanted.organisation)} name={quoteattr(wanted.module)} "
        f'rev={quoteattr(wanted.revision)} transitive="{str(wanted.transitive).lower()}" '
        'conf="default->master,runtime"/>'
        for wanted in coordinates
    )
    return (
        '<ivy-module version="2.0"><info organisation="kgroup" module="jars"/>'
        f'<configurations><conf name="default"/></configurations><dependencies>{dependencies}</dependencies>'
        "</ivy-module>"
    )
