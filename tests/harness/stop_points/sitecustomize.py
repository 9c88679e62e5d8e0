"""Named points at which a real process stops and waits to be killed. Python imports this file at its start.

`harness.application` puts this folder on the PYTHONPATH of a driver and of all its children. Environment variables name
the armed point and a folder. A file `disarmed` in that folder lets every process pass. The first process that reaches
the point writes its pid into `reached` and blocks until `released` appears. No process stops there a second time.
Product code is not changed for it: its modules are wrapped when they are imported. In the same way an executor is cut
off from the driver's registry, as by a firewall. Another variable names a file with the error of this host's clock.
"""

import importlib.machinery
import logging
import mmap
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

ARMED = os.environ.get("KGROUP_STOP_AT", "")
FOLDER = Path(os.environ.get("KGROUP_STOP_FOLDER", "."))
CUT_OFF = os.environ.get("KGROUP_CUT_OFF", "")
"""Spark's id of the executor that cannot reach the registry, or "" for none."""

OUTLIVES_ITS_JVM = "KGROUP_OUTLIVES_ITS_JVM" in os.environ
"""Whether `os._exit` waits instead of ending the process, as if the thread that calls it never had its turn."""


CLOCK = os.environ.get("KGROUP_CLOCK", "")
"""The file of `harness.wrong_clock`, or "" for a clock that is right."""


def _put_clock_ahead(path: str) -> None:
    """Let this process's clock be ahead by what the file says at any moment, but for its logs, which are evidence."""
    with open(path, "rb") as file:
        ahead = mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ)
    right_ns = time.time_ns
    logging.time = SimpleNamespace(**vars(time))  # type: ignore[attr-defined]

    def time_ns() -> int:
        return right_ns() + int.from_bytes(ahead[:], "little", signed=True)

    time.time_ns = time_ns
    time.time = lambda: time_ns() / 1e9


if CLOCK:
    _put_clock_ahead(CLOCK)


def reach(point: str) -> None:
    """Stop here if `point` is armed and no process has stopped there yet."""
    if point != ARMED or (FOLDER / "disarmed").exists():
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
    sync = session.contract.SyncRequest
    calls = session.ClassicCalls
    _stop(calls, "send", before=lambda of, request: isinstance(request, sync) and of._seat.machine.owned)


def _asked_to_give_up(session: ModuleType) -> None:
    """The coordinator's answer asks a seat to give up partitions, which it has neither committed nor given up."""
    assigned = session.contract.Assigned
    _stop(session.Session, "_carry_out", before=lambda _, effect: isinstance(effect, assigned) and effect.revoked)


def _given_up_unsaid(session: ModuleType) -> None:
    """A seat has committed the partitions to give up, and the coordinator does not know yet that they are given up."""
    gave_up = session.contract.GaveUp
    _stop(session.Session, "post", before=lambda _, event: isinstance(event, gave_up) and event.partitions)


def _during_adoption(ledger: ModuleType) -> None:
    """The first of the arrived partitions is adopted. The group does not know of it, and no offset is durable."""
    _stop(ledger.Ledger, "adopt", after=lambda _: True)


def _before_connecting(group: ModuleType) -> None:
    """The reader has been asked, and has not spoken to any broker yet."""
    _stop(group.Group, "start", before=lambda _: True)


def _before_look_at_group(groups: ModuleType) -> None:
    """Topics are known, and the group is not described yet, so it is unknown which seats and partitions it keeps."""
    _stop(groups.Groups, "describe", before=lambda *_: True)


def _before_sending(request: str) -> Callable[[ModuleType], None]:
    """The next request of this kind is about to be written."""

    def wrap(connection: ModuleType) -> None:
        kind = getattr(connection.schema, request)
        _stop(connection.Connection, "_exchange", before=lambda _, sent, __: isinstance(sent, kind))

    return wrap


def _parked(request: str) -> Callable[[ModuleType], None]:
    """A request of this kind is sent, and its answer has come, but its sender has not seen it."""

    def wrap(connection: ModuleType) -> None:
        kind = getattr(connection.schema, request)

        def answered(here: Any, frame: bytes) -> bool:
            return here._in_flight.find(connection.read_correlation_id(frame)).request_type is kind

        _stop(connection.Connection, "_answer", before=answered)

    return wrap


def _after_start_committed(adopt: ModuleType) -> None:
    """The group has acknowledged the start offsets that it lacked. Spark has no offset yet."""
    _stop(adopt.Adoption, "_record", after=lambda _: True)


POINTS: dict[str, tuple[str, Callable[[ModuleType], None]]] = {
    "before read": ("pyspark_kgroup.stream", _before_read),
    "while reading": ("pyspark_kgroup.stream", _while_reading),
    "after commit log, before group commit": ("pyspark_kgroup.driver.boundary.ledger", _before_group_commit),
    "during rebalance": ("spark_kgroup.runtime.session", _during_rebalance),
    "when asked to give up": ("spark_kgroup.runtime.session", _asked_to_give_up),
    "given up, unsaid": ("spark_kgroup.runtime.session", _given_up_unsaid),
    "during adoption": ("pyspark_kgroup.driver.boundary.ledger", _during_adoption),
    "before connecting": ("spark_kgroup.runtime.group", _before_connecting),
    "before the look at the group": ("spark_kgroup.wire.groups", _before_look_at_group),
    "before join": ("spark_kgroup.wire.connection", _before_sending("JoinGroupRequest")),
    "join parked": ("spark_kgroup.wire.connection", _parked("JoinGroupRequest")),
    "before sync": ("spark_kgroup.wire.connection", _before_sending("SyncGroupRequest")),
    "sync parked": ("spark_kgroup.wire.connection", _parked("SyncGroupRequest")),
    "before start is committed": ("spark_kgroup.wire.connection", _before_sending("OffsetCommitRequest")),
    "after start is committed": ("pyspark_kgroup.driver.boundary.adopt", _after_start_committed),
}
"""Point -> (the module to wrap, how). "after sink, before commit log" and "after shuffle" are those of
`harness.driver_program`."""


def _workers_cannot_reach_the_registry(registry_client: ModuleType) -> None:
    from pyspark_kgroup.executor.worker.this_executor import this_executor

    connect = registry_client.connect

    def kept_out(address: Any, key: bytes, *server: str) -> Any:
        if not server and this_executor().executor_id == CUT_OFF:
            raise registry_client.ChannelEnded("the test has cut this executor off")
        return connect(address, key, *server)

    registry_client.connect = kept_out  # type: ignore[attr-defined]


CUTS: dict[str, Callable[[ModuleType], None]] = {
    "pyspark_kgroup.executor.worker.registry_client": _workers_cannot_reach_the_registry,
}
"""The module to wrap -> how."""


class _Wrapping(MetaPathFinder):
    """Wraps modules as soon as they are imported."""

    def __init__(self, wraps: Mapping[str, Callable[[ModuleType], None]]) -> None:
        self._wraps = wraps

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        wrap = self._wraps.get(fullname)
        if wrap is None or (spec := PathFinder.find_spec(fullname, path, target)) is None:
            return None
        loader = spec.loader
        assert isinstance(loader, importlib.machinery.SourceFileLoader)
        execute = loader.exec_module

        def execute_and_wrap(module: ModuleType) -> None:
            execute(module)
            wrap(module)

        loader.exec_module = execute_and_wrap  # type: ignore[method-assign]  # of this one loader
        return spec


def _stay(status: int) -> NoReturn:
    time.sleep(600)
    raise AssertionError(f"nobody has ended this process, which was to exit with {status}")


if OUTLIVES_ITS_JVM:
    os._exit = _stay

if ARMED in POINTS:
    sys.meta_path.insert(0, _Wrapping(dict([POINTS[ARMED]])))

if CUT_OFF:
    sys.meta_path.insert(0, _Wrapping(CUTS))


def _keep_log(path: str, logger: logging.Logger, level: int) -> None:
    """Let `logger` write to the file `path` as well: seconds since the epoch, then the message in one line."""
    handler = logging.FileHandler(path, delay=True)  # most processes have no member, and make no file
    handler.setFormatter(_OneLine("%(created).3f %(message)s"))
    handler.setLevel(level)
    logger.addHandler(handler)


class _OneLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return super().format(record).replace("\n", " ")


if (log_file := os.environ.get("KGROUP_MEMBERS_LOG")) is not None:
    members = logging.getLogger("spark_kgroup.runtime")
    members.setLevel(logging.INFO)
    _keep_log(log_file, members, logging.INFO)

if (log_file := os.environ.get("KGROUP_WARNINGS_LOG")) is not None:
    for name in ("spark_kgroup", "pyspark_kgroup"):
        _keep_log(log_file, logging.getLogger(name), logging.WARNING)
