"""Kafka's classes as one memory-mapped file, so that a JVM need not load and verify thousands of them at each start.

Measured on 2 cores: a broker's start takes 2.6 instead of 4.3 s of CPU time, and on a busy machine 5.7 instead of 13 s
until it is ready. The file (50 MB) is made by a broker that runs once for this, when Kafka is first started with a
given Java. The JVM checks itself that it fits, and does without it if not (JEP 350).
"""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Final

from spark_kgroup.errors import EnvironmentProblem
from spark_kgroup.testing.free_ports import PortReservation
from spark_kgroup.testing.held_lock import held_lock
from spark_kgroup.testing.java import find_java
from spark_kgroup.testing.kafka_jars import kafka_jars
from spark_kgroup.testing.kafka_node import Jvm, KafkaNode
from spark_kgroup.testing.kafka_release import KafkaRelease, kafka_version
from spark_kgroup.testing.node_properties import node_properties
from spark_kgroup.testing.progress import announced
from spark_kgroup.testing.watchdog import ProcessGuard

_QUIET: Final = ("-Xlog:disable", "-Xlog:all=error:stderr")
"""Some Javas tell on standard output that an archive does not fit, where a tool's answer is awaited."""

_HOST: Final = "127.0.0.1"
_CLUSTER_ID: Final = "AAAAAAAAAAAAAAAAAAAAAA"

_RECORD_TIMEOUT_S: Final = 60.0
"""Bound on the orderly end in which the archive is written. Measured: 3 s."""


def prepare_kafka(version: str | None = None) -> None:
    """Fetch Kafka's jars and make its archive of classes, with progress. If both are there, it shows no line.

    Args:
        version: of Apache Kafka, None for `kafka_version()`.

    Raises:
        EnvironmentProblem: no Java, or no jars.
        OptionError: see `KafkaRelease`.
    """
    release = KafkaRelease(version or kafka_version())
    guard = ProcessGuard()
    try:
        with_class_archive(Jvm(find_java(), release, kafka_jars(release.version)[0].parent, guard))
    finally:
        guard.close()


def with_class_archive(jvm: Jvm) -> Jvm:
    """`jvm` with options that use the archive for its jars and its Java, made first if there is none.

    If it cannot be made, `jvm` itself: Kafka then starts more slowly, and that is all.
    """
    build = hashlib.sha256(jvm.java.build.encode() + (jvm.jars / "manifest.json").read_bytes()).hexdigest()[:16]
    archive = jvm.jars.parent.parent / "classes" / f"{jvm.jars.name}-{build}.jsa"
    try:
        if not archive.exists():
            archive.parent.mkdir(exist_ok=True)
            _make(archive, jvm)
    except (OSError, EnvironmentProblem):
        return jvm
    return replace(jvm, options=(f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", *_QUIET))


def _make(archive: Path, jvm: Jvm) -> None:
    """Let the archive appear under its name in one step. One process makes it, and any other waits for it."""
    with held_lock(archive.with_suffix(".lock"), "prepares Kafka's classes"):
        # Another process may have made it while this one waited for the lock.
        if archive.exists():
            return
        with (
            announced("Preparing Kafka's classes for faster starts (once)"),
            tempfile.TemporaryDirectory(prefix="recording-", dir=archive.parent) as directory,
        ):
            unfinished = Path(directory) / archive.name
            _record(unfinished, jvm)
            unfinished.rename(archive)


def _record(archive: Path, jvm: Jvm) -> None:
    """Start one node and let it end: at its end the JVM writes the classes it has loaded."""
    ports = PortReservation(_HOST, 2)
    port, controller_port = ports.ports
    node = KafkaNode(1, archive.parent / "node", port)
    try:
        node.configure(node_properties(1, _HOST, port, [controller_port], {}))
        node.format(jvm, _CLUSTER_ID)
        ports.hand_over()
        node.launch(replace(jvm, options=(f"-XX:ArchiveClassesAtExit={archive}", *_QUIET)))
        node.await_started()
        node.request_stop()
        node.await_stopped(_RECORD_TIMEOUT_S)
    finally:
        node.kill()
        ports.close()
