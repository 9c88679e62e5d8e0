"""The leader's duty: notice that partitions came or went, and have the group rebalance for it.

A coordinator reads neither subscriptions nor metadata. Who leads the group compares the topics of all members with what
it assigned (Kafka: ConsumerCoordinator.rejoinNeededOrPending), and a seat that came back without a rebalance looks once
for partitions that nobody owns: what KIP-814 leaves open.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping

from spark_kgroup.errors import WireError
from spark_kgroup.member import contract
from spark_kgroup.member.classic import State
from spark_kgroup.model import TopicDescription
from spark_kgroup.runtime.session import Session
from spark_kgroup.runtime.settings import GroupSettings
from spark_kgroup.wire.cluster import Cluster

log = logging.getLogger(__name__)


class MetadataWatch:
    """Watches for all seats of a group, in a task of its own.

    Args:
        sessions: our seats; only one that leads has topics to watch.
        force_rebalance: makes the whole group join anew, for a reason.

    Attributes:
        rejoins: how often a static seat was asked back without a rebalance, since the start.

    """

    def __init__(
        self,
        settings: GroupSettings,
        cluster: Cluster,
        sessions: Mapping[str | None, Session],
        force_rebalance: Callable[[str], None],
    ) -> None:
        self.rejoins = 0
        self._rejoins_looked_after = 0
        self._settings = settings
        self._cluster = cluster
        self._sessions = sessions
        self._force_rebalance = force_rebalance

    async def run(self) -> None:
        """Look each `metadata_max_age_ms`, until cancelled."""
        while True:
            await asyncio.sleep(self._settings.metadata_max_age_ms / 1000)
            for session in self._sessions.values():
                if session.machine.watched_topics:
                    await self.compare(session)
            if self._settings.finds_orphans and self.rejoins != self._rejoins_looked_after:
                await self._look_for_orphans()

    async def compare(self, leader: Session) -> None:
        """Have the group rebalance if a partition count differs from what `leader` knew when it assigned."""
        asked, generation = sorted(leader.machine.watched_topics), leader.machine.identity.generation
        try:
            metadata = await self._cluster.metadata(asked)
        except WireError as error:
            log.info("no metadata this time: %s", error)
            return
        moved_on = leader.machine.identity.generation != generation
        if moved_on or leader.machine.state not in (State.STABLE, State.REVOKING):
            return  # a new generation has, or will have, metadata of its own, and maybe of other topics
        before, counts = leader.snapshot or {}, _counts(asked, metadata.topics)
        leader.snapshot = {**before, **counts}
        changed = [topic for topic in asked if before.get(topic, counts[topic]) != counts[topic]]
        if changed:
            changes = ", ".join(f"{t}: {before[t]} -> {counts[t]}" for t in changed)
            leader.post(contract.RejoinWanted(reason=f"partition count changed ({changes})"))

    def assume_all_owned(self, topics: Mapping[str, TopicDescription]) -> None:
        """Take `topics` as what a leader that came back and did not assign would have known: all have owners.

        What it sees beyond them later is new (KIP-814 leaves a returning leader without such a baseline).
        """
        for session in self._sessions.values():
            if session.machine.leader and session.snapshot is None:
                session.snapshot = _counts(self._settings.topics, topics)

    async def _look_for_orphans(self) -> None:
        """After a seat came back to a group at rest: is there a subscribed partition that nobody owns?

        It was given its old assignment, whatever it subscribes now; and what was added while the leader was away has no
        owner either (KIP-814). Nobody else notices.
        """
        rejoins = self.rejoins
        try:
            found = (await self._cluster.metadata(sorted(self._settings.topics))).topics
            group = await self._cluster.describe_group(self._settings.group)
        except WireError as error:
            log.info("no look for partitions without an owner this time: %s", error)
            return
        if group.state != "Stable":
            return
        self._rejoins_looked_after = rejoins
        owned = {tp for member in group.members for tp in member.assignment | member.claimed}
        orphans = {tp for topic in found.values() for tp in topic.partitions} - owned
        if orphans and not group.is_consumer_type:  # its coordinator sees to that itself
            self._force_rebalance(f"{len(orphans)} subscribed partitions have no owner")


def _counts(names: Iterable[str], topics: Mapping[str, TopicDescription]) -> dict[str, int]:
    """How many partitions each topic has, 0 for one that is not there: when it comes (back), that is a change."""
    return {name: topics[name].partition_count if name in topics else 0 for name in names}
