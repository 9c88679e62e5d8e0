"""What a new Python worker has imported when it starts to read: every task that meets one waits for it."""

import pickle
import subprocess
import sys
from collections.abc import Mapping

import pytest

from pyspark_kgroup.options.parser import parse
from pyspark_kgroup.shared.arrow import spark_schema
from pyspark_kgroup.shared.tickets import Mode, ReadSettings, SeatRanges, TicketPayload
from pyspark_kgroup.stream import KgroupStreamReader, Ticket

OPTIONS = {"kafka.bootstrap.servers": "a:9092", "kafka.group.id": "g", "subscribe": "t"}

AS_WORKER = """
import pickle, sys
import pyarrow, pyspark.sql.datasource, pyspark.sql.types  # a worker of Spark's has these before it meets us
before = set(sys.modules)
reader, ticket = pickle.load(sys.stdin.buffer)
reader.read(ticket)
print(*sorted(set(sys.modules) - before))
"""

MODULES_MAX = 100
"""Measured: 81, of which 45 are confluent_kafka's and what that imports. With the driver's half there were 386."""


def worker_imports(options: Mapping[str, str]) -> list[str]:
    """The modules that a fresh process imports to unpickle a reader and a ticket, and to begin to read."""
    ticket = TicketPayload(
        scan_id=1,
        ticket=0,
        mode=Mode.FIXED,
        reads=SeatRanges(seat="g-0", ranges=()),
        settings=ReadSettings(consumer_config=parse(options).consumer_config()),
        registry=None,
    )
    travelling = pickle.dumps((KgroupStreamReader(options, spark_schema(False)), Ticket(ticket)))
    worker = subprocess.run([sys.executable, "-c", AS_WORKER], input=travelling, stdout=subprocess.PIPE, check=True)
    return worker.stdout.decode().split()


@pytest.mark.parametrize(
    "security",
    [
        {},
        {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "OAUTHBEARER", "tokenCallback": "time:time"},
    ],
    ids=["plaintext", "tokens"],
)
def test_a_worker_reads_its_first_ticket_without_the_drivers_half_or_kio(security: dict[str, str]) -> None:
    modules = worker_imports({**OPTIONS, **security})
    assert "pyspark_kgroup.executor.ticket_reader" in modules
    packages = {".".join(module.split(".")[:2]) for module in modules} | {module.split(".")[0] for module in modules}
    drivers = {"pyspark_kgroup.driver", "pyspark_kgroup.options"}
    assert not packages & {"kio", "spark_kgroup.member", "spark_kgroup.runtime", *drivers}
    assert len(modules) <= MODULES_MAX
