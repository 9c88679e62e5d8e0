"""`maxBytesPerTrigger`: batches of about as many bytes, by the records that executors have read."""

from uuid import uuid4

import pytest
from harness.kafka import MakeTopic, contents, produce
from harness.query import Query
from harness.waiting import wait_for

from pyspark_kgroup import stream
from spark_kgroup.testing import ApacheKafka

LIMIT = 200_000
SMALL, LARGE = 100, 10_000
"""Bytes of a value."""


class Sizes(Query):
    """A query that remembers how many records each of its batches had of each topic."""

    def __enter__(self) -> "Sizes":
        super().__enter__()
        self.batches: list[dict[str, int]] = []
        return self

    def run(self) -> None:
        before = self.counts()
        super().run()
        batch = {topic: count - before.get(topic, 0) for topic, count in self.counts().items()}
        if any(batch.values()):
            self.batches.append(batch)

    def counts(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for (topic, _), rows in self.rows.items():
            counts[topic] = counts.get(topic, 0) + len(rows)
        return counts


@pytest.mark.parametrize("options", [{}, {"minPartitions": "3"}], ids=["whole shares", "pieces"])
def test_batches_have_about_as_many_bytes_however_large_the_records_of_a_topic_are(
    apache_kafka: ApacheKafka, new_topic: MakeTopic, options: dict[str, str]
) -> None:
    server, group = apache_kafka.bootstrap_servers, f"group-{uuid4().hex[:8]}"
    small, large = new_topic(2), new_topic(1)
    produce(server, small, 10_000, partitions=2, size=SMALL)
    produce(server, large, 100, partitions=1, size=LARGE)
    query = Sizes(server, group, f"{small},{large}", executor=None, maxBytesPerTrigger=str(LIMIT), **options)
    with query:
        query.settle()
        first, *later = query.batches
        assert sum(first.values()) == 1, "nothing is known of the records yet"
        # The second batch knows one topic at most. After it both are known.
        sizes = [batch.get(small, 0) * (SMALL + 50) + batch.get(large, 0) * (LARGE + 50) for batch in later[2:-1]]
        assert len(sizes) > 5
        assert all(LIMIT / 2 < size < LIMIT * 1.2 for size in sizes), sizes
        for topic in (small, large):
            rows = {(p, r["offset"]): r["value"] for (name, p), of in query.rows.items() if name == topic for r in of}
            assert rows == contents(server, topic)
    produce(server, small, 10_000, partitions=2, size=SMALL)
    with query:  # a restart: the checkpoint has the sizes
        wait_for(query.trigger, "the first batch of another run", 60)
        (batch,) = query.batches
        assert LIMIT / 2 < batch[small] * (SMALL + 50) < LIMIT * 1.2


def test_the_first_batch_has_about_as_many_bytes_where_a_run_may_have_one_alone(
    apache_kafka: ApacheKafka, new_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on PySpark 4.0 and 4.1, by a sample that the driver reads. Sizes change until the next run."""
    monkeypatch.setattr(stream, "HAS_ADMISSION_CONTROL", False)
    server, group = apache_kafka.bootstrap_servers, f"group-{uuid4().hex[:8]}"
    small, large = new_topic(2), new_topic(1)
    produce(server, small, 10_000, partitions=2, size=SMALL)
    produce(server, large, 100, partitions=1, size=LARGE)
    query = Sizes(server, group, f"{small},{large}", executor=None, maxBytesPerTrigger=str(LIMIT))

    def first_batch() -> dict[str, int]:
        with query:
            wait_for(query.trigger, "the first batch of a run", 60)
            (batch,) = query.batches
            return batch

    batch = first_batch()
    assert LIMIT / 2 < batch[small] * (SMALL + 50) + batch[large] * (LARGE + 50) < LIMIT * 1.2, batch
    with query:
        query.settle()
    produce(server, small, 300, partitions=2, size=LARGE)
    batch = first_batch()
    assert LIMIT / 2 < batch[small] * (LARGE + 50) < LIMIT * 1.2, batch
