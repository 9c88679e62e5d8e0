"""Named points at which a real process stops and waits to be killed. Python imports this file at its start.

`harness.application` puts this folder on the PYTHONPATH of a driver and of all its children, and says by environment
which point is armed, and where. The first process that reaches the point writes its pid into `reached` and blocks until
`released` appears; nobody stops there a second time. Product code knows nothing of it: its modules are wrapped when
they are imported.
"""

import importlib.machinery
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

ARMED = os.environ.get("KGROUP_STOP_AT", "")
FOLDER = Path(os.environ.get("KGROUP_STOP_FOLDER", "."))


def reach(point: str) -> None:
    """Stop here if `point` is armed and nobody has stopped there yet."""
    if point != ARMED:
        return
    try:
        reached = os.open(FOLDER / "reached", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    except FileExistsError:
        return
    os.write(reached, str(os.getpid()).encode())
    os.close(reached)
    while not (FOLDER / "released").exists():
        time.sleep(0.02)


def _stop(owner: Any, name: str, *, before: Callable[..., Any] | None = None, after: Any = None) -> None:
    """Wrap a method of `owner`: stop before it if `before(*arguments)`, and after it if `after(result)`."""
    original = getattr(owner, name)

    @wraps(original)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        if before is not None and before(*arguments):
            reach(ARMED)
        result = original(*arguments, **named)
        if after is not None and after(result):
            reach(ARMED)
        return result

    setattr(owner, name, wrapped)


def _before_read(stream: ModuleType) -> None:
    """The batch is in Spark's offset log, its tickets are made, no task has one."""
    _stop(stream.KgroupStreamReader, "partitions", after=bool)


def _while_reading(stream: ModuleType) -> None:
    """A task has handed the first half of its first Arrow batch to the JVM."""
    read = stream.KgroupStreamReader.read

    def halting(self: Any, ticket: Any) -> Iterator[Any]:
        for batch in read(self, ticket):
            half = (batch.num_rows + 1) // 2
            yield batch.slice(0, half)
            reach(ARMED)
            if half < batch.num_rows:
                yield batch.slice(half)

    stream.KgroupStreamReader.read = halting


def _before_group_commit(ledger: ModuleType) -> None:
    """A boundary has found positions that Spark's commit log has and the group has not."""
    _stop(ledger.Ledger, "uncommitted", after=bool)


def _during_rebalance(session: ModuleType) -> None:
    """The join is answered with a new generation, our sync is not sent yet, and the seat holds partitions."""
    sync = session.fx.SyncRequest
    _stop(session.Session, "_send", before=lambda seat, request: isinstance(request, sync) and seat.machine.held)


def _after_revoking_sync(session: ModuleType) -> None:
    """The sync asks a seat to give something up; it has neither committed it nor rejoined."""
    assigned = session.fx.Assigned
    _stop(session.Session, "_carry_out", before=lambda _, effect: isinstance(effect, assigned) and effect.revoked)


def _during_adoption(ledger: ModuleType) -> None:
    """The first of the arrived partitions is adopted; the group knows nothing of it, and no offset is durable."""
    _stop(ledger.Ledger, "adopt", after=lambda _: True)


POINTS: dict[str, tuple[str, Callable[[ModuleType], None]]] = {
    "before read": ("pyspark_kgroup.stream", _before_read),
    "while reading": ("pyspark_kgroup.stream", _while_reading),
    "after commit log, before group commit": ("pyspark_kgroup.ledger", _before_group_commit),
    "during rebalance": ("spark_kgroup.runtime.session", _during_rebalance),
    "between revoking sync and rejoin": ("spark_kgroup.runtime.session", _after_revoking_sync),
    "during adoption": ("pyspark_kgroup.ledger", _during_adoption),
}
"""Point -> (the module to wrap, how). "after sink, before commit log" and "after shuffle" are those of
`harness.driver_program`."""


class _Arming(MetaPathFinder):
    """Wraps the armed point's module as soon as it is imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        module, wrap = POINTS[ARMED]
        if fullname != module or (spec := PathFinder.find_spec(fullname, path, target)) is None:
            return None
        loader = spec.loader
        assert isinstance(loader, importlib.machinery.SourceFileLoader)
        execute = loader.exec_module

        def execute_and_wrap(loaded: ModuleType) -> None:
            execute(loaded)
            wrap(loaded)

        loader.exec_module = execute_and_wrap
        return spec


if ARMED in POINTS:
    sys.meta_path.insert(0, _Arming())


def _keep_log(path: str) -> None:
    """What this process's members log goes to the file `path` as well: seconds since the epoch, then the line."""
    handler = logging.FileHandler(path, delay=True)  # most processes have no member, and make no file
    handler.setFormatter(logging.Formatter("%(created).3f %(message)s"))
    members = logging.getLogger("spark_kgroup.runtime.group")
    members.setLevel(logging.INFO)
    members.addHandler(handler)


if (log_file := os.environ.get("KGROUP_MEMBERS_LOG")) is not None:
    _keep_log(log_file)
