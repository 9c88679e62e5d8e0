"""A listener gets Spark's progress as one text, or as PySpark's own gets it where PySpark has another name for that."""

import json
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

from pyspark import SparkContext
from pyspark.sql.streaming.listener import (
    JStreamingQueryListener,
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
)

from pyspark_kgroup.progress_as_text import ProgressAsText

PROGRESS = {
    "id": "11111111-1111-1111-1111-111111111111",
    "runId": "22222222-2222-2222-2222-222222222222",
    "name": "hello",
    "timestamp": "2026-01-01T00:00:00.000Z",
    "batchId": 3,
    "batchDuration": 20,
    "numInputRows": 5,
    "inputRowsPerSecond": 1.0,
    "processedRowsPerSecond": 2.0,
    "durationMs": {"addBatch": 10},
    "stateOperators": [],
    "sources": [],
    "sink": {"description": "noop", "numOutputRows": 5},
}


class Listener(ProgressAsText):
    def __init__(self) -> None:
        self.seen: list[QueryProgressEvent] = []

    def onQueryStarted(self, event: QueryStartedEvent) -> None: ...

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        self.seen.append(event)

    def onQueryIdle(self, event: QueryIdleEvent) -> None: ...

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None: ...


def java_listener(listener: Listener, wrap: Any) -> JStreamingQueryListener:
    """The listener that PySpark registers, where `wrap` is Java's class that calls it."""
    with patch.object(SparkContext, "_jvm", SimpleNamespace(PythonStreamingQueryListenerWrapper=wrap)):
        registered = listener._jlistener
        assert listener._jlistener is registered, "removeListener has to name the same"
    return cast("JStreamingQueryListener", registered)


def test_progress_is_one_text_of_java() -> None:
    listener = Listener()
    asked: list[str] = []

    class Progress:
        """Java's object, of which nothing but the text is asked."""

        def __getattr__(self, name: str) -> Any:
            asked.append(name)
            return lambda: json.dumps(PROGRESS)

    java_listener(listener, lambda called: called).onQueryProgress(SimpleNamespace(progress=Progress))
    (event,) = listener.seen
    assert json.loads(event.progress.json) == PROGRESS
    assert (event.progress.batchId, str(event.progress.runId)) == (3, PROGRESS["runId"])
    assert asked == ["json"]


def test_a_pyspark_without_that_name_passes_progress_in_its_own_way() -> None:
    calls: list[JStreamingQueryListener] = []

    def wrap(called: JStreamingQueryListener) -> JStreamingQueryListener:
        calls.append(called)
        if len(calls) == 1:
            raise TypeError("'JavaPackage' object is not callable")
        return called

    assert type(java_listener(Listener(), wrap)) is JStreamingQueryListener
