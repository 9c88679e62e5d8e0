"""Where a query without a checkpoint starts, and what it is told of that."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from harness.fake_driver import COMMITTED_OR_EARLIEST, Driver
from harness.fake_group import OTHER, FakeGroup

from pyspark_kgroup.options.starting_offsets import parse_starting_offsets
from spark_kgroup.errors import OptionError
from spark_kgroup.model import DescribedGroup, DescribedMember, TopicPartition

P0 = TopicPartition("t", 0)

World = Callable[..., tuple[FakeGroup, Driver]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"t": {"0": 5}}', "does not name t-1, t-2, t-3: name every"),
        (
            '{"t": {"0": 5, "1": -1, "2": -1, "3": -2, "7": 5, "9": 1}}',
            "t-7, t-9. Leave them out: t has 0 to 3",
        ),
    ],
)
def test_an_explicit_start_that_misses_or_invents_partitions_is_refused_with_all_of_them(
    world: World, text: str, message: str
) -> None:
    group, driver = world(partitions=4, records=100, starting=parse_starting_offsets(text))
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
