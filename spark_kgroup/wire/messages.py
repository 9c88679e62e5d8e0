"""The Kafka messages this library speaks: one pinned version per API, and small builders for the common ones.

| API | version | needs | note |
|---|---|---|---|
| ApiVersions | 3 | 2.4 | falls back to 0 (KIP-511) |
| Metadata | 12 | 3.1 | topic ids, never creates topics |
| FindCoordinator | 4 | 3.0 | batched keys (KIP-699) |
| JoinGroup | 9 | 3.2 | SkipAssignment (KIP-814), reason (KIP-800) |
| SyncGroup | 5 | 2.5 | protocol type and name (KIP-559) |
| Heartbeat | 4 | 2.4 | |
| LeaveGroup | 5 | 3.2 | reason (KIP-800) |
| OffsetCommit | 8 | 2.4 | 10 has topic ids |
| OffsetCommit | 9 | 3.7 | the same, for members under the consumer protocol (KIP-848): 8 is refused to them |
| OffsetFetch | 8 | 3.0 | 10 has topic ids |
| OffsetFetch | 9, or 8 | 3.7 | for members under the consumer protocol (KIP-848): it has the member's epoch |
| ListOffsets | 7 | 3.0 | |
| DescribeGroups | 5 | 2.4 | instance ids, classic groups only: any other is "Dead" |
| ConsumerGroupHeartbeat | 1, or 0 | 4.0, or 3.7 | membership under the consumer protocol (KIP-848, KIP-1082) |
| ConsumerGroupDescribe | 1, or 0 | 4.0, or 3.7 | groups of type consumer (KIP-848), 1 has each member's protocol |
| DescribeConfigs | 4 | 2.7 | of a group from 3.8 on (KIP-848's session timeout) |
| ListGroups | 5 | 3.8 | each group's type |
| SaslHandshake | 1 | 1.0 | tokens travel in SaslAuthenticate (KIP-152) |
| SaslAuthenticate | 2 | 2.5 | session lifetime (KIP-368) |

All that the classic protocol needs is served by Apache Kafka `OLDEST_KAFKA` and every later release up to 4.3. With
brokers older than the table asks for, the consumer protocol and ListGroups are not used. (Version 9 of OffsetCommit
needs 3.7: 3.6 has it as unstable.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain, groupby, repeat
from typing import Final

from spark_kgroup.limits import REASON_CHARACTERS_MAX
from spark_kgroup.model import MemberIdentity as Member
from spark_kgroup.model import TopicIdPartition, TopicPartition, by_topic
from spark_kgroup.wire import schema

OLDEST_KAFKA: Final = "3.2"
"""The first Apache Kafka release that serves all that the classic protocol needs."""

OLDEST_FOR_CONSUMER_PROTOCOL: Final = "4.0"
"""The first one in which KIP-848 is for production."""

CONSUMER: Final = "consumer"
"""The kind of group that consumers form (ConsumerProtocol.PROTOCOL_TYPE)."""

_GROUP: Final = 32
"""ConfigResource.Type.GROUP"""

_BROKER: Final = 4
"""ConfigResource.Type.BROKER"""

LATEST: Final = -1
"""ListOffsets timestamp for the end of a partition (ListOffsetsRequest.LATEST_TIMESTAMP)."""

EARLIEST: Final = -2
"""ListOffsets timestamp for the first offset still there (ListOffsetsRequest.EARLIEST_TIMESTAMP)."""


def metadata(topics: Iterable[str] | None) -> schema.MetadataRequest:
    """Brokers, and the named topics (None: all). Never creates one."""
    wanted = None if topics is None else tuple(schema.MetadataRequestTopic(topic_id=None, name=t) for t in topics)
    return schema.MetadataRequest(
        topics=wanted, allow_auto_topic_creation=False, include_topic_authorized_operations=False
    )


def find_coordinator(group: str) -> schema.FindCoordinatorRequest:
    """Which broker coordinates `group`."""
    return schema.FindCoordinatorRequest(key_type=0, coordinator_keys=(group,))


def join_group(
    group: str,
    who: Member,
    protocols: Iterable[tuple[str, bytes]],
    *,
    session_timeout_ms: int,
    rebalance_timeout_ms: int,
    reason: str,
) -> schema.JoinGroupRequest:
    """Ask for membership. `protocols` are (assignor, encoded subscription) in order of preference."""
    return schema.JoinGroupRequest(
        group_id=group,
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=rebalance_timeout_ms,
        member_id=who.member_id,
        group_instance_id=who.instance_id,
        protocol_type=CONSUMER,
        protocols=tuple(schema.JoinGroupRequestProtocol(name=name, metadata=raw) for name, raw in protocols),
        reason=reason[:REASON_CHARACTERS_MAX],
    )


def sync_group(
    group: str, who: Member, protocol: str, assignments: Iterable[tuple[str, bytes]]
) -> schema.SyncGroupRequest:
    """Ask for the member's assignment. The leader brings the (member id, encoded assignment) of all members."""
    return schema.SyncGroupRequest(
        group_id=group,
        generation_id=who.generation,
        member_id=who.member_id,
        group_instance_id=who.instance_id,
        protocol_type=CONSUMER,
        protocol_name=protocol,
        assignments=tuple(schema.SyncGroupRequestAssignment(member_id=m, assignment=raw) for m, raw in assignments),
    )


def heartbeat(group: str, who: Member) -> schema.HeartbeatRequest:
    """Tell the coordinator that the member is still there."""
    return schema.HeartbeatRequest(
        group_id=group,
        generation_id=who.generation,
        member_id=who.member_id,
        group_instance_id=who.instance_id,
    )


def leave_group(group: str, members: Iterable[Member], reason: str) -> schema.LeaveGroupRequest:
    """Give seats back.

    The broker finds a static member by its instance id. If the member id is given, too, it must be that member's.
    """
    leaving = tuple(
        schema.LeavingMember(
            member_id=who.member_id, group_instance_id=who.instance_id, reason=reason[:REASON_CHARACTERS_MAX]
        )
        for who in members
    )
    return schema.LeaveGroupRequest(group_id=group, members=leaving)


def offset_commit(
    group: str,
    who: Member,
    positions: Mapping[TopicPartition, int],
    *,
    texts: Callable[[str], tuple[str, str]] = lambda _: ("", ""),
    consumer_protocol: bool = False,
) -> schema.OffsetCommitRequest:
    """Commit `positions` as the member `who`.

    `texts` gives, for each topic, the metadata of one of its partitions and that of its other partitions. The
    coordinator keeps each text beside its offset (offset.metadata.max.bytes: 4096), all in one record batch. A member
    under the consumer protocol must use a version of its own.
    """
    named = [(topic, partitions, texts(topic)) for topic, partitions in by_topic(positions)]
    kind = schema.OffsetCommitRequestV9 if consumer_protocol else schema.OffsetCommitRequest
    return kind(
        group_id=group,
        generation_id_or_member_epoch=who.generation,
        member_id=who.member_id,
        group_instance_id=who.instance_id,
        topics=tuple(
            schema.OffsetCommitRequestTopic(
                name=topic,
                partitions=tuple(
                    # By position, as below: there may be 10,000, and names would take a third longer.
                    schema.OffsetCommitRequestPartition(tp.partition, positions[tp], -1, text)
                    for tp, text in zip(partitions, chain([note], repeat(mark)), strict=False)
                ),
            )
            for topic, partitions, (note, mark) in named
        ),
    )


def offset_commit_errors(response: schema.OffsetCommitResponse) -> dict[TopicPartition, int]:
    """Each partition's error code."""
    return {
        TopicPartition(topic.name, partition.partition_index): partition.error_code
        for topic in response.topics
        for partition in topic.partitions
    }


def offset_fetch(group: str, partitions: Iterable[TopicPartition] | None) -> schema.OffsetFetchRequest:
    """Committed offsets, once open transactional commits have ended (require_stable).

    Without `partitions`, all offsets that the group has, as they stand now.
    """
    topics = None if partitions is None else _indexes_by_topic(partitions)
    return schema.OffsetFetchRequest(
        groups=(schema.OffsetFetchRequestGroup(group_id=group, topics=topics),), require_stable=partitions is not None
    )


def offset_fetch_of_member(
    group: str, who: Member, partitions: Iterable[TopicPartition]
) -> schema.OffsetFetchRequestV9:
    """`offset_fetch` in the name of a member under the consumer protocol, whose epoch the coordinator checks."""
    asked = schema.OffsetFetchRequestGroupV9(
        group_id=group, member_id=who.member_id, member_epoch=who.generation, topics=_indexes_by_topic(partitions)
    )
    return schema.OffsetFetchRequestV9(groups=(asked,), require_stable=True)


def _indexes_by_topic(partitions: Iterable[TopicPartition]) -> tuple[schema.OffsetFetchRequestTopics, ...]:
    return tuple(
        schema.OffsetFetchRequestTopics(name=topic, partition_indexes=tuple(tp.partition for tp in found))
        for topic, found in by_topic(partitions)
    )


def list_offsets(
    wanted: Mapping[TopicPartition, int], isolation_level: int, epochs: Mapping[TopicPartition, int]
) -> schema.ListOffsetsRequest:
    """Offsets by timestamp (`LATEST`, `EARLIEST`) for partitions of one leader.

    A leader of another epoch than `epochs` has for a partition does not answer for it (KIP-320): one that was cut off
    lists where its own log ends.
    """
    return schema.ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation_level,
        topics=tuple(
            schema.ListOffsetsTopic(
                name=topic,
                partitions=tuple(
                    schema.ListOffsetsPartition(tp.partition, epochs.get(tp, -1), wanted[tp]) for tp in found
                ),
            )
            for topic, found in by_topic(wanted)
        ),
    )


def describe_groups(group: str) -> schema.DescribeGroupsRequest:
    """One group with its members."""
    return schema.DescribeGroupsRequest(groups=(group,), include_authorized_operations=False)


def consumer_group_heartbeat(
    group: str,
    who: Member,
    *,
    rack: str | None = None,
    rebalance_timeout_ms: int = -1,
    topics: Iterable[str] | None = None,
    regex: str | None = None,
    assignor: str | None = None,
    owned: Iterable[TopicIdPartition] | None = None,
) -> tuple[schema.Request, ...]:
    """Join, stay or leave, as the epoch of `who` says (KIP-848), in the versions to try, newest first.

    A value of None, or a timeout of -1, is unchanged since the last heartbeat. `regex` adds the topics that it matches
    to `topics`, and an empty one adds none. Version 0 does not have it.
    """
    newest = schema.ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id=who.member_id,
        member_epoch=who.generation,
        instance_id=who.instance_id,
        rack_id=rack,
        rebalance_timeout_ms=rebalance_timeout_ms,
        subscribed_topic_names=None if topics is None else tuple(topics),
        subscribed_topic_regex=regex,
        server_assignor=assignor,
        topic_partitions=None if owned is None else _by_topic_id(owned),
    )
    values = newest._asdict()
    del values["subscribed_topic_regex"]
    return newest, schema.ConsumerGroupHeartbeatRequestV0(**values)


def _by_topic_id(partitions: Iterable[TopicIdPartition]) -> tuple[schema.PartitionsOfTopicId, ...]:
    grouped = groupby(sorted(partitions), key=lambda each: each.topic_id)
    return tuple(
        schema.PartitionsOfTopicId(topic_id=topic_id, partitions=tuple(each.partition for each in found))
        for topic_id, found in grouped
    )


def consumer_group_describe(group: str) -> tuple[schema.Request, ...]:
    """One group of type consumer with its members, in the versions to try, newest first."""
    newest = schema.ConsumerGroupDescribeRequest(group_ids=(group,), include_authorized_operations=False)
    oldest = schema.ConsumerGroupDescribeRequestV0(group_ids=(group,), include_authorized_operations=False)
    return newest, oldest


def group_config(group: str, name: str) -> schema.DescribeConfigsRequest:
    """One setting of a group, as it is in effect."""
    return _one_config(_GROUP, group, name)


def broker_config(node_id: int, name: str) -> schema.DescribeConfigsRequest:
    """One setting of a broker, as it is in effect. Only that broker itself can answer."""
    return _one_config(_BROKER, str(node_id), name)


def _one_config(kind: int, resource: str, name: str) -> schema.DescribeConfigsRequest:
    asked = schema.DescribeConfigsResource(resource_type=kind, resource_name=resource, configuration_keys=(name,))
    return schema.DescribeConfigsRequest(resources=(asked,), include_synonyms=False, include_documentation=False)


def list_groups() -> schema.ListGroupsRequest:
    """All groups that a broker coordinates, with their types."""
    return schema.ListGroupsRequest(states_filter=(), types_filter=())


def sasl_handshake(mechanism: str) -> schema.SaslHandshakeRequest:
    """Begin to authenticate, or to do it again (KIP-368)."""
    return schema.SaslHandshakeRequest(mechanism=mechanism)


def sasl_authenticate(auth_bytes: bytes) -> schema.SaslAuthenticateRequest:
    """One message of a mechanism."""
    return schema.SaslAuthenticateRequest(auth_bytes=auth_bytes)


def oldest_kafka(request: schema.Request) -> str:
    """The first Apache Kafka release that serves requests of this kind in the version that is sent."""
    of_consumer_protocol = ("ConsumerGroupHeartbeat", "ConsumerGroupDescribe")
    return OLDEST_FOR_CONSUMER_PROTOCOL if schema.API_OF[type(request)].name in of_consumer_protocol else OLDEST_KAFKA
