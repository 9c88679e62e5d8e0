"""Giving up partitions that another application reads already: without a commit, which would set it back."""

from collections.abc import Collection

import pytest
from harness.boundary import P0, P1, World, messages
from harness.fake_driver import Driver
from harness.fake_group import OTHER, FakeGroup

from pyspark_kgroup.driver.boundary.taken_over import find_taken_over
from pyspark_kgroup.limits import END_OFFSETS_MAX_AGE_MS
from spark_kgroup.errors import BrokerError, RequestTimedOut
from spark_kgroup.limits import COMMIT_TIMEOUT_MS
from spark_kgroup.model import ErrorCode, TopicPartition
from spark_kgroup.seat_note import Author


@pytest.fixture
def taken(world: World) -> tuple[FakeGroup, Driver]:
    """1. ours has read P to 10, which is not committed, 2. a generation asks it back, for a classic neighbour, 3. a
    consumer-protocol neighbour joins, brokers convert the group, and P is its own at once, from 0."""
    group, driver = world(records=10)
    driver.trigger()
    group.move(P0, OTHER)
    group.convert(P0)
    group.produce(P0, 20)
    return group, driver


@pytest.mark.parametrize("read", [0, 4, 25], ids=["has just begun", "is behind us", "is ahead of us"])
def test_a_partition_that_another_application_reads_already_is_given_up_without_a_commit(
    taken: tuple[FakeGroup, Driver], read: int, caplog: pytest.LogCaptureFixture
) -> None:
    group, driver = taken
    group.other_reads(P0, read)
    driver.trigger()
    assert group.committed_now == {P0: read}
    assert P0 not in group.seats["seat-0"].owned_since
    assert "t-0 to another application" in caplog.text
    assert "may be delivered twice" in caplog.text
    assert driver.durable.lost == {P0: 10}
    # Back with us, no record is read twice by us, and none is skipped.
    group.move(P0, "seat-0")
    group.other_gives_up()
    driver.drain()
    assert driver.rows == {P0: [(0, 10), (max(read, 10), 30)]}
    assert group.committed_now == {P0: 30}


def test_a_partition_whose_new_owner_was_asked_for_it_in_turn_is_given_up_without_a_commit(
    taken: tuple[FakeGroup, Driver],
) -> None:
    group, driver = taken
    group.other_reads(P0, 25)
    group.unassign(P0)  # a group of type consumer does not show partitions that it has asked back
    driver.trigger()
    assert group.committed_now == {P0: 25}
    assert P0 not in group.seats["seat-0"].owned_since


@pytest.mark.parametrize("silent", ["describe", "committed"])
def test_a_partition_stays_uncommitted_and_ours_while_its_reader_is_unknown(
    taken: tuple[FakeGroup, Driver], silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, driver = taken
    group.other_reads(P0, 25)
    group.bounds_ms.clear()

    def unanswered(asked: Collection[TopicPartition] | int, *_: object) -> dict[TopicPartition, None]:
        if asked:
            raise RequestTimedOut("The cluster did not answer.")
        return {}  # an empty request needs no answer

    with monkeypatch.context() as broken:
        broken.setattr(group, silent, unanswered)
        driver.trigger()
        assert group.committed_now == {P0: 25}
        assert P0 in group.seats["seat-0"].owned_since
        assert driver.rows == {P0: [(0, 10)]}, "it does not go on"
    driver.trigger()
    assert set(group.bounds_ms) == {COMMIT_TIMEOUT_MS}, "no boundary waits for longer than for a commit"
    assert group.committed_now == {P0: 25}
    assert P0 not in group.seats["seat-0"].owned_since


@pytest.mark.parametrize("texts", [True, False], ids=["with its text", "without a text beside it"])
def test_a_commit_of_ours_that_was_not_heard_of_is_not_taken_for_another_application_s(
    world: World, texts: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker may allow no text beside an offset (offset.metadata.max.bytes)."""
    group, driver = world(records=10)
    driver.trigger()
    group.move(P0, OTHER)
    group.commit_fate = lambda: "unheard"
    driver.trigger()
    assert group.committed_now == {P0: 10}
    assert P0 in group.seats["seat-0"].owned_since
    if not texts:
        group._notes.clear()
    group.commit_fate = lambda: "ok"
    driver.trigger()
    assert group.other == {P0: 10}
    assert driver.durable.given_up == {P0: 10}
    assert "another application" not in caplog.text


def test_committed_offsets_decide_in_a_group_that_this_user_may_not_see(
    taken: tuple[FakeGroup, Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    group, driver = taken
    group.other_reads(P0, 25)

    def hidden(*_: object) -> None:
        raise BrokerError("ConsumerGroupDescribe", ErrorCode.TOPIC_AUTHORIZATION_FAILED)

    monkeypatch.setattr(group, "describe", hidden)
    driver.trigger()
    assert group.committed_now == {P0: 25}
    assert P0 not in group.seats["seat-0"].owned_since


def test_the_reader_of_a_partition_is_not_asked_for_while_no_partition_is_to_be_given_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, driver = world(records=10)
    driver.drain()
    asked: list[str] = []
    for call in ("describe", "committed"):
        monkeypatch.setattr(group, call, lambda *_, call=call: asked.append(call))
    group.produce(P0, 5)
    driver.drain()
    assert group.committed_now == {P0: 15}
    assert asked == []


def test_the_log_says_why_the_owner_of_a_partition_to_be_given_up_is_not_known(
    taken: tuple[FakeGroup, Driver], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    group, driver = taken
    caplog.set_level("INFO")

    def hidden(*_: object) -> None:
        raise BrokerError("ConsumerGroupDescribe", ErrorCode.TOPIC_AUTHORIZATION_FAILED)

    monkeypatch.setattr(group, "describe", hidden)
    driver.trigger()
    (line,) = messages(caplog, "brokers do not say which members own the partitions to give up")
    assert "TOPIC_AUTHORIZATION_FAILED" in line


def test_the_log_says_why_a_partition_that_is_asked_for_stays(
    taken: tuple[FakeGroup, Driver], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    group, driver = taken
    caplog.set_level("INFO")

    def unanswered(*_: object) -> None:
        raise RequestTimedOut("The cluster did not answer.")

    with monkeypatch.context() as broken:
        broken.setattr(group, "describe", unanswered)
        driver.trigger()
    lines = messages(caplog, "revoked partitions are kept until the next trigger")
    assert lines
    assert "The cluster did not answer." in lines[0]


def test_a_partition_that_came_back_from_another_application_is_given_up_after_its_commit_again(
    taken: tuple[FakeGroup, Driver],
) -> None:
    group, driver = taken
    driver.trigger()
    group.move(P0, "seat-0")
    group.other_gives_up()
    driver.drain()
    group.produce(P0, 5)
    group.now_ms += END_OFFSETS_MAX_AGE_MS + 1
    driver.trigger()
    group.commit_fate = lambda: "lost"
    group.move(P0, OTHER)
    driver.trigger()
    assert P0 not in group.other
    group.commit_fate = lambda: "ok"
    driver.drain()
    assert group.other == {P0: 35}


# ------------------------------------------------------------------------------------------- whose an offset is

US = Author(app="seat", run=2_000)


@pytest.mark.parametrize(
    ("text", "is_theirs"),
    [
        ("", True),
        ("by hand", True),
        (Author(app="neighbour", run=2_000).encode(), True),
        (Author(app="seat", run=3_000).encode(), True),
        (Author(app="seat", run=2_000).encode(), False),
        (Author(app="seat", run=1_000).encode(), False),
    ],
    ids=["nobody's", "an administrator's", "a neighbour's", "a later run's", "this run's", "an earlier run's"],
)
def test_an_offset_that_another_application_committed_shows_that_a_partition_was_taken_over(
    world: World, monkeypatch: pytest.MonkeyPatch, text: str, is_theirs: bool
) -> None:
    group, _ = world()
    group.committed_now = {P0: 25}
    monkeypatch.setattr(group, "note_beside", lambda _: text)
    found = find_taken_over(group, {P0: (0, 10)}, {"seat-0"}, US)
    assert found == (frozenset({P0}) if is_theirs else frozenset())


@pytest.mark.parametrize("offset", [None, 0, 10], ids=["none", "the last that we know of", "that of our next commit"])
def test_an_offset_that_may_be_ours_shows_no_other_reader_without_a_text_beside_it(
    world: World, offset: int | None
) -> None:
    group, _ = world()
    group.committed_now = {} if offset is None else {P0: offset}
    assert find_taken_over(group, {P0: (0, 10)}, {"seat-0"}, US) == frozenset()


def test_only_partitions_that_are_asked_for_are_taken_over_and_each_is_named(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    group, _ = world(partitions=4)
    group.seats["seat-0"].owned_since = {}
    group.spread([OTHER])
    group.committed_now = {P0: 25}
    assert find_taken_over(group, {P0: (0, 10), P1: (0, 10)}, {"seat-0"}, US) == {P0, P1}
    (line,) = messages(caplog, "to another application")
    assert "The group gave t-0, t-1 to another application" in line


def test_partitions_that_our_own_seats_own_are_not_taken_over(world: World) -> None:
    group, _ = world(partitions=2, seats=2)
    assert find_taken_over(group, {P0: (0, 10), P1: (0, 10)}, set(group.instance_ids), US) == frozenset()


@pytest.mark.parametrize("text", ["", Author(app="neighbour").encode()], ids=["by another client", "by kgroup"])
def test_a_boundary_commits_no_offset_of_records_that_another_application_read_with_any_client(
    taken: tuple[FakeGroup, Driver], monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    group, driver = taken
    group.other_reads(P0, 25)
    group.assigned.pop(P0)  # its owner was asked for it in turn
    monkeypatch.setattr(group, "note_beside", lambda _: text)
    driver.trigger()
    assert group.committed_now == {P0: 25}
    assert P0 not in group.seats["seat-0"].owned_since
