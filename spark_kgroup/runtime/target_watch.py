"""Whether our seats have reached their target assignments, under the consumer protocol.

A newcomer is first assigned no partitions, or those that are free at once, and the coordinator computes targets later
and all at once (group.consumer.assignment.interval.ms): a member that owns its assignment may be far from its target.
The group's description tells each member's target, so this is asked until all of them are reached. A seat that has news
there heartbeats at once, and not at the end of its interval: seats of one process would else hand partitions over to
each other at 5 s a step (group.consumer.heartbeat.interval.ms). Targets are computed while the coordinator answers some
member's heartbeat, so one seat of ours asks while they are due.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from spark_kgroup.errors import WireError
from spark_kgroup.limits import SHARES_LOOK_MAX_MS, SHARES_LOOK_MIN_MS
from spark_kgroup.member.consumer_contract import NewsExpected
from spark_kgroup.model import DescribedGroup, MemberIdentity
from spark_kgroup.runtime.session import Session
from spark_kgroup.runtime.settings import GroupSettings
from spark_kgroup.wire.groups import Groups

log = logging.getLogger(__name__)

_Members = frozenset[MemberIdentity]


class TargetWatch:
    """Compares our seats with the group's description, in a task of its own.

    Args:
        sessions: our seats.
        on_known: called when `known` has become true.

    """

    def __init__(
        self,
        settings: GroupSettings,
        groups: Groups,
        sessions: Mapping[str | None, Session],
        on_known: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._groups = groups
        self._sessions = sessions
        self._on_known = on_known
        self._confirmed: _Members | None = None

    @property
    def known(self) -> bool:
        """Whether each of our seats has its target, in its epoch. True in a classic group, which says so itself."""
        if not self._settings.protocol.is_consumer:
            return True
        return self._confirmed is not None and self._confirmed == self._settled()

    def forget(self) -> None:
        """Drop what the group's description said last: our seats have just changed the group, so ask for it again."""
        self._confirmed = None

    async def run(self) -> None:
        """Look while a target is unknown, until cancelled, and less often the longer our seats stay the same."""
        wait_ms, before = SHARES_LOOK_MIN_MS, None
        while True:
            await asyncio.sleep(wait_ms / 1000)
            settled = self._settled()
            wait_ms = min(2 * wait_ms, SHARES_LOOK_MAX_MS) if settled == before else SHARES_LOOK_MIN_MS
            before = settled
            if settled is not None and settled != self._confirmed:
                await self._describe_group(settled)

    def _settled(self) -> _Members | None:
        """Our members, if each owns its assignment, as far as it knows."""
        machines = [session.machine for session in self._sessions.values()]
        return frozenset(m.identity for m in machines) if machines and all(m.settled for m in machines) else None

    async def _describe_group(self, settled: _Members) -> None:
        try:
            group = await self._groups.describe(
                self._settings.group, timeout_ms=self._settings.client.request_timeout_ms
            )
        except WireError as error:
            log.info("the coordinator did not describe the group's target assignment: %s", error)
            return
        behind = _behind(group, settled)
        # The coordinator says Assigning while targets are older than the group's members, subscriptions and topics.
        targets_due = group.state == "Assigning"
        asking = behind or (frozenset([min(settled, key=lambda who: who.member_id)]) if targets_due else frozenset())
        for session in self._sessions.values():
            if session.machine.identity in asking:
                session.post(NewsExpected())
        # The description is of the seats as they were when it was asked for.
        if not asking and self._settled() == settled:
            self._confirmed = settled
            self._on_known()


def _behind(group: DescribedGroup, ours: _Members) -> _Members:
    """Those of `ours` that have not reached their target, or are not in the epoch of it."""
    arrived = {
        (member.instance_id, member.member_id, member.epoch)
        for member in group.members
        if member.epoch == group.target_epoch and member.target == member.assignment
    }
    return frozenset(who for who in ours if (who.instance_id, who.member_id, who.generation) not in arrived)
