"""Which topics a pattern subscribes to, as brokers show them from one look to the next."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import cast
from uuid import UUID

import pytest
from harness.fake_broker import on_a_loop

from spark_kgroup.model import ErrorCode, TopicDescription
from spark_kgroup.runtime import topics as topics_module
from spark_kgroup.runtime.settings import GroupSettings
from spark_kgroup.runtime.topics import Topics
from spark_kgroup.topic_pattern import TopicPattern
from spark_kgroup.wire.cluster import Cluster
from spark_kgroup.wire.responses import ClusterMetadata


def described(name: str) -> TopicDescription:
    return TopicDescription(name=name, topic_id=UUID(int=1), partition_count=2)


@dataclass
class Brokers:
    """Answers requests for metadata.

    Attributes:
        topics: those that a request for all topics shows.
        named: those that only a request by name finds, as at a broker that lags behind.
        errors: topic -> the error that a request by name gets instead.
    """

    topics: set[str]
    named: set[str] = field(default_factory=set)
    errors: dict[str, int] = field(default_factory=dict)

    async def metadata(self, names: Iterable[str] | None, **_: int | None) -> ClusterMetadata:
        shown = self.topics if names is None else (self.topics | self.named) & set(names)
        errors = {} if names is None else {name: code for name, code in self.errors.items() if name in set(names)}
        return ClusterMetadata(
            brokers={},
            leaders={},
            topics={name: described(name) for name in shown},
            errors=errors,
            internal=frozenset({"t-internal"}),
        )


def topics_of(brokers: Brokers) -> Topics:
    settings = GroupSettings(bootstrap=(), group="g", topics=(), pattern=TopicPattern("t-.*"), instance_ids=("seat-0",))
    return Topics(settings, cast("Cluster", brokers))


@on_a_loop
async def test_topics_that_match_are_subscribed_but_internal_ones_and_others_are_not() -> None:
    topics = topics_of(Brokers({"t-a", "t-b", "u", "t-internal"}))
    await topics.refresh(timeout_ms=1_000)
    assert topics.names == ("t-a", "t-b")


@on_a_loop
async def test_a_pattern_that_is_slow_is_warned_of_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(topics_module, "PATTERN_SELECT_S_SLOW", -1.0)
    topics = topics_of(Brokers({"t-a", "u"}))
    for _ in range(2):
        await topics.refresh(timeout_ms=1_000)
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "'t-.*' takes 0.0 s of CPU for 2 topics" in warning


@on_a_loop
async def test_a_topic_that_is_deleted_is_not_subscribed_any_more() -> None:
    brokers = Brokers({"t-a", "t-b"})
    topics = topics_of(brokers)
    await topics.refresh(timeout_ms=1_000)
    brokers.topics, brokers.errors = {"t-a"}, {"t-b": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    await topics.refresh(timeout_ms=1_000)
    assert topics.names == ("t-a",)


@on_a_loop
async def test_a_topic_that_a_broker_which_lags_behind_does_not_list_stays_subscribed() -> None:
    brokers = Brokers({"t-a", "t-b"})
    topics = topics_of(brokers)
    await topics.refresh(timeout_ms=1_000)
    brokers.topics, brokers.named = {"t-a"}, {"t-b"}
    await topics.refresh(timeout_ms=1_000)
    assert topics.names == ("t-a", "t-b")


@on_a_loop
async def test_a_topic_that_the_user_may_not_describe_any_more_is_not_taken_for_deleted() -> None:
    brokers = Brokers({"t-a", "t-b"})
    topics = topics_of(brokers)
    await topics.refresh(timeout_ms=1_000)
    brokers.topics, brokers.errors = {"t-a"}, {"t-b": ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    for _ in range(2):
        await topics.refresh(timeout_ms=1_000)
        assert topics.names == ("t-a", "t-b")
