"""What brokers say of topics: which exist, and with how many partitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from spark_kgroup.clock import monotonic_ms
from spark_kgroup.errors import UnknownTopic
from spark_kgroup.model import ErrorCode, TopicDescription
from spark_kgroup.runtime.settings import GroupSettings
from spark_kgroup.wire.cluster import Cluster


class Topics:
    """The subscribed topics as brokers showed them last, and look-ups of any others.

    Attributes:
        known: the subscribed topics that existed at the last refresh; empty before the first.

    """

    def __init__(self, settings: GroupSettings, cluster: Cluster) -> None:
        self.known: Mapping[str, TopicDescription] = {}
        self._settings = settings
        self._cluster = cluster
        self._known_at_ms = 0

    async def subscribed(self, max_age_ms: int) -> Mapping[str, TopicDescription]:
        """The subscribed topics that exist, no older than `max_age_ms`.

        Raises:
            WireError: no broker answered in time.
            UnknownTopic: this user may not see a subscribed topic; or it does not exist, and it must.
        """
        if monotonic_ms() - self._known_at_ms > max_age_ms:
            await self.refresh(timeout_ms=self._settings.api_timeout_ms)
        return self.known

    async def refresh(self, timeout_ms: int) -> None:
        """Ask for the subscribed topics anew; raises as `subscribed`."""
        metadata = await self._cluster.metadata(sorted(self._settings.topics), timeout_ms=timeout_ms)
        missing = sorted(set(self._settings.topics) - set(metadata.topics))
        hidden = [t for t in missing if metadata.errors.get(t) == ErrorCode.TOPIC_AUTHORIZATION_FAILED]
        if hidden:
            raise UnknownTopic(
                f"This user may not see topic {', '.join(map(repr, hidden))}: grant READ on it, or correct the option "
                "`topics`."
            )
        if missing and self._settings.topics_must_exist:
            raise UnknownTopic(
                f"Topic {', '.join(map(repr, missing))} does not exist on this cluster, or this user may not see it: "
                "create it, or correct the option `topics`."
            )
        self.known, self._known_at_ms = metadata.topics, monotonic_ms()

    async def named(self, names: Iterable[str]) -> Mapping[str, TopicDescription]:
        """Those of `names` that exist, subscribed or not, as brokers show them now.

        Raises:
            WireError: no broker answered in time.
        """
        return (await self._cluster.metadata(sorted(names))).topics

    async def gone(self, names: Iterable[str]) -> frozenset[str]:
        """Those of `names` that brokers do not know; what this user may not see may be there.

        Raises:
            WireError: no broker answered in time.
        """
        errors = (await self._cluster.metadata(sorted(names))).errors
        return frozenset(name for name, code in errors.items() if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
