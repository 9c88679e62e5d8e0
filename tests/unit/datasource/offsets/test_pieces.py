"""Ranges are cut into one piece for each task: no offset is left out, and none is there twice."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kgroup.offsets.pieces import OffsetInterval, pieces, pieces_of_seats
from spark_kgroup.errors import OptionError
from spark_kgroup.model import TopicPartition

spans = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from("tu"), st.integers(0, 9)),
    st.builds(lambda first, count: OffsetInterval(first, first + count), st.integers(0, 100), st.integers(-5, 300)),
    max_size=12,
)


@given(spans, st.none() | st.integers(1, 50), st.none() | st.integers(1, 100))
def test_pieces_are_all_offsets_once_and_as_many_and_as_small_as_asked(
    wanted: dict[TopicPartition, OffsetInterval], at_least: int | None, offsets_max: int | None
) -> None:
    cut = pieces(wanted, at_least, offsets_max)
    assert all(len(piece) == 1 for piece in cut)
    read = [(tp, offset) for piece in cut for tp, span in piece for offset in range(*span)]
    assert read == [(tp, offset) for tp, span in sorted(wanted.items()) for offset in range(*span)]
    assert all(span.offsets for piece in cut for _, span in piece)
    assert len(cut) >= min(at_least or 0, len(read))
    assert all(span.offsets <= (offsets_max or span.offsets) for piece in cut for _, span in piece)
    if offsets_max is None:
        assert len(cut) <= max(at_least or 0, len({tp for tp, _ in read}))


def test_the_largest_ranges_are_divided_and_small_ones_stay_whole() -> None:
    large, small = TopicPartition("t", 0), TopicPartition("t", 1)
    cut = pieces({large: OffsetInterval(0, 1000), small: OffsetInterval(0, 10)}, 5, None)
    assert [span.offsets for ((tp, span),) in cut if tp == large] == [250] * 4
    assert [span for ((tp, span),) in cut if tp == small] == [OffsetInterval(0, 10)]


def test_more_tasks_than_spark_bears_are_refused_with_a_number_that_fits() -> None:
    many = {TopicPartition("t", number): OffsetInterval(0, 10**9) for number in range(3)}
    with pytest.raises(OptionError, match=r"maxRecordsPerPartition is 1: .* Set it to \d+ or more\.$") as problem:
        pieces(many, None, 1)
    fits = int(str(problem.value).rpartition("Set it to ")[2].split()[0])
    assert len(pieces(many, None, fits)) <= 100_000


def test_an_empty_batch_has_no_task() -> None:
    assert pieces({TopicPartition("t", 0): OffsetInterval(7, 7)}, 100, 1) == []


@given(
    st.dictionaries(st.sampled_from(["s-0", "s-1", "s-2"]), spans, max_size=3),
    st.none() | st.integers(1, 40),
    st.none() | st.integers(1, 100),
)
def test_pieces_of_seats_are_their_shares_in_order_and_even(
    wanted: dict[str, dict[TopicPartition, OffsetInterval]], at_least: int | None, offsets_max: int | None
) -> None:
    cut = pieces_of_seats(wanted, at_least, offsets_max)
    for seat, shares in wanted.items():
        read = [(tp, offset) for piece in cut.get(seat, []) for tp, span in piece for offset in range(*span)]
        assert read == [(tp, offset) for tp, span in sorted(shares.items()) for offset in range(*span)]
        sizes = [sum(span.offsets for _, span in piece) for piece in cut.get(seat, [])]
        assert all(sizes)
        assert max(sizes, default=0) - min(sizes, default=0) <= 1
        assert max(sizes, default=0) <= (offsets_max or 10**9)
    total = sum(span.offsets for shares in wanted.values() for span in shares.values())
    assert sum(map(len, cut.values())) >= min(at_least or 0, total)


def test_a_seat_that_reads_enough_partitions_is_not_divided() -> None:
    shares = {TopicPartition("t", number): OffsetInterval(0, 10) for number in range(8)}
    cut = pieces_of_seats({"s-0": shares, "s-1": shares}, 2, 80)
    assert [len(pieces_of_one) for pieces_of_one in cut.values()] == [1, 1]
    assert [len(piece) for each in cut.values() for piece in each] == [8, 8]


def test_a_share_of_many_partitions_is_divided_in_one_pass() -> None:
    """Not in one for each piece, which took 11 s of CPU for these, before every batch."""
    shares = {TopicPartition("t", number): OffsetInterval(0, 100) for number in range(10_000)}
    began_s = time.process_time()
    cut = pieces_of_seats({"s-0": shares}, 1_000, None)
    assert time.process_time() - began_s < 2
    assert [sum(span.offsets for _, span in piece) for piece in cut["s-0"]] == [1_000] * 1_000
