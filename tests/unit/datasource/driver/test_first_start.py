"""Where a query without a checkpoint starts, and the messages about it."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from harness.fake_driver import COMMITTED_OR_EARLIEST, Driver
from harness.fake_group import OTHER, FakeGroup

from pyspark_kgroup.options.offset_bound import (
    OffsetBound,
    by_timestamp,
    by_timestamps,
    parse_starting_offsets,
)
from spark_kgroup.errors import OptionError
from spark_kgroup.model import DescribedGroup, DescribedMember, TopicPartition

P0 = TopicPartition("t", 0)

World = Callable[..., tuple[FakeGroup, Driver]]


@pytest.mark.parametrize("read", [parse_starting_offsets, by_timestamps("startingOffsetsByTimestamp")])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"t": {"0": 5}}', "does not name t-1, t-2, t-3: name every"),
        (
            '{"t": {"0": 5, "1": 1, "2": 1, "3": 2, "7": 5, "9": 1}}',
            "t-7, t-9. Leave them out: t has 0 to 3",
        ),
    ],
)
def test_an_explicit_start_that_misses_or_invents_partitions_is_refused_with_all_of_them(
    world: World, read: Callable[[str], OffsetBound], text: str, message: str
) -> None:
    group, driver = world(partitions=4, records=100, starting=read(text))
    with pytest.raises(OptionError) as problem:
        driver.trigger()
    assert message in str(problem.value)
    assert group.commits == []


def test_an_explicit_start_for_each_partition_is_used(world: World) -> None:
    _, driver = world(partitions=2, records=100, starting=parse_starting_offsets('{"t": {"0": 5, "1": -1}}'))
    driver.drain()
    assert driver.rows == {P0: [(5, 100)]}


def test_a_group_without_offsets_that_starts_at_the_end_says_so_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    group, driver = world(partitions=2, records=100, starting=parse_starting_offsets("committed"))
    group.committed_now = {P0: 80}
    driver.drain()
    assert driver.rows == {P0: [(80, 100)]}
    assert caplog.text.count("Group 'g' has no committed offsets for t-1: reading starts at the end") == 1
    assert "startingOffsets=earliest" in caplog.text


@pytest.mark.parametrize("committed", [True, False])
def test_a_start_at_the_end_by_choice_makes_no_warning(
    world: World, caplog: pytest.LogCaptureFixture, committed: bool
) -> None:
    _, driver = world(records=10, starting=COMMITTED_OR_EARLIEST if committed else parse_starting_offsets("latest"))
    driver.drain()
    assert "starts at the end" not in caplog.text


def test_an_explicit_start_beyond_the_log_of_a_leader_that_was_cut_off_is_no_mistake(world: World) -> None:
    """It goes on answering, and its log ends before the start. Another broker names the present leader."""
    group, driver = world(records=100, starting=parse_starting_offsets('{"t": {"0": 120}}'))
    group.cut_off_leader(P0, [])
    group.produce(P0, 40)
    driver.drain()
    assert driver.rows == {P0: [(120, 140)]}


def test_an_explicit_start_beyond_the_end_is_refused_with_both_offsets(world: World) -> None:
    starting = parse_starting_offsets('{"t": {"0": 101, "1": 100, "2": 99}}')
    group, driver = world(partitions=3, records=100, starting=starting)
    with pytest.raises(OptionError, match=r"beyond the end of t-0: 101 \(ends at 100\): .* -1 for latest"):
        driver.trigger()
    assert group.commits == []


def test_an_explicit_start_at_the_end_is_one(world: World) -> None:
    starting = parse_starting_offsets('{"t": {"0": 100, "1": 99}}')
    _, driver = world(partitions=2, records=100, starting=starting)
    driver.drain()
    assert driver.rows == {TopicPartition("t", 1): [(99, 100)]}


def test_an_explicit_start_in_an_open_transaction_is_one(world: World) -> None:
    """The log has it, and it can be read as soon as the transaction ends."""
    starting = parse_starting_offsets('{"t": {"0": 90}}')
    group, driver = world(records=100, starting=starting, read_committed=True)
    group.stable = {P0: 80}
    driver.drain()
    assert group.committed_now == {P0: 90}
    del group.stable[P0]
    driver.drain()
    assert driver.rows == {P0: [(90, 100)]}


def test_an_explicit_start_that_another_application_overrules_says_whose_members_there_are(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    group, driver = world(partitions=2, records=100, starting=parse_starting_offsets("earliest"))
    group.committed_now = {P0: 80}
    group.move(TopicPartition("t", 1), OTHER)
    driver.drain()
    (line,) = [message for message in caplog.messages if "is ignored" in message]
    assert line.startswith("startingOffsets=earliest is ignored: group 'g' has members of other applications (other)")


def test_a_member_without_an_instance_id_that_overrules_an_explicit_start_is_named_by_its_member_id(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    group, driver = world(records=100, starting=parse_starting_offsets("earliest"))
    describe = group.describe
    others = tuple(
        DescribedMember(member_id=f"consumer-{name}", instance_id=instance_id, client_id="java", client_host="")
        for name, instance_id in (("7", None), ("8", "static"))
    )

    def described() -> DescribedGroup:
        found = describe()
        return replace(found, members=(*found.members, *others))

    monkeypatch.setattr(group, "describe", described)
    driver.trigger()
    assert "members of other applications (consumer-7, static)" in caplog.text


# ---------------------------------------------------------------------- by timestamp: record n is of second n


def test_a_start_by_timestamp_is_at_the_first_record_that_is_not_older(world: World) -> None:
    group, driver = world(partitions=2, records=100, starting=by_timestamp("startingTimestamp")("79001"))
    group.committed_now = {P0: 10}  # an explicit start comes before it
    driver.drain()
    assert driver.rows == {TopicPartition("t", number): [(80, 100)] for number in (0, 1)}
    assert group.committed_now == dict.fromkeys(driver.rows, 100)


def test_each_partition_may_have_a_timestamp_of_its_own(world: World) -> None:
    text = '{"t": {"0": 0, "1": 99000}}'
    _, driver = world(partitions=2, records=100, starting=by_timestamps("startingOffsetsByTimestamp")(text))
    driver.drain()
    assert driver.rows == {P0: [(0, 100)], TopicPartition("t", 1): [(99, 100)]}


def test_a_query_that_finds_no_record_at_its_timestamp_fails_with_the_date_and_the_way_out(world: World) -> None:
    text = '{"t": {"0": 5000, "1": 1767225600000, "2": 9223372036854775807}}'
    group, driver = world(partitions=3, records=100, starting=by_timestamps("startingOffsetsByTimestamp")(text))
    with pytest.raises(OptionError) as problem:
        driver.trigger()
    message = str(problem.value)
    assert "t-1 (1767225600000 ms: 2026-01-01 00:00:00 UTC), t-2 (9223372036854775807 ms)" in message
    assert "startingOffsetsByTimestampStrategy=latest" in message
    assert "t-0" not in message
    assert group.commits == []


def test_a_partition_without_a_record_at_its_timestamp_may_start_at_its_end(world: World) -> None:
    starting = replace(by_timestamp("startingTimestamp")("100000"), later_is_latest=True)
    group, driver = world(partitions=2, records=100, starting=starting)
    driver.drain()
    assert driver.rows == {}
    group.produce(P0, 5)
    driver.drain()
    assert driver.rows == {P0: [(100, 105)]}


def test_a_timestamp_counts_for_a_query_without_a_checkpoint_only(world: World) -> None:
    group, driver = world(partitions=2, records=100, starting=by_timestamp("startingTimestamp")("50000"))
    driver.drain()
    group.produce(P0, 5)
    driver.restart()
    driver.drain()
    assert driver.rows[P0] == [(50, 100), (100, 105)]


def test_partitions_added_later_start_at_their_first_record_with_any_starting_timestamp(world: World) -> None:
    group, driver = world(partitions=1, records=100, starting=by_timestamp("startingTimestamp")("50000"))
    driver.drain()
    added = group.add_partition("t")
    group.spread(list(group.instance_ids))
    group.produce(added, 7)
    driver.drain()
    assert driver.rows == {P0: [(50, 100)], added: [(0, 7)]}
