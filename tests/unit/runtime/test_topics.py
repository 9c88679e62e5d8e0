"""Which topics a pattern subscribes to, as brokers show them from one look to the next."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast
from uuid import UUID

import pytest
from harness.fake_broker import on_a_loop

from spark_kgroup.errors import BrokerError
from spark_kgroup.limits import API_TIMEOUT_MS, TOPIC_PATIENCE_MS
from spark_kgroup.model import ErrorCode, TopicDescription
from spark_kgroup.runtime import topics as topics_module
from spark_kgroup.runtime.settings import GroupSettings, OngoingWork
from spark_kgroup.runtime.topics import Topics
from spark_kgroup.topic_pattern import TopicPattern
from spark_kgroup.wire.cluster import Cluster
from spark_kgroup.wire.responses import ClusterMetadata, UnclearTopic


def described(name: str) -> TopicDescription:
    return TopicDescription(name=name, topic_id=UUID(int=1), partition_count=2)


@dataclass
class Brokers:
    """Answers requests for metadata.

    Attributes:
        topics: those that a request for all topics shows.
        named: those that only a request by name finds, as at a broker that lags behind.
        errors: topic -> the error that a request by name gets instead.
        unclear: topics of which they do not say what they are.
        patiences_ms: how long each request would wait for an unclear topic. None: until the topic is clear.
    """

    topics: set[str]
    named: set[str] = field(default_factory=set)
    errors: dict[str, int] = field(default_factory=dict)
    unclear: dict[str, UnclearTopic] = field(default_factory=dict)
    patiences_ms: list[int | None] = field(default_factory=list)

    async def metadata(
        self, names: Iterable[str] | None, *, patience_ms: int | None = None, **_: int | None
    ) -> ClusterMetadata:
        self.patiences_ms.append(patience_ms)
        shown = self.topics if names is None else (self.topics | self.named) & set(names)
        errors = {} if names is None else {name: code for name, code in self.errors.items() if name in set(names)}
        return ClusterMetadata(
            brokers={},
            leaders={},
            topics={name: described(name) for name in shown},
            errors=errors,
            unclear=self.unclear,
            internal=frozenset({"t-internal"}),
        )


def topics_of(brokers: Brokers, *named: str, of_earlier_process: Iterable[str] = ()) -> Topics:
    """The topics of these names, or else those that a pattern matches."""
    pattern = None if named else TopicPattern("t-.*")
    work = OngoingWork(topic_ids=dict.fromkeys(of_earlier_process, UUID(int=1)))
    settings = GroupSettings(
        bootstrap=(), group="g", topics=named, pattern=pattern, instance_ids=("seat-0",), work=work
    )
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
async def test_a_topic_of_an_earlier_process_that_the_first_broker_does_not_list_is_asked_for_by_name() -> None:
    """Else a restart beside a broker that was cut off before the topic was there would call its records lost."""
    brokers = Brokers({"t-a"}, named={"t-b", "u"}, errors={"t-c": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
    topics = topics_of(brokers, of_earlier_process=("t-a", "t-b", "t-c", "u"))
    await topics.refresh(timeout_ms=1_000)
    assert topics.names == ("t-a", "t-b")
    assert brokers.patiences_ms == [None, None], "both wait for each topic, as the first look does"
    await topics.refresh(timeout_ms=1_000)
    assert topics.names == ("t-a", "t-b")


@pytest.mark.parametrize("code", [ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION])
@on_a_loop
async def test_a_topic_of_an_earlier_process_that_brokers_deny_or_hide_is_not_subscribed(code: int) -> None:
    topics = topics_of(Brokers({"t-a"}, errors={"t-b": code}), of_earlier_process=("t-b",))
    await topics.refresh(timeout_ms=1_000)
    assert topics.names == ("t-a",)


@on_a_loop
async def test_a_topic_that_the_user_may_not_describe_any_more_is_not_taken_for_deleted() -> None:
    brokers = Brokers({"t-a", "t-b"})
    topics = topics_of(brokers)
    await topics.refresh(timeout_ms=1_000)
    brokers.topics, brokers.errors = {"t-a"}, {"t-b": ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    for _ in range(2):
        await topics.refresh(timeout_ms=1_000)
        assert topics.names == ("t-a", "t-b")


@on_a_loop
async def test_the_first_look_at_a_pattern_s_topics_waits_for_each_of_them_and_later_ones_do_not() -> None:
    """The first decides with which topics the query begins. Later an earlier description stands in for an answer."""
    brokers = Brokers({"t-a"})
    topics = topics_of(brokers)
    await topics.refresh(timeout_ms=1_000)
    await topics.refresh(timeout_ms=1_000)
    assert brokers.patiences_ms == [None, TOPIC_PATIENCE_MS]


@pytest.mark.parametrize("named", [(), ("t-a", "t-b")], ids=["pattern", "names"])
@on_a_loop
async def test_a_topic_that_stays_unclear_is_an_error_when_one_call_could_not_have_lasted_longer(
    named: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic that is not subscribed is no matter of this query, however long it is unclear."""
    now_s = 1_000_000.0
    monkeypatch.setattr(topics_module, "time", SimpleNamespace(monotonic=lambda: now_s, thread_time=float))
    brokers = Brokers({"t-a", "t-b"})
    topics = topics_of(brokers, *named)
    await topics.subscribed(-1)
    trouble = BrokerError("Metadata", ErrorCode.UNKNOWN_SERVER_ERROR, "t-b")
    brokers.unclear = {"t-b": UnclearTopic(trouble, now_s), "u": UnclearTopic(trouble, 0)}
    now_s += API_TIMEOUT_MS / 1000 - 1
    assert set(await topics.subscribed(-1)) == {"t-a", "t-b"}
    now_s += 1
    with pytest.raises(BrokerError, match="UNKNOWN_SERVER_ERROR: t-b"):
        await topics.subscribed(-1)
    brokers.unclear = {}
    assert set(await topics.subscribed(-1)) == {"t-a", "t-b"}
