"""Look-ups of topics at the brokers: which exist, which of them a pattern matches, their partitions and leaders."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Set

from spark_kgroup.clock import monotonic_ms
from spark_kgroup.errors import UnknownTopic, WireError
from spark_kgroup.limits import (
    LEADERS_LOOKED_UP_MS,
    MATCH_AGAIN_AFTER_MS,
    PATTERN_SELECT_S_MAX,
    PATTERN_SELECT_S_SLOW,
    TOPIC_PATIENCE_MS,
)
from spark_kgroup.member.consumer_contract import NewsExpected
from spark_kgroup.model import ErrorCode, TopicDescription, TopicPartition
from spark_kgroup.peer_words import listed
from spark_kgroup.runtime.session import Session
from spark_kgroup.runtime.settings import GroupSettings
from spark_kgroup.topic_pattern import TopicPattern
from spark_kgroup.wire.cluster import Cluster, ClusterMetadata
from spark_kgroup.wire.witnesses import NamedLeader

log = logging.getLogger(__name__)


class Topics:
    """The subscribed topics as brokers showed them last, and look-ups of any other topics.

    Attributes:
        known: the subscribed topics, or those that the pattern matches, that existed at the last refresh, or empty
            before the first.

    """

    def __init__(self, settings: GroupSettings, cluster: Cluster) -> None:
        self.known: Mapping[str, TopicDescription] = {}
        self._settings = settings
        self._cluster = cluster
        self._known_at_ms = 0
        self._outdated = False
        self._matching = asyncio.Lock()
        self._warned_of_slowness = False

    async def subscribed(self, max_age_ms: int) -> Mapping[str, TopicDescription]:
        """The subscribed topics that exist, no older than `max_age_ms`.

        Raises:
            WireError: no broker answered in time.
            UnknownTopic: this user may not see a subscribed topic, or it does not exist, and it must.
        """
        if self._outdated or monotonic_ms() - self._known_at_ms > max_age_ms:
            await self.refresh(timeout_ms=self._settings.client.api_timeout_ms)
        return self.known

    async def refresh(self, timeout_ms: int) -> None:
        """Ask for the subscribed topics anew. Raises as `subscribed`."""
        self.known = await self._ask(timeout_ms)
        self._known_at_ms, self._outdated = monotonic_ms(), False

    async def _ask(self, timeout_ms: int) -> Mapping[str, TopicDescription]:
        if self._settings.pattern is not None:
            return await self._match(self._settings.pattern, timeout_ms)
        metadata = await self._cluster.metadata(
            sorted(self._settings.topics),
            timeout_ms=timeout_ms,
            # The first look waits for every topic: no earlier description could stand in for one.
            patience_ms=TOPIC_PATIENCE_MS if self.known else None,
        )
        self._check_unclear(metadata, set(self._settings.topics))
        missing = sorted(set(self._settings.topics) - set(metadata.topics))
        hidden = [t for t in missing if metadata.errors.get(t) == ErrorCode.TOPIC_AUTHORIZATION_FAILED]
        if hidden:
            raise UnknownTopic(
                f"This user may not see topic {listed(hidden, repr)}: grant READ on it, or correct the subscription."
            )
        if missing and self._settings.topics_must_exist:
            raise UnknownTopic(
                f"Topic {listed(missing, repr)} does not exist on this cluster, or this user may not see it: "
                "create it, or correct the subscription."
            )
        return metadata.topics

    def _check_unclear(self, metadata: ClusterMetadata, among: Set[str]) -> None:
        """Raise the error of a topic of which brokers have not said what it is for as long as one call may last."""
        for topic in (unclear for name, unclear in metadata.unclear.items() if name in among):
            if time.monotonic() - topic.since_s >= self._settings.client.api_timeout_ms / 1000:
                raise topic.error

    @property
    def names(self) -> tuple[str, ...]:
        """The subscribed names: those that were given, or those that the pattern matched last."""
        return self._settings.topics if self._settings.pattern is None else tuple(sorted(self.known))

    async def match_now(self) -> None:
        """Match the pattern once more, unless that was done just now, for all seats of this process together.

        A classic member does so before it joins. The member that finds a topic first makes the group rebalance: if all
        other members look before they join, that is the only rebalance for it (ConsumerCoordinator.onJoinPrepare). A
        member under the consumer protocol does so when it is assigned a topic that brokers have matched and we have
        not. If brokers do not answer, the known topics have to do.
        """
        # One look serves all seats that join together: behind the lock they find its fresh answer.
        async with self._matching:
            try:
                await self.subscribed(MATCH_AGAIN_AFTER_MS)
            except WireError as error:
                log.info("no look at the pattern's topics this time: %s", error)

    async def _match(self, pattern: TopicPattern, timeout_ms: int) -> Mapping[str, TopicDescription]:
        """Ask for all topics. Those that this user may not describe are not among them.

        Topics that have vanished are asked for by name: a broker that lags behind would make the group rebalance, and
        at the first look it would make an earlier process's topics look deleted. A topic that this user may not
        describe any more is not gone: a seat that reads it hears why that is refused.
        """
        patience_ms = TOPIC_PATIENCE_MS if self._known_at_ms else None  # the first look is of all topics, or of none
        every = await self._cluster.metadata(None, timeout_ms=timeout_ms, patience_ms=patience_ms)
        self._check_unclear(every, self.known.keys())
        # In a thread: many names may take seconds of CPU, and heartbeats must not wait for that.
        chosen = await asyncio.to_thread(self._select, pattern, every.topics.keys() - every.internal)
        found = {name: every.topics[name] for name in chosen}
        if self._known_at_ms:
            expected = set(self.known)
        else:
            expected = set(await asyncio.to_thread(self._select, pattern, self._settings.work.topic_ids.keys()))
        if vanished := expected - found.keys():
            named = await self._cluster.metadata(sorted(vanished), timeout_ms=timeout_ms, patience_ms=patience_ms)
            self._check_unclear(named, vanished)
            hidden = {name for name, code in named.errors.items() if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED}
            found |= {name: self.known[name] for name in hidden & self.known.keys()} | dict(named.topics)
        # One warning when the last topic goes, or at the first look, and none at each refresh.
        if not found and (self.known or not self._known_at_ms):
            log.warning("No topic that this user may see matches %r: the group waits for one.", pattern.java)
        return found

    def _select(self, pattern: TopicPattern, names: Set[str]) -> tuple[str, ...]:
        """The names that match. Raises as `TopicPattern.select`."""
        # CPU time of this thread: the wait for a busy machine is not the fault of the pattern.
        begun_s = time.thread_time()
        chosen = pattern.select(names, time.thread_time)
        took_s = time.thread_time() - begun_s
        if took_s > PATTERN_SELECT_S_SLOW and not self._warned_of_slowness:
            self._warned_of_slowness = True
            log.warning(
                "The pattern %r takes %.1f s of CPU for %d topics, at each look at them; beyond %.0f s that is an "
                "error. Avoid quantifiers within quantifiers, as in (a+)+, or make the inner one possessive: (a++)+.",
                pattern.java,
                took_s,
                len(names),
                PATTERN_SELECT_S_MAX,
            )
        return chosen

    async def named(self, names: Iterable[str], timeout_ms: int | None = None) -> Mapping[str, TopicDescription]:
        """Those of `names` that exist, subscribed or not, as brokers show them now.

        Raises:
            WireError: no broker answered in time (by default `api_timeout_ms`).
        """
        found = await self._cluster.metadata(sorted(names), timeout_ms=timeout_ms, patience_ms=TOPIC_PATIENCE_MS)
        return found.topics

    async def ask_another_broker(
        self, partitions: Iterable[TopicPartition], patience_ms: int
    ) -> dict[TopicPartition, tuple[NamedLeader, ...]]:
        """The leaders of `partitions`, as another broker names them (`wire.cluster.Logs.ask_another_broker`).

        The next look at the subscribed topics asks brokers anew, since readers ask the leaders in `known`.
        """
        named = await self._cluster.logs.ask_another_broker(tuple(partitions), patience_ms)
        self._outdated = True
        return named

    async def watch_leaders(self) -> None:
        """Look up the leaders each `LEADERS_LOOKED_UP_MS`, until cancelled.

        A leader that is cut off from its cluster goes on answering, and its logs look idle. Another broker that is cut
        off goes on naming it. So one broker after the other is asked, also while all answers are of use.
        """
        while True:
            await asyncio.sleep(LEADERS_LOOKED_UP_MS / 1000)
            await self.look_up_leaders()

    async def look_up_leaders(self) -> None:
        """Ask another broker who leads the subscribed topics' partitions, if the cluster has several brokers.

        If it names another leader than before, the next look at the topics asks brokers anew.
        """
        partitions = [tp for topic in self.known.values() for tp in topic.partitions]
        if not partitions or len(self._cluster.brokers.nodes) < 2:
            return
        named = await self._cluster.logs.ask_another_broker(partitions, TOPIC_PATIENCE_MS)
        if any(len({(each.leader, each.epoch) for each in both}) > 1 for both in named.values()):
            self._outdated = True

    async def gone(self, names: Iterable[str]) -> frozenset[str]:
        """Those of `names` that brokers do not know. A topic that this user may not see may exist.

        Raises:
            WireError: no broker answered in time.
        """
        errors = (await self._cluster.metadata(sorted(names), patience_ms=TOPIC_PATIENCE_MS)).errors
        return frozenset(name for name, code in errors.items() if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


class PatternSubscription:
    """Keeps all seats subscribed to the topics that the pattern matches.

    Args:
        sessions: our seats.
        force_rebalance: makes the whole group join anew, for a reason.

    """

    def __init__(
        self,
        settings: GroupSettings,
        topics: Topics,
        sessions: Mapping[str | None, Session],
        force_rebalance: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._topics = topics
        self._sessions = sessions
        self._force_rebalance = force_rebalance

    async def run(self) -> None:
        """Match the pattern each `metadata_max_age_ms`, with one rebalance for all topics that came and went."""
        while True:
            # The wait comes first, because the start has just matched the pattern.
            await asyncio.sleep(self._settings.client.metadata_max_age_ms / 1000)
            try:
                await self._topics.refresh(timeout_ms=self._settings.client.request_timeout_ms)
            except WireError as error:
                log.info("no look at the pattern's topics this time: %s", error)
                continue
            changed = self._subscribe()
            if changed and self._settings.protocol.is_consumer:
                for session in self._sessions.values():
                    session.post(NewsExpected())  # each seat sends its own subscription
            elif changed:
                self._force_rebalance(changed)

    async def match_now(self) -> None:
        """As `Topics.match_now`, for all seats: BEFORE one of them joins."""
        await self._topics.match_now()
        self._subscribe()

    def _subscribe(self) -> str:
        """Let all seats subscribe to the topics that the pattern matches now, and name the changes."""
        names = self._topics.names
        behind = [s.machine for s in self._sessions.values() if s.config.topics != names]
        if not behind:
            return ""
        before = set(behind[0].config.topics)
        for machine in behind:
            machine.subscribe(names)
        came, went = set(names) - before, before - set(names)
        return f"the pattern's topics changed: {len(came)} came, {len(went)} went"
