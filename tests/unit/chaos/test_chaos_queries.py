"""How `make chaos` looks after its queries: which ends count as failures, and whether all of a topic was read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from chaos import queries
from chaos.queries import Query
from chaos.world import is_read

REFUSED = "[STREAM_FAILED] Cannot upgrade classic group chaos to consumer group"


class Ended:
    """An application that has ended by itself."""

    def __init__(self, folder: Path, *_: Any, **__: Any) -> None:
        (folder / "driver.log").write_text(REFUSED)

    def start(self) -> Ended:
        return self

    def processes(self) -> list[object]:
        return []

    def kill(self) -> None: ...

    def failure(self) -> None: ...


@pytest.fixture
def query(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Query:
    monkeypatch.setattr(queries, "Application", Ended)
    for log in ("commits", "offsets"):
        (tmp_path / "checkpoint" / log).mkdir(parents=True)
    (tmp_path / "checkpoint" / "offsets" / "0").write_text("v1")
    started = Query(tmp_path, "main", {"members": "2"}, 8.0, small=False)
    started.start()
    return started


def test_a_query_whose_stream_reader_has_just_gone_by_itself_is_left_to_be_started_again(query: Query) -> None:
    assert query.kill_reader() is False
    assert (query.revive() or "").startswith("ended by itself: ")


def test_a_query_that_a_classic_group_refuses_has_failed_unless_it_was_starting(query: Query) -> None:
    """Batch 0 was planned by an earlier process. That it is replayed does not show that the start is over."""
    query.revive()
    (query.folder / "checkpoint" / "commits" / "0").write_text("v1\n{}")
    query.revive()
    assert query.failures == []
    for log in ("offsets", "commits"):
        (query.folder / "checkpoint" / log / "1").write_text("v1\n{}")
    query.revive()
    (failure,) = query.failures
    assert REFUSED in failure.words


@pytest.mark.parametrize(
    ("positions", "read"),
    [
        ({"visits-0": (3, 3), "visits-1": (2, 2), "orders-0": (0, 9)}, True),
        ({"visits-0": (3, 3), "visits-1": (1, 2)}, False),
        # Producers had five records acknowledged: a broker that is behind names an earlier end.
        ({"visits-0": (3, 3), "visits-1": (1, 1)}, False),
        ({"orders-0": (9, 9)}, False),
    ],
)
def test_a_topic_is_read_if_as_many_records_as_producers_sent_are_committed(
    positions: dict[str, tuple[int, int]], read: bool
) -> None:
    assert is_read(positions, "visits", 5) is read
