"""What a coordinator's refusals that retrying cannot mend mean to a user, and the way out.

They are those that Kafka's client ends with as well (AbstractCoordinator.JoinGroupResponseHandler: "fatal error"), and
UNKNOWN_SERVER_ERROR, of which the broker's log alone knows more. An error that is not here is named as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from spark_kgroup.errors import GroupRejected
from spark_kgroup.model import ErrorCode

_REJECTIONS: Final[Mapping[int, str]] = MappingProxyType(
    {
        # GroupMetadataManager.classicGroupJoin: a share group, or a streams group with members. ClassicGroup's
        # supportsProtocols: it has members, of another protocol type or without an assignor that all of us have.
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL: "its members share no assignor with us: set "
        "`partition.assignment.strategy` to one that all of them support. Or it is a group of "
        "another type (share, streams, connect; `kgroup describe` says which): use another group id",
        # A coordinator writes the group with all its members as one record when a generation is complete.
        ErrorCode.UNKNOWN_SERVER_ERROR: "its coordinator could not carry this out (UNKNOWN_SERVER_ERROR): in a large "
        "group its own record exceeds max.message.bytes of the topic __consumer_offsets: raise that, or use fewer "
        "`members`; or it cannot read another member's subscription; the broker's log says which",
        # GroupCoordinatorService.joinGroup checks both before it looks the group up.
        ErrorCode.INVALID_SESSION_TIMEOUT: "the broker does not allow this session timeout: set "
        "`session.timeout.ms` within the broker's group.min/max.session.timeout.ms",
        ErrorCode.INVALID_GROUP_ID: "the group id is not valid: set `group.id`",
        ErrorCode.GROUP_AUTHORIZATION_FAILED: "no permission: grant READ on the group to this user",
        # KIP-389: the limit counts the members of all applications in the group, static ones that are away included.
        ErrorCode.GROUP_MAX_SIZE_REACHED: "the group is full: use fewer `members`, or raise group.max.size",
    }
)


def rejection(group: str, api: str, error: int) -> GroupRejected:
    """The error that a member ends with when `api` was answered with `error`."""
    reason = _REJECTIONS.get(error) or f"{api} failed with {ErrorCode.name_of(error)}, and retrying does not help"
    return GroupRejected(f"Group {group!r} rejected this member: {reason}.")
