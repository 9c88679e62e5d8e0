"""DescribeGroups and ListGroups."""

from __future__ import annotations

from typing import Final

from spark_kgroup.coordinator.classic_group import ClassicGroup, ClassicMember
from spark_kgroup.coordinator.shard import Shard
from spark_kgroup.coordinator.state import State
from spark_kgroup.model import CLASSIC, ErrorCode
from spark_kgroup.wire import schema

RIGHTS_NOT_ASKED: Final = -(2**31)
"""`authorized_operations` where they were not asked for. A broker with an authorizer fills them in."""

_GROUP_TYPE: Final = "classic"


def describe(shard: Shard, request: schema.DescribeGroupsRequest) -> schema.DescribeGroupsResponse:
    """Each group as it is. One that is not there is Dead, which is no error up to v5 of this API."""
    return schema.DescribeGroupsResponse(0, tuple(_described(shard, name) for name in request.groups))


def _described(shard: Shard, name: str) -> schema.DescribedClassicGroup:
    group = shard.groups.get(name)
    stable = group is not None and group.state is State.STABLE
    return schema.DescribedClassicGroup(
        error_code=ErrorCode.NONE,
        group_id=name,
        group_state=(group.state if group is not None else State.DEAD).value,
        protocol_type=group.protocol_type if group is not None else "",
        protocol_data=(group.protocol or "") if group is not None and stable else "",
        members=tuple(_member(group, each, stable) for each in group.members.values()) if group is not None else (),
        authorized_operations=RIGHTS_NOT_ASKED,
    )


def _member(group: ClassicGroup, member: ClassicMember, stable: bool) -> schema.DescribedClassicMember:
    """A member. While the group rebalances, which of its bytes will count is open."""
    return schema.DescribedClassicMember(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=member.metadata(group.protocol or "") if stable else b"",
        member_assignment=member.assignment,
    )


def list_groups(shard: Shard, request: schema.ListGroupsRequest) -> schema.ListGroupsResponse:
    """The groups in one of these states and of one of these types, or all if none is named. Case does not count."""
    states = {each.lower() for each in request.states_filter}
    types = {each.lower() for each in request.types_filter}
    groups = tuple(
        schema.ListedGroup(group.name, group.protocol_type, group.state.value, _GROUP_TYPE)
        for group in shard.groups.values()
        if not states or group.state.value.lower() in states
    )
    return schema.ListGroupsResponse(0, ErrorCode.NONE, groups if not types or CLASSIC in types else ())
