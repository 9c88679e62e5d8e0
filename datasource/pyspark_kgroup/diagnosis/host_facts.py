"""The facts that one Python process of Spark's finds out about itself, its executor and its host.

Runs on: executor, and once in the user's own process.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyspark_kgroup.executor.worker.this_executor import this_executor
from pyspark_kgroup.shared.available_cpus import available_cpus


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """One process, as it sees itself.

    Attributes:
        executor: which one of its host, in no way that Spark would name it: facts of one executor are told once.
        name: of the executor, for people.
        python: version and executable.
        kgroup: version of spark-kgroup.
        pyspark: version of PySpark.
        pyspark_compiled: whether the modules of PySpark lie compiled (.pyc) where this process imports them from.
        unix_sockets: whether its JVM talks to it over a Unix socket (PySpark 4.1 or later).
        jvm_above: whether the executor's JVM is among the ancestors of this process.
        pidfd: whether a process can be watched by a descriptor (pidfd_open(2)).
        folder: for temporary files.
        folder_error: why no file can be made there, or empty.
        folder_free_mb: free space there.
        descriptors_max: how many descriptors this process may raise its limit to. None: no limit.
        memory_max_mb: bound on its address space (RLIMIT_AS). None: no limit.
        cpus: that the process may use, by its affinity and its control groups.
        cores: that Spark counts for the executor, 0 if unknown.
        rack: of the executor (KGROUP_CLIENT_RACK), or empty.
    """

    executor: str
    name: str
    python: str
    kgroup: str
    pyspark: str
    pyspark_compiled: bool
    unix_sockets: bool
    jvm_above: bool
    pidfd: bool
    folder: str
    folder_error: str
    folder_free_mb: int
    descriptors_max: int | None
    memory_max_mb: int | None
    cpus: int
    cores: int
    rack: str

    def to_json(self) -> dict[str, Any]:
        """All fields by name."""
        return asdict(self)


def look() -> HostFacts:
    """The facts of this process, without any that need the network."""
    executor = this_executor()
    folder = tempfile.gettempdir()
    return HostFacts(
        executor=executor.key,
        name=f"executor {executor.executor_id}, {executor.host}" if executor.executor_id else executor.host,
        python=f"{platform.python_version()} {sys.executable}",
        kgroup=importlib.metadata.version("spark-kgroup"),
        pyspark=importlib.metadata.version("pyspark"),
        pyspark_compiled=_is_compiled("pyspark"),
        unix_sockets=os.environ.get("PYTHON_UNIX_DOMAIN_ENABLED", "").lower() == "true",  # as Spark's daemon reads it
        jvm_above=executor.has_sidecar,
        pidfd=_has_pidfd(),
        folder=folder,
        folder_error=_error_of(folder),
        folder_free_mb=shutil.disk_usage(folder).free // 2**20,
        descriptors_max=_limit("RLIMIT_NOFILE"),
        memory_max_mb=None if (most := _limit("RLIMIT_AS")) is None else most // 2**20,
        cpus=available_cpus(),
        cores=executor.cores,
        rack=executor.rack,
    )


def _is_compiled(module: str) -> bool:
    """Whether `module` is imported from a file with its .pyc beside it: an archive of sources has none."""
    spec = importlib.util.find_spec(module)
    return spec is not None and spec.cached is not None and Path(spec.cached).exists()


def _has_pidfd() -> bool:
    """Whether the kernel has pidfd_open, and lets this process call it (seccomp)."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


def _error_of(folder: str) -> str:
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix="kgroup-doctor-"):
            return ""
    except OSError as problem:
        return str(problem)


def _limit(name: str) -> int | None:
    """The hard limit of this process for one resource, or None where there is none."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    _, hard = resource.getrlimit(getattr(resource, name))
    return None if hard == resource.RLIM_INFINITY else int(hard)
