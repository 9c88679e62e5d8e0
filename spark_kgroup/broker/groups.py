"""The coordinator of groups, on the broker's loop and by its clock.

The first node coordinates all groups. The records that the coordinator appends are the state that it already has, and
a broker in memory outlives no restart, so they are not written anywhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Any, Final
from uuid import uuid4

from spark_kgroup.broker import group_messages
from spark_kgroup.broker.broker_clock import Cancellable, Clock
from spark_kgroup.broker.call import Call, HangUp
from spark_kgroup.broker.cluster import Cluster
from spark_kgroup.coordinator import Answer, CoordinatorConfig, Effect, GroupCoordinator, Received, Token
from spark_kgroup.wire import schema

_LOOK_S: Final = 1.0
"""How often a request that is parked looks whether its client is still there."""


class Groups:
    """All groups of a cluster. It belongs to one event loop, on which `start` is called.

    Args:
        cluster: which partitions exist, and which node coordinates.
        clock: by which sessions end.
        config: settings of all groups.
    """

    def __init__(self, cluster: Cluster, clock: Clock, config: CoordinatorConfig) -> None:
        self.coordinator = GroupCoordinator(config, new_id=lambda: str(uuid4()))
        self._cluster = cluster
        self._clock = clock
        self._tokens = count(1)
        self._parked: dict[Token, asyncio.Future[schema.Response]] = {}
        self._alarm: Cancellable | None = None

    def start(self) -> None:
        """Begin to keep time."""
        self._carry_out(self.coordinator.start(self._clock.now_ms()))

    def stop(self) -> None:
        """Keep time no more."""
        if self._alarm is not None:
            self._alarm.cancel()

    def delete_topics(self, names: Iterable[str]) -> None:
        """The offsets of these topics go AFTER the topics themselves."""
        self._carry_out(self.coordinator.delete_topics(names, self._clock.now_ms()))

    async def answer(self, asked: Any, call: Call, is_gone: Callable[[], bool]) -> Any:
        """The answer to a request about groups. JoinGroup and SyncGroup may wait for other members.

        Args:
            asked: a class of `wire.broker_group_schema`.
            call: its circumstances.
            is_gone: whether the client has left.

        Raises:
            HangUp: the client left before there was an answer.
        """
        request = group_messages.widened(asked, call.version)
        if call.node_id != self._cluster.controller_id:
            return group_messages.narrowed(group_messages.not_coordinator(request), call.version)
        if isinstance(request, schema.OffsetCommitRequest | schema.OffsetDeleteRequest):
            known = group_messages.known_part(self._cluster, request)
            said = await self._of_coordinator(known, call, is_gone) if known.topics else _nothing_known(request)
            return group_messages.narrowed(group_messages.with_unknown(request, said), call.version)
        return group_messages.narrowed(await self._of_coordinator(request, call, is_gone), call.version)

    async def _of_coordinator(self, request: schema.Request, call: Call, is_gone: Callable[[], bool]) -> Any:
        token = next(self._tokens)
        answer = self._parked[token] = asyncio.get_running_loop().create_future()
        received = Received(request, call.version, call.client_id, call.client_host, token)
        try:
            self._carry_out(self.coordinator.receive(received, self._clock.now_ms()))
            while not answer.done():
                if is_gone():
                    raise HangUp
                await asyncio.wait([answer], timeout=_LOOK_S)
            return answer.result()
        finally:
            self._parked.pop(token, None)

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            # An answer to a client that has left is dropped, as a socket would.
            if isinstance(effect, Answer) and (parked := self._parked.get(effect.token)) is not None:
                parked.set_result(effect.response)
        self._set_alarm()

    def _set_alarm(self) -> None:
        self.stop()
        at_ms = self.coordinator.next_wakeup_at_ms()
        self._alarm = None if at_ms is None else self._clock.alarm(at_ms, self._on_alarm)

    def _on_alarm(self) -> None:
        self._carry_out(self.coordinator.tick(self._clock.now_ms()))


def _nothing_known(request: schema.OffsetCommitRequest | schema.OffsetDeleteRequest) -> schema.Response:
    """The coordinator is not asked: no partition of the request exists."""
    if isinstance(request, schema.OffsetDeleteRequest):
        return schema.OffsetDeleteResponse(0, 0, ())
    return schema.OffsetCommitResponse(0, ())
