from __future__ import annotations

import pytest

from spark_kgroup.assignors import NAMES, assignor
from spark_kgroup.errors import OptionError


def test_assignors_go_by_kafkas_names() -> None:
    assert NAMES == ("cooperative-sticky", "range", "roundrobin", "sticky")
    assert [assignor(name).name for name in NAMES] == list(NAMES)


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(OptionError, match=r"'stickey'.*cooperative-sticky, range, roundrobin, sticky"):
        assignor("stickey")
