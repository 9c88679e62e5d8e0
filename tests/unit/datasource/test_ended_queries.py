"""The listener stops a query that has come to its end. `tests/spark/test_stop_offsets.py` has Spark's half of it."""

import json
import logging
import threading
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from prometheus_client import CollectorRegistry
from pyspark.sql.streaming.listener import QueryIdleEvent, QueryProgressEvent, QueryTerminatedEvent

from pyspark_kgroup.listener import KgroupListener

QUERY, RUN, OTHER_RUN = "q", "run-0", "run-1"

ENDED: dict[str, Any] = {"latestOffset": {"ended": True}}
GOES_ON: dict[str, Any] = {"latestOffset": {"ended": False}}
ENDLESS: dict[str, Any] = {"latestOffset": {}}
OTHERS: list[dict[str, Any]] = [{"latestOffset": None}, {"latestOffset": "7"}, {}]
"""PySpark 4.0 and 4.1, rate, and a source without a report."""


@dataclass
class Session:
    """A session with one query, as far as the listener knows it. It is its own `streams`, and the query."""

    sources: list[dict[str, Any]]
    name: str = "flights"
    there: bool = True
    asked: int = 0
    stops: int = 0
    listener: KgroupListener = field(default_factory=lambda: KgroupListener(CollectorRegistry()))

    def __post_init__(self) -> None:
        self.listener.spark = self

    @property
    def streams(self) -> "Session":
        return self

    def get(self, query: str) -> "Session | None":
        assert query == QUERY
        return self if self.there else None

    @property
    def runId(self) -> str:
        return RUN

    @property
    def lastProgress(self) -> SimpleNamespace | None:
        self.asked += 1
        return SimpleNamespace(json=json.dumps(self.progress())) if self.sources else None

    def progress(self) -> dict[str, Any]:
        return {"id": QUERY, "runId": RUN, "name": self.name, "batchId": 1, "sources": self.sources}

    def stop(self) -> None:
        self.stops += 1

    def idle(self, run: str = RUN) -> int:
        """Spark says that the query is idle. Returns how often it was stopped since it began."""
        self.listener.onQueryIdle(QueryIdleEvent(cast("UUID", QUERY), cast("UUID", run), "2026-11-21T18:28:21.951Z"))
        for thread in threading.enumerate():
            if thread.name == "kgroup end":
                thread.join(10)
        return self.stops

    def progressed(self) -> None:
        event = SimpleNamespace(progress=SimpleNamespace(json=json.dumps(self.progress()), runId=RUN))
        self.listener.onQueryProgress(cast("QueryProgressEvent", event))


@pytest.mark.parametrize("batch_before", [True, False])
def test_an_idle_query_is_stopped_when_it_has_come_to_its_end_with_or_without_a_batch_before(
    caplog: pytest.LogCaptureFixture, batch_before: bool
) -> None:
    session = Session([GOES_ON, ENDED])
    if batch_before:
        session.progressed()
    assert session.idle() == 0
    session.sources = [ENDED, ENDED]
    with caplog.at_level(logging.INFO):
        assert session.idle() == 1
    assert "query flights has read everything up to its end, and is stopped" in caplog.text


def test_a_batch_alone_stops_no_query() -> None:
    """It is not durable yet, and its end not committed."""
    session = Session([ENDED])
    session.progressed()
    assert (session.asked, session.stops) == (0, 0)


@pytest.mark.parametrize("other", [ENDLESS, *OTHERS])
@pytest.mark.parametrize("batch_before", [True, False])
def test_a_query_goes_on_for_ever_that_has_a_source_without_an_end_and_is_not_asked_again(
    other: dict[str, Any], batch_before: bool
) -> None:
    session = Session([ENDED, other])
    if batch_before:
        session.progressed()
    for _ in range(3):
        assert session.idle() == 0
    assert session.asked == (0 if batch_before else 1)
    session.listener.onQueryTerminated(QueryTerminatedEvent(cast("UUID", QUERY), cast("UUID", RUN), None, None))
    session.sources = [ENDED]
    assert session.idle() == 1, "nothing is remembered of a run that is over"


def test_a_later_run_of_a_query_and_one_that_is_gone_or_has_no_progress_are_left_alone() -> None:
    session = Session([ENDED])
    assert session.idle(OTHER_RUN) == 0
    session.there = False
    assert session.idle() == 0
    session.there, session.sources = True, []
    assert session.idle() == 0


def test_where_there_is_no_session_or_it_refuses_the_listener_says_so_and_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:

    def refuse() -> None:
        raise ZeroDivisionError("division by zero")

    session = Session([ENDED])
    session.listener._sparkSession = None  # as outside Spark Connect, here without a session of the process
    with caplog.at_level(logging.INFO):
        assert session.idle() == 0
        session.listener.spark = session
        session.stop = refuse  # type: ignore[method-assign]
        assert session.idle() == 0
    assert caplog.text.count("query q may have come to its end, but cannot be asked or stopped from here") == 2
