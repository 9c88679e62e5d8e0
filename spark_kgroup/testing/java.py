"""Which Java runs Kafka on this machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from spark_kgroup.errors import EnvironmentProblem

JAVA_VERSION_MIN: Final = 17
"""Brokers of Kafka 4.0 and later need Java 17 (KIP-1013)."""

_VERSION_TIMEOUT_S: Final = 30
"""`java -version` takes 0.1 s here. More than this is a hang."""

_VERSION = re.compile(r'version "(?P<major>\d+)(?:\.(?P<minor>\d+))?')


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that is new enough.

    Attributes:
        version: the feature release, such as 17.
        build: the output of `java -version`.
    """

    executable: Path
    version: int
    build: str


def find_java() -> Java:
    """The Java of JAVA_HOME if there is one, else the first in PATH.

    Raises:
        EnvironmentProblem: there is no Java, it does not run, or it is older than `JAVA_VERSION_MIN`.
    """
    executable = _executable()
    if executable is None:
        home = os.environ.get("JAVA_HOME")
        looked = f"no bin/java in JAVA_HOME={home}" if home else "JAVA_HOME is not set"
        raise EnvironmentProblem(
            f"Found no Java ({looked}, and there is no `java` in PATH). {_need()}",
        )
    build = _read_build(executable)
    version = _version_in(build)
    if version < JAVA_VERSION_MIN:
        raise EnvironmentProblem(f"Found Java {version} ({executable}), which is too old. {_need()}")
    return Java(executable, version, build)


def _need() -> str:
    return (
        f"Apache Kafka needs Java {JAVA_VERSION_MIN} or later: install one and set JAVA_HOME to its directory, "
        "or put its `java` first in PATH."
    )


def _executable() -> Path | None:
    home = os.environ.get("JAVA_HOME")
    if home:
        candidate = Path(home) / "bin" / "java"
        if os.access(candidate, os.X_OK):
            return candidate
    in_path = shutil.which("java")
    return Path(in_path) if in_path else None


def _read_build(executable: Path) -> str:
    """The output of `java -version`, without the lines that JAVA_TOOL_OPTIONS adds."""
    try:
        done = subprocess.run(
            [executable, "-version"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise EnvironmentProblem(f"{executable} does not run: {problem}. {_need()}") from problem
    lines = (done.stderr + done.stdout).splitlines()
    build = "\n".join(line for line in lines if not line.startswith("Picked up "))
    if done.returncode != 0 or not _VERSION.search(build):
        words = build.strip() or f"exit code {done.returncode}"
        raise EnvironmentProblem(f"{executable} -version printed no version ({words}). {_need()}")
    return build


def _version_in(build: str) -> int:
    """The feature release: 8 for "1.8.0_292", 17 for "17.0.15"."""
    found = _VERSION.search(build)
    assert found is not None
    major = int(found["major"])
    return int(found["minor"] or 0) if major == 1 else major
