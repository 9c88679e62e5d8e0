"""The nouns that every room shares. Plain immutable values: no behaviour that needs a socket or a clock."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache, partial
from itertools import groupby, repeat
from operator import itemgetter
from typing import Final, NamedTuple
from uuid import UUID

UNKNOWN_MEMBER_ID = ""
"""The member id that a member sends before the coordinator gave it one (JoinGroupRequest.UNKNOWN_MEMBER_ID)."""

NO_GENERATION = -1
"""The generation of a member that is in no group (AbstractCoordinator.Generation.NO_GENERATION)."""

CLASSIC, CONSUMER = "classic", "consumer"
"""Kafka's names of the two group protocols (GroupProtocol)."""

BROKER, CLIENT, AUTO = "broker", "client", "auto"
"""The side that makes the member ids of static members in a classic group, or a choice between the two (AUTO)."""

INT_MAX: Final = 2**31 - 1
"""The largest value of Kafka's settings of type int, such as session.timeout.ms (ConfigDef.Type.INT)."""


def is_kafka_name(text: str) -> bool:
    """Whether Kafka takes `text` as a topic's name (Topic.validate), and so as an instance id."""
    return re.fullmatch(r"[A-Za-z0-9._-]{1,249}", text) is not None and text not in {".", ".."}


def longest_heartbeat_interval_ms(session_timeout_ms: int) -> int:
    """A third of the session timeout: one heartbeat may be lost, and the next one late.

    Kafka's advice: "typically should be set no higher than 1/3 of that value" (heartbeat.interval.ms).
    """
    return max(1, session_timeout_ms // 3)


class TopicPartition(NamedTuple):
    """One partition of one topic, by name and index."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


_made_of: Callable[[tuple[str, int]], TopicPartition] = partial(tuple.__new__, TopicPartition)


def partitions_of(topic: str, indexes: Iterable[int]) -> list[TopicPartition]:
    """These partitions of one topic, without a line of Python for each: a large group has a million."""
    return list(map(_made_of, zip(repeat(topic), indexes)))


class TopicIdPartition(NamedTuple):
    """One partition of one topic, by the topic's id: a topic that was deleted and created anew is another one."""

    topic_id: UUID
    partition: int


def by_topic(partitions: Iterable[TopicPartition]) -> list[tuple[str, list[TopicPartition]]]:
    """Sorted, and by topic as Kafka's messages have them."""
    return [(topic, list(found)) for topic, found in groupby(sorted(partitions), key=itemgetter(0))]


class ErrorCode(IntEnum):
    """The error codes this library knows the meaning of (Kafka: org.apache.kafka.common.protocol.Errors).

    A broker may send further codes: they stay plain integers and are named `ERROR_<n>`.
    """

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    CONCURRENT_TRANSACTIONS = 51
    SECURITY_DISABLED = 54
    KAFKA_STORAGE_ERROR = 56
    SASL_AUTHENTICATION_FAILED = 58
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    LISTENER_NOT_FOUND = 72
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    UNKNOWN_TOPIC_ID = 100
    INCONSISTENT_TOPIC_ID = 103
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    UNSUPPORTED_ENDPOINT_TYPE = 115
    SHARE_SESSION_NOT_FOUND = 122
    INVALID_SHARE_SESSION_EPOCH = 123
    INVALID_REGULAR_EXPRESSION = 128
    SHARE_SESSION_LIMIT_REACHED = 133

    @staticmethod
    def name_of(code: int) -> str:
        """Kafka's name of `code`, or `ERROR_<code>`."""
        try:
            return ErrorCode(code).name
        except ValueError:
            return f"ERROR_{code}"

    @staticmethod
    @cache
    def retriable_codes() -> frozenset[int]:
        """The codes after which the same request may succeed later (RetriableException's subclasses)."""
        return frozenset(
            {
                ErrorCode.CORRUPT_MESSAGE,
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                ErrorCode.LEADER_NOT_AVAILABLE,
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                ErrorCode.REQUEST_TIMED_OUT,
                ErrorCode.REPLICA_NOT_AVAILABLE,
                ErrorCode.NETWORK_EXCEPTION,
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                ErrorCode.NOT_COORDINATOR,
                ErrorCode.NOT_ENOUGH_REPLICAS,
                ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
                ErrorCode.NOT_CONTROLLER,
                ErrorCode.CONCURRENT_TRANSACTIONS,
                ErrorCode.KAFKA_STORAGE_ERROR,
                ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
                ErrorCode.INVALID_FETCH_SESSION_EPOCH,
                ErrorCode.LISTENER_NOT_FOUND,
                ErrorCode.FENCED_LEADER_EPOCH,
                ErrorCode.UNKNOWN_LEADER_EPOCH,
                ErrorCode.OFFSET_NOT_AVAILABLE,
                ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
                ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
                ErrorCode.ELECTION_NOT_NEEDED,
                ErrorCode.UNSTABLE_OFFSET_COMMIT,
                ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                ErrorCode.UNKNOWN_TOPIC_ID,
                ErrorCode.INCONSISTENT_TOPIC_ID,
                ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
                ErrorCode.SHARE_SESSION_NOT_FOUND,
                ErrorCode.INVALID_SHARE_SESSION_EPOCH,
                ErrorCode.SHARE_SESSION_LIMIT_REACHED,
            }
        )

    @staticmethod
    def may_pass(code: int) -> bool:
        """Whether a request that only asks may be answered otherwise later: an unknown code is not final."""
        final = code in ErrorCode._value2member_map_ and code not in ErrorCode.retriable_codes()
        return not final or code == ErrorCode.UNKNOWN_SERVER_ERROR


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """One member's message to the leader of the group (ConsumerProtocolSubscription v3).

    Attributes:
        topics: names, sorted.
        owned: partitions this member holds and has not given up (KIP-429).
        generation: the generation in which `owned` was assigned, -1 if unknown (KIP-792).
        rack: the member's rack (KIP-881), None if it has none.
        user_data: the assignor's own bytes.
    """

    topics: tuple[str, ...]
    owned: frozenset[TopicPartition] = frozenset()
    generation: int = NO_GENERATION
    rack: str | None = None
    user_data: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """One member as the leader sees it in JoinGroupResponse."""

    member_id: str
    instance_id: str | None
    subscription: Subscription


Assignment = Mapping[str, frozenset[TopicPartition]]
"""Member id -> the partitions it shall own from now on."""


class PartitionLeader(NamedTuple):
    """The broker that leads a partition, where it listens, and in which epoch (KIP-320), -1 if that is unknown."""

    node_id: int
    host: str
    port: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    """One topic as cluster metadata shows it.

    Attributes:
        topic_id: None from a broker without topic ids.
        partition_count: partitions are 0..partition_count-1.
        leader_epochs: partition index -> its leader's epoch (KIP-320), absent while it is unknown. Two descriptions
            that differ only in epochs, leaders or racks are equal: a new leader is no reason to rebalance.
        leaders: partition index -> its leader, absent while there is none.
        racks: partition index -> the racks of its replicas, absent where no broker has one (KIP-881).
    """

    name: str
    topic_id: UUID | None
    partition_count: int
    leader_epochs: Mapping[int, int] = field(default_factory=dict, compare=False)
    leaders: Mapping[int, PartitionLeader] = field(default_factory=dict, compare=False, repr=False)
    racks: Mapping[int, frozenset[str]] = field(default_factory=dict, compare=False, repr=False)

    @property
    def partitions(self) -> tuple[TopicPartition, ...]:
        """All partitions of the topic, by index."""
        return tuple(partitions_of(self.name, range(self.partition_count)))


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberIdentity:
    """The names under which a member speaks to the coordinator at one moment."""

    instance_id: str | None
    member_id: str = UNKNOWN_MEMBER_ID
    generation: int = NO_GENERATION


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedMember:
    """One member as a group's coordinator shows it to any client.

    Attributes:
        assignment: empty while a classic group rebalances.
        target: the partitions that it shall own, in a group of type consumer, or else None.
        subscription: from its last join. None while the group rebalances, in a group of type consumer, whose
            coordinator does not tell it, and if its bytes cannot be read.
        epoch: the member epoch, in a group of type consumer.
        protocol: "classic" or "consumer", in a group of type consumer whose broker tells it.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    assignment: frozenset[TopicPartition] = frozenset()
    target: frozenset[TopicPartition] | None = None
    subscription: Subscription | None = None
    epoch: int | None = None
    protocol: str | None = None

    @property
    def subscribed(self) -> tuple[str, ...]:
        """The topics of its subscription, empty if that is not known."""
        return self.subscription.topics if self.subscription is not None else ()

    @property
    def claimed(self) -> frozenset[TopicPartition]:
        """The partitions claimed in its last join (KIP-429). It may still read those that no member was given since."""
        return self.subscription.owned if self.subscription is not None else frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedGroup:
    """A group as its coordinator shows it.

    Attributes:
        state: Kafka's word: Empty, PreparingRebalance, CompletingRebalance, Stable, Dead. In a group of type consumer:
            Empty, Assigning, Reconciling, Stable.
        protocol: the selected assignor's name, "" while there is none.
        group_type: "classic" or "consumer" (Kafka: GroupType), or the protocol type of a classic group that is not one
            of consumers, as "connect".
        target_epoch: the epoch in which the members' targets were computed, in a group of type consumer.
    """

    group: str
    state: str
    protocol: str
    members: tuple[DescribedMember, ...] = field(default=())
    group_type: str = "classic"
    target_epoch: int | None = None

    @property
    def is_consumer_type(self) -> bool:
        """Whether brokers assign the partitions (KIP-848): then no partition is ever left unassigned."""
        return self.group_type == "consumer"

    @property
    def tells_owners(self) -> bool:
        """Whether the coordinator tells the members' assignments: a classic group has none while it rebalances."""
        return self.state == "Stable" or self.is_consumer_type
