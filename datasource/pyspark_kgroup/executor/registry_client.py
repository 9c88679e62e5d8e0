"""Reaches a query's registry from a worker, and asks it where the executor has no sidecar that would.

Runs on: executor.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from pyspark_kgroup.errors import ChannelEnded, KeyRefused, RegistryUnreachable
from pyspark_kgroup.executor.place import RecentFailures
from pyspark_kgroup.limits import SIDECAR_SILENCE_MS
from pyspark_kgroup.shared.channel import Channel, connect
from pyspark_kgroup.shared.messages import (
    Bind,
    Bound,
    Hello,
    NothingLeft,
    Refused,
)
from pyspark_kgroup.shared.tickets import Executor

_NO_REGISTRY: Final = "no-registry"
"""The mark of an executor whose workers could not reach the registry."""

_ANSWER_S: Final = SIDECAR_SILENCE_MS / 1000
"""As long as a sidecar waits for an answer."""

_TRIES: Final = 20
"""How often a registry that must answer is asked within that time."""

RegistryAnswer = Bound | NothingLeft | Refused
"""What the registry says that a ticket reads."""


class RegistryClient:
    """The registry of one query, as workers of one executor reach it.

    Args:
        host: an address or a name of the driver.
        key: the query's secret.
        failures: of this executor, with this query.
    """

    def __init__(self, host: str, port: int, key: bytes, failures: RecentFailures) -> None:
        self.host = host
        self.port = port
        self._key = key
        self._failures = failures

    @property
    def failed_lately(self) -> bool:
        """Whether a worker of this executor could not reach it a while ago."""
        return self._failures.has(_NO_REGISTRY)

    def bind(
        self, executor: Executor, scan: int, ticket: int, *, insist_s: float = 0.0
    ) -> tuple[RegistryAnswer, Channel]:
        """Ask what a ticket reads, for a worker of `executor` that reads directly.

        Args:
            executor: whose worker asks.
            scan: the ticket's.
            ticket: its number.
            insist_s: for how long to try again if it cannot be reached.

        Returns:
            The answer, and the channel over which to say what was read.

        Raises:
            RegistryUnreachable: it cannot be reached from here, or has gone meanwhile.
        """
        deadline_s = time.monotonic() + insist_s
        while True:
            try:
                return self._bind(replace(executor, warm=False), scan, ticket)
            except RegistryUnreachable:
                if time.monotonic() >= deadline_s:
                    raise
                time.sleep(insist_s / _TRIES)

    def _bind(self, executor: Executor, scan: int, ticket: int) -> tuple[RegistryAnswer, Channel]:
        with self._connect() as channel:
            channel.ask(Hello(executor=executor, sidecar=False), _ANSWER_S)
            answer = channel.ask(Bind(scan=scan, ticket=ticket, executor=executor), _ANSWER_S)
            if not isinstance(answer, RegistryAnswer):
                channel.close()
                raise ChannelEnded("The registry does not answer what a ticket reads.")
        return answer, channel

    @contextmanager
    def _connect(self) -> Iterator[Channel]:
        """A channel to it, which stays open unless it fails meanwhile."""
        try:
            yield connect((self.host, self.port), self._key)
        except (ChannelEnded, KeyRefused) as problem:
            self._failures.add(_NO_REGISTRY)
            raise RegistryUnreachable(self.host, self.port, problem) from None
