"""How the evidence of `make chaos` is read from the files of Spark and of the brokers."""

import json
import struct
import time
from dataclasses import replace
from pathlib import Path

import pytest
from chaos.collect import commit_of, conversions, expulsions_by_brokers, given_away_at_a_return, joins, planned_batches
from chaos.evidence import ApplicationEvidence, Batch, Commit, Expulsion, Join, Span
from history.facts import Recreated

from pyspark_kgroup.offsets.checkpoint import EMPTY, Checkpoint, Owned, Period, Topic
from spark_kgroup.model import TopicPartition
from spark_kgroup.seat_note import Author, SeatNote

TP = TopicPartition("orders", 0)
SERVER_LOG = """\
2026-11-21 15:35:27,412 INFO [GroupCoordinator id=2] Member main-0-5fa0c6d2-9b41-4f06-8d5c-31f9a7e4b6c1 in group chaos \
has failed, removing it from the group. (org.apache.kafka.coordinator.group.GroupMetadataManager)
2026-11-21 15:35:28,412 INFO [GroupCoordinator id=2] Member main-1-5fa0c6d2-9b41-4f06-8d5c-31f9a7e4b6c1 in group other \
has failed, removing it from the group. (org.apache.kafka.coordinator.group.GroupMetadataManager)
"""
CONSUMER_GROUP_LOG = """\
2026-11-21 15:35:27,412 INFO [GroupCoordinator id=2 topic=__consumer_offsets partition=3] [GroupId chaos] Member \
main-0-5fa0c6d2-9b41-4f06-8d5c-31f9a7e4b6c1 fenced from the group because its session expired. \
(org.apache.kafka.coordinator.group.GroupMetadataManager)
2026-11-21 15:35:28,412 INFO [GroupCoordinator id=2 topic=__consumer_offsets partition=3] [GroupId chaos] Member \
8bZKDLbTQoKHsXjFl2pF1g fenced from the group because its session expired. \
(org.apache.kafka.coordinator.group.GroupMetadataManager)
"""
_IN_CHAOS = "INFO [GroupCoordinator id=2 topic=__consumer_offsets partition=3] [GroupId chaos]"
BARE_MEMBER_ID_LOG = f"""\
2026-11-21 15:35:07,412 {_IN_CHAOS} Static member 8bZKDLbTQoKHsXjFl2pF1g with instance id main-0 joins the consumer \
group using the classic protocol. (org.apache.kafka.coordinator.group.GroupMetadataManager)
2026-11-21 15:35:27,412 {_IN_CHAOS} Member 8bZKDLbTQoKHsXjFl2pF1g fenced from the group because the member session \
expired. (org.apache.kafka.coordinator.group.GroupMetadataManager)
"""
SUCCESSOR_LOG = f"""\
2026-11-21 15:35:07,412 {_IN_CHAOS} Static member with instance id main-0 re-joins the consumer group using the \
classic protocol. Created a new member 9cZKDLbTQoKHsXjFl2pF1g to replace the existing member 8bZKDLbTQoKHsXjFl2pF1g. \
(org.apache.kafka.coordinator.group.GroupMetadataManager)
2026-11-21 15:35:27,412 {_IN_CHAOS} Member 9cZKDLbTQoKHsXjFl2pF1g fenced from the group because the member session \
expired. (org.apache.kafka.coordinator.group.GroupMetadataManager)
"""


def position(offset: int) -> Checkpoint:
    period = Period(topic_id="id", start=0, seat="main-0", generation=1)
    topics = {"orders": Topic(topic_id="id", first_sight=1)}
    return Checkpoint(topics=topics, owned={TP: Owned(period=period, position=offset)})


def test_evidence_of_a_checkpoint_is_the_ranges_of_each_batch(tmp_path: Path) -> None:
    for log in ("offsets", "commits"):
        (tmp_path / log).mkdir()
    for number, offset in enumerate([8, 20]):
        text = f'v1\n{{"batchWatermarkMs":0}}\n{json.dumps(position(offset).to_json())}'
        (tmp_path / "offsets" / str(number)).write_text(text)
    (tmp_path / "offsets" / ".1.crc").write_text("not a batch")
    (tmp_path / "commits" / "0").write_text("v1\n{}")
    first, second = planned_batches(tmp_path)
    assert (first.start, first.done, first.spans) == (EMPTY, True, [Span(TP, 0, 8)])
    assert (second.start, second.done, second.spans) == (first.end, False, [Span(TP, 8, 20)])


@pytest.mark.parametrize(
    ("topic_id", "exposed"),
    [("id", []), ("another id", [Span(TP, 0, 8)])],
    ids=["handed over", "its topic was created anew meanwhile"],
)
def test_a_seat_that_was_removed_exposes_its_last_batch_unless_it_had_handed_it_over(
    topic_id: str, exposed: list[Span]
) -> None:
    first = Batch(number=0, start=EMPTY, end=position(8), wall_planned_at_s=1.0)
    without = Checkpoint(topics={"orders": Topic(topic_id=topic_id, first_sight=1)})
    second = Batch(number=1, start=first.end, end=without, wall_planned_at_s=30.0)
    removed = Expulsion(seat="main-0", wall_from_s=10.0, wall_to_s=10.0)
    evidence = ApplicationEvidence(name="main", batches=[first, second], rows=[], expulsions=[removed])
    assert evidence.exposed([]) == exposed


@pytest.mark.parametrize(("converted_at_s", "exposed"), [(2.0, [Span(TP, 0, 8)]), (6.0, []), (40.0, [])])
def test_a_conversion_exposes_a_batch_that_was_not_committed_yet_though_it_was_handed_over_later(
    converted_at_s: float, exposed: list[Span]
) -> None:
    first = Batch(number=0, start=EMPTY, end=position(8), wall_planned_at_s=1.0)
    without = Checkpoint(topics={"orders": Topic(topic_id="id", first_sight=1)})
    second = Batch(number=1, start=first.end, end=without, wall_planned_at_s=30.0)
    converted = Expulsion(seat="main-0", wall_from_s=converted_at_s, wall_to_s=converted_at_s, given_away=True)
    evidence = ApplicationEvidence(name="main", batches=[first, second], rows=[], expulsions=[converted])
    assert evidence.exposed([Commit(TP, 8, 5.0, by_us=True)]) == exposed


def test_commits_of_a_topic_s_earlier_life_do_not_cover_a_batch_of_its_present_one() -> None:
    """The seat may have been expelled before the topic was created anew, or after."""
    batch = Batch(number=0, start=EMPTY, end=position(8), wall_planned_at_s=20.0)
    lost = replace(position(8), owned={}, lost={TP: 8})
    last = Batch(number=1, start=batch.end, end=lost, wall_planned_at_s=30.0)
    removed = Expulsion(seat="main-0", wall_from_s=5.0, wall_to_s=25.0)
    evidence = ApplicationEvidence(name="main", batches=[batch, last], rows=[], expulsions=[removed])
    earlier = Commit(TP, 1_000, 4.0, by_us=True)
    assert evidence.exposed([earlier], [Recreated("orders", 10.0)]) == [Span(TP, 0, 8)]
    assert evidence.exposed([earlier], []) == []


def test_a_batch_that_only_carries_a_partition_on_does_not_show_that_its_seat_still_had_it() -> None:
    """The seat is removed after the first batch, and the second one reads nothing of its partition."""
    first = Batch(number=0, start=EMPTY, end=position(8), wall_planned_at_s=1.0)
    carried = Batch(number=1, start=first.end, end=position(8), wall_planned_at_s=60.0)
    lost = replace(position(8), owned={}, lost={TP: 8})
    last = Batch(number=2, start=carried.end, end=lost, wall_planned_at_s=70.0)
    removed = Expulsion(seat="main-0", wall_from_s=10.0, wall_to_s=10.0)
    evidence = ApplicationEvidence(name="main", batches=[first, carried, last], rows=[], expulsions=[removed])
    assert evidence.exposed([]) == [Span(TP, 0, 8)]


@pytest.mark.parametrize(
    "lines",
    [SERVER_LOG, CONSUMER_GROUP_LOG, BARE_MEMBER_ID_LOG, SUCCESSOR_LOG],
    ids=["classic group", "consumer group", "id from the consumer group", "successor's id"],
)
def test_a_broker_tells_which_member_it_removed_and_when(tmp_path: Path, lines: str) -> None:
    log = tmp_path / "server.log"
    log.write_text(lines)
    (expulsion,) = expulsions_by_brokers([log], "chaos")
    assert expulsion.seat == "main-0"
    wall_at_s = time.mktime((2026, 11, 21, 15, 35, 27, 0, 0, -1)) + 0.412
    assert expulsion.wall_from_s == expulsion.wall_to_s == wall_at_s


def test_evidence_of_a_brokers_log_is_when_it_converted_the_group(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(
        "2026-11-21 15:35:27,412 INFO [GroupCoordinator id=2 topic=__consumer_offsets partition=0] [GroupId chaos] "
        "Converted the classic group to a consumer group. (org.apache.kafka.coordinator.group.GroupMetadataManager)\n"
        "2026-11-21 15:35:28,412 INFO [GroupCoordinator id=2 topic=__consumer_offsets partition=0] [GroupId other] "
        "Converted the classic group to a consumer group. (org.apache.kafka.coordinator.group.GroupMetadataManager)\n"
    )
    assert conversions([log], "chaos") == [time.mktime((2026, 11, 21, 15, 35, 27, 0, 0, -1)) + 0.412]


RETURN_LOG = f"""\
2026-11-21 15:35:07,000 {_IN_CHAOS} Computed a new target assignment for epoch 7 with 'uniform' assignor in 0ms. (x)
2026-11-21 15:35:08,758 {_IN_CHAOS} Static member SdO3NmZqTBuGl1dV4gRQCQ with instance id main-0 cannot join the group \
because the instance id is owned by member 2GMgIV27RxmIeG4sUQgmsQ. (x)
2026-11-21 15:35:08,795 {_IN_CHAOS} Static member 2GMgIV27RxmIeG4sUQgmsQ with instance id main-0 temporarily left the \
consumer group. (x)
2026-11-21 15:35:08,806 {_IN_CHAOS} Static member with instance id main-0 re-joins the consumer group using the \
consumer protocol. Created a new member qRb7HNw1QHC97BokmOCsdQ to replace the existing member 2GMgIV27RxmIeG4sUQgmsQ.
2026-11-21 15:35:08,806 {_IN_CHAOS} Computed a new target assignment for epoch 8 with 'uniform' assignor in 0ms. (x)
2026-11-21 15:35:09,412 {_IN_CHAOS} Computed a new target assignment for epoch 9 with 'uniform' assignor in 0ms. (x)
2026-11-21 15:35:09,500 {_IN_CHAOS.replace("chaos", "other")} Computed a new target assignment for epoch 3 with \
'uniform' assignor in 0ms. (x)
2026-11-21 15:35:09,530 {_IN_CHAOS.replace("chaos", "other")} Static member with instance id main-1 re-joins the \
consumer group using the consumer protocol. Created a new member a to replace the existing member b. (x)
"""


def test_evidence_of_a_brokers_log_is_a_target_made_in_the_moment_in_which_a_seat_came_back(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(RETURN_LOG)
    (given_away,) = given_away_at_a_return([log], "chaos")
    assert given_away.seat == "main-0"
    assert given_away.given_away
    assert given_away.wall_from_s == time.mktime((2026, 11, 21, 15, 35, 8, 0, 0, -1)) + 0.806


def test_evidence_of_a_members_log_is_when_each_seat_joined_anew(tmp_path: Path) -> None:
    log = tmp_path / "members.log"
    log.write_text(
        "12.500 seat main-0 joins the next generation: the group rebalances\n"
        "13.000 seat main-0 lost 2 partitions: Heartbeat: UNKNOWN_MEMBER_ID\n"
        "14.250 seat main-1 joins the next generation: revoked partitions given up\n"
    )
    assert list(joins(log)) == [Join("main-0", 12.5), Join("main-1", 14.25)]
    assert list(joins(tmp_path / "of a query that never ran")) == []


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


@pytest.mark.parametrize(
    ("metadata", "by_us"),
    [
        (SeatNote(member="main-0-5fa0c6d2", at_ms=1).encode(), True),
        (Author(app="f00d", run=3, seat=0).encode("topic id"), True),
        ("", False),
        ("kept by librdkafka", False),
    ],
)
def test_evidence_of_the_groups_log_is_each_commit_and_whether_a_seat_made_it(metadata: str, by_us: bool) -> None:
    key = struct.pack(">h", 1) + text("chaos") + text("orders") + struct.pack(">i", 0)
    value = struct.pack(">hqi", 3, 7, -1) + text(metadata) + struct.pack(">q", 1_000)
    assert commit_of("chaos", key, value, 9.0) == Commit(TP, 7, 9.0, by_us)
    assert commit_of("chaos", key, None, 9.0) is None, "an offset that was deleted"
    assert commit_of("other", key, value, 9.0) is None
    assert commit_of("chaos", struct.pack(">h", 2) + text("chaos"), value, 9.0) is None, "the group's members"
