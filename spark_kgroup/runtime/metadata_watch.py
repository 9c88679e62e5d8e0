"""The watch over a group's assignment: partitions that came or went, and members whose assignment does not fit.

A coordinator reads neither subscriptions nor metadata. In Kafka's client the leader compares metadata with its
knowledge when it assigned (ConsumerCoordinator.rejoinNeededOrPending), so a leader that came back, and any that is
blind, misses changes meanwhile (KIP-814). Here each process with a member looks at the group's assignment
(`assignment_drift`), regardless of the leader: at each refresh of metadata, and as soon as a static member was asked
back. It asks once for all of its members.

A rebalance waits for all members (KIP-345), so it is not forced while a static leader may be away: it would only hold
up the other members until the leader is back, and looks itself, or until its session is over, and the group rebalances
anyhow. A process forces it if it has the leader, or a member that was asked back just now. Any process forces it at
once if the leader is dynamic, for the group does not wait for it, and a look later if the leader was asked back, for
that leader may be of another client and not look for minutes. Not at once, because it may still have to fetch its
assignment: in a rebalance before that it claims no partition, and other members get those that it had. A static leader
that was never away may not look for minutes either, so a second refresh that finds the same forces it. But no process
does so where the leader has our client id, for then it looks as we do, nor where our members are eager, which would
stand still if the leader is away.

Several processes may find the same and force a rebalance at the same time: it is one. A join begins a rebalance, and
each further join takes part in it, because the rebalance cannot end without the join's sender.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace

from spark_kgroup.assignors import NAMES
from spark_kgroup.clock import monotonic_ms
from spark_kgroup.errors import WireError
from spark_kgroup.limits import FORCE_AGAIN_MAX_MS, LOOK_AGAIN_MS, TOPIC_PATIENCE_MS
from spark_kgroup.member import contract
from spark_kgroup.member.classic import ClassicMember
from spark_kgroup.member.config import MemberConfig
from spark_kgroup.model import DescribedGroup, DescribedMember, ErrorCode, TopicDescription, TopicPartition
from spark_kgroup.peer_words import listed
from spark_kgroup.runtime.assignment_drift import (
    AssignmentDrift,
    exists,
    find_drift,
    find_unshared,
    left_out_by,
    topics_of,
)
from spark_kgroup.runtime.session import Session
from spark_kgroup.runtime.settings import GroupSettings
from spark_kgroup.wire.cluster import Cluster, ClusterMetadata

log = logging.getLogger(__name__)

Subscriptions = Mapping[str, tuple[str, ...]]
"""Instance id, or member id of a dynamic member -> its topics."""


class MetadataWatch:
    """Watches for all our members of a group, in a task of its own.

    Args:
        sessions: our members.
        force_rebalance: makes the whole group join anew, for a reason.
        on_looked: called when `look_due` or `held` may have changed.

    Attributes:
        look_due: a static member was asked back without a rebalance, and no look has followed.

    """

    def __init__(
        self,
        settings: GroupSettings,
        cluster: Cluster,
        sessions: Mapping[str | None, Session],
        force_rebalance: Callable[[str], None],
        on_looked: Callable[[], None],
    ) -> None:
        self.look_due = False
        self._settings = settings
        self._cluster = cluster
        self._sessions = sessions
        self._force_rebalance = force_rebalance
        self._on_looked = on_looked
        self._wake = asyncio.Event()
        self._again = False
        self._counts: Mapping[str, int] = {}
        self._subscriptions: Subscriptions | None = None
        self._gone = frozenset[TopicPartition]()
        self._found: tuple[AssignmentDrift, int] | None = None
        self._left: tuple[AssignmentDrift, int] | None = None
        """The drift that a look has left to a static leader of another process, and its generation."""
        self._seen = frozenset[str]()
        """The member ids of the group at the last look."""
        self._warned_of = frozenset[TopicPartition]()
        self._held: tuple[AssignmentDrift, int] | None = None
        self._pause_ms = 0
        self._pause_ends_ms = 0

    @property
    def held(self) -> AssignmentDrift | None:
        """The drift whose rebalance waits for the members' owner (`OngoingWork.holds_rebalances`), if any."""
        return self._held[0] if self._held is not None and self._held[1] == self._generation() else None

    def on_joined(self, *, rejoined: bool) -> None:
        """A member of ours is in a generation: in a new one, or asked back without a rebalance (KIP-345)."""
        # A new assignment was made for all current subscriptions, so the look of an earlier generation is not due any
        # more: it would force a rebalance for a later change although a static leader may be away. To an old
        # assignment, each subscription may be news.
        self.look_due = rejoined
        self._subscriptions = {} if rejoined else None

    def on_assigned(self) -> None:
        """A member of ours has its assignment."""
        if self.look_due:
            self._wake.set()

    async def run(self) -> None:
        """Look each `metadata_max_age_ms`, and when a member was asked back, until cancelled."""
        while True:
            max_age_ms = self._settings.client.metadata_max_age_ms
            wait_ms = min(LOOK_AGAIN_MS, max_age_ms) if self.look_due or self._again else max_age_ms
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_ms / 1000):
                    await self._wake.wait()
            self._wake.clear()
            await self.look()
            self._on_looked()

    async def look(self) -> None:
        """Compare the group's assignment once with metadata and subscriptions. Force a rebalance if it does not fit.

        No conclusion is drawn unless all our members are in one generation from the first question to the last answer:
        the next generation has, or will have, an assignment of its own.
        """
        generation = self._generation()
        if generation is None:
            return
        self._again = False
        try:
            group = await self._cluster.groups.describe(
                self._settings.group, timeout_ms=self._settings.client.request_timeout_ms
            )
            if group.is_consumer_type:  # its coordinator sees to that itself (KIP-848)
                self.look_due = False
                return
            names = {*topics_of(group), *self._settings.topics, *self._watched()}
            metadata = await self._cluster.metadata(
                names, timeout_ms=self._settings.client.request_timeout_ms, patience_ms=TOPIC_PATIENCE_MS
            )
        except WireError as error:
            log.info("no look at the group's assignment this time: %s", error)
            return
        # The description of a group that rebalances has no assignments.
        if group.state != "Stable":
            return
        # `_changed` replaces the counts that our leader knows, so it is not asked once a later generation has begun.
        changed = self._generation() == generation and self._changed(metadata)
        drift = await self._drift(group, metadata)
        if self._generation() != generation:
            return
        for session in self._behind(group, metadata.topics):
            session.post(contract.RejoinWanted(reason="assigned partitions that no sync has told of"))
        # A rebalance for these changes mends the drift as well.
        if changed:
            self._force_rebalance(changed)
        elif drift and self._leaves_to_leader(group, drift, generation):
            return  # partitions that are new to us stay so
        else:
            self._act_on(drift, generation, group)
        self._counts = _counts(names, metadata.topics)
        self.look_due = self.look_due and self._again

    def _generation(self) -> int | None:
        """The generation that all our members are in, None while one of them is not in it."""
        machines = [session.machine for session in self._sessions.values() if not session.machine.ended]
        found = {m.identity.generation if m.in_generation else None for m in machines}
        return found.pop() if len(found) == 1 else None

    def _behind(self, group: DescribedGroup, topics: Mapping[str, TopicDescription]) -> list[Session]:
        """Our members to which the group assigns more than they have heard of. The answer to a join tells them.

        1. A newcomer joins a group of type consumer, in which another member still reads the newcomer's target. 2. The
        last member with `group.protocol=consumer` comes back as a classic one. 3. The group is classic from then on,
        and each member has its whole target, in the generation in which it is (ClassicGroup.fromConsumerGroup). 4. The
        newcomer's heartbeats are answered with NONE for ever. Seen with Kafka 4.3.1.
        """
        assignments = {member.member_id: member.assignment for member in group.members}
        found = []
        for session in self._sessions.values():
            if isinstance(machine := session.machine, ClassicMember) and machine.in_generation:
                known = machine.ownership.assigned | machine.ownership.unwanted | machine.ownership.tolerated
                more = assignments.get(machine.identity.member_id, frozenset()) - known
                if any(tp.topic in machine.config.topics and exists(tp, topics) for tp in more):
                    found.append(session)
        return found

    def _leaves_to_leader(self, group: DescribedGroup, found: AssignmentDrift, generation: int) -> bool:
        """Whether the leader is to mend the drift: it is a static member of another process, and may be away.

        A leader that was asked back has a new member id, and does not know of the changes meanwhile (KIP-814).
        """
        seen, self._seen = self._seen, frozenset(member.member_id for member in group.members)
        if any(session.machine.leader for session in self._sessions.values()):
            return False
        leaders = self._leaders_in(group)
        if not leaders and self._seen != seen:  # asked back since the last look, maybe without its assignment yet
            self._again = True
            return True
        static = [leader for leader in leaders if leader.instance_id is not None]
        if self.look_due or not static:
            return False
        left, self._left = self._left, (found, generation)
        looks_itself = any(leader.client_id == self._settings.client.client_id for leader in static)
        # Another drift, or one in another generation, gives the leader its time anew.
        if looks_itself or left is None or left[1] != generation or not left[0] <= found:
            return True
        configs = [session.config for session in self._sessions.values()]
        # Eager members give up all partitions before they join, and would wait for an absent leader without any.
        reads_on = all(isinstance(config, MemberConfig) and config.cooperative for config in configs)
        if not reads_on:
            self._warn_of_leader(group, found)
        return not reads_on

    def _leaders_in(self, group: DescribedGroup) -> list[DescribedMember]:
        """The leader that our members know, or empty if that one has gone, or has another member id by now."""
        leader_ids = {session.machine.leader_id for session in self._sessions.values()}
        return [member for member in group.members if member.member_id in leader_ids]

    def _warn_of_leader(self, group: DescribedGroup, found: AssignmentDrift) -> None:
        """Warn once that partitions wait for a leader of another process: this process cannot mend it."""
        ours = {session.machine.identity.member_id for session in self._sessions.values()}
        leader = next((m for m in self._leaders_in(group) if m.member_id not in ours), None)
        if leader is not None and found.without_owner - self._warned_of:
            log.warning(
                "group %r: %d partitions have no owner, for the group's leader has not assigned them. The leader is "
                "client %r at %r. It is away, or has not seen these partitions yet: a Java consumer looks for new ones "
                "each metadata.max.age.ms, 5 minutes by default. Set that lower there.",
                self._settings.group,
                len(found.without_owner),
                leader.client_id,
                leader.client_host.lstrip("/"),
            )
        self._warned_of = found.without_owner

    def _watched(self) -> frozenset[str]:
        return frozenset(topic for session in self._sessions.values() for topic in session.machine.watched_topics)

    def _changed(self, metadata: ClusterMetadata) -> str:
        """The partition counts that changed since a leader of ours assigned, empty if none did, or none has assigned.

        The assignment alone does not tell all: 1. A partition is added. 2. The broker that our leader asks has not
        heard of it yet. 3. The rebalance that was to give it an owner does not, and is not forced again for it. A topic
        that we may not see for a moment counts as unchanged.
        """
        hidden = _hidden(metadata)
        for session in self._sessions.values():
            if (before := session.snapshot) is not None and session.machine.leader:
                now = _counts(before, metadata.topics)
                # The new counts become the known ones, so that one change forces one rebalance.
                session.snapshot = counts = now | {name: n for name, n in before.items() if name in hidden}
                changes = [f"{topic}: {n} -> {counts[topic]}" for topic, n in before.items() if n != counts[topic]]
                if changes:
                    return f"partition count changed ({listed(changes)})"
        return ""

    async def _drift(self, group: DescribedGroup, metadata: ClusterMetadata) -> AssignmentDrift:
        """The drift, found in threads: for a large group this takes as long as several heartbeats."""
        hidden = _hidden(metadata)
        ours = {session.machine.identity.member_id for session in self._sessions.values()}
        found = await asyncio.to_thread(find_drift, group, metadata.topics, hidden=hidden, ours=ours)
        chosen = next((s.config.assignors for s in self._sessions.values() if isinstance(s.config, MemberConfig)), ())
        custom = next((a for a in chosen if a.name == group.protocol and a.name not in NAMES), None)
        if custom is not None and found.without_owner:  # it may leave them out on purpose
            left = await asyncio.to_thread(left_out_by, custom, group, metadata.topics)
            found = replace(found, without_owner=found.without_owner - left)
        known, now = self._subscriptions, {m.instance_id or m.member_id: m.subscribed for m in group.members}
        # The assignor has to run for this, so only a changed subscription is a reason to ask.
        if known is not None and known != now:
            found = replace(found, unshared=await asyncio.to_thread(find_unshared, group, metadata.topics))
        # A join may have replaced them while the threads ran, and the next look has to see that.
        if self._subscriptions is known:
            self._subscriptions = now
        return found

    def _act_on(self, found: AssignmentDrift, generation: int, group: DescribedGroup) -> None:
        """Force a rebalance for a drift, or hold it back, unless an earlier rebalance has not mended the drift."""
        # A broker that lags behind does not know partitions that the leader's broker knows: they must be gone in two
        # looks, the second one at another broker.
        confirmed = replace(found, gone=found.gone & self._gone)
        self._again, self._gone = confirmed != found, found.gone
        if self._again:
            self._cluster.doubt({tp.topic for tp in found.gone})
        if not confirmed:
            self._held = None
            if not self._again:
                # The assignment fits again, so the next drift is news and needs no pause.
                self._found, self._pause_ms = None, 0
            return
        # A later generation than that of the drift: the rebalance that was forced for it is over.
        if self._found is not None and generation != self._found[1]:
            if confirmed <= self._found[0]:
                log.debug("a rebalance has not mended it: %s", confirmed.reason)
                self._warn_of_leader(group, confirmed)
                self._found = (confirmed, self._found[1])  # a mended part is news when it comes again
                return
            if self._pause_ms and monotonic_ms() < self._pause_ends_ms:
                return
            self._pause_ms = min(max(2 * self._pause_ms, self._settings.client.metadata_max_age_ms), FORCE_AGAIN_MAX_MS)
            self._pause_ends_ms = monotonic_ms() + self._pause_ms
        self._found = (confirmed, generation)
        # The application has no position in new partitions that it would have to commit first.
        if self._settings.work.holds_rebalances and not self._is_new(confirmed):
            self._held = (confirmed, generation)
            return
        log.warning("the group rebalances: %s", confirmed.reason)
        self._force_rebalance(confirmed.reason)

    def _is_new(self, found: AssignmentDrift) -> bool:
        """Whether these are only partitions that were not there at an earlier look: no member has ever owned them."""
        counts = self._counts
        new = all(tp.topic in counts and tp.partition >= counts[tp.topic] for tp in found.without_owner)
        return new and found == AssignmentDrift(without_owner=found.without_owner)


def _hidden(metadata: ClusterMetadata) -> set[str]:
    """Topics that may exist, and that the brokers do not describe: a right is missing, for example."""
    denied = {name for name, code in metadata.errors.items() if code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    return denied | metadata.unclear.keys()


def _counts(names: Iterable[str], topics: Mapping[str, TopicDescription]) -> dict[str, int]:
    """How many partitions each topic has, 0 for one that is not there: when it comes (back), that is a change."""
    return {name: topics[name].partition_count if name in topics else 0 for name in names}
