"""Reaches a query's registry from a worker, and asks it if the executor has no sidecar to do so.

Where a firewall keeps this executor from the driver's port, the sidecar of another executor asks for it.

Runs on: executor.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from pyspark_kgroup.errors import ChannelEnded, KeyRefused, NobodyListens, RegistryUnreachable
from pyspark_kgroup.executor.sidecar_dir import RecentFailures
from pyspark_kgroup.limits import REGISTRY_AGAIN_MS, REGISTRY_GONE_MS, SIDECAR_SILENCE_MS
from pyspark_kgroup.shared.channel import Channel, connect
from pyspark_kgroup.shared.messages import (
    Bind,
    Bound,
    Hello,
    NothingLeft,
    ReadAtHome,
    ReadFromServer,
    Refused,
    Welcome,
)
from pyspark_kgroup.shared.tickets import Executor, SidecarAddress

_NO_REGISTRY: Final = "no-registry"
"""The mark of an executor whose workers could not reach the registry."""

_ANSWER_S: Final = SIDECAR_SILENCE_MS / 1000
"""How long to wait for an answer: as long as a sidecar does."""

RegistryAnswer = Bound | NothingLeft | Refused
"""The registry's answer: the ranges that a ticket reads."""


class RegistryClient:
    """The registry of one query, as workers of one executor reach it.

    Args:
        host: an address or a name of the driver.
        query: as `RegistryAccess.query`.
        key: the application's secret.
        failures: of this executor, with this query.
    """

    def __init__(self, host: str, port: int, query: str, key: bytes, failures: RecentFailures) -> None:
        self.host = host
        self.port = port
        self._query = query
        self._key = key
        self._failures = failures

    def has_way(self, sidecars: Sequence[SidecarAddress]) -> bool:
        """Whether the registry or one of these may answer: workers of this executor have not failed with all lately."""
        return any(not self._failures.has(_mark_name(way)) for way in (None, *sidecars))

    def bind(
        self,
        executor: Executor,
        scan: int,
        ticket: int,
        sidecars: Sequence[SidecarAddress] = (),
        *,
        insist_s: float = 0.0,
    ) -> tuple[RegistryAnswer, Channel]:
        """Ask which ranges a ticket reads, for a worker of `executor` that reads directly.

        Args:
            executor: whose worker asks.
            scan: the ticket's.
            ticket: its number.
            sidecars: of other executors, to ask by way of them.
            insist_s: for how long to try again if it cannot be reached, also in ways that failed lately, and for
                `REGISTRY_GONE_MS` at most where it has gone.

        Returns:
            The answer, and the channel over which to report the read.

        Raises:
            RegistryUnreachable: it cannot be reached from here, or has gone meanwhile.
        """
        begun_s = time.monotonic()
        while True:
            problem: Exception | None = None
            patience_s = insist_s
            for way in self._ways(sidecars, all_of_them=insist_s > 0):
                try:
                    return self._bind(way, replace(executor, warm=False), scan, ticket)
                except (ChannelEnded, KeyRefused) as failure:
                    self._failures.add(_mark_name(way))
                    problem = failure if problem is None or way is None else problem
                    if way is None and isinstance(failure, NobodyListens):
                        patience_s = min(insist_s, REGISTRY_GONE_MS / 1000)
            if time.monotonic() >= begun_s + patience_s:
                raise RegistryUnreachable(self.host, self.port, problem)
            time.sleep(REGISTRY_AGAIN_MS / 1000)

    def connect(self) -> Channel:
        """A connection that has shown the key. Raises as `channel.connect`."""
        return connect((self.host, self.port), self._key)

    def ask_home(self, home: SidecarAddress, scan: int, ticket: int) -> tuple[ReadFromServer, Channel] | None:
        """Ask a seat's home, on another executor, to serve a ticket's ranges. None if it does not."""
        if self._failures.has(_mark_name(home)):
            return None
        try:
            channel = connect((home.host, home.port), self._key, home.server)
            answer = channel.ask(ReadAtHome(query=self._query, scan=scan, ticket=ticket), _ANSWER_S)
        except (ChannelEnded, KeyRefused):
            self._failures.add(_mark_name(home))
            return None
        if not isinstance(answer, ReadFromServer):
            channel.close()
            return None
        return answer, channel

    def _ways(self, sidecars: Sequence[SidecarAddress], *, all_of_them: bool) -> Sequence[SidecarAddress | None]:
        """The registry itself (None) and sidecars that ask it. Those that failed lately come last, or not at all."""
        ways = [None, *sidecars]
        failed = [way for way in ways if self._failures.has(_mark_name(way))]
        return [way for way in ways if way not in failed] + (failed if all_of_them else [])

    def _bind(
        self, way: SidecarAddress | None, executor: Executor, scan: int, ticket: int
    ) -> tuple[RegistryAnswer, Channel]:
        """Ask by one way. Raises ChannelEnded and KeyRefused."""
        channel = self.connect() if way is None else connect((way.host, way.port), self._key, way.server)
        hello = Hello(query=self._query, executor=executor, sidecar=False)
        if not isinstance(channel.ask(hello, _ANSWER_S), Welcome):
            channel.close()
            raise ChannelEnded("Another query is asked there by now.")
        answer = channel.ask(Bind(scan=scan, ticket=ticket, executor=executor), _ANSWER_S)
        if not isinstance(answer, RegistryAnswer):
            channel.close()
            raise ChannelEnded("The registry does not answer what a ticket reads.")
        return answer, channel


def _mark_name(way: SidecarAddress | None) -> str:
    """The mark of an executor whose workers could not use this way."""
    return _NO_REGISTRY if way is None else f"no-way-to-{way.executor.replace('/', '_')}-{way.port}"
