"""A log that ends below its range, or is absent: brokers are asked anew for seconds before that is a loss."""

import itertools
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as AssignedPartition

from pyspark_kgroup.errors import DataLoss
from pyspark_kgroup.executor.native.decode import FallbackToLibrdkafka
from pyspark_kgroup.executor.native.fetched_log import UnknownTopicId
from pyspark_kgroup.executor.read import range_reader
from pyspark_kgroup.executor.read.range_reader import read_with_librdkafka
from pyspark_kgroup.executor.read.topic_ids import TopicIds
from pyspark_kgroup.limits import END_BELOW_MS, UNKNOWN_FOR_MS
from pyspark_kgroup.shared.tickets import OffsetRange, ReadSettings
from spark_kgroup.errors import WireError
from spark_kgroup.limits import LOOK_AGAIN_MS, TOPIC_GONE_AFTER_MS
from spark_kgroup.model import TopicPartition


@dataclass
class Log:
    """What one broker takes for the log, as the leader. `broker` is its node id, if librdkafka names it."""

    first: int
    end: int
    there: bool = True
    silent: bool = False
    markers: bool = False
    topic: bool = True
    broker: int = -1
    cluster: str = "ours"


class Cluster:
    """Brokers of which each believes to lead. Every new consumer reaches the next one."""

    def __init__(self, *logs: Log, brokers: int = 3) -> None:
        self.logs = logs
        self.brokers = brokers
        self.now_s = 1_000.0
        self.open = 0
        self.consumers = 0
        self.look_takes_s = 0.0
        self.reports_after_s = 0.0
        self.looks = 0
        self.partitions = 1
        self.created_anew = False
        self.reasons: dict[TopicPartition, FallbackToLibrdkafka] = {}

    def ids_changed(self, topics: Iterable[str]) -> dict[str, str]:
        """In place of `TopicIds.changed`."""
        return dict.fromkeys(topics, "later") if self.created_anew else {}

    def consumer(self, config: Mapping[str, Any], **_: object) -> "OneConsumer":
        self.consumers += 1
        self.open += 1
        return OneConsumer(self, self.logs[min(self.consumers, len(self.logs)) - 1], config["error_cb"])

    def read(self, start: int, end: int, *, fail: bool = True, stall_timeout_ms: int = 300_000) -> list[int]:
        settings = ReadSettings(
            consumer_config={}, fail_on_data_loss=fail, stall_timeout_ms=stall_timeout_ms, cluster="ours"
        )
        ranges = [OffsetRange("t", number, start, end) for number in range(self.partitions)]
        reading = read_with_librdkafka(ranges, settings, lambda: self.now_s, reasons=self.reasons)
        return [offset for batch in reading for offset in batch["offset"].to_pylist()]


class OneConsumer:
    """As librdkafka's with `auto.offset.reset=error`: it tells of a position that its broker lacks, and then stops."""

    def __init__(self, cluster: Cluster, log: Log, on_error: Callable[[KafkaError], None]) -> None:
        self._cluster = cluster
        self._on_error = on_error
        self._log = log
        self._position = -1
        self._told = False

    def assign(self, partitions: list[AssignedPartition]) -> None:
        self._position, self._told = partitions[0].offset, False

    incremental_assign = assign

    def incremental_unassign(self, _: list[AssignedPartition]) -> None:
        self._told = True

    def poll(self, timeout_s: float) -> Message | None:
        self._cluster.now_s += timeout_s
        if self._told or self._log.silent or self._cluster.now_s < 1_000 + self._cluster.reports_after_s:
            return None
        if not self._log.there:
            self._told = True
            code = KafkaError._UNKNOWN_PARTITION if self._log.topic else KafkaError.UNKNOWN_TOPIC_OR_PART
            self._on_error(KafkaError(code))
            return None
        if self._log.markers:
            self._position = self._log.end
            return None
        if self._log.first <= self._position < self._log.end:
            self._position += 1
            return Message(topic="t", partition=0, offset=self._position - 1, value=b"v", timestamp=(1, 1_000))
        self._told = True
        code = KafkaError._PARTITION_EOF if self._position == self._log.end else KafkaError.OFFSET_OUT_OF_RANGE
        return Message(topic="t", partition=0, offset=self._position, error=KafkaError(code))

    def consume(self, _most: int, _timeout_s: float) -> list[Message]:
        return []

    def position(self, partitions: list[AssignedPartition]) -> list[AssignedPartition]:
        return [AssignedPartition(one.topic, one.partition, self._position) for one in partitions]

    def get_watermark_offsets(self, _: AssignedPartition, _timeout_s: float) -> tuple[int, int]:
        if self._log.silent:
            self._cluster.now_s += 5
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        assert self._log.there, "librdkafka would answer with a timeout"
        return self._log.first, self._log.end

    def list_topics(self, topic: str, _timeout_s: float) -> Any:
        log = self._log
        self._cluster.looks += 1
        self._cluster.now_s += self._cluster.look_takes_s
        error = None if log.topic else KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
        there = range(self._cluster.partitions) if log.there else ()
        seen = SimpleNamespace(error=error, partitions=dict.fromkeys(there))
        brokers = dict.fromkeys(range(self._cluster.brokers))
        return SimpleNamespace(topics={topic: seen}, orig_broker_id=log.broker, brokers=brokers, cluster_id=log.cluster)

    def close(self) -> None:
        self._cluster.open -= 1


def cluster_of(monkeypatch: pytest.MonkeyPatch, *logs: Log) -> Cluster:
    cluster = Cluster(*logs)
    monkeypatch.setattr(range_reader, "Consumer", cast("Any", cluster.consumer))
    monkeypatch.setattr(TopicIds, "changed", lambda _, topics: cluster.ids_changed(topics))
    return cluster


WHOLE, CUT_OFF, ABSENT, SILENT = Log(0, 60), Log(0, 24), Log(0, 0, there=False), Log(0, 60, silent=True)


@pytest.mark.parametrize("start", [24, 40])
@pytest.mark.parametrize("fail", [True, False])
def test_a_broker_that_is_cut_off_and_goes_on_as_a_leader_is_no_loss(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fail: bool, start: int
) -> None:
    cluster = cluster_of(monkeypatch, CUT_OFF, CUT_OFF, WHOLE)
    assert cluster.read(start, 60, fail=fail) == list(range(start, 60))
    assert cluster.open == 0
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert f"t-0 is to be read from offset {start} to 59, but the log has 0 to 23: asking again for 10 s" in warning


def test_records_before_the_end_are_handed_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = cluster_of(monkeypatch, CUT_OFF, WHOLE)
    assert cluster.read(10, 60) == list(range(10, 60))


def test_an_end_below_is_a_loss_when_brokers_have_named_no_other_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = cluster_of(monkeypatch, CUT_OFF)
    with pytest.raises(DataLoss, match="Offsets 40 to 59 of t-0 were still to be read, but the log has 0 to 23"):
        cluster.read(40, 60)
    assert END_BELOW_MS <= (cluster.now_s - 1_000) * 1000 < END_BELOW_MS + 2 * LOOK_AGAIN_MS
    assert cluster.consumers >= END_BELOW_MS // LOOK_AGAIN_MS - 2, "each may reach another broker"
    assert cluster.open == 0
    assert cluster.read(40, 60, fail=False) == []


def test_a_broker_that_does_not_know_a_partition_yet_is_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """librdkafka waits for a topic that is unknown, and for no partition that one broker's answer lacks."""
    cluster = cluster_of(monkeypatch, ABSENT, ABSENT, WHOLE)
    assert cluster.read(40, 60) == list(range(40, 60))


def test_a_partition_that_brokers_have_not_known_for_a_while_is_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = cluster_of(monkeypatch, ABSENT)
    with pytest.raises(DataLoss, match=r"Offsets 40 to 59 of t-0 .* the partition does not exist any more"):
        cluster.read(40, 60)
    assert TOPIC_GONE_AFTER_MS <= (cluster.now_s - 1_000) * 1000 < TOPIC_GONE_AFTER_MS + 2 * LOOK_AGAIN_MS
    assert cluster.read(40, 60, fail=False) == []


def unknown_to(*brokers: int, topic: bool = False) -> list[Log]:
    """What new consumers hear in turn, each from the next one of these brokers."""
    return [
        Log(0, 0, there=False, topic=topic, broker=broker) for broker in itertools.islice(itertools.cycle(brokers), 50)
    ]


@pytest.mark.parametrize("topic", [True, False])
def test_two_brokers_that_do_not_know_a_partition_for_a_while_suffice(
    monkeypatch: pytest.MonkeyPatch, topic: bool
) -> None:
    cluster = cluster_of(monkeypatch, *unknown_to(1, 2, topic=topic))
    with pytest.raises(DataLoss, match=r"Offsets 40 to 59 of t-0 .* the partition does not exist any more"):
        cluster.read(40, 60)
    assert UNKNOWN_FOR_MS <= (cluster.now_s - 1_000) * 1000 < UNKNOWN_FOR_MS + 2 * LOOK_AGAIN_MS


@pytest.mark.parametrize(
    ("brokers", "of", "bound_ms"),
    [((1,), 3, TOPIC_GONE_AFTER_MS), ((-1,), 3, TOPIC_GONE_AFTER_MS), ((1,), 1, UNKNOWN_FOR_MS)],
    ids=["one of three", "brokers of unknown id", "the only one"],
)
def test_one_broker_that_does_not_know_a_topic_suffices_if_there_is_no_other_or_after_a_longer_time(
    monkeypatch: pytest.MonkeyPatch, brokers: tuple[int, ...], of: int, bound_ms: int
) -> None:
    cluster = cluster_of(monkeypatch, *unknown_to(*brokers))
    cluster.brokers = of
    with pytest.raises(DataLoss, match=r"Offsets 40 to 59 of t-0 .* the partition does not exist any more"):
        cluster.read(40, 60)
    assert bound_ms <= (cluster.now_s - 1_000) * 1000 < bound_ms + 2 * LOOK_AGAIN_MS


def test_two_brokers_that_have_not_heard_of_a_new_topic_are_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = cluster_of(monkeypatch, *unknown_to(1, 2)[:4], WHOLE)
    assert cluster.read(40, 60) == list(range(40, 60))


def test_a_short_log_and_brokers_that_do_not_know_its_topic_are_two_signs_with_a_time_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """1. The log ends below the range. 2. Looks then find a topic that the next brokers have not heard of yet."""
    cluster = cluster_of(monkeypatch, *[CUT_OFF] * 4, *unknown_to(1, 2)[:4], WHOLE)
    assert cluster.read(40, 60) == list(range(40, 60))


def test_a_topic_whose_id_a_leader_did_not_know_is_looked_at_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = cluster_of(monkeypatch, *unknown_to(1))
    cluster.reports_after_s = 20
    cluster.reasons = {TopicPartition("t", 0): UnknownTopicId("t-0: UNKNOWN_TOPIC_ID")}
    cluster.brokers = 1
    with pytest.raises(DataLoss):
        cluster.read(40, 60)
    assert (cluster.now_s - 1_000) * 1000 < UNKNOWN_FOR_MS + 2 * LOOK_AGAIN_MS, "librdkafka was not waited for"


@pytest.mark.parametrize(
    "log", [Log(0, 24, cluster="theirs"), Log(0, 0, there=False, topic=False, broker=1, cluster="theirs")]
)
def test_what_a_broker_of_another_cluster_says_of_a_log_is_no_loss(monkeypatch: pytest.MonkeyPatch, log: Log) -> None:
    cluster = cluster_of(monkeypatch, log)
    cluster.brokers = 1
    with pytest.raises(WireError, match=r"another cluster answers .* \(cluster id theirs, the driver's is ours\)"):
        cluster.read(40, 60, fail=False)


def test_a_broker_of_another_cluster_is_left_for_another_address(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = cluster_of(monkeypatch, *[replace(CUT_OFF, cluster="theirs")] * 2, WHOLE)
    assert cluster.read(40, 60) == list(range(40, 60))
    assert cluster.consumers == 3
    assert cluster.now_s - 1_000 < 5 * LOOK_AGAIN_MS / 1000


def test_looks_in_vain_have_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader's address leads to a broker that does not know the topic, though the metadata do."""
    denied = KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
    cluster = cluster_of(monkeypatch, replace(CUT_OFF, broker=1))
    monkeypatch.setattr(OneConsumer, "get_watermark_offsets", Mock(side_effect=denied))
    with pytest.raises(WireError, match="No record came for 60 s"):
        cluster.read(40, 60, stall_timeout_ms=60_000)
    assert cluster.looks < 80
    assert cluster.consumers > 30, "each may reach another broker"


def test_of_a_deleted_topic_with_many_partitions_a_few_are_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = cluster_of(monkeypatch, *unknown_to(1, 2))
    cluster.partitions = 70
    assert cluster.read(40, 60, fail=False) == []
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len([warning for warning in warnings if warning.startswith("Data loss: Offsets 40 to 59")]) == 20
    assert warnings[-2:] == [
        "Asking again: the same of 50 more partitions.",
        "Data loss: the same of 50 more partitions.",
    ]
    assert len(warnings) < 45
    assert cluster.looks < 2 * UNKNOWN_FOR_MS / LOOK_AGAIN_MS, "one for all partitions of the topic"


@pytest.mark.parametrize("created_anew", [True, False])
def test_a_range_without_a_row_is_not_done_in_a_later_topic(
    monkeypatch: pytest.MonkeyPatch, created_anew: bool
) -> None:
    """At the planned offsets it has transaction markers, which librdkafka passes over."""
    cluster = cluster_of(monkeypatch, replace(WHOLE, markers=True))
    cluster.created_anew = created_anew
    if not created_anew:
        assert cluster.read(40, 60) == []
        return
    with pytest.raises(DataLoss, match=r"Offsets 40 to 59 of t-0 .* its topic is another one now"):
        cluster.read(40, 60)


def test_a_broker_that_is_cut_off_does_not_keep_two_others_from_being_believed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The topic was deleted, which the broker that is cut off does not know."""
    first, second = unknown_to(1, 2)[:2]
    cluster = cluster_of(monkeypatch, *[first, CUT_OFF, second] * 8)
    with pytest.raises(DataLoss, match="the partition does not exist any more"):
        cluster.read(40, 60, stall_timeout_ms=60_000)
    assert cluster.now_s - 1_000 < 3 * UNKNOWN_FOR_MS / 1000


@pytest.mark.parametrize("logs", [[CUT_OFF] * 3, unknown_to(1, 2)[:3]], ids=["a short log", "an unknown topic"])
def test_one_look_that_takes_long_is_one_look(monkeypatch: pytest.MonkeyPatch, logs: list[Log]) -> None:
    cluster = cluster_of(monkeypatch, *logs, WHOLE)
    cluster.look_takes_s = END_BELOW_MS / 1000
    assert cluster.read(40, 60) == list(range(40, 60))


@pytest.mark.parametrize(("log", "bound_ms"), [(CUT_OFF, END_BELOW_MS), (ABSENT, TOPIC_GONE_AFTER_MS)])
def test_a_short_bound_of_reads_without_records_leaves_time_for_a_loss_to_be_found(
    monkeypatch: pytest.MonkeyPatch, log: Log, bound_ms: int
) -> None:
    """Else each start of the query would replay the batch, and fail, with `failOnDataLoss=false` as well."""
    cluster = cluster_of(monkeypatch, log)
    assert cluster.read(40, 60, fail=False, stall_timeout_ms=5_000) == []
    assert (cluster.now_s - 1_000) * 1000 >= bound_ms


def test_a_broker_that_goes_silent_amid_the_looks_is_not_left_for_another_consumer_each_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each new consumer begins its fetches anew, so that no record of another partition would come."""
    cluster = cluster_of(monkeypatch, CUT_OFF, SILENT)
    with pytest.raises(WireError, match="No record came"):
        cluster.read(40, 60, stall_timeout_ms=60_000)
    assert cluster.consumers == 2


def test_records_that_a_log_has_no_more_at_its_beginning_are_a_loss_by_the_word_of_several_consumers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = cluster_of(monkeypatch, Log(50, 60))
    assert cluster.read(40, 60, fail=False) == list(range(50, 60))
    assert cluster.consumers == 5
    assert cluster.now_s < 1_000 + 10


def test_a_log_of_an_earlier_topic_at_a_broker_that_is_cut_off_is_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """1. A topic is at 1,000, and is created again. 2. The new one is read from its beginning."""
    cluster = cluster_of(monkeypatch, Log(1_000, 1_200), Log(0, 60))
    assert cluster.read(40, 60) == list(range(40, 60))
