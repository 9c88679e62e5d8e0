"""Requests of groups in any version, as the coordinator takes them, and its answers in that version. Pure.

The coordinator has the newest version of each message (`wire.schema`). The other versions have fewer fields, or place
them elsewhere: LeaveGroup before v3 has one member, OffsetFetch before v8 one group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from spark_kgroup.broker.cluster import Cluster
from spark_kgroup.broker.refusal import Refused
from spark_kgroup.model import ErrorCode
from spark_kgroup.wire import broker_group_schema as any_version
from spark_kgroup.wire import schema

_SEVERAL_MEMBERS_SINCE: Final = 3
_SEVERAL_GROUPS_SINCE: Final = 8
_NULL_PROTOCOL_SINCE: Final = 7

Key = tuple[str, int]
"""A topic's name and a partition's index."""


# ------------------------------------------------------------------------------------------------ to the coordinator


def widened(request: Any, version: int) -> schema.Request:
    """A request as the coordinator takes it."""
    return _WIDEN[type(request)](request, version)


def _leave(request: any_version.LeaveGroupRequest, version: int) -> schema.LeaveGroupRequest:
    if version < _SEVERAL_MEMBERS_SINCE:
        return schema.LeaveGroupRequest(request.group_id, (schema.LeavingMember(request.member_id, None, None),))
    return schema.LeaveGroupRequest(request.group_id, tuple(schema.LeavingMember(*each) for each in request.members))


def _commit(request: any_version.OffsetCommitRequest, _: int) -> schema.OffsetCommitRequest:
    topics = tuple(
        schema.OffsetCommitRequestTopic(
            topic.name, tuple(schema.OffsetCommitRequestPartition(*each) for each in topic.partitions)
        )
        for topic in request.topics
    )
    return schema.OffsetCommitRequest(
        request.group_id,
        request.generation_id_or_member_epoch,
        request.member_id,
        request.group_instance_id,
        topics,
    )


def _fetch(request: any_version.OffsetFetchRequest, version: int) -> schema.OffsetFetchRequestV9:
    one = any_version.OffsetFetchRequestGroup(request.group_id, None, -1, request.topics)
    groups = request.groups if version >= _SEVERAL_GROUPS_SINCE else (one,)
    return schema.OffsetFetchRequestV9(
        tuple(schema.OffsetFetchRequestGroupV9(*each) for each in groups), request.require_stable
    )


_WIDEN: Final[Mapping[type[Any], Callable[[Any, int], schema.Request]]] = MappingProxyType(
    {
        any_version.JoinGroupRequest: lambda request, _: schema.JoinGroupRequest(*request),
        any_version.SyncGroupRequest: lambda request, _: schema.SyncGroupRequest(*request),
        any_version.HeartbeatRequest: lambda request, _: schema.HeartbeatRequest(*request),
        any_version.LeaveGroupRequest: _leave,
        any_version.OffsetCommitRequest: _commit,
        any_version.OffsetFetchRequest: _fetch,
        any_version.DescribeGroupsRequest: lambda request, _: schema.DescribeGroupsRequest(*request),
        any_version.ListGroupsRequest: lambda request, _: schema.ListGroupsRequest(*request),
        schema.DeleteGroupsRequest: lambda request, _: request,
        schema.OffsetDeleteRequest: lambda request, _: request,
    }
)


# ---------------------------------------------------------------------------------------------- from the coordinator


def narrowed(response: Any, version: int) -> tuple[Any, ...]:
    """The coordinator's answer as a client of this version reads it."""
    match response:
        case schema.JoinGroupResponse():
            # Before v7 a null name is no name (JoinGroupResponse).
            name = response.protocol_name if version >= _NULL_PROTOCOL_SINCE else response.protocol_name or ""
            return any_version.JoinGroupResponse._make(response)._replace(protocol_name=name)
        case schema.SyncGroupResponse():
            return any_version.SyncGroupResponse._make(response)
        case schema.HeartbeatResponse():
            return any_version.HeartbeatResponse._make(response)
        case schema.LeaveGroupResponse():
            return _left(response, version)
        case schema.OffsetCommitResponse():
            return any_version.OffsetCommitResponse._make(response)
        case schema.OffsetFetchResponse():
            return _fetched(response, version)
        case schema.DescribeGroupsResponse():
            return any_version.DescribeGroupsResponse._make(response)
        case schema.ListGroupsResponse():
            return any_version.ListGroupsResponse._make(response)
        case schema.DeleteGroupsResponse() | schema.OffsetDeleteResponse():
            return response
    raise TypeError(f"no client gets a {type(response).__name__}")


def _left(response: schema.LeaveGroupResponse, version: int) -> any_version.LeaveGroupResponse:
    code = response.error_code
    if version < _SEVERAL_MEMBERS_SINCE and not code and response.members:
        code = response.members[0].error_code  # LeaveGroupResponse.getError
    return any_version.LeaveGroupResponse(0, code, tuple(any_version.LeftMember(*each) for each in response.members))


def _fetched(response: schema.OffsetFetchResponse, version: int) -> any_version.OffsetFetchResponse:
    groups = tuple(
        any_version.OffsetFetchResponseGroup(each.group_id, _fetched_topics(each), each.error_code)
        for each in response.groups
    )
    if version >= _SEVERAL_GROUPS_SINCE:
        return any_version.OffsetFetchResponse(0, (), 0, groups)
    (one,) = groups
    return any_version.OffsetFetchResponse(0, one.topics, one.error_code, ())


def _fetched_topics(group: schema.OffsetFetchResponseGroup) -> tuple[any_version.OffsetFetchResponseTopics, ...]:
    return tuple(
        any_version.OffsetFetchResponseTopics(
            topic.name, tuple(any_version.OffsetFetchResponsePartitions(*each) for each in topic.partitions)
        )
        for topic in group.topics
    )


# ---------------------------------------------------------------------------------- partitions that do not exist


def known_part(cluster: Cluster, request: Any) -> Any:
    """An OffsetCommit or OffsetDelete without partitions that do not exist: the broker refuses these (KafkaApis)."""
    topics = []
    for topic in request.topics:
        there = tuple(each for each in topic.partitions if _exists(cluster, topic.name, each.partition_index))
        if there:
            topics.append(topic._replace(partitions=there))
    return request._replace(topics=tuple(topics))


def _exists(cluster: Cluster, topic: str, index: int) -> bool:
    try:
        cluster.partition(topic, index)
    except Refused:
        return False
    return True


def with_unknown(request: Any, response: Any) -> Any:
    """The coordinator's answer to `known_part`, as the answer to the whole of `request`.

    A partition that the coordinator was not asked for does not exist.
    """
    if isinstance(response, schema.OffsetDeleteResponse) and response.error_code:
        return response  # of the whole group: it has no partitions
    codes: dict[Key, int] = {
        (topic.name, each.partition_index): each.error_code for topic in response.topics for each in topic.partitions
    }
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    of_delete = isinstance(response, schema.OffsetDeleteResponse)
    topic_type: Any = schema.OffsetDeleteResponseTopic if of_delete else schema.OffsetCommitResponseTopic
    partition_type: Any = schema.OffsetDeleteResponsePartition if of_delete else schema.OffsetCommitResponsePartition
    topics = tuple(
        topic_type(
            topic.name,
            tuple(
                partition_type(each.partition_index, codes.get((topic.name, each.partition_index), unknown))
                for each in topic.partitions
            ),
        )
        for topic in request.topics
    )
    return response._replace(topics=topics)


# ------------------------------------------------------------------------------------------- nodes without groups


def not_coordinator(request: schema.Request) -> schema.Response:
    """The answer of a node that does not coordinate groups. It lists none, and refuses the rest."""
    return _REFUSE[type(request)](request)


def _refused_commit(request: schema.OffsetCommitRequest) -> schema.OffsetCommitResponse:
    topics = (
        schema.OffsetCommitResponseTopic(
            topic.name,
            tuple(schema.OffsetCommitResponsePartition(each.partition_index, _CODE) for each in topic.partitions),
        )
        for topic in request.topics
    )
    return schema.OffsetCommitResponse(0, tuple(topics))


def _refused_description(group: str) -> schema.DescribedClassicGroup:
    return schema.DescribedClassicGroup(_CODE, group, "", "", "", (), -(2**31))


_CODE: Final = ErrorCode.NOT_COORDINATOR
_REFUSE: Final[Mapping[type[Any], Callable[[Any], schema.Response]]] = MappingProxyType(
    {
        schema.ListGroupsRequest: lambda _: schema.ListGroupsResponse(0, ErrorCode.NONE, ()),
        schema.JoinGroupRequest: lambda request: schema.JoinGroupResponse(
            0, _CODE, -1, None, None, "", False, request.member_id, ()
        ),
        schema.SyncGroupRequest: lambda _: schema.SyncGroupResponse(0, _CODE, None, None, b""),
        schema.HeartbeatRequest: lambda _: schema.HeartbeatResponse(0, _CODE),
        schema.LeaveGroupRequest: lambda _: schema.LeaveGroupResponse(0, _CODE, ()),
        schema.OffsetCommitRequest: _refused_commit,
        schema.OffsetFetchRequestV9: lambda request: schema.OffsetFetchResponse(
            0, tuple(schema.OffsetFetchResponseGroup(each.group_id, (), _CODE) for each in request.groups)
        ),
        schema.DescribeGroupsRequest: lambda request: schema.DescribeGroupsResponse(
            0, tuple(_refused_description(each) for each in request.groups)
        ),
        schema.DeleteGroupsRequest: lambda request: schema.DeleteGroupsResponse(
            0, tuple(schema.DeletedGroup(each, _CODE) for each in request.groups_names)
        ),
        schema.OffsetDeleteRequest: lambda _: schema.OffsetDeleteResponse(_CODE, 0, ()),
    }
)
