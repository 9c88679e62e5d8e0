"""Kafka's own assignors, in a Java process that is asked in bulk (`JavaAssignors.java`)."""

import json
import os
import subprocess
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Final

from differential.cases import Case
from spark_kgroup.testing.java import find_java
from spark_kgroup.testing.kafka_jars import kafka_jars

_PROGRAM: Final = Path(__file__).with_name("JavaAssignors.java")
_END_TIMEOUT_S: Final = 60


def java_answers(cases: Iterable[Case]) -> Iterator[tuple[Case, dict[str, Any]]]:
    """Each case with the answer of Java's assignors. No more cases are made than Java takes.

    Raises:
        RuntimeError: Java ended early. The message says why.
    """
    # slf4j without a binding is silent: Kafka's assignors log an error for each claim that collides.
    jars = os.pathsep.join(str(jar) for jar in kafka_jars() if not jar.name.startswith("log4j-slf4j-impl"))
    command: list[str | Path] = [find_java().executable, "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", jars, _PROGRAM]
    asked: deque[Case] = deque()
    with (
        TemporaryFile() as log,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log) as java,
        ThreadPoolExecutor(1) as threads,
    ):
        assert java.stdin is not None
        assert java.stdout is not None
        asking = threads.submit(_ask, java.stdin, cases, asked)
        for line in java.stdout:
            yield asked.popleft(), json.loads(line)
        asking.result()
        if java.wait(_END_TIMEOUT_S) or asked:
            log.seek(0)
            raise RuntimeError(f"Java ended early: {log.read().decode(errors='replace')[-1000:]}")


def _ask(to: IO[bytes], cases: Iterable[Case], asked: deque[Case]) -> None:
    with suppress(BrokenPipeError), to:  # it ended: the reader of its answers says so
        for case in cases:
            asked.append(case)
            to.write(json.dumps(case.as_json()).encode() + b"\n")
