"""The boundary when logs lose records that were still to be read: `failOnDataLoss` true and false."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from uuid import UUID

import pytest
from harness.boundary import elapsed_ms, messages
from harness.fake_driver import Crash, Driver
from harness.fake_group import OTHER, FakeGroup

from pyspark_kgroup.driver.query import Query
from pyspark_kgroup.errors import DataLoss
from pyspark_kgroup.limits import END_BELOW_MS, END_OFFSETS_MAX_AGE_MS
from pyspark_kgroup.offsets.checkpoint import Checkpoint, Topic
from pyspark_kgroup.offsets.data_loss import WAYS_OUT, LogRange, deleted, out_of_log, recreated
from pyspark_kgroup.options.offset_bound import parse_starting_offsets
from pyspark_kgroup.options.parser import parse
from spark_kgroup.errors import UnknownTopic
from spark_kgroup.model import TopicPartition
from spark_kgroup.wire.witnesses import NamedLeader

P0, P1, P2 = (TopicPartition("t", index) for index in range(3))
U0 = TopicPartition("u", 0)

World = Callable[..., tuple[FakeGroup, Driver]]


def later(group: FakeGroup) -> None:
    """The listed offsets are too old to be relied on."""
    group.now_ms += END_OFFSETS_MAX_AGE_MS + 1


def with_other_topic(group: FakeGroup, driver: Driver) -> None:
    """One more subscribed topic, `u`, with ten records, read by the same seat."""
    group.create_topic("u", 1)
    group.produce(U0, 10)
    group.subscribed = ("t", "u")
    driver.start()
    group.move(U0, "seat-0")


# ------------------------------------------------------------------------------------------- the pure rules


@pytest.mark.parametrize(("position", "nearest"), [(0, 40), (39, 40), (40, 40), (70, 70), (100, 100), (101, 100)])
def test_reading_goes_on_where_the_log_is_nearest(position: int, nearest: int) -> None:
    assert LogRange(40, 100).nearest(position) == nearest


def test_a_loss_names_the_partition_the_offset_asked_for_and_the_offsets_that_are_there() -> None:
    assert str(out_of_log(P1, 10, 90, LogRange(40, 100))) == (
        "Offsets 10 to 89 of t-1 were still to be read, but the log has 40 to 99: "
        "retention or DeleteRecords removed the records before."
    )
    assert str(out_of_log(P1, 90, None, LogRange(60, 60))) == (
        "Offsets 90 on of t-1 were to be read next, but the log is empty and ends at 60: "
        "it was truncated (unclean leader election), the topic was recreated, or an offset beyond it was committed."
    )
    assert "t-1 were to be read next, but the partition does not exist any more: " in str(deleted(P1, 10))
    assert "its topic is another one now (id new, was old): it was deleted" in str(recreated(P1, 1, 9, "old", "new"))
    assert [out_of_log(P1, p, None, LogRange(40, 50)).skipped for p in (10, 60)] == [30, 0]


# ------------------------------------------------------------------------------------- logs lose their start


def retention(group: FakeGroup, tp: TopicPartition, first: int) -> None:
    group.log[tp][0] = first
    later(group)


def test_retention_fails_the_query_with_both_ways_out(world: World) -> None:
    group, driver = world(records=10)
    driver.drain()
    group.produce(P0, 90)
    retention(group, P0, 40)
    with pytest.raises(
        DataLoss, match=r"Offsets 10 on of t-0 .+ has 40 to 99.+failOnDataLoss=false.+checkpointLocation"
    ):
        driver.trigger()
    assert group.committed_now == {P0: 10}


def test_retention_is_skipped_with_a_warning_and_counted(world: World, caplog: pytest.LogCaptureFixture) -> None:
    group, driver = world(records=10, fail_on_data_loss=False)
    driver.drain()
    group.produce(P0, 90)
    retention(group, P0, 40)
    driver.drain()
    assert driver.rows == {P0: [(0, 10), (40, 100)]}
    assert group.committed_now == {P0: 100}
    assert [r.getMessage() for r in caplog.records if "Data loss" in r.getMessage()] == [
        f"Data loss: {out_of_log(P0, 10, None, LogRange(40, 100))}"
    ]
    logs = driver.boundary.logs
    assert (logs.losses, logs.offsets_skipped) == (1, 30)


def test_losses_of_several_partitions_add_up(world: World) -> None:
    group, driver = world(partitions=2, records=10, fail_on_data_loss=False)
    driver.drain()
    for times, first in enumerate((40, 90), start=1):
        for tp in (P0, P1):
            group.produce(tp, 50)
            retention(group, tp, first)
        driver.drain()
        assert driver.boundary.logs.losses == 2 * times
    assert driver.boundary.logs.offsets_skipped == 2 * (30 + 30)


def test_the_loss_of_one_partition_names_no_other_partition(world: World) -> None:
    group, driver = world(partitions=2, records=10)
    driver.drain()
    group.produce(P0, 90)
    retention(group, P0, 40)
    with pytest.raises(DataLoss) as problem:
        driver.trigger()
    message = str(problem.value)
    assert "more partitions" not in message
    assert message.endswith(f"removed the records before. {WAYS_OUT}")


def test_a_query_goes_on_without_its_only_topic_if_that_is_no_error(world: World) -> None:
    group, driver = world(records=10, fail_on_data_loss=False)
    driver.drain()
    group.delete_topic("t")
    later(group)
    driver.drain()
    assert not driver.durable.owned


def test_a_partition_that_was_lost_before_its_first_read_is_named_from_its_first_offset_on(world: World) -> None:
    group, driver = world()
    driver.trigger()
    group.delete_topic("t")
    later(group)
    with pytest.raises(DataLoss, match="Offsets 0 on of t-0"):
        driver.trigger()


def test_no_ends_are_listed_before_the_first_boundary(world: World) -> None:
    _, driver = world(records=10)
    assert driver.boundary.logs.topics == {}
    assert driver.boundary.logs.listed_ends == {}
    driver.trigger()
    assert driver.boundary.logs.listed_ends == {P0: 10}


def test_a_limit_counts_records_that_are_there_not_lost_ones(world: World) -> None:
    group, driver = world(records=10, fail_on_data_loss=False)
    driver.drain()
    group.produce(P0, 1_000_000)
    retention(group, P0, 900_000)
    driver.trigger(limit=7)
    assert driver.rows[P0][-1] == (900_000, 900_007)
    driver.trigger()
    assert group.committed_now == {P0: 900_007}


def test_records_deleted_after_planning_are_noticed_by_the_executors(world: World) -> None:
    """The plan follows from the offsets alone: a replay reads the same ranges."""
    group, driver = world(records=100, fail_on_data_loss=False)
    with pytest.raises(Crash):
        driver.trigger(crash="uncommitted")
    retention(group, P0, 40)
    driver.restart()
    driver.drain()
    assert driver.rows == {P0: [(0, 100)]}


def test_a_committed_offset_that_is_gone_is_a_loss(world: World) -> None:
    for fail in (True, False):
        group, driver = world(records=100, fail_on_data_loss=fail)
        group.committed_now[P0] = 10
        retention(group, P0, 40)
        if fail:
            with pytest.raises(DataLoss, match="Offsets 10 on of t-0"):
                driver.drain()
            continue
        driver.drain()
        assert driver.rows == {P0: [(40, 100)]}


def test_a_starting_offset_that_is_gone_is_a_loss_and_earliest_is_not(world: World) -> None:
    for text, fails in (('{"t": {"0": 10}}', True), ("earliest", False), ("latest", False)):
        group, driver = world(records=100, starting=parse_starting_offsets(text))
        retention(group, P0, 40)
        if fails:
            with pytest.raises(DataLoss, match="Offsets 10 on of t-0"):
                driver.drain()
        else:
            driver.drain()
    group, driver = world(records=100, starting=parse_starting_offsets('{"t": {"0": 10}}'), fail_on_data_loss=False)
    retention(group, P0, 40)
    driver.drain()
    assert driver.rows == {P0: [(40, 100)]}


# ---------------------------------------------------------------------------------------- logs lose their end


def truncate(group: FakeGroup, tp: TopicPartition, end: int) -> None:
    """An unclean election: the new leader's log ends at `end`."""
    group.elect(tp)
    list_less(group, tp, end)


def list_less(group: FakeGroup, tp: TopicPartition, end: int) -> None:
    """The same leader says that its log ends earlier than it did."""
    group.log[tp][1] = end
    later(group)


def test_truncation_fails_the_query(world: World) -> None:
    group, driver = world(records=100)
    driver.drain()
    truncate(group, P0, 60)
    with pytest.raises(DataLoss, match=r"Offsets 100 on of t-0 .+ the log has 0 to 59: it was truncated"):
        driver.trigger()
    assert group.committed_now == {P0: 100}


@pytest.mark.parametrize("end", [60, 0], ids=["amid the period", "to where the period began"])
def test_after_a_truncation_reading_goes_on_at_the_new_end(world: World, end: int) -> None:
    """The group's committed offset goes back, or the next owner would skip records written up to the old one."""
    group, driver = world(records=100, fail_on_data_loss=False)
    driver.drain()
    before = driver.durable.owned[P0].period
    truncate(group, P0, end)
    group.rewinds = {P0}
    driver.drain()
    assert group.committed_now == {P0: end}
    assert driver.durable.owned[P0].period != before, "a period never runs backwards: another one begins"
    group.rewinds = set()
    group.produce(P0, 10)
    driver.drain()
    group.move(P0, OTHER)
    driver.drain()
    assert group.other == {P0: end + 10}
    assert driver.rows == {P0: [(0, 100), (end, end + 10)]}


def test_each_truncation_back_to_the_same_offset_begins_a_period(world: World) -> None:
    group, driver = world(records=100, fail_on_data_loss=False)
    group.rewinds = {P0}
    for _ in range(3):
        driver.drain()
        truncate(group, P0, 0)
        driver.drain()
        group.produce(P0, 7)
    driver.drain()
    assert driver.rows == {P0: [(0, 100), (0, 7), (0, 7), (0, 7)]}


def test_a_truncation_whose_rewind_is_not_acknowledged_is_tried_again(world: World) -> None:
    group, driver = world(records=100, fail_on_data_loss=False)
    driver.drain()
    truncate(group, P0, 60)
    group.rewinds = {P0}
    group.commit_fate = lambda: "lost"
    assert not driver.trigger()
    group.commit_fate = lambda: "ok"
    driver.drain()
    assert group.committed_now == {P0: 60}


EPOCHS = pytest.mark.parametrize("epochs", [False, True], ids=["no epochs", "the same leader"])
RESTART = pytest.mark.parametrize("restart", [False, True], ids=["a running query", "a restarted query"])


def epochs_or_none(group: FakeGroup, epochs: bool) -> None:
    if not epochs:
        group.forget_epochs()


@EPOCHS
@RESTART
@pytest.mark.parametrize("fail", [True, False])
@pytest.mark.parametrize("bounded", [True, False])
def test_a_log_whose_end_goes_back_for_a_moment_was_not_truncated(
    world: World, caplog: pytest.LogCaptureFixture, bounded: bool, fail: bool, restart: bool, epochs: bool
) -> None:
    """estuary/flow #3092: a query ended with data loss though no record was lost, or it read ten records twice."""
    group, driver = world(partitions=2, records=100, fail_on_data_loss=fail)
    epochs_or_none(group, epochs)
    driver.drain()
    list_less(group, P0, 60)
    group.produce(P1, 9)
    back_at_ms = group.now_ms + 3_000

    def come_back() -> None:
        if group.now_ms > back_at_ms:
            group.log[P0][1] = max(100, group.log[P0][1])

    group.meanwhile = come_back
    if restart or bounded:
        driver.restart(bounded=bounded)
    driver.trigger()
    assert driver.rows[P1] == [(0, 100), (100, 109)], "the other partitions go on"
    group.now_ms = max(group.now_ms, back_at_ms + 1)
    come_back()
    group.produce(P0, 7)
    driver.restart(bounded=bounded)
    driver.drain()
    assert driver.rows[P0] == [(0, 100), (100, 107)]
    assert group.committed_now == {P0: 107, P1: 109}
    warnings = messages(caplog, "t-0 is to be read from offset 100, but the log has 0 to 59")
    assert len(warnings) == 1
    assert "for 10 s before that counts as a truncation" in warnings[0]


@EPOCHS
def test_a_log_that_stays_short_was_truncated_though_no_newer_leader_says_so(world: World, epochs: bool) -> None:
    group, driver = world(records=100, fail_on_data_loss=False)
    epochs_or_none(group, epochs)
    group.rewinds = {P0}
    for end in (60, 50):
        driver.drain()
        list_less(group, P0, end)
        since_ms = group.now_ms
        while driver.durable.owned[P0].position != end:
            later(group)
            driver.trigger()
        assert END_BELOW_MS <= group.now_ms - since_ms < END_BELOW_MS + 1_000
    group.produce(P0, 10)
    driver.drain()
    assert driver.rows == {P0: [(0, 100), (50, 60)]}


@EPOCHS
@RESTART
@pytest.mark.parametrize("bounded", [True, False])
def test_a_log_that_stays_short_is_an_error_if_losses_are(
    world: World, bounded: bool, restart: bool, epochs: bool
) -> None:
    group, driver = world(records=100)
    epochs_or_none(group, epochs)
    driver.drain()
    list_less(group, P0, 60)
    since_ms = group.now_ms
    if restart or bounded:
        driver.restart(bounded=bounded)

    def go_on() -> None:
        while group.now_ms - since_ms < 2 * END_BELOW_MS:
            later(group)
            driver.trigger()

    with pytest.raises(DataLoss, match=r"Offsets 100 on of t-0 .+ has 0 to 59: it was truncated"):
        go_on()
    assert group.now_ms - since_ms >= END_BELOW_MS


@pytest.mark.parametrize("fail", [True, False])
@pytest.mark.parametrize("bounded", [True, False])
def test_a_query_that_comes_back_to_a_leader_that_is_cut_off_hears_of_the_newer_one_from_another_broker(
    world: World, caplog: pytest.LogCaptureFixture, bounded: bool, fail: bool
) -> None:
    """The first broker in the bootstrap list led the partition up to offset 60, and was cut off."""
    group, driver = world(records=100, fail_on_data_loss=fail)
    driver.drain()
    list_less(group, P0, 60)
    group.rewinds = {P0}

    def newer_leader() -> Sequence[NamedLeader]:
        if group.epoch(P0) == 0:
            group.elect(P0)
            group.log[P0][1] = 107
            return NamedLeader(0, leader=0, epoch=0), NamedLeader(1, leader=1, epoch=1)
        return NamedLeader(1, leader=1, epoch=1), NamedLeader(0, leader=1, epoch=1)

    group.another_broker = newer_leader
    since_ms = group.now_ms
    driver.restart(bounded=bounded)
    driver.drain()
    assert driver.rows[P0] == [(0, 100), (100, 107)]
    assert group.committed_now == {P0: 107}
    assert group.now_ms - since_ms < END_BELOW_MS
    assert not messages(caplog, "t-0 is to be read from offset 100")


@pytest.mark.parametrize("bounded", [True, False])
def test_after_a_restart_the_patience_with_a_leader_begins_when_a_second_broker_names_it(
    world: World, bounded: bool
) -> None:
    group, driver = world(records=100)
    driver.drain()
    list_less(group, P0, 60)
    since_ms = group.now_ms
    told_ms = since_ms + END_BELOW_MS - 2_000

    def same_leader() -> Sequence[NamedLeader]:
        before = NamedLeader(0, leader=0, epoch=0)
        return before, before._replace(named_by=int(group.now_ms >= told_ms))

    def go_on() -> None:
        while group.now_ms - since_ms < 3 * END_BELOW_MS:
            later(group)
            driver.trigger()

    group.another_broker = same_leader
    driver.restart(bounded=bounded)
    with pytest.raises(DataLoss, match=r"Offsets 100 on of t-0 .+ has 0 to 59: it was truncated"):
        go_on()
    assert END_BELOW_MS <= group.now_ms - told_ms < END_BELOW_MS + 1_500


def test_a_newer_leader_has_a_patience_of_its_own_after_a_restart(world: World) -> None:
    """It lists a lower end for a moment, as any leader may."""
    group, driver = world(records=100)
    driver.drain()
    list_less(group, P0, 60)
    since_ms = group.now_ms
    elected_ms, back_ms = since_ms + END_BELOW_MS - 2_000, since_ms + END_BELOW_MS + 3_000

    def another_broker() -> Sequence[NamedLeader]:
        if group.now_ms >= elected_ms and group.epoch(P0) == 0:
            group.elect(P0)
        if group.now_ms >= back_ms:
            group.log[P0][1] = 100
        epoch = group.epoch(P0)
        return NamedLeader(0, leader=0, epoch=0), NamedLeader(epoch, leader=epoch, epoch=epoch)

    group.another_broker = another_broker
    driver.restart()
    driver.drain()
    assert group.now_ms > back_ms
    assert driver.durable.owned[P0].position == 100


@pytest.mark.parametrize("minds", [1, 2], ids=["brokers agree", "two leaders of one epoch"])
def test_a_log_that_stays_short_is_found_truncated_however_brokers_name_its_leader(world: World, minds: int) -> None:
    """Each broker may take another one for the leader where brokers tell no epochs."""
    group, driver = world(records=100, fail_on_data_loss=False)
    group.forget_epochs()
    driver.drain()
    list_less(group, P0, 60)
    group.rewinds = {P0}
    last = NamedLeader(0, leader=0, epoch=-1)

    def next_broker() -> Sequence[NamedLeader]:
        nonlocal last
        assert group.now_ms - since_ms < 3 * END_BELOW_MS, "it must end"
        before, by = last, (last.named_by + 1) % 3
        last = NamedLeader(by, leader=by % minds, epoch=-1)
        return before, last

    group.another_broker = next_broker
    since_ms = group.now_ms
    driver.restart()
    driver.drain()
    assert group.committed_now == {P0: 60}
    assert END_BELOW_MS <= group.now_ms - since_ms < END_BELOW_MS + 2_500


def test_the_end_that_an_old_leader_listed_does_not_count_while_the_newer_one_is_silent(world: World) -> None:
    group, driver = world(records=100)
    driver.drain()
    list_less(group, P0, 60)
    heard_of_newer: list[int] = []

    def silent_leader() -> Sequence[NamedLeader]:
        heard_of_newer.append(group.now_ms)
        group.out_of_reach[P0] = lambda: True
        return NamedLeader(0, leader=0, epoch=0), NamedLeader(1, leader=1, epoch=1)

    group.another_broker = silent_leader
    driver.restart()
    for _ in range(3):
        later(group)
        driver.trigger()
    assert heard_of_newer
    group.out_of_reach = {}
    group.another_broker = tuple
    group.elect(P0)
    group.log[P0][1] = 105
    driver.drain()
    assert driver.rows == {P0: [(0, 100), (100, 105)]}


@pytest.mark.parametrize("restart", [True, False])
def test_a_log_that_begins_behind_our_position_is_asked_for_at_another_broker(world: World, restart: bool) -> None:
    """An old leader that is cut off goes on to delete records by their age. Its log may end early, too."""
    group, driver = world(records=10)
    driver.drain()
    group.produce(P0, 90)
    retention(group, P0, 40)

    def newer_leader() -> Sequence[NamedLeader]:
        group.elect(P0)
        group.log[P0][0] = 5
        return NamedLeader(0, leader=0, epoch=0), NamedLeader(1, leader=1, epoch=1)

    group.another_broker = newer_leader
    if restart:
        driver.restart()
    driver.drain()
    assert driver.rows == {P0: [(0, 10), (10, 100)]}


def test_a_truncation_that_a_newer_leader_tells_of_counts_at_once(world: World) -> None:
    """KIP-320: an unclean election begins an epoch."""
    group, driver = world(records=100, fail_on_data_loss=False)
    driver.drain()
    truncate(group, P0, 60)
    group.rewinds = {P0}
    assert elapsed_ms(group, driver.trigger) < 1_000
    group.produce(P0, 10)
    driver.drain()
    assert driver.rows == {P0: [(0, 100), (60, 70)]}


def test_an_open_transaction_below_our_position_is_no_truncation(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """An earlier run read uncommitted records, or another application of the group does."""
    group, driver = world(records=100)
    driver.drain()
    driver.read_committed = True
    group.stable = {P0: 60}
    driver.restart()
    with caplog.at_level("INFO", "pyspark_kgroup.driver.boundary.adopt"):
        for _ in range(3):
            later(group)
            assert not driver.trigger()
    assert caplog.text.count("adopted") == 1, "it is held without a break"
    group.stable = {}
    group.produce(P0, 5)
    driver.drain()
    assert driver.rows == {P0: [(0, 100), (100, 105)]}


def test_a_position_of_another_application_beyond_the_listed_end_is_no_truncation(world: World) -> None:
    group, driver = world(records=100)
    driver.drain()
    group.produce(P0, 50)
    group.committed_now[P0] = 150  # another member had it for a moment
    seat = group.seats["seat-0"]
    seat.owned_since = {P0: replace(seat.identity, member_id="anew")}
    driver.drain()
    assert P0 in driver.durable.owned


# ---------------------------------------------------------------------------------------------- topics go


def test_a_deleted_topic_fails_the_query_and_other_topics_are_committed(world: World) -> None:
    group, driver = world(records=10)
    with_other_topic(group, driver)
    driver.trigger()
    driver.trigger()
    group.produce(U0, 5)
    later(group)
    driver.trigger()
    group.delete_topic("t")
    later(group)
    with pytest.raises(DataLoss, match=r"Offsets 10 on of t-0 .+the partition does not exist any more"):
        driver.trigger()
    assert group.committed_now == {U0: 15}


def test_a_deleted_topic_drops_its_own_partitions_only(world: World, caplog: pytest.LogCaptureFixture) -> None:
    group, driver = world(records=10, fail_on_data_loss=False)
    with_other_topic(group, driver)
    driver.drain()
    group.delete_topic("t")
    later(group)
    for _ in range(3):
        group.produce(U0, 5)
        driver.drain()
    group.rebalance()  # the leader has noticed: the seat is asked for a partition that no member can own
    group.produce(U0, 5)
    driver.drain()
    assert driver.rows[P0] == [(0, 10)]
    assert driver.rows[U0][-1] == (25, 30)
    assert set(driver.durable.owned) == {U0}
    assert group.committed_now == {U0: 30}
    assert caplog.text.count("Data loss: ") == 1, "told once, not at each trigger"


@pytest.mark.parametrize("fail", [True, False])
def test_a_topic_deleted_between_runs_fails_the_start_or_is_skipped(world: World, fail: bool) -> None:
    group, driver = world(records=10, fail_on_data_loss=fail)
    with_other_topic(group, driver)
    driver.drain()
    group.delete_topic("t")
    group.produce(U0, 5)
    driver.restart()
    if fail:
        with pytest.raises(DataLoss, match="t-0"):
            driver.trigger()
    else:
        driver.drain()
        assert driver.rows[U0][-1] == (10, 15)


@pytest.mark.parametrize("fail", [True, False])
def test_a_topic_that_never_existed_is_an_error_with_either_fail_on_data_loss(world: World, fail: bool) -> None:
    group, driver = world(records=10, fail_on_data_loss=fail)
    group.subscribed = ("t", "typo")
    driver.start()
    with pytest.raises(UnknownTopic, match=r"'typo'.+subscribe"):
        driver.trigger()


# ------------------------------------------------------------------------------------- topics created anew

ANEW = pytest.mark.parametrize("records", [0, 5, 100, 150], ids=["empty", "fewer", "as many", "more"])


@ANEW
def test_a_recreated_topic_fails_the_query_at_any_offsets(world: World, records: int) -> None:
    group, driver = world(partitions=2, records=100)
    driver.drain()
    group.create_topic("t", 2)
    group.produce(P0, records)
    later(group)
    with pytest.raises(DataLoss, match=r"Offsets 100 on of t-0 .+another one now.+ 1 more partitions"):
        driver.trigger()


@ANEW
def test_a_recreated_topic_is_read_from_its_beginning_at_any_offsets(world: World, records: int) -> None:
    group, driver = world(partitions=2, records=100, fail_on_data_loss=False)
    driver.drain()
    group.create_topic("t", 2)
    group.produce(P0, records)
    later(group)
    driver.drain()
    assert driver.rows == {P0: [(0, 100), *([(0, records)] if records else [])], P1: [(0, 100)]}
    assert group.committed_now == {P0: records, P1: 0}


def test_the_loss_of_a_recreated_topic_names_the_ids_of_both_topics(world: World) -> None:
    group, driver = world(records=100)
    driver.drain()
    group.create_topic("t", 1)
    later(group)
    # As Kafka's tools show them, the UUIDs of which the first 32 bits are 2 and 1.
    with pytest.raises(DataLoss, match="id AAAAAgAAAAAAAAAAAAAAAA, was AAAAAQAAAAAAAAAAAAAAAA"):
        driver.trigger()


def test_a_topic_recreated_with_fewer_partitions(world: World) -> None:
    group, driver = world(partitions=3, records=100, fail_on_data_loss=False)
    driver.drain()
    group.create_topic("t", 1)
    group.produce(P0, 10)
    later(group)
    driver.drain()
    assert driver.rows[P0] == [(0, 100), (0, 10)]
    assert set(driver.durable.owned) == {P0}
    assert driver.durable.lost == {}


def test_a_topic_recreated_before_its_partitions_come_back(world: World) -> None:
    group, driver = world(records=100, fail_on_data_loss=False)
    with_other_topic(group, driver)
    driver.drain()
    group.delete_topic("t")
    later(group)
    driver.drain()
    group.create_topic("t", 1)
    group.produce(P0, 150)
    group.move(P0, "seat-0")
    later(group)
    driver.drain()
    assert driver.rows[P0] == [(0, 100), (0, 150)]


@pytest.mark.parametrize("fail", [True, False])
@pytest.mark.parametrize("anew", [True, False], ids=["recreated", "deleted"])
def test_a_batch_planned_before_its_topic_was_deleted_fails_or_reads_the_rest(
    world: World, fail: bool, anew: bool
) -> None:
    """1. a batch 100..200 is planned, 2. the driver dies, 3. the topic goes, and another one has offsets 100..200,
    4. the replay must not take the one for the other.
    """
    group, driver = world(records=100, fail_on_data_loss=fail)
    with_other_topic(group, driver)
    driver.drain()
    group.produce(P0, 100)
    group.produce(U0, 10)
    later(group)
    with pytest.raises(Crash):
        driver.trigger(crash="unread")
    group.delete_topic("t")
    if anew:
        group.create_topic("t", 1)
        group.produce(P0, 300)
        group.move(P0, "seat-0")
    if fail:
        with pytest.raises(DataLoss, match="Offsets 100 to 199 of t-0"):
            driver.restart()
        return
    driver.restart()
    driver.drain()
    assert driver.rows[P0] == [(0, 100), *([(0, 300)] if anew else [])]
    assert driver.rows[U0] == [(0, 10), (10, 20)]


# ------------------------------------------------------------------------------------------- AvailableNow


def test_a_frozen_end_does_not_outlive_a_truncation(world: World) -> None:
    group, driver = world(records=100, fail_on_data_loss=False, bounded=True)
    group.rewinds = {P0}
    driver.trigger(limit=80)
    truncate(group, P0, 60)
    driver.drain()
    assert driver.rows == {P0: [(0, 80)]}
    assert driver.durable.owned[P0].position == 60
    group.produce(P0, 100)
    driver.restart(bounded=True)
    driver.drain()
    assert driver.rows == {P0: [(0, 80), (60, 160)]}


def test_a_recreated_topic_waits_for_the_next_run(world: World) -> None:
    group, driver = world(records=100, fail_on_data_loss=False, bounded=True)
    driver.trigger(limit=80)
    group.create_topic("t", 1)
    group.produce(P0, 50)
    later(group)
    driver.drain()
    assert driver.rows == {P0: [(0, 80)]}
    driver.restart(bounded=True)
    driver.drain()
    assert driver.rows == {P0: [(0, 80), (0, 50)]}


@pytest.mark.parametrize(
    ("partitions", "records"), [(0, 0), (1, 100), (2, 50)], ids=["deleted", "fewer partitions", "fewer records"]
)
def test_a_topic_that_goes_between_batches_of_available_now_fails_the_query(
    world: World, partitions: int, records: int
) -> None:
    group, driver = world(partitions=2, records=100, bounded=True)
    driver.trigger(limit=80)
    group.delete_topic("t")
    if partitions:
        group.create_topic("t", partitions)
        for number in range(partitions):
            group.produce(TopicPartition("t", number), records)
    later(group)
    with pytest.raises(DataLoss, match=r"Offsets 40 on of t-0 were to be read next, but .+ 1 more partitions"):
        driver.trigger()
    assert driver.rows == {P0: [(0, 40)], P1: [(0, 40)]}


def test_a_driver_that_comes_back_tells_its_client_which_topics_its_checkpoint_knows() -> None:
    """Else a broker that was cut off before the topic was created again would be believed at the first look."""
    options = parse({"kafka.bootstrap.servers": "a:9092", "kafka.group.id": "g", "subscribe": "t", "members": "1"})
    start = Checkpoint(topics={"t": Topic(topic_id=str(UUID(int=8)), first_sight=1)})
    assert Query(options, bounded=False)._settings(start, None).work.topic_ids == {"t": UUID(int=8)}
