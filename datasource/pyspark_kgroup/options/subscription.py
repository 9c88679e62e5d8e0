"""Which topics a query reads: those that are named, or all that a pattern matches.

Runs on: driver. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pyspark_kgroup.options.values import join
from spark_kgroup.topic_pattern import TopicPattern


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """The topics that `subscribe` or `subscribePattern` gives.

    Attributes:
        topics: those that are named, or none if there is a pattern.
        pattern: None if topics are named.
    """

    topics: tuple[str, ...] = ()
    pattern: TopicPattern | None = None

    def __contains__(self, topic: object) -> bool:
        """Whether a topic of this name is read, if it exists."""
        if self.pattern is None:
            return topic in self.topics
        return isinstance(topic, str) and self.pattern.matches(topic)

    def beyond(self, topics: Iterable[str]) -> set[str]:
        """Those of `topics` that are not subscribed."""
        return {topic for topic in topics if topic not in self}

    @property
    def option(self) -> str:
        """The option that it comes from."""
        return "subscribe" if self.pattern is None else "subscribePattern"

    def __str__(self) -> str:
        return join(self.topics) if self.pattern is None else f"what {self.pattern.java!r} matches"
