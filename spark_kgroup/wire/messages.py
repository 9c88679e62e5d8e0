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
from datetime import timedelta
from itertools import groupby
from typing import Any, Final
from uuid import UUID

import kio.schema.api_versions.v0 as api_versions_v0
import kio.schema.consumer_group_heartbeat.v0.request as consumer_group_heartbeat_v0
import kio.schema.consumer_group_heartbeat.v1.request as consumer_group_heartbeat_v1
import kio.schema.offset_commit.v9.request as offset_commit_v9
import kio.schema.offset_fetch.v9.request as offset_fetch_v9
from kio.schema.api_versions.v3 import ApiVersionsRequest, ApiVersionsResponse
from kio.schema.consumer_group_describe.v0 import ConsumerGroupDescribeRequest as ConsumerGroupDescribeRequestV0
from kio.schema.consumer_group_describe.v0 import ConsumerGroupDescribeResponse as ConsumerGroupDescribeResponseV0
from kio.schema.consumer_group_describe.v1 import ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse
from kio.schema.consumer_group_heartbeat.v0 import ConsumerGroupHeartbeatResponse as ConsumerGroupHeartbeatResponseV0
from kio.schema.consumer_group_heartbeat.v1 import ConsumerGroupHeartbeatResponse
from kio.schema.describe_configs.v4 import DescribeConfigsRequest, DescribeConfigsResponse
from kio.schema.describe_configs.v4.request import DescribeConfigsResource
from kio.schema.describe_groups.v5 import DescribeGroupsRequest, DescribeGroupsResponse
from kio.schema.find_coordinator.v4 import FindCoordinatorRequest, FindCoordinatorResponse
from kio.schema.heartbeat.v4 import HeartbeatRequest, HeartbeatResponse
from kio.schema.join_group.v9 import JoinGroupRequest, JoinGroupResponse
from kio.schema.join_group.v9.request import JoinGroupRequestProtocol
from kio.schema.join_group.v9.response import JoinGroupResponseMember
from kio.schema.leave_group.v5 import LeaveGroupRequest, LeaveGroupResponse
from kio.schema.leave_group.v5.request import MemberIdentity
from kio.schema.list_groups.v5 import ListGroupsRequest, ListGroupsResponse
from kio.schema.list_offsets.v7 import ListOffsetsRequest, ListOffsetsResponse
from kio.schema.list_offsets.v7.request import ListOffsetsPartition, ListOffsetsTopic
from kio.schema.metadata.v12 import MetadataRequest, MetadataResponse
from kio.schema.metadata.v12.request import MetadataRequestTopic
from kio.schema.offset_commit.v8 import OffsetCommitRequest, OffsetCommitResponse
from kio.schema.offset_commit.v8.request import OffsetCommitRequestPartition, OffsetCommitRequestTopic
from kio.schema.offset_commit.v9 import OffsetCommitResponse as OffsetCommitResponseV9
from kio.schema.offset_fetch.v8 import OffsetFetchRequest, OffsetFetchResponse
from kio.schema.offset_fetch.v8.request import OffsetFetchRequestGroup, OffsetFetchRequestTopics
from kio.schema.offset_fetch.v9 import OffsetFetchResponse as OffsetFetchResponseV9
from kio.schema.sasl_authenticate.v2 import SaslAuthenticateRequest, SaslAuthenticateResponse
from kio.schema.sasl_handshake.v1 import SaslHandshakeRequest, SaslHandshakeResponse
from kio.schema.sync_group.v5 import SyncGroupRequest, SyncGroupResponse
from kio.schema.sync_group.v5.request import SyncGroupRequestAssignment
from kio.schema.types import BrokerId, GroupId, TopicName
from kio.static.primitive import i8, i32, i32Timedelta, i64

from spark_kgroup.limits import REASON_CHARACTERS_MAX
from spark_kgroup.model import MemberIdentity as Member
from spark_kgroup.model import TopicIdPartition, TopicPartition, by_topic

ConsumerGroupHeartbeatRequest: Final = consumer_group_heartbeat_v1.ConsumerGroupHeartbeatRequest
ConsumerGroupHeartbeatRequestV0: Final = consumer_group_heartbeat_v0.ConsumerGroupHeartbeatRequest
OffsetCommitRequestV9: Final = offset_commit_v9.OffsetCommitRequest
OffsetFetchRequestV9: Final = offset_fetch_v9.OffsetFetchRequest

Request = (
    ApiVersionsRequest
    | api_versions_v0.ApiVersionsRequest
    | MetadataRequest
    | FindCoordinatorRequest
    | JoinGroupRequest
    | SyncGroupRequest
    | HeartbeatRequest
    | LeaveGroupRequest
    | OffsetCommitRequest
    | offset_commit_v9.OffsetCommitRequest
    | OffsetFetchRequest
    | offset_fetch_v9.OffsetFetchRequest
    | ListOffsetsRequest
    | DescribeGroupsRequest
    | consumer_group_heartbeat_v1.ConsumerGroupHeartbeatRequest
    | consumer_group_heartbeat_v0.ConsumerGroupHeartbeatRequest
    | ConsumerGroupDescribeRequest
    | ConsumerGroupDescribeRequestV0
    | DescribeConfigsRequest
    | ListGroupsRequest
    | SaslHandshakeRequest
    | SaslAuthenticateRequest
)
Response = (
    ApiVersionsResponse
    | api_versions_v0.ApiVersionsResponse
    | MetadataResponse
    | FindCoordinatorResponse
    | JoinGroupResponse
    | SyncGroupResponse
    | HeartbeatResponse
    | LeaveGroupResponse
    | OffsetCommitResponse
    | OffsetCommitResponseV9
    | OffsetFetchResponse
    | OffsetFetchResponseV9
    | ListOffsetsResponse
    | DescribeGroupsResponse
    | ConsumerGroupHeartbeatResponse
    | ConsumerGroupHeartbeatResponseV0
    | ConsumerGroupDescribeResponse
    | ConsumerGroupDescribeResponseV0
    | DescribeConfigsResponse
    | ListGroupsResponse
    | SaslHandshakeResponse
    | SaslAuthenticateResponse
)

ApiVersionsRequestV0: Final = api_versions_v0.ApiVersionsRequest
ApiVersionsResponseV0: Final = api_versions_v0.ApiVersionsResponse

RESPONSE_OF: Final[Mapping[type[Request], type[Response]]] = {
    ApiVersionsRequest: ApiVersionsResponse,
    api_versions_v0.ApiVersionsRequest: api_versions_v0.ApiVersionsResponse,
    MetadataRequest: MetadataResponse,
    FindCoordinatorRequest: FindCoordinatorResponse,
    JoinGroupRequest: JoinGroupResponse,
    SyncGroupRequest: SyncGroupResponse,
    HeartbeatRequest: HeartbeatResponse,
    LeaveGroupRequest: LeaveGroupResponse,
    OffsetCommitRequest: OffsetCommitResponse,
    offset_commit_v9.OffsetCommitRequest: OffsetCommitResponseV9,
    OffsetFetchRequest: OffsetFetchResponse,
    offset_fetch_v9.OffsetFetchRequest: OffsetFetchResponseV9,
    ListOffsetsRequest: ListOffsetsResponse,
    DescribeGroupsRequest: DescribeGroupsResponse,
    consumer_group_heartbeat_v1.ConsumerGroupHeartbeatRequest: ConsumerGroupHeartbeatResponse,
    consumer_group_heartbeat_v0.ConsumerGroupHeartbeatRequest: ConsumerGroupHeartbeatResponseV0,
    ConsumerGroupDescribeRequest: ConsumerGroupDescribeResponse,
    ConsumerGroupDescribeRequestV0: ConsumerGroupDescribeResponseV0,
    DescribeConfigsRequest: DescribeConfigsResponse,
    ListGroupsRequest: ListGroupsResponse,
    SaslHandshakeRequest: SaslHandshakeResponse,
    SaslAuthenticateRequest: SaslAuthenticateResponse,
}
"""Type of request -> type of its response."""

OLDEST_KAFKA: Final = "3.2"
"""The first Apache Kafka release that serves all that the classic protocol needs."""

OLDEST_FOR_CONSUMER_PROTOCOL: Final = "4.0"
"""The first one in which KIP-848 is for production."""

CONSUMER: Final = "consumer"
"""The kind of group that consumers form (ConsumerProtocol.PROTOCOL_TYPE)."""

_GROUP: Final = i8(32)
"""ConfigResource.Type.GROUP"""

_BROKER: Final = i8(4)
"""ConfigResource.Type.BROKER"""

LATEST: Final = -1
"""ListOffsets timestamp for the end of a partition (ListOffsetsRequest.LATEST_TIMESTAMP)."""

EARLIEST: Final = -2
"""ListOffsets timestamp for the first offset still there (ListOffsetsRequest.EARLIEST_TIMESTAMP)."""


def metadata(topics: Iterable[str] | None) -> MetadataRequest:
    """Brokers, and the named topics (None: all). Never creates one."""
    wanted = None if topics is None else tuple(MetadataRequestTopic(topic_id=None, name=TopicName(t)) for t in topics)
    return MetadataRequest(topics=wanted, allow_auto_topic_creation=False, include_topic_authorized_operations=False)


def find_coordinator(group: str) -> FindCoordinatorRequest:
    """Which broker coordinates `group`."""
    return FindCoordinatorRequest(key_type=i8(0), coordinator_keys=(group,))


def join_group(
    group: str,
    who: Member,
    protocols: Iterable[tuple[str, bytes]],
    *,
    session_timeout_ms: int,
    rebalance_timeout_ms: int,
    reason: str,
) -> JoinGroupRequest:
    """Ask for membership. `protocols` are (assignor, encoded subscription) in order of preference."""
    return JoinGroupRequest(
        group_id=GroupId(group),
        session_timeout=_milliseconds(session_timeout_ms),
        rebalance_timeout=_milliseconds(rebalance_timeout_ms),
        member_id=who.member_id,
        group_instance_id=who.instance_id,
        protocol_type=CONSUMER,
        protocols=tuple(JoinGroupRequestProtocol(name=name, metadata=raw) for name, raw in protocols),
        reason=reason[:REASON_CHARACTERS_MAX],
    )


def sync_group(group: str, who: Member, protocol: str, assignments: Iterable[tuple[str, bytes]]) -> SyncGroupRequest:
    """Ask for the member's assignment. The leader brings the (member id, encoded assignment) of all members."""
    return SyncGroupRequest(
        group_id=GroupId(group),
        generation_id=i32(who.generation),
        member_id=who.member_id,
        group_instance_id=who.instance_id,
        protocol_type=CONSUMER,
        protocol_name=protocol,
        assignments=tuple(SyncGroupRequestAssignment(member_id=m, assignment=raw) for m, raw in assignments),
    )


def heartbeat(group: str, who: Member) -> HeartbeatRequest:
    """Tell the coordinator that the member is still there."""
    return HeartbeatRequest(
        group_id=GroupId(group),
        generation_id=i32(who.generation),
        member_id=who.member_id,
        group_instance_id=who.instance_id,
    )


def leave_group(group: str, members: Iterable[Member], reason: str) -> LeaveGroupRequest:
    """Give seats back.

    The broker finds a static member by its instance id. If the member id is given, too, it must be that member's.
    """
    leaving = tuple(
        MemberIdentity(
            member_id=who.member_id, group_instance_id=who.instance_id, reason=reason[:REASON_CHARACTERS_MAX]
        )
        for who in members
    )
    return LeaveGroupRequest(group_id=GroupId(group), members=leaving)


def offset_commit(
    group: str,
    who: Member,
    positions: Mapping[TopicPartition, int],
    *,
    texts: Callable[[str], tuple[str, str]] = lambda _: ("", ""),
    consumer_protocol: bool = False,
) -> OffsetCommitRequest | offset_commit_v9.OffsetCommitRequest:
    """Commit `positions` as the member `who`.

    `texts` gives, for each topic, the metadata of one of its partitions and that of its other partitions. The
    coordinator keeps each text beside its offset (offset.metadata.max.bytes: 4096), all in one record batch.
    """
    named = [(topic, partitions, texts(topic)) for topic, partitions in by_topic(positions)]
    classic = OffsetCommitRequest(
        group_id=GroupId(group),
        generation_id_or_member_epoch=i32(who.generation),
        member_id=who.member_id,
        group_instance_id=who.instance_id,
        topics=tuple(
            OffsetCommitRequestTopic(
                name=TopicName(topic),
                partitions=tuple(
                    OffsetCommitRequestPartition(
                        partition_index=i32(tp.partition),
                        committed_offset=i64(positions[tp]),
                        committed_metadata=note if tp == partitions[0] else mark,
                    )
                    for tp in partitions
                ),
            )
            for topic, partitions, (note, mark) in named
        ),
    )
    return _offset_commit_v9(classic) if consumer_protocol else classic


def _offset_commit_v9(classic: OffsetCommitRequest) -> offset_commit_v9.OffsetCommitRequest:
    """`classic` in the version that members under the consumer protocol must use."""
    return offset_commit_v9.OffsetCommitRequest(
        group_id=classic.group_id,
        generation_id_or_member_epoch=classic.generation_id_or_member_epoch,
        member_id=classic.member_id,
        group_instance_id=classic.group_instance_id,
        topics=tuple(
            offset_commit_v9.OffsetCommitRequestTopic(
                name=topic.name,
                partitions=tuple(
                    offset_commit_v9.OffsetCommitRequestPartition(
                        partition_index=partition.partition_index,
                        committed_offset=partition.committed_offset,
                        committed_metadata=partition.committed_metadata,
                    )
                    for partition in topic.partitions
                ),
            )
            for topic in classic.topics
        ),
    )


def offset_commit_errors(response: OffsetCommitResponse | OffsetCommitResponseV9) -> dict[TopicPartition, int]:
    """Each partition's error code."""
    return {
        TopicPartition(topic.name, partition.partition_index): int(partition.error_code)
        for topic in response.topics
        for partition in topic.partitions
    }


def offset_fetch(group: str, partitions: Iterable[TopicPartition] | None) -> OffsetFetchRequest:
    """Committed offsets, once open transactional commits have ended (require_stable).

    Without `partitions`, all offsets that the group has, as they stand now.
    """
    topics = (
        None
        if partitions is None
        else tuple(
            OffsetFetchRequestTopics(name=TopicName(topic), partition_indexes=tuple(i32(tp.partition) for tp in found))
            for topic, found in by_topic(partitions)
        )
    )
    return OffsetFetchRequest(
        groups=(OffsetFetchRequestGroup(group_id=GroupId(group), topics=topics),), require_stable=partitions is not None
    )


def offset_fetch_of_member(
    group: str, who: Member, partitions: Iterable[TopicPartition]
) -> offset_fetch_v9.OffsetFetchRequest:
    """`offset_fetch` in the name of a member under the consumer protocol, whose epoch the coordinator checks."""
    topics = tuple(
        offset_fetch_v9.OffsetFetchRequestTopics(
            name=TopicName(topic), partition_indexes=tuple(i32(tp.partition) for tp in found)
        )
        for topic, found in by_topic(partitions)
    )
    asked = offset_fetch_v9.OffsetFetchRequestGroup(
        group_id=GroupId(group), member_id=who.member_id, member_epoch=i32(who.generation), topics=topics
    )
    return offset_fetch_v9.OffsetFetchRequest(groups=(asked,), require_stable=True)


def list_offsets(
    wanted: Mapping[TopicPartition, int], isolation_level: int, epochs: Mapping[TopicPartition, int]
) -> ListOffsetsRequest:
    """Offsets by timestamp (`LATEST`, `EARLIEST`) for partitions of one leader.

    A leader of another epoch than `epochs` has for a partition does not answer for it (KIP-320): one that was cut off
    lists where its own log ends.
    """
    return ListOffsetsRequest(
        replica_id=BrokerId(-1),
        isolation_level=i8(isolation_level),
        topics=tuple(
            ListOffsetsTopic(
                name=TopicName(topic),
                partitions=tuple(
                    ListOffsetsPartition(
                        partition_index=i32(tp.partition),
                        timestamp=i64(wanted[tp]),
                        current_leader_epoch=i32(epochs.get(tp, -1)),
                    )
                    for tp in found
                ),
            )
            for topic, found in by_topic(wanted)
        ),
    )


def describe_groups(group: str) -> DescribeGroupsRequest:
    """One group with its members."""
    return DescribeGroupsRequest(groups=(GroupId(group),), include_authorized_operations=False)


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
) -> tuple[Request, ...]:
    """Join, stay or leave, as the epoch of `who` says (KIP-848), in the versions to try, newest first.

    A value of None, or a timeout of -1, is unchanged since the last heartbeat. `regex` adds the topics that it matches
    to `topics`, and an empty one adds none. Version 0 does not have it.
    """
    values: dict[str, Any] = {
        "group_id": GroupId(group),
        "member_id": who.member_id,
        "member_epoch": i32(who.generation),
        "instance_id": who.instance_id,
        "rack_id": rack,
        "rebalance_timeout": _milliseconds(rebalance_timeout_ms),
        "subscribed_topic_names": None if topics is None else tuple(map(TopicName, topics)),
        "server_assignor": assignor,
    }
    v0, v1 = consumer_group_heartbeat_v0, consumer_group_heartbeat_v1
    by_id = None if owned is None else [(topic_id, tuple(map(i32, found))) for topic_id, found in _by_topic_id(owned)]
    in_v1 = None if by_id is None else tuple(v1.TopicPartitions(topic_id=t, partitions=found) for t, found in by_id)
    in_v0 = None if by_id is None else tuple(v0.TopicPartitions(topic_id=t, partitions=found) for t, found in by_id)
    newest = v1.ConsumerGroupHeartbeatRequest(**values, subscribed_topic_regex=regex, topic_partitions=in_v1)
    return newest, v0.ConsumerGroupHeartbeatRequest(**values, topic_partitions=in_v0)


def _by_topic_id(partitions: Iterable[TopicIdPartition]) -> list[tuple[UUID, list[int]]]:
    grouped = groupby(sorted(partitions), key=lambda each: each.topic_id)
    return [(topic_id, [each.partition for each in found]) for topic_id, found in grouped]


def consumer_group_describe(group: str) -> tuple[Request, ...]:
    """One group of type consumer with its members, in the versions to try, newest first."""
    newest = ConsumerGroupDescribeRequest(group_ids=(GroupId(group),), include_authorized_operations=False)
    oldest = ConsumerGroupDescribeRequestV0(group_ids=(GroupId(group),), include_authorized_operations=False)
    return newest, oldest


def group_config(group: str, name: str) -> DescribeConfigsRequest:
    """One setting of a group, as it is in effect."""
    resource = DescribeConfigsResource(resource_type=_GROUP, resource_name=group, configuration_keys=(name,))
    return DescribeConfigsRequest(resources=(resource,))


def broker_config(node_id: int, name: str) -> DescribeConfigsRequest:
    """One setting of a broker, as it is in effect. Only that broker itself can answer."""
    resource = DescribeConfigsResource(resource_type=_BROKER, resource_name=str(node_id), configuration_keys=(name,))
    return DescribeConfigsRequest(resources=(resource,))


def list_groups() -> ListGroupsRequest:
    """All groups that a broker coordinates, with their types."""
    return ListGroupsRequest(states_filter=(), types_filter=())


def sasl_handshake(mechanism: str) -> SaslHandshakeRequest:
    """Begin to authenticate, or to do it again (KIP-368)."""
    return SaslHandshakeRequest(mechanism=mechanism)


def sasl_authenticate(auth_bytes: bytes) -> SaslAuthenticateRequest:
    """One message of a mechanism."""
    return SaslAuthenticateRequest(auth_bytes=auth_bytes)


def oldest_kafka(request: Request) -> str:
    """The first Apache Kafka release that serves requests of this kind in the version that is sent."""
    of_consumer_protocol = (ConsumerGroupHeartbeatRequest.__api_key__, ConsumerGroupDescribeRequest.__api_key__)
    return OLDEST_FOR_CONSUMER_PROTOCOL if request.__api_key__ in of_consumer_protocol else OLDEST_KAFKA


def _milliseconds(value: int) -> i32Timedelta:
    return i32Timedelta.parse(timedelta(milliseconds=value))


__all__ = [
    "CONSUMER",
    "EARLIEST",
    "LATEST",
    "OLDEST_FOR_CONSUMER_PROTOCOL",
    "OLDEST_KAFKA",
    "RESPONSE_OF",
    "ApiVersionsRequest",
    "ApiVersionsRequestV0",
    "ApiVersionsResponse",
    "ApiVersionsResponseV0",
    "ConsumerGroupDescribeRequest",
    "ConsumerGroupDescribeRequestV0",
    "ConsumerGroupDescribeResponse",
    "ConsumerGroupDescribeResponseV0",
    "ConsumerGroupHeartbeatRequest",
    "ConsumerGroupHeartbeatRequestV0",
    "ConsumerGroupHeartbeatResponse",
    "ConsumerGroupHeartbeatResponseV0",
    "DescribeConfigsRequest",
    "DescribeConfigsResponse",
    "DescribeGroupsRequest",
    "DescribeGroupsResponse",
    "FindCoordinatorRequest",
    "FindCoordinatorResponse",
    "HeartbeatRequest",
    "HeartbeatResponse",
    "JoinGroupRequest",
    "JoinGroupResponse",
    "JoinGroupResponseMember",
    "LeaveGroupRequest",
    "LeaveGroupResponse",
    "ListGroupsRequest",
    "ListGroupsResponse",
    "ListOffsetsRequest",
    "ListOffsetsResponse",
    "MetadataRequest",
    "MetadataResponse",
    "OffsetCommitRequest",
    "OffsetCommitRequestV9",
    "OffsetCommitResponse",
    "OffsetCommitResponseV9",
    "OffsetFetchRequest",
    "OffsetFetchRequestV9",
    "OffsetFetchResponse",
    "OffsetFetchResponseV9",
    "Request",
    "Response",
    "SaslAuthenticateRequest",
    "SaslAuthenticateResponse",
    "SaslHandshakeRequest",
    "SaslHandshakeResponse",
    "SyncGroupRequest",
    "SyncGroupResponse",
    "broker_config",
    "consumer_group_describe",
    "consumer_group_heartbeat",
    "describe_groups",
    "find_coordinator",
    "group_config",
    "heartbeat",
    "join_group",
    "leave_group",
    "list_groups",
    "list_offsets",
    "metadata",
    "offset_commit",
    "offset_commit_errors",
    "offset_fetch",
    "offset_fetch_of_member",
    "oldest_kafka",
    "sasl_authenticate",
    "sasl_handshake",
    "sync_group",
]
