"""Offsets that are gone from a log: where reading goes on, the message to the user, and how many they were."""

from uuid import UUID

import pytest

from pyspark_kgroup.offsets.data_loss import LogRange, deleted, out_of_log, recreated
from spark_kgroup.model import TopicPartition

P3 = TopicPartition("t", 3)
LOG = LogRange(50, 80)
ID = UUID(int=7)


@pytest.mark.parametrize(("position", "goes_on"), [(10, 50), (50, 50), (60, 60), (80, 80), (90, 80)])
def test_reading_goes_on_at_the_nearest_offset_that_the_log_has_or_ends_at(position: int, goes_on: int) -> None:
    assert LOG.nearest(position) == goes_on


def test_a_log_says_which_offsets_it_has() -> None:
    assert "50 to 79" in str(LOG)
    assert str(LogRange(50, 51)).endswith("50 to 50")
    assert str(LogRange(50, 50)).endswith("empty and ends at 50")


def test_offsets_before_the_log_were_removed_and_can_be_counted() -> None:
    loss = out_of_log(P3, 10, 60, LOG)
    assert (loss.partition, loss.position, loss.end_offset, loss.skipped) == (P3, 10, 60, 40)
    assert "Offsets 10 to 59 of t-3 were still to be read" in str(loss)
    assert "the log has 50 to 79: retention" in str(loss)


def test_offsets_behind_the_log_were_truncated_and_cannot_be_counted() -> None:
    loss = out_of_log(P3, 90, None, LOG)
    assert (loss.end_offset, loss.skipped) == (None, 0)
    assert "Offsets 90 on of t-3" in str(loss)
    assert "it was truncated" in str(loss)


def test_offsets_between_an_empty_log_and_a_position_at_its_start_were_truncated() -> None:
    """The position is where the log begins. The offsets to be read from there on do not exist."""
    loss = out_of_log(P3, 50, 60, LogRange(50, 50))
    assert loss.skipped == 0
    assert "it was truncated" in str(loss)


def test_a_deleted_partition_loses_its_unread_records() -> None:
    loss = deleted(P3, 10, 60)
    assert (loss.partition, loss.position, loss.end_offset, loss.skipped) == (P3, 10, 60, 0)
    assert "the partition does not exist any more: it was deleted" in str(loss)
    assert deleted(P3, 10).end_offset is None


def test_a_topic_created_anew_loses_the_unread_records_of_the_old_one() -> None:
    loss = recreated(P3, 10, 60, "old", "new")
    assert (loss.partition, loss.position, loss.end_offset, loss.skipped) == (P3, 10, 60, 0)
    assert "its topic is another one now (id new, was old): it was deleted and created again" in str(loss)


@pytest.mark.parametrize("text", [str(ID), ID.hex], ids=["as the checkpoint has it", "as a ticket has it"])
def test_ids_of_topics_are_shown_as_kafka_s_tools_show_them(text: str) -> None:
    assert "(id AAAAAAAAAAAAAAAAAAAABw, was old)" in str(recreated(P3, 10, 60, "old", text))
