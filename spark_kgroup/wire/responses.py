"""Brokers' responses as values of ours. No I/O. A response that does not answer is a `ProtocolViolation`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

from spark_kgroup.errors import BrokerError, ProtocolViolation, WireError
from spark_kgroup.model import (
    DescribedGroup,
    DescribedMember,
    ErrorCode,
    PartitionLeader,
    TopicDescription,
    TopicPartition,
)
from spark_kgroup.peer_words import listed, printable_words
from spark_kgroup.wire import messages, schema
from spark_kgroup.wire.address import Address
from spark_kgroup.wire.consumer_protocol import decode_assignment, decode_subscription
from spark_kgroup.wire.schema import Response

T = TypeVar("T")


class UnclearTopic(NamedTuple):
    """Why it is unclear what a topic is, and since when, by `time.monotonic`."""

    error: BrokerError
    since_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterMetadata:
    """One Metadata response.

    Attributes:
        brokers: by node id.
        topics: those asked for that exist and have no error.
        errors: topic -> error code of those asked for that have one.
        leaders: partition -> node id of one of `brokers`. A partition is absent while it has no leader.
        internal: names among `topics` that belong to the brokers themselves, such as __consumer_offsets.
        unclear: topics of which the answer does not say what they are: an error that may pass, or a broker that knows
            less than another did.
    """

    brokers: Mapping[int, Address]
    topics: Mapping[str, TopicDescription]
    errors: Mapping[str, int]
    leaders: Mapping[TopicPartition, int]
    internal: frozenset[str] = frozenset()
    unclear: Mapping[str, UnclearTopic] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedOffset:
    """An offset as its partition's leader lists it. The epoch is -1 if the leader does not tell it."""

    offset: int
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedOffset:
    """A group's committed offset of one partition. `metadata` is the text that its consumer wrote beside it."""

    offset: int
    metadata: str


def parse_metadata(response: schema.MetadataResponse) -> ClusterMetadata:
    """Brokers, topics and leaders. A topic with an error is not among the topics."""
    brokers = {b.node_id: Address(b.host, b.port) for b in response.brokers}
    racks = {b.node_id: b.rack for b in response.brokers if b.rack}
    good = [t for t in response.topics if t.error_code == ErrorCode.NONE and t.name is not None]
    return ClusterMetadata(
        brokers=brokers,
        topics={
            str(t.name): TopicDescription(
                name=str(t.name),
                topic_id=t.topic_id,
                partition_count=len(t.partitions),
                leader_epochs={p.partition_index: p.leader_epoch for p in t.partitions if p.leader_epoch >= 0},
                leaders={
                    p.partition_index: PartitionLeader(p.leader_id, at.host, at.port, p.leader_epoch)
                    for p in t.partitions
                    if (at := brokers.get(p.leader_id)) is not None
                },
                racks=_replica_racks(t.partitions, racks),
            )
            for t in good
        },
        internal=frozenset(str(t.name) for t in good if t.is_internal),
        errors={str(t.name): t.error_code for t in response.topics if t.error_code != ErrorCode.NONE},
        leaders={
            TopicPartition(str(t.name), p.partition_index): p.leader_id
            for t in good
            for p in t.partitions
            if p.leader_id in brokers
        },
    )


def _replica_racks(partitions: Iterable[Any], racks: Mapping[int, str]) -> dict[int, frozenset[str]]:
    """The racks of all replicas, also offline ones: most come back, and no member rebalances for it (Java: range)."""
    if not racks:
        return {}
    return {p.partition_index: frozenset(racks[r] for r in p.replica_nodes if r in racks) for p in partitions}


def has_fewer_partitions(topic: TopicDescription, known: TopicDescription | None) -> bool:
    """Whether `topic` is the same topic as `known` with fewer partitions."""
    if known is None or known.topic_id is None or known.topic_id != topic.topic_id:
        return False
    return topic.partition_count < known.partition_count


def has_older_leaders(topic: TopicDescription, known: TopicDescription | None) -> bool:
    """Whether `topic` is the same topic as `known`, and a partition of it has a leader of an older epoch (KIP-320)."""
    if known is None or known.topic_id is None or known.topic_id != topic.topic_id:
        return False
    before, now = known.leader_epochs, topic.leader_epochs
    return before != now and any(epoch < before.get(partition, epoch) for partition, epoch in now.items())


def with_known_epochs(topic: TopicDescription, known: TopicDescription | None) -> TopicDescription:
    """`topic` with those epochs of `known`, if that is the same topic, that this answer leaves out."""
    if known is None or known.topic_id != topic.topic_id or known.leader_epochs.keys() <= topic.leader_epochs.keys():
        return topic
    return replace(topic, leader_epochs={**known.leader_epochs, **topic.leader_epochs})


def take_listed(
    response: schema.ListOffsetsResponse,
    wanted: Iterable[TopicPartition],
    found: dict[TopicPartition, ListedOffset],
) -> dict[TopicPartition, WireError]:
    """Add all good offsets to `found`, and return the errors of those of `wanted` that have none."""
    errors: dict[TopicPartition, WireError] = {}
    for topic in response.topics:
        for p in topic.partitions:
            tp = TopicPartition(topic.name, p.partition_index)
            if p.error_code == ErrorCode.NONE:
                found[tp] = ListedOffset(offset=p.offset, leader_epoch=p.leader_epoch)
            else:
                errors[tp] = BrokerError("ListOffsets", p.error_code, str(tp))
    if left_out := set(wanted) - found.keys() - errors.keys():
        errors |= dict.fromkeys(sorted(left_out), LeftOut("ListOffsets", left_out, found))
    return {tp: errors[tp] for tp in wanted if tp in errors}


def parse_committed(
    response: schema.OffsetFetchResponse,
    wanted: Iterable[TopicPartition],
    refused: dict[TopicPartition, WireError],
) -> dict[TopicPartition, CommittedOffset | None]:
    """The committed offset, or None, of each partition in `wanted`, and of any other that is in the response.

    A partition with an error of its own is in `refused` instead.

    Raises:
        BrokerError: the group has an error.
        LeftOut: the response leaves out some of `wanted`.
    """
    group = the_only(response.groups, "group")
    if group.error_code != ErrorCode.NONE:
        raise BrokerError("OffsetFetch", group.error_code, _named(group.group_id))
    found: dict[TopicPartition, CommittedOffset | None] = {}
    for topic in group.topics:
        for p in topic.partitions:
            tp = TopicPartition(topic.name, p.partition_index)
            unknown = p.error_code in _NEVER_COMMITTED
            if p.error_code != ErrorCode.NONE and not unknown:
                refused[tp] = BrokerError("OffsetFetch", p.error_code, str(tp))
                continue
            known = p.committed_offset >= 0 and not unknown
            found[tp] = CommittedOffset(offset=p.committed_offset, metadata=p.metadata or "") if known else None
    if missing := set(wanted) - found.keys() - refused.keys():  # these must not pass for partitions without an offset
        raise LeftOut("OffsetFetch", missing, found)
    return found


_NEVER_COMMITTED: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})
"""The answer of coordinators other than Apache Kafka's for a partition without a committed offset."""


class LeftOut(ProtocolViolation):
    """A response leaves out partitions that were asked for. `found` are its answers about the rest."""

    def __init__(self, api: str, missing: Iterable[TopicPartition], found: Mapping[TopicPartition, Any]) -> None:
        self.missing = sorted(missing)
        self.found = found
        message = f"A broker's {api} response leaves out {listed(self.missing)}."
        super().__init__(message, retriable=True)


def the_only(answers: Sequence[T], what: str) -> T:
    """The single element of an answer about one group, coordinator or resource."""
    if len(answers) != 1:
        message = f"A broker was asked about one {what} and answered about {len(answers)}."
        raise ProtocolViolation(message, retriable=True)
    return answers[0]


def _named(group: str, words: str = "") -> str:
    """The group that an error is about, with a broker's words on it."""
    return ": ".join(filter(None, (f"group {printable_words(group)!r}", words)))


def parse_description(response: schema.DescribeGroupsResponse) -> DescribedGroup:
    """The one group in `response`, "Dead" if it is no classic one. Assignments are empty while it rebalances.

    Raises:
        BrokerError: the group has an error other than GROUP_ID_NOT_FOUND.
    """
    group = the_only(response.groups, "group")
    if group.error_code not in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
        raise BrokerError("DescribeGroups", group.error_code, _named(group.group_id))
    of_consumers = group.protocol_type in ("", messages.CONSUMER)
    return DescribedGroup(
        group=group.group_id,
        state=printable_words(group.group_state) or "Dead",
        protocol=group.protocol_data,
        group_type="classic" if of_consumers else group.protocol_type,
        members=tuple(
            DescribedMember(
                member_id=m.member_id,
                instance_id=m.group_instance_id,
                client_id=m.client_id,
                client_host=m.client_host,
                assignment=_readable(decode_assignment, m.member_assignment, of_consumers) or frozenset(),
                subscription=_readable(decode_subscription, m.member_metadata, of_consumers),
            )
            for m in group.members
        ),
    )


def _readable(read: Callable[[bytes], T], raw: bytes, of_consumers: bool) -> T | None:
    """The value that `read` finds, or None for bytes of other clients that no reader understands."""
    try:
        return read(raw) if raw and of_consumers else None
    except ProtocolViolation:
        return None


def parse_consumer_description(
    response: schema.ConsumerGroupDescribeResponse | schema.ConsumerGroupDescribeResponseV0,
) -> DescribedGroup | None:
    """The one group in `response`, None if it is not of type consumer.

    A member's assignment has the partitions that it owns now, its target those that it shall own. Partitions that it
    was told to give up, and may still be reading, are in its assignment on Kafka 4.3, and were in neither before
    (ConsumerGroupMember.asConsumerGroupDescribeMember).

    Raises:
        BrokerError: the group has another error.
    """
    group: Any = the_only(response.groups, "group")  # the versions differ in one field of a member
    if group.error_code in _NOT_OF_TYPE_CONSUMER:
        return None
    if group.error_code != ErrorCode.NONE:
        raise BrokerError(
            "ConsumerGroupDescribe", group.error_code, _named(group.group_id, printable_words(group.error_message))
        )
    return DescribedGroup(
        group=group.group_id,
        state=printable_words(group.group_state),
        protocol=group.assignor_name,
        group_type="consumer",
        target_epoch=group.assignment_epoch,
        members=tuple(
            DescribedMember(
                member_id=m.member_id,
                instance_id=m.instance_id,
                client_id=m.client_id,
                client_host=m.client_host,
                assignment=_parse_partitions(m.assignment),
                target=_parse_partitions(m.target_assignment),
                epoch=m.member_epoch,
                protocol=_MEMBER_TYPES.get(getattr(m, "member_type", -1)),
            )
            for m in group.members
        ),
    )


def _parse_partitions(assignment: Any) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(t.topic_name, p) for t in assignment.topic_partitions for p in t.partitions)


_NOT_OF_TYPE_CONSUMER: Final = frozenset({ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION})
"""The second is that of a broker that has no groups of that type (group.coordinator.rebalance.protocols)."""

_MEMBER_TYPES: Final = MappingProxyType({0: "classic", 1: "consumer"})
"""ConsumerGroupDescribeResponse.Member.MemberType, in which -1 stands for unknown."""


def parse_config(response: schema.DescribeConfigsResponse) -> str | None:
    """The value of the one setting that was asked for, None if this group, or broker, has none of that name.

    Raises:
        BrokerError: this user may not see it, or the broker knows no settings of groups.
    """
    found = the_only(response.results, "resource")
    if found.error_code != ErrorCode.NONE:
        raise BrokerError("DescribeConfigs", found.error_code, printable_words(found.error_message))
    return next((config.value for config in found.configs), None)


def still_members(response: schema.LeaveGroupResponse) -> dict[str, int]:
    """Instance id, or else member id -> error code, of those that did not leave. One that was not there has left.

    Raises:
        BrokerError: the coordinator did not look at them at all.
    """
    if response.error_code != ErrorCode.NONE:
        raise BrokerError("LeaveGroup", response.error_code)
    errors = {m.group_instance_id or m.member_id: m.error_code for m in response.members}
    return {who: code for who, code in errors.items() if code not in (ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID)}


def group_error_codes(response: Response) -> set[int]:
    """Every error code that a coordinator's response may carry for the group as a whole."""
    match response:
        case schema.OffsetCommitResponse():
            return set(messages.offset_commit_errors(response).values())
        case (
            schema.OffsetFetchResponse()
            | schema.DescribeGroupsResponse()
            | schema.ConsumerGroupDescribeResponse()
            | schema.ConsumerGroupDescribeResponseV0()
        ):
            return {group.error_code for group in response.groups}
        case schema.LeaveGroupResponse() | schema.ListGroupsResponse() | schema.ConsumerGroupHeartbeatResponse():
            return {response.error_code}
        case _:
            return set()
