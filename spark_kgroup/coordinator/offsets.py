"""Committed offsets: commits, fetches, deletions and expiry (Kafka: OffsetMetadataManager)."""

from __future__ import annotations

from collections.abc import Iterable

from spark_kgroup.coordinator.classic_group import CONSUMER_TYPE, ClassicGroup
from spark_kgroup.coordinator.contract import Received
from spark_kgroup.coordinator.records import GroupRemoved, OffsetCommitted, OffsetRemoved
from spark_kgroup.coordinator.shard import Shard
from spark_kgroup.coordinator.state import State
from spark_kgroup.coordinator.versions import knows_group_id_not_found
from spark_kgroup.model import ErrorCode, TopicPartition, by_topic
from spark_kgroup.wire import schema

NO_OFFSET = -1
"""The offset and the leader epoch of a partition without a committed offset (OffsetFetchResponse.INVALID_OFFSET)."""

# ------------------------------------------------------------------------------------------------ OffsetCommit


def refusal_of_commit(shard: Shard, received: Received) -> ErrorCode:
    """The error of a commit to a group that is not there, NONE if it makes one.

    A client that uses a group for its offsets alone commits without a generation.
    """
    request = _commit(received)
    if request.group_id in shard.groups or request.generation_id_or_member_epoch < 0:
        return ErrorCode.NONE
    not_found = knows_group_id_not_found(received.version)
    return ErrorCode.GROUP_ID_NOT_FOUND if not_found else ErrorCode.ILLEGAL_GENERATION


def commit_to_empty(shard: Shard, group: ClassicGroup, received: Received) -> None:
    """A commit without a generation: by a client that is no member, or by an admin."""
    request = _commit(received)
    if request.generation_id_or_member_epoch < 0:
        _store(shard, received)
    else:
        refuse_commit(shard, received, _refusal_by_group(group, request))


def commit_as_member(shard: Shard, group: ClassicGroup, received: Received) -> None:
    """A commit of the present generation. The member's session goes on."""
    request = _commit(received)
    if error := _refusal_by_group(group, request):
        refuse_commit(shard, received, error)
        return
    shard.renew(group, group.members[request.member_id])
    _store(shard, received)


def commit_too_early(shard: Shard, group: ClassicGroup, received: Received) -> None:
    """The member of a new generation has no partitions yet."""
    error = _refusal_by_group(group, _commit(received)) or ErrorCode.REBALANCE_IN_PROGRESS
    refuse_commit(shard, received, error)


def commit_unavailable(shard: Shard, _group: ClassicGroup, received: Received) -> None:
    """The group is DEAD."""
    refuse_commit(shard, received, ErrorCode.COORDINATOR_NOT_AVAILABLE)


def refuse_commit(shard: Shard, received: Received, error: ErrorCode) -> None:
    """Answer with the same error for each partition: OffsetCommit has no other place for one."""
    topics = tuple(
        schema.OffsetCommitResponseTopic(
            topic.name,
            tuple(schema.OffsetCommitResponsePartition(each.partition_index, error) for each in topic.partitions),
        )
        for topic in _commit(received).topics
    )
    shard.answer(received.token, schema.OffsetCommitResponse(0, topics))


def _refusal_by_group(group: ClassicGroup, request: schema.OffsetCommitRequest) -> ErrorCode:
    """ClassicGroup.validateOffsetCommit, of a group with members."""
    if error := group.refusal(request.member_id, request.group_instance_id):
        return error
    same = request.generation_id_or_member_epoch == group.generation
    return ErrorCode.NONE if same else ErrorCode.ILLEGAL_GENERATION


def _store(shard: Shard, received: Received) -> None:
    request = _commit(received)
    longest = shard.config.offset_metadata_max_bytes
    records, topics = [], []
    for topic in request.topics:
        answered = []
        for each in topic.partitions:
            too_long = len(each.committed_metadata or "") > longest
            error = ErrorCode.OFFSET_METADATA_TOO_LARGE if too_long else ErrorCode.NONE
            answered.append(schema.OffsetCommitResponsePartition(each.partition_index, error))
            if not too_long:
                records.append(_record(request.group_id, topic.name, each, shard.now_ms))
        topics.append(schema.OffsetCommitResponseTopic(topic.name, tuple(answered)))
    shard.append(*records)
    shard.answer(received.token, schema.OffsetCommitResponse(0, tuple(topics)))


def _record(group: str, topic: str, each: schema.OffsetCommitRequestPartition, now_ms: int) -> OffsetCommitted:
    return OffsetCommitted(
        group=group,
        topic=topic,
        partition=each.partition_index,
        offset=each.committed_offset,
        leader_epoch=each.committed_leader_epoch,
        metadata=each.committed_metadata or "",
        committed_at_ms=now_ms,
    )


def _commit(received: Received) -> schema.OffsetCommitRequest:
    assert isinstance(received.request, schema.OffsetCommitRequest)
    return received.request


# ------------------------------------------------------------------------------------------------- OffsetFetch


def fetch(shard: Shard, request: schema.OffsetFetchRequest | schema.OffsetFetchRequestV9) -> schema.OffsetFetchResponse:
    """Committed offsets, of several groups. Any client may ask: a classic group checks no member (validateOffsetFetch).

    A group that is not there has no offsets, which is no error.
    """
    groups = (_fetch_group(shard, each.group_id, each.topics) for each in request.groups)
    return schema.OffsetFetchResponse(0, tuple(groups))


def _fetch_group(
    shard: Shard, group: str, asked: tuple[schema.OffsetFetchRequestTopics, ...] | None
) -> schema.OffsetFetchResponseGroup:
    """The offsets of one group: of these partitions, or of all that have one."""
    committed = shard.durable.offsets.get(group, {})
    if asked is None:
        wanted = [(topic, [tp.partition for tp in found]) for topic, found in by_topic(committed)]
    else:
        wanted = [(topic.name, list(topic.partition_indexes)) for topic in asked]
    topics = tuple(
        schema.OffsetFetchResponseTopics(
            topic, tuple(_fetched(index, committed.get(TopicPartition(topic, index))) for index in indexes)
        )
        for topic, indexes in wanted
    )
    return schema.OffsetFetchResponseGroup(group, topics, ErrorCode.NONE)


def _fetched(index: int, found: OffsetCommitted | None) -> schema.OffsetFetchResponsePartitions:
    if found is None:
        return schema.OffsetFetchResponsePartitions(index, NO_OFFSET, NO_OFFSET, "", ErrorCode.NONE)
    return schema.OffsetFetchResponsePartitions(index, found.offset, found.leader_epoch, found.metadata, ErrorCode.NONE)


# ------------------------------------------------------------------------------------- OffsetDelete, DeleteGroups


def delete_offsets(shard: Shard, request: schema.OffsetDeleteRequest) -> schema.OffsetDeleteResponse:
    """Remove offsets, but not of a topic that the group's members subscribe to (KIP-496)."""
    group = shard.groups.get(request.group_id)
    if not request.group_id:
        return schema.OffsetDeleteResponse(ErrorCode.INVALID_GROUP_ID, 0, ())
    if group is None or group.state is State.DEAD:
        return schema.OffsetDeleteResponse(ErrorCode.GROUP_ID_NOT_FOUND, 0, ())
    if group.state is not State.EMPTY and group.protocol_type != CONSUMER_TYPE:
        return schema.OffsetDeleteResponse(ErrorCode.NON_EMPTY_GROUP, 0, ())
    free = [topic for topic in request.topics if not group.subscribes_to(topic.name)]
    partitions = [TopicPartition(topic.name, each.partition_index) for topic in free for each in topic.partitions]
    _remove(shard, group.name, partitions)
    return schema.OffsetDeleteResponse(0, 0, tuple(_deleted(topic, topic in free) for topic in request.topics))


def _deleted(topic: schema.OffsetDeleteRequestTopic, free: bool) -> schema.OffsetDeleteResponseTopic:
    error = ErrorCode.NONE if free else ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    partitions = (schema.OffsetDeleteResponsePartition(each.partition_index, error) for each in topic.partitions)
    return schema.OffsetDeleteResponseTopic(topic.name, tuple(partitions))


def delete_groups(shard: Shard, request: schema.DeleteGroupsRequest) -> schema.DeleteGroupsResponse:
    """Delete groups that have no members, with their offsets."""
    found = [schema.DeletedGroup(name, _delete_group(shard, name)) for name in dict.fromkeys(request.groups_names)]
    return schema.DeleteGroupsResponse(0, tuple(found))


def _delete_group(shard: Shard, name: str) -> ErrorCode:
    group = shard.groups.get(name)
    if group is None or group.state is State.DEAD:
        return ErrorCode.GROUP_ID_NOT_FOUND
    if group.state is not State.EMPTY:
        return ErrorCode.NON_EMPTY_GROUP
    _remove(shard, name, list(shard.durable.offsets.get(name, ())))
    _remove_group(shard, group)
    return ErrorCode.NONE


def delete_topics(shard: Shard, names: Iterable[str]) -> None:
    """Topics are deleted, and the offsets of all groups with them (onPartitionsDeleted)."""
    gone = frozenset(names)
    for group, committed in list(shard.durable.offsets.items()):
        _remove(shard, group, [tp for tp in committed if tp.topic in gone])


def _remove(shard: Shard, group: str, partitions: Iterable[TopicPartition]) -> None:
    committed = shard.durable.offsets.get(group, {})
    shard.append(
        *(OffsetRemoved(group=group, topic=tp.topic, partition=tp.partition) for tp in partitions if tp in committed)
    )


def _remove_group(shard: Shard, group: ClassicGroup) -> None:
    shard.forget(group)
    group.die(shard.now_ms)
    shard.append(GroupRemoved(group=group.name))


# ------------------------------------------------------------------------------------------------------ expiry


def expire(shard: Shard) -> None:
    """Remove expired offsets, and groups without members and offsets (GroupCoordinatorShard.cleanupGroupMetadata)."""
    for group in list(shard.groups.values()):
        committed = shard.durable.offsets.get(group.name, {})
        expired = [tp for tp, found in committed.items() if _has_expired(shard, group, found)]
        none_left = len(expired) == len(committed)
        _remove(shard, group.name, expired)
        if none_left and group.state is State.EMPTY:
            _remove_group(shard, group)


def _has_expired(shard: Shard, group: ClassicGroup, found: OffsetCommitted) -> bool:
    """ClassicGroup.offsetExpirationCondition.

    Offsets of a group that had members are kept for the retention time after the last one left. A group that never had
    any, or whose members subscribe to other topics now, keeps each offset for that time after its commit.
    """
    if group.subscribes_to(found.topic):
        return False
    if not group.protocol_type:
        since_ms = found.committed_at_ms
    elif group.state is State.EMPTY:
        since_ms = group.since_ms
    elif group.state is State.STABLE and group.subscribed_topics is not None:
        since_ms = found.committed_at_ms
    else:
        return False
    return shard.now_ms - since_ms >= shard.config.offsets_retention_ms
