"""A listener that gets Spark's progress as one text from Java.

Runs on: driver, in the user's own process (`listener`). With Spark Connect in the client, where progress is a text
anyway.

PySpark's own passes each collection of a progress from Java by itself (StreamingQueryProgress.fromJObject). 1. Each of
them ends with a Java exception. 2. For its kind PySpark looks 14 classes up by name, each in all jars of Spark. So each
batch costs 0.13 s of CPU in the driver's JVM, and 0.05 s in its Python (measured on PySpark 4.3.0).
"""

import json
import logging
from typing import Any

from pyspark.sql.streaming.listener import (
    JStreamingQueryListener,
    QueryProgressEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

log = logging.getLogger(__name__)


class _AsText(JStreamingQueryListener):
    """What Spark's JVM calls: the events of a Python listener."""

    def onQueryProgress(self, jevent: Any) -> None:
        progress: dict[str, Any] = json.loads(jevent.progress().json())
        self.pylistener.onQueryProgress(QueryProgressEvent(StreamingQueryProgress.fromJson(progress)))


class ProgressAsText(StreamingQueryListener):
    """A `StreamingQueryListener` whose `onQueryProgress` gets what Spark Connect's gets."""

    @property
    def _jlistener(self) -> Any:
        """The Java listener that `addListener` and `removeListener` take, the same each time (PySpark's name)."""
        if not hasattr(self, "_jlistenerobj"):
            # Imported here: Spark Connect's client has no SparkContext.
            from pyspark import SparkContext

            try:
                wrap = SparkContext._jvm.PythonStreamingQueryListenerWrapper  # type: ignore[union-attr]
                self._jlistenerobj = wrap(_AsText(self))
            except (AttributeError, TypeError) as error:  # a later PySpark has another name for it
                log.debug("progress comes as PySpark's own listener passes it: %r", error)
                return super()._jlistener
        return self._jlistenerobj
