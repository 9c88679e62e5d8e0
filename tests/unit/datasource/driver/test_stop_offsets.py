"""A stream with an end: no partition is read past its stop, and the query tells when all stand there.

In the model the record at offset n is of the n-th second of 1970 (`FakeLogs.at`).
"""

import json
from collections.abc import Mapping

import pytest
from harness.boundary import P0, P1, World, messages, unsettle
from harness.fake_driver import Driver
from harness.fake_group import OTHER, FakeGroup

from pyspark_kgroup.errors import DataLoss
from pyspark_kgroup.limits import END_OFFSETS_MAX_AGE_MS
from pyspark_kgroup.options.offset_bound import (
    OffsetBound,
    by_timestamp,
    by_timestamps,
    parse_ending_offsets,
    parse_starting_offsets,
)
from spark_kgroup.errors import OptionError
from spark_kgroup.model import TopicPartition
from spark_kgroup.wire.listing import Answers

LATER = "were added after the query started and are not in"
ALL_READ = "has been read of all partitions that this query holds: stop the query"


def as_json(places: Mapping[TopicPartition, int]) -> str:
    topics: dict[str, dict[str, int]] = {}
    for tp, place in places.items():
        topics.setdefault(tp.topic, {})[str(tp.partition)] = place
    return json.dumps(topics)


def stops(*offsets: int) -> OffsetBound:
    """`endingOffsets` with an offset for each partition of `t`."""
    return parse_ending_offsets(as_json({TopicPartition("t", index): offset for index, offset in enumerate(offsets)}))


def until(second: int) -> OffsetBound:
    """`endingTimestamp`: in the model, before the offset of that number."""
    return by_timestamp("endingTimestamp")(str(second * 1_000))


def until_each(*seconds: int) -> OffsetBound:
    """`endingOffsetsByTimestamp` with one for each partition of `t`."""
    places = {TopicPartition("t", index): second * 1_000 for index, second in enumerate(seconds)}
    return by_timestamps("endingOffsetsByTimestamp")(as_json(places))


ENDS = pytest.mark.parametrize("ending", [stops(12, 12), until(12), until_each(12, 12)], ids=lambda end: end.option)


def retention(group: FakeGroup, tp: TopicPartition, first: int) -> None:
    group.log[tp][0] = first
    group.now_ms += END_OFFSETS_MAX_AGE_MS + 1


def ended(driver: Driver) -> bool | None:
    return driver.boundary.stops.ended


# ------------------------------------------------------------------------------------------------- how far is read


@ENDS
def test_no_partition_is_read_past_its_stop_and_one_that_is_before_it_reads_on(
    world: World, ending: OffsetBound
) -> None:
    group, driver = world(partitions=2, seats=2, records=10, ending=ending)
    group.produce(P0, 20)
    driver.drain()
    assert driver.rows == {P0: [(0, 12)], P1: [(0, 10)]}
    group.produce(P1, 1)
    driver.drain()
    group.produce(P1, 10)
    driver.drain()
    assert driver.rows == {P0: [(0, 12)], P1: [(0, 10), (10, 11), (11, 12)]}
    assert group.committed_now == {P0: 12, P1: 12}


def test_each_partition_has_a_stop_of_its_own(world: World) -> None:
    for ending in (stops(0, 7), until_each(0, 7)):
        _, driver = world(partitions=2, records=10, ending=ending)
        driver.drain()
        assert driver.rows == {P1: [(0, 7)]}


def test_a_limit_counts_the_records_before_the_stops(world: World) -> None:
    _, driver = world(partitions=2, records=1_000, ending=stops(4, 2))
    for _ in range(2):
        driver.trigger(limit=3)
    assert {tp: spans[-1][1] for tp, spans in driver.rows.items()} == {P0: 4, P1: 2}


def test_a_stop_by_timestamp_is_looked_up_after_the_ends_were_listed(world: World) -> None:
    """Else 1. no record is that late, 2. some come that are, 3. ends are listed: the batch would read them."""
    group, driver = world(records=10, ending=until(12))

    def meanwhile() -> None:
        group.log[P0][1] += 3

    for _ in range(5):
        group.now_ms += END_OFFSETS_MAX_AGE_MS + 1
        group.meanwhile = meanwhile
        driver.trigger()
    assert driver.rows[P0][-1][1] == 12


def test_a_stop_by_timestamp_is_looked_up_once_in_a_busy_boundary_until_it_is_known(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, driver = world(partitions=2, records=10, ending=until_each(12, 25))
    asked: list[set[TopicPartition]] = []
    at = group.logs.at

    def watched(timestamps: Mapping[TopicPartition, int], patience_ms: int, **more: bool) -> Answers[int]:
        asked.extend([set(timestamps)] if timestamps else [])
        return at(timestamps, patience_ms, **more)

    monkeypatch.setattr(group.logs, "at", watched)
    driver.drain()
    assert asked == [{P0, P1}], "nothing is new after the first batch"
    asked.clear()
    for _ in range(5):
        group.produce(P0, 5)
        group.produce(P1, 5)
        driver.drain()
    assert asked == [{P0, P1}, {P1}, {P1}, {P1}], "found at the end 15, and at the end 30"


def test_under_read_committed_a_stop_behind_an_open_transaction_is_found_when_that_has_ended(world: World) -> None:
    group, driver = world(records=20, read_committed=True, ending=until(12))
    group.stable = {P0: 6}
    driver.drain()
    assert driver.rows == {P0: [(0, 6)]}
    assert not ended(driver)
    group.stable = {P0: 12}
    driver.drain()
    assert not ended(driver), "what comes next may be of an aborted transaction"
    del group.stable[P0]
    driver.drain()
    assert driver.rows == {P0: [(0, 6), (6, 12)]}
    assert ended(driver)


@ENDS
def test_available_now_ends_at_the_lesser_of_frozen_ends_and_stops(world: World, ending: OffsetBound) -> None:
    group, driver = world(partitions=2, records=5, bounded=True, ending=ending)
    group.produce(P0, 50)
    driver.trigger(limit=4)
    group.produce(P1, 50)
    driver.drain()
    assert {tp: spans[-1][1] for tp, spans in driver.rows.items()} == {P0: 12, P1: 5}
    driver.restart(bounded=True)
    driver.drain()
    assert group.committed_now == {P0: 12, P1: 12}


@ENDS
def test_a_restart_reads_up_to_the_same_stops(world: World, ending: OffsetBound) -> None:
    group, driver = world(partitions=2, seats=2, records=30, ending=ending)
    driver.trigger(limit=10)
    driver.restart()
    driver.drain()
    driver.restart()
    group.produce(P0, 5)
    driver.drain()
    assert {tp: spans[-1][1] for tp, spans in driver.rows.items()} == {P0: 12, P1: 12}
    assert group.committed_now == {P0: 12, P1: 12}


# ------------------------------------------------------------------------------------------------ behind the stops


@ENDS
def test_where_the_group_stands_behind_a_stop_no_record_is_read_and_no_offset_goes_back(
    world: World, ending: OffsetBound
) -> None:
    group, driver = world(partitions=2, records=30, ending=ending)
    group.committed_now = {P0: 20}
    driver.drain()
    assert driver.rows == {P1: [(0, 12)]}
    assert group.committed_now == {P0: 20, P1: 12}
    assert ended(driver)


@ENDS
def test_a_partition_that_another_application_has_read_past_its_stop_comes_back_without_rows(
    world: World, ending: OffsetBound
) -> None:
    group, driver = world(partitions=2, seats=2, records=11, ending=ending)
    driver.drain()
    group.move(P1, OTHER)
    driver.drain()
    group.produce(P1, 10)
    group.other_reads(P1, 10)
    group.move(P1, "seat-1")
    group.other_gives_up()
    group.produce(P0, 10)
    driver.drain()
    assert P1 in driver.durable.owned
    assert driver.rows == {P0: [(0, 11), (11, 12)], P1: [(0, 11)]}
    assert group.committed_now == {P0: 12, P1: 21}
    assert ended(driver)


@ENDS
def test_retention_takes_no_record_that_a_partition_at_its_stop_had_to_read(
    world: World, caplog: pytest.LogCaptureFixture, ending: OffsetBound
) -> None:
    group, driver = world(partitions=2, records=30, ending=ending)
    driver.drain()
    group.produce(P0, 1)
    retention(group, P0, 25)
    with caplog.at_level("INFO"):
        driver.drain()
    assert not messages(caplog, "adopted"), "nobody asks whether its log still has its position"
    assert group.committed_now == {P0: 12, P1: 12}
    assert (driver.boundary.logs.losses, ended(driver)) == (0, True)


def test_retention_takes_no_record_of_a_query_that_comes_back_to_its_stops(world: World) -> None:
    group, driver = world(partitions=2, records=30, ending=stops(12, 12))
    driver.drain()
    retention(group, P0, 25)
    group.log[P1] = [0, 3]  # truncated, or emptied and begun anew
    driver.restart()
    driver.drain()
    assert group.committed_now == {P0: 12, P1: 12}
    assert ended(driver)


@ENDS
def test_retention_in_front_of_a_stop_is_a_loss_all_the_same(world: World, ending: OffsetBound) -> None:
    group, driver = world(partitions=2, records=5, ending=ending)
    driver.drain()
    group.produce(P0, 50)
    retention(group, P0, 30)
    with pytest.raises(DataLoss, match="Offsets 5 on of t-0 were to be read next"):
        driver.trigger()


def test_after_a_restart_a_stop_by_timestamp_that_retention_took_is_unknown(world: World) -> None:
    """Records that are gone may have been older than the timestamp: they count as lost, and never as read."""
    group, driver = world(records=30, ending=until(12))
    driver.drain()
    retention(group, P0, 25)
    driver.restart()
    with pytest.raises(DataLoss, match="Offsets 12 on of t-0"):
        driver.trigger()


def test_a_stop_by_timestamp_is_looked_up_anew_in_a_topic_that_was_created_again(world: World) -> None:
    group, driver = world(records=30, fail_on_data_loss=False, ending=until(12))
    group.log[P0][0] = 15
    driver.drain()
    assert (driver.rows, ended(driver)) == ({}, True), "its first record is late enough"
    group.create_topic("t", 1)
    group.produce(P0, 30)
    group.spread(["seat-0"])
    driver.drain()
    assert driver.rows == {P0: [(0, 12)]}


# ------------------------------------------------------------------------------------------ partitions and options


@pytest.mark.parametrize(("ending", "reads"), [(stops(12), 0), (until_each(12), 0), (until(12), 12)])
def test_of_a_partition_that_comes_later_no_record_is_read_unless_one_timestamp_is_for_all(
    world: World, caplog: pytest.LogCaptureFixture, ending: OffsetBound, reads: int
) -> None:
    group, driver = world(records=20, ending=ending)
    driver.drain()
    added = group.add_partition("t")
    group.produce(added, 20)
    group.move(added, "seat-0")
    driver.drain()
    retention(group, added, 14)  # no record of it is left to be read, so none is lost
    driver.drain()
    assert driver.durable.owned[added].position == reads
    assert group.committed_now == {P0: 12, added: reads}
    assert len(messages(caplog, LATER)) == (reads == 0)
    assert all(message.startswith("Partitions t-1 were added") for message in messages(caplog, LATER))
    assert ended(driver)


@pytest.mark.parametrize(
    ("ending", "message"),
    [
        (stops(5), "endingOffsets does not name t-1"),
        (stops(5, 5, 5), "endingOffsets names partitions that do not exist: t-2"),
        (until_each(5), "endingOffsetsByTimestamp does not name t-1"),
    ],
)
def test_each_process_checks_before_its_first_commit_that_all_partitions_are_named_and_no_others(
    world: World, ending: OffsetBound, message: str
) -> None:
    group, driver = world(partitions=2, records=10, ending=ending)
    with pytest.raises(OptionError, match=message):
        driver.trigger()
    assert group.committed_now == {}
    driver.ending = None
    driver.start()
    driver.drain()
    driver.ending = ending
    driver.restart()
    with pytest.raises(OptionError, match=message):
        driver.trigger()


@pytest.mark.parametrize(
    ("start", "end", "shown"),
    [
        (parse_starting_offsets(as_json({P0: 3, P1: 8})), stops(5, 5), "endingOffsets lies before .* in t-1: 8 to 5"),
        (by_timestamp("startingTimestamp")("6000"), until_each(7, 5), "t-1: 6000 ms to 5000 ms"),
    ],
)
def test_a_fresh_query_that_starts_behind_its_stop_is_refused_and_one_with_a_checkpoint_is_not(
    world: World, start: OffsetBound, end: OffsetBound, shown: str
) -> None:
    group, driver = world(partitions=2, records=10, starting=start, ending=end)
    with pytest.raises(OptionError, match=shown):
        driver.trigger()
    assert group.committed_now == {}
    driver.ending = None
    driver.start()
    driver.drain()
    driver.ending = end
    driver.restart()
    driver.drain()
    assert group.committed_now == {P0: 10, P1: 10}


# --------------------------------------------------------------------------------------------- batches that wait


def test_the_last_records_before_the_stops_wait_for_no_more(world: World) -> None:
    group, driver = world(partitions=2, records=3, ending=stops(5, 6))
    driver.offsets_min = 10
    driver.start()
    driver.drain()
    group.produce(P0, 9)
    group.produce(P1, 2)
    driver.drain()
    assert driver.rows == {tp: [(0, 3)] for tp in (P0, P1)}, "there may be one more before the stop of t-1"
    group.produce(P1, 1)
    driver.drain()
    assert driver.rows == {P0: [(0, 3), (3, 5)], P1: [(0, 3), (3, 6)]}


# -------------------------------------------------------------------------------------------------------- the end


@ENDS
def test_the_batch_that_reaches_the_stops_says_so_and_a_warning_comes_once_when_it_is_durable(
    world: World, caplog: pytest.LogCaptureFixture, ending: OffsetBound
) -> None:
    group, driver = world(partitions=2, seats=2, records=30, ending=ending)
    driver.trigger(limit=10)
    assert ended(driver) is False
    driver.trigger()
    assert ended(driver) is True
    assert not messages(caplog, ALL_READ), "the batch is not durable yet"
    for _ in range(3):
        group.produce(P0, 1)
        driver.drain()
    assert ended(driver) is True
    assert [message.split()[3] for message in messages(caplog, ALL_READ)] == [ending.option]
    driver.restart()
    driver.drain()
    assert ended(driver) is True, "also where no batch follows"


def test_a_stream_without_an_end_does_not_log_one(world: World, caplog: pytest.LogCaptureFixture) -> None:
    _, driver = world(records=10)
    driver.drain()
    assert ended(driver) is None
    assert not messages(caplog, ALL_READ)


def test_available_now_ends_by_itself_and_asks_for_no_stop(world: World, caplog: pytest.LogCaptureFixture) -> None:
    _, driver = world(records=10, bounded=True, ending=stops(5))
    driver.drain()
    assert ended(driver) is True
    assert not messages(caplog, ALL_READ)


def test_a_query_without_partitions_has_not_come_to_its_end(world: World) -> None:
    group, driver = world(records=10, ending=stops(5))
    group.spread([OTHER])
    driver.drain()
    assert ended(driver) is False


def test_a_query_has_not_come_to_its_end_before_the_group_knows_where_it_stands(world: World) -> None:
    group, driver = world(records=10, ending=stops(5))
    driver.trigger()
    group.commit_fate = lambda: "lost"
    driver.ask()
    assert ended(driver) is False
    group.commit_fate = lambda: "ok"
    driver.ask()
    assert ended(driver) is True


def test_a_query_has_not_come_to_its_end_while_the_group_is_not_at_rest(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, driver = world(partitions=2, seats=2, records=10, ending=stops(5, 5))
    driver.drain()
    group.now_ms += END_OFFSETS_MAX_AGE_MS + 1
    unsettle(group, monkeypatch, "seat-1")
    driver.ask()
    assert ended(driver) is False


def test_a_query_goes_on_with_a_partition_that_is_handed_to_it_at_its_end(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    group, driver = world(partitions=2, records=10, ending=stops(5, 5))
    group.move(P1, OTHER)
    driver.drain()
    assert ended(driver) is True
    group.move(P1, "seat-0")
    group.other_gives_up()
    driver.trigger(limit=2)
    assert ended(driver) is False
    driver.drain()
    assert driver.rows == {P0: [(0, 5)], P1: [(0, 2), (2, 5)]}
    assert ended(driver) is True
    assert len(messages(caplog, ALL_READ)) == 1


def test_a_query_has_not_come_to_its_end_while_a_partition_cannot_be_adopted(world: World) -> None:
    group, driver = world(records=10, ending=until(5))
    driver.drain()
    assert ended(driver) is True
    group.move(group.add_partition("t"), "seat-0")
    group.commit_fate = lambda: "lost"
    group.now_ms += END_OFFSETS_MAX_AGE_MS + 1
    driver.ask()
    assert ended(driver) is False, "where it starts is not acknowledged"
