"""Jars and all that they need, found and fetched by the Ivy that PySpark ships.

PySpark is looked for, not imported. How Java reaches the repository (proxy, trusted certificates) is Java's affair:
its defaults hold, and JAVA_TOOL_OPTIONS is inherited.
"""

from __future__ import annotations

import shutil
import subprocess
from collections import deque
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from threading import Timer
from typing import Final, NamedTuple
from xml.sax.saxutils import quoteattr

from spark_kgroup.errors import EnvironmentProblem
from spark_kgroup.testing.java import Java, find_java
from spark_kgroup.testing.pinned_jars import REPOSITORY, without_credentials
from spark_kgroup.testing.progress import IvyProgress, ivy_progress
from spark_kgroup.testing.watchdog import ProcessGuard

FLAT: Final = ""
"""All jars in one folder."""

AS_IN_MAVEN: Final = "[orgPath]/[module]/[revision]/"
"""Each jar where a Maven repository has it."""

_ATTEMPTS: Final = 2
"""A repository that fails twice in a row is down or unreachable."""

_FETCH_TIMEOUT_S: Final = 900
"""One attempt. Kafka's set (47 jars, 45 MB) took 27 to 46 s here. This allows a 20 times slower line."""

_LAST_LINES_MAX: Final = 15
"""How many of Ivy's lines an error repeats."""


class Coordinate(NamedTuple):
    """One artifact in a Maven repository, with or without the artifacts that it depends on at run time."""

    organisation: str
    module: str
    revision: str
    transitive: bool = True


class NoIvy(EnvironmentProblem):
    """PySpark is not installed."""


def fetch_with_ivy(
    coordinates: Sequence[Coordinate], partial: Path, name: str, repository: str | None, folders: str = FLAT
) -> None:
    """Leave the jars in `partial`/jars, trying again from the beginning if the first attempt fails.

    Raises:
        EnvironmentProblem: no Java, no PySpark, or the repository cannot be reached or lacks an artifact.
    """
    java, ivy = find_java(), _ivy_jar(name)
    last_lines: list[str] = []
    for attempt in range(1, _ATTEMPTS + 1):
        shutil.rmtree(partial / "jars", ignore_errors=True)
        (partial / "jars").mkdir(parents=True)
        _write_settings(coordinates, partial, repository)
        with ivy_progress(name) as progress:
            succeeded, last_lines = _run(_command(java, ivy, partial, folders), progress)
        if succeeded:
            return
        if attempt < _ATTEMPTS:
            shutil.rmtree(partial)
    words = "\n  ".join(last_lines)
    message = (
        f"Could not fetch the jars of {name} ({_ATTEMPTS} attempts). Check that Java reaches "
        f"{repository or 'Maven Central'} (proxy and certificates: JAVA_TOOL_OPTIONS), or name a mirror in "
        f"{REPOSITORY}. Ivy's last lines:\n  {words}"
    )
    raise EnvironmentProblem(without_credentials(message))


def _ivy_jar(name: str) -> Path:
    spec = find_spec("pyspark")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        found = sorted(Path(location).glob("jars/ivy-*.jar"))
        if found:
            return found[-1]
    raise NoIvy(
        f"{name} is not pinned: the Ivy that PySpark ships finds its dependencies, and PySpark is not installed here: "
        "pip install 'spark-kgroup[spark]'"
    )


def _write_settings(coordinates: Sequence[Coordinate], partial: Path, repository: str | None) -> None:
    (partial / "ivysettings.xml").write_text(_settings_xml(partial / "ivy", repository))
    (partial / "ivy.xml").write_text(_ivy_xml(coordinates))


def _command(java: Java, ivy: Path, partial: Path, folders: str) -> list[str | Path]:
    # Ivy lives for seconds: C1 alone takes 0.55 instead of 0.78 s of CPU time for two small jars.
    command: list[str | Path] = [
        java.executable,
        "-XX:TieredStopAtLevel=1",
        f"-Divy.home={partial / 'ivy'}",
        "-jar",
        ivy,
    ]
    command += ["-settings", partial / "ivysettings.xml", "-ivy", partial / "ivy.xml", "-confs", "default"]
    pattern = f"{partial / 'jars'}/{folders}[artifact]-[revision](-[classifier]).[ext]"
    return [*command, "-types", "jar", "bundle", "-retrieve", pattern]


def _run(command: Sequence[str | Path], progress: IvyProgress) -> tuple[bool, list[str]]:
    """Whether Ivy fetched all jars, and its last lines."""
    guard = ProcessGuard()
    try:
        process = guard.popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        # The loop over its lines has no bound of its own.
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
    """An Ivy module that depends on `coordinates`: "master" is an artifact itself, "runtime" its dependencies."""
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
