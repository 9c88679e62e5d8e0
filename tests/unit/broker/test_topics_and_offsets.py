"""Topics, their settings, and look-ups of offsets, as Kafka's controller and UnifiedLog answer them."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import pytest
from harness.broker_calls import NOW_MS, ask, cluster_of, partition_of, produce, produced

from spark_kgroup.broker import topic_configs
from spark_kgroup.broker.cluster import PARTITIONS_MAX, Cluster
from spark_kgroup.broker.refusal import Refused
from spark_kgroup.model import ErrorCode, TopicPartition
from spark_kgroup.wire.broker_schema import (
    AlterableConfig,
    AlterConfigsResource,
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicState,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    FindCoordinatorRequest,
    IncrementalAlterConfigsRequest,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    MetadataRequest,
    MetadataRequestTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

AT = TopicPartition("t", 0)


@pytest.fixture
def cluster() -> Cluster:
    return cluster_of(nodes=3)


def create(
    cluster: Cluster,
    name: str = "t",
    partitions: int = 2,
    factor: int = 1,
    *,
    by_hand: Mapping[int, Sequence[int]] | None = None,
    configs: Mapping[str, str | None] | None = None,
    validate_only: bool = False,
) -> Any:
    assignments = tuple(CreatableReplicaAssignment(index, tuple(nodes)) for index, nodes in (by_hand or {}).items())
    settings = tuple(CreatableTopicConfig(*each) for each in (configs or {}).items())
    topic = CreatableTopic(name, partitions, factor, assignments, settings)
    return ask(cluster, CreateTopicsRequest((topic,), 1000, validate_only)).topics[0]


def metadata(cluster: Cluster, *topics: str, version: int = 12, create: bool = True) -> Any:
    asked = tuple(MetadataRequestTopic(None, name) for name in topics)
    return ask(cluster, MetadataRequest(asked, create, False, False), version=version)


# ------------------------------------------------------------------------------------------------------- topics


def test_a_created_topic_is_in_the_metadata_with_its_id_and_its_leaders(cluster: Cluster) -> None:
    said = create(cluster, partitions=4, factor=2)
    assert (said.error_code, said.num_partitions, said.replication_factor) == (0, 4, 2)
    answer = metadata(cluster, "t")
    (topic,) = answer.topics
    assert (topic.topic_id, topic.name) == (said.topic_id, "t")
    assert [one.replica_nodes for one in topic.partitions] == [(1, 2), (2, 3), (3, 1), (1, 2)]
    assert [one.leader_id for one in topic.partitions] == [1, 2, 3, 1]
    assert [(one.node_id, one.rack) for one in answer.brokers] == [(1, "rack-1"), (2, "rack-2"), (3, "rack-3")]
    assert (answer.cluster_id, answer.controller_id) == ("cluster", 1)


def test_a_recreated_topic_has_another_id_and_no_records(cluster: Cluster) -> None:
    first = create(cluster).topic_id
    produce(cluster, "t", produced())
    deleted = ask(cluster, DeleteTopicsRequest((DeleteTopicState("t", None),), (), 1000)).responses[0]
    assert (deleted.error_code, deleted.topic_id) == (0, first)
    assert create(cluster).topic_id != first
    assert partition_of(cluster, "t").log.end_offset == 0
    by_id = MetadataRequest((MetadataRequestTopic(first, None),), False, False, False)
    assert ask(cluster, by_id).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert cluster.deleted_topics == ["t"]


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        ({"name": "no such name"}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ({"name": "there"}, ErrorCode.TOPIC_ALREADY_EXISTS),
        ({"partitions": 0}, ErrorCode.INVALID_PARTITIONS),
        ({"partitions": -2}, ErrorCode.INVALID_PARTITIONS),
        ({"partitions": PARTITIONS_MAX}, ErrorCode.INVALID_PARTITIONS),
        ({"partitions": 2**31 - 1}, ErrorCode.INVALID_PARTITIONS),
        ({"factor": 0}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"factor": 4}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"by_hand": {0: [1]}}, ErrorCode.INVALID_REQUEST),
        ({"partitions": -1, "factor": -1, "by_hand": {0: [1], 2: [1]}}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"partitions": -1, "factor": -1, "by_hand": {0: [1, 1]}}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"partitions": -1, "factor": -1, "by_hand": {0: [9]}}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"partitions": -1, "factor": -1, "by_hand": {0: []}}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"partitions": -1, "factor": -1, "by_hand": {0: [1], 1: [1, 2]}}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"configs": {"no.such": "1"}}, ErrorCode.INVALID_CONFIG),
        ({"configs": {"retention.ms": "long"}}, ErrorCode.INVALID_CONFIG),
        ({"configs": {"retention.ms": None}}, ErrorCode.INVALID_CONFIG),
        ({"configs": {"cleanup.policy": "delete,burn"}}, ErrorCode.INVALID_CONFIG),
    ],
)
def test_a_topic_that_cannot_be_is_refused(cluster: Cluster, wanted: dict[str, Any], code: ErrorCode) -> None:
    create(cluster, "there")
    said = create(cluster, **wanted)
    assert (said.error_code, said.topic_id) == (code, None)
    assert said.error_message
    assert set(cluster.topics) == {"there"}


def test_an_assignment_by_hand(cluster: Cluster) -> None:
    assert create(cluster, partitions=-1, factor=-1, by_hand={1: [3, 1], 0: [2, 1]}).error_code == 0
    assert [one.replicas for one in cluster.topics["t"].partitions] == [(2, 1), (3, 1)]


def test_default_numbers_and_a_check_without_a_topic(cluster: Cluster) -> None:
    assert create(cluster, partitions=-1, factor=-1, validate_only=True).num_partitions == 1
    assert not cluster.topics
    assert create(cluster, "there", partitions=-1, factor=-1).replication_factor == 1
    assert create(cluster, "there", validate_only=True).error_code == ErrorCode.TOPIC_ALREADY_EXISTS


def test_a_name_that_comes_twice_in_one_request_is_no_topic(cluster: Cluster) -> None:
    topic = CreatableTopic("t", 1, 1, (), ())
    said = ask(cluster, CreateTopicsRequest((topic, topic, topic._replace(name="u")), 1000, False)).topics
    assert {each.name: each.error_code for each in said} == {"u": 0, "t": ErrorCode.INVALID_REQUEST}


def test_deletion_by_name_by_id_and_of_unknown_topics(cluster: Cluster) -> None:
    first, second = create(cluster).topic_id, create(cluster, "u").topic_id
    by_name = ask(cluster, DeleteTopicsRequest((), ("t", "none"), 1000), version=5).responses
    assert [one.error_code for one in by_name] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    states = tuple(
        DeleteTopicState(*each) for each in ((None, second), (None, first), (None, None), ("u", UUID(int=3)))
    )
    by_id = ask(cluster, DeleteTopicsRequest(states, (), 1000)).responses
    invalid = ErrorCode.INVALID_REQUEST
    assert [one.error_code for one in by_id] == [0, ErrorCode.UNKNOWN_TOPIC_ID, invalid, invalid]


@pytest.mark.parametrize(
    ("total", "by_hand", "code", "there"),
    [
        (4, None, 0, 4),
        (2, None, ErrorCode.INVALID_PARTITIONS, 2),
        (1, None, ErrorCode.INVALID_PARTITIONS, 2),
        (3, [[3]], 0, 3),
        (3, [[3], [1]], ErrorCode.INVALID_REPLICA_ASSIGNMENT, 2),
        (3, [[3, 1]], ErrorCode.INVALID_REPLICA_ASSIGNMENT, 2),
        (3, [[7]], ErrorCode.INVALID_REPLICA_ASSIGNMENT, 2),
        (2**31 - 1, None, ErrorCode.INVALID_PARTITIONS, 2),
    ],
)
def test_a_topic_grows(cluster: Cluster, total: int, by_hand: list[list[int]] | None, code: int, there: int) -> None:
    create(cluster)
    assignments = None if by_hand is None else tuple(CreatePartitionsAssignment(tuple(nodes)) for nodes in by_hand)
    for validate_only in (True, False):
        assert len(cluster.topics["t"].partitions) == 2
        topics = (CreatePartitionsTopic("t", total, assignments),)
        assert ask(cluster, CreatePartitionsRequest(topics, 1000, validate_only)).results[0].error_code == code
    assert len(cluster.topics["t"].partitions) == there
    none = CreatePartitionsRequest((CreatePartitionsTopic("none", 3, None),), 1000, False)
    assert ask(cluster, none).results[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_metadata_of_all_topics_and_of_none(cluster: Cluster) -> None:
    create(cluster)
    create(cluster, "u")

    def names(topics: tuple[Any, ...] | None, version: int) -> list[str]:
        request = MetadataRequest(topics, False, False, False)
        return [one.name for one in ask(cluster, request, version=version).topics]

    assert names(None, 12) == ["t", "u"]
    assert names((), 12) == []
    assert names((), 0) == ["t", "u"]


@pytest.mark.parametrize(
    ("allowed", "wanted", "code"),
    [(True, True, ErrorCode.LEADER_NOT_AVAILABLE), (True, False, 3), (False, True, 3), (False, False, 3)],
)
def test_a_topic_is_created_by_its_name_if_both_sides_want_that(allowed: bool, wanted: bool, code: int) -> None:
    cluster = cluster_of(auto_create=allowed)
    assert metadata(cluster, "new", create=wanted).topics[0].error_code == code
    assert ("new" in cluster.topics) == (allowed and wanted)
    assert metadata(cluster, "no such name").topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_nodes_and_coordinators(cluster: Cluster) -> None:
    described = ask(cluster, DescribeClusterRequest(False, 1))
    assert [one.broker_id for one in described.brokers] == [1, 2, 3]
    controllers = ask(cluster, DescribeClusterRequest(False, 2))
    assert controllers.error_code == ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
    many = ask(cluster, FindCoordinatorRequest("", 0, ("a", "b"))).coordinators
    assert [(one.key, one.node_id, one.port) for one in many] == [("a", 1, 9001), ("b", 1, 9001)]
    one = ask(cluster, FindCoordinatorRequest("a", 0, ()), version=3)
    assert (one.error_code, one.node_id, one.port) == (0, 1, 9001)
    assert ask(cluster, FindCoordinatorRequest("tx", 1, ()), version=3).error_code == ErrorCode.INVALID_REQUEST


# ----------------------------------------------------------------------------------------------------- settings


def described(cluster: Cluster, *keys: str, synonyms: bool = False, kind: int = 2, name: str = "t") -> Any:
    resource = DescribeConfigsResource(kind, name, keys or None)
    return ask(cluster, DescribeConfigsRequest((resource,), synonyms, False)).results[0]


def alter(cluster: Cluster, *changes: tuple[str, int, str | None], validate_only: bool = False, name: str = "t") -> Any:
    resource = AlterConfigsResource(2, name, tuple(AlterableConfig(*change) for change in changes))
    return ask(cluster, IncrementalAlterConfigsRequest((resource,), validate_only)).responses[0]


def test_settings_are_described_with_their_source(cluster: Cluster) -> None:
    create(cluster, configs={"retention.ms": "1000"})
    found = {each.name: each for each in described(cluster).configs}
    assert set(found) == set(topic_configs.SETTINGS)
    assert (found["retention.ms"].value, found["retention.ms"].config_source) == ("1000", 1)
    assert (found["max.message.bytes"].value, found["max.message.bytes"].config_source) == ("1048588", 5)
    (one,) = described(cluster, "retention.ms", synonyms=True).configs
    assert [(each.value, each.source) for each in one.synonyms] == [("1000", 1), ("604800000", 5)]
    assert described(cluster, kind=4, name="1").configs == ()
    assert described(cluster, kind=4, name="9").error_code == ErrorCode.INVALID_REQUEST
    assert described(cluster, name="none").error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_each_default_is_a_value_that_may_be_set() -> None:
    for name, setting in topic_configs.SETTINGS.items():
        topic_configs.check(name, setting.default)


def test_settings_are_altered_together_or_not_at_all(cluster: Cluster) -> None:
    create(cluster)
    assert alter(cluster, ("retention.ms", 0, "5"), ("segment.ms", 0, "no")).error_code == ErrorCode.INVALID_CONFIG
    assert alter(cluster, ("retention.ms", 0, "5"), validate_only=True).error_code == 0
    assert cluster.topics["t"].configs == {}
    assert alter(cluster, ("retention.ms", 0, "5"), ("cleanup.policy", 2, "compact")).error_code == 0
    assert cluster.topics["t"].configs == {"retention.ms": "5", "cleanup.policy": "delete,compact"}
    assert alter(cluster, ("retention.ms", 1, None), ("cleanup.policy", 3, "delete")).error_code == 0
    assert cluster.topics["t"].configs == {"cleanup.policy": "compact"}
    assert alter(cluster, ("retention.ms", 2, "5")).error_code == ErrorCode.INVALID_CONFIG
    assert alter(cluster, ("cleanup.policy", 9, "x")).error_code == ErrorCode.INVALID_REQUEST
    assert alter(cluster, name="none").error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


# ------------------------------------------------------------------------------------------------------ offsets


def listed(cluster: Cluster, timestamp_ms: int, *, partition: int = 0, epoch: int = -1, version: int = 10) -> Any:
    asked = (ListOffsetsTopic("t", (ListOffsetsPartition(partition, epoch, timestamp_ms),)),)
    answer = ask(cluster, ListOffsetsRequest(-1, 0, asked, 1000), version=version)
    return answer.topics[0].partitions[0]


def place(found: Any) -> tuple[int, int, int, int]:
    return found.error_code, found.offset, found.timestamp, found.leader_epoch


def test_the_ends_of_a_log(cluster: Cluster) -> None:
    create(cluster)
    assert place(listed(cluster, -2)) == (0, 0, -1, 0)
    assert place(listed(cluster, -1)) == (0, 0, -1, 0)
    produce(cluster, "t", produced([b"a"] * 3), produced([b"b"] * 3))
    cluster.elect(AT)
    cluster.delete_records(AT, partition_of(cluster, "t"), 2)
    assert place(listed(cluster, -2)) == (0, 2, -1, 0)
    assert place(listed(cluster, -4)) == (0, 2, -1, 0)
    assert place(listed(cluster, -1)) == (0, 6, -1, 1)
    assert place(listed(cluster, -5)) == (0, -1, -1, -1)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_timestamp_is_looked_up_record_by_record(cluster: Cluster, codec: str) -> None:
    """FileRecords.searchForTimestamp: not the first record of the batch, which franz-go #706 was about."""
    create(cluster)
    times = [[100, 300, 200], [250, 250, 700], [400, 500, 600]]
    produce(cluster, "t", *(produced([b"v"] * 3, codec=codec, times_ms=each) for each in times))
    found = {ms: place(listed(cluster, ms))[1:3] for ms in (0, 100, 101, 300, 301, 699, 700)}
    assert found == {
        0: (0, 100),
        100: (0, 100),
        101: (1, 300),
        300: (1, 300),
        301: (5, 700),
        699: (5, 700),
        700: (5, 700),
    }
    assert place(listed(cluster, 701)) == (0, -1, -1, -1)
    assert place(listed(cluster, -3)) == (0, 5, 700, 0)
    cluster.delete_records(AT, partition_of(cluster, "t"), 2)
    assert place(listed(cluster, 0)) == (0, 2, 200, 0), "a deleted record is not found"


def test_snappy_javas_stream_is_read_too(cluster: Cluster) -> None:
    create(cluster)
    produce(cluster, "t", produced([b"v" * 3000] * 3, codec="snappy", xerial=True, times_ms=[1, 2, 3]))
    assert place(listed(cluster, 2))[1:3] == (1, 2)


def test_with_append_time_all_records_of_a_batch_have_one_timestamp(cluster: Cluster) -> None:
    create(cluster, configs={"message.timestamp.type": "LogAppendTime"})
    produce(cluster, "t", produced([b"v"] * 3, codec="zstd"))
    cluster.delete_records(AT, partition_of(cluster, "t"), 1)
    assert place(listed(cluster, 1)) == (0, 1, NOW_MS, 0)


def test_no_record_no_timestamp(cluster: Cluster) -> None:
    create(cluster)
    assert place(listed(cluster, -3)) == (0, -1, -1, -1)
    assert place(listed(cluster, 0)) == (0, -1, -1, -1)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_that_cannot_be_read_are_an_error_of_their_partition(cluster: Cluster, codec: str) -> None:
    create(cluster)
    (said,) = produce(cluster, "t", produced([b"v"], codec=codec, payload=b"\xff" * 30))
    assert said.error_code == 0, "the broker does not look into batches"
    assert listed(cluster, 1).error_code == ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize(("timestamp_ms", "since"), [(-3, 7), (-4, 8), (-5, 9), (-6, 99)])
def test_a_special_timestamp_needs_its_version(cluster: Cluster, timestamp_ms: int, since: int) -> None:
    create(cluster)
    for version in range(1, 11):
        code = listed(cluster, timestamp_ms, version=version).error_code
        assert code == (ErrorCode.NONE if version >= since else ErrorCode.UNSUPPORTED_VERSION)


def test_only_the_leader_of_the_epoch_knows_offsets(cluster: Cluster) -> None:
    create(cluster)
    assert listed(cluster, -1, epoch=3).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert listed(cluster, -1, partition=1).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert listed(cluster, -1, partition=2).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_the_end_of_each_leader_epoch(cluster: Cluster) -> None:
    """LeaderEpochFileCache.endOffsetFor: epoch 2 had no record, and is not known."""
    create(cluster)
    produce(cluster, "t", produced([b"v"] * 3))
    cluster.elect(AT)
    produce(cluster, "t", produced([b"v"] * 2))
    cluster.elect(AT)
    cluster.elect(AT)

    def end(epoch: int, known: int = -1) -> Any:
        asked = (OffsetForLeaderTopic("t", (OffsetForLeaderPartition(0, known, epoch),)),)
        found = ask(cluster, OffsetForLeaderEpochRequest(-1, asked)).topics[0].partitions[0]
        return found.error_code, found.leader_epoch, found.end_offset

    assert [end(epoch) for epoch in (0, 1, 2, 3)] == [(0, 0, 3), (0, 1, 5), (0, 1, 5), (0, 3, 5)]
    assert end(4) == end(-1) == (0, -1, -1)
    assert end(0, known=2)[0] == ErrorCode.FENCED_LEADER_EPOCH
    cluster.delete_records(AT, partition_of(cluster, "t"), 4)
    assert end(0) == (0, 0, 4), "the first epoch that is known begins at 4"


def test_records_are_deleted_up_to_an_offset_or_to_the_end(cluster: Cluster) -> None:
    create(cluster)
    produce(cluster, "t", produced([b"v"] * 4))

    def delete(offset: int, partition: int = 0) -> tuple[int, int]:
        asked = (DeleteRecordsTopic("t", (DeleteRecordsPartition(partition, offset),)),)
        found = ask(cluster, DeleteRecordsRequest(asked, 1000)).topics[0].partitions[0]
        return found.error_code, found.low_watermark

    assert delete(2) == (0, 2)
    assert delete(1) == (0, 2)
    assert delete(5) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert delete(-2) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert delete(-1) == (0, 4)
    assert delete(0, partition=1)[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER
    alter(cluster, ("cleanup.policy", 0, "compact"))
    assert delete(-1)[0] == ErrorCode.POLICY_VIOLATION


def test_a_leader_is_one_of_the_replicas(cluster: Cluster) -> None:
    create(cluster)
    with pytest.raises(Refused, match="no replica on node 2"):
        cluster.elect(AT, 2)
