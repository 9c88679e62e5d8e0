"""A cluster is ready or in sync, and a topic created or deleted, when every node that answers says so itself."""

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaException

from spark_kgroup.testing import ApacheKafka

LAGS_FOR = 3
BOOTSTRAP = -1


def shown(leaders: list[int], by: int = BOOTSTRAP, nodes: tuple[int, ...] = (1, 2, 3)) -> Any:
    partitions = {index: SimpleNamespace(leader=leader) for index, leader in enumerate(leaders)}
    topics = {"t": SimpleNamespace(partitions=partitions)}
    return SimpleNamespace(topics=topics, orig_broker_id=by, controller_id=1, brokers=dict.fromkeys(nodes))


def cluster(monkeypatch: pytest.MonkeyPatch, answer: Callable[[int, int], Any]) -> tuple[ApacheKafka, Counter[int]]:
    """Four nodes, of which the fourth is paused. `answer` gets a node's port and how often that was asked."""
    asked: Counter[int] = Counter()

    class Client:
        def __init__(self, servers: str) -> None:
            self._port = int(servers.rpartition(":")[2])

        def list_topics(self, *, timeout: float) -> Any:
            assert timeout > 0
            asked[self._port] += 1
            return answer(self._port, asked[self._port])

    kafka = ApacheKafka(nodes=3)
    nodes = [
        SimpleNamespace(node_id=k, port=k, running=True, answers=k != 4, interruptions=0, await_started=lambda _: None)
        for k in (1, 2, 3, 4)
    ]
    monkeypatch.setattr(kafka, "nodes", nodes)
    monkeypatch.setattr(kafka, "_client", Client, raising=False)
    return kafka, asked


def test_a_topic_is_awaited_at_each_node_that_answers_and_at_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(port: int, time: int) -> Any:
        if port == 2 and time <= LAGS_FOR:
            return [shown([1]), shown([1, -1]), SimpleNamespace(topics={}, orig_broker_id=2)][time - 1]
        if port == 3 and time == 1:
            raise KafkaException("not up yet")
        return shown([1, 2])

    kafka, asked = cluster(monkeypatch, answer)
    kafka._await_leaders("t", 2)
    assert asked == {1: 1, 2: LAGS_FOR + 1, 3: 2}


def test_the_answer_of_another_node_does_not_count_for_the_one_that_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    kafka, asked = cluster(monkeypatch, lambda port, time: shown([1, 2], by=1 if time < LAGS_FOR else port))
    kafka._await_leaders("t", 2)
    assert asked == {1: 1, 2: LAGS_FOR, 3: LAGS_FOR}


def test_a_deleted_topic_is_awaited_until_no_node_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(port: int, time: int) -> Any:
        if port == 3 and time == 1:
            raise KafkaException("busy")
        if port == 2 and time < LAGS_FOR:
            return shown([1, 2], by=port)
        return SimpleNamespace(topics={}, orig_broker_id=port)

    confirmed: Future[None] = Future()
    confirmed.set_result(None)
    kafka, asked = cluster(monkeypatch, answer)
    admin = SimpleNamespace(delete_topics=lambda names: dict.fromkeys(names, confirmed))
    monkeypatch.setattr(ApacheKafka, "admin", admin)
    kafka.delete_topic("t")
    assert asked == {1: 1, 2: LAGS_FOR, 3: 2}


def test_a_cluster_is_ready_when_each_node_that_answers_shows_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(port: int, time: int) -> Any:
        return shown([], by=port, nodes=(1, 2) if port == 3 and time < LAGS_FOR else (1, 2, 3, 4))

    kafka, asked = cluster(monkeypatch, answer)
    kafka.await_ready()
    assert asked == {1: 1, 2: 1, 3: LAGS_FOR}


def test_replicas_on_nodes_that_answer_are_awaited_until_each_node_shows_them_in_sync(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def answer(port: int, time: int) -> Any:
        lagging = [1, 3] if port == 2 and time < LAGS_FOR else [3, 2, 1]
        partitions = {
            p: SimpleNamespace(replicas=[1, 2, 3, 4], isrs=isrs) for p, isrs in enumerate([[1, 2, 3], lagging])
        }
        return SimpleNamespace(topics={"t": SimpleNamespace(partitions=partitions)}, orig_broker_id=port)

    kafka, asked = cluster(monkeypatch, answer)
    kafka.await_in_sync()
    assert asked == {1: 1, 2: LAGS_FOR, 3: 1}
