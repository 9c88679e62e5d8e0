"""All records that a filter lets through are read. Spark applies filters that the source applies incompletely."""

import operator
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import datasource
from pyspark.sql.types import StructType

from pyspark_kgroup.batch import KgroupFilteringReader
from pyspark_kgroup.driver.batch.filters import PushedFilters
from pyspark_kgroup.offsets.pieces import Span
from spark_kgroup.model import TopicPartition

COMPARISONS = {
    "EqualTo": operator.eq,
    "EqualNullSafe": operator.eq,
    "GreaterThan": operator.gt,
    "GreaterThanOrEqual": operator.ge,
    "LessThan": operator.lt,
    "LessThanOrEqual": operator.le,
    "In": lambda left, values: left in values,
}


def made(kind: str, column: str, value: Any) -> Any:
    return getattr(datasource, kind)((column,), value)


def value_of(kind: str, values: list[int]) -> Any:
    return tuple(values) if kind == "In" else values[0]


filters = st.builds(
    lambda kind, column, values: (kind, column, value_of(kind, values)),
    st.sampled_from(sorted(COMPARISONS)),
    st.sampled_from(["partition", "offset"]),
    st.lists(st.integers(-2, 12), min_size=1, max_size=4),
)


@pytest.mark.parametrize(
    ("wanted", "warned"),
    [(("EqualTo", "partition", 0), True), (("GreaterThan", "offset", 5), True), (("EqualTo", "key", b"a"), False)],
)
def test_a_reader_that_was_given_filters_to_use_warns_of_later_queries_on_the_same_load(
    caplog: pytest.LogCaptureFixture, wanted: tuple[str, str, Any], warned: bool
) -> None:
    """Later queries get the rows of the first one (PythonDataSourceV2.setReadInfo)."""
    list(KgroupFilteringReader({}, StructType([])).pushFilters([made(*wanted)]))
    assert ("Call load() for each query." in caplog.text) is warned


@given(st.lists(filters, max_size=4))
def test_a_read_has_all_that_meets_its_filters(wanted: list[tuple[str, str, Any]]) -> None:
    pushed = PushedFilters()
    given_filters = [made(*each) for each in wanted]
    left = pushed.take(given_filters)
    for partition in range(4):
        tp = TopicPartition("t", partition)
        read = set(range(*pushed.within(Span(0, 10)))) if pushed.may_have_rows(tp) else set()
        for offset in range(10):
            row = {"partition": partition, "offset": offset}
            meets = [COMPARISONS[kind](row[column], value) for kind, column, value in wanted]
            if all(meets):
                assert offset in read
            applied = [met for met, each in zip(meets, given_filters, strict=True) if any(each is one for one in left)]
            if offset in read and all(applied):
                assert all(meets)


def test_a_filter_on_timestamps_spares_older_records_and_stays_with_spark() -> None:
    pushed = PushedFilters()
    at = datetime(2026, 1, 1, tzinfo=UTC)
    wanted = [made("GreaterThanOrEqual", "timestamp", at), made("LessThan", "timestamp", at)]
    assert pushed.take(wanted) == wanted
    assert pushed.since_ms is not None
    assert 0 <= at.timestamp() * 1000 - pushed.since_ms <= 2


def test_an_upper_bound_of_timestamps_spares_nothing_since_they_need_not_grow_with_offsets() -> None:
    pushed = PushedFilters()
    pushed.take([made("LessThan", "timestamp", datetime(2026, 1, 1, tzinfo=UTC))])
    assert pushed.since_ms is None
    assert pushed.within(Span(0, 10)) == Span(0, 10)


@pytest.mark.parametrize(
    "unusable",
    [
        made("EqualTo", "key", b"k"),
        made("EqualTo", "partition", None),
        made("EqualTo", "partition", True),
        made("In", "partition", ()),
        made("GreaterThan", "timestamp", datetime(2026, 1, 1)),  # without a zone it names no instant
        made("EqualTo", "timestampType", 0),
        datasource.Not(made("EqualTo", "partition", 1)),
        datasource.IsNull(("partition",)),
        datasource.IsNotNull(("value",)),
        datasource.StringStartsWith(("topic",), "t"),
        datasource.EqualTo(("headers", "key"), "k"),
    ],
    ids=repr,
)
def test_a_filter_that_spares_no_reading_stays_with_spark(unusable: Any) -> None:
    pushed = PushedFilters()
    assert pushed.take([unusable]) == [unusable]
    assert pushed.since_ms is None
    assert pushed.may_have_rows(TopicPartition("t", 0))


def test_a_topic_that_a_filter_excludes_is_not_read_and_no_column_of_a_record_is_null() -> None:
    pushed = PushedFilters()
    assert pushed.take([made("EqualTo", "topic", "t"), datasource.IsNotNull(("topic",))]) == []
    assert pushed.may_have_rows(TopicPartition("t", 0))
    assert not pushed.may_have_rows(TopicPartition("u", 0))
