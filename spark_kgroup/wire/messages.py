"""The Kafka messages this library speaks: one pinned version per API, and small builders for the common ones.

| API | version | needs | note |
|---|---|---|---|
| ApiVersions | 3 | 2.4 | falls back to 0 (KIP-511) |
| Metadata | 12 | 3.1 | topic ids; never creates topics |
| FindCoordinator | 4 | 3.0 | batched keys (KIP-699) |
| JoinGroup | 9 | 3.2 | SkipAssignment (KIP-814), reason (KIP-800) |
| SyncGroup | 5 | 2.5 | protocol type and name (KIP-559) |
| Heartbeat | 4 | 2.4 | |
| LeaveGroup | 5 | 3.2 | reason (KIP-800) |
| OffsetCommit | 8 | 2.4 | 9 is the same but for members of the consumer protocol, 10 has topic ids |
| OffsetFetch | 8 | 3.0 | 9 adds the member under the consumer protocol, 10 has topic ids |
| ListOffsets | 7 | 3.0 | |
| DescribeGroups | 5 | 2.4 | instance ids; classic groups only: any other is "Dead" |
| ConsumerGroupDescribe | 1, or 0 | 4.0, or 3.7 | groups of type consumer (KIP-848); 1 has each member's protocol |
| ListGroups | 5 | 3.8 | says of what type a group is |
| SaslHandshake | 1 | 1.0 | tokens travel in SaslAuthenticate (KIP-152) |
| SaslAuthenticate | 2 | 2.5 | session lifetime (KIP-368) |

All but ConsumerGroupDescribe and ListGroups, which older brokers do without, are served by Apache Kafka `OLDEST_KAFKA`
and every later release up to 4.3. (Version 9 of OffsetCommit and OffsetFetch would need 3.7: 3.6 has it as unstable.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Final

import kio.schema.api_versions.v0 as api_versions_v0
from kio.schema.api_versions.v3 import ApiVersionsRequest, ApiVersionsResponse
from kio.schema.consumer_group_describe.v0 import ConsumerGroupDescribeRequest as ConsumerGroupDescribeRequestV0
from kio.schema.consumer_group_describe.v0 import ConsumerGroupDescribeResponse as ConsumerGroupDescribeResponseV0
from kio.schema.consumer_group_describe.v1 import ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse
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
from kio.schema.offset_fetch.v8 import OffsetFetchRequest, OffsetFetchResponse
from kio.schema.offset_fetch.v8.request import OffsetFetchRequestGroup, OffsetFetchRequestTopics
from kio.schema.sasl_authenticate.v2 import SaslAuthenticateRequest, SaslAuthenticateResponse
from kio.schema.sasl_handshake.v1 import SaslHandshakeRequest, SaslHandshakeResponse
from kio.schema.sync_group.v5 import SyncGroupRequest, SyncGroupResponse
from kio.schema.sync_group.v5.request import SyncGroupRequestAssignment
from kio.schema.types import BrokerId, GroupId, TopicName
from kio.static.primitive import i8, i32, i32Timedelta, i64

from spark_kgroup.limits import REASON_CHARACTERS_MAX
from spark_kgroup.model import MemberIdentity as Member
from spark_kgroup.model import TopicPartition, by_topic

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
    | OffsetFetchRequest
    | ListOffsetsRequest
    | DescribeGroupsRequest
    | ConsumerGroupDescribeRequest
    | ConsumerGroupDescribeRequestV0
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
    | OffsetFetchResponse
    | ListOffsetsResponse
    | DescribeGroupsResponse
    | ConsumerGroupDescribeResponse
    | ConsumerGroupDescribeResponseV0
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
    OffsetFetchRequest: OffsetFetchResponse,
    ListOffsetsRequest: ListOffsetsResponse,
    DescribeGroupsRequest: DescribeGroupsResponse,
    ConsumerGroupDescribeRequest: ConsumerGroupDescribeResponse,
    ConsumerGroupDescribeRequestV0: ConsumerGroupDescribeResponseV0,
    ListGroupsRequest: ListGroupsResponse,
    SaslHandshakeRequest: SaslHandshakeResponse,
    SaslAuthenticateRequest: SaslAuthenticateResponse,
}
"""Which response answers which request."""

OLDEST_KAFKA: Final = "3.2"
"""The first Apache Kafka release that serves every version above."""

CONSUMER: Final = "consumer"
"""The kind of group that consumers form (ConsumerProtocol.PROTOCOL_TYPE)."""

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
    """Ask for membership; `protocols` are (assignor, encoded subscription) in order of preference."""
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
    """Ask for one's share; the leader brings everyone's (member id, encoded assignment)."""
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
    """Still here."""
    return HeartbeatRequest(
        group_id=GroupId(group),
        generation_id=i32(who.generation),
        member_id=who.member_id,
        group_instance_id=who.instance_id,
    )


def leave_group(group: str, members: Iterable[Member], reason: str) -> LeaveGroupRequest:
    """Give seats back. The broker finds a static member by its instance id; a member id guards it, if there is one."""
    leaving = tuple(
        MemberIdentity(
            member_id=who.member_id, group_instance_id=who.instance_id, reason=reason[:REASON_CHARACTERS_MAX]
        )
        for who in members
    )
    return LeaveGroupRequest(group_id=GroupId(group), members=leaving)


def offset_commit(
    group: str, who: Member, positions: Mapping[TopicPartition, int], *, note: str = "", mark: str = ""
) -> OffsetCommitRequest:
    """Commit `positions` as the member `who`, `note` beside one partition of each topic and `mark` beside the others.

    The coordinator keeps each text beside its offset (offset.metadata.max.bytes: 4096), all in one record batch.
    """
    return OffsetCommitRequest(
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
            for topic, partitions in by_topic(positions)
        ),
    )


def offset_commit_errors(response: OffsetCommitResponse) -> dict[TopicPartition, int]:
    """Each partition's error code."""
    return {
        TopicPartition(topic.name, partition.partition_index): int(partition.error_code)
        for topic in response.topics
        for partition in topic.partitions
    }


def offset_fetch(group: str, partitions: Iterable[TopicPartition] | None) -> OffsetFetchRequest:
    """Committed offsets; waits out open transactional commits (require_stable).

    Without `partitions`, all that the group has, as it stands now.
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


def list_offsets(wanted: Mapping[TopicPartition, int], isolation_level: int) -> ListOffsetsRequest:
    """Offsets by timestamp (`LATEST`, `EARLIEST`) for partitions of one leader."""
    return ListOffsetsRequest(
        replica_id=BrokerId(-1),
        isolation_level=i8(isolation_level),
        topics=tuple(
            ListOffsetsTopic(
                name=TopicName(topic),
                partitions=tuple(
                    ListOffsetsPartition(partition_index=i32(tp.partition), timestamp=i64(wanted[tp])) for tp in found
                ),
            )
            for topic, found in by_topic(wanted)
        ),
    )


def describe_groups(group: str) -> DescribeGroupsRequest:
    """One group with its members."""
    return DescribeGroupsRequest(groups=(GroupId(group),), include_authorized_operations=False)


def consumer_group_describe(group: str) -> tuple[Request, ...]:
    """One group of type consumer with its members, in the versions to try, newest first."""
    newest = ConsumerGroupDescribeRequest(group_ids=(GroupId(group),), include_authorized_operations=False)
    oldest = ConsumerGroupDescribeRequestV0(group_ids=(GroupId(group),), include_authorized_operations=False)
    return newest, oldest


def list_groups() -> ListGroupsRequest:
    """All groups that a broker coordinates, with their types."""
    return ListGroupsRequest(states_filter=(), types_filter=())


def sasl_handshake(mechanism: str) -> SaslHandshakeRequest:
    """Begin to authenticate, or to do it again (KIP-368)."""
    return SaslHandshakeRequest(mechanism=mechanism)


def sasl_authenticate(auth_bytes: bytes) -> SaslAuthenticateRequest:
    """One message of a mechanism."""
    return SaslAuthenticateRequest(auth_bytes=auth_bytes)


def _milliseconds(value: int) -> i32Timedelta:
    return i32Timedelta.parse(timedelta(milliseconds=value))


__all__ = [
    "CONSUMER",
    "EARLIEST",
    "LATEST",
    "OLDEST_KAFKA",
    "RESPONSE_OF",
    "ApiVersionsRequest",
    "ApiVersionsRequestV0",
    "ApiVersionsResponse",
    "ApiVersionsResponseV0",
    "ConsumerGroupDescribeResponse",
    "ConsumerGroupDescribeResponseV0",
    "DescribeGroupsResponse",
    "FindCoordinatorResponse",
    "HeartbeatResponse",
    "JoinGroupResponse",
    "JoinGroupResponseMember",
    "LeaveGroupResponse",
    "ListGroupsResponse",
    "ListOffsetsRequest",
    "ListOffsetsResponse",
    "MetadataRequest",
    "MetadataResponse",
    "OffsetCommitResponse",
    "OffsetFetchResponse",
    "Request",
    "Response",
    "SaslAuthenticateResponse",
    "SaslHandshakeResponse",
    "SyncGroupResponse",
    "consumer_group_describe",
    "describe_groups",
    "find_coordinator",
    "heartbeat",
    "join_group",
    "leave_group",
    "list_groups",
    "list_offsets",
    "metadata",
    "offset_commit",
    "offset_commit_errors",
    "offset_fetch",
    "sasl_authenticate",
    "sasl_handshake",
    "sync_group",
]
