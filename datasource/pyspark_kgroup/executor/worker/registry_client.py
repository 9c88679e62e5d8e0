"""Reaches a query's registry from a worker, and asks it if the executor has no sidecar to do so.

Where a firewall keeps this executor from the driver's port, the sidecar of another executor asks for it.

Runs on: executor.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import replace
from typing import Final

from pyspark_kgroup.errors import ChannelEnded, KeyRefused, NobodyListens, RegistryUnreachable
from pyspark_kgroup.executor.worker.executor_query import ExecutorQuery
from pyspark_kgroup.limits import REGISTRY_AGAIN_MS, REGISTRY_GONE_MS, REGISTRY_PATIENCE_MS, SIDECAR_SILENCE_MS
from pyspark_kgroup.shared.channel import Channel, connect
from pyspark_kgroup.shared.messages import (
    Bind,
    Bound,
    Hello,
    Hung,
    NothingLeft,
    ReadAtHome,
    ReadFromServer,
    Refused,
    Welcome,
)
from pyspark_kgroup.shared.tickets import SidecarAddress, TicketPayload

_NO_REGISTRY: Final = "no-registry"
"""The mark of an executor whose workers could not reach the registry."""

_ANSWER_S: Final = SIDECAR_SILENCE_MS / 1000
"""How long to wait for an answer: as long as a sidecar does."""

RegistryAnswer = Bound | NothingLeft | Refused
"""The registry's answer: the ranges that a ticket reads."""


class RegistryClient:
    """The registry of one query, as workers of one executor reach it."""

    def __init__(self, query: ExecutorQuery) -> None:
        self._query = query.access.query
        self._key = query.access.key
        self._host = query.access.host or _driver_host()
        self._port = query.access.port
        self._failures = query.failures
        self._asking = replace(query.executor, has_sidecar=False)  # its worker reads directly, or asks a seat's home

    def bind(self, ticket: TicketPayload) -> tuple[RegistryAnswer, Channel] | None:
        """Ask which ranges a ticket reads: the registry itself, or the sidecars that the ticket names, which ask it.

        A ticket without ranges of its own needs the answer. So it is asked for again for `REGISTRY_PATIENCE_MS`, also
        in ways that failed lately, and for `REGISTRY_GONE_MS` at most where the registry has gone.

        Returns:
            The answer, and the channel over which to report the read. None if the ticket has ranges of its own, and all
            ways have failed lately.

        Raises:
            RegistryUnreachable: it cannot be reached from here, or has gone meanwhile.
        """
        insist_s = REGISTRY_PATIENCE_MS / 1000 if ticket.reads is None else 0.0
        begun_s = time.monotonic()
        while ways := self._ways(ticket.sidecars, all_of_them=insist_s > 0):
            problem: Exception | None = None
            patience_s = insist_s
            for way in ways:
                try:
                    return self._bind(way, ticket)
                except (ChannelEnded, KeyRefused) as failure:
                    self._failures.add(_mark_name(way))
                    # The final error names the registry's address, so the registry's own failure goes with it.
                    problem = failure if problem is None or way is None else problem
                    if way is None and isinstance(failure, NobodyListens):
                        patience_s = min(insist_s, REGISTRY_GONE_MS / 1000)
            if time.monotonic() >= begun_s + patience_s:
                raise RegistryUnreachable(self._host, self._port, problem)
            time.sleep(REGISTRY_AGAIN_MS / 1000)
        return None

    def connect(self) -> Channel:
        """A connection that has shown the key. Raises as `channel.connect`."""
        return connect((self._host, self._port), self._key)

    def serves_query(self) -> bool:
        """Whether the registry answers, and is this query's still.

        If not, the query has ended, or a firewall keeps this executor from the driver. The driver warns of the latter
        (`Requests`), and so does `RegistryUnreachable`.
        """
        try:
            self._greet(self.connect()).close()
        except (ChannelEnded, KeyRefused):
            return False
        return True

    def ask_sidecar_at_home(self, home: SidecarAddress, ticket: TicketPayload) -> tuple[ReadFromServer, Channel] | None:
        """Ask the sidecar at a seat's home, on another executor, to serve a ticket's ranges. None if it does not."""
        if self._failures.has(_mark_name(home)):
            return None
        try:
            channel = connect((home.host, home.port), self._key, home.server)
            answer = channel.ask(ReadAtHome(query=self._query, scan=ticket.scan_id, ticket=ticket.ticket), _ANSWER_S)
        except (ChannelEnded, KeyRefused):
            self._failures.add(_mark_name(home))
            return None
        # No failure to remember: the seat's server is busy or rests, and may serve the next ticket.
        if not isinstance(answer, ReadFromServer):
            channel.close()
            return None
        return answer, channel

    def report_hung(self, home: SidecarAddress, seat: str) -> None:
        """Let the sidecar at a seat's home end the seat's server that hangs. The next read there starts another one."""
        with (
            suppress(ChannelEnded, KeyRefused),  # the next worker that finds it hung reports it
            closing(connect((home.host, home.port), self._key, home.server)) as channel,
        ):
            channel.say(Hung(query=self._query, seat=seat))

    def _ways(self, sidecars: Sequence[SidecarAddress], *, all_of_them: bool) -> Sequence[SidecarAddress | None]:
        """The registry itself (None) and sidecars that ask it. Those that failed lately come last, or not at all."""
        ways = [None, *sidecars]
        failed = [way for way in ways if self._failures.has(_mark_name(way))]
        return [way for way in ways if way not in failed] + (failed if all_of_them else [])

    def _bind(self, way: SidecarAddress | None, ticket: TicketPayload) -> tuple[RegistryAnswer, Channel]:
        """Ask by one way. Raises ChannelEnded and KeyRefused."""
        channel = self._greet(self.connect() if way is None else connect((way.host, way.port), self._key, way.server))
        answer = channel.ask(Bind(scan=ticket.scan_id, ticket=ticket.ticket, executor=self._asking), _ANSWER_S)
        if not isinstance(answer, RegistryAnswer):
            channel.close()
            raise ChannelEnded("The registry does not answer with the ranges of a ticket.")
        return answer, channel

    def _greet(self, channel: Channel) -> Channel:
        """The channel, on which requests of the query are answered. Raises ChannelEnded if they are not."""
        hello = Hello(query=self._query, executor=self._asking, sidecar=False)
        if not isinstance(channel.ask(hello, _ANSWER_S), Welcome):
            channel.close()
            raise ChannelEnded("Another query is asked there by now.")
        return channel


def _mark_name(way: SidecarAddress | None) -> str:
    """The mark of an executor whose workers could not use this way."""
    # The mark is a file of this name.
    return _NO_REGISTRY if way is None else f"no-way-to-{way.executor.replace('/', '_')}-{way.port}"


def _driver_host() -> str:
    """The driver's host as Spark knows it."""
    # Imported here: a test's worker runs without Spark.
    from pyspark import TaskContext

    context = TaskContext.get()
    return (context.getLocalProperty("spark.driver.host") if context is not None else None) or "localhost"
