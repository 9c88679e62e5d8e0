"""What is done to Spark's worker finds a real one as it expects it."""

from harness.task_ends import SCHEMA, tell
from pyspark.sql import Row, SparkSession


def test_a_real_worker_acknowledges_its_jvm_at_once_after_each_task(spark: SparkSession) -> None:
    # That it is so at the end of each task, and not yet the milliseconds it saves: those are `make bench`'s.
    rows: dict[int, list[Row]] = {}
    for _ in range(40):
        for row in spark.range(0, 1, 1, 1).mapInArrow(tell, SCHEMA).collect():
            rows.setdefault(row.pid, []).append(row)
    reused = [told for told in rows.values() if len(told) > 1]
    assert reused, "workers serve one task after the other"
    for told in reused:
        assert told[0].connections == 1, "a worker's only connection is that to its JVM"
        assert told[-1].ends >= len(told) - 1, "Spark's worker collects its garbage after each task"
        assert told[-1].quick == told[-1].ends
