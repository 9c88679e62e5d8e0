"""Facts of processes as findings, each with its cost and the fix. Pure.

Runs on: driver, in the user's own process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple

_FREE_MB_MIN: Final = 100
_DESCRIPTORS_MIN: Final = 4096
_CLOCK_OFF_MAX_MS: Final = 5_000
_SLOW_DRIVER_MS: Final = 50
_UNIX_SOCKETS_SINCE: Final = (4, 1)
"""PySpark's version (SPARK-51688)."""

_WITHOUT_SIDECAR: Final = "no records are fetched ahead: each task reads from the brokers when it starts."
_CHOOSE_PYTHON: Final = (
    'Set os.environ["PYSPARK_PYTHON"] = pyspark_kgroup.python() before the session starts, or spark.pyspark.python to '
    "that path."
)


class Verdict(Enum):
    """The weight of a finding for a query."""

    OK = "ok"
    COSTS = "costs"
    FAILS = "fails"


class Finding(NamedTuple):
    """One line of a diagnosis.

    Attributes:
        subject: such as "PySpark" or "clock".
        where: the executors of which it holds.
        found: the fact.
        verdict: whether that costs time, or lets a query fail.
        advice: the cost and the fix. Empty where there is neither.
    """

    subject: str
    where: str
    found: str
    verdict: Verdict
    advice: str = ""


class _Said(NamedTuple):
    found: str
    verdict: Verdict = Verdict.OK
    advice: str = ""


Facts = Mapping[str, Any]
"""The fields of `HostFacts` and of `Reach`, the latter under "reach", or None there if the driver is elsewhere."""


def findings(kgroup: str, executors: Sequence[Facts], brokers: Sequence[str] | None) -> list[Finding]:
    """All findings: one for each subject and each different answer.

    Args:
        kgroup: the version of spark-kgroup on the driver.
        executors: of one process of each executor.
        brokers: HOST:PORT of the brokers that executors tried, or None if no options said which.
    """
    found = []
    for subject, say in _SUBJECTS.items():
        said: dict[_Said, list[str]] = {}
        for facts in executors:
            said.setdefault(say({**facts, "kgroup_of_driver": kgroup}), []).append(str(facts["name"]))
        found += [Finding(subject, _where(names, len(executors)), *answer) for answer, names in said.items()]
    return [*found, *_of_brokers(executors, brokers)]


def _where(names: Sequence[str], executors: int) -> str:
    if len(names) == executors and executors > 1:
        return f"all {executors} executors"
    return names[0] if len(names) == 1 else f"{len(names)} executors, such as {names[0]}"


def _python(facts: Facts) -> _Said:
    return _Said(facts["python"])


def _kgroup(facts: Facts) -> _Said:
    if facts["kgroup"] == facts["kgroup_of_driver"]:
        return _Said(facts["kgroup"])
    advice = f"The driver has {facts['kgroup_of_driver']}: install the same wheel on the driver and on every executor."
    return _Said(facts["kgroup"], Verdict.FAILS, advice)


def _pyspark(facts: Facts) -> _Said:
    if facts["pyspark_compiled"]:
        return _Said(f"{facts['pyspark']}, compiled")
    advice = f"Each Python process compiles PySpark anew, which takes 0.7 s of CPU. {_CHOOSE_PYTHON}"
    return _Said(f"{facts['pyspark']}, from an archive of sources", Verdict.COSTS, advice)


def _transport(facts: Facts) -> _Said:
    if facts["unix_sockets"]:
        return _Said("a Unix socket")
    if tuple(map(int, facts["pyspark"].split(".")[:2])) < _UNIX_SOCKETS_SINCE:
        return _Said("TCP, as always before PySpark 4.1")
    advice = (
        "Rows take a third less CPU from Python to the JVM over a Unix socket: set "
        "spark.python.unix.domain.socket.enabled=true and spark.buffer.size=1048576 where the session starts."
    )
    return _Said("TCP", Verdict.COSTS, advice)


def _jvm(facts: Facts) -> _Said:
    if facts["jvm_above"]:
        return _Said("is an ancestor of its Python processes")
    return _Said(
        "is out of sight of its Python processes",
        Verdict.COSTS,
        f"A sandbox of the platform hides it. No process can end with it, so {_WITHOUT_SIDECAR}",
    )


def _pidfd(facts: Facts) -> _Said:
    if facts["pidfd"]:
        return _Said("there")
    advice = f"It needs Linux 5.3, and a seccomp profile that allows it. Without it {_WITHOUT_SIDECAR}"
    return _Said("missing", Verdict.COSTS, advice)


def _folder(facts: Facts) -> _Said:
    if facts["folder_error"]:
        advice = f"Set TMPDIR to a folder that can be written to. Without one {_WITHOUT_SIDECAR}"
        return _Said(f"{facts['folder']}: {facts['folder_error']}", Verdict.COSTS, advice)
    if facts["folder_free_mb"] < _FREE_MB_MIN:
        advice = "Free space there, or set TMPDIR: sockets and logs of the sidecar lie there."
        return _Said(f"{facts['folder']}, {facts['folder_free_mb']} MB free", Verdict.COSTS, advice)
    return _Said(facts["folder"])


def _descriptors(facts: Facts) -> _Said:
    most = facts["descriptors_max"]
    if most is None or most >= _DESCRIPTORS_MIN:
        return _Said("enough")
    return _Said(
        f"{most} at most",
        Verdict.COSTS,
        f"Raise the hard limit (`ulimit -Hn`) to {_DESCRIPTORS_MIN}: each seat and each broker takes some.",
    )


def _memory(facts: Facts) -> _Said:
    if facts["memory_max_mb"] is None:
        return _Said("no limit")
    return _Said(
        f"{facts['memory_max_mb']} MB of address space",
        Verdict.COSTS,
        "spark.executor.pyspark.memory bounds the sidecar, too, which fetches ahead for all seats of its executor: "
        "leave it out, or leave room for prefetchBytes of each query.",
    )


def _cpus(facts: Facts) -> _Said:
    cores, cpus = facts["cores"], facts["cpus"]
    if not cores or cpus >= cores:
        return _Said(f"{cpus} for {cores or 'an unknown number of'} cores")
    advice = "Give the container as many CPUs as spark.executor.cores says, or lower that: tasks wait for each other."
    return _Said(f"{cpus} for {cores} cores", Verdict.COSTS, advice)


def _rack(facts: Facts) -> _Said:
    return _Said(facts["rack"] or "none: records come from leaders, in whichever rack")


def _reaches_driver(facts: Facts) -> _Said:
    reached = facts["reach"]
    if reached is None:
        return _Said("not tried: this process is not on the driver's host")
    if reached["driver_error"]:
        advice = (
            f"Let executors connect to the driver's `registryPort`, at the name in `registryHost`. Without that "
            f"{_WITHOUT_SIDECAR}"
        )
        return _Said(f"not reached: {reached['driver_error']}", Verdict.COSTS, advice)
    if reached["driver_ms"] > _SLOW_DRIVER_MS:
        return _Said(f"answers after {reached['driver_ms']:.0f} ms", Verdict.COSTS, "Each task asks there once.")
    return _Said(f"answers within {_SLOW_DRIVER_MS} ms")


def _reaches_peers(facts: Facts) -> _Said:
    reached = facts["reach"]
    if reached is None or reached["driver_error"]:
        return _Said("not tried: executors learn of each other from the driver")
    if not reached["peer_errors"]:
        return _Said(f"{reached['peers']} of {reached['peers']} reached" if reached["peers"] else "there is no other")
    advice = "Open the ports between executors. Without them a task away from its seat's executor reads from brokers."
    missed = f"{len(reached['peer_errors'])} of {reached['peers']} not reached: {reached['peer_errors'][0]}"
    return _Said(missed, Verdict.COSTS, advice)


def _clock(facts: Facts) -> _Said:
    reached = facts["reach"]
    if reached is None or reached["driver_error"]:
        return _Said("not compared")
    ahead_ms = reached["clock_ahead_ms"]
    if abs(ahead_ms) <= _CLOCK_OFF_MAX_MS:
        return _Said(f"within {_CLOCK_OFF_MAX_MS // 1000} s of the driver's")
    found = f"{abs(ahead_ms) / 1000:.0f} s {'ahead of' if ahead_ms > 0 else 'behind'} the driver's"
    advice = "Let both hosts take their time from NTP: certificates and tokens are valid by the clock."
    return _Said(found, Verdict.COSTS, advice)


_SUBJECTS: Final[Mapping[str, Callable[[Facts], _Said]]] = {
    "Python": _python,
    "spark-kgroup": _kgroup,
    "PySpark": _pyspark,
    "way to the JVM": _transport,
    "executor's JVM": _jvm,
    "pidfd_open": _pidfd,
    "TMPDIR": _folder,
    "descriptors": _descriptors,
    "memory": _memory,
    "CPUs": _cpus,
    "rack": _rack,
    "driver": _reaches_driver,
    "other executors": _reaches_peers,
    "clock": _clock,
}


def _of_brokers(executors: Sequence[Facts], brokers: Sequence[str] | None) -> Iterator[Finding]:
    if brokers is None:
        yield Finding(
            "brokers", "all executors", "not tried: doctor(spark, options) with a stream's options", Verdict.OK
        )
        return
    for facts in executors:
        if errors := facts["broker_errors"]:
            advice = (
                "Each host that reads must reach every broker at its advertised address: open the ports, or correct "
                "advertised.listeners in the brokers' settings."
            )
            missed = f"{len(errors)} of {len(brokers)} not reached: {errors[0]}"
            yield Finding("brokers", str(facts["name"]), missed, Verdict.FAILS, advice)
    reached = sum(not facts["broker_errors"] for facts in executors)
    if reached:
        names = [str(facts["name"]) for facts in executors if not facts["broker_errors"]]
        where = _where(names, len(executors))
        yield Finding("brokers", where, f"{len(brokers)} of {len(brokers)} reached", Verdict.OK)
