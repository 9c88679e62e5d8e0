"""The deed of `kgroup doctor`: a session of its own, and the examination in it.

Runs on: driver, in the process of the command, which finds `examine` by its entry point.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from pyspark_kgroup.diagnosis.examination import doctor
from spark_kgroup.errors import EnvironmentProblem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_CONNECT_PORT: Final = 15002
"""Where a Spark Connect server listens if its address names no port (spark.connect.grpc.binding.port)."""

_CONNECT_S: Final = 10.0

_OF_NO_STREAM: Final = "kgroup-doctor"
"""Stands for the group and the topic, which a stream's options must have. Neither is looked at."""


def examine(
    *,
    remote: str | None,
    settings: Mapping[str, str],
    bootstrap_server: str | None,
    security: Mapping[str, str],
    tasks: int | None,
) -> tuple[str, list[dict[str, str]]]:
    """Start a session, look at its executors, and end it.

    Args:
        remote: the address of a Spark Connect server, or None for a session that is started here.
        settings: of the session, by Spark's names.
        bootstrap_server: HOST:PORT[,HOST:PORT] of the cluster whose brokers each executor tries, or None.
        security: properties of connections to it, by librdkafka's names.
        tasks: how many tasks run at once, or None for as many as there are slots.

    Returns:
        The findings as a table for people, and each as a JSON object.

    Raises:
        EnvironmentProblem: PySpark is missing, or no session comes about.
        KgroupError: as `doctor` says.
    """
    try:
        from pyspark.errors import PySparkException
    except ModuleNotFoundError:
        raise EnvironmentProblem(
            "kgroup doctor needs PySpark, of your cluster's version: pip install pyspark."
        ) from None
    options = None if bootstrap_server is None else _of_a_stream(bootstrap_server, security)
    if remote is not None:
        _check_reachable(remote)
    try:
        spark = _session(remote, settings)
        try:
            found = doctor(spark, options, tasks=tasks)
        finally:
            spark.stop()
    except PySparkException as problem:
        raise EnvironmentProblem(f"Spark did not run the examination: {problem}") from None
    return str(found), [{**finding._asdict(), "verdict": finding.verdict.value} for finding in found]


def _of_a_stream(bootstrap_server: str, security: Mapping[str, str]) -> dict[str, str]:
    """The options of a stream that reads from this cluster."""
    read = {"kafka.bootstrap.servers": bootstrap_server, "kafka.group.id": _OF_NO_STREAM, "subscribe": _OF_NO_STREAM}
    return {**read, **{f"kafka.{name}": value for name, value in security.items()}}


def _check_reachable(remote: str) -> None:
    """Check that a Spark Connect server listens: Spark's client tries for ten minutes, without a word.

    Raises:
        EnvironmentProblem: none does.
    """
    address = urlsplit(remote)
    if address.scheme != "sc" or address.hostname is None:
        return  # a local server that is started here, or a text that Spark refuses at once
    host, port = address.hostname, address.port or _CONNECT_PORT
    try:
        socket.create_connection((host, port), _CONNECT_S).close()
    except OSError as problem:
        raise EnvironmentProblem(
            f"No Spark Connect server can be reached at {host}:{port} ({problem}): start it, or correct --remote."
        ) from None


def _session(remote: str | None, settings: Mapping[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("kgroup doctor")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return (builder.remote(remote) if remote else builder).getOrCreate()
