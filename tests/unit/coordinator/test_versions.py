"""The table of versions."""

from __future__ import annotations

import re

from spark_kgroup.coordinator import ANSWERED, versions
from spark_kgroup.wire import schema


def test_the_newest_version_of_each_api_is_the_one_that_is_laid_out() -> None:
    for request, found in ANSWERED.items():
        key = schema.API_OF[request].key
        assert found.newest == max(api.version for api in schema.API_OF.values() if api.key == key), request.__name__


def test_the_table_for_readers_says_the_same() -> None:
    rows = re.findall(r"^\| (\w+) \| (\d+)(?:-(\d+))? \|", versions.__doc__ or "", re.MULTILINE)
    told = {f"{name}Request": (int(oldest), int(newest or oldest)) for name, oldest, newest in rows}
    assert told == {request.__name__: tuple(found) for request, found in ANSWERED.items()}
