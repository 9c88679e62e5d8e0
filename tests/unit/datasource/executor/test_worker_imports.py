"""The modules that a new Python worker imports before it reads: every task that meets one waits for them."""

import pickle
import subprocess
import sys
from collections.abc import Mapping

import pytest

from pyspark_kgroup.options.parser import parse
from pyspark_kgroup.shared.columns import COLUMNS, spark_schema
from pyspark_kgroup.shared.tickets import Mode, ReadSettings, SeatRanges, TicketPayload
from pyspark_kgroup.stream import KgroupStreamReader, Ticket

OPTIONS = {"kafka.bootstrap.servers": "a:9092", "kafka.group.id": "g", "subscribe": "t"}

AS_WORKER = """
import pickle, sys
import pyarrow, pyspark.sql.datasource, pyspark.sql.types  # a worker of Spark's has these before it meets us
before = set(sys.modules)
reader, ticket = pickle.load(sys.stdin.buffer)
assert list(reader.read(ticket)) == []
print(*sorted(set(sys.modules) - before))
import pyspark_kgroup.executor.read.reader
print(*sorted(set(sys.modules) - before))
import pyspark_kgroup.executor.read.range_reader
print(*sorted(set(sys.modules) - before))
print(*sorted(name for name, module in sys.modules.items() if "kgroup" in name and "asyncio" in vars(module)))
"""

MODULES_MAX = 50
"""Measured: 33. With the driver's half there were 386."""

MODULES_TO_READ_NATIVELY_MAX = 75
"""Measured: 58."""

MODULES_TO_READ_DIRECTLY_MAX = 118
"""Measured: 116, of which 25 are those above and 40 are confluent_kafka's and asyncio's."""


def worker_imports(options: Mapping[str, str]) -> list[set[str]]:
    """The modules that a fresh process imports to read a ticket without ranges. Then, to read ranges by itself,
    natively and with librdkafka. Last, which of our modules among these import asyncio.
    """
    ticket = TicketPayload(
        scan_id=1,
        ticket=0,
        mode=Mode.FIXED,
        reads=SeatRanges(seat="g-0", ranges=()),
        settings=ReadSettings(consumer_config=parse(options).consumer_config()),
        registry=None,
    )
    travelling = pickle.dumps((KgroupStreamReader(options, spark_schema(COLUMNS)), Ticket(ticket)))
    worker = subprocess.run([sys.executable, "-c", AS_WORKER], input=travelling, stdout=subprocess.PIPE, check=True)
    return [set(line.split()) for line in worker.stdout.decode().split("\n")[:4]]


@pytest.mark.parametrize(
    "security",
    [
        {},
        {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "OAUTHBEARER", "tokenCallback": "time:time"},
    ],
    ids=["plaintext", "tokens"],
)
def test_a_worker_imports_neither_kio_nor_asyncio_nor_the_drivers_half(security: dict[str, str]) -> None:
    to_read, to_read_natively, to_read_directly, with_asyncio = worker_imports({**OPTIONS, **security})
    assert "pyspark_kgroup.executor.worker.ticket_reader" in to_read
    assert "pyspark_kgroup.executor.native.fetcher" in to_read_natively
    assert not to_read_natively & {"kio", "asyncio", "confluent_kafka", "pyarrow.compute"}
    of_the_driver = ("pyspark_kgroup.driver", "pyspark_kgroup.options", "spark_kgroup.member", "spark_kgroup.runtime")
    assert not [module for module in to_read_directly if module == "kio" or module.startswith(of_the_driver)]
    assert with_asyncio == set(), "confluent_kafka imports it; nothing of ours needs it here"
    assert len(to_read) <= MODULES_MAX
    assert len(to_read_natively) <= MODULES_TO_READ_NATIVELY_MAX, sorted(to_read_natively)
    assert len(to_read_directly) <= MODULES_TO_READ_DIRECTLY_MAX
