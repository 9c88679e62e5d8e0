"""A Java consumer of the group under test: Kafka's own client, in a process of its own (`JavaPeer.java`)."""

import base64
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Final

from chaos.evidence import Delivered, Failure, PeerEvidence, Span
from spark_kgroup.model import TopicPartition
from spark_kgroup.testing.java import find_java
from spark_kgroup.testing.kafka_jars import kafka_jars

_PROGRAM: Final = Path(__file__).with_name("JavaPeer.java")
_LEAVE_TIMEOUT_S: Final = 120.0


class JavaPeer:
    """One consumer, from `start` to `leave`.

    Args:
        folder: where its output is kept. It is made here.
    """

    def __init__(self, name: str, bootstrap: str, group: str, topics: Sequence[str], folder: Path) -> None:
        self.name = name
        self._arguments = [bootstrap, group, ",".join(topics)]
        self._folder = folder
        self._failures: list[Failure] = []
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._folder.mkdir(parents=True)
        jars = os.pathsep.join(map(str, kafka_jars()))
        with self._output.open("wb") as out, self._log.open("wb") as log:
            # Its standard input ends with this process, and it ends with its standard input.
            self._process = subprocess.Popen(
                [find_java().executable, "-Xmx128m", "-cp", jars, _PROGRAM, *self._arguments],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=log,
            )

    def leave(self) -> bool:
        """Commit, leave the group, end. Returns whether it has ended."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            code = self._process.wait(_LEAVE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._fail(f"{self.name} did not end in {_LEAVE_TIMEOUT_S:.0f} s")
            return False
        if code != 0:
            self._fail(f"{self.name} ended with {code}: {self._log.read_text(errors='replace')[-600:]}")
        return True

    def _fail(self, words: str) -> None:
        self._failures.append(Failure(words, time.time()))

    def abandon(self) -> None:
        """End it at once, in any state."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @property
    def _output(self) -> Path:
        return self._folder / "output"

    @property
    def _log(self) -> Path:
        return self._folder / "log"

    @property
    def rows(self) -> list[Delivered]:
        """The records that it has handed on by now."""
        return [
            Delivered(
                TopicPartition(topic, int(partition)),
                int(offset),
                base64.b64decode(value),
                wall_at_s=int(wall_at_ms) / 1000,
            )
            for topic, partition, offset, value, wall_at_ms in self._lines("record")
        ]

    @cached_property
    def evidence(self) -> PeerEvidence:
        """Its evidence, once it has ended."""
        exposed = [
            Span(TopicPartition(topic, int(partition)), int(first), int(end))
            for topic, partition, first, end in self._lines("exposed")
        ]
        return PeerEvidence(name=self.name, rows=self.rows, exposed=exposed, failures=self._failures)

    def _lines(self, kind: str) -> Iterator[list[str]]:
        for line in self._output.read_text().splitlines(keepends=True) if self._output.exists() else []:
            if line.startswith(f"{kind} ") and line.endswith("\n"):  # the last line may be half written
                yield line.split()[1:]
