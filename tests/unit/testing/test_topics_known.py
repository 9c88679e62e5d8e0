"""A topic counts as created when every node that answers knows it."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaException

from spark_kgroup.testing import ApacheKafka

LAGS_FOR = 3


def shown(leaders: list[int]) -> Any:
    partitions = {index: SimpleNamespace(leader=leader) for index, leader in enumerate(leaders)}
    return SimpleNamespace(topics={"t": SimpleNamespace(partitions=partitions)})


def test_a_topic_is_awaited_at_each_node_that_answers_and_at_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: Counter[str] = Counter()

    class Client:
        def __init__(self, servers: str) -> None:
            self._servers = servers

        def list_topics(self, *, timeout: float) -> Any:
            assert timeout > 0
            asked[self._servers] += 1
            if self._servers.endswith(":2") and asked[self._servers] <= LAGS_FOR:
                answers = [shown([1]), shown([1, -1]), SimpleNamespace(topics={})]
                return answers[asked[self._servers] - 1]
            if self._servers.endswith(":3") and asked[self._servers] == 1:
                raise KafkaException("not up yet")
            return shown([1, 2])

    kafka = ApacheKafka(nodes=3)
    nodes = [SimpleNamespace(node_id=k, port=k, answers=k != 4, interruptions=0) for k in (1, 2, 3, 4)]
    monkeypatch.setattr(kafka, "nodes", nodes)
    monkeypatch.setattr(kafka, "_client", Client, raising=False)
    monkeypatch.setattr(kafka, "_admin", Client("any:1"))
    kafka._await_leaders("t", 2)
    assert asked == {"127.0.0.1:1": 1, "127.0.0.1:2": LAGS_FOR + 1, "127.0.0.1:3": 2}
