"""The topics that a query reads: named ones, or all that match a pattern.

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
        topics: the named topics, or none if there is a pattern.
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
        """The topics among `topics` that are not subscribed."""
        return {topic for topic in topics if topic not in self}

    @property
    def option(self) -> str:
        """The name of the option that gave it."""
        return "subscribe" if self.pattern is None else "subscribePattern"

    def __str__(self) -> str:
        return join(self.topics) if self.pattern is None else f"topics that match {self.pattern.java!r}"
