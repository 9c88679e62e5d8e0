"""The requests of a machine under the consumer protocol to the cluster: over the pool, since none is ever parked.

It also translates between the machine's requests and events and Kafka's messages, as `translate` does for the classic
protocol.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from random import Random
from typing import Any
from uuid import UUID

from spark_kgroup.clock import monotonic_ms
from spark_kgroup.errors import BrokerError, ProtocolViolation, UnsupportedApi, WireError
from spark_kgroup.limits import CONSUMER_SESSION_TIMEOUT_MS, LEAVE_TIMEOUT_MS, REQUEST_TIMEOUT_MS
from spark_kgroup.member.consumer_contract import (
    JOIN_EPOCH,
    ConsumerHeartbeatRequest,
    ConsumerHeartbeatResponse,
    TopicsResolved,
    Unanswered,
)
from spark_kgroup.member.machine import Config
from spark_kgroup.model import ErrorCode, TopicIdPartition
from spark_kgroup.peer_words import printable_words
from spark_kgroup.rights import RIGHTS_MISSING
from spark_kgroup.wire import messages, schema
from spark_kgroup.wire.backoff import Backoff
from spark_kgroup.wire.cluster import Cluster

log = logging.getLogger(__name__)


async def session_timeout_ms(cluster: Cluster, group: str) -> int:
    """How long the coordinator lets a member of the group be silent, or Kafka's default if brokers do not say."""
    try:
        value = await cluster.groups.config(group, "consumer.session.timeout.ms", timeout_ms=REQUEST_TIMEOUT_MS)
    except WireError as error:
        lacks_right = isinstance(error, BrokerError) and error.code in RIGHTS_MISSING  # else they are older than 3.8
        log.log(
            logging.WARNING if lacks_right else logging.INFO,
            "Brokers do not say the session timeout of group %r, so it is taken for the default, %d s: %s",
            group,
            CONSUMER_SESSION_TIMEOUT_MS / 1000,
            error,
        )
        value = None
    return int(value) if value and value.isdecimal() else CONSUMER_SESSION_TIMEOUT_MS


class ConsumerCalls:
    """The calls of one member.

    Args:
        config: how the member presents itself now: the topics that a pattern matches come and go.
    """

    def __init__(
        self, config: Callable[[], Config], cluster: Cluster, rng: Random, rack: Callable[[], str | None]
    ) -> None:
        self._config = config
        self._cluster = cluster
        self._rng = rng
        self._rack = rack
        self._unsupported = 0
        """How many versions of ConsumerGroupHeartbeat, from the newest on, the coordinator does not speak."""
        self._regex_refused = False

    async def heartbeat(self, request: ConsumerHeartbeatRequest) -> ConsumerHeartbeatResponse | Unanswered:
        """Send one heartbeat. One that leaves is retried while the coordinator moves, but not for long: a person waits.

        Raises:
            WireError: an error that no further attempt can mend.
        """
        # Three heartbeats in a session: a connection that leads nowhere costs one of them.
        timeout_ms = min(REQUEST_TIMEOUT_MS, self._config().session_timeout_ms // 3)
        if request.identity.generation >= JOIN_EPOCH:
            return await self._heartbeat_once(request, timeout_ms)
        deadline_ms, backoff = monotonic_ms() + LEAVE_TIMEOUT_MS, Backoff(self._rng)
        while True:
            answer = await self._heartbeat_once(request, max(1, deadline_ms - monotonic_ms()))
            again = isinstance(answer, Unanswered) or answer.error in ErrorCode.retriable_codes()
            wait_ms = backoff.next_ms()
            if not again or monotonic_ms() + wait_ms > deadline_ms:
                return answer
            await asyncio.sleep(wait_ms / 1000)

    async def _heartbeat_once(
        self, request: ConsumerHeartbeatRequest, timeout_ms: int
    ) -> ConsumerHeartbeatResponse | Unanswered:
        try:
            event = _to_event(request, await self._call(request, timeout_ms))
            if event.error == ErrorCode.INVALID_REGULAR_EXPRESSION and not self._regex_refused:
                # The names of the matching topics go with each full heartbeat, so doing without the pattern costs time
                # alone.
                log.info("brokers do not match the pattern themselves: %s", event.message)
                self._regex_refused = True
                event = _to_event(request, await self._call(request, timeout_ms))
            return event
        except UnsupportedApi:
            return ConsumerHeartbeatResponse(request=request, error=ErrorCode.UNSUPPORTED_VERSION, message="")
        except WireError as error:
            if not error.retriable:
                raise
            log.info("no answer to a heartbeat of %s: %s", request.identity.instance_id or "a member", error)
            return Unanswered(request=request, reason=str(error))

    async def _call(self, request: ConsumerHeartbeatRequest, timeout_ms: int) -> schema.Response:
        versions = self._to_messages(request)
        while True:
            try:
                message = versions[self._unsupported]
                return await self._cluster.coordinators.call(self._config().group, message, timeout_ms=timeout_ms)
            except UnsupportedApi:
                if self._unsupported == len(versions) - 1:
                    raise
                # Remembered, so that later heartbeats do not begin with a version that the coordinator lacks.
                self._unsupported += 1

    def _to_messages(self, request: ConsumerHeartbeatRequest) -> tuple[schema.Request, ...]:
        config = self._config()
        everything: dict[str, Any] = {
            "rack": self._rack(),
            "rebalance_timeout_ms": config.rebalance_timeout_ms,
            "topics": sorted(config.topics),
            "regex": "" if self._regex_refused else getattr(config, "regex", ""),
            "assignor": getattr(config, "server_assignor", None),
        }
        return messages.consumer_group_heartbeat(
            config.group, request.identity, owned=request.owned, **(everything if request.full else {})
        )

    async def resolve_topic_names(self, topic_ids: frozenset[UUID]) -> TopicsResolved | None:
        """The names of `topic_ids`, as far as they are of subscribed topics, None if brokers do not say."""
        try:
            names = await self._cluster.resolve_topic_names(
                topic_ids, self._config().topics, timeout_ms=REQUEST_TIMEOUT_MS
            )
        except WireError as error:
            log.info("no names of topics this time: %s", error)
            return None
        return TopicsResolved(names=tuple(sorted(names.items())))


def _to_event(request: ConsumerHeartbeatRequest, response: schema.Response) -> ConsumerHeartbeatResponse:
    """The event that the response makes.

    Raises:
        ProtocolViolation: it takes us for a member, without the epoch of one or an interval to wait.
    """
    assert isinstance(response, schema.ConsumerGroupHeartbeatResponse)
    interval_ms = response.heartbeat_interval_ms
    joined = int(response.error_code) == ErrorCode.NONE and request.identity.generation >= JOIN_EPOCH
    if joined and (response.member_epoch <= JOIN_EPOCH or interval_ms <= 0):
        message = f"A heartbeat was answered with epoch {response.member_epoch}, to wait for {interval_ms} ms."
        raise ProtocolViolation(message, retriable=True)
    assigned = None
    if response.assignment is not None:
        topics = ((each.topic_id, each.partitions) for each in response.assignment.topic_partitions)
        assigned = frozenset(TopicIdPartition(of, p) for of, partitions in topics if of is not None for p in partitions)
    return ConsumerHeartbeatResponse(
        request=request,
        error=int(response.error_code),
        message=printable_words(response.error_message),
        epoch=int(response.member_epoch),
        interval_ms=interval_ms,
        assignment=assigned,
    )
