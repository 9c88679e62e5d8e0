"""A coordinator's refusals that retrying cannot mend: their meaning to a user, and the way out.

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
        "another type (share, streams, connect: `kgroup describe` says which): use another group id",
        # A coordinator writes the group with all its members as one record when a generation is complete.
        ErrorCode.UNKNOWN_SERVER_ERROR: "its coordinator could not carry this out: in a large group its own record "
        "exceeds max.message.bytes of the topic __consumer_offsets: raise that, or use fewer members. Or it "
        "cannot read another member's subscription. The broker's log says which",
        # GroupCoordinatorService.joinGroup checks both before it looks the group up.
        ErrorCode.INVALID_SESSION_TIMEOUT: "the broker does not allow this session timeout: set "
        "`session.timeout.ms` within the broker's group.min/max.session.timeout.ms (by default 6000 to 1800000), or "
        "have those changed",
        ErrorCode.INVALID_GROUP_ID: "the group id is not valid: set `group.id`",
        ErrorCode.GROUP_AUTHORIZATION_FAILED: "no permission: grant READ on the group to this user",
        # KIP-389: the limit counts the members of all applications in the group, static ones that are away included.
        ErrorCode.GROUP_MAX_SIZE_REACHED: "the group is full: use fewer members, or raise group.max.size",
    }
)


def rejection(group: str, instance_id: str | None, api: str, error: int) -> GroupRejected:
    """The error that a member ends with when `api` was answered with `error`."""
    return _rejected(group, instance_id, api, error, _REJECTIONS.get(error))


_CONSUMER_REJECTIONS: Final[Mapping[int, str]] = MappingProxyType(
    {
        # KafkaApis.handleConsumerGroupHeartbeat: a broker before 4.0, or one that was told to do without. A broker that
        # does not know the request at all comes to the same.
        ErrorCode.UNSUPPORTED_VERSION: "the cluster does not speak the consumer protocol (KIP-848): it needs Apache "
        "Kafka 4.0, and `consumer` in the broker's group.coordinator.rebalance.protocols. Until then set "
        "`group.protocol` to classic",
        # GroupMetadataManager.getOrMaybeCreateConsumerGroup
        ErrorCode.GROUP_ID_NOT_FOUND: "there is a group of this name that is no consumer group, or one with members "
        "under the classic protocol that the broker does not take over (its group.consumer.migration.policy, or an "
        "assignor such as librdkafka's, whose assignments it cannot read): stop those, or set `group.protocol` to "
        "classic, or use another group id",
        ErrorCode.UNSUPPORTED_ASSIGNOR: "its coordinator has no such assignor: set `group.remote.assignor` to one of "
        "the broker's group.consumer.assignors (uniform, range), or leave it out",
        ErrorCode.INVALID_REQUEST: "its coordinator rejected the request as invalid. This is a bug in spark-kgroup or "
        "in the broker: report it with the broker's version",
        ErrorCode.TOPIC_AUTHORIZATION_FAILED: "no permission: grant READ on the subscribed topics to this user",
        ErrorCode.GROUP_MAX_SIZE_REACHED: "the group is full: use fewer members, or raise group.consumer.max.size",
    }
)


def consumer_rejection(group: str, instance_id: str | None, error: int, message: str) -> GroupRejected:
    """The error that a member under the consumer protocol ends with when a heartbeat was answered with `error`."""
    reason = _CONSUMER_REJECTIONS.get(error) or _REJECTIONS.get(error)
    words = f" The broker says: {message.rstrip('.')}." if message else ""
    return _rejected(group, instance_id, "ConsumerGroupHeartbeat", error, reason, words)


def _rejected(
    group: str, instance_id: str | None, api: str, error: int, reason: str | None, words: str = ""
) -> GroupRejected:
    """The error, with the member that it hits, its cause, and the way out."""
    name = ErrorCode.name_of(error)
    who = "a dynamic member" if instance_id is None else f"member {instance_id!r}"
    reason = reason or f"retrying {api} does not help: look for the reason in the log of the group's coordinator"
    return GroupRejected(f"Group {group!r} rejected {who} ({name}): {reason}.{words}")
