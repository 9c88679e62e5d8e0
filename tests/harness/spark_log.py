"""The logs of Spark's JVM, written to files."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession


@contextmanager
def all_that_spark_says(spark: SparkSession, folder: Path) -> Iterator[None]:
    """Spark's log at DEBUG, and its event log, as text files in a new `folder`."""
    folder.mkdir()
    jvm: Any = spark.sparkContext._jvm
    context = spark.sparkContext._jsc.sc()
    conf = context.conf().clone().set("spark.eventLog.compress", "false").set("spark.eventLog.rolling.enabled", "false")
    events = jvm.org.apache.spark.scheduler.EventLoggingListener(
        "events", jvm.scala.Option.empty(), jvm.java.net.URI(folder.as_uri()), conf
    )
    events.start()
    context.addSparkListener(events)

    log4j = jvm.org.apache.logging.log4j
    logging = log4j.LogManager.getContext(False)
    root = logging.getConfiguration().getRootLogger()
    layout = log4j.core.layout.PatternLayout.createDefaultLayout()
    builder = log4j.core.appender.FileAppender.newBuilder().setName("said").setLayout(layout)
    appender = builder.withFileName(str(folder / "log")).build()
    appender.start()
    level = root.getLevel()
    root.addAppender(appender, log4j.Level.DEBUG, None)
    root.setLevel(log4j.Level.DEBUG)
    logging.updateLoggers()
    try:
        yield
    finally:
        root.removeAppender("said")
        root.setLevel(level)
        logging.updateLoggers()
        appender.stop()
        context.listenerBus().waitUntilEmpty()
        context.removeSparkListener(events)
        events.stop()
