"""The bookkeeping between two boundaries: holdings, positions that the group knows, the next checkpoint."""

from uuid import UUID

import pytest

from pyspark_kgroup.driver.boundary.ledger import Holding, Ledger, find_holders
from pyspark_kgroup.offsets.checkpoint import EMPTY, Checkpoint, Owned, Period, Topic
from spark_kgroup.model import MemberIdentity, TopicDescription, TopicPartition
from spark_kgroup.runtime.views import GroupView, SeatView

P0, P1, P2 = (TopicPartition("t", index) for index in range(3))
OLD, NEW = UUID(int=1), UUID(int=2)
TOPICS = {"t": TopicDescription(name="t", topic_id=OLD, partition_count=3)}


def who(seat: str = "job-0", generation: int = 1, member_id: str = "m") -> MemberIdentity:
    return MemberIdentity(instance_id=seat, member_id=member_id, generation=generation)


def seat_view(
    owned_since: dict[TopicPartition, MemberIdentity],
    name: str = "job-0",
    give_up: frozenset[TopicPartition] | set[TopicPartition] = frozenset(),
) -> SeatView:
    return SeatView(
        instance_id=name,
        identity=who(name, generation=9),
        owned_since=owned_since,
        to_give_up=frozenset(give_up),
        settled=not give_up,
        leader=False,
    )


def group_view(*seats: SeatView) -> GroupView:
    return GroupView(seats=seats)


def period(start: int = 0, generation: int = 1, seat: str = "job-0") -> Period:
    return Period(topic_id=str(OLD), start=start, seat=seat, generation=generation)


def durable(
    positions: dict[TopicPartition, int], start: int = 0, lost: dict[TopicPartition, int] | None = None
) -> Checkpoint:
    return Checkpoint(
        topics={"t": Topic(topic_id=str(OLD), first_sight=3)},
        owned={tp: Owned(period=period(start), position=position) for tp, position in positions.items()},
        lost=lost or {},
    )


def ledger(*partitions: TopicPartition, start: int = 0, committed: int | None = None) -> Ledger:
    book = Ledger(TOPICS)
    for tp in partitions:
        book.adopt(tp, Holding(period=period(start), owned_since=who(), committed=committed))
    return book


def since(start: Checkpoint, book: Ledger) -> Ledger:
    """`book` at the boundary that begins with `start`."""
    book.begin_boundary(start)
    return book


# --------------------------------------------------------------------------------------------- holdings


@pytest.mark.parametrize(
    "now",
    [{}, {P0: who(member_id="other")}, {P0: who(generation=2)}, {P0: who("job-1")}],
    ids=["gone", "another member id", "another generation", "another seat"],
)
def test_a_partition_that_was_not_owned_without_a_break_is_lost(now: dict[TopicPartition, MemberIdentity]) -> None:
    book = ledger(P0, P1)
    assert book.drop_lost(group_view(seat_view({P1: who(), **now}))) == {P0}
    assert set(book.holdings) == {P1}


def test_a_partition_owned_without_a_break_is_kept_in_a_later_generation() -> None:
    book = ledger(P0)
    assert not book.drop_lost(group_view(seat_view({P0: who()})))
    assert set(book.holdings) == {P0}


@pytest.mark.parametrize("turned", [False, True])
def test_of_two_seats_that_claim_to_own_a_partition_the_newer_generation_counts(turned: bool) -> None:
    old, new = seat_view({P0: who("a", 1)}, "a"), seat_view({P0: who("b", 2)}, "b")
    view = group_view(*((new, old) if turned else (old, new)))
    assert find_holders(view) == {P0: new}


def test_a_partition_of_a_recreated_topic_is_forgotten() -> None:
    book = ledger(P0)
    book.drop_gone({**TOPICS, "u": TOPICS["t"]})
    assert set(book.holdings) == {P0}
    book.drop_gone({"t": TopicDescription(name="t", topic_id=NEW, partition_count=3)})
    assert not book.holdings


def test_a_partition_of_a_deleted_topic_is_forgotten() -> None:
    book = ledger(P0)
    book.drop_gone({"u": TOPICS["t"]})
    assert not book.holdings


def test_adopting_twice_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="t-0 is adopted already"):
        ledger(P0, P0)


# ------------------------------------------------------------------------ positions that the group knows


def test_the_position_is_where_the_durable_offset_stands_in_this_period() -> None:
    book = ledger(P0, start=10)
    assert since(EMPTY, book).position(P0) == 10
    assert since(durable({P0: 25}, start=10), book).position(P0) == 25
    assert since(durable({P0: 25}, start=9), book).position(P0) == 10


@pytest.mark.parametrize(("committed", "left"), [(None, {P0: 25}), (24, {P0: 25}), (25, {}), (26, {})])
def test_only_unacknowledged_positions_are_committed(committed: int | None, left: dict[TopicPartition, int]) -> None:
    book = ledger(P0, committed=committed)
    assert since(durable({P0: 25}), book).uncommitted(seat_view({P0: who()})) == left


def test_a_position_that_this_period_does_not_go_on_from_is_not_committed() -> None:
    book = ledger(P0, start=10)
    assert since(durable({P0: 25}, start=9), book).uncommitted(seat_view({P0: who()})) == {}
    assert since(EMPTY, book).uncommitted(seat_view({P0: who()})) == {}


@pytest.mark.parametrize("lost", [False, True], ids=["owned before", "lost before"])
def test_a_period_that_goes_on_where_an_earlier_one_ended_is_committed_at_once(lost: bool) -> None:
    book = ledger(P0, start=25, committed=10)
    before = durable({}, lost={P0: 25}) if lost else durable({P0: 25}, start=9)
    assert since(before, book).uncommitted(seat_view({P0: who()})) == {P0: 25}
    book.on_acknowledged([P0], {P0: 25})
    assert since(before, book).uncommitted(seat_view({P0: who()})) == {}
    assert since(before, book).unacknowledged() == frozenset()


@pytest.mark.parametrize(("committed", "waits"), [(25, False), (24, True)])
def test_records_lost_from_the_log_make_no_partition_wait_for_a_commit(committed: int, waits: bool) -> None:
    book = ledger(P0, start=40, committed=committed)  # 25..39 are gone, and were never delivered
    before = durable({P0: 25}, start=9)
    assert since(before, book).unacknowledged() == (frozenset({P0}) if waits else frozenset())
    assert since(before, book).uncommitted(seat_view({P0: who()})) == ({P0: 40} if waits else {})


def test_no_partition_is_committed_or_handed_over_by_a_seat_that_did_not_adopt_it() -> None:
    book = ledger(P0)
    other = seat_view({P0: who("job-1", 2)}, "job-1", give_up={P0})
    assert since(durable({P0: 25}), book).uncommitted(other) == {}
    assert since(durable({P0: 25}), book).to_hand_over(other) == {}


def test_a_hand_over_commits_the_durable_position() -> None:
    book = ledger(P0, P1, start=10)
    seat = seat_view({P0: who(), P1: who(), P2: who()}, give_up={P0, P1, P2})
    assert since(durable({P0: 25}, start=10), book).to_hand_over(seat) == {P0: 25, P1: 10}


def test_an_acknowledged_position_is_not_committed_again() -> None:
    book = ledger(P0, P1)
    assert book.known_to_group({P0: 5, P1: 5}) == frozenset()
    book.on_acknowledged([P0], {P0: 5, P1: 5})
    assert book.known_to_group({P0: 5, P1: 5}) == {P0}
    assert book.known_to_group({P0: 6}) == frozenset()


# ------------------------------------------------------------------------------------ the next checkpoint


def test_the_same_holdings_at_the_same_positions_are_the_same_checkpoint() -> None:
    start = durable({P0: 25, P1: 7}, lost={P2: 3})
    assert since(start, ledger(P1, P0)).checkpoint(TOPICS, {P0: 25, P1: 7}) == start


def test_a_lost_partition_is_remembered_with_its_position() -> None:
    after = since(durable({P0: 25, P1: 7}), ledger(P0)).checkpoint(TOPICS, {P0: 30})
    assert set(after.owned) == {P0}
    assert after.lost == {P1: 7}


def test_a_handed_over_partition_is_remembered_as_given_up() -> None:
    book, start = ledger(P0, P1), durable({P0: 25, P1: 7})
    book.give_up([P1])
    for _ in range(2):  # also if Spark never uses the first one
        after = since(start, book).checkpoint(TOPICS, {P0: 25})
        assert set(after.owned) == {P0}
        assert after.lost == {}


def test_a_partition_that_comes_back_after_a_hand_over_and_is_lost_is_remembered() -> None:
    book, start = ledger(P0), durable({P0: 25})
    book.give_up([P0])
    book.adopt(P0, Holding(period=period(), owned_since=who(), committed=25))
    book.drop_lost(group_view())
    assert since(start, book).checkpoint(TOPICS, {}).lost == {P0: 25}


def test_a_partition_that_comes_back_is_owned_and_no_longer_remembered() -> None:
    after = since(durable({}, lost={P0: 40}), ledger(P0, start=40)).checkpoint(TOPICS, {P0: 50})
    assert after.owned == {P0: Owned(period=period(40), position=50)}
    assert after.lost == {}


def test_a_recreated_topic_has_no_remembered_partitions() -> None:
    renewed = {"t": TopicDescription(name="t", topic_id=NEW, partition_count=3)}
    after = since(durable({P0: 25}, lost={P1: 7}), Ledger(TOPICS)).checkpoint(renewed, {})
    assert after.lost == {}
    assert after.topics == {"t": Topic(topic_id=str(NEW), first_sight=0)}


def test_topics_keep_the_partition_count_of_first_sight_and_later_topics_have_none() -> None:
    first = since(EMPTY, Ledger(TOPICS)).checkpoint(TOPICS, {})
    assert first.topics == {"t": Topic(topic_id=str(OLD), first_sight=3)}
    grown = {
        "t": TopicDescription(name="t", topic_id=OLD, partition_count=9),
        "u": TopicDescription(name="u", topic_id=NEW, partition_count=2),
    }
    later = since(first, Ledger(TOPICS)).checkpoint(grown, {})
    assert later.topics == {**first.topics, "u": Topic(topic_id=str(NEW), first_sight=0)}


def test_a_topic_that_is_no_longer_subscribed_stays_known() -> None:
    start = durable({P0: 25})
    after = since(start, Ledger(["u"])).checkpoint({}, {})
    assert after.topics == {"t": Topic(topic_id=str(OLD), first_sight=3, left=True)}
    assert after.lost == {P0: 25}
    assert since(after, Ledger(["t"])).checkpoint(TOPICS, {}).topics == start.topics
