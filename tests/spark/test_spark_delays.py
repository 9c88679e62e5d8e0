"""The delays that `executor.spark_delays` spares are spared in a real worker of Spark's."""

from harness.task_ends import SCHEMA, tell
from pyspark.sql import Row, SparkSession


def test_a_real_worker_acknowledges_its_jvm_at_once_after_each_task(spark: SparkSession) -> None:
    # This shows that it is so at the end of each task. The milliseconds that it saves are measured by `make bench`.
    rows: dict[int, list[Row]] = {}
    for _ in range(40):
        for row in spark.range(0, 1, 1, 1).mapInArrow(tell, SCHEMA).collect():
            rows.setdefault(row.pid, []).append(row)
    reused = [tasks for tasks in rows.values() if len(tasks) > 1]
    assert reused, "workers serve one task after the other"
    for tasks in reused:
        assert tasks[0].connections == 1, "a worker's only connection is that to its JVM"
        assert tasks[-1].ends >= len(tasks) - 1, "Spark's worker collects its garbage after each task"
        assert tasks[-1].quick == tasks[-1].ends
