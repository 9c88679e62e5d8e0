"""A seat's ranges of a batch, cut for several tasks: they give the same rows, and the seat stays as it was."""

from collections.abc import Iterator, Sequence
from typing import Any
from uuid import uuid4

import pytest
from harness import offsets
from harness.groups import instance_ids
from harness.kafka import MakeTopic, contents, produce
from harness.query import Query
from harness.sidecars import sleeping_executor
from harness.waiting import wait_for
from pyspark.sql.datasource import InputPartition

from pyspark_kgroup.shared.tickets import Executor
from pyspark_kgroup.stream import Ticket
from spark_kgroup.testing import ApacheKafka

PARTITIONS = 2


@pytest.fixture
def topic(apache_kafka: ApacheKafka, new_topic: MakeTopic) -> str:
    name = new_topic(PARTITIONS)
    produce(apache_kafka.bootstrap_servers, name, 1_000, partitions=PARTITIONS)
    return name


@pytest.fixture
def executor() -> Iterator[Executor]:
    with sleeping_executor() as executor:
        yield executor


class Tasks(Query):
    """A query that remembers how many tickets each of its batches had, and of which seats."""

    def __enter__(self) -> "Tasks":
        super().__enter__()
        self.seats: list[list[str]] = []
        partitions = self._reader.partitions

        def counting(start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
            tickets = partitions(start, end)
            payloads = [ticket.payload for ticket in tickets if isinstance(ticket, Ticket)]
            self.seats.append([payload.reads.seat if payload.reads else "late" for payload in payloads])
            return tickets

        self._reader.partitions = counting  # type: ignore[method-assign]
        return self


def found(query: Query, topic: str) -> dict[tuple[int, int], bytes]:
    rows = {(p, row["offset"]): row["value"] for (name, p), of in query.rows.items() if name == topic for row in of}
    assert len(rows) == sum(map(len, query.rows.values())), "some rows came twice"
    for of in query.rows.values():
        assert [row["offset"] for row in of] == sorted(row["offset"] for row in of)
    return rows


@pytest.mark.parametrize(
    ("options", "tasks"),
    [
        ({"minPartitions": "6"}, 6),
        pytest.param({"maxRecordsPerPartition": "150"}, 7, marks=pytest.mark.full),
        ({"minPartitions": "2", "maxRecordsPerPartition": "1000"}, 2),
        ({"minPartitions": "1"}, 1),
    ],
)
def test_the_share_of_a_seat_is_divided_as_options_say_and_is_read_once(
    apache_kafka: ApacheKafka, topic: str, options: dict[str, str], tasks: int
) -> None:
    server, group = apache_kafka.bootstrap_servers, f"group-{uuid4().hex[:8]}"
    with Tasks(server, group, topic, executor=None, **options) as query:
        query.settle()
        assert len(query.seats[0]) == tasks
        produce(server, topic, 100, partitions=PARTITIONS, first=1_000)
        query.settle()
        assert found(query, topic) == contents(server, topic)
        assert instance_ids(apache_kafka, group) == [f"{group}-0"]
    assert offsets.lag(server, group, topic) == 0


def test_small_batches_are_read_at_home_and_large_ones_in_pieces_whichever_comes_first(
    apache_kafka: ApacheKafka, topic: str, executor: Executor
) -> None:
    server, group = apache_kafka.bootstrap_servers, f"group-{uuid4().hex[:8]}"
    sent = 1_000
    with Tasks(server, group, topic, executor=executor, maxRecordsPerPartition="300") as query:
        query.settle()
        assert max(map(len, query.seats)) > 1

        def more(records: int) -> None:
            nonlocal sent
            produce(server, topic, records, partitions=PARTITIONS, first=sent)
            sent += records
            query.settle()

        def small_at_home() -> bool:
            before = query.served_warm
            more(20)
            return query.served_warm > before

        wait_for(small_at_home, "the sidecar to serve a small batch", 60)
        for _ in range(3):
            more(900)
            more(20)
        wait_for(small_at_home, "the sidecar to serve a small batch after large ones", 60)
        assert found(query, topic) == contents(server, topic)
