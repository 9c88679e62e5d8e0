"""In which order the brokers of a cluster are asked, and how many of them it takes. No I/O.

Each broker is one witness. A broker that is cut off from its cluster goes on answering as before: it names leaders and
coordinators that are gone, and gives the same answer to the next question.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from spark_kgroup.limits import API_TIMEOUT_MS, TOPIC_GONE_AFTER_MS, WITNESS_MAX_AGE_MS
from spark_kgroup.wire.address import Address


class NamedLeader(NamedTuple):
    """The leader of a partition, and its epoch, as one broker names them. All brokers are node ids.

    Attributes:
        named_by: the broker that says so.
        leader: the broker that leads the partition.
        epoch: -1 if brokers do not tell it.
    """

    named_by: int
    leader: int
    epoch: int


class Witnesses:
    """The doubted brokers, whose last answers were of no use: they are asked after all others, the latest of them last.

    So a round of retries begins with another broker than the round before, until each had its turn. Nor is one broker
    asked first for ever: a change that it does not know would stay unnoticed, as long as its answers are of use.
    """

    def __init__(self) -> None:
        self._doubted: dict[Address, None] = {}
        self._first: Address | None = None
        self._first_since_s = 0.0

    def in_order(self, addresses: Iterable[Address]) -> list[Address]:
        """`addresses`, with the doubted ones at the end. Doubts about any other address are forgotten."""
        known = dict.fromkeys(addresses)
        self._doubted = {address: None for address in self._doubted if address in known}
        return [*(address for address in known if address not in self._doubted), *self._doubted]

    def doubt(self, address: Address) -> None:
        """This broker was silent, or its answer was of no use."""
        self._doubted.pop(address, None)
        self._doubted[address] = None

    def heard(self, address: Address, asked: Iterable[Address], now_s: float) -> None:
        """The broker at `address` has answered. Those that were `asked` before it, in this order, have not.

        One that has been the first to answer for `WITNESS_MAX_AGE_MS` is asked after the others from now on.
        """
        for silent in asked:
            if silent == address:
                break
            self.doubt(silent)
        if address != self._first:
            self._first, self._first_since_s = address, now_s
        elif now_s - self._first_since_s > WITNESS_MAX_AGE_MS / 1000:
            self._first = None
            self.doubt(address)


@dataclass(slots=True)
class _Denial:
    """The brokers, by node id, that deny a topic, since when they do, and when one did so last."""

    since_s: float
    last_s: float
    nodes: set[int] = field(default_factory=set)
    believed: bool = False


class Denials:
    """Topics that brokers deny. Two brokers suffice, or one for long enough. That holds until the topic is seen."""

    def __init__(self) -> None:
        self._denials: dict[str, _Denial] = {}

    def forget(self, seen: Set[str]) -> None:
        """These topics are there."""
        for topic in self._denials.keys() & seen:
            del self._denials[topic]

    def add(self, topic: str, node: int | None, now_s: float) -> None:
        """A broker denies `topic`. `node` is None if the broker's id is not known.

        One broker may answer under several addresses, so one that is not known counts for none.
        """
        denial = self._denials.get(topic)
        # After a time without a question the topic may have been there in between.
        lapsed = denial is not None and not denial.believed and now_s - denial.last_s > TOPIC_GONE_AFTER_MS / 1000
        if denial is None or lapsed:
            denial = self._denials[topic] = _Denial(now_s, now_s)
        denial.last_s = now_s
        if node is not None:
            denial.nodes.add(node)

    def suffice(self, topic: str, patience_ms: int) -> bool:
        """Whether two brokers deny `topic`, or it has been denied for `patience_ms`."""
        denial = self._denials.get(topic)
        if denial is None:
            return False
        # From the first denial to the last one, not until now: time in which no broker was asked proves nothing.
        long = denial.last_s - denial.since_s >= patience_ms / 1000
        denial.believed = denial.believed or long or len(denial.nodes) > 1
        return denial.believed

    def believe(self, topics: Iterable[str]) -> None:
        """These topics are gone, as their leaders say, until they are seen."""
        for topic in topics:
            self._denials.setdefault(topic, _Denial(0, 0)).believed = True


class NewIds:
    """Topic ids that brokers name of topics which the client knows under other ids: claims that a topic was recreated.

    Two brokers suffice for such a claim, or one for `TOPIC_GONE_AFTER_MS` in which no broker names the known id. A
    broker counts for the id that it named last. Time in which no broker was asked counts as well: no id ever comes
    back, and a broker that made such a claim is doubted, so it is asked again after all other brokers.
    """

    def __init__(self) -> None:
        self._by_node: dict[str, dict[int, UUID | None]] = {}
        self._since: dict[str, tuple[UUID | None, float]] = {}
        """Topic -> the id of the last claims, and since when no answer has named another id."""

    def suffice(
        self, topic: str, topic_id: UUID | None, node: int | None, now_s: float, alone_for_ms: int = TOPIC_GONE_AFTER_MS
    ) -> bool:
        """A broker names this id, which is not the known one: whether it is believed from now on.

        One broker suffices after `alone_for_ms`.
        `node` is None if the broker's id is not known: such a broker counts for none (`Denials.add`).
        """
        named = self._by_node.setdefault(topic, {})
        if node is not None:
            named[node] = topic_id
        claimed, since_s = self._since.get(topic, (topic_id, now_s))
        if claimed != topic_id:
            since_s = now_s
        self._since[topic] = topic_id, since_s
        witnesses = sum(each == topic_id for each in named.values())
        return witnesses > 1 or now_s - since_s >= alone_for_ms / 1000

    def contradict(self, topic: str, node: int | None) -> None:
        """A broker names the known id."""
        if (named := self._by_node.get(topic)) is None:
            return
        self._since.pop(topic, None)
        if node is not None:
            named.pop(node, None)
        if not named:
            del self._by_node[topic]

    def forget(self, topic: str) -> None:
        """The topic is known under a new id: earlier claims were about the id before it."""
        self._by_node.pop(topic, None)
        self._since.pop(topic, None)


class UnclearTopics:
    """Topics of which brokers' last answers do not say what they are, and since when.

    Unlike a denial, such an answer says nothing of whether the topic exists.
    """

    def __init__(self) -> None:
        self._since_s: dict[str, float] = {}
        self._last_s: dict[str, float] = {}
        self._told: set[str] = set()

    def add(self, topic: str, now_s: float) -> None:
        """An answer does not say what this topic is."""
        if now_s - self._last_s.get(topic, now_s) > API_TIMEOUT_MS / 1000:
            self.forget([topic])  # it may have been well all the while
        self._since_s.setdefault(topic, now_s)
        self._last_s[topic] = now_s

    def forget(self, topics: Iterable[str]) -> None:
        """An answer says what these are, or that they are not there."""
        for topic in topics:
            self._since_s.pop(topic, None)
            self._last_s.pop(topic, None)
            self._told.discard(topic)

    def since_s(self, topic: str) -> float:
        """Since when a topic is unclear: in the future if another answer has said meanwhile what it is."""
        return self._since_s.get(topic, math.inf)

    def tell(self, topic: str) -> bool:
        """Whether a person has not been told yet that this topic is unclear: now is the time."""
        new = topic not in self._told
        self._told.add(topic)
        return new
