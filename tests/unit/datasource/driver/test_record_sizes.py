"""How large the driver takes the records of a topic to be: as the last that were read."""

import pytest

from pyspark_kgroup.driver.registry.record_sizes import RecordSizes
from pyspark_kgroup.limits import TOPICS_SIZED_MAX
from pyspark_kgroup.shared.tickets import TopicSize


def test_each_topic_has_the_mean_of_its_own_records() -> None:
    sizes = RecordSizes()
    sizes.add([TopicSize("t", 10, 1_000), TopicSize("u", 2, 14_000)])
    sizes.add([TopicSize("t", 30, 7_000)])
    assert (sizes.of("t"), sizes.of("u")) == (200, 7_000)


def test_later_reads_count_more_than_the_records_of_long_ago() -> None:
    sizes = RecordSizes()
    sizes.add([TopicSize("t", 1_000_000, 100_000_000)])
    for _ in range(4):
        sizes.add([TopicSize("t", 20_000, 20_000 * 1_000)])
    assert sizes.of("t") == pytest.approx(1_000, rel=0.02)


def test_a_read_without_rows_reports_no_size() -> None:
    sizes = RecordSizes()
    sizes.add([TopicSize("t", 0, 0)])
    assert sizes.of("t") is None


def test_a_record_takes_a_byte_at_least_so_that_no_limit_is_divided_by_zero() -> None:
    sizes = RecordSizes()
    sizes.add([TopicSize("t", 10, 0)])
    assert sizes.of("t") == 1


def test_sizes_of_an_earlier_run_count_until_this_run_reads() -> None:
    earlier = RecordSizes()
    earlier.add([TopicSize("t", 10_000, 4_490_000), TopicSize("gone", 1, 9)])
    sizes = RecordSizes()
    sizes.remember(earlier.to_remember(["t", "unread"]))
    assert (sizes.of("t"), sizes.of("unread"), sizes.of("gone")) == (449, None, None)
    sizes.add([TopicSize("t", 1_000, 7_000_000)])
    assert sizes.of("t") == pytest.approx(7_000, rel=0.01)


def test_topics_beyond_the_bound_are_not_remembered() -> None:
    sizes = RecordSizes()
    sizes.add(TopicSize(f"t{number}", 1, 100) for number in range(TOPICS_SIZED_MAX + 1))
    assert sizes.of(f"t{TOPICS_SIZED_MAX - 1}") == 100
    assert sizes.of(f"t{TOPICS_SIZED_MAX}") is None
