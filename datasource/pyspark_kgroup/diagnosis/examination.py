"""One examination: a task for each slot of the executors, and the findings from their facts.

Runs on: both. `doctor` is called in the user's own process. `_examine` runs in the tasks.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from pyspark_kgroup.diagnosis.findings import Facts, Finding, Verdict, findings
from pyspark_kgroup.diagnosis.host_facts import look
from pyspark_kgroup.diagnosis.meeting import Meeting, Place, reach
from pyspark_kgroup.options.cluster import cluster_of
from pyspark_kgroup.options.parser import parse
from pyspark_kgroup.options.read_options import ReadOptions
from spark_kgroup.errors import KgroupError
from spark_kgroup.limits import STARTUP_TIMEOUT_MS
from spark_kgroup.wire.address import Address

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TASKS_UNLESS_KNOWN: Final = 16
"""Spark Connect does not say how many tasks run at once."""

_NOT_INSTALLED: Final = "No module named 'pyspark_kgroup'"

_COLUMNS: Final = ("", "subject", "where", "found")


class Diagnosis(tuple[Finding, ...]):
    """All findings of one examination. As a text it is a table, with the advice below."""

    __slots__ = ()

    @property
    def of_consequence(self) -> list[Finding]:
        """The findings that cost time, or let a query fail."""
        return [finding for finding in self if finding.verdict is not Verdict.OK]

    def __str__(self) -> str:
        rows = [_COLUMNS, *((f.verdict.value, f.subject, f.where, f.found) for f in self)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS) - 1)]
        lines = [
            "  ".join([*(row[c].ljust(width) for c, width in enumerate(widths)), row[-1]]).rstrip() for row in rows
        ]
        advice = dict.fromkeys(f"{f.subject}: {f.advice}" for f in self.of_consequence)
        return "\n".join([*lines, *(["", *advice] if advice else ["", "Nothing costs time, and nothing fails."])])


def doctor(spark: SparkSession, options: Mapping[str, str] | None = None, *, tasks: int | None = None) -> Diagnosis:
    """Look at each executor from within: its Python and packages, its surroundings, and the hosts that it reaches.

    It runs one short job, joins no group and reads no record. Slots that other jobs take for longer than 5 s are left
    out.

    Args:
        spark: the session whose executors are looked at.
        options: those of a stream. With them each executor tries each broker, at the address that it advertises.
        tasks: how many tasks run at once. By default as many as Spark says, under Spark Connect 16.

    Raises:
        OptionError: the options are not those of a stream.
        KgroupError: no broker answers, or spark-kgroup is not installed on an executor.
    """
    wanted = parse(options) if options is not None else None
    brokers = _advertised(wanted) if wanted is not None else None
    if _is_of_connect(spark):  # this process may be on any host
        examined = _run(spark, None, brokers, tasks or _TASKS_UNLESS_KNOWN)
    else:
        at_once = tasks or spark.sparkContext.defaultParallelism
        host = (wanted.registry_host if wanted is not None else None) or spark.conf.get(
            "spark.driver.host", "localhost"
        )
        with Meeting(at_once, str(host)) as meeting:
            examined = _run(spark, meeting.place, brokers, at_once)
    by_executor = {facts["executor"]: facts for facts in sorted(examined, key=lambda facts: str(facts["name"]))}
    shown = None if brokers is None else [str(address) for address in brokers]
    return Diagnosis(findings(look().kgroup, list(by_executor.values()), shown))


def _advertised(options: ReadOptions) -> list[Address]:
    """The addresses that brokers advertise, as this process hears them."""

    async def ask() -> list[Address]:
        cluster = cluster_of(options)
        try:
            await cluster.metadata((), timeout_ms=STARTUP_TIMEOUT_MS)
            return sorted(dict.fromkeys(cluster.brokers.nodes.values()))
        finally:
            await cluster.close()

    return asyncio.run(ask())


def _is_of_connect(spark: SparkSession) -> bool:
    return type(spark).__module__.startswith("pyspark.sql.connect")


def _run(spark: SparkSession, place: Place | None, brokers: Sequence[Address] | None, tasks: int) -> list[Facts]:
    from pyspark.errors import PySparkException

    # PySpark's own choice goes by the environment: it is the wrong one for a Connect session that was made without it.
    functions = import_module("pyspark.sql.connect.functions" if _is_of_connect(spark) else "pyspark.sql.functions")
    addresses = [(address.host, address.port) for address in brokers or ()]
    # Without Arrow: for functions that take Arrow's batches, PySpark demands that pandas is installed.
    examine = functions.udf(_examining(place, addresses), "string", useArrow=False)
    try:
        rows = spark.range(tasks, numPartitions=tasks).select(examine("id").alias("facts")).collect()
    except PySparkException as error:
        if _NOT_INSTALLED in str(error):
            raise KgroupError(
                "spark-kgroup is not installed for the Python of an executor: install its wheel on every executor, for "
                "the Python that PYSPARK_PYTHON names."
            ) from None
        raise
    return [json.loads(row.facts) for row in rows]


def _examining(place: Place | None, brokers: Sequence[tuple[str, int]]) -> Callable[[int], str]:
    """The function of the tasks. Spark takes it along by value, so that it holds nothing else."""

    def examine(_: int) -> str:
        return json.dumps(_examine(place, brokers))

    return examine


def _examine(place: Place | None, brokers: Sequence[tuple[str, int]]) -> dict[str, Any]:
    """The facts of the process of one task."""
    facts = look()
    reached = reach(place, facts.executor, brokers).to_json()
    errors = reached.pop("broker_errors")
    return {**facts.to_json(), "reach": reached if place is not None else None, "broker_errors": errors}
