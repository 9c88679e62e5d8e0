"""Three brokers of a simulated world, each with a voice of its own, and what a process believes of their words.

One broker at a time may be behind: it goes on answering as of an earlier moment. A process asks and believes with the
product's own rules (`KnownTopics`, `Witnesses`). Only the loop around them, `Cluster.metadata`, is modelled here,
because it waits in real time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Final, Protocol
from uuid import UUID

from harness.simulated_invariants import check_belief
from spark_kgroup.errors import WireError
from spark_kgroup.limits import RETRY_BACKOFF_MAX_MS, TOPIC_ABSENT_AFTER_MS, TOPIC_PATIENCE_MS
from spark_kgroup.model import ErrorCode, TopicDescription
from spark_kgroup.wire.address import Address
from spark_kgroup.wire.backoff import Backoff
from spark_kgroup.wire.cluster import ClusterMetadata, KnownTopics
from spark_kgroup.wire.witnesses import Witnesses

NODES: Final = {node: Address(f"broker-{node}", 9092) for node in range(3)}
ASK_AGAIN_MS: Final = 200
"""How long a look waits while no broker can be reached, or its process is stopped."""


class World(Protocol):
    """The time and the network of a simulated world."""

    now_ms: int

    @property
    def reachable(self) -> bool:
        """Whether brokers can be reached."""

    def after(self, wait_ms: int, action: Callable[[], None]) -> None:
        """Do `action` later."""


class SimulatedBrokers:
    """What each broker says of one topic.

    Attributes:
        rng: for draws that must leave the rest of a seed's history as it is.
        topic: as the brokers describe it that are not behind.
    """

    def __init__(self, seed: int, name: str, partitions: int) -> None:
        self.rng = Random(f"the brokers of {seed}")
        epochs = dict.fromkeys(range(partitions), 0)
        self.topic = TopicDescription(name=name, topic_id=UUID(int=1), partition_count=partitions, leader_epochs=epochs)
        self._told = self._metadata(self.topic)
        self._behind: dict[int, ClusterMetadata] = {}
        self._created_since_cut_off = False

    def grow(self, count: int) -> None:
        """The topic has `count` more partitions."""
        total = self.topic.partition_count + count
        self._change(replace(self.topic, partition_count=total, leader_epochs=_epochs(self.topic, total)))

    def elect(self, partition: int) -> None:
        """A partition has another leader."""
        epochs = self.topic.leader_epochs
        self._change(replace(self.topic, leader_epochs={**epochs, partition: epochs[partition] + 1}))

    @property
    def may_create_anew(self) -> bool:
        """Whether no broker is behind, or the topic was not created again since.

        Else the two other brokers may name different new ids, and the old one counts until one of them is confirmed.
        """
        return not (self._behind and self._created_since_cut_off)

    def create_anew(self) -> None:
        """The topic is deleted, and created with as many partitions. Ids grow, so a later one can be told."""
        self._created_since_cut_off = True
        assert self.topic.topic_id is not None
        topic_id = UUID(int=self.topic.topic_id.int + 1)
        self._change(replace(self.topic, topic_id=topic_id, leader_epochs=dict.fromkeys(self.topic.leader_epochs, 0)))

    def _change(self, topic: TopicDescription) -> None:
        self.topic, self._told = topic, self._metadata(topic)

    @property
    def is_one_behind(self) -> bool:
        """Whether a broker is behind."""
        return bool(self._behind)

    def cut_off(self, node: int, *, denies: bool = False) -> None:
        """This broker answers as of now from now on, or as of the time before the topic was created."""
        self._behind[node] = self._metadata(None) if denies else self._told
        self._created_since_cut_off = False

    def catch_up(self) -> None:
        """All brokers say the same."""
        self._behind.clear()

    def tell(self, node: int) -> ClusterMetadata:
        """The answer of one broker."""
        return self._behind.get(node, self._told)

    def _metadata(self, topic: TopicDescription | None) -> ClusterMetadata:
        denied = {} if topic else {self.topic.name: int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)}
        return ClusterMetadata(brokers=NODES, topics={topic.name: topic} if topic else {}, errors=denied, leaders={})


def _epochs(topic: TopicDescription, total: int) -> dict[int, int]:
    return {**dict.fromkeys(range(total), 0), **topic.leader_epochs}


class SimulatedClient:
    """One process's look at the topic, in virtual time, as `Cluster.metadata` does it.

    Args:
        brokers: to ask.
        world: their time and network.
        paused: whether the process is stopped.
    """

    def __init__(self, brokers: SimulatedBrokers, world: World, paused: Callable[[], bool]) -> None:
        self._brokers = brokers
        self._world = world
        self._paused = paused
        self._witnesses = Witnesses()
        self.known = KnownTopics(self._witnesses, now_s=lambda: world.now_ms / 1000)
        self._bootstrap = brokers.rng.sample(sorted(NODES), len(NODES))
        self._connected: dict[int, None] = {}

    def look(
        self,
        then: Callable[[ClusterMetadata | None], None],
        *,
        timeout_ms: int,
        wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        """Look the topic up. The first answer takes no time, and an answer of no use a wait before the next broker.

        Args:
            then: gets the metadata, or None if there are none in time.
            timeout_ms: bound on all of it.
            wanted: whether the answer is still waited for.
        """
        self._attempt(then, wanted, Backoff(self._brokers.rng), self._world.now_ms + timeout_ms)

    def doubt(self) -> None:
        """As `Cluster.doubt`."""
        self.known.doubt([self._brokers.topic.name])

    def _attempt(
        self,
        then: Callable[[ClusterMetadata | None], None],
        wanted: Callable[[], bool],
        backoff: Backoff,
        ends_at_ms: int,
    ) -> None:
        if not wanted():
            return
        again = partial(self._attempt, then, wanted, backoff, ends_at_ms)
        now_ms = self._world.now_ms
        if self._paused():
            self._world.after(ASK_AGAIN_MS, again)
            return
        if (found := self._ask_once(ends_at_ms)) is not None:
            then(found)
        elif now_ms + (wait_ms := backoff.next_ms()) > ends_at_ms:
            then(None)
        else:
            self._world.after(wait_ms, again)

    def _ask_once(self, ends_at_ms: int) -> ClusterMetadata | None:
        """The metadata by the next answer, or None if there is none, or it is of no use."""
        if not self._world.reachable:
            self._connected.clear()
            return None
        found = self._look_up()
        try:
            self.known.check_unclear(found, TOPIC_PATIENCE_MS)
            if self._world.now_ms + RETRY_BACKOFF_MAX_MS < ends_at_ms:
                self.known.check_denied(found, TOPIC_ABSENT_AFTER_MS, TOPIC_PATIENCE_MS)
        except WireError:
            return None
        return self.known.with_last_seen(found)

    def _look_up(self) -> ClusterMetadata:
        """The answer of the broker whose turn it is, believed as `Cluster._look_up` does it."""
        nodes = {NODES[node]: node for node in (*self._connected, *self._bootstrap)}
        asked = self._witnesses.in_order(nodes)
        witness, node = asked[0], nodes[asked[0]]
        self._connected[node] = None
        self._witnesses.heard(witness, asked, self._world.now_ms / 1000)
        name = self._brokers.topic.name
        before = self.known.topics.get(name)
        found = self.known.hear(self._brokers.tell(node), witness, node, named=True)
        if found.unclear:
            self._witnesses.doubt(witness)
        check_belief(before, self.known.topics.get(name))
        return found
