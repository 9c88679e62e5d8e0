"""Reads from Spark's start how many tasks can run at once, so how many seats there are, and whether all is local.

Runs on: driver. All that this process can know of the application is how its parent, Spark's JVM, was started. Measured
with PySpark 4.3: SparkSubmit's arguments hold the properties that the session's builder was given. The environment
holds SPARK_CONF_DIR, and no setting of executors.
"""

from __future__ import annotations

import logging
import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from pyspark_kgroup.offsets.checkpoint import Checkpoint
from pyspark_kgroup.options.parser import SourceOptions
from pyspark_kgroup.options.rows import MEMBERS_MAX
from spark_kgroup.model import CLIENT

log = logging.getLogger(__name__)

MEMBERS_DEFAULT: Final = 4
"""As many as the cores of a small job. A seat too many costs an idle connection, one too few costs parallelism."""

_ARGUMENTS: Final[Mapping[str, str]] = {
    "--master": "spark.master",
    "--num-executors": "spark.executor.instances",
    "--executor-cores": "spark.executor.cores",
    "--total-executor-cores": "spark.cores.max",
}
"""spark-submit's own words for properties (SparkSubmitArguments.mergeDefaultSparkProperties)."""

_LOOPBACK: Final = re.compile(r"localhost|127(\.\d{1,3}){3}|\[?::1\]?")

_CMDLINE: Final = "/proc/{pid}/cmdline"

_PS_TIMEOUT_S: Final = 5
"""How long `ps` may take where there is no /proc. Measured on Linux: 20 ms."""


def fill_in_members(options: SourceOptions) -> SourceOptions:
    """`options` with `members` filled in, if they were not given."""
    return options if options.members is not None else replace(options, members=_default_members())


def grows_with_executors(options: SourceOptions) -> bool:
    """Whether executors decide how many seats there are, since neither the options nor Spark's start tell it.

    With member ids that are made here (`CLIENT`) the number stays: such ids are changed for all seats at once.
    """
    return options.members is None and options.member_ids != CLIENT and _known_slots() is None


def as_many_as_before(options: SourceOptions, planned: Checkpoint) -> SourceOptions:
    """`options`, whose `members` are filled in, with as many seats as the last process of this query came to have."""
    prefix = f"{options.instance_id_prefix}-"
    numbers = [
        int(number)
        for owned in planned.owned.values()
        if owned.period.seat.startswith(prefix) and (number := owned.period.seat.removeprefix(prefix)).isdecimal()
    ]
    return replace(options, members=min(max([options.members or 1, *(n + 1 for n in numbers)]), MEMBERS_MAX))


def seats_warning(options: SourceOptions, seats: int, partitions: int) -> str | None:
    """A warning if the number of seats is a guess, or leaves seats without work, else None.

    Args:
        options: as given, before `fill_in_members`.
        seats: how many there are.
        partitions: of all subscribed topics.
    """
    if options.members is None and seats < partitions and _known_slots() is None:
        return (
            f"Using {seats} seats for {partitions} partitions: Spark's start does not say how many tasks run at once. "
            "Seats are added as executors report their cores. Set the option `members` to fix their number: each seat "
            "is read by one task."
        )
    if options.members is not None and seats > partitions:
        return (
            f"{seats} seats for {partitions} partitions: {seats - partitions} seats stay without a partition. Lower "
            "the option `members`, unless partitions are to be added."
        )
    return None


def _default_members() -> int:
    """As many seats as there are task slots, by the arguments of this process's parent."""
    return min(_known_slots() or MEMBERS_DEFAULT, MEMBERS_MAX)


def _known_slots() -> int | None:
    started = _start()
    return task_slots(*started, _cpus) if started is not None else None


def _cpus() -> int:
    """How many CPUs Spark's JVM may use: it has our affinity and our control groups."""
    from pyspark_kgroup.shared.available_cpus import available_cpus  # `local[*]` alone asks

    return available_cpus()


def stays_on_this_host() -> bool:
    """Whether no other host has to reach the driver, as far as is known from how Spark was started."""
    started = _start()
    return started is not None and is_local(*started)


def _start() -> tuple[Sequence[str], Mapping[str, str]] | None:
    """This process's parent: its arguments, and the properties that it reads."""
    try:
        command = _read_command(os.getppid())
        return command, _read_properties(command)
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError) as error:
        log.info("cannot see how Spark was started: %s", error)
        return None


def is_local(command: Sequence[str], properties: Mapping[str, str]) -> bool:
    """Whether Spark runs in one process, or its driver is reached over loopback alone. Arguments as of `task_slots`."""
    conf = {**properties, **_properties_in(command)}
    if re.fullmatch(r"local(\[[^\]]*\])?", conf.get("spark.master", "")):
        return True
    host = conf.get("spark.driver.host") or conf.get("spark.driver.bindAddress", "")
    return _LOOPBACK.fullmatch(host) is not None


def task_slots(command: Sequence[str], properties: Mapping[str, str], cpus: Callable[[], int]) -> int | None:
    """How many tasks the application can run at once, None if that is not known.

    Args:
        command: the arguments of Spark's JVM.
        properties: those of its properties file, which arguments overrule.
        cpus: how many Spark's JVM may use, for `local[*]`.
    """
    conf = {**properties, **_properties_in(command)}
    master, task_cpus = conf.get("spark.master", ""), _number(conf, "spark.task.cpus") or 1
    if master == "local":
        return 1
    if local := re.fullmatch(r"local\[\s*(\d+|\*)\s*(?:,\s*\d+\s*)?\]", master):
        return _tasks(cpus() if local[1] == "*" else int(local[1]), task_cpus)
    if cluster := re.fullmatch(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,.*\]", master):
        return int(cluster[1]) * _tasks(int(cluster[2]), task_cpus)
    if cores := _number(conf, "spark.cores.max"):
        return _tasks(cores, task_cpus)
    if executors := _number(conf, "spark.executor.instances"):
        return executors * _tasks(_number(conf, "spark.executor.cores") or 1, task_cpus)
    return None


def _tasks(cores: int, task_cpus: int) -> int:
    """How many tasks run at once on so many cores, each with `spark.task.cpus` of them."""
    return max(1, cores // task_cpus)


def _properties_in(command: Sequence[str]) -> dict[str, str]:
    """The properties among the arguments: `--conf NAME=VALUE`, and those of `_ARGUMENTS`."""
    found: dict[str, str] = {}
    for word, following in _with_values(command):
        if word in ("--conf", "-c"):
            name, _, value = following.partition("=")
            found[name.strip()] = value.strip()
        elif word in _ARGUMENTS:
            found[_ARGUMENTS[word]] = following.strip()
    return found


def _with_values(command: Sequence[str]) -> list[tuple[str, str]]:
    """Each argument with its value: the argument that follows, or the text behind its `=`."""
    pairs = []
    for word, following in zip(command, [*command[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        pairs.append((name, value) if equals and name.startswith("--") else (word, following))
    return pairs


def _number(conf: Mapping[str, str], name: str) -> int | None:
    value = conf.get(name, "")
    return int(value) if re.fullmatch(r"[0-9]{1,9}", value) and int(value) > 0 else None


def _read_properties(command: Sequence[str]) -> dict[str, str]:
    """The properties that Spark reads when it starts: of `--properties-file`, else of conf/spark-defaults.conf."""
    named = next((value for word, value in _with_values(command) if word == "--properties-file"), "")
    path = Path(named or Path(os.environ.get("SPARK_CONF_DIR", ""), "spark-defaults.conf"))
    lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
    matches = (re.match(r"\s*(spark\.[\w.]+)(?:\s*[=:]\s*|\s+)(.*?)\s*$", line) for line in lines)
    return {match[1]: match[2] for match in matches if match}


def _read_command(pid: int) -> list[str]:
    cmdline = Path(_CMDLINE.format(pid=pid))
    if cmdline.exists():
        return cmdline.read_bytes().decode(errors="replace").rstrip("\0").split("\0")
    asked = subprocess.run(
        ["ps", "-ww", "-o", "args=", "-p", str(pid)], capture_output=True, text=True, timeout=_PS_TIMEOUT_S, check=True
    )
    return asked.stdout.split()
