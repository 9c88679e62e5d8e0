"""The state of the whole cluster: nodes, topics, partitions, their leaders and logs. Pure: no socket, clock or thread.

Handlers of requests read and change it. Time comes in with each request, and topic ids from the maker that the
constructor is given. A change that a waiting Fetch is to see is noted in `changed`, and the server wakes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from uuid import UUID

from spark_kgroup.broker import topic_configs
from spark_kgroup.broker.batches import Batch
from spark_kgroup.broker.log import Log
from spark_kgroup.broker.producers import Place
from spark_kgroup.broker.refusal import Refused
from spark_kgroup.model import ErrorCode, TopicPartition, is_kafka_name

PARTITIONS_MAX: Final = 50_000
"""Partitions of all topics. Kafka has no bound. Measured: 50,000 without records take 40 MB."""

LOG_BYTES_MAX: Final = 2**30
"""The size of all logs, which are in memory. Kafka has no bound but the disk's."""

NO_EPOCH: Final = -1
"""A client that does not know the leader's epoch (RecordBatch.NO_PARTITION_LEADER_EPOCH)."""


class Node(NamedTuple):
    """One node of the cluster, and where it listens."""

    node_id: int
    host: str
    port: int
    rack: str | None


@dataclass(slots=True)
class Partition:
    """One partition. Its replicas share one log, since no node ever lacks a record that another one has."""

    replicas: tuple[int, ...]
    leader: int
    leader_epoch: int = 0
    log: Log = field(default_factory=Log)


@dataclass(slots=True)
class Topic:
    """One topic, and the settings that differ from Kafka's defaults."""

    name: str
    topic_id: UUID
    partitions: list[Partition]
    configs: dict[str, str]

    def setting(self, name: str) -> str:
        """The value of one of `topic_configs.SETTINGS`, as text."""
        return topic_configs.value_of(self.configs, name)


class Cluster:
    """Topics on nodes.

    Args:
        cluster_id: Kafka's is a UUID in base64.
        new_topic_id: makes the id of a topic, another one each time.
        auto_create: whether a Metadata request creates the topics that it names (auto.create.topics.enable).
        log_bytes_max: the size of all logs.

    Attributes:
        nodes: by id.
        topics: by name.
        changed: partitions with new records, another leader, or no topic any more, since the set was last emptied.
        deleted_topics: names, since the list was last emptied: committed offsets of these topics go.
    """

    def __init__(
        self,
        cluster_id: str,
        *,
        new_topic_id: Callable[[], UUID],
        auto_create: bool = False,
        log_bytes_max: int = LOG_BYTES_MAX,
    ) -> None:
        self.cluster_id = cluster_id
        self.auto_create = auto_create
        self.nodes: dict[int, Node] = {}
        self.topics: dict[str, Topic] = {}
        self.changed: set[TopicPartition] = set()
        self.deleted_topics: list[str] = []
        self._by_id: dict[UUID, Topic] = {}
        self._new_topic_id = new_topic_id
        self._log_bytes_max = log_bytes_max
        self._log_bytes = 0
        self._next_producer_id = 0

    @property
    def controller_id(self) -> int:
        """The node that clients take for the controller: any node serves its requests."""
        return min(self.nodes)

    @property
    def log_bytes(self) -> int:
        """The size of all logs."""
        return self._log_bytes

    def new_producer_id(self) -> int:
        """The id of an idempotent producer, another one each time."""
        self._next_producer_id += 1
        return self._next_producer_id - 1

    # ---------------------------------------------------------------------------------------------------- topics

    def topic_of(self, topic_id: UUID | None) -> Topic | None:
        """The topic with this id."""
        return None if topic_id is None else self._by_id.get(topic_id)

    def check_new_topic(
        self, name: str, assignment: Sequence[Sequence[int]], configs: Mapping[str, str | None]
    ) -> None:
        """Check whether `create_topic` would create it.

        Raises:
            Refused: it would not.
        """
        if not is_kafka_name(name):
            raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {name!r}")
        if name in self.topics:
            raise Refused(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        self._check_room(len(assignment))
        for key, text in configs.items():
            topic_configs.check(key, text)

    def create_topic(
        self, name: str, assignment: Sequence[Sequence[int]], configs: Mapping[str, str | None] | None = None
    ) -> Topic:
        """Create a topic.

        Args:
            name: a name that Kafka takes.
            assignment: the nodes of each partition's replicas, the leader first. See `assign`.
            configs: the settings that differ from the defaults.

        Raises:
            Refused: there is such a topic, or the name, a number or a setting is invalid.
        """
        self.check_new_topic(name, assignment, configs or {})
        set_configs = {key: text for key, text in (configs or {}).items() if text is not None}
        topic = Topic(name, self._new_topic_id(), [_new_partition(nodes) for nodes in assignment], set_configs)
        self.topics[name] = self._by_id[topic.topic_id] = topic
        return topic

    def assign(self, partitions: int, replication_factor: int, *, first: int = 0) -> list[list[int]]:
        """The nodes of the replicas of so many new partitions: leaders in turn (StripedReplicaPlacer, without racks).

        Args:
            partitions: how many.
            replication_factor: nodes of each.
            first: the index of the first one.

        Raises:
            Refused: there are not so many nodes, or there is no room for so many partitions.
        """
        self._check_room(partitions)
        nodes = sorted(self.nodes)
        if replication_factor > len(nodes):
            text = f"Unable to replicate the partition {replication_factor} time(s): there are {len(nodes)} broker(s)."
            raise Refused(ErrorCode.INVALID_REPLICATION_FACTOR, text)
        at = range(first, first + partitions)
        return [[nodes[(index + i) % len(nodes)] for i in range(replication_factor)] for index in at]

    def check_assignment(self, replicas: Sequence[int]) -> None:
        """Check the nodes that a client wants for a partition.

        Raises:
            Refused: there are none, one comes twice, or one is unknown.
        """
        if not replicas or len(set(replicas)) < len(replicas) or not set(replicas) <= set(self.nodes):
            text = f"The manual partition assignment {list(replicas)} must name different, registered brokers."
            raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)

    def _check_room(self, partitions: int) -> None:
        if sum(len(topic.partitions) for topic in self.topics.values()) + partitions > PARTITIONS_MAX:
            text = f"This broker has room for {PARTITIONS_MAX} partitions."
            raise Refused(ErrorCode.INVALID_PARTITIONS, text)

    def add_partitions(self, topic: Topic, assignment: Iterable[Sequence[int]]) -> None:
        """Add a partition for each element of `assignment`, its nodes."""
        topic.partitions += [_new_partition(nodes) for nodes in assignment]

    def delete_topic(self, topic: Topic) -> None:
        """Delete a topic with its records. One that is created with its name later has another id."""
        del self.topics[topic.name], self._by_id[topic.topic_id]
        self._log_bytes -= sum(partition.log.bytes for partition in topic.partitions)
        self.changed |= {TopicPartition(topic.name, index) for index in range(len(topic.partitions))}
        self.deleted_topics.append(topic.name)

    # ------------------------------------------------------------------------------------------------ partitions

    def partition(self, topic: str, index: int) -> Partition:
        """A partition, on whichever node.

        Raises:
            Refused: there is no such partition.
        """
        found = self.topics.get(topic)
        if found is None or not 0 <= index < len(found.partitions):
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return found.partitions[index]

    def led(self, node_id: int, topic: str, index: int, leader_epoch: int = NO_EPOCH) -> Partition:
        """A partition that this node leads (Partition.localLogWithEpochOrThrow).

        Args:
            node_id: the node that was asked.
            topic: its name.
            index: of the partition.
            leader_epoch: the epoch that the client knows.

        Raises:
            Refused: there is no such partition, another node leads it, or the client's epoch is another one.
        """
        partition = self.partition(topic, index)
        if leader_epoch != NO_EPOCH and leader_epoch != partition.leader_epoch:
            older = leader_epoch < partition.leader_epoch
            raise Refused(ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH)
        if partition.leader != node_id:
            raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return partition

    def append(self, at: TopicPartition, partition: Partition, batch: Batch, append_time_ms: int | None) -> Place:
        """Append a batch to the log of the partition `at`.

        Raises:
            Refused: its producer sent it out of order, or memory is full.
        """
        log = partition.log
        if self._log_bytes + len(batch.raw) > self._log_bytes_max:
            text = f"This broker keeps {self._log_bytes_max} bytes of records in memory: delete topics or records."
            raise Refused(ErrorCode.POLICY_VIOLATION, text)
        before = log.bytes
        place = log.append(batch, partition.leader_epoch, append_time_ms)
        self._log_bytes += log.bytes - before
        self.changed.add(at)
        return place

    def delete_records(self, at: TopicPartition, partition: Partition, offset: int) -> None:
        """Delete the records before `offset`.

        Raises:
            Refused: the log ends before it.
        """
        before = partition.log.bytes
        partition.log.delete_before(offset)
        self._log_bytes += partition.log.bytes - before
        self.changed.add(at)

    def elect(self, at: TopicPartition, leader: int | None = None) -> None:
        """Begin another leader epoch.

        Args:
            at: the partition.
            leader: its node from now on, or None for the one that leads already.

        Raises:
            Refused: there is no such partition, or no replica on that node.
        """
        partition = self.partition(*at)
        if leader is not None and leader not in partition.replicas:
            raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{at} has no replica on node {leader}")
        partition.leader = partition.leader if leader is None else leader
        partition.leader_epoch += 1
        partition.log.begin_epoch(partition.leader_epoch)
        self.changed.add(at)

    def truncate(self, at: TopicPartition, offset: int) -> None:
        """Lose the records from `offset` on: an unclean election made a replica leader that lacks them.

        Raises:
            Refused: there is no such partition, or no such offset in its log.
        """
        partition = self.partition(*at)
        before = partition.log.bytes
        partition.log.truncate(offset)
        self._log_bytes += partition.log.bytes - before
        self.elect(at)


def _new_partition(replicas: Sequence[int]) -> Partition:
    partition = Partition(tuple(replicas), replicas[0])
    partition.log.begin_epoch(partition.leader_epoch)
    return partition
