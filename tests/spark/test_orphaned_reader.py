"""A stream reader that outlives its JVM, with real Spark and three brokers: the restarted query does not notice it.

1. The group's coordinator stands still while a query starts, so its reader waits for it. 2. The reader is stopped. 3.
The driver and its JVM are killed. 4. The coordinator goes on, the query is started again and reads. 5. The reader goes
on.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from harness.application import Application
from harness.group_history import assert_never_rewound, group_history
from harness.groups import coordinator_node
from harness.kafka import contents, produce
from harness.offsets import committed
from harness.processes import connected_to
from harness.stream import options
from harness.waiting import wait_for

from spark_kgroup.testing import ApacheKafka
from spark_kgroup.testing.kafka_node import KafkaNode

pytestmark = pytest.mark.usefixtures("class_archive")

PARTITIONS = 4
RECORDS = 800


@pytest.fixture(scope="module")
def three_nodes() -> Iterator[ApacheKafka]:
    # A coordinator that stands still keeps its office (default 9 s): a reader may take longer on a busy machine.
    office = {"broker.session.timeout.ms": "120000"}
    with ApacheKafka(nodes=3, server_properties=office) as kafka:
        yield kafka


def orphaned(application: Application, coordinator: KafkaNode) -> int:
    """Start a query, and kill all of it but its reader, stopped on its way into the group. Returns the reader's pid."""
    reader = application.start().reader_pid
    coordinator.pause()
    try:
        wait_for(lambda: coordinator.port in connected_to(reader), "the reader to wait for its coordinator", 60)
        os.kill(reader, signal.SIGSTOP)
        for process in application.processes():
            if process.pid != reader:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
        wait_for(lambda: [process.pid for process in application.processes()] == [reader], "the others to be gone")
    finally:
        coordinator.resume()
    return reader


@pytest.mark.full
@pytest.mark.parametrize(("starting", "first"), [("earliest", 0), ("latest", RECORDS)])
def test_a_restarted_query_keeps_its_seats_when_the_reader_of_the_last_run_wakes(
    three_nodes: ApacheKafka, group: str, tmp_path: Path, starting: str, first: int
) -> None:
    kafka, server, topic = three_nodes, three_nodes.bootstrap_servers, f"topic-{group}"
    kafka.create_topic(topic, partitions=PARTITIONS)
    produce(server, topic, RECORDS, partitions=PARTITIONS)
    coordinator = coordinator_node(kafka, group)
    # A connection to the coordinator is then one that a seat joins by: all other requests go to the other brokers.
    others = ",".join(f"127.0.0.1:{node.port}" for node in kafka.nodes if node is not coordinator)
    read = options(others, topic, group, startingOffsets=starting, maxOffsetsPerTrigger=40)
    killed, restarted = (Application(tmp_path, read, sink="batches") for _ in range(2))
    try:
        reader = orphaned(killed, coordinator)
        with restarted:
            wait_for(lambda: min(committed(server, group, topic, PARTITIONS).values()) >= 0, "the group's start", 120)
            if starting == "latest":
                produce(server, topic, RECORDS, partitions=PARTITIONS, first=RECORDS)
            read_before = len(restarted.await_rows(80))
            os.kill(reader, signal.SIGCONT)
            wait_for(lambda: not killed.processes(), "the reader to end", 60)
            found = restarted.await_rows(RECORDS)
            assert len(found) > read_before
            restarted.stop()
    finally:
        killed.kill()
    there = contents(server, topic)
    wanted = {place: value for place, value in there.items() if place[1] >= first // PARTITIONS}
    assert sorted((row.partition, row.offset) for row in found) == sorted(wanted)
    assert_never_rewound(group_history(server, group))
