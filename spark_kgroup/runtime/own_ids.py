"""Gives seats of a classic group member ids that this process made, where the coordinator allows it.

KIP-1082 has clients make their member ids, under the consumer protocol. Under the classic one a coordinator takes no id
that is not its own, but for a static seat there is a way over its migration path (`member.handlers`, renaming). That
way is taken only where it has no other effect: in a group at rest, for seats that the group has, and where the broker
makes the group a classic one again.

If a member comes or goes just then, the broker's own assignor runs, and a partition may have two owners for a moment.
So the way is taken by option alone (`run`), or once (`decide`): before any partition is adopted, and where the group
has no other member that could lose one. A newcomer then reads partitions that no member reads yet.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress

from spark_kgroup.errors import WireError
from spark_kgroup.limits import OWN_IDS_AGAIN_MS, OWN_IDS_DECIDED_WITHIN_MS, OWN_IDS_POLL_MS
from spark_kgroup.member import contract
from spark_kgroup.member.classic import ClassicMember
from spark_kgroup.model import UNKNOWN_MEMBER_ID, DescribedGroup, ErrorCode
from spark_kgroup.runtime.session import Session
from spark_kgroup.runtime.settings import GroupSettings
from spark_kgroup.wire.cluster import Cluster

log = logging.getLogger(__name__)

_POLICY = "group.consumer.migration.policy"
_FETCH_OF_KAFKA_4_1 = (1, 18)
"""API key and version by which a broker of 4.1 or later is known (KIP-1166)."""


class OwnIds:
    """Watches over the ids of all our seats, in a task of its own.

    Args:
        sessions: our seats.
        may_rename: whether the group needs no rebalance, as far as we know.
        on_decided: called when `decided` has become true.

    Attributes:
        decided: whether no seat waits any more for its id before it reads.

    """

    def __init__(
        self,
        settings: GroupSettings,
        cluster: Cluster,
        sessions: Mapping[str | None, Session],
        may_rename: Callable[[], bool],
        on_decided: Callable[[], None] = lambda: None,
    ) -> None:
        inherits = any(each.partitions for each in settings.work.previously_owned.values())
        # Seats that inherit partitions claim them, and the group would forget the claims while it is of type consumer.
        self.decided = not settings.protocol.own_ids_if_alone or settings.protocol.is_consumer or inherits
        self._settings = settings
        self._cluster = cluster
        self._sessions = sessions
        self._may_rename = may_rename
        self._on_decided = on_decided
        self._assigned = asyncio.Event()
        self._allowed = False
        self._warned = False

    def on_assigned(self) -> None:
        """A seat has its assignment, perhaps under a member id of the coordinator's."""
        self._assigned.set()

    async def run(self) -> None:
        """Have each seat that has another id renamed, whenever it got that id, until cancelled, or impossible."""
        while True:
            await self._assigned.wait()
            self._assigned.clear()
            while lacking := self._lacking():
                if refused := next((error for s in lacking if (error := _machine(s).own_id_refused)), 0):
                    # In this generation: 1. A leader of librdkafka's writes user data into assignments. 2. The broker
                    # takes it for that of an assignor that it does not know, and does not convert the group.
                    self._tell(f"ConsumerGroupHeartbeat was refused with {ErrorCode.name_of(refused)}")
                    break
                if reason := await self._rename_at_rest(lacking):
                    self._tell(reason)
                    return
                await self._pause(OWN_IDS_AGAIN_MS)

    async def _pause(self, longest_ms: int) -> None:
        """Wait until a seat has its assignment, for `longest_ms` at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(longest_ms / 1000):
                await self._assigned.wait()
        self._assigned.clear()

    async def decide(self) -> None:
        """Have all seats renamed once, within a bound: as soon as the group is at rest, if they are alone there."""
        try:
            async with asyncio.timeout(OWN_IDS_DECIDED_WITHIN_MS / 1000):
                await self._rename_alone()
        except (TimeoutError, WireError) as error:
            log.info("group %s: seats keep the coordinator's member ids: %r", self._settings.group, error)
        finally:
            # On every way out, because `GroupView.settled` waits for it.
            self.decided = True
            self._on_decided()

    async def _rename_alone(self) -> None:
        while (generation := self._generation()) is None or not self._may_rename():
            await self._pause(OWN_IDS_POLL_MS)
        timeout_ms = self._settings.client.request_timeout_ms
        # The group is described last, so that the description is fresh when the seats are renamed.
        reason = await self._forbidden(timeout_ms)
        group = await self._cluster.groups.describe(self._settings.group, timeout_ms=timeout_ms)
        ours = self._ours()
        if reason or not (alone(group, ours) and at_rest(group, ours)) or self._generation() != generation:
            log.info("group %s: seats keep the coordinator's member ids: %s", group.group, reason or "not alone")
            return
        lacking = self._lacking()
        for session in lacking:
            session.post(contract.Rename())
        while self._generation() is None or self._lacking():
            if any(_machine(session).own_id_refused for session in lacking):
                return
            await self._pause(OWN_IDS_POLL_MS)

    def _tell(self, reason: str) -> None:
        level = logging.DEBUG if self._warned else logging.WARNING
        log.log(level, "group %s: seats keep the coordinator's member ids: %s", self._settings.group, reason)
        self._warned = True

    def _lacking(self) -> list[Session]:
        machines = {session: _machine(session) for session in self._sessions.values()}
        return [
            session
            for session, machine in machines.items()
            if not machine.ended and machine.config.own_id not in (UNKNOWN_MEMBER_ID, machine.identity.member_id)
        ]

    def _generation(self) -> int | None:
        """The generation in which all our seats are settled, or None if they are not."""
        machines = [s.machine for s in self._sessions.values() if not s.machine.ended]
        found = {m.identity.generation if m.settled else None for m in machines}
        return found.pop() if len(found) == 1 else None

    def _ours(self) -> dict[str, frozenset[str]]:
        """Member id -> topics, of all our seats."""
        return {s.machine.identity.member_id: frozenset(s.config.topics) for s in self._sessions.values()}

    async def _rename_at_rest(self, lacking: list[Session]) -> str:
        """Rename `lacking` if the group is at rest. Returns why it can never be done, empty if it can, now or later."""
        generation = self._generation()
        if generation is None or not self._may_rename():
            return ""
        timeout_ms = self._settings.client.request_timeout_ms
        try:
            if not self._allowed and (reason := await self._forbidden(timeout_ms)):
                return reason
            self._allowed = True
            group = await self._cluster.groups.describe(self._settings.group, timeout_ms=timeout_ms)
        except WireError as error:
            log.info("no look for own member ids this time: %s", error)
            return ""
        if at_rest(group, self._ours()) and self._generation() == generation and self._may_rename():
            # All at once: the group is of type consumer until the last of them has joined.
            for session in lacking:
                session.post(contract.Rename())
        return ""

    async def _forbidden(self, timeout_ms: int) -> str:
        """Why the coordinator would not make the group a classic one again, or would assign anew, empty if neither."""
        group = self._settings.group
        if not all(_machine(session).config.cooperative for session in self._sessions.values()):
            return f"an eager assignor ({', '.join(self._settings.protocol.assignors)}) joins with empty hands"
        # A group that becomes one of type consumer keeps its epoch since ConsumerGroup.fromClassicGroup knows the hash
        # of its metadata. Kafka 4.0 has its own assignor assign anew (seen with 4.0.0, and not with 4.1.0).
        if not await self._cluster.coordinators.speaks(group, *_FETCH_OF_KAFKA_4_1, timeout_ms=timeout_ms):
            return "the coordinator is older than Apache Kafka 4.1"
        try:
            policy = await self._cluster.coordinators.config(group, _POLICY, timeout_ms=timeout_ms)
        except WireError as error:
            if error.retriable:
                raise
            return f"the broker does not tell this user its {_POLICY}: {error}"
        if (policy or "").lower() != "bidirectional":
            return f"the broker's {_POLICY} is {policy or 'not there'}, and it has to be bidirectional"
        return ""


def at_rest(group: DescribedGroup, ours: Mapping[str, frozenset[str]]) -> bool:
    """Whether no claim and no subscription of a group would be lost if it became one of type consumer for a moment.

    Its coordinator takes assignments over, and not claims: a partition that a member still reads and the group has
    taken from it would be free for all. Nor would it let a seat change its subscription without assigning anew.

    Args:
        group: as described.
        ours: member id -> topics, of all our seats.
    """
    members = {member.member_id: member for member in group.members}
    return (
        not group.is_consumer_type
        and group.state == "Stable"
        and ours.keys() <= members.keys()
        and all(frozenset(members[member_id].subscribed) == topics for member_id, topics in ours.items())
        and all(member.subscription is not None and member.claimed <= member.assignment for member in group.members)
    )


def alone(group: DescribedGroup, ours: Mapping[str, frozenset[str]]) -> bool:
    """Whether a group has our seats and no other member."""
    return {member.member_id for member in group.members} == set(ours)


def _machine(session: Session) -> ClassicMember:
    assert isinstance(session.machine, ClassicMember)
    return session.machine
