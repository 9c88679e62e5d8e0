"""The imports of the processes that start a query: each import there is a part of a second before the first batch."""

import json
import subprocess
import sys
from collections.abc import Mapping

import pytest

OPTIONS = {"kafka.bootstrap.servers": "a:9092", "kafka.group.id": "g", "subscribe": "t"}
SASL = {
    "kafka.security.protocol": "SASL_PLAINTEXT",
    "kafka.sasl.mechanism": "SCRAM-SHA-256",
    "kafka.sasl.username": "u",
    "kafka.sasl.password": "p",
}

AS_PLANNER = """
import json, sys
import pyspark.sql.worker.create_data_source, pyspark.sql.types  # Spark's process has these before it meets us
before = set(sys.modules)
from pyspark_kgroup import DefaultSource
source = DefaultSource(json.loads(sys.argv[1]))
print(*sorted(set(sys.modules) - before))
schema = source.schema()
source.streamReader(schema)
print(*sorted(set(sys.modules) - before))
"""

AS_RUNNER = """
import json, sys
import pyarrow, pyspark.sql.streaming.python_streaming_source_runner
before = set(sys.modules)
from pyspark_kgroup import DefaultSource
from pyspark_kgroup.shared.columns import COLUMNS, spark_schema
reader = DefaultSource(json.loads(sys.argv[1])).streamReader(spark_schema(COLUMNS))
print(*sorted(set(sys.modules) - before))
from pyspark_kgroup.driver.query import Query
from spark_kgroup.wire.security.secured import load_security
from pyspark_kgroup.options.security import driver_settings
load_security(driver_settings(reader._options.security))
print(*sorted(set(sys.modules) - before))
"""

AT_THE_FIRST_CALL = """
import json, sys, threading
from pyspark_kgroup import DefaultSource
from pyspark_kgroup.shared.columns import COLUMNS, spark_schema
reader = DefaultSource(json.loads(sys.argv[1])).streamReader(spark_schema(COLUMNS))
assert threading.active_count() == 1
CALL
others = set(threading.enumerate()) - {threading.main_thread()}
for thread in others:
    thread.join(60)
print(*sorted(sys.modules))
"""

FOR_COLUMNS_MAX = 55
"""Measured: 50. With PyArrow, librdkafka's binding and asyncio there were 191."""

OURS_MAX = 145
"""Measured: 143. With a module for each message of Kafka's there were 267."""


def imports(program: str, options: Mapping[str, str]) -> list[set[str]]:
    """The modules that each line of `program`'s output names."""
    ran = subprocess.run(
        [sys.executable, "-c", program, json.dumps(options)], stdout=subprocess.PIPE, check=True, text=True
    )
    return [set(line.split()) for line in ran.stdout.splitlines()]


def packages(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


def of_rooms(modules: set[str], *rooms: str) -> list[str]:
    return [name for name in sorted(modules) if name.startswith(tuple(f"pyspark_kgroup.{room}" for room in rooms))]


def test_the_planner_loads_modules_of_options_and_columns_and_none_of_kafka_or_arrow() -> None:
    made, with_columns = imports(AS_PLANNER, OPTIONS)
    assert not of_rooms(made, "options", "driver", "executor")
    assert not of_rooms(with_columns, "driver", "executor")
    assert not packages(with_columns) & {"pyarrow", "numpy", "confluent_kafka", "asyncio"}
    assert len(with_columns) <= FOR_COLUMNS_MAX


def test_librdkafka_is_loaded_where_it_has_to_judge_an_option() -> None:
    _, with_columns = imports(AS_PLANNER, {**OPTIONS, "kafka.fetch.max.bytes": "1000000"})
    assert "confluent_kafka" in with_columns


@pytest.mark.parametrize(("security", "needed"), [({}, set()), (SASL, {"scramp"})], ids=["plaintext", "SCRAM"])
def test_the_stream_reader_loads_the_modules_of_its_security(security: dict[str, str], needed: set[str]) -> None:
    made, for_query = imports(AS_RUNNER, {**OPTIONS, **security})
    assert "asyncio" not in packages(made)
    assert not of_rooms(made, "options", "driver", "executor")
    assert not of_rooms(for_query, "executor")
    assert "pyspark_kgroup.driver.registry.registry" not in for_query  # imported while the seats join, if at all
    assert packages(for_query) & {"scramp", "confluent_kafka"} == needed
    if not security:
        assert len([name for name in for_query if name.startswith(("spark_kgroup", "pyspark_kgroup"))]) <= OURS_MAX


@pytest.mark.parametrize("call", ["initialOffset", "getDefaultReadLimit", "prepareForTriggerAvailableNow"])
def test_the_drivers_half_is_loaded_beside_the_first_call_that_only_the_driver_gets(call: str) -> None:
    """Spark asks for offsets a while later."""
    (loaded,) = imports(AT_THE_FIRST_CALL.replace("CALL", f"reader.{call}()"), OPTIONS)
    assert "pyspark_kgroup.driver.query" in loaded
