"""Batches come into a log as Kafka's UnifiedLog, LogValidator and ProducerStateManager take them."""

from typing import Any

import pytest
from harness.broker_calls import NOW_MS, ask, cluster_of, fetch, fetched, partition_of, produce, produced
from harness.record_batches import CONTROL, TRANSACTIONAL

from spark_kgroup.broker.apis.fetch import FETCH_BYTES_MAX
from spark_kgroup.broker.call import HangUp
from spark_kgroup.broker.cluster import Cluster
from spark_kgroup.broker.producers import PRODUCERS_MAX
from spark_kgroup.broker.record_times import record_times
from spark_kgroup.model import ErrorCode, TopicPartition
from spark_kgroup.wire.broker_schema import (
    InitProducerIdRequest,
    LeaderIdAndEpoch,
    ProduceRequest,
    TopicProduceData,
)

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
AT = TopicPartition("t", 0)


@pytest.fixture
def cluster() -> Cluster:
    made = cluster_of(nodes=2)
    made.create_topic("t", [[1, 2], [2, 1]])
    return made


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_is_stored_as_it_came_but_for_its_place(cluster: Cluster, codec: str) -> None:
    raw = produced([b"a" * 100, b"b" * 100], codec=codec)
    first, second = produce(cluster, "t", raw, raw)
    assert (first.error_code, first.base_offset, second.base_offset) == (0, 0, 2)
    assert first.log_append_time_ms == -1
    kept = fetched(cluster, "t").records or b""
    assert kept[: len(raw)] == raw  # offset 0 and epoch 0, as it came
    assert kept[len(raw) :] == (2).to_bytes(8, "big") + raw[8:]
    assert [one.offset for batch in partition_of(cluster, "t").log.batches for one in record_times(batch)] == [
        0,
        1,
        2,
        3,
    ]


def broken_checksum() -> bytes:
    raw = bytearray(produced())
    raw[-1] ^= 1
    return bytes(raw)


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (None, ErrorCode.INVALID_RECORD),
        (b"", ErrorCode.INVALID_RECORD),
        (produced()[:60], ErrorCode.INVALID_RECORD),
        (produced()[:-1], ErrorCode.INVALID_RECORD),
        (produced() + produced(), ErrorCode.INVALID_RECORD),
        (broken_checksum(), ErrorCode.CORRUPT_MESSAGE),
        (produced(magic=1), ErrorCode.INVALID_RECORD),
        (produced(count=0), ErrorCode.INVALID_RECORD),
        (produced(count=7), ErrorCode.INVALID_RECORD),
        (produced(last_offset=-5), ErrorCode.INVALID_RECORD),
        (produced(base_offset=4), ErrorCode.INVALID_RECORD),
        (produced(attributes=CONTROL), ErrorCode.INVALID_RECORD),
        (produced(attributes=TRANSACTIONAL), ErrorCode.INVALID_TXN_STATE),
        (produced(attributes=7), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (produced(producer=5, sequence=-1), ErrorCode.INVALID_RECORD),
        (produced([b"x" * 2_000_000]), ErrorCode.MESSAGE_TOO_LARGE),
    ],
)
def test_an_invalid_batch_is_refused_and_not_stored(cluster: Cluster, raw: bytes | None, code: ErrorCode) -> None:
    (said,) = produce(cluster, "t", raw)
    assert (said.error_code, said.base_offset) == (code, -1)
    assert said.error_message
    assert partition_of(cluster, "t").log.end_offset == 0


def test_zstd_needs_version_7(cluster: Cluster) -> None:
    raw = produced(codec="zstd")
    assert produce(cluster, "t", raw, version=6)[0].error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert produce(cluster, "t", raw, version=7)[0].error_code == ErrorCode.NONE


def test_a_topic_with_append_time_has_the_brokers_time_and_a_new_checksum(cluster: Cluster) -> None:
    cluster.create_topic("l", [[1]], {"message.timestamp.type": "LogAppendTime"})
    (said,) = produce(cluster, "l", produced(times_ms=[5]))
    assert said.log_append_time_ms == NOW_MS
    (batch,) = partition_of(cluster, "l").log.batches
    assert (batch.max_timestamp_ms, batch.has_append_time) == (NOW_MS, True)
    cluster.create_topic("again", [[1]])
    assert produce(cluster, "again", batch.raw)[0].error_code == ErrorCode.NONE, "its checksum is right"


def test_a_record_may_be_an_hour_ahead_of_the_broker(cluster: Cluster) -> None:
    """message.timestamp.after.max.ms. With append time the producer's timestamps do not count."""
    hour_ms = 3_600_000
    batches = [produced(times_ms=[NOW_MS + hour_ms]), produced(times_ms=[NOW_MS + hour_ms + 1])]
    assert [one.error_code for one in produce(cluster, "t", *batches)] == [0, ErrorCode.INVALID_TIMESTAMP]
    cluster.create_topic("l", [[1]], {"message.timestamp.type": "LogAppendTime"})
    cluster.create_topic("later", [[1]], {"message.timestamp.after.max.ms": "3600001"})
    assert [one.error_code for name in ("l", "later") for one in produce(cluster, name, batches[1])] == [0, 0]


def test_max_message_bytes_of_the_topic_bounds_a_batch(cluster: Cluster) -> None:
    cluster.create_topic("small", [[1]], {"max.message.bytes": "100"})
    codes = [one.error_code for one in produce(cluster, "small", produced([b"x"]), produced([b"x" * 100]))]
    assert codes == [ErrorCode.NONE, ErrorCode.MESSAGE_TOO_LARGE]


def test_the_leader_alone_takes_batches_and_says_who_leads(cluster: Cluster) -> None:
    (said,) = produce(cluster, "t", produced(), partition=1)
    assert said.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert said.current_leader == LeaderIdAndEpoch(2, 0)
    assert produce(cluster, "t", produced(), partition=1, node=2)[0].error_code == ErrorCode.NONE


def test_unknown_topics_and_partitions(cluster: Cluster) -> None:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert produce(cluster, "none", produced())[0].error_code == unknown
    assert produce(cluster, "t", produced(), partition=2)[0].error_code == unknown
    assert produce(cluster, "t", produced(), partition=-1)[0].error_code == unknown
    assert produce(cluster, "none", produced(), version=13)[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert produce(cluster, "t", produced(), version=13)[0].error_code == ErrorCode.NONE


def test_acks(cluster: Cluster) -> None:
    for partition in (0, 9):
        said = produce(cluster, "t", produced(), partition=partition, acks=2)
        assert said[0].error_code == ErrorCode.INVALID_REQUIRED_ACKS
    no_topic = ProduceRequest(None, 0, 0, (TopicProduceData("none", None, ()),))
    assert ask(cluster, no_topic, version=12) is None
    with pytest.raises(HangUp):
        produce(cluster, "none", produced(), acks=0)


def test_memory_is_bounded() -> None:
    cluster = cluster_of(log_bytes_max=1000)
    cluster.create_topic("t", [[1]])
    codes = [one.error_code for one in produce(cluster, "t", *[produced([b"x" * 300])] * 3)]
    assert codes == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.POLICY_VIOLATION]
    cluster.delete_records(AT, partition_of(cluster, "t"), 1)
    assert produce(cluster, "t", produced([b"x" * 300]))[0].error_code == ErrorCode.NONE
    cluster.delete_topic(cluster.topics["t"])
    assert cluster.log_bytes == 0


# -------------------------------------------------------------------------------------------------- idempotent


def sent(sequence: int, *, epoch: int = 0, records: int = 1) -> bytes:
    return produced([b"v"] * records, producer=7, epoch=epoch, sequence=sequence)


def codes_of(cluster: Cluster, *batches: bytes) -> list[int]:
    return [one.error_code for one in produce(cluster, "t", *batches)]


def test_a_batch_that_comes_again_is_stored_once(cluster: Cluster) -> None:
    batches = [sent(0, records=2), sent(2), sent(3), sent(4), sent(5)]
    offsets = [one.base_offset for one in produce(cluster, "t", *batches, *batches)]
    assert offsets == [0, 2, 3, 4, 5] * 2
    (again,) = produce(cluster, "t", batches[0])
    assert again.log_append_time_ms == NOW_MS + 1, "the largest timestamp of the batch, as Kafka tells it"
    assert partition_of(cluster, "t").log.end_offset == 6


def test_a_batch_older_than_the_last_five_is_out_of_order(cluster: Cluster) -> None:
    assert codes_of(cluster, *map(sent, range(6))) == [0] * 6
    assert codes_of(cluster, sent(0)) == [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER]
    assert codes_of(cluster, sent(1)) == [0]


def test_a_gap_is_refused(cluster: Cluster) -> None:
    assert codes_of(cluster, sent(0), sent(2), sent(1)) == [0, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 0]


def test_an_epoch_begins_at_sequence_0_and_fences_the_one_before(cluster: Cluster) -> None:
    assert codes_of(cluster, sent(0), sent(1, epoch=1)) == [0, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER]
    assert codes_of(cluster, sent(0, epoch=1), sent(1)) == [0, ErrorCode.INVALID_PRODUCER_EPOCH]


def test_a_producer_that_is_unknown_may_begin_anywhere(cluster: Cluster) -> None:
    """ProducerAppendInfo.checkSequence: its records may have been deleted."""
    assert codes_of(cluster, sent(17), sent(18), sent(18)) == [0, 0, 0]


def test_sequence_numbers_wrap(cluster: Cluster) -> None:
    assert codes_of(cluster, sent(2**31 - 2, records=2), sent(0)) == [0, 0]
    assert codes_of(cluster, sent(2**31 - 1, records=2)) == [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER]
    cluster.create_topic("u", [[1]])
    said = produce(cluster, "u", sent(2**31 - 1, records=2), sent(1))
    assert [one.error_code for one in said] == [0, 0], "2^31 - 1 and 0 were in one batch"


def test_producers_are_told_apart_and_forgotten_in_turn(cluster: Cluster) -> None:
    for producer in range(PRODUCERS_MAX + 1):
        assert produce(cluster, "t", produced(producer=producer, sequence=0))[0].error_code == 0
    end = partition_of(cluster, "t").log.end_offset
    again = produce(cluster, "t", produced(producer=1, sequence=0), produced(producer=0, sequence=0))
    assert [one.base_offset for one in again] == [1, end], "producer 0 was silent for longest, and is forgotten"


def test_a_producer_id_is_given_once(cluster: Cluster) -> None:
    request = InitProducerIdRequest(None, 0, -1, -1)
    ids = [ask(cluster, request).producer_id for _ in range(3)]
    assert len(set(ids)) == 3
    assert ask(cluster, request).producer_epoch == 0
    assert ask(cluster, InitProducerIdRequest("tx", 0, -1, -1)).error_code == ErrorCode.INVALID_REQUEST


# -------------------------------------------------------------------------------------------------------- Fetch


def filled(cluster: Cluster, batches: int = 5, records: int = 2) -> int:
    """Appends so many batches to t-0, and returns the size of one."""
    raw = produced([b"v" * 50] * records)
    produce(cluster, "t", *[raw] * batches)
    return len(raw)


def offsets_in(raw: bytes | None, size: int) -> list[int]:
    assert raw is not None
    assert len(raw) % size == 0, "whole batches"
    return [int.from_bytes(raw[at : at + 8], "big") for at in range(0, len(raw), size)]


def test_a_fetch_gives_whole_batches_from_the_one_that_holds_the_offset(cluster: Cluster) -> None:
    size = filled(cluster)
    assert offsets_in(fetched(cluster, "t", 3).records, size) == [2, 4, 6, 8]
    assert offsets_in(fetched(cluster, "t", 4, partition_bytes_max=2 * size).records, size) == [4, 6]
    assert offsets_in(fetched(cluster, "t", 10).records, size) == []
    found = fetched(cluster, "t", 0)
    assert (found.high_watermark, found.last_stable_offset, found.log_start_offset) == (10, 10, 0)


def test_the_first_batch_of_an_answer_comes_however_large_it_is(cluster: Cluster) -> None:
    """KIP-74, or a consumer with a small fetch.max.bytes would stand still."""
    size = filled(cluster)
    assert offsets_in(fetched(cluster, "t", 0, bytes_max=1).records, size) == [0]
    assert offsets_in(fetched(cluster, "t", 0, partition_bytes_max=0).records, size) == [0]
    assert size < FETCH_BYTES_MAX


@pytest.mark.parametrize("offset", [-1, 11, 2**62])
def test_an_offset_outside_of_the_log_is_out_of_range(cluster: Cluster, offset: int) -> None:
    filled(cluster)
    assert fetched(cluster, "t", offset).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_fetch_waits_for_bytes_and_no_longer_than_it_may(cluster: Cluster) -> None:
    waiting = fetch(cluster, "t", wait_ms=500)
    assert (waiting.wait_ms, waiting.partitions) == (500, {AT})
    assert fetched(cluster, "t", wait_ms=500, waited=True).records == b""
    size = filled(cluster, batches=1)
    assert fetched(cluster, "t", wait_ms=500).records
    assert fetched(cluster, "t", wait_ms=500, min_bytes=size).records
    assert not hasattr(fetch(cluster, "t", wait_ms=500, min_bytes=size + 1), "responses")
    assert fetched(cluster, "t", wait_ms=0, min_bytes=size + 1).records


def test_an_error_is_answered_at_once(cluster: Cluster) -> None:
    assert fetched(cluster, "t", 5, wait_ms=500).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert fetched(cluster, "none", wait_ms=500).error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert fetched(cluster, "none", wait_ms=500, version=12).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_leader_epochs_fence(cluster: Cluster) -> None:
    filled(cluster)
    cluster.elect(AT)
    assert fetched(cluster, "t", leader_epoch=0).error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert fetched(cluster, "t", leader_epoch=2).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert fetched(cluster, "t", leader_epoch=1).error_code == ErrorCode.NONE
    cluster.elect(AT, 2)
    answer = fetch(cluster, "t")
    (said,) = answer.responses[0].partitions
    assert (said.error_code, said.current_leader) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, LeaderIdAndEpoch(2, 2))
    assert [each.node_id for each in answer.node_endpoints] == [1, 2]


def test_no_session_is_given_and_none_is_known(cluster: Cluster) -> None:
    filled(cluster)
    assert fetch(cluster, "t", session=(0, 0)).session_id == 0
    refused = fetch(cluster, "t", session=(5, 1))
    assert (refused.error_code, refused.responses) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ())
    assert fetch(cluster, "t", session=(5, -1)).error_code == ErrorCode.NONE, "a session's end is no error"


def test_a_truncated_log_is_found_by_the_epoch_of_the_last_record(cluster: Cluster) -> None:
    """Partition.readRecords: three records of epoch 0 are lost, and records of epoch 1 take their offsets."""
    filled(cluster, batches=5)
    cluster.truncate(AT, 6)
    filled(cluster, batches=3)
    said = fetched(cluster, "t", 10, last_epoch=0, wait_ms=500)
    assert said.diverging_epoch == (0, 6)
    assert (said.error_code, said.records) == (0, b"")
    assert fetched(cluster, "t", 6, last_epoch=0).diverging_epoch == (-1, -1)
    assert fetched(cluster, "t", 8, last_epoch=1).records
    assert fetched(cluster, "t", 8, last_epoch=7).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_truncation_drops_whole_batches(cluster: Cluster) -> None:
    filled(cluster, batches=3)
    cluster.truncate(AT, 3)
    log = partition_of(cluster, "t").log
    assert (log.end_offset, [each.base_offset for each in log.batches]) == (2, [0])
    assert cluster.log_bytes == log.bytes


def test_deleted_records_are_out_of_range_and_their_batch_stays_while_it_is_needed(cluster: Cluster) -> None:
    size = filled(cluster, batches=3)
    log = partition_of(cluster, "t").log
    cluster.delete_records(AT, partition_of(cluster, "t"), 3)
    assert (log.start_offset, log.bytes, cluster.log_bytes) == (3, 2 * size, 2 * size)
    assert fetched(cluster, "t", 2).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert offsets_in(fetched(cluster, "t", 3).records, size) == [2, 4]


def test_changes_of_partitions_are_noted_for_waiting_fetches(cluster: Cluster) -> None:
    def changed_by(change: Any) -> set[TopicPartition]:
        cluster.changed.clear()
        change()
        return set(cluster.changed)

    assert changed_by(lambda: produce(cluster, "t", produced())) == {AT}
    assert changed_by(lambda: cluster.elect(AT)) == {AT}
    assert changed_by(lambda: cluster.delete_topic(cluster.topics["t"])) == {AT, TopicPartition("t", 1)}
