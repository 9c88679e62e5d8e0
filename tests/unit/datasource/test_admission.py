"""Spark's read limits: ours come back as they were given, and Trigger.Once asks for everything."""

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, ReadMinRows

from pyspark_kgroup.admission import default_read_limit, is_at_once, takes_everything
from pyspark_kgroup.offsets.plan import NO_LIMIT, Limit


@pytest.mark.parametrize(
    ("options", "offsets_min", "expected"),
    [
        (NO_LIMIT, None, ReadAllAvailable()),
        (Limit(7, None), None, ReadMaxRows(7)),
        (Limit(7, None), 5, ReadMinRows(5)),
        (Limit(None, 1_000), None, ReadMinRows(1)),
        (Limit(7, 1_000), 5, ReadMinRows(5)),
    ],
)
def test_options_are_a_limit_of_sparks_that_leaves_them_in_force(
    options: Limit, offsets_min: int | None, expected: ReadLimit
) -> None:
    limit = default_read_limit(*options, offsets_min)
    assert limit == expected
    assert takes_everything(limit) == (options == NO_LIMIT and offsets_min is None)


def test_before_pyspark_4_2_options_hold_without_a_limit_of_sparks() -> None:
    assert not takes_everything(None)
    assert not is_at_once(None)


def test_trigger_once_takes_all_records_at_once_under_any_limits() -> None:
    assert takes_everything(ReadAllAvailable())
    assert is_at_once(ReadAllAvailable())
    assert not is_at_once(ReadMinRows(1))
