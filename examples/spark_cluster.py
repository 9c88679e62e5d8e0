"""A Spark standalone cluster on this machine: one master, and workers that come and go.

They are started as Java classes out of PySpark's own jars, with the files of `conf/`. Each worker has a loopback
address of its own, so that to Spark each is another host.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import pyspark

from spark_kgroup.errors import EnvironmentProblem
from spark_kgroup.testing.java import find_java
from spark_kgroup.testing.watchdog import ProcessGuard

CONF = Path(__file__).parents[1] / "conf"
SPARK_HOME = Path(pyspark.__file__).parent

START_TIMEOUT_S = 120.0  # measured: 2 s on a quiet machine
POLL_S = 0.1


def spark_environment(folder: Path) -> dict[str, str]:
    """What every process of the cluster, and every driver that uses it, has in its environment.

    Args:
        folder: for everything that is temporary.
    """
    return {
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_SCALA_VERSION": "2.13",  # Spark 4 knows no other; its own scripts find it out
        "SPARK_CONF_DIR": str(CONF),
        "SPARK_LOCAL_DIRS": str(folder),
        "SPARK_LOCAL_IP": "127.0.0.1",  # the web pages would be seen from everywhere
        "PYSPARK_PYTHON": sys.executable,
        "TMPDIR": str(folder),
    }


class StandaloneCluster:
    """A master, and the workers that were started; a context manager that leaves no process, not even after kill -9.

    Args:
        folder: for logs and temporary files.
        cores: of each worker.
        memory: of each worker, such as "1g".
        environment: of the workers and their executors, beside `spark_environment`.

    Attributes:
        master_url: what a driver connects to.
        workers: address -> process.
    """

    def __init__(
        self, folder: Path, *, cores: int = 1, memory: str = "1g", environment: dict[str, str] | None = None
    ) -> None:
        self.master_url = ""
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        self._folder = folder
        self._per_worker = ("--cores", str(cores), "--memory", memory)
        self._environment = {**os.environ, **spark_environment(folder), **(environment or {})}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with self._stack:
            self._guard = ProcessGuard()
            self._stack.callback(self._guard.close)
            master = self._start("master", "master.Master", "--host", "127.0.0.1", "--port", "0")
            self.master_url = self._await(master, "master", r"Starting Spark master at (spark://\S+)")
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start_workers(self, *addresses: str) -> None:
        """Start a worker on each loopback address, such as 127.0.0.2; returns when the master knows them.

        Raises:
            EnvironmentProblem: one ended, or did not register in time.
        """
        for address in addresses:
            arguments = ("--host", address, "--work-dir", str(self._folder / "work"), *self._per_worker)
            self.workers[address] = self._start(f"worker-{address}", "worker.Worker", *arguments, self.master_url)
        for address in addresses:
            self._await(self.workers[address], f"worker-{address}", r"Successfully registered with (master)")

    def kill_worker(self, address: str) -> None:
        """End a worker at once (SIGKILL); its executor ends when it notices."""
        worker = self.workers.pop(address)
        worker.kill()
        worker.wait()

    def _start(self, name: str, main_class: str, *arguments: str) -> subprocess.Popen[bytes]:
        classes = f"{CONF}:{SPARK_HOME / 'jars' / '*'}"
        command = [find_java().executable, "-Xmx512m", "-XX:+UseSerialGC", "-cp", classes]
        with self._log(name).open("wb") as log:
            return self._guard.popen(
                [*command, f"org.apache.spark.deploy.{main_class}", "--webui-port", "0", *arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                environment=self._environment,
                directory=self._folder,
            )

    def _await(self, process: subprocess.Popen[bytes], name: str, pattern: str) -> str:
        """What the pattern's group matches in the process' log."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not (found := re.search(pattern, self._log(name).read_text(errors="replace"))):
            if process.poll() is not None or time.monotonic() > deadline:
                said = "\n  ".join(self._log(name).read_text(errors="replace").splitlines()[-15:])
                raise EnvironmentProblem(f"Spark's {name} did not start:\n  {said}")
            time.sleep(POLL_S)
        return found[1]

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"
