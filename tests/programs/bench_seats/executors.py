"""Which executor a process belongs to, from the command line of Spark's JVM: the source under test is not asked.

Linux: it reads /proc. Also runs in Spark's workers, so it needs only the standard library.
"""

import os
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple


class Executor(NamedTuple):
    """One executor's JVM.

    Attributes:
        host: an address, as Spark was told.
        executor_id: Spark's, unique in an application.
        driver: the address of the driver's endpoint, as the executor was told.
    """

    host: str
    executor_id: str
    driver: str

    @property
    def key(self) -> str:
        return f"{self.host}/{self.executor_id}"


def parse_command(command_line: bytes) -> Executor | None:
    """The executor in /proc/PID/cmdline, or None if it is no executor's."""
    words = command_line.decode(errors="replace").split("\0")
    given = dict(pairwise(words))
    try:
        return Executor(given["--hostname"], given["--executor-id"], given["--driver-url"])
    except KeyError:
        return None


@cache
def own_executor() -> str:
    """The key of the executor that this worker works for.

    Raises:
        LookupError: no ancestor is an executor.
    """
    pid = os.getppid()
    while pid > 1:
        if (executor := parse_command(Path(f"/proc/{pid}/cmdline").read_bytes())) is not None:
            return executor.key
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    raise LookupError("no ancestor of this process is an executor's JVM")


def executors_of(driver_port: int) -> dict[Executor, int]:
    """Executor -> process id, of all executors of the driver that listens on a port of this machine."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            executor = parse_command(path.read_bytes())
        except (FileNotFoundError, ProcessLookupError):
            continue  # ended meanwhile
        if executor is not None and executor.driver.endswith(f":{driver_port}"):
            found[executor] = int(path.parent.name)
    return found
