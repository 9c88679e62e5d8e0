"""A batch read is cut into one piece for each task: nothing is left out, nothing is there twice."""

from hypothesis import given
from hypothesis import strategies as st

from pyspark_kgroup.offsets.batch_plan import Span, pieces
from spark_kgroup.model import TopicPartition

spans = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from("tu"), st.integers(0, 9)),
    st.builds(lambda first, count: Span(first, first + count), st.integers(0, 100), st.integers(-5, 300)),
    max_size=12,
)


@given(spans, st.none() | st.integers(1, 50), st.none() | st.integers(1, 100))
def test_pieces_are_all_offsets_once_and_as_many_and_as_small_as_asked(
    wanted: dict[TopicPartition, Span], at_least: int | None, offsets_max: int | None
) -> None:
    cut = pieces(wanted, at_least, offsets_max)
    read = [(tp, offset) for tp, span in cut for offset in range(*span)]
    assert read == [(tp, offset) for tp, span in sorted(wanted.items()) for offset in range(*span)]
    assert all(span.offsets for _, span in cut)
    assert len(cut) >= min(at_least or 0, len(read))
    assert all(span.offsets <= (offsets_max or span.offsets) for _, span in cut)
    if offsets_max is None:
        assert len(cut) <= max(at_least or 0, len({tp for tp, _ in read}))


def test_the_largest_ranges_are_divided_and_small_ones_stay_whole() -> None:
    large, small = TopicPartition("t", 0), TopicPartition("t", 1)
    cut = pieces({large: Span(0, 1000), small: Span(0, 10)}, 5, None)
    assert [span.offsets for tp, span in cut if tp == large] == [250] * 4
    assert [span for tp, span in cut if tp == small] == [Span(0, 10)]


def test_nothing_to_read_is_no_task() -> None:
    assert pieces({TopicPartition("t", 0): Span(7, 7)}, 100, 1) == []
