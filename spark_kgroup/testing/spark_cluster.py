"""A Spark standalone cluster on this machine: one master, and workers that come and go.

They are started as Java classes out of PySpark's own jars. PySpark is looked for, not imported. Each worker has a
loopback address of its own, so that to Spark each is another host (Linux listens on all of 127.0.0.0/8).
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Mapping
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Self

from spark_kgroup.errors import EnvironmentProblem
from spark_kgroup.testing.java import find_java
from spark_kgroup.testing.spark_python import spark_python
from spark_kgroup.testing.watchdog import ProcessGuard

_MASTER_HOST: Final = "127.0.0.1"

_DAEMON_JVM: Final = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Masters and workers do little: without the second compiler they start with less CPU time."""

_START_TIMEOUT_S: Final = 120.0
"""Measured: 2 s on a quiet machine, 8 s on a busy one."""

_POLL_S: Final = 0.1
_LOG_LINES_MAX: Final = 15


def spark_home() -> Path:
    """Where the PySpark of this environment is.

    Raises:
        EnvironmentProblem: PySpark is not installed.
    """
    spec = find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise EnvironmentProblem("A Spark cluster needs PySpark: pip install 'spark-kgroup[spark]'.")
    return Path(spec.submodule_search_locations[0])


def spark_environment(folder: Path, conf: Path) -> dict[str, str]:
    """The environment variables of every process of a cluster, and of every driver that uses it.

    Args:
        folder: for all that is temporary.
        conf: Spark's configuration directory.
    """
    return {
        "SPARK_HOME": str(spark_home()),
        "SPARK_SCALA_VERSION": "2.13",  # the only one of Spark 4, which its own scripts find out
        "SPARK_CONF_DIR": str(conf),
        "SPARK_LOCAL_DIRS": str(folder),
        "SPARK_LOCAL_IP": _MASTER_HOST,  # the web pages would be seen from everywhere
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON") or spark_python(),
        "TMPDIR": str(folder),
    }


class SparkCluster:
    """A master and workers, as a context manager. No process is left, not even when this one is killed with -9.

    Args:
        folder: for logs and all that is temporary.
        conf: Spark's configuration directory. Its log4j2.properties must let org.apache.spark.deploy log at INFO.
        cores: of each worker.
        memory: of each worker, such as "1g".
        environment: of all processes, beside `spark_environment`.

    Attributes:
        master_url: the URL that a driver connects to.
        workers: address -> process.
    """

    def __init__(
        self,
        folder: Path,
        conf: Path,
        *,
        cores: int = 1,
        memory: str = "1g",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.master_url = ""
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        self._folder = folder
        self._conf = conf
        self._per_worker = ("--cores", str(cores), "--memory", memory, "--work-dir", str(folder / "work"))
        self._more = dict(environment or {})
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Start the master.

        Raises:
            EnvironmentProblem: no Java, no PySpark, or it did not start in time.
        """
        with self._stack:
            self._guard = ProcessGuard()
            self._stack.callback(self._guard.close)
            master = self._start("master", "master.Master", "--host", _MASTER_HOST, "--port", "0")
            self.master_url = self._await(master, "master", r"Starting Spark master at (spark://\S+)")
            # A master that does not start ends with this block. One that did is left to `__exit__`.
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start_workers(self, *addresses: str) -> None:
        """Start a worker on each loopback address, such as 127.0.0.2. Returns when the master knows them.

        Raises:
            EnvironmentProblem: one ended, or did not register in time.
        """
        for address in addresses:
            arguments = ("--host", address, *self._per_worker, self.master_url)
            self.workers[address] = self._start(f"worker-{address}", "worker.Worker", *arguments)
        for address in addresses:
            self._await(self.workers[address], f"worker-{address}", r"Successfully registered with (master)")

    def _start(self, name: str, main_class: str, *arguments: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, **spark_environment(self._folder, self._conf), **self._more}
        classes = f"{self._conf}:{spark_home() / 'jars' / '*'}"
        java = [str(find_java().executable), *_DAEMON_JVM, "-cp", classes]
        with self._log(name).open("wb") as log:
            return self._guard.popen(
                [*java, f"org.apache.spark.deploy.{main_class}", "--webui-port", "0", *arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                environment=environment,
                directory=self._folder,
            )

    def _await(self, process: subprocess.Popen[bytes], name: str, pattern: str) -> str:
        """The text that the pattern's group matches in the process' log."""
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not (found := re.search(pattern, self._log(name).read_text(errors="replace"))):
            if process.poll() is not None or time.monotonic() > deadline:
                last_lines = "\n  ".join(self._log(name).read_text(errors="replace").splitlines()[-_LOG_LINES_MAX:])
                raise EnvironmentProblem(f"Spark's {name} did not start:\n  {last_lines}")
            time.sleep(_POLL_S)
        return found[1]

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"
