"""Finds the sidecar of this executor, and asks it which ranges a ticket reads.

Runs on: executor, in Spark's Python workers.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import Final

from pyspark_kgroup.errors import ChannelEnded, KeyRefused
from pyspark_kgroup.executor.sidecar_dir import SidecarDir
from pyspark_kgroup.executor.worker.executor_query import ExecutorQuery
from pyspark_kgroup.limits import SIDECAR_SILENCE_MS
from pyspark_kgroup.shared.channel import Channel, connect
from pyspark_kgroup.shared.messages import (
    Hung,
    NothingLeft,
    Read,
    ReadDirectly,
    ReadFromServer,
    Refused,
    UnknownQuery,
)
from pyspark_kgroup.shared.tickets import TicketPayload

NO_SIDECAR: Final = "no-sidecar"
"""The mark of an executor on which no sidecar could be had for the query."""

SidecarAnswer = ReadFromServer | ReadDirectly | NothingLeft | Refused
"""A sidecar's answer: the ranges that a ticket reads, and how."""

_TRIES: Final = 2
"""How often a sidecar is asked: it may end at that very moment."""

_TRIES_MAX: Final = 5
"""How often it is asked within `_CROWDED_S` while it hangs up at once: of too many peers without the key, a sidecar
drops the oldest."""

_CROWDED_S: Final = 1.0


class SidecarUnavailable(Exception):
    """This executor cannot have a sidecar, or its sidecar cannot be reached: its workers read directly."""


class SidecarGivenUp(SidecarUnavailable):
    """None could be started for the query a while ago. The worker that tried has warned of it, if there was need."""


class SidecarMissing(Exception):
    """This executor has no sidecar yet, or one that does not serve the query yet. No read waits for `SidecarStart`."""


class SidecarClient:
    """The sidecar of an executor, as workers find it for one query."""

    def __init__(self, query: ExecutorQuery) -> None:
        self._query = query

    def request(self, ticket: TicketPayload) -> tuple[SidecarAnswer, Channel]:
        """Ask which ranges a ticket reads, and let the seat's server send them if the seat has its home here.

        Returns:
            The answer, and the channel on which the server sends, or over which to report a direct read.

        Raises:
            SidecarMissing: there is none that answers and serves the query. `SidecarStart` sees to it.
            SidecarUnavailable: there can be none here.
            SidecarGivenUp: none could be started a while ago.
            ChannelEnded: neither it nor its successor has answered.
        """
        self.require_place()
        request = Read(
            query=self._query.access.query,
            scan=ticket.scan_id,
            ticket=ticket.ticket,
            config=ticket.settings.consumer_config,
            reader=ticket.settings.reader,
            headers=ticket.settings.include_headers,
            timestamps=ticket.settings.include_timestamps,
        )
        there = False
        tries, began_s = 0, time.monotonic()
        while tries < _TRIES or (tries < _TRIES_MAX and time.monotonic() - began_s < _CROWDED_S):
            tries += 1
            channel = self._connect()
            there = channel is not None
            if channel is None:
                continue
            with suppress(ChannelEnded):  # the sidecar may end at that very moment
                answer = channel.ask(request, SIDECAR_SILENCE_MS / 1000)
                if isinstance(answer, SidecarAnswer):
                    return answer, channel
                if isinstance(answer, UnknownQuery):
                    channel.close()
                    raise self._missing()
            channel.close()
        raise ChannelEnded("Neither the sidecar nor its successor has answered.") if there else self._missing()

    def report_hung(self, seat: str) -> None:
        """Let the sidecar end a seat's server that hangs. The next read starts another one."""
        with suppress(OSError, ChannelEnded):  # the next worker that finds it hung reports it
            channel = self.connect_if_there()
            if channel is not None:
                channel.say(Hung(query=self._query.access.query, seat=seat))
                channel.close()

    def connect_if_there(self) -> Channel | None:
        """A channel to the sidecar, or None if none answers. None is started.

        Raises:
            OSError: the place is not this user's alone. No process was asked.
        """
        if (place := self._query.place) is None:
            return None
        try:
            with place.short_socket_path() as path:
                return connect(path, self._query.access.key, place.server)
        except (FileNotFoundError, ChannelEnded, KeyRefused):
            return None

    def require_place(self) -> SidecarDir:
        """Where the sidecar is on disk. Raises SidecarUnavailable if this executor cannot have one."""
        place = self._query.place
        if place is None or not self._query.executor.has_sidecar or not hasattr(os, "pidfd_open"):
            raise SidecarUnavailable(
                "This platform does not say whose worker a process is, and when that executor ends."
            )
        return place

    def give_up(self, problem: Exception) -> SidecarUnavailable:
        """Mark the failure: for `SIDECAR_RETRY_MS`, no worker of this executor starts a sidecar."""
        self._query.failures.add(NO_SIDECAR)
        return SidecarUnavailable(str(problem))

    def _connect(self) -> Channel | None:
        """As `connect_if_there`, but a place that is not this user's alone counts as a failed start."""
        try:
            return self.connect_if_there()
        except OSError as problem:
            raise self.give_up(problem) from None

    def _missing(self) -> Exception:
        if self._query.failures.has(NO_SIDECAR):
            return SidecarGivenUp("It could not be started a while ago.")
        return SidecarMissing()
