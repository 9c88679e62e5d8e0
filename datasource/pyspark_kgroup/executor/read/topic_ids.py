"""Whether topics are still those of which a batch was planned.

Runs on: executor.

librdkafka reads a topic by its name. If the topic is deleted and created again during a batch, it goes on in the new
log, whose records at the planned offsets are other ones, and a later batch reads them once more. The native reader
fetches by id (KIP-516), so it needs no such check.
"""

from __future__ import annotations

import logging
import platform
import time
from base64 import urlsafe_b64decode
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection, Uuid

from pyspark_kgroup.executor.read.consumer_security import usable_here
from spark_kgroup.errors import BrokerError, WireError
from spark_kgroup.limits import LOOK_AGAIN_MS, TOPIC_GONE_AFTER_MS
from spark_kgroup.model import ErrorCode
from spark_kgroup.peer_words import listed, printable_words
from spark_kgroup.rights import Rights

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient, ClusterMetadata, TopicDescription

log = logging.getLogger(__name__)

_ASKED_FOR_S: Final = 5.0
"""How long one question to brokers may take."""

_SERVED_EACH_S: Final = 0.05
_LOG_LEVEL: Final = 3
"""Errors. It would warn of each setting that consumers alone have."""

_GONE: Final = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.UNKNOWN_TOPIC_ID})


class TopicIds:
    """The ids of topics, as brokers have them now.

    Args:
        planned: topic -> the id that it had when the batch was planned, 32 hexadecimal digits.
        config: of the consumer that reads them.
        patience_s: how long brokers are asked that do not answer.
        cluster: the id of the cluster of which the batch was planned, or "" if it is not known.
    """

    def __init__(
        self,
        planned: Mapping[str, str],
        config: Mapping[str, str],
        patience_s: float,
        clock_s: Callable[[], float] = time.monotonic,
        cluster: str = "",
    ) -> None:
        self.planned = planned
        self._cluster = cluster
        self._config = config
        self._patience_s = patience_s
        self._clock_s = clock_s
        self._client: AdminClient | None = None
        self._rights = Rights(granted=True)  # READ, by which records came, implies DESCRIBE

    def changed(self, topics: Iterable[str]) -> dict[str, str]:
        """Those of `topics` that were created again, with the ids that they have now.

        Another id counts if brokers name no other one for `TOPIC_GONE_AFTER_MS`: one that lags behind may know an
        earlier topic. A topic that is gone counts as unchanged: no record of a later one can have come.

        Raises:
            WireError: no broker of the driver's cluster has said it in time, or the right to ask is gone for too long.
        """
        asked = sorted({topic for topic in topics if self.planned.get(topic)})
        since_s = self._clock_s()
        while asked:
            now = self._ids(asked)
            other = {topic: now[topic] for topic in asked if now.get(topic, self.planned[topic]) != self.planned[topic]}
            if self._clock_s() - since_s >= TOPIC_GONE_AFTER_MS / 1000:
                return other
            asked = sorted(other)
            if asked:
                self._client = None  # it may ask one broker for ever, and that one may be cut off: a new one draws lots
                time.sleep(LOOK_AGAIN_MS / 1000)
        return {}

    def _ids(self, topics: list[str]) -> dict[str, str]:
        """Topic -> its id, without topics that do not exist or have no id."""
        deadline_s = self._clock_s() + self._patience_s
        while True:
            try:
                ids = self._ask(topics)
            except KafkaException as problem:
                if isinstance(problem, AnotherCluster):
                    self._client = None  # a client stays at the cluster that it has reached
                error: KafkaError = problem.args[0]
                asked_about = problem.args[1:] or topics
                if (failure := self._failure(asked_about, error, late=self._clock_s() > deadline_s)) is not None:
                    raise failure from None
                log.info("asking again for the ids of topics: %s", printable_words(error.str()))
                time.sleep(LOOK_AGAIN_MS / 1000)
            else:
                self._rights.on_granted()
                return ids

    def _failure(self, topics: Sequence[str], error: KafkaError, *, late: bool) -> WireError | None:
        """The error for the user, or None if brokers are to be asked again."""
        if error.code() == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            may_pass = self._rights.may_come_back(int(self._clock_s() * 1000)) and not late
            return None if may_pass else BrokerError("Metadata", error.code(), listed(topics))
        if not late:
            return None
        words = printable_words(error.str())
        return WireError(f"No broker says whether {listed(topics)} was created again during this batch: {words}")

    def _ask(self, topics: list[str]) -> dict[str, str]:
        if self._client is None:
            from confluent_kafka.admin import AdminClient  # 14 modules, which a read without a record does not need

            config = {**usable_here(self._config), "log_level": _LOG_LEVEL, "allow.auto.create.topics": False}
            self._client = AdminClient(config, logger=log)
        found = {}
        asked = self._client.describe_topics(TopicCollection(topics), request_timeout=_ASKED_FOR_S)
        for topic, answer in asked.items():
            while not answer.done():
                self._client.poll(_SERVED_EACH_S)  # a token callback is called from here
            try:
                described: TopicDescription = answer.result()
            except KafkaException as problem:
                if problem.args[0].code() not in _GONE:
                    raise KafkaException(problem.args[0], topic) from None
            else:
                found[topic] = _hex(described.topic_id)
        ids = {topic: id_ for topic, id_ in found.items() if int(id_, 16)}
        if any(id_ != self.planned[topic] for topic, id_ in ids.items()):
            check_cluster(self._client.list_topics(min(ids), _ASKED_FOR_S), self._cluster)
        return ids


class AnotherCluster(KafkaException):
    """The answer is of a broker of another cluster than the driver's."""


def check_cluster(seen: ClusterMetadata, ours: str) -> None:
    """Refuse the answer of a broker of another cluster than the driver's, whose id is `ours`, or "" if not known.

    Raises:
        AnotherCluster: it is one. The addresses may be given back, so brokers are to be asked again.
    """
    if not (seen.cluster_id and ours) or seen.cluster_id == ours:
        return
    text = (
        f"A broker of another cluster answers {platform.node()} (cluster id {printable_words(seen.cluster_id)}, the "
        f"driver's is {printable_words(ours)}), and its answers are not used. Names in `kafka.bootstrap.servers` or in "
        "brokers' advertised.listeners lead elsewhere here than at the driver, or belong to another cluster by now."
    )
    raise AnotherCluster(KafkaError(KafkaError._STATE, text))


def _hex(id_: Uuid) -> str:
    """As `Leader.topic_id`. librdkafka writes an id as Kafka's tools do: 16 bytes in base64, without padding."""
    return urlsafe_b64decode(f"{id_}==").hex()
